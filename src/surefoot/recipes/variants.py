"""What makes a network other than plainly trained on labels."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.recipes.recipe import Teachers

# What the teachers see: the student's own views, drawn once for all students of theirs and answered once; the
# same, drawn and answered anew in each step; or the centre crop, answered once.
VIEWS = ("shared", "same", "fixed")


@dataclass(frozen=True)
class Variant:
    """A way to come by a network; its values are part of the recipe's hash."""

    kind: ClassVar[str] = ""

    @property
    def needs(self) -> "Teachers | None":
        """The networks that must be there first."""
        return getattr(self, "teachers", None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {
            name: v.as_dict() if name == "teachers" and v is not None else v for name, v in values.items()
        }
        return {"kind": self.kind, **plain}


@dataclass(frozen=True, kw_only=True)
class Distilled(Variant):
    """A student of an ensemble (Hinton et al., 2015), also on unlabelled samples (Li & Hoiem, CVPR 2020)."""

    kind: ClassVar[str] = "distilled"

    teachers: "Teachers"
    temperature: float = 2.0  # both sides are softened by it
    label_weight: float = 0.5  # of the classification loss
    unlabelled: float = 0.0  # unlabelled samples an epoch, as a share of the labelled ones
    views: str = "shared"  # see VIEWS

    def __post_init__(self) -> None:
        require("temperature", self.temperature, lambda v: 0 < v < math.inf, "a positive number")
        require("label_weight", self.label_weight, lambda v: 0 <= v < math.inf, "at least 0")
        require("unlabelled", self.unlabelled, lambda v: 0 <= v < math.inf, "at least 0")
        for name in ("temperature", "label_weight", "unlabelled"):
            object.__setattr__(self, name, float(getattr(self, name)))  # 2 and 2.0 are one recipe
        if self.views not in VIEWS:
            raise InputError(f"views are {self.views!r}; allowed: {', '.join(VIEWS)}")


@dataclass(frozen=True, kw_only=True)
class Bayesian(Variant):
    """Dropout sampled at test time and a variance for each logit (Kendall & Gal, NeurIPS 2017)."""

    kind: ClassVar[str] = "bayesian"

    dropout: float = 0.2
    samples: int = 100  # of the logits, in testing
    training_samples: int = 20  # and in training, for each step
    sampled: str = "head"  # dropout before the last layer, sampled there; or "network": in every layer

    def __post_init__(self) -> None:
        require("dropout", self.dropout, lambda v: 0 <= v < 1, "at least 0 and below 1")
        object.__setattr__(self, "dropout", float(self.dropout))
        for name in ("samples", "training_samples"):
            require(
                name,
                getattr(self, name),
                lambda v: isinstance(v, int) and v >= 1,
                "a whole number of at least 1",
            )
        if self.sampled not in ("head", "network"):
            raise InputError(f"sampled is {self.sampled!r}; allowed: head, network")


@dataclass(frozen=True, kw_only=True)
class Averaged(Variant):
    """The mean of several networks' weights: not trained, only its BatchNorm statistics taken anew."""

    kind: ClassVar[str] = "averaged"

    teachers: "Teachers"


@dataclass(frozen=True, kw_only=True)
class HeldOut(Variant):
    """Trained without some familiar subgroups, which it then predicts: stand-ins for unfamiliar samples."""

    kind: ClassVar[str] = "held-out"

    fold: int  # from 0
    folds: int = 5
    teachers: "Teachers | None" = None  # whose features make the subgroups, where the task names none

    def __post_init__(self) -> None:
        require("folds", self.folds, lambda v: isinstance(v, int) and v >= 2, "a whole number of at least 2")
        require(
            "fold", self.fold, lambda v: isinstance(v, int) and 0 <= v < self.folds, "from 0 to below folds"
        )


def require(name: str, value: Any, holds: Callable[[Any], bool], allowed: str) -> None:
    """Raise unless it is a number for which that holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
        raise InputError(f"{name} is {value!r}; allowed: {allowed}")
