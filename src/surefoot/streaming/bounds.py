"""Metrics from accumulated cells, with proven error bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from surefoot.intervals import NAN
from surefoot.metrics import augrc, aurc, coverage_at_risk, debiased_l2, ece, risk_at_coverage, signed_ece
from surefoot.metrics.calibration import bin_edges, mean_of_defined, smooth_ece_of
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Array, Curve, Ranked
from surefoot.streaming.accumulate import Accumulator
from surefoot.streaming.cells import ONE, Column


def ece_range(column: Column) -> tuple[float, float]:
    """The least and the largest ECE that decisions in these cells can have."""
    curve = column.curve()
    edges = bin_edges(curve.total)
    low, high = _residual_range(column, edges)
    largest = _largest_variation(low, high) / curve.total
    return _least_variation(low, high) / curve.total, min(1.0, largest)


def coverage_range(column: Column, risk: float) -> tuple[float, float]:
    """The least and the largest coverage that a threshold can reach at this risk."""
    curve = column.curve()
    ends = curve.mass[curve.errors <= risk * curve.mass + 1e-12]
    before, errors = curve.mass[:-1], curve.errors[:-1]
    right = np.where(column.mixed, column.count - column.wrong, 0.0)
    spare = risk * (before + right) - errors + 1e-12
    wrong = np.clip(np.floor(spare / (1 - risk)), 0, column.wrong)
    best = np.where(column.mixed & (spare >= 0), before + right + wrong, 0.0)
    return float(ends.max() / curve.total), float(max(ends.max(), best.max()) / curve.total)


def _residual_range(column: Column, edges: Array) -> tuple[Array, Array]:
    """Confidence less correctness, summed over the most confident up to each edge: least and largest."""
    curve = column.curve()
    cell = np.clip(np.searchsorted(curve.mass, edges, side="left") - 1, 0, len(column.count) - 1)
    taken = edges - curve.mass[cell]
    count, wrong, sure = column.count[cell], column.wrong[cell], column.confidence[cell]
    left = count - taken
    top = 1 - column.start[cell] / ONE
    bottom = 1 - (column.start[cell] + column.width[cell] - 1) / ONE
    mean_errors, mean_sure = wrong * taken / count, sure * taken / count
    cut = column.mixed[cell] & (taken > 0) & (left > 0)
    fewest = np.where(cut, np.maximum(0.0, taken - (count - wrong)), mean_errors)
    most = np.where(cut, np.minimum(taken, wrong), mean_errors)
    surest = np.where(cut, np.minimum(taken * top, sure - left * bottom), mean_sure)
    base = curve.confidence[cell] + curve.errors[cell] - edges
    return base + fewest + mean_sure, base + most + np.maximum(surest, mean_sure)


def _largest_variation(low: Array, high: Array) -> float:
    """The largest sum of |x_(i+1) - x_i| with each x_i between its ends: convex, so at the ends."""
    ends = np.stack([low, high], axis=1)
    best = np.zeros(2)
    for here, there in pairwise(ends):
        best = (best[:, None] + np.abs(there[None, :] - here[:, None])).max(axis=0)
    return float(best.max())


def _least_variation(low: Array, high: Array) -> float:
    """The least such sum: stay as long as the next interval allows it, then go to its nearer end."""
    total, left, right = 0.0, float(low[0]), float(high[0])
    for bottom, top in zip(low[1:].tolist(), high[1:].tolist(), strict=True):
        if bottom > right:
            total, left, right = total + bottom - right, bottom, bottom
        elif top < left:
            total, left, right = total + left - top, top, top
        else:
            left, right = max(left, bottom), min(right, top)
    return total


Range = tuple[float, float]

MONOTONE: dict[str, Callable[[Ranked], float]] = {
    "aurc": aurc,
    "augrc": augrc,
    "risk_at_80": lambda ranked: risk_at_coverage(ranked, 0.8),
    "risk_at_90": lambda ranked: risk_at_coverage(ranked, 0.9),
}
RISKS = {"coverage_at_1": 0.01, "coverage_at_5": 0.05}


@dataclass(frozen=True, eq=False)
class Binned:
    """Curves read from cells, for every metric that ranks decisions."""

    block_curves: tuple[Curve, ...]
    pooled_curve: Curve

    @property
    def outcomes(self) -> "Binned":
        return self


@dataclass(frozen=True, eq=False)
class View:
    """One version of what a tally holds."""

    tally: Accumulator
    version: int

    @property
    def one_label(self) -> bool:
        return self.tally.question.shape.kind is LabelKind.ONE_LABEL

    @property
    def decisions(self) -> float:
        return float(self.tally.sums.total[0])

    def total(self, fact: str) -> float:
        """A sum over all decisions."""
        return float(self.tally.sums.total[self.tally.question.place(self.version, fact)])

    def mean(self, fact: str) -> float:
        """A mean over all decisions."""
        return self.total(fact) / self.decisions if self.decisions else NAN

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return self.tally.histograms[self.version].blocks()

    @cached_property
    def pooled(self) -> Column:
        return self.columns[0] if self.one_label else self.tally.histograms[self.version].pooled().blocks()[0]

    @cached_property
    def binned(self) -> Binned:
        """Each cell read as a tie."""
        return Binned(tuple(column.curve() for column in self.columns), self.pooled.curve())

    def ranked(self, name: str) -> tuple[float, Range]:
        """A metric that ranks decisions: its value from the cells, and between what it must lie."""
        if not self.decisions:
            return NAN, (NAN, NAN)
        if name == "ece":
            ranges = [ece_range(column) for column in self.columns if len(column.count)]
            low, high = np.mean(ranges, axis=0).tolist()
            return ece(self.binned), (low, high)
        if name in MONOTONE:
            metric, ends = MONOTONE[name], (self.pooled.wrong_last(), self.pooled.wrong_first())
            low, high = (metric(Binned((curve,), curve)) for curve in ends)
            return metric(self.binned), (low, high)
        if name in RISKS:
            return coverage_at_risk(self.binned, RISKS[name]), coverage_range(self.pooled, RISKS[name])
        assert name == "debiased_l2"
        value = debiased_l2(self.binned)
        return value, (value, value) if not any(map(_cuts_a_mixed_cell, self.columns)) else (NAN, NAN)

    def signed_ece(self) -> float:
        """Mean confidence less accuracy: the cells keep sums, so it is exact."""
        return signed_ece(self.binned) if self.decisions else NAN

    def smooth_ece(self) -> float:
        """Smooth ECE: its grid is tallied as it is, so it is exact."""
        totals = self.tally.histograms[self.version].count.sum(axis=1).tolist()
        residuals = self.tally.residuals[self.version]
        return mean_of_defined([smooth_ece_of(r, n) for r, n in zip(residuals, totals, strict=True)])

    def label_error(self) -> tuple[float, Range]:
        """1 - accuracy, exact; for many labels 1 - mean average precision, with its range."""
        if self.one_label:
            return self.mean("wrong"), (NAN, NAN)
        low, high = self.tally.odds[self.version].mean_average_precision_range()
        return 1 - (low + high) / 2, (1 - high, 1 - low)


def farthest(value: float, ends: Range) -> float:
    """How far the value can be from the truth."""
    return float(max(value - ends[0], ends[1] - value, 0.0)) if np.isfinite(ends).all() else NAN


def worst_bound(tally: Accumulator, version: int) -> float:
    """The largest such distance, over ECE and all that is read from the risk-coverage curve."""
    view = View(tally, version)
    if not view.decisions:
        return 0.0
    return max(farthest(*view.ranked(name)) for name in ("ece", *MONOTONE, *RISKS))


def _cuts_a_mixed_cell(column: Column) -> bool:
    mass: Array = np.append(0.0, np.cumsum(column.count))
    edges = bin_edges(float(mass[-1]))
    cell = np.searchsorted(mass, edges, side="left")
    inside = mass[np.minimum(cell, len(mass) - 1)] != edges
    return bool(column.mixed[cell[inside] - 1].any())
