"""Shift detectors and their combination: one p-value, by permutation, for all of them together.

Every detector compares the mean of some numbers per row: ranks of a score, or random Fourier features of a
kernel. So one matrix product gives its statistic for many permutations of the rows. The smallest p-value over
the detectors is calibrated by the same permutations (Westfall & Young 1993), which costs little power, as the
detectors are correlated. Exact for any distribution, if the rows are exchangeable.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.intervals import NAN
from surefoot.novelty import average_ranks
from surefoot.predictions.outcomes import Array

KERNEL_WEIGHT = 0.25  # for any change, in any direction; the other detectors are for unfamiliar data
FREQUENCIES = 64  # random Fourier features of a kernel have twice as many columns
WIDTH_ROWS = 500  # whose median distance is the width of the kernel
LEAST_RANGE = 1e-6  # a score that varies by less is constant
PERMUTATIONS = 499  # at first
FINEST = 20  # permutations: so many have a p-value of at most the level
MOST_ROWS = 100_000  # of a kernel test: they show a change without it
MOST_PERMUTATIONS = 100_000
MOST_WORK = 2e8  # permutations times rows; beyond it, p-values are asymptotic and corrected by Bonferroni
AT_ONCE = 2**22  # permuted rows in memory
CLEARLY = 20  # times the level: a p-value that more permutations will not bring down to it
SEED = 23
TIES = 9  # decimals


@dataclass(frozen=True, eq=False)
class Detector:
    """Numbers of each row, the reference's first, whose means are compared.

    A single number: one-sided, evidence is a higher mean of the current rows. Several: any difference.
    """

    name: str
    columns: Array  # (rows, d)
    weight: float = 1.0  # its p-value counts as p / weight among the others

    def statistic(self, sums: Array, n: int) -> Array:
        """From the sums (permutations, d) over n current rows; larger is more evidence."""
        rows = len(self.columns)
        difference: Array = sums / n - (self.columns.sum(axis=0) - sums) / (rows - n)
        squares: Array = (difference**2).sum(axis=1)
        return difference[:, 0] if difference.shape[1] == 1 else squares

    def asymptotic_p(self, n: int) -> float:
        """From the normal distribution of the sum over n of the rows; NaN for several numbers."""
        if self.columns.shape[1] > 1:
            return NAN
        values, rows = self.columns[:, 0], len(self.columns)
        deviation = float(np.sqrt(n * (rows - n) / rows * values.var(ddof=1)))
        z = float(values[-n:].sum() - n * values.mean()) / deviation
        return math.erfc(z / math.sqrt(2)) / 2  # exact far out in the tail, where 1 - cdf is 0


@dataclass(frozen=True)
class Result:
    """The p-value of a detector alone, and corrected for all detectors of the check."""

    name: str
    p: float
    adjusted: float


def higher(name: str, reference: Array, current: Array) -> list[Detector]:
    """Whether a score is higher now: its mean rank, and its mean Savage score, which weighs the tail.

    Wilcoxon 1945; Savage 1956. The Savage score of rank r of N is -log(1 - r / (N + 1)): a few rows with a
    very high score show in it first. Nothing, if the score is constant.
    """
    both = np.concatenate([reference, current])
    if np.ptp(both) <= LEAST_RANGE:
        return []
    ranks = average_ranks(both)
    tail = -np.log1p(-ranks / (len(both) + 1))
    return [Detector(name, ranks[:, None]), Detector(f"{name} tail", tail[:, None])]


def kernel_distance(name: str, reference: Array, current: Array) -> list[Detector]:
    """The maximum mean discrepancy of vectors, with a Gaussian kernel (Gretton et al., JMLR 2012).

    Random Fourier features approximate the kernel (Rahimi & Recht 2007); its width is the median distance of
    the pooled rows, so it does not depend on which rows are current.
    """
    both = np.concatenate([reference, current])
    spread = both.std(axis=0)
    varies = spread > LEAST_RANGE
    if not varies.any() or len(both) > MOST_ROWS:
        return []
    scaled = both[:, varies] / spread[varies]
    # Chosen by their values, not by their place: the statistic must not depend on which rows are current.
    places = np.linspace(0, len(scaled) - 1, min(WIDTH_ROWS, len(scaled))).astype(int)
    rng = np.random.default_rng(SEED)
    order = np.argsort(scaled @ rng.standard_normal(scaled.shape[1]))
    width = _median_distance(scaled[order[places]])
    angles = scaled @ (rng.standard_normal((scaled.shape[1], FREQUENCIES)) / width)
    columns = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return [Detector(name, columns, weight=KERNEL_WEIGHT)]


def _median_distance(rows: Array) -> float:
    """Of all pairs of rows that differ."""
    squares = (rows**2).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0))
    pairs = distances[np.triu_indices(len(rows), 1)]
    return float(np.median(pairs[pairs > 0])) if (pairs > 0).any() else 1.0


def combine(detectors: Sequence[Detector], n: int, *, level: float) -> tuple[Result, ...]:
    """All detectors for the last n rows; the smallest corrected p-value is that of all of them together.

    As many permutations are drawn as the level needs; fewer where these show that it will not be reached. If
    they would take too long, the p-values are asymptotic and corrected by Bonferroni, without the detectors
    that have none.
    """
    is_reachable = level * MOST_PERMUTATIONS >= FINEST  # a tiny level would overflow below
    needed = int(np.ceil(FINEST / level)) - 1 if is_reachable else MOST_PERMUTATIONS + 1
    if needed > MOST_PERMUTATIONS or needed * len(detectors[0].columns) > MOST_WORK:
        p = {each.name: each.asymptotic_p(n) for each in detectors if each.columns.shape[1] == 1}
        return tuple(Result(name, value, min(1.0, len(p) * value)) for name, value in p.items())
    first = _permuted(detectors, n, PERMUTATIONS)
    if needed <= PERMUTATIONS or min(each.adjusted for each in first) > CLEARLY * level:
        return first
    return _permuted(detectors, n, needed)


def _permuted(detectors: Sequence[Detector], n: int, permutations: int) -> tuple[Result, ...]:
    statistics = _statistics(detectors, n, permutations)
    # Each permutation's p-value among all of them, the observed one included; ties count against a shift.
    ordered = np.sort(statistics, axis=0)
    below = [np.searchsorted(ordered[:, i], statistics[:, i], "left") for i in range(len(detectors))]
    reached = len(statistics) - np.stack(below, axis=1)  # how many are at least as large
    weighted = reached / np.array([each.weight for each in detectors])
    smallest = np.sort(weighted.min(axis=1))
    adjusted = np.searchsorted(smallest, weighted[0], "right") / len(smallest)
    return tuple(
        Result(each.name, float(own) / len(statistics), float(corrected))
        for each, own, corrected in zip(detectors, reached[0], adjusted, strict=True)
    )


def _statistics(detectors: Sequence[Detector], n: int, permutations: int) -> Array:
    """(1 + permutations, detectors), the observed ones first; rounded, so that equal ones tie."""
    columns = np.concatenate([each.columns for each in detectors], axis=1)
    ends = np.cumsum([each.columns.shape[1] for each in detectors])[:-1]
    sums = np.concatenate(list(_sums(columns, n, permutations)))
    pieces = np.split(sums, ends, axis=1)
    values = np.stack([each.statistic(s, n) for each, s in zip(detectors, pieces, strict=True)], axis=1)
    top = np.abs(values).max(axis=0)
    rounded: Array = np.round(values / np.where(top > 0, top, 1), TIES)
    return rounded


def _sums(columns: Array, n: int, permutations: int) -> Iterator[Array]:
    """Sums of the columns over the last n rows, then over n random rows, for many draws."""
    rng = np.random.default_rng(SEED)
    rows = len(columns)
    yield columns[-n:].sum(axis=0, keepdims=True)
    while permutations:
        step = min(permutations, max(1, AT_ONCE // rows))
        chosen = np.zeros((step, rows))
        drawn = rng.random((step, rows), dtype=np.float32).argpartition(n - 1, axis=1)[:, :n]
        np.put_along_axis(chosen, drawn, 1, axis=1)
        yield chosen @ columns
        permutations -= step
