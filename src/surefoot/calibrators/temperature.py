"""Temperature scaling: one T, one per member, and at least one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.calibrators.calibration import OF_DATA, Calibration, data_facts, for_any_data, require_numbers
from surefoot.calibrators.declaration import Calibrator, Option
from surefoot.calibrators.search import (
    Reading,
    best_scale,
    is_at_bound,
    is_flat,
    is_separable,
    search_bounds,
)
from surefoot.errors import InputError
from surefoot.metrics.intervals import LEVEL, NORMAL, few_samples_factor
from surefoot.predictions.arguments import checked
from surefoot.predictions.arrays import as_numpy, read_only
from surefoot.predictions.logits import Floats
from surefoot.predictions.outcomes import Array
from surefoot.predictions.validate import as_floats

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

TINY = 5e-324  # the smallest positive number
FEW_ROWS = 200
MUCH_WORSE = 0.05  # of the ECE on the data that T was fitted on
WORSE_ECE = 0.01  # the same where probabilities are exactly 0: T is not used
WEIGHT_RANGE = (1e-100, 1e100)  # whose squares and sums neither vanish nor overflow
UNKNOWN = 100  # an interval whose ends differ by this factor or more says nothing: T is not used
WIDE = 1.5  # an interval whose ends differ by more than this factor is called wide


@dataclass(frozen=True, kw_only=True)
class SingleTemperature(Calibration):
    """One T: members are averaged first, then divided by T."""

    temperature: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers("temperature", self.temperatures, least=TINY)

    def apply(self, predictions: "Predictions") -> "Predictions":
        """The logits divided by T."""
        return predictions.with_logits(read_only(self.scale(predictions.logits)))

    def scale(self, logits: Any) -> Any:
        """Bare logits of one model, as a tensor or an array, divided by T."""
        return logits / self.temperature

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The T."""
        return (self.temperature,)

    def parameters(self) -> dict[str, list[float]]:
        """The T."""
        return {"T": [self.temperature]}


