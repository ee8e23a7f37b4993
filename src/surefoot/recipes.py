"""Everything that decides a network's weights, as values; their hash is the network's name."""

import dataclasses
import hashlib
import json
import math
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from surefoot.errors import InputError
from surefoot.files import replacing


class Protocol(StrEnum):
    """What is trained on. The paper: train, for val's logits; then again train and val, for the rest."""

    PAPER = "paper"
    HOLDOUT = "holdout"  # once, on train: val stays unseen


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained: SGD, the learning rate a tenth after three quarters of the epochs."""

    network: str = "resnet18"
    stem: str = "large"  # or "small": 3x3, no pooling, for small images
    pretrained: str | None = None  # sha256 of the weights file, so that the same name never means two files
    learning_rate: float = 0.01
    epochs: int = 24
    batch: int = 128
    momentum: float = 0.9
    weight_decay: float = 0.0
    view: int = 224  # pixels a side of what the network sees
    resize: int = 256  # short side that the test crop is taken from; also what images are decoded to
    augmentation: str = "inception"  # or "none"
    width: int = 1024  # of the mlp's hidden layers
    dropout: float = 0.0
    protocol: Protocol = Protocol.PAPER

    def __post_init__(self) -> None:
        object.__setattr__(self, "protocol", _choice("protocol", self.protocol, Protocol))
        _text("network", self.network)
        if self.pretrained is not None:
            _text("pretrained", self.pretrained)
        _one_of("stem", self.stem, ("large", "small"))
        _one_of("augmentation", self.augmentation, ("inception", "none"))
        for name in ("epochs", "batch", "view", "resize", "width"):
            _require(
                name,
                getattr(self, name),
                lambda v: isinstance(v, int) and v >= 1,
                "a whole number of at least 1",
            )
        _require("learning_rate", self.learning_rate, lambda v: 0 < v < math.inf, "a positive number")
        for name in ("momentum", "dropout"):
            _require(name, getattr(self, name), lambda v: 0 <= v < 1, "at least 0 and below 1")
        _require("weight_decay", self.weight_decay, lambda v: 0 <= v < math.inf, "at least 0")
        for name in ("learning_rate", "momentum", "weight_decay", "dropout"):
            object.__setattr__(self, name, float(getattr(self, name)))  # 1 and 1.0 are one recipe

    @property
    def drop_epoch(self) -> int:
        """The first epoch at a tenth of the learning rate: a third as many epochs follow as went before.

        Rounded down, which is what `surefoot tune` trains: r epochs, then a third of r, rounded up.
        """
        return max(1, 3 * self.epochs // 4)

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        return self.learning_rate * (0.1 if epoch >= self.drop_epoch else 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: str(v) if isinstance(v, StrEnum) else v for name, v in dataclasses.asdict(self).items()}

    @property
    def digest(self) -> str:
        """A short hash of all values."""
        return digest_of(self.as_dict())


@dataclass(frozen=True)
class Spec:
    """One network to be trained: which task, which recipe, which seed."""

    task: str  # the task's name, for people
    task_identity: str  # the hash of its resolved split
    recipe: Recipe
    seed: int

    @property
    def key(self) -> str:
        """A hash of everything that decides the weights."""
        return digest_of({"task": self.task_identity, "recipe": self.recipe.as_dict(), "seed": self.seed})

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "recipe": self.recipe.as_dict(), "key": self.key}


def digest_of(value: Any) -> str:
    """Twelve hexadecimal digits of the sha256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def recipe_from(values: dict[str, Any], *, base: Recipe | None = None) -> Recipe:
    """A recipe from plain values over a base; unknown names are refused."""
    known = {field.name for field in dataclasses.fields(Recipe)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise InputError(f"unknown recipe value {unknown[0]!r}; have: {', '.join(sorted(known))}")
    return dataclasses.replace(base or Recipe(), **values)


def read_recipe(path: Path) -> Recipe:
    """A recipe from a TOML file, its values under [recipe]."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    if not isinstance(document.get("recipe"), dict):
        raise InputError(f"{path} has no [recipe] table; needed: one, such as written by 'surefoot tune'")
    try:
        return recipe_from(document["recipe"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def write_recipe(recipe: Recipe, path: Path, *, comment: str = "") -> None:
    """A recipe as a TOML file."""
    lines = [f"# {line}" for line in comment.splitlines()] + ["[recipe]"]
    lines += [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in recipe.as_dict().items()
        if value is not None
    ]
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _choice(name: str, value: str, kind: type[StrEnum]) -> StrEnum:
    _one_of(name, str(value), tuple(str(member) for member in kind))
    return kind(value)


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {value!r}; allowed: a name in words")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def _require(name: str, value: Any, holds: Any, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
        raise InputError(f"{name} is {value!r}; allowed: {allowed}")
