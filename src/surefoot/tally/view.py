"""The numbers in a tally: exact where they are sums or counts, else from cells and with a proven range."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from surefoot.kinds import LabelKind
from surefoot.metrics import augrc, aurc, coverage_at_risk, debiased_l2, ece, risk_at_coverage, signed_ece
from surefoot.metrics.calibration import bin_edges, mean_of_defined, smooth_ece_of
from surefoot.outcomes import Array, Curve, Ranked
from surefoot.statistics import NAN
from surefoot.tally.bounds import coverage_range, ece_range
from surefoot.tally.cells import Column
from surefoot.tally.counting import Tally

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

    tally: Tally
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


def worst_bound(tally: Tally, version: int) -> float:
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
