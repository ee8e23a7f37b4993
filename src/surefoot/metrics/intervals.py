"""Every interval: exact binomial, from bootstrap replicates, from standard errors; and the sign-flip test.

What the intervals of a difference between two methods mean:
- new groups: other groups of images of the same kind (other breeds). The bootstrap draws whole groups.
- these groups: other images of the same groups. Student's t from the variance within groups.
- over runs: other networks of the same recipes, on the same images. Student's t from the variance of runs,
  and for an ensemble from its leave-one-out ensembles (jackknife).
- combined: new groups and other networks. Both variances are added, with Satterthwaite's degrees of freedom.
The actual coverage of each is in benchmarks/results/coverage.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
NORMAL = 1.959963984540054  # the normal quantile of that level
NAN = float("nan")
EXACT_FLIPS = 12  # groups up to which all changes of sign are tried
FLIPS = 4_999  # drawn at random for more groups
FLIPPED_AT_ONCE = 2**22  # groups times flips in memory
ROUNDED = 1 - 1e-9  # the same sum in another order is not smaller

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
    from scipy.special import betaincinv  # scipy.stats takes most of a second to import

    tail = (1 - LEVEL) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return low, high


def binomial_quantile(q: float, n: NDArray[np.float64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The smallest k with P(Binomial(n, p) <= k) >= q.

    >>> binomial_quantile(0.975, np.array([10.0, 10.0]), np.array([0.5, 1.0])).tolist()
    [8.0, 10.0]
    """
    from scipy.special import bdtrik, betaincc

    def reached(k: NDArray[np.float64]) -> NDArray[np.bool_]:
        below = np.clip(k, 0, n - 1)
        return (k >= n) | ((k >= 0) & (betaincc(below + 1, n - below, p) >= q))

    k = np.clip(np.ceil(np.nan_to_num(bdtrik(q, n, np.clip(p, 1e-300, 1 - 1e-16)))), 0, n)  # or one off
    return np.where(reached(k - 1), k - 1, np.where(reached(k), k, k + 1))


def few_samples_factor(independent: int) -> float:
    """How much wider an interval must be than the normal one, from so many independent samples or groups.

    sqrt(G / (G - 1)) for the variance that G of them underestimate, and Student's t with G - 1 degrees of
    freedom for the normal quantile; infinite for one. Cameron & Miller, J. Human Resources 2015.
    """
    if independent < 2:
        return float("inf")
    return quantile_of(independent - 1) / NORMAL * float(np.sqrt(independent / (independent - 1)))


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
    tail, last = (1 - LEVEL) / 2, len(defined) - 1
    percentiles = np.interp([tail * last, (1 - tail) * last], np.arange(last + 1), np.sort(defined))
    ends = (percentiles - defined.mean()) * factor + value  # `np.percentile` takes eight times as long
    low, high = np.clip(ends, *bounds).round(12)
    return Interval(value, min(float(low), value), max(float(high), value))


@dataclass(frozen=True)
class StandardError:
    """The standard error of a value, and the degrees of freedom of this estimate; NaN where unknown."""

    value: float = NAN
    freedom: float = NAN

    @staticmethod
    def of_margin(margin: float, freedom: float) -> "StandardError":
        """From half of a 95% interval."""
        return StandardError(margin / quantile_of(freedom), freedom) if freedom > 0 else UNKNOWN

    @property
    def margin(self) -> float:
        """Half the 95% interval, by Student's t."""
        return self.value * quantile_of(self.freedom) if self.value else self.value

    def around(self, value: float) -> Interval:
        """The 95% interval of that value."""
        return Interval(value, value - self.margin, value + self.margin)


UNKNOWN = StandardError()


@lru_cache(maxsize=4096)
def quantile_of(freedom: float) -> float:
    """Student's t at the upper end of a 95% interval.

    >>> round(quantile_of(9), 3)
    2.262
    """
    from scipy.special import stdtrit

    return NORMAL if freedom == math.inf else float(stdtrit(freedom, (1 + LEVEL) / 2))


