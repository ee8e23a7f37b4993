"""The paired difference of two methods: the same images, the same resamples, averaged over paired runs."""

from collections.abc import Mapping, Sequence

import numpy as np

from surefoot.comparison.significance import margin_of_means, margin_of_pairs
from surefoot.comparison.values import Cell, Difference, RunScore
from surefoot.outcomes import Array
from surefoot.statistics import (
    NAN,
    Interval,
    Proportion,
    centred_interval,
    difference_of_proportions,
    needs_exact,
)

ANYWHERE = (-np.inf, np.inf)

Replicates = Mapping[tuple[str, int], Array]  # by method and run
Pair = tuple[RunScore, RunScore]


def difference(
    column: Mapping[str, Cell],
    name: str,
    other: str | None,
    replicates: Replicates,
    factor: float,
    *,
    crossed: bool = False,
    paired: bool = True,
) -> Difference | None:
    """One method less another; None for a method and itself, or where there is no other.

    Runs are paired by their number, or `crossed`: each with each, where the numbers mean different networks.
    Not `paired` are methods that were asked about different samples.
    """
    if other is None or other == name:
        return None
    pairs = _pairs(column[name].runs, column[other].runs, crossed)
    if not pairs:
        return Difference(NAN)
    gaps = [ours.value - theirs.value for ours, theirs in pairs]
    value = float(np.mean(gaps))
    drawn = [replicates[name, a.run] - replicates[other, b.run] for a, b in pairs]
    drawn = [differences for differences in drawn if np.isfinite(differences).any()]
    spread = np.mean(drawn, axis=0) if drawn else np.full(1, NAN)
    interval = centred_interval(value, spread, ANYWHERE, factor=factor)
    exact = _exact(pairs, paired)
    if exact is not None and np.isfinite(interval.low):
        # No resample of 0 of n holds an error: ask the exact intervals too, and take the wider ends.
        shift = value - exact.value
        low, high = min(interval.low, exact.low + shift), max(interval.high, exact.high + shift)
        interval = Interval(value, low, high)
    unpaired = _each_with_each(column[name].runs, column[other].runs, crossed)
    margin = margin_of_means(column[name], column[other]) if unpaired else margin_of_pairs(gaps)
    return Difference(interval.value, interval.low, interval.high, len(pairs), len(drawn), margin)


def _pairs(ours: Sequence[RunScore], theirs: Sequence[RunScore], crossed: bool) -> list[Pair]:
    """Runs of the same number, or each with each."""
    if _each_with_each(ours, theirs, crossed):
        paired = [(a, b) for a in ours for b in theirs]
    else:
        by_run = {b.run: b for b in theirs}
        paired = [(a, by_run[a.run]) for a in ours if a.run in by_run]
    return [(a, b) for a, b in paired if np.isfinite(a.value) and np.isfinite(b.value)]


def _each_with_each(ours: Sequence[RunScore], theirs: Sequence[RunScore], crossed: bool) -> bool:
    """A method run once stands against every run of the other."""
    return crossed or 1 in (len(ours), len(theirs))


def _exact(pairs: Sequence[Pair], paired: bool) -> Interval | None:
    """The difference of two proportions where resamples do not tell it; None where they do.

    Runs share their images, so k and n are the runs' mean counts and not their sums.
    """
    ours, theirs = (_mean_count([pair[side] for pair in pairs]) for side in (0, 1))
    if ours is None or theirs is None:
        return None
    if not needs_exact((ours.k, ours.n), (theirs.k, theirs.n), paired=paired):
        return None
    return difference_of_proportions(*(Interval(each.value, each.low, each.high) for each in (ours, theirs)))


def _mean_count(scores: Sequence[RunScore]) -> Proportion | None:
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
