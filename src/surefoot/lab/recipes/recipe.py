"""Everything that decides a network's weights, as values; their hash is the network's name."""

import dataclasses
import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from surefoot.errors import InputError, one_of, require_number, require_whole
from surefoot.io import digest_of, write_toml

AUGMENTATIONS = ("inception", "strong", "none")
SCHEDULES = ("step", "cosine")


class Protocol(StrEnum):
    """What is trained on. The paper: train, for val's logits; then again train and val, for the rest."""

    PAPER = "paper"
    HOLDOUT = "holdout"  # one training, on train: val stays unseen
    SEARCH = "search"  # the same, and only val is predicted: for choosing a recipe


@dataclass(frozen=True)
class VariantValues:
    """The values of a training variant, all of them part of the recipe's hash.

    What they do is defined by `surefoot.lab.variants.Variant`, the base class of all variants.
    """

    name: ClassVar[str]  # "kind" in files

    @property
    def needs(self) -> "Teachers | None":
        """The networks that must be trained first."""
        return None

    def network_options(self, _network: str) -> dict[str, Any]:
        """Options of `build_network`, for a network of that name."""
        return {}

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {name: v.as_dict() if isinstance(v, Teachers) else v for name, v in values.items()}
        return {"kind": self.name, **plain}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained: by SGD or sharpness-aware SGD, at a rate that falls by a schedule."""

    network: str = "resnet18"
    stem: str = "large"  # or "small": 3x3, no pooling, for small images
    pretrained: str | None = None  # sha256 of the weights file, so that the same name never means two files
    code: tuple[str, ...] = ()  # of a user's own network: each file of its source with its digest
    learning_rate: float = 0.01
    epochs: int = 24
    batch: int = 128
    momentum: float = 0.9
    weight_decay: float = 0.0
    view: int = 224  # side of the network's inputs, in pixels
    resize: int = 256  # short side that the test crop is taken from; also what images are decoded to
    augmentation: str = "inception"  # or "strong", or "none"
    width: int = 1024  # of the hidden layers of mlp and residual-mlp
    dropout: float = 0.0
    schedule: str = "step"  # a tenth of the rate for the last quarter; or "cosine": down to 0, step by step
    sharpness: float = 0.0  # rho of sharpness-aware minimisation: the radius of its step uphill; 0: none
    weight_average: float = 0.0  # decay per step of a moving average, which replaces the weights; 0: none
    label_smoothing: float = 0.0  # the share of a label that is spread evenly over the classes
    mixup: float = 0.0  # alpha of the Beta distribution of the mixing shares; 0: none
    regmixup: float = 0.0  # the same, mixed images being added to the others instead of replacing them
    feature_noise: float = 0.0  # deviation of Gaussian noise on vectors in training; 0: none
    feature_dropout: float = 0.0  # the share of a vector's features that are unknown in training; 0: none
    protocol: Protocol = Protocol.PAPER
    variant: VariantValues | None = None  # None: plain training on labels

    def __post_init__(self) -> None:
        one_of("protocol", str(self.protocol), tuple(map(str, Protocol)))
        object.__setattr__(self, "protocol", Protocol(self.protocol))
        pretrained = {} if self.pretrained is None else {"pretrained": self.pretrained}
        for name, value in ({"network": self.network} | pretrained).items():
            if not isinstance(value, str) or not value:
                raise InputError(f"{name} is {value!r}; allowed: text")
        if not isinstance(self.code, list | tuple) or not all(isinstance(each, str) for each in self.code):
            raise InputError(f"code is {self.code!r}; allowed: a list of texts, as 'surefoot run' writes it")
        object.__setattr__(self, "code", tuple(self.code))
        if self.variant is not None and not isinstance(self.variant, VariantValues):
            raise InputError(f"variant is {self.variant!r}; allowed: a table with a kind")
        one_of("stem", self.stem, ("large", "small"))
        one_of("augmentation", self.augmentation, AUGMENTATIONS)
        one_of("schedule", self.schedule, SCHEDULES)
        at_least = {"epochs": 1, "batch": 2, "view": 1, "resize": 1, "width": 1}  # BatchNorm needs two rows
        for name, least in at_least.items():
            require_whole(name, getattr(self, name), least)
        require_number("learning_rate", self.learning_rate, lambda v: 0 < v < math.inf, "a positive number")
        for name in ("momentum", "dropout", "weight_average", "label_smoothing", "feature_dropout"):
            require_number(name, getattr(self, name), lambda v: 0 <= v < 1, "at least 0 and below 1")
        for name in ("weight_decay", "sharpness", "mixup", "regmixup", "feature_noise"):
            require_number(name, getattr(self, name), lambda v: 0 <= v < math.inf, "at least 0")
        if self.mixup and self.regmixup:
            raise InputError(f"mixup is {self.mixup:g} and regmixup {self.regmixup:g}; allowed: one of them")
        for name in (field.name for field in dataclasses.fields(self) if field.type is float):
            object.__setattr__(self, name, float(getattr(self, name)))  # 1 and 1.0 are one recipe

    @property
    def gives_features(self) -> bool:
        """Whether the network's features are accessible; a user's own function returns logits only."""
        return ":" not in self.network or self.network.startswith(("timm:", "torchvision:"))

    @property
    def drop_epoch(self) -> int:
        """The first epoch at a tenth of the learning rate, which the last quarter of the epochs has.

        Rounded down, which is what `surefoot tune` trains: r epochs, then a third of r, rounded up.
        """
        return max(1, 3 * self.epochs // 4)

    def rate(self, epoch: float) -> float:
        """The learning rate after so many epochs, a whole number of them at an epoch's first step."""
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.learning_rate * (0.1 if epoch >= self.drop_epoch else 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; the variant and the source only where there is one."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        variant, code = values.pop("variant"), values.pop("code")
        plain = {name: str(v) if isinstance(v, StrEnum) else v for name, v in values.items()}
        plain |= {"code": list(code)} if code else {}
        return plain if variant is None else {**plain, "variant": variant.as_dict()}

    @cached_property
    def digest(self) -> str:
        """A short hash of the values that differ from their defaults."""
        return digest_of(non_default_values(self))


@dataclass(frozen=True)
class Teachers:
    """Networks from which another is made: one recipe, several seeds."""

    recipe: Recipe
    seeds: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"recipe": self.recipe.as_dict(), "seeds": list(self.seeds)}


