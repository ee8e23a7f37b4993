"""Energies of logits, distances of features and ranks: what a monitor compares. Numpy only."""

import numpy as np

from surefoot.errors import InputError
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import Floats, map_rows
from surefoot.predictions.outcomes import Array

NEIGHBOURS = 50
QUERIES_AT_ONCE = 1024
REFERENCES_AT_ONCE = 16_384  # with the above, 128 MiB of distances in float64


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
