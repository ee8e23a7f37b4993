"""The difference between two methods in one metric, with its interval over rows and over networks."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from surefoot.evaluation.evaluate import ANYWHERE
from surefoot.lab.comparison.comparison import Cell, Difference, Network, RunScore, over_networks
from surefoot.metrics.intervals import (
    NAN,
    Interval,
    Proportion,
    centred_interval,
    difference_of_proportions,
    few_samples_factor,
    needs_exact,
)
from surefoot.predictions.outcomes import Array

RunKey = tuple[str, int]  # the method's name and the run
Replicates = Mapping[RunKey, Array]  # a metric's values on the resamples
RunPair = tuple[RunScore, RunScore]


def difference(
    column: Mapping[str, Cell],
    name: str,
    other: str,
    replicates: Replicates,
    independent: int,
    *,
    crossed: bool = False,
    paired: Callable[[], bool] = lambda: True,
) -> Difference:
    """One method less another.

    Runs are paired by their number, or `crossed`: each with each, where the numbers mean different networks.
    Not `paired`: other samples or decisions, so that equal counts do not differ by exactly 0. The interval
    over rows is from so many `independent` groups or rows.
    """
    ours, theirs = column[name], column[other]
    crossed = crossed or 1 in (len(ours.runs), len(theirs.runs))  # one run is compared with every other
    pairs = _pairs(ours.runs, theirs.runs, crossed)
    if not pairs:
        return Difference(NAN)
    gaps = [a.value - b.value for a, b in pairs]
    value = float(np.mean(gaps))
    spread, resampled_pairs = _mean_difference(pairs, name, other, replicates)
    interval = centred_interval(value, spread, ANYWHERE, factor=few_samples_factor(independent))
    exact = _exact(pairs, paired)
    if exact is not None and np.isfinite(interval.low):
        # No resample of 0 of n has an error: compute the exact intervals too, and use the wider ends.
        shift = value - exact.value
        low, high = min(interval.low, exact.low + shift), max(interval.high, exact.high + shift)
        interval = Interval(value, low, high)
    return Difference(
        interval.value,
        interval.low,
        interval.high,
        len(pairs),
        resampled_pairs,
        independent,
        runs=tuple(tuple(sorted({pair[place].run for pair in pairs})) for place in (0, 1)),
        over_runs=over_networks(*(_contributions(column, each, crossed) for each in (name, other))),
    )


def _mean_difference(
    pairs: Sequence[RunPair], name: str, other: str, replicates: Replicates
) -> tuple[Array, int]:
    """The difference in each resample, in the mean over those pairs of runs that have it; their number."""
    runs = [{pair[place].run for pair in pairs} for place in (0, 1)]
    ours, theirs = (
        np.stack([replicates[method, run] for run in of_method])
        for method, of_method in zip((name, other), runs, strict=True)
    )
    if len(pairs) == len(ours) * len(theirs) and np.isfinite(ours).all() and np.isfinite(theirs).all():
        return ours.mean(axis=0) - theirs.mean(axis=0), len(pairs)  # each with each: as many sums as runs
    drawn = [replicates[name, a.run] - replicates[other, b.run] for a, b in pairs]
    drawn = [differences for differences in drawn if np.isfinite(differences).any()]
    return np.mean(drawn, axis=0) if drawn else np.full(1, NAN), len(drawn)


def _contributions(column: Mapping[str, Cell], name: str, crossed: bool) -> Mapping[Network, float]:
    """What each network contributes; where networks are not known, runs stand for them."""
    cell = column[name]
    return cell.networks or {(name if crossed else "", s.run): s.value for s in cell.runs}


def _pairs(ours: Sequence[RunScore], theirs: Sequence[RunScore], crossed: bool) -> list[RunPair]:
    """Runs of the same number, or each with each, in which the metric is defined."""
    if crossed:
        pairs = [(a, b) for a in ours for b in theirs]
    else:
        by_run = {b.run: b for b in theirs}
        pairs = [(a, by_run[a.run]) for a in ours if a.run in by_run]
    return [(a, b) for a, b in pairs if math.isfinite(a.value) and math.isfinite(b.value)]


def _exact(pairs: Sequence[RunPair], paired: Callable[[], bool]) -> Interval | None:
    """The exact difference of two proportions where resamples cannot give it; None where they can.

    Runs share their images, so k and n are the runs' mean counts and not their sums.
    """
    ours, theirs = (mean_count([pair[index] for pair in pairs]) for index in (0, 1))
    if ours is None or theirs is None:
        return None
    counts = (ours.k, ours.n), (theirs.k, theirs.n)
    if not needs_exact(*counts, paired=False) or (counts[0] == counts[1] and paired()):
        return None
    return difference_of_proportions(*(Interval(each.value, each.low, each.high) for each in (ours, theirs)))


def mean_count(scores: Sequence[RunScore]) -> Proportion | None:
    """k and n averaged over runs; k is 0 or n only if it is so in every run."""
    counted = [(score.k, score.n) for score in scores if score.k is not None and score.n]
    if len(counted) < len(scores):
        return None
    n = max(1, round(float(np.mean([n for _, n in counted]))))
    k = round(float(np.mean([k for k, _ in counted])))
    never, always = all(k == 0 for k, _ in counted), all(k == n for k, n in counted)
    if never or always:
        return Proportion.of(n if always else 0, n)
    return Proportion.of(min(max(k, 1), n - 1), n) if n > 1 else None
