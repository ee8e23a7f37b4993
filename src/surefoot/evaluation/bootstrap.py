"""The bootstrap: every metric of the same decisions, resample by resample.

A ratio of sums over decisions takes one matrix product for all resamples. Metrics that are read from a curve
share running sums that are made for several resamples at once. Any other function is computed from
reweighted outcomes, one resample at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.intervals import NAN
from surefoot.metrics import Metric
from surefoot.predictions.outcomes import Array, Curve, Index, Outcomes, Ranking

AT_ONCE = (
    30_000  # decisions times resamples whose running sums are made at a time, so that they stay in cache
)


def units_of(n: int, groups: NDArray[Any] | None) -> Index:
    """The unit that each row is drawn with: itself, or its group."""
    return np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class Draw:
    """How often each unit (a group, or a row where there are no groups) occurs in each resample."""

    counts: Array  # (resamples, units)
    unit_of: Index  # (n,) the unit of each row

    @staticmethod
    def of(n: int, groups: NDArray[Any] | None, *, resamples: int, rng: np.random.Generator) -> "Draw":
        """As many units as there are, with replacement; with groups, whole groups are drawn."""
        return Draw.of_units(units_of(n, groups), resamples=resamples, rng=rng)

    @staticmethod
    def of_units(unit_of: Index, *, resamples: int, rng: np.random.Generator) -> "Draw":
        units = int(unit_of.max(initial=-1)) + 1
        counts = np.empty((resamples, units))
        for row in counts:
            row[:] = np.bincount(rng.integers(units, size=units), minlength=units)
        return Draw(counts, unit_of)

    @property
    def resamples(self) -> int:
        return len(self.counts)


def resampled(
    outcomes: Outcomes, metrics: Sequence[Metric], draw: Draw, *, slow_resamples: int | None = None
) -> Array:
    """(metrics, resamples); metrics that are not ratios of sums may stop after the first few resamples."""
    return Bootstrap(outcomes, metrics, draw.unit_of).values(draw.counts, slow_resamples=slow_resamples)


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Metrics of some outcomes, to be computed in any number of resamples."""

    outcomes: Outcomes
    metrics: Sequence[Metric]
    unit_of: Index

    def values(self, counts: Array, *, slow_resamples: int | None = None) -> Array:
        """(metrics, resamples) from counts (resamples, units); NaN where a metric is not computed."""
        values = np.full((len(self.metrics), len(counts)), NAN)
        ratios, on_curves, others = self._by_method
        if ratios:
            sums = counts @ self._unit_sums
            with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN: there are no such decisions
                values[list(ratios)] = (sums[:, 0::2] / sums[:, 1::2]).T
        few = counts[:slow_resamples]
        if on_curves:
            values[list(on_curves), : len(few)] = self._curve_values(list(on_curves.values()), few)
        for index, metric in (ratios | on_curves).items():
            values[index] = metric.transform.values(values[index])
        for resample, of_resample in enumerate(few if others else ()):
            outcomes = self.outcomes.reweighted(of_resample[self.unit_of])
            for index, metric in others.items():
                values[index, resample] = metric.function(outcomes)
        return values

    @cached_property
    def _by_method(self) -> tuple[dict[int, Metric], dict[int, Metric], dict[int, Metric]]:
        """The metrics by their number: ratios of sums, those read from curves, and others."""
        metrics = {i: metric.of_kind(self.outcomes.kind) for i, metric in enumerate(self.metrics)}
        metrics = {i: metric for i, metric in metrics.items() if metric.resampled}
        ratios = {i: metric for i, metric in metrics.items() if metric.numerator is not None}
        on_curves = {i: metric for i, metric in metrics.items() if metric.curve is not None}
        others = {i: metric for i, metric in metrics.items() if i not in ratios | on_curves}
        return ratios, on_curves, others

    @cached_property
    def _unit_sums(self) -> Array:
        """(units, 2 * ratios): each unit's sum above and below the line, ratio by ratio."""
        unit = self.unit_of[self.outcomes.row]
        units = int(self.unit_of.max(initial=-1)) + 1
        sums = []
        for metric in self._by_method[0].values():
            for part in (metric.numerator, metric.denominator):
                each = None if part is None else part(self.outcomes).astype(np.float64)  # None: 1 each
                sums.append(np.bincount(unit, each, units).astype(np.float64))
        return np.stack(sums, axis=1)

    def _curve_values(self, metrics: Sequence[Metric], counts: Array) -> Array:
        """Values on the curve of all decisions, or their mean over the blocks that have any."""
        blocks = self.outcomes.blocks
        pooled = np.array([metric.pooled or len(blocks) == 1 for metric in metrics])
        values = np.empty((len(metrics), len(counts)))
        if pooled.any():
            chosen = [metric for metric in metrics if metric.pooled or len(blocks) == 1]
            values[pooled] = _on_curve(self._pooled, chosen, counts)
        if not pooled.all():
            chosen = [metric for metric in metrics if not metric.pooled]
            by_block = np.stack([_on_curve(block, chosen, counts) for block in self._blocks])
            number = np.isfinite(by_block).sum(axis=0)
            total = np.where(np.isfinite(by_block), by_block, 0.0).sum(axis=0)
            values[~pooled] = np.where(number > 0, total / np.maximum(number, 1), NAN)
        return values

    @cached_property
    def _pooled(self) -> "_RankedDecisions":
        everything = slice(0, self.outcomes.blocks[-1].stop)
        return _RankedDecisions(self.outcomes, everything, self.outcomes.pooled_ranking, self.unit_of)

    @cached_property
    def _blocks(self) -> "list[_RankedDecisions]":
        pairs = zip(self.outcomes.blocks, self.outcomes.block_rankings, strict=True)
        return [_RankedDecisions(self.outcomes, *pair, self.unit_of) for pair in pairs]


