"""What a metric declares: everything that evaluation, bootstrap, comparison, streaming and reports read."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from surefoot.errors import InputError
from surefoot.metrics.intervals import NAN, Proportion
from surefoot.predictions.arguments import checked
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import (
    ONE,
    Array,
    Bools,
    Curve,
    Curves,
    HasOutcomes,
    Outcomes,
    Ranked,
)

Better = Literal["lower", "higher", "zero", "neither"]
Range = tuple[float, float]
PerDecision = Callable[[Outcomes], Array | Bools]
OfCurve = Callable[[Curve], Array | float]  # of one curve, or of several at once: knots are the last axis
Count = Callable[[HasOutcomes], Proportion | None]  # the metric as k of n; None where it is no proportion
Estimate = tuple[float, Range | None]  # a streamed value, and between what it must lie unless it is exact


@dataclass(frozen=True, eq=False)
class Cells:
    """One block's decisions counted in cells of confidence, most confident first; none is empty."""

    count: Array
    wrong: Array
    offset: Array  # the sum of the doubts, each less the start of its cell
    start: Array  # the least doubt in the cell
    width: Array  # how many different doubts it can hold
    mixed: Bools  # whether it holds different doubts; if not, it is one tie

    @property
    def confidence(self) -> Array:
        """The sum of the confidences in each cell."""
        return np.asarray(self.count - (self.count * self.start + self.offset) / ONE)

    @cached_property
    def curve(self) -> Curve:
        """As if each cell were a tie: exact wherever a cell ends."""
        sums = (self.count, self.wrong, self.confidence)
        return Curve(*(np.append(0.0, np.cumsum(values)) for values in sums))

    def wrong_first(self) -> Curve:
        """The most errors that can be among the most confident: those of a mixed cell come first."""
        return self._arranged(np.where(self.mixed, self.wrong, self.count), self.wrong)

    def wrong_last(self) -> Curve:
        """The fewest errors that can be among the most confident."""
        right = self.count - self.wrong
        return self._arranged(np.where(self.mixed, right, self.count), np.where(self.mixed, 0.0, self.wrong))

    def _arranged(self, count: Array, wrong: Array) -> Curve:
        """Each cell in two steps: first so many decisions with so many wrong, then the rest."""
        first = np.stack([count, wrong])
        steps = np.stack([first, np.stack([self.count, self.wrong]) - first], axis=2).reshape(2, -1)
        mass, errors = np.concatenate([np.zeros((2, 1)), np.cumsum(steps, axis=1)], axis=1)
        return Curve(mass, errors, np.zeros_like(mass))


class Accumulated(Protocol):
    """What is known of streamed predictions besides sums over decisions."""

    @property
    def outcomes(self) -> Curves:
        """Curves that read each cell as a tie."""

    @property
    def cells(self) -> tuple[Cells, ...]:
        """One per block."""

    @property
    def pooled_cells(self) -> Cells:
        """Of all decisions."""

    @property
    def residuals(self) -> Array:
        """(blocks, grid): correct - confidence, as `spread_on_grid` adds it up."""

    def mean_average_precision_range(self) -> Range: ...


@dataclass(frozen=True)
class Transform:
    """An increasing function of a ratio of sums, or of a mean over curves, and its derivative."""

    values: Callable[[Array], Array]
    slope: Callable[[float], float]

    def of(self, value: float) -> float:
        return float(self.values(np.array(value)))


def _unchanged(values: Array) -> Array:
    return values


def _constant_slope(_: float) -> float:
    return 1.0


def _root(values: Array) -> Array:
    """0 where the value is negative, which a debiased square can be."""
    return np.asarray(np.sqrt(np.maximum(values, 0.0)))


def _root_slope(value: float) -> float:
    """Where the value is 0 all its parts are, so that any slope gives an interval of width 0."""
    return float(0.5 / np.sqrt(value)) if value > 0 else 1.0


IDENTITY = Transform(_unchanged, _constant_slope)
ROOT = Transform(_root, _root_slope)


def known_without_mixed_cells(cells: Cells, curve: OfCurve) -> Range:
    """The range of any metric: its value where every cell is one tie, else unknown."""
    value = NAN if cells.mixed.any() else float(curve(cells.curve))
    return value, value


def mean_of_defined(values: list[float]) -> float:
    """The mean of the finite values; NaN where there are none."""
    defined = [value for value in values if np.isfinite(value)]
    return float(np.mean(defined)) if defined else NAN


def curve_mean(curves: Curves, curve: OfCurve, *, pooled: bool) -> float:
    """The value on the curve of all decisions, or the mean over the blocks that have any."""
    return curves_mean((curves.pooled_curve,) if pooled else curves.block_curves, curve)


def curves_mean(curves: Sequence[Curve], curve: OfCurve) -> float:
    """The mean over the curves that have any decision."""
    return mean_of_defined([float(curve(each)) if each.total else NAN for each in curves])


@dataclass(frozen=True)
class RatioOfSums:
    """A metric's function from its numerator and denominator."""

    numerator: PerDecision
    denominator: PerDecision | None
    transform: Transform

    @checked
    def __call__(self, predictions: HasOutcomes) -> float:
        outcomes = predictions.outcomes
        above, below = *outcomes.sums_of(self.numerator), outcomes.total
        if self.denominator is not None:
            (below,) = outcomes.sums_of(self.denominator)
        return self.transform.of(above / below) if below else NAN


