"""What a check compares one by one: the means of both sides, their change, and how far apart they are."""

from dataclasses import dataclass

import numpy as np

from surefoot.deploy.groups import Grouped, normal_interval, proportion_of
from surefoot.intervals import NAN, Interval, difference_of_proportions
from surefoot.predictions.novelty import average_ranks
from surefoot.predictions.outcomes import Array

NO_INTERVAL = Interval(NAN)


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


def shift_of(name: str, before: Grouped, now: Grouped, *, sign: int) -> Finding:
    """A score; with the sign -1, lower values are more novel."""
    reference, current = before[0], now[0]
    return Finding(
        name=name,
        reference=float(reference.mean()),
        current=float(current.mean()),
        change=difference(now, before),
        distance=_distance(reference, current),
        more_novel=_probability_above((sign * reference, before[1]), (sign * current, now[1])),
        p=1.0,
        adjusted=1.0,
    )


def _distance(reference: Array, current: Array) -> float:
    """Kolmogorov-Smirnov: the largest difference of the shares at or below a value."""
    both = np.concatenate([reference, current])
    shares = [np.searchsorted(np.sort(side), both, "right") / len(side) for side in (reference, current)]
    return float(np.abs(shares[0] - shares[1]).max())


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


def _probability_above(reference: Grouped, current: Grouped) -> Interval:
    """P(current > reference), ties half, with the interval of DeLong (groups: Obuchowski)."""
    n, m = len(reference[0]), len(current[0])
    ranks = average_ranks(np.concatenate([reference[0], current[0]]))
    # The share of the other side's rows that are below each row.
    below_current = (ranks[n:] - average_ranks(current[0])) / n
    below_reference = (ranks[:n] - average_ranks(reference[0])) / m
    value = float(below_current.mean())
    samples = [(below_current, current[1]), (below_reference, reference[1])]
    return normal_interval(value, samples, (0.0, 1.0))


def difference(a: Grouped, b: Grouped) -> Interval:
    """The mean of a less the mean of b."""
    return normal_interval(float(a[0].mean() - b[0].mean()), [a, b], (-np.inf, np.inf))


def without_means(name: str) -> Finding:
    """A comparison of vectors, which have no single mean."""
    return Finding(name, NAN, NAN, NO_INTERVAL, NAN, NO_INTERVAL, 1.0, 1.0)
