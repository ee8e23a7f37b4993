"""Every metric of many predictions of the same samples, on the same resamples, quickly.

A metric that is a ratio of sums over decisions takes one matrix product for all resamples. The ECE takes two
running sums over all resamples at once. Anything else is computed resample by resample.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.intervals import NAN, resample_counts
from surefoot.metrics import Metric
from surefoot.metrics.calibration import BINS, bin_edges
from surefoot.metrics.proper import CLIP
from surefoot.predictions.outcomes import Array, Index, Outcomes, Ranking

FEW_UNITS = 64  # up to here, running sums are made once for each unit and not for each resample
AT_ONCE = 30_000  # decisions times resamples held at a time, so that they stay in the processor's cache

Pieces = tuple[Array, Array]  # per decision, what is summed above and below the line


@dataclass(frozen=True, eq=False)
class Draw:
    """How often each unit (a group, or a row where there are no groups) occurs in each resample."""

    counts: Array  # (resamples, units)
    unit_of: Index  # (n,) the unit of each row

    @staticmethod
    def of(n: int, groups: NDArray[Any] | None, *, resamples: int, rng: np.random.Generator) -> "Draw":
        unit_of = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
        units = int(unit_of.max()) + 1 if n else 0
        counts = np.empty((resamples, units))
        for row, drawn in zip(
            counts, resample_counts(units, None, resamples=resamples, rng=rng), strict=True
        ):
            row[:] = drawn
        return Draw(counts, unit_of)

    @property
    def resamples(self) -> int:
        return len(self.counts)


def is_quick(metric: Metric, outcomes: Outcomes) -> bool:
    """Whether a metric is a ratio of sums."""
    return metric.name in RATIOS and not (metric.name == "label_error" and outcomes.score is not None)


def resampled(outcomes: Outcomes, metrics: Sequence[Metric], draw: Draw, *, slow_resamples: int) -> Array:
    """(metrics, resamples); metrics that are not quick take the first few resamples and are NaN after."""
    values = np.full((len(metrics), draw.resamples), NAN)
    quick = [index for index, metric in enumerate(metrics) if is_quick(metric, outcomes)]
    if quick:
        values[quick] = _ratios(outcomes, [metrics[index].name for index in quick], draw)
    few = Draw(draw.counts[:slow_resamples], draw.unit_of)
    for index, metric in enumerate(metrics):
        if index not in quick and metric.resampled and slow_resamples:
            one_by_one = metric.name != "ece"
            found = _one_by_one(outcomes, metric, few) if one_by_one else _eces(outcomes, few)
            values[index, :slow_resamples] = found
    return values


def _ratios(outcomes: Outcomes, names: Sequence[str], draw: Draw) -> Array:
    unit = draw.unit_of[outcomes.row]
    units = draw.counts.shape[1]
    pieces = [piece for name in names for piece in RATIOS[name](outcomes)]
    sums = draw.counts @ np.stack([np.bincount(unit, piece, units) for piece in pieces], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = (sums[:, 0::2] / sums[:, 1::2]).T
    rooted = [name in ROOTS for name in names]
    values[rooted] = np.sqrt(values[rooted])
    return np.asarray(values)


def _one_by_one(outcomes: Outcomes, metric: Metric, draw: Draw) -> list[float]:
    return [metric.function(outcomes.reweighted(counts[draw.unit_of])) for counts in draw.counts]


def _eces(outcomes: Outcomes, draw: Draw) -> Array:
    """The mean over blocks, of those with any decision in the resample."""
    blocks = zip(outcomes.blocks, outcomes.block_rankings, strict=True)
    values = np.stack([_block_eces(outcomes, block, ranking, draw) for block, ranking in blocks])
    defined = np.isfinite(values)
    number = defined.sum(axis=0)
    total = np.where(defined, values, 0.0).sum(axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), NAN)


def _block_eces(outcomes: Outcomes, block: slice, ranking: Ranking, draw: Draw) -> Array:
    """The sum over bins of |sum of correct - confidence|, over the total: what `ece` is."""
    units = draw.unit_of[outcomes.row[block]][ranking.order]
    excess = (outcomes.correct[block] - outcomes.confidence[block])[ranking.order]
    totals = np.zeros(draw.resamples)
    at_edges = np.zeros((draw.resamples, BINS + 1))
    step = max(1, AT_ONCE // max(1, len(units)))
    by_unit = _knots_by_unit(units, excess, ranking, draw) if draw.counts.shape[1] <= FEW_UNITS else None
    for start in range(0, draw.resamples if len(units) else 0, step):
        counts = draw.counts[start : start + step]
        if by_unit is not None:
            mass, sums = (counts @ knots for knots in by_unit)
        else:
            weight = counts.take(units, axis=1)
            mass, sums = _knots(weight, ranking), _knots(weight * excess, ranking)
        totals[start : start + step] = mass[:, -1]
        for index, (of_mass, of_sums) in enumerate(zip(mass, sums, strict=True), start):
            at_edges[index] = np.interp(_edges(of_mass[-1]), of_mass, of_sums)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: no decision, no error
        return np.asarray(np.abs(np.diff(at_edges)).sum(axis=1) / totals)


def _knots_by_unit(units: Index, excess: Array, ranking: Ranking, draw: Draw) -> Pieces:
    """The running sums of each unit alone; a resample's are their sums, each as often as it was drawn."""
    own = (units == np.arange(draw.counts.shape[1])[:, None]).astype(float)
    return _knots(own, ranking), _knots(own * excess, ranking)


def _knots(values: Array, ranking: Ranking) -> Array:
    """Running sums from 0, read where a run of ties ends."""
    sums = np.zeros((len(values), len(ranking.ends) + 1))
    if len(ranking.ends) == values.shape[1]:  # no ties
        np.cumsum(values, axis=1, out=sums[:, 1:])
    else:
        sums[:, 1:] = np.cumsum(values, axis=1)[:, ranking.ends]
    return sums


@lru_cache(maxsize=4096)
def _edges(total: float) -> Array:
    return bin_edges(total)


def _each(outcomes: Outcomes) -> Array:
    return np.ones(len(outcomes.row))


def _clipped_loss(outcomes: Outcomes) -> Array:
    return -np.clip(outcomes.log_p_true, *np.log(CLIP))


def _sure(outcomes: Outcomes) -> Array:
    return (outcomes.confidence > 0.99).astype(float)


RATIOS: Mapping[str, Callable[[Outcomes], Pieces]] = {
    "nll": lambda o: (_clipped_loss(o), _each(o)),
    "nll_unclipped": lambda o: (-o.log_p_true, _each(o)),
    "brier": lambda o: (o.squared_error, _each(o)),
    "brier_true_class": lambda o: (np.expm1(o.log_p_true) ** 2, _each(o)),
    "label_error": lambda o: ((~o.correct).astype(float), _each(o)),
    "e99": lambda o: (_sure(o) * ~o.correct, _sure(o)),
    "entropy": lambda o: (o.entropy, _each(o)),
    "nll_minus_entropy": lambda o: (_clipped_loss(o) - o.entropy, _each(o)),
}
ROOTS = ("brier", "brier_true_class")