@dataclass(frozen=True)
class Spec:
    """One network to be trained: which task, which recipe, which seed."""

    task: str  # the task's name, for people
    task_identity: str  # the hash of its resolved split
    recipe: Recipe
    seed: int

    @cached_property
    def key(self) -> str:
        """A hash of everything that decides the weights."""
        recipe = non_default_values(self.recipe)
        return digest_of({"task": self.task_identity, "recipe": recipe, "seed": self.seed})

    def needs(self) -> tuple["Spec", ...]:
        """The networks that must be trained first: its teachers."""
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


def non_default_values(values: Recipe | VariantValues | Teachers) -> dict[str, Any]:
    """The values that differ from their defaults, as plain data: what the hashes are made of.

    So an option that is added later, with a default that changes nothing, renames no network. The reverse
    side: a default, once released, must never change.
    """
    plain: dict[str, Any] = {"kind": values.name} if isinstance(values, VariantValues) else {}
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if field.default is not dataclasses.MISSING and value == field.default:
            continue
        if isinstance(value, Recipe | VariantValues | Teachers):
            value = non_default_values(value)
        plain[field.name] = str(value) if isinstance(value, StrEnum) else value
    return plain


def write_recipe(recipe: Recipe, path: Path, *, comment: str = "") -> None:
    """A recipe as a TOML file."""
    write_toml({"recipe": recipe.as_dict()}, path, comment=comment)
