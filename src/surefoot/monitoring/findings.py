"""What a check compares one by one: scores, and each predicted class and group; how both sides differ."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from surefoot.decisions.chunks import Keys
from surefoot.decisions.groups import (
    NO_INTERVAL,
    Grouped,
    group_values,
    normal_interval,
    number_of_groups,
    proportion_of,
    some_of,
)
from surefoot.metrics.intervals import NAN, Interval, difference_of_proportions
from surefoot.monitoring.detectors import Ranked
from surefoot.predictions.outcomes import Array, Index

FEWEST = 5  # rows of a part on each side, to be compared


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


@dataclass(frozen=True)
class PartFinding:
    """One predicted class or group: its share of the rows and mean confidence on both sides."""

    kind: str  # 'class' or 'group'
    name: str
    n_reference: int
    n_current: int
    share_reference: float
    share_current: float
    confidence_reference: float
    confidence_current: float
    p: float  # of its confidences: Mann-Whitney
    adjusted: float  # Holm, over all parts


def part_findings(
    kind: str,
    keys: tuple[Keys, Keys],
    confidence: tuple[Array, Array],
    groups: tuple[Index | None, Index | None] = (None, None),
) -> Iterator[PartFinding]:
    """Each part that has enough rows, in enough groups, on both sides; p-values are not corrected yet."""
    rows_of = [dict(zip(each.names, each.rows_of(np.arange(len(each.codes))), strict=True)) for each in keys]
    for name in sorted(rows_of[0].keys() & rows_of[1].keys(), key=str):
        rows = [each[name] for each in rows_of]
        reference, current = (values[inside] for values, inside in zip(confidence, rows, strict=True))
        if min(len(reference), len(current)) < FEWEST:
            continue
        of_reference, of_current = (some_of(each, inside) for each, inside in zip(groups, rows, strict=True))
        counts = number_of_groups(len(reference), of_reference), number_of_groups(len(current), of_current)
        if min(counts) < FEWEST:
            continue
        p = _rank_sum_p((reference, of_reference), (current, of_current))
        yield PartFinding(
            kind=kind,
            name=str(name),
            n_reference=len(reference),
            n_current=len(current),
            share_reference=len(reference) / len(confidence[0]),
            share_current=len(current) / len(confidence[1]),
            confidence_reference=float(reference.mean()),
            confidence_current=float(current.mean()),
            p=p,
            adjusted=p,
        )


def _rank_sum_p(reference: Grouped, current: Grouped) -> float:
    """Mann & Whitney's two-sided p-value, asymptotic, with ties; with groups, Student's of the mean ranks."""
    n, ranks = len(current[0]), Ranked.of(reference[0], current[0]).ranks
    if reference[1] is None and current[1] is None:
        deviation = float(np.sqrt(n * len(reference[0]) / len(ranks) * ranks.var(ddof=1)))
        z = float(ranks[-n:].sum() - n * ranks.mean()) / deviation if deviation else 0.0
        return 2 * NormalDist().cdf(-abs(z))
    from scipy.special import stdtr  # slow to import

    before, now = group_values(ranks[:-n], reference[1]), group_values(ranks[-n:], current[1])
    deviation = float(np.sqrt(before.var(ddof=1) / len(before) + now.var(ddof=1) / len(now)))
    t = float(now.mean() - before.mean()) / deviation if deviation else 0.0
    return 2 * float(stdtr(min(len(before), len(now)) - 1, -abs(t)))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down p-values: the smallest times their number, the next times one less, never falling.

    >>> [round(each, 2) for each in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, so_far = [1.0] * len(p), 0.0
    for place, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        so_far = max(so_far, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = so_far
    return adjusted
