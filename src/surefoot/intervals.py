"""Exact binomial intervals, and the intervals of bootstrap replicates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
NORMAL = 1.959963984540054  # the normal quantile of that level
NAN = float("nan")

Count = tuple[int | None, int | None]  # k of n; None where it is not a proportion


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95% interval; NaN where undefined."""

    value: float
    low: float = NAN
    high: float = NAN


@dataclass(frozen=True)
class Proportion:
    """k of n, with the exact binomial (Clopper-Pearson) interval; NaN, never 0, where n is 0.

    >>> Proportion.of(0, 0)
    Proportion(k=0, n=0, value=nan, low=nan, high=nan)
    """

    k: int
    n: int
    value: float
    low: float
    high: float

    @staticmethod
    def of(k: int, n: int) -> "Proportion":
        if not n:
            return Proportion(0, 0, NAN, NAN, NAN)
        low, high = clopper_pearson(k, n)
        return Proportion(k, n, k / n, low, high)


def clopper_pearson(k: int, n: int) -> tuple[float, float]:
    """The exact 95% interval of a binomial proportion (Clopper & Pearson 1934).

    >>> low, high = clopper_pearson(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    """
    from scipy.stats import beta  # takes most of a second to import

    tail = (1 - LEVEL) / 2
    low = 0.0 if k == 0 else float(beta.ppf(tail, k, n - k + 1))
    high = 1.0 if k == n else float(beta.ppf(1 - tail, k + 1, n - k))
    return low, high


def few_samples_factor(independent: int) -> float:
    """How much wider an interval must be than the normal one, from so many independent samples or groups.

    sqrt(G / (G - 1)) for the variance that G of them underestimate, and Student's t with G - 1 degrees of
    freedom for the normal quantile; infinite for one. Cameron & Miller, J. Human Resources 2015.
    """
    from scipy.special import stdtrit

    if independent < 2:
        return float("inf")
    quantile = float(stdtrit(independent - 1, (1 + LEVEL) / 2))
    return quantile / NORMAL * float(np.sqrt(independent / (independent - 1)))


def centred_interval(
    value: float, replicates: NDArray[np.float64], bounds: tuple[float, float], *, factor: float = 1.0
) -> Interval:
    """The middle 95% of the replicates, shifted to have the value as mean, widened, clipped to the bounds.

    A plug-in calibration error is larger in a resample than in its sample, so the plain percentile
    interval may not even contain the value. For means the shift is negligible.

    >>> centred_interval(0.5, np.linspace(0.5, 0.7, 1001), (0, 1))
    Interval(value=0.5, low=0.405, high=0.595)
    """
    defined = replicates[np.isfinite(replicates)]
    if not np.isfinite(value) or len(defined) < 2 or not np.isfinite(factor):
        return Interval(value)
    tail = 100 * (1 - LEVEL) / 2
    ends = (np.percentile(defined, [tail, 100 - tail]) - defined.mean()) * factor + value
    low, high = np.clip(ends, *bounds).round(12)
    return Interval(value, min(float(low), value), max(float(high), value))


def difference_of_proportions(a: Interval, b: Interval) -> Interval:
    """a less b for independent samples, from their own intervals: valid also where a count is 0.

    Low = d - sqrt((a - a.low)^2 + (b.high - b)^2), high likewise. Newcombe, Statistics in Medicine 1998.

    >>> difference_of_proportions(Interval(0.5, 0.4, 0.6), Interval(0.0, 0.0, 0.1)).low
    0.358578...
    """
    value = a.value - b.value
    low = value - float(np.hypot(a.value - a.low, b.high - b.value))
    high = value + float(np.hypot(a.high - a.value, b.value - b.low))
    return Interval(value, low, high)


def needs_exact(first: Count, second: Count, *, paired: bool = True) -> bool:
    """Whether the interval of a difference of two proportions must come from their exact intervals.

    0 of n and n of n are the same in every resample, so resamples do not show how uncertain they are. If
    paired (the same samples), two equal counts are left to the resamples: two sets of the same predictions
    differ by exactly 0.

    >>> needs_exact((0, 50), (3, 50)), needs_exact((0, 50), (0, 40)), needs_exact((0, 50), (0, 50))
    (True, True, False)
    """
    counts = (first, second)
    constant = all(n for _, n in counts) and any(k in (0, n) for k, n in counts)
    return constant and not (paired and first == second)
