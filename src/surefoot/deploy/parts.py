"""Where the data has shifted: each predicted class and each group compared on its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from surefoot.deploy.groups import Grouped, group_values, number_of_groups, some_of
from surefoot.deploy.scores import Keys
from surefoot.predictions.novelty import average_ranks
from surefoot.predictions.outcomes import Array, Index

FEWEST = 5  # rows of a part on each side, to be compared


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
    n, ranks = len(current[0]), average_ranks(np.concatenate([reference[0], current[0]]))
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
