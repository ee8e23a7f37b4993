"""The base class of fitted calibrations: functions from Predictions to Predictions, without torch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, cast

import numpy as np

from surefoot.arguments import checked
from surefoot.errors import InputError
from surefoot.predictions.classes import Order, class_order, reordered, unnamed, with_classes
from surefoot.predictions.labels import LabelKind
from surefoot.results import Result

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions


SHARED = ("lowest_probability", "class_names")  # in the document of every calibration that has them


class PredictionsLike(Protocol):
    """What a calibration is checked against: Predictions, or the shape of streamed ones."""

    @property
    def kind(self) -> LabelKind: ...

    @property
    def classes(self) -> int: ...

    @property
    def members(self) -> int: ...

    @property
    def class_names(self) -> tuple[str, ...] | None: ...


@dataclass(frozen=True)
class Evidence:
    """The effect of a calibration on the data it was fitted on."""

    nll_before: float  # unclipped: the objective of the fit
    nll_after: float
    ece_before: float
    ece_after: float
    _: KW_ONLY
    nll_held_out: float | None = None  # after, each row calibrated by a fit without its fold; None: not known
    ece_held_out: float | None = None
    remarks: tuple[str, ...] = ()  # on the data and on the effect

    def to_dict(self) -> dict[str, Any]:
        """Plain values; undefined ones are None. What is not known, and no remarks, are left out."""
        values = {name: getattr(self, name) for name in BEFORE_AND_AFTER}
        held_out = {name: getattr(self, name) for name in HELD_OUT if getattr(self, name) is not None}
        numbers = {name: v if math.isfinite(v) else None for name, v in (values | held_out).items()}
        return numbers | ({"remarks": list(self.remarks)} if self.remarks else {})

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> "Evidence":
        """From plain values."""
        names = [*BEFORE_AND_AFTER, *(name for name in HELD_OUT if name in document)]
        values: dict[str, Any] = {
            name: math.nan if document[name] is None else float(document[name]) for name in names
        }
        return Evidence(**values, remarks=tuple(str(remark) for remark in document.get("remarks", ())))


BEFORE_AND_AFTER = ("nll_before", "nll_after", "ece_before", "ece_after")
HELD_OUT = ("nll_held_out", "ece_held_out")


@dataclass(frozen=True, kw_only=True)
class Calibration(Result, ABC):
    """A fitted calibration.

    A subclass is a frozen dataclass with `n`, `label_kind` and `classes` of the data it was fitted on, as
    fields or as properties. A `Calibrator` in `CALIBRATORS` says how it is fitted and read from a file.
    """

    kind: ClassVar[str]  # in files
    needs_novelty: ClassVar[bool] = False
    averages_members: ClassVar[bool] = True  # before `apply`; else each member has its own parameters

    evidence: Evidence | None = None
    lowest_probability: float | None = None  # what a 0 is read as; None where the data had none
    class_names: tuple[str, ...] | None = None  # of the data, in the order of its numbers

    if TYPE_CHECKING:  # only declared: dataclasses would take inherited properties for defaults of fields

        @property
        @abstractmethod
        def n(self) -> int: ...

        @property
        @abstractmethod
        def label_kind(self) -> LabelKind: ...

        @property
        @abstractmethod
        def classes(self) -> int: ...

    @abstractmethod
    def apply(self, predictions: "Predictions") -> "Predictions":
        """Predictions with calibrated logits; they are checked, and averaged if `averages_members`."""

    @abstractmethod
    def parameters(self) -> dict[str, list[float]]:
        """The fitted numbers by name."""

    @classmethod
    @abstractmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """From plain values; ValueError, KeyError, TypeError or AttributeError if they are wrong."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the kind, the fields, the evidence and the remarks."""
        left_out = ("evidence", *SHARED)
        values = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out
        }
        evidence = None if self.evidence is None else self.evidence.to_dict()
        return {"kind": self.kind, **values, "evidence": evidence, "remarks": self.remarks()}

    @checked
    def __call__(self, predictions: "Predictions") -> "Predictions":
        """The same samples with calibrated logits; the order of the classes may be another one."""
        return self.calibrated(predictions, self.check(predictions))

    def calibrated(self, predictions: "Predictions", order: Order) -> "Predictions":
        """The same of predictions that were checked; `order` is what `check` returned."""
        arranged = reordered(predictions, order)
        if self.lowest_probability is not None:
            arranged = arranged.with_zeros_as(self.lowest_probability)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            result = self.apply(arranged.average() if self.averages_members else arranged)
        return reordered(result, None if order is None else tuple(np.argsort(order).tolist()))

    def check(self, predictions: PredictionsLike) -> Order:
        """Refuse predictions of other classes, or of another number of members, than it was fitted for.

        Returns where each of its classes is among those of the predictions.
        """
        if (predictions.kind, predictions.classes) != (self.label_kind, self.classes):
            raise InputError(
                f"the calibration was fitted for {self.label_kind} with {self.classes} classes, "
                f"but the predictions are {predictions.kind} with {predictions.classes} classes"
            )
        if self.needs_members not in (None, predictions.members):
            raise InputError(
                f"the calibration was fitted for {self.needs_members} members, "
                f"but the predictions have {predictions.members}"
            )
        return class_order(self.class_names, predictions.class_names, "the calibration")

    @property
    def needs_members(self) -> int | None:
        """The number of members it can be applied to; None for any number."""
        return None

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The T that all logits are divided by, or one for each member; empty if it does anything else."""
        return ()

    @property
    def single_temperature(self) -> float | None:
        """The one T that all logits are divided by, after averaging; None if it does anything else."""
        divides_only = self.averages_members and self.lowest_probability is None
        return self.temperatures[0] if divides_only and self.temperatures else None

    def details(self) -> dict[str, float]:
        """Further numbers for tables, each after its label."""
        return {}

    def summary(self) -> str:
        """The fitted numbers in a few words."""
        parameters = self.parameters().items()
        return "; ".join(f"{name} = {', '.join(f'{v:.4g}' for v in values)}" for name, values in parameters)

    def lines(self) -> list[str]:
        """The fitted numbers with their intervals, for the terminal."""
        return [f"{self.summary()}, n = {self.n:,}"]

    def remarks(self) -> list[str]:
        """Warnings about the fit; empty if there are none."""
        return []

    def cautious(self) -> "Calibration":
        """The same, unless the data says almost nothing about it: then what leaves predictions unchanged."""
        return self

    def notes(self) -> list[str]:
        """All warnings for the user: about the data, the fit and its effect."""
        return [*self.remarks(), *(() if self.evidence is None else self.evidence.remarks)]


Fitted = TypeVar("Fitted", bound=Calibration)


def fit_without_zeros(fit: Callable[..., Fitted], val: "Predictions", **options: Any) -> Fitted:
    """`fit`, with probabilities of exactly 0 read as half the smallest positive one."""
    lowest = val.half_of_smallest()
    if lowest is None:
        return fit(val, **options)
    fitted = fit(val.with_zeros_as(lowest), **options)
    is_unchanged = getattr(fitted, "declined", None) is not None
    return fitted if is_unchanged else replace(fitted, lowest_probability=lowest)


Fit = TypeVar("Fit", bound=Callable[..., Calibration])


def naming_classes(fit: Fit) -> Fit:
    """`fit`, whose calibration has the class names of its data; of a reference with these, in any order.

    The fit itself knows no names, as it may apply calibrations that have none yet.
    """

    @wraps(fit)
    def named(val: "Predictions", *arguments: Any, **options: Any) -> Calibration:
        names, reference = val.class_names, options.get("reference")
        if isinstance(reference, type(val)):
            options["reference"] = unnamed(with_classes(reference, names, "the predictions to fit"))
        fitted = fit(unnamed(val), *arguments, **options)
        return fitted if names is None else replace(fitted, class_names=names)

    return cast("Fit", named)


def positive(document: Mapping[str, Any], name: str) -> float:
    """The positive number under that name."""
    value = float(document[name])
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}; allowed: a positive number")
    return value


def not_negative(document: Mapping[str, Any], name: str) -> float:
    """The number of 0 or more under that name."""
    value = float(document[name])
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}; allowed: a number from 0")
    return value


def numbers_from(values: Any, name: str, count: int) -> tuple[float, ...]:
    """As many finite numbers."""
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"{name} are not a list of {count} numbers")
    numbers = tuple(float(value) for value in values)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name} have numbers that are not finite")
    return numbers


def evidence_from(document: Mapping[str, Any]) -> Evidence | None:
    """The evidence in the plain values of a calibration, if there is any."""
    evidence = document.get("evidence")
    return None if evidence is None else Evidence.from_dict(evidence)


def facts_from(document: Mapping[str, Any]) -> dict[str, Any]:
    """The data that a calibration was fitted on, and how the search ended, as arguments of its class."""
    return {
        "n": int(document["n"]),
        "label_kind": LabelKind(document["label_kind"]),
        "classes": int(document["classes"]),
        "at_bound": bool(document["at_bound"]),
        "separable": bool(document["separable"]),
        "flat": bool(document["flat"]),
        "evidence": evidence_from(document),
    }
