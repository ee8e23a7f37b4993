"""Everything that decides a network's weights, as values; their hash is the network's name."""

import dataclasses
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from surefoot.errors import InputError
from surefoot.io import digest_of, read_toml, write_toml
from surefoot.recipes.variants import Averaged, Bayesian, Distilled, HeldOut, Variant, require


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
    variant: Variant | None = None  # what makes it other than plainly trained

    def __post_init__(self) -> None:
        object.__setattr__(self, "protocol", _choice("protocol", self.protocol, Protocol))
        _text("network", self.network)
        if self.variant is not None and not isinstance(self.variant, Variant):
            raise InputError(f"variant is {self.variant!r}; allowed: a table with a kind")
        if self.pretrained is not None:
            _text("pretrained", self.pretrained)
        _one_of("stem", self.stem, ("large", "small"))
        _one_of("augmentation", self.augmentation, ("inception", "none"))
        at_least = {"epochs": 1, "batch": 2, "view": 1, "resize": 1, "width": 1}  # BatchNorm needs two rows
        for name, least in at_least.items():
            require(
                name,
                getattr(self, name),
                lambda v, least=least: isinstance(v, int) and v >= least,  # type: ignore[misc]
                f"a whole number of at least {least}",
            )
        require("learning_rate", self.learning_rate, lambda v: 0 < v < math.inf, "a positive number")
        for name in ("momentum", "dropout"):
            require(name, getattr(self, name), lambda v: 0 <= v < 1, "at least 0 and below 1")
        require("weight_decay", self.weight_decay, lambda v: 0 <= v < math.inf, "at least 0")
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
        """Plain values; the variant only where there is one."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        variant = values.pop("variant")
        plain = {name: str(v) if isinstance(v, StrEnum) else v for name, v in values.items()}
        return plain if variant is None else {**plain, "variant": variant.as_dict()}

    @property
    def digest(self) -> str:
        """A short hash of all values."""
        return digest_of(self.as_dict())


@dataclass(frozen=True)
class Teachers:
    """Networks that another is made from: one recipe, several seeds."""

    recipe: Recipe
    seeds: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"recipe": self.recipe.as_dict(), "seeds": list(self.seeds)}


def recipe_from(values: dict[str, Any], *, base: Recipe | None = None) -> Recipe:
    """A recipe from plain values over a base; unknown names are refused."""
    known = {field.name for field in dataclasses.fields(Recipe)}
    refuse_unknown("recipe value", values, known)
    if isinstance(values.get("variant"), dict):
        values = {**values, "variant": variant_from(values["variant"])}
    return dataclasses.replace(base or Recipe(), **values)


def variant_from(values: dict[str, Any]) -> Variant:
    """A variant from plain values."""
    kinds = {kind.kind: kind for kind in (Distilled, Bayesian, Averaged, HeldOut)}
    given = dict(values)
    kind = given.pop("kind", None)
    if kind not in kinds:
        raise InputError(f"variant is of kind {kind!r}; allowed: {', '.join(kinds)}")
    chosen = kinds[kind]
    refuse_unknown(f"value of a {kind} network", given, {field.name for field in dataclasses.fields(chosen)})
    if isinstance(given.get("teachers"), dict):
        given["teachers"] = _teachers_from(given["teachers"])
    try:
        return chosen(**given)
    except TypeError as error:
        raise InputError(f"a {kind} network needs its teachers: recipe and seeds") from error


def _teachers_from(values: dict[str, Any]) -> Teachers:
    try:
        return Teachers(recipe_from(values["recipe"]), tuple(int(seed) for seed in values["seeds"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"teachers are {values!r}; allowed: a recipe and seeds") from error


def refuse_unknown(what: str, values: dict[str, Any], known: set[str]) -> None:
    """Raise for the first name that is not known."""
    unknown = sorted(set(values) - known)
    if unknown:
        raise InputError(f"unknown {what} {unknown[0]!r}; have: {', '.join(sorted(known))}")


def _choice(name: str, value: str, kind: type[StrEnum]) -> StrEnum:
    _one_of(name, str(value), tuple(str(member) for member in kind))
    return kind(value)


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {value!r}; allowed: a name in words")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


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

    def needs(self) -> tuple["Spec", ...]:
        """The networks that must be there first: its teachers."""
        teachers = None if self.recipe.variant is None else self.recipe.variant.needs
        if teachers is None:
            return ()
        return tuple(Spec(self.task, self.task_identity, teachers.recipe, seed) for seed in teachers.seeds)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        recipe = self.recipe.as_dict()
        return {
            "task": self.task,
            "task_identity": self.task_identity,
            "recipe": recipe,
            "seed": self.seed,
            "key": self.key,
        }


def read_recipe(path: Path) -> Recipe:
    """A recipe from a TOML file, its values under [recipe]."""
    document = read_toml(path)
    if not isinstance(document.get("recipe"), dict):
        raise InputError(f"{path} has no [recipe] table; needed: one, such as written by 'surefoot tune'")
    try:
        return recipe_from(document["recipe"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def write_recipe(recipe: Recipe, path: Path, *, comment: str = "") -> None:
    """A recipe as a TOML file."""
    write_toml({"recipe": recipe.as_dict()}, path, comment=comment)