@dataclass(frozen=True)
class OnCurves:
    """A metric's function from its curve."""

    curve: OfCurve
    pooled: bool
    by_score: bool
    transform: Transform

    @checked
    def __call__(self, predictions: Ranked) -> float:
        if self.by_score:
            return self.transform.of(curves_mean(predictions.outcomes.score_curves, self.curve))
        return self.transform.of(curve_mean(predictions.outcomes, self.curve, pooled=self.pooled))


@dataclass(frozen=True)
class Exactly:
    """A metric of a stream from curves alone: of what is known exactly, or is drawn from them in any case."""

    function: Callable[[Ranked], float]

    def __call__(self, accumulated: Accumulated) -> Estimate:
        return self.function(accumulated), None


def _not_given(_: HasOutcomes) -> float:
    raise AssertionError("a metric without a function of its own gets one when it is made")


@checked
@dataclass(frozen=True)
class Metric:
    """A number about predictions, declared once.

    It is one of three:
    - a ratio of sums over decisions: `numerator`, and `denominator` unless that is the number of decisions.
      Resampled by a matrix product; streamed exactly.
    - read from running sums over ranked decisions: `curve`, of all of them if `pooled`, else the mean over
      blocks (for many labels a block per class). Streamed from cells of confidence, within `cells_range`.
    - any `function` of `outcomes`, in which each decision counts `weight` times: resamples have no logits. A
      new fact of each decision is a field of `Outcomes`, filled in `predictions/logits.py`. Streamed if
      `streamed` computes it from what a stream accumulates.

    `function` may be left out for the first two. `many_labels` replaces the metric where there are many
    labels and it is something else.

    >>> doubt = Metric("doubt", "Doubt", "mean 1 - confidence", "-", numerator=lambda d: 1 - d.confidence)
    >>> from surefoot import Predictions
    >>> doubt.function(Predictions.from_probs([[0.75, 0.25], [0.5, 0.5]], [0, 0]))
    0.375
    """

    name: str
    title: str
    formula: str
    reference: str
    function: Callable[[HasOutcomes], float] = _not_given
    better: Better = "lower"
    bounds: Range = (0.0, 1.0)  # between which the value lies
    _: KW_ONLY
    numerator: PerDecision | None = None
    denominator: PerDecision | None = None
    curve: OfCurve | None = None
    of_residuals: Callable[[Array, Array], Array] | None = None  # (resamples, grid) and totals: resampled so
    pooled: bool = False
    by_score: bool = False  # many labels: the curves are by log odds instead of confidence
    transform: Transform = IDENTITY  # of the ratio, or of the mean over curves
    count: Count | None = None  # k of n: gives the exact interval, and is shown in %
    resampled: bool = True  # False: already about resampling, so it gets no interval of its own
    cells_range: Callable[[Cells, OfCurve], Range] = known_without_mixed_cells
    streamed: Callable[[Accumulated], Estimate] | None = None
    many_labels: "Metric | None" = None

    def __post_init__(self) -> None:
        if self.numerator is not None and self.curve is not None:
            raise InputError(f"metric {self.name!r} has a numerator and a curve; allowed: one of them")
        if self.denominator is not None and self.numerator is None:
            raise InputError(f"metric {self.name!r} has a denominator only; needed: a numerator too")
        if self.function is not _not_given:
            return
        if self.numerator is not None:
            function = RatioOfSums(self.numerator, self.denominator, self.transform)
            object.__setattr__(self, "function", function)
        elif self.curve is not None:
            object.__setattr__(
                self, "function", OnCurves(self.curve, self.pooled, self.by_score, self.transform)
            )
        else:
            needed = "a function, a numerator or a curve"
            raise InputError(f"metric {self.name!r} does not say how it is computed; needed: {needed}")

    def of_kind(self, kind: LabelKind) -> "Metric":
        """The metric for labels of this kind."""
        return self.many_labels if self.many_labels and kind is LabelKind.MANY_LABELS else self

    @property
    def can_be_streamed(self) -> bool:
        """Whether it can be computed without all rows in memory, for labels of either kind."""
        ways = (self.numerator, self.curve, self.streamed)
        return any(ways) and (self.many_labels is None or self.many_labels.can_be_streamed)

    def from_cells(self, accumulated: Accumulated) -> Estimate:
        """The value of a metric that is no ratio, from a stream, and its range unless it is exact."""
        if self.streamed is not None:
            return self.streamed(accumulated)
        assert self.curve is not None
        value = curve_mean(accumulated.outcomes, self.curve, pooled=self.pooled)
        blocks = (accumulated.pooled_cells,) if self.pooled else accumulated.cells
        ranges = [
            self.cells_range(cells, self.curve)
            for cells in blocks
            if len(cells.count) and np.isfinite(self.curve(cells.curve))
        ]
        low, high = np.mean(ranges, axis=0) if ranges else (NAN, NAN)
        value, low, high = self.transform.values(np.array([value, low, high])).tolist()
        return value, (low, high)