@checked
@dataclass(frozen=True, kw_only=True)
class Temperature(SingleTemperature):
    """The T with the lowest NLL, with its interval."""

    kind: ClassVar[str] = "temperature"

    low: float  # 95% interval, from the curvature and the variance of the rows' slopes (sandwich)
    high: float
    at_bound: bool = False
    separable: bool = False  # every label is predicted correctly
    flat: bool = False  # all logits of a row are equal: no T changes anything, and 1 is taken
    # The fitted T that was not used, as it is below 1, unknown or worse; low and high are its interval
    declined: float | None = None
    ece_declined: float | None = None  # the ECE with it, if that is why

    def __post_init__(self) -> None:
        super().__post_init__()
        declined = [each for each in (self.declined, self.ece_declined) if each is not None]
        require_numbers("declined", declined, least=TINY)
        if self.declined is None:
            return
        has_reason = self.declined < 1 or self.is_unknown or self.ece_declined is not None
        if self.temperature != 1 or not has_reason:
            allowed = "allowed: 1, and a T below 1 or one whose interval spans orders of magnitude"
            raise InputError(f"temperature is {self.temperature} and {self.declined} was declined; {allowed}")

    @property
    def is_unknown(self) -> bool:
        """Whether the interval spans orders of magnitude."""
        return self.at_bound or self.high >= UNKNOWN * self.low

    @property
    def raises_ece(self) -> bool:
        """Whether probabilities with exact zeros end up with a clearly higher ECE."""
        if self.evidence is None or self.lowest_probability is None:
            return False
        clearly = max(WORSE_ECE, 0.5 / math.sqrt(self.n))  # the standard error of an accuracy of one half
        return self.evidence.ece_after > self.evidence.ece_before + clearly

    def cautious(self) -> Self:
        """T = 1 where the interval spans orders of magnitude or the ECE rises: the fitted T is declined."""
        if self.declined is not None or self.temperature == 1 or not (self.is_unknown or self.raises_ece):
            return self
        ece_declined = self.evidence.ece_after if self.evidence is not None and not self.is_unknown else None
        unchanged = None
        if self.evidence is not None:
            before = self.evidence.nll_before, self.evidence.ece_before
            unchanged = replace(self.evidence, nll_after=before[0], ece_after=before[1])
        return replace(
            self,
            temperature=1.0,
            declined=self.temperature,
            ece_declined=ece_declined,
            evidence=unchanged,
            lowest_probability=None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the ends of the interval as one; an infinite end is None."""
        values = super().to_dict()
        low, high = values.pop("low"), values.pop("high")
        ends = {"low": low, "high": high if math.isfinite(high) else None, "level": LEVEL}
        if values["ece_declined"] is None:
            del values["ece_declined"]
        return {"kind": self.kind, "temperature": self.temperature, "interval": ends} | values

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """From plain values."""
        low, high = (document["interval"][end] for end in ("low", "high"))
        return super().from_dict({**document, "low": low, "high": math.inf if high is None else high})

    @property
    def _why_declined(self) -> str:
        if self.is_unknown:
            return "uncertain"
        return "below 1" if self.ece_declined is None else "worse for the ECE"

    def details(self) -> dict[str, float]:
        """The declined T."""
        return {} if self.declined is None else {f"declined, as {self._why_declined}:": self.declined}

    def lines(self) -> list[str]:
        """The T with its interval."""
        ends = "" if self.at_bound else f" (95% interval {self.low:.5g} to {self.high:.5g})"
        if self.declined is not None:
            fitted = f"the fitted T = {self.declined:.5g}{ends}"
            return [f"T = 1, because {fitted} is {self._why_declined}, n = {self.n:,}"]
        return [f"T = {self.temperature:.5g}{ends}, n = {self.n:,}"]

    def remarks(self) -> list[str]:
        """Warnings about the search, the number of rows and the effect on the ECE."""
        remarks = []
        if self.flat:
            remarks.append("the logits of every row are equal, so T has no effect; T = 1 is used")
        elif self.declined is not None and self.is_unknown:
            reach = "unknown" if self.at_bound else f"{self.low:.3g} to {self.high:.3g}"
            why = "every label is predicted correctly" if self.separable else f"its 95% interval is {reach}"
            remarks.append(
                f"the fitted T = {self.declined:.3g} was not used, as {why} (n = {self.n}): the predictions "
                "are not changed; use more validation data, or force=True to use it"
            )
            return remarks
        elif self.ece_declined is not None and self.evidence is not None:
            remarks.append(
                f"the fitted T = {self.declined:.3g} was not used, as it raises the ECE from "
                f"{self.evidence.ece_before:.3g} to {self.ece_declined:.3g}: the predictions are not "
                "changed; the method 'isotonic' may suit them"
            )
            return remarks
        elif self.declined is not None:
            remarks.append(
                f"the fitted T = {self.declined:.3g} is below 1 and would make the model more confident "
                "everywhere; it was declined, and the predictions are not changed"
            )
        elif self.separable:
            remarks.append(
                f"every label is predicted correctly, so the NLL keeps falling with T: T = "
                f"{self.temperature:.3g} is only the end of the search range; use more validation data"
            )
        elif self.at_bound:
            remarks.append(
                f"T = {self.temperature:.3g} is the end of the search range: the logits do not help to "
                "predict the labels; check that labels and classes are in the same order"
            )
        elif self.high < 1:
            remarks.append(
                f"T = {self.temperature:.3g} is below 1: the model is underconfident here, and dividing by T "
                "makes it more confident everywhere, also on unfamiliar data, where that usually hurts"
            )
        if self.n < FEW_ROWS or (not self.at_bound and self.high > WIDE * self.low):
            reach = "unknown" if self.high == math.inf else f"{self.low:.3g} to {self.high:.3g}"
            remarks.append(f"n = {self.n} rows are few for this fit: the 95% interval of T is {reach}")
        if self.evidence is not None and self.evidence.ece_after > self.evidence.ece_before + MUCH_WORSE:
            remarks.append(
                f"the ECE rose from {self.evidence.ece_before:.3g} to {self.evidence.ece_after:.3g}: some "
                "labels have a probability near 0 and dominate the fit; this T does not suit the other rows, "
                "and isotonic calibration may"
            )
        return remarks


@dataclass(frozen=True, kw_only=True)
class MemberTemperatures(Calibration):
    """A T for each member of an ensemble: members are divided first, then averaged by the metrics."""

    kind: ClassVar[str] = "member-temperatures"
    averages_members: ClassVar[bool] = False

    members: tuple[Temperature, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.members:
            raise InputError("members are empty; allowed: one or more")

    @property
    def needs_members(self) -> int:
        """As many as have a T."""
        return len(self.members)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The T of each member."""
        return tuple(member.temperature for member in self.members)

    def apply(self, predictions: "Predictions") -> "Predictions":
        """Each member's logits divided by its T."""
        return predictions.with_logits(self.scale(predictions.logits))

    def scale(self, logits: Any) -> Floats:
        """Bare logits (members, n, classes) as an array, each member divided by its T."""
        values: Floats = as_numpy("logits", logits)
        return values / np.array(self.temperatures, dtype=values.dtype).reshape(-1, 1, 1)

    def parameters(self) -> dict[str, list[float]]:
        """The T of each member."""
        return {"T of each member": list(self.temperatures)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values: all facts are those of each member."""
        values = super().to_dict()
        return {name: values[name] for name in ("kind", "members", "evidence")}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """From plain values."""
        first = next(iter(document["members"]), {"n": 0, "label_kind": "one_label", "classes": 0})
        return super().from_dict({**{name: first[name] for name in OF_DATA}, **document})

    @property
    def declined(self) -> float | None:
        """The first fitted T that was not used, if there is one."""
        return next((member.declined for member in self.members if member.declined is not None), None)

    def cautious(self) -> Self:
        """T = 1 for the members whose interval spans orders of magnitude."""
        return replace(self, members=tuple(member.cautious() for member in self.members))

    def lines(self) -> list[str]:
        """Each member's T with its interval."""
        if len(self.members) == 1:
            return self.members[0].lines()
        return [f"member {i}: {line}" for i, t in enumerate(self.members) for line in t.lines()]

    def remarks(self) -> list[str]:
        """Each member's remarks."""
        return [f"member {i}: {remark}" for i, t in enumerate(self.members) for remark in t.remarks()]


@checked
@for_any_data
def fit_temperature(val: "Predictions", *, weights: ArrayLike | None = None) -> Temperature:
    """The T that minimises the unclipped NLL of `val`, exact to 1e-6 and always positive.

    T = argmin_T mean -log p_true(z / T). Several members are averaged first. Guo et al., ICML 2017.
    `weights` are those of the rows; by default all count the same.

    >>> from surefoot import Predictions
    >>> fit_temperature(Predictions.from_logits([[4.0, 0.0]] * 4, [0, 0, 0, 1])).temperature
    3.6409569065...
    """
    labelled, rows = (only_labelled(val).average(), None) if weights is None else weighted_rows(val, weights)
    facts = data_facts(labelled)
    if is_flat(labelled):
        return Temperature(temperature=1.0, low=0.0, high=math.inf, at_bound=True, flat=True, **facts)
    found = _least_nll(labelled, rows)
    factor = math.inf
    if not found.at_bound:
        slopes, second = found.reading.row_slopes, found.reading.second
        factor = interval_factor(slopes, second, found.scale, labelled.groups)
    return Temperature(
        temperature=1 / found.scale,
        low=1 / factor / found.scale,
        high=factor / found.scale,
        at_bound=found.at_bound,
        separable=found.separable,
        **facts,
    )


def best_temperature(predictions: "Predictions") -> float:
    """The T of `fit_temperature`, without its interval, which takes as long as a third of the search."""
    labelled = only_labelled(predictions).average()
    return 1.0 if is_flat(labelled) else 1 / _least_nll(labelled, None).scale


class _Found(NamedTuple):
    """The scale with the lowest NLL."""

    scale: float
    reading: Reading
    at_bound: bool
    separable: bool


def _least_nll(labelled: "Predictions", weights: Array | None) -> _Found:
    lowest, highest = search_bounds(labelled)
    scale, reading = best_scale(labelled, lowest, highest, weights)
    # At an inner optimum the rows' slopes cancel, so some are positive; if none is, compare with the labels.
    if not (reading.row_slopes > 0).any() and is_separable(labelled):
        return _Found(highest, reading, at_bound=True, separable=True)
    return _Found(scale, reading, is_at_bound(scale, lowest, highest), separable=False)


@checked
@for_any_data
def fit_member_temperatures(val: "Predictions") -> MemberTemperatures:
    """A temperature for each member by itself: the paper's ensemble of T-scaled models.

    >>> from surefoot import Predictions
    >>> two = Predictions.from_logits([[[4.0, 0.0]] * 4, [[2.0, 0.0]] * 4], [0, 0, 0, 1])
    >>> [round(t, 3) for t in fit_member_temperatures(two).temperatures]
    [3.641, 1.82]
    """
    members = tuple(fit_temperature(val.member(i)) for i in range(val.members))
    facts = {name: getattr(members[0], name) for name in OF_DATA}
    return MemberTemperatures(members=members, **facts)


def only_labelled(val: "Predictions") -> "Predictions":
    """The rows with at least one known label: what a calibration is fitted on."""
    known = val.labels >= 0
    if known.all():
        return val
    if not known.any():
        raise InputError("no labels to fit a temperature on; allowed: predictions with at least one label")
    return val.take(known.reshape(val.n, -1).any(axis=1))


def weighted_rows(val: "Predictions", weights: ArrayLike | None) -> "tuple[Predictions, Array]":
    """The rows with a known label that count, members averaged, and their weights."""
    if weights is None:
        labelled = only_labelled(val).average()
        return labelled, np.ones(labelled.n)
    given: Array = as_floats("weights", as_numpy("weights", weights)).astype(np.float64)
    lowest, highest = WEIGHT_RANGE
    allowed = f"allowed: {val.n} numbers that are 0 or from {lowest:g} to {highest:g}, not all 0"
    if given.shape != (val.n,):
        raise InputError(f"weights have shape {given.shape}; {allowed}")
    wrong = np.flatnonzero(~((given == 0) | ((given >= lowest) & (given <= highest))))
    if len(wrong):
        raise InputError(f"the weight of row {wrong[0]} is {given[wrong[0]]:g}; {allowed}")
    if not given.any():
        raise InputError(f"all weights are 0; {allowed}")
    counting = (given > 0) & (val.labels >= 0).reshape(val.n, -1).any(axis=1)
    return only_labelled(val.take(counting)).average(), given[counting]


def interval_factor(row_slopes: Array, second: float, scale: float, groups: NDArray[Any] | None) -> float:
    """`factor_of` the rows' slopes, which are summed within groups."""
    slopes = row_slopes
    if groups is not None:
        _, member_of = np.unique(groups, return_inverse=True)
        slopes = np.bincount(member_of, row_slopes).astype(np.float64)
    return factor_of(float((slopes * slopes).sum()), len(slopes), second, scale)


def factor_of(squared_slopes: float, independent: int, second: float, scale: float) -> float:
    """exp(t * standard error of log T), by the sandwich sqrt(sum g^2) / sum h."""
    error = math.sqrt(squared_slopes) / second / scale
    widened = NORMAL * few_samples_factor(independent) * error
    return math.exp(widened) if widened < 700 else math.inf


def fit_temperature_at_least_one(val: "Predictions", *, weights: ArrayLike | None = None) -> Temperature:
    """The T of `fit_temperature` where it is 1 or more; else 1, with the T that was declined.

    T = max(1, argmin_T NLL(z / T)). Li & Hoiem, CVPR 2020, for networks distilled from an ensemble, which
    may be underconfident on familiar data: a T below 1 would do harm on unfamiliar data.

    >>> from surefoot import Predictions
    >>> fitted = fit_temperature_at_least_one(Predictions.from_logits([[0.1, 0.0]] * 4, [0, 0, 0, 1]))
    >>> fitted.temperature, fitted.declined
    (1.0, 0.0910239...)
    """
    return at_least_one(fit_temperature(val, weights=weights))


def at_least_one(fitted: Temperature) -> Temperature:
    """A fitted T where it is 1 or more; else 1, with the T that was declined."""
    if fitted.temperature >= 1:
        return fitted
    return replace(fitted, temperature=1.0, declined=fitted.temperature)


WEIGHTS = Option("weights", object, None, "sample weights: how much each row counts")
TEMPERATURE = Calibrator(
    "temperature", "One temperature", "softmax(z / T), members averaged first", "Guo et al., ICML 2017",
    kind=Temperature.kind, fit=fit_temperature, read=Temperature.from_dict, options=(WEIGHTS,)
)  # fmt: skip
SOFTENING = replace(
    TEMPERATURE, name="softening", title="One temperature, of 1 or more",
    formula="softmax(z / max(1, T)), members averaged first", reference="Li & Hoiem, CVPR 2020",
    fit=fit_temperature_at_least_one
)  # fmt: skip
MEMBER_TEMPERATURES = Calibrator(
    "member-temperatures", "A temperature per member", "mean over members of softmax(z_m / T_m)",
    "Li & Hoiem, CVPR 2020", kind=MemberTemperatures.kind, fit=fit_member_temperatures,
    read=MemberTemperatures.from_dict, one_model=False
)  # fmt: skip