class _RankedDecisions:
    """Some decisions, most confident first."""

    def __init__(self, outcomes: Outcomes, part: slice, ranking: Ranking, unit_of: Index) -> None:
        self.ends = ranking.ends
        self.unit = unit_of[outcomes.row[part]][ranking.order]
        self.wrong = (~outcomes.correct[part])[ranking.order].astype(np.float64)
        self.residual = outcomes.confidence[part][ranking.order] - 1 + self.wrong


@dataclass(frozen=True, eq=False)
class _RunningSums:
    """What curves are made of, (resamples, knots) each; made when a metric reads it."""

    decisions: _RankedDecisions
    counts: Array

    @cached_property
    def weight(self) -> Array:
        return self.counts.take(self.decisions.unit, axis=1)

    @cached_property
    def mass(self) -> Array:
        return self._from_zero(self.weight)

    @cached_property
    def errors(self) -> Array:
        return self._from_zero(self.weight * self.decisions.wrong)

    @cached_property
    def residual(self) -> Array:
        """Of confidence less correctness."""
        return self._from_zero(self.weight * self.decisions.residual)

    @cached_property
    def confidence(self) -> Array:
        return self.residual - self.errors + self.mass

    def _from_zero(self, values: Array) -> Array:
        """Running sums, read where a run of ties ends."""
        ends = self.decisions.ends
        sums = np.zeros((len(values), len(ends) + 1))
        if len(ends) == values.shape[1]:  # no ties
            np.cumsum(values, axis=1, out=sums[:, 1:])
        else:
            sums[:, 1:] = np.cumsum(values, axis=1)[:, ends]
        return sums


class _ResampledCurve(Curve):
    """The curve of one resample; its errors and confidence are summed when a metric reads them."""

    def __init__(self, sums: _RunningSums, row: int) -> None:
        self.__dict__.update(mass=sums.mass[row], sums=sums, row=row)

    @property
    def errors(self) -> Array:
        return np.asarray(self.__dict__["sums"].errors[self.__dict__["row"]])

    @property
    def confidence(self) -> Array:
        return np.asarray(self.__dict__["sums"].confidence[self.__dict__["row"]])

    def residual_at(self, mass: Array) -> Array:
        return np.asarray(np.interp(mass, self.mass, self.__dict__["sums"].residual[self.__dict__["row"]]))


def _on_curve(decisions: _RankedDecisions, metrics: Sequence[Metric], counts: Array) -> Array:
    """Values on the curve of some decisions, resample by resample; NaN where it has none of them."""
    functions = [metric.curve for metric in metrics if metric.curve is not None]
    values = np.full((len(functions), len(counts)), NAN)
    step = max(1, AT_ONCE // max(1, len(decisions.unit)))
    for start in range(0, len(counts) if len(decisions.unit) else 0, step):
        sums = _RunningSums(decisions, counts[start : start + step])
        for row in range(len(sums.mass)):
            curve = _ResampledCurve(sums, row)
            if curve.total:
                values[:, start + row] = [function(curve) for function in functions]
    return values