def added(*errors: StandardError) -> StandardError:
    """The standard error of a sum of independent values, leaving out what is unknown.

    Satterthwaite, Biometrics 1946: (sum v)^2 / sum (v^2 / f) degrees of freedom, v being the squared errors.
    For two means this is Welch's t.

    >>> added(StandardError(3.0, 4), StandardError(4.0, 9), UNKNOWN)
    StandardError(value=5.0, freedom=12.8...)
    """
    known = [error for error in errors if not math.isnan(error.value)]
    variance = sum(error.value**2 for error in known)
    if not variance:
        return StandardError(0.0, math.inf) if known else UNKNOWN
    parts = sum(error.value**4 / error.freedom for error in known)
    return StandardError(math.sqrt(variance), variance**2 / parts if parts else math.inf)


def error_within(values: NDArray[np.float64], group_of: NDArray[np.intp]) -> StandardError:
    """Of the sum of independent values, some in each group: of other values in the same groups.

    A group of one value has no variance that could be estimated, and adds none.
    """
    size = np.bincount(group_of)
    present = size > 0
    mean = np.bincount(group_of, values) / np.maximum(size, 1)
    squares = np.bincount(group_of, (values - mean[group_of]) ** 2)
    several = size > 1
    variance = float((squares[several] * size[several] / (size[several] - 1)).sum())
    freedom = len(values) - int(present.sum())
    return StandardError(math.sqrt(variance), freedom) if freedom else UNKNOWN


def sign_flip(totals: Sequence[float] | NDArray[np.float64], seed: int = 0) -> float:
    """The two-sided p value of the sum of groups' totals, if each total is equally likely with either sign.

    Exact for few groups: all 2^G changes of sign; the least p is then 2 / 2^G. Fisher 1935.

    >>> sign_flip([1.0, 2.0, 3.0, 0.5, 1.5])
    0.0625
    """
    return sign_flips([np.asarray(totals, dtype=np.float64)], seed)[0]


def sign_flips(tests: Sequence[NDArray[np.float64]], seed: int = 0) -> list[float]:
    """`sign_flip` of each; the signs are drawn once for all tests with as many totals that are not 0."""
    totals = [values[values != 0] for values in tests]
    results = [_exact_sign_flip(values) for values in totals]
    drawn = [
        index
        for index, values in enumerate(totals)
        if math.isnan(results[index]) and np.isfinite(values).all()
    ]
    for groups in {len(totals[index]) for index in drawn}:
        alike = [index for index in drawn if len(totals[index]) == groups]
        shares = _drawn_sign_flips(np.stack([totals[index] for index in alike], axis=1), seed)
        for index, share in zip(alike, shares, strict=True):
            results[index] = share
    return results


def _exact_sign_flip(values: NDArray[np.float64]) -> float:
    """By all changes of sign; NaN for too many groups, or where a total is not finite."""
    if len(values) > EXACT_FLIPS or not np.isfinite(values).all():
        return NAN
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return float((np.abs(sums) >= abs(values.sum()) * ROUNDED).mean())


def _drawn_sign_flips(totals: NDArray[np.float64], seed: int) -> list[float]:
    """By random changes of sign, of (groups, tests)."""
    groups, tests = totals.shape
    rng, left, reached = np.random.default_rng(seed), FLIPS, np.ones(tests, dtype=np.int64)
    limit = np.abs(totals.sum(axis=0)) * ROUNDED
    while left:
        step = min(left, max(1, FLIPPED_AT_ONCE // groups))
        signs = rng.integers(2, size=(step, groups), dtype=np.int8) * 2.0 - 1.0
        reached += (np.abs(signs @ totals) >= limit).sum(axis=0)
        left -= step
    return [float(count) / (FLIPS + 1) for count in reached]


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
