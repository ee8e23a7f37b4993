"""Per-decision outcomes that the metrics read, in float64, and what they add up. Numpy only."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from surefoot.predictions.labels import LabelKind

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Bools = NDArray[np.bool_]

DECIMALS = 12  # confidences are rounded to so many, so that equal probabilities tie
ONE = 10**DECIMALS  # the doubt (1 - confidence, in units of the last decimal) of a confidence of 0


@dataclass(frozen=True, eq=False)
class Ranking:
    """Decisions from the highest score to the lowest, with the places where a run of equal scores ends."""

    order: Index
    ends: Index

    @staticmethod
    def of(score: Array) -> "Ranking":
        order = np.argsort(-score)
        ordered = score[order]
        ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(score) else order
        return Ranking(order, ends)

    def accumulate(self, values: Array | Bools) -> Array:
        """Running sums from the top, read where a run of ties ends: nothing depends on the order of ties."""
        return np.cumsum(values[self.order], dtype=np.float64)[self.ends]


@dataclass(frozen=True, eq=False)
class Curve:
    """Running sums over decisions, most confident first; knot 0 is 0 and between knots they are straight.

    Straight between knots means that each decision in a run of ties counts with the mean of its run. Knots
    are along the last axis; there may be axes before it, for several curves at once.
    """

    mass: Array
    errors: Array
    confidence: Array

    @property
    def total(self) -> Array:
        return np.asarray(self.mass[..., -1])

    @property
    def total_errors(self) -> Array:
        return np.asarray(self.errors[..., -1])

    def residual_at(self, mass: Array) -> Array:
        """Confidence less correctness, summed over so many of the most confident decisions."""
        confidence, errors = interpolated(mass, self.mass, self.confidence, self.errors)
        return confidence + errors - mass

    def errors_at(self, mass: Array) -> Array:
        """Errors among so many of the most confident decisions."""
        return interpolated(mass, self.mass, self.errors)[0]

    def at_run_ends(self, mass: Array) -> "Curve":
        """The curve at the ends of the runs of ties in which so many of the most confident decisions end."""
        knot = first_at_least(mass, self.mass)
        sums = (self.mass, self.errors, self.confidence)
        return Curve(*(np.take_along_axis(values, knot, axis=-1) for values in sums))

    def coarse(self, parts: int) -> "Curve":
        """One curve at about so many of its knots."""
        knots = np.append(0, 1 + spread_out(self.mass[1:], parts))
        return Curve(*(values[knots] for values in (self.mass, self.errors, self.confidence)))


def spread_out(mass: Array | Index, parts: int) -> Index:
    """About so many of these running sums: evenly spread, but closer together at the top, where few count."""
    if len(mass) <= parts:
        return np.arange(len(mass))
    total = float(mass[-1])
    places = np.append(np.linspace(0, total, parts * 3 // 4)[1:], np.geomspace(1, total, parts // 4))
    return np.unique(np.minimum(np.searchsorted(mass, places.round()), len(mass) - 1))


def interpolated(places: Array, knots: Array, *values: Array) -> list[Array]:
    """`np.interp` of each of the values along the last axis; the knots ascend from 0."""
    if knots.ndim == 1:
        return [np.asarray(np.interp(places, knots, each)) for each in values]
    after = np.clip(first_at_least(places, knots), 1, knots.shape[-1] - 1)
    low, high = (np.take_along_axis(knots, at, axis=-1) for at in (after - 1, after))
    share = np.clip((places - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    result = []
    for each in values:
        before, until = (np.take_along_axis(each, at, axis=-1) for at in (after - 1, after))
        result.append(before + share * (until - before))
    return result


def first_at_least(places: Array, knots: Array) -> Index:
    """The first of the ascending knots (last axis) that is at least each place; the last one if none is."""
    if knots.ndim == 1:
        return np.minimum(np.searchsorted(knots, places), len(knots) - 1)
    rows, number = knots.reshape(-1, knots.shape[-1]), knots.shape[-1]
    apart = (np.arange(len(rows)) * (float(rows[:, -1].max()) + 1))[:, None]  # one ascending sequence
    wanted = places.reshape(len(rows), -1)
    found = np.searchsorted((rows + apart).ravel(), (wanted + apart).ravel()).reshape(wanted.shape)
    found -= np.arange(len(rows))[:, None] * number
    return np.asarray(np.minimum(found, number - 1).reshape(places.shape))


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Per decision: log probability of the truth, squared error, confidence, correctness, entropy.

    Decisions are stored block by block: one block for one label, a block per class for many labels. Metrics
    that are averages over classes are means over blocks.
    """

    log_p_true: Array
    squared_error: Array  # mean over classes of (p - onehot)^2; many labels: (p - y)^2
    confidence: Array
    correct: Bools
    entropy: Array
    row: Index  # which row of the predictions the decision belongs to
    blocks: tuple[slice, ...]
    score: Array | None = None  # many labels: log odds, and whether the class is truly there
    positive: Bools | None = None
    weight: Array | None = None  # whole-number counts per decision; None is one each

    @property
    def outcomes(self) -> "Outcomes":
        return self

    @property
    def kind(self) -> LabelKind:
        return LabelKind.ONE_LABEL if self.score is None else LabelKind.MANY_LABELS

    @property
    def total(self) -> float:
        return float(self.blocks[-1].stop if self.weight is None else self.weight.sum())

    def sums_of(self, *parts: "Callable[[Outcomes], Array | Bools]") -> list[float]:
        """The sums over decisions of functions of their facts."""
        return [float(self.counted(np.asarray(part(self), dtype=np.float64)).sum()) for part in parts]

    def mean_of(self, part: "Callable[[Outcomes], Array | Bools]") -> float:
        """The mean over decisions; NaN where there are none."""
        total = self.total
        return self.sums_of(part)[0] / total if total else float("nan")

    def reweighted(self, row_weight: Array | NDArray[np.uint8]) -> "Outcomes":
        """The same decisions counted `row_weight[row]` times: a bootstrap resample without copying."""
        again = replace(self, weight=row_weight[self.row].astype(np.float64, copy=False))
        # Rankings are shared with the resample; cached properties are in __dict__, also of a frozen class.
        again.__dict__.update(
            block_rankings=self.block_rankings,
            pooled_ranking=self.pooled_ranking,
            score_rankings=self.score_rankings,
        )
        return again

    def counted(self, values: Array) -> Array:
        """The values times how often each decision counts."""
        return values if self.weight is None else values * self.weight

    @cached_property
    def block_rankings(self) -> tuple[Ranking, ...]:
        return tuple(Ranking.of(self.confidence[block]) for block in self.blocks)

    @cached_property
    def pooled_ranking(self) -> Ranking:
        return self.block_rankings[0] if len(self.blocks) == 1 else Ranking.of(self.confidence)

    @cached_property
    def score_rankings(self) -> tuple[Ranking, ...]:
        if self.score is None:
            return ()
        return tuple(Ranking.of(self.score[block]) for block in self.blocks)

    @cached_property
    def block_curves(self) -> tuple[Curve, ...]:
        pairs = zip(self.blocks, self.block_rankings, strict=True)
        return tuple(self._curve(block, ranking, ~self.correct[block]) for block, ranking in pairs)

    @cached_property
    def pooled_curve(self) -> Curve:
        if len(self.blocks) == 1:
            return self.block_curves[0]
        return self._curve(slice(0, len(self.row)), self.pooled_ranking, ~self.correct)

    @cached_property
    def score_curves(self) -> tuple[Curve, ...]:
        """Many labels: by log odds, with those as errors that do not have the class."""
        if self.positive is None:
            return ()
        pairs = zip(self.blocks, self.score_rankings, strict=True)
        return tuple(self._curve(block, ranking, ~self.positive[block]) for block, ranking in pairs)

    def _curve(self, block: slice, ranking: Ranking, wrong: Bools) -> Curve:
        confidence = self.confidence[block]
        if self.weight is None:
            mass, errors, summed = (
                ranking.ends + 1.0,
                ranking.accumulate(wrong),
                ranking.accumulate(confidence),
            )
        else:
            weight = self.weight[block]
            mass, errors, summed = map(ranking.accumulate, (weight, weight * wrong, weight * confidence))
        return Curve(*(np.append(0.0, values) for values in (mass, errors, summed)))


