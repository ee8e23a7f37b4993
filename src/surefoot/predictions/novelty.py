"""Novelty without a network: energies, distances of features, ranks, AUROC, and the scale. Numpy only."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from surefoot.errors import InputError
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import Floats, map_rows
from surefoot.predictions.outcomes import Array

NEIGHBOURS = 50
QUERIES_AT_ONCE = 1024
REFERENCES_AT_ONCE = 16_384  # with the above, 128 MiB of distances in float64
PERCENTILES = (5, 95)


def energy(logits: Floats, kind: LabelKind) -> Array:
    """-logsumexp(z), for many labels -sum softplus(z), of logits (n, classes), in float64.

    Liu et al., "Energy-based out-of-distribution detection", NeurIPS 2020; for many labels Wang et al., "Can
    multi-label classification networks know what they don't know?", NeurIPS 2021.

    >>> energy(np.array([[0.0, 0.0]]), LabelKind.ONE_LABEL).round(4)  # -log 2
    array([-0.6931])
    """
    result = np.empty(len(logits))

    def write(part: slice) -> None:
        values = np.array(logits[part].T, dtype=np.float64, order="C")
        if kind is LabelKind.MANY_LABELS:
            result[part] = -np.logaddexp(0, values).sum(axis=0)
            return
        top = values.max(axis=0)
        result[part] = -np.log(np.exp(values - top).sum(axis=0)) - top

    map_rows(len(logits), logits[None], write)
    return result


def neighbour_distances(features: Floats, reference: Floats) -> Array:
    """Each row's distance to its k-th nearest row of the reference, all scaled to length 1, in float64.

    |a / |a| - r / |r||, k = 50, or all but one of a smaller reference. Sun et al., "Out-of-distribution
    detection with deep nearest neighbors", ICML 2022.
    """
    if len(reference) < 2:
        raise InputError(f"{len(reference)} reference samples; allowed: two or more to be neighbours")
    k = min(NEIGHBOURS, len(reference) - 1)
    parts = [np.empty(0)]
    for start in range(0, len(features), QUERIES_AT_ONCE):
        queries = _unit(features[start : start + QUERIES_AT_ONCE])
        best = np.empty((len(queries), 0))
        for first in range(0, len(reference), REFERENCES_AT_ONCE):
            rows = _unit(reference[first : first + REFERENCES_AT_ONCE])
            best = np.concatenate([best, 2 - 2 * (queries @ rows.T)], axis=1)
            if best.shape[1] > k:
                best = np.partition(best, k - 1, axis=1)[:, :k]
        parts.append(np.sqrt(np.maximum(best.max(axis=1), 0)))
    return np.concatenate(parts)


def _unit(rows: Floats) -> Array:
    wide = rows.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12))


def average_ranks(values: Array) -> Array:
    """The rank of each value from 1, equal values at the mean of theirs; NaN for all where one is NaN.

    >>> average_ranks(np.array([0.5, 0.1, 0.5])).tolist()
    [2.5, 1.0, 2.5]
    """
    if np.isnan(values).any():
        return np.full(len(values), np.nan)
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((counts.cumsum() - (counts - 1) / 2)[place])


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
    ranks = average_ranks(np.concatenate([familiar, unfamiliar]))
    return float((ranks[n:].sum() - m * (m + 1) / 2) / (n * m))
