"""The base class of fitted calibrations: functions from Predictions to Predictions, without torch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, Field, dataclass, fields, replace
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from surefoot.errors import InputError, is_whole
from surefoot.predictions.arguments import checked
from surefoot.predictions.classes import (
    Order,
    class_order,
    reordered,
    unnamed,
    with_classes,
)
from surefoot.predictions.labels import LabelKind
from surefoot.results import Result

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions


OF_DATA = ("n", "label_kind", "classes")
SHARED = ("lowest_probability", "class_names")  # read and written with the file, not with the fitted numbers


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

    A subclass is a frozen dataclass whose fields are what was fitted: numbers, text, tuples of them, or other
    calibrations. Files have them by name. A `Calibrator` in `CALIBRATORS` says how it is fitted.
    """

    kind: ClassVar[str]  # in files
    needs_novelty: ClassVar[bool] = False
    averages_members: ClassVar[bool] = True  # before `apply`; else each member has its own parameters

    n: int  # rows of the data that it was fitted on
    label_kind: LabelKind
    classes: int
    evidence: Evidence | None = None
    lowest_probability: float | None = None  # what a 0 is read as; None where the data had none
    class_names: tuple[str, ...] | None = None  # of the data, in the order of its numbers

    def __post_init__(self) -> None:
        """Raise ValueError for values that no fit gives: they may come from a file."""
        if self.lowest_probability is not None and not 0 < self.lowest_probability < 0.5:
            allowed = "allowed: a number above 0 and below 0.5"
            raise InputError(f"lowest_probability is {self.lowest_probability}; {allowed}")
        if self.class_names is not None and len(self.class_names) != self.classes:
            names = f"{len(self.class_names)} class names for {self.classes} classes"
            raise InputError(f"{names}; the numbers must be equal")

    @abstractmethod
    def apply(self, predictions: "Predictions") -> "Predictions":
        """Predictions with calibrated logits; they are checked, and averaged if `averages_members`."""

    @abstractmethod
    def parameters(self) -> dict[str, list[float]]:
        """The fitted numbers by name."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the kind, what was fitted, on what data, how the search ended, evidence, remarks."""
        own = [field for field in _fields(self) if field.name not in (*OF_DATA, "evidence")]
        fitted, others = (
            [f.name for f in own if (f.default is MISSING) is needed] for needed in (True, False)
        )
        names = (*fitted, *OF_DATA, *others, "evidence")
        values = {name: _plain(getattr(self, name)) for name in names}
        return {"kind": self.kind, **values, "remarks": self.remarks()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """From plain values, each read as its field declares; a missing one has its default, if it has any.

        ValueError, KeyError, TypeError or AttributeError if they are wrong.
        """
        hints = get_type_hints(cls)
        values = {
            field.name: _read(field.name, document[field.name], hints[field.name])
            for field in _fields(cls)
            if field.name in document or field.default is MISSING
        }
        return cls(**values)

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


def _fields(calibration: Calibration | type[Calibration]) -> list[Field[Any]]:
    return [field for field in fields(calibration) if field.name not in SHARED]


def _plain(value: Any) -> Any:
    """A field as JSON has it."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Calibration | Evidence):
        return value.to_dict()
    return str(value) if isinstance(value, LabelKind) else value


def _read(name: str, value: Any, hint: Any) -> Any:
    """A field from JSON, as its annotation says."""
    options = [each for each in get_args(hint) if each is not type(None)]
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise InputError(f"{name} are not a list")
        return tuple(_read(name, each, options[0]) for each in value)
    if options:  # or None, or text
        is_other = value is None or (str in options and isinstance(value, str))
        return value if is_other else _read(name, value, options[0])
    if issubclass(hint, Calibration | Evidence):
        return hint.from_dict(value)
    if hint is int and not is_whole(value, least=0):
        raise InputError(f"{name} is {value!r}; allowed: a whole number")
    return hint(value)


def require_numbers(
    name: str, values: Sequence[float], *, count: int | None = None, least: float = -math.inf
) -> None:
    """Raise ValueError unless there are so many, all finite and at least so large."""
    if count not in (None, len(values)):
        raise InputError(f"{name} are not a list of {count} numbers")
    allowed = {-math.inf: "finite numbers", 0: "a number from 0"}.get(least, "a positive number")
    for value in values:
        if not (math.isfinite(value) and value >= least):
            raise InputError(f"{name} is {value}; allowed: {allowed}")


def data_facts(rows: "Predictions") -> dict[str, Any]:
    """The fields of every calibration on the data that it is fitted on."""
    return {"n": rows.n, "label_kind": rows.kind, "classes": rows.classes}


Fit = TypeVar("Fit", bound=Callable[..., Calibration])


def for_any_data(fit: Fit) -> Fit:
    """`fit`, of which probabilities may be exactly 0 and classes have names.

    A 0 is read as half the smallest positive probability. A calibration has the class names of its data; a
    reference with these has them in any order. The fit itself knows no names, as it may apply calibrations
    that have none yet.
    """

    @wraps(fit)
    def fitted(val: "Predictions", *arguments: Any, **options: Any) -> Calibration:
        names, reference = val.class_names, options.get("reference")
        if isinstance(reference, type(val)):
            options["reference"] = unnamed(with_classes(reference, names, "the predictions to fit"))
        lowest = val.half_of_smallest()
        found = fit(unnamed(val if lowest is None else val.with_zeros_as(lowest)), *arguments, **options)
        is_unchanged = getattr(found, "declined", None) is not None
        raised = found.lowest_probability if lowest is None or is_unchanged else lowest
        return replace(found, class_names=names or found.class_names, lowest_probability=raised)

    return cast("Fit", fitted)
