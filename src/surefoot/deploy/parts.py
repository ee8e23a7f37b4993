"""Where the data has shifted: each predicted class and each group compared on its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.predictions.novelty import average_ranks
from surefoot.predictions.outcomes import Array

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
    kind: str, names: tuple[NDArray[Any], NDArray[Any]], confidence: tuple[Array, Array]
) -> Iterator[PartFinding]:
    """Each part that has enough rows on both sides; p-values are not corrected yet."""
    for name in sorted(set(names[0].tolist()) & set(names[1].tolist()), key=str):
        inside = [values[each == name] for each, values in zip(names, confidence, strict=True)]
        if min(map(len, inside)) < FEWEST:
            continue
        p = _rank_sum_p(*inside)
        reference, current = inside
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


def _rank_sum_p(reference: Array, current: Array) -> float:
    """Mann & Whitney's two-sided p-value, asymptotic, with ties."""
    n, ranks = len(current), average_ranks(np.concatenate([reference, current]))
    deviation = float(np.sqrt(n * len(reference) / len(ranks) * ranks.var(ddof=1)))
    if not deviation:
        return 1.0
    return 2 * NormalDist().cdf(-abs(float(ranks[-n:].sum() - n * ranks.mean())) / deviation)


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
