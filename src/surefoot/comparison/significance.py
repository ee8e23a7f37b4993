"""Over runs: the paper's test, an unpaired two-tailed t-test at the 5% level of each method against the best;
and how far off the difference of two methods might be."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import t as t_distribution
from scipy.stats import ttest_ind_from_stats

from surefoot.comparison.values import Cell, Mark, MethodRuns, RunScore
from surefoot.metrics import Better
from surefoot.statistics import NAN

SIGNIFICANCE = 0.05
SAME = 1e-12  # relative: means that differ by rounding only are equal

Spread = tuple[float, int]  # standard deviation, and how many runs it is of


def summary(runs: Sequence[RunScore]) -> Cell:
    """Mean and standard deviation over the runs in which the metric is defined."""
    values = np.array([score.value for score in runs if np.isfinite(score.value)])
    mean = float(values.mean()) if len(values) else NAN
    deviation = float(values.std(ddof=1)) if len(values) > 1 else NAN
    return Cell(tuple(runs), mean, deviation)


def t_test(mean: float, spread: Spread, other_mean: float, other_spread: Spread) -> float:
    """The p value of Student's two-tailed t-test with equal variances; 1 for equal means.

    >>> round(t_test(1.0, (0.5, 10), 1.5, (0.5, 10)), 4)
    0.0382
    """
    if _same(mean, other_mean):
        return 1.0
    (deviation, n), (other_deviation, other_n) = spread, other_spread
    if deviation == 0 == other_deviation:  # no variance at all: any difference is one
        return 0.0
    return float(ttest_ind_from_stats(mean, deviation, n, other_mean, other_deviation, other_n).pvalue)


def margin_of_pairs(differences: Sequence[float]) -> float:
    """Half the 95% interval of the mean of paired runs' differences; NaN for fewer than two."""
    return _margin([summary([RunScore(place, value) for place, value in enumerate(differences)])])


def margin_of_means(cell: Cell, other: Cell) -> float:
    """Half the 95% interval of the difference of two means over runs that are not paired, by Welch's t.

    A method that was run once is taken as it is, its variance not being known; NaN where both are.
    """
    return _margin([cell, other])


def _margin(cells: Sequence[Cell]) -> float:
    several = [cell for cell in cells if cell.defined > 1]
    variances = [cell.deviation**2 / cell.defined for cell in several]  # of each mean
    variance = sum(variances)
    if not variance:
        return 0.0 if several else NAN
    parts = sum(each**2 / (cell.defined - 1) for each, cell in zip(variances, several, strict=True))
    return float(t_distribution.ppf(1 - SIGNIFICANCE / 2, variance**2 / parts) * variance**0.5)


def marked(cells: Mapping[str, Cell], about: Mapping[str, MethodRuns], better: Better) -> dict[str, Cell]:
    """The cells of one column, by the method's name, each with its mark.

    Cheating methods do not compete. Where the best has no spread, or nobody to be tested against, no
    significance is claimed: the best number alone is marked, and marked as untested.
    """
    best = best_of(cells, about, better)
    if best is None:
        return dict(cells)
    spreads = {name: _spread(name, cells, about) for name in cells}
    rivals = [name for name in cells if name != best and _competes(name, cells, about)]
    tested = [name for name in rivals if spreads[name] and spreads[best]]
    found = dict(cells)
    for name in (best, *rivals):
        lent = about[name].spread_of if spreads[name] and _borrows(cells[name]) else None
        cell = replace(cells[name], borrowed=lent)
        mark, p = Mark.BEST if tested else Mark.BEST_UNTESTED, NAN
        if name in tested:
            p = t_test(cell.mean, spreads[name] or (NAN, 0), cells[best].mean, spreads[best] or (NAN, 0))
            mark = Mark.LEVEL if p >= SIGNIFICANCE else Mark.WORSE
        elif name != best:
            mark = Mark.BEST_UNTESTED if _same(cell.mean, cells[best].mean) else Mark.UNTESTED
        found[name] = replace(cell, mark=mark, p=p)
    return found


def best_of(cells: Mapping[str, Cell], about: Mapping[str, MethodRuns], better: Better) -> str | None:
    """The name of the competing method with the best mean; None where there is no better or worse."""
    competing = [name for name in cells if _competes(name, cells, about)]
    if better not in ("lower", "higher") or not competing:
        return None
    sign = 1 if better == "lower" else -1
    return min(competing, key=lambda name: sign * cells[name].mean)


def _competes(name: str, cells: Mapping[str, Cell], about: Mapping[str, MethodRuns]) -> bool:
    return not about[name].cheating and bool(np.isfinite(cells[name].mean))


def _spread(name: str, cells: Mapping[str, Cell], about: Mapping[str, MethodRuns]) -> Spread | None:
    """A method's own spread; for one run the spread of its stand-in; None if a run is undefined."""
    lender = about[name].spread_of if _borrows(cells[name]) else name
    cell = None if lender is None else cells.get(lender)
    whole = cell is not None and cell.defined == len(cell.runs) > 1
    return (cell.deviation, cell.defined) if cell is not None and whole else None


def _borrows(cell: Cell) -> bool:
    return len(cell.runs) == 1


def _same(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=SAME, atol=0))
