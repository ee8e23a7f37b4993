"""Novelty put between 0 and 1, and how well it tells unfamiliar from familiar."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from surefoot.errors import InputError

Array = NDArray[np.float64]
PERCENTILES = (5, 95)


@dataclass(frozen=True)
class Scale:
    """A line from `low` at 0 to `high` at 1, clipped to these; all 0 where the two are equal.

    >>> Scale(2.0, 4.0)([1, 2, 3, 9])
    array([0. , 0. , 0.5, 1. ])
    """

    low: float
    high: float

    def __call__(self, scores: ArrayLike) -> Array:
        """The scores between 0 and 1."""
        values = np.asarray(scores, dtype=np.float64)
        if self.high == self.low:
            return np.zeros_like(values)
        return (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)


def fit_scale(reference_scores: ArrayLike) -> Scale:
    """The 5th percentile of the training samples' novelty at 0, the 95th at 1 (Li & Hoiem, CVPR 2020)."""
    scores = np.asarray(reference_scores, dtype=np.float64)
    if scores.size == 0 or not np.isfinite(scores).all():
        wrong = int((~np.isfinite(scores)).sum())
        raise InputError(
            f"{scores.size} reference scores, {wrong} not finite; allowed: one or more finite numbers"
        )
    low, high = np.percentile(scores, PERCENTILES)
    return Scale(float(low), float(high))


def auroc(familiar_scores: ArrayLike, unfamiliar_scores: ArrayLike) -> float:
    """P(novelty of an unfamiliar sample > of a familiar one), ties count half; NaN where a side is empty.

    (sum of the unfamiliar's ranks - m (m + 1) / 2) / (n m). Mann & Whitney 1947.

    >>> auroc([0.1, 0.2], [0.2, 0.9])
    0.875
    """
    familiar, unfamiliar = (np.asarray(s, dtype=np.float64) for s in (familiar_scores, unfamiliar_scores))
    n, m = len(familiar), len(unfamiliar)
    if not n or not m:
        return float("nan")
    ranks = rankdata(np.concatenate([familiar, unfamiliar]))
    return float((ranks[n:].sum() - m * (m + 1) / 2) / (n * m))
