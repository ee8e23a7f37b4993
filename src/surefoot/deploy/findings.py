"""What a check compares one by one: the means of both sides, their change, and how far apart they are."""

from dataclasses import dataclass

import numpy as np

from surefoot.deploy.detectors import Ranked
from surefoot.deploy.groups import NO_INTERVAL, Grouped, normal_interval, proportion_of
from surefoot.intervals import NAN, Interval, difference_of_proportions
from surefoot.predictions.outcomes import Index


@dataclass(frozen=True)
class Finding:
    """One comparison: the means of both sides, their difference, and its p-value."""

    name: str
    reference: float
    current: float
    change: Interval  # current less reference; NaN where no single number is compared
    distance: float  # Kolmogorov-Smirnov; NaN for a share and for vectors
    more_novel: Interval  # P(a current row is more novel than one of the reference); NaN for a share
    p: float
    adjusted: float  # corrected for all comparisons of the check


def shift_of(name: str, before: Grouped, now: Grouped, ranked: Ranked, *, sign: int) -> Finding:
    """A score; with the sign -1, lower values are more novel."""
    return Finding(
        name=name,
        reference=float(before[0].mean()),
        current=float(now[0].mean()),
        change=difference(now, before),
        distance=ranked.distance,
        more_novel=_probability_above(ranked, before[1], now[1], sign),
        p=1.0,
        adjusted=1.0,
    )


def coverage_of(reference: Grouped, current: Grouped) -> Finding:
    """The share of the rows that are accepted."""
    sides = [proportion_of(accepted > 0, group_of) for accepted, group_of in (reference, current)]
    before, now = (Interval(side.value, side.low, side.high) for side in sides)
    return Finding(
        name="coverage",
        reference=before.value,
        current=now.value,
        change=difference_of_proportions(now, before),
        distance=NAN,
        more_novel=NO_INTERVAL,
        p=1.0,
        adjusted=1.0,
    )


def _probability_above(ranked: Ranked, before: Index | None, now: Index | None, sign: int) -> Interval:
    """P(current > reference), ties half, with the interval of DeLong (groups: Obuchowski); -1: P(below)."""
    of_reference, of_current = ranked.shares_below()
    value = float(of_current.mean())
    above = normal_interval(value, [(of_current, now), (of_reference, before)], (0.0, 1.0))
    return above if sign > 0 else Interval(1 - above.value, 1 - above.high, 1 - above.low)


def difference(a: Grouped, b: Grouped) -> Interval:
    """The mean of a less the mean of b."""
    return normal_interval(float(a[0].mean() - b[0].mean()), [a, b], (-np.inf, np.inf))


def without_means(name: str) -> Finding:
    """A comparison of vectors, which have no single mean."""
    return Finding(name, NAN, NAN, NO_INTERVAL, NAN, NO_INTERVAL, 1.0, 1.0)