@runtime_checkable
class HasOutcomes(Protocol):
    """Anything the metrics can read: Predictions, or Outcomes themselves."""

    @property
    def outcomes(self) -> Outcomes: ...


class Curves(Protocol):
    """What the metrics that rank decisions read: a curve per block, and one of all decisions."""

    @property
    def block_curves(self) -> tuple[Curve, ...]: ...

    @property
    def pooled_curve(self) -> Curve: ...

    @property
    def score_curves(self) -> tuple[Curve, ...]: ...


@runtime_checkable
class Ranked(Protocol):
    """Anything that such a metric can read: Predictions, Outcomes, or the binned curves of a stream."""

    @property
    def outcomes(self) -> Curves: ...


CLIP = (0.001, 0.999)  # the paper's bounds on p(true), so that one confident mistake is not everything
LOG_CLIP = (math.log(CLIP[0]), math.log(CLIP[1]))
SURE = 0.99  # the paper's threshold of E99


def loss(decisions: Outcomes) -> Array:
    """-log p(true)."""
    return -decisions.log_p_true


def clipped_loss(decisions: Outcomes) -> Array:
    """-log p(true), with p(true) clipped."""
    clipped: Array = decisions.log_p_true.clip(*LOG_CLIP)
    return -clipped


def squared_error(decisions: Outcomes) -> Array:
    """Mean over classes of (p - onehot)^2."""
    return decisions.squared_error


def entropy_of(decisions: Outcomes) -> Array:
    """-sum p log p."""
    return decisions.entropy


def wrong(decisions: Outcomes) -> Bools:
    """Whether the predicted class is not the label."""
    return ~decisions.correct


def is_above(decisions: Outcomes, threshold: float) -> Bools:
    """Whether the confidence is above the threshold."""
    return decisions.confidence > threshold


def is_wrong_above(decisions: Outcomes, threshold: float) -> Bools:
    """Whether it is, and the predicted class is not the label."""
    return is_above(decisions, threshold) & ~decisions.correct
