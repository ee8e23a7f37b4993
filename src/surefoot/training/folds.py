"""Familiar subgroups dealt into folds, so that some can be held out: stand-ins for what is unfamiliar."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.predictions.labels import LabelKind
from surefoot.runtime import generator

NEVER = -1  # the fold of what cannot be held out
CLUSTER_STEPS = 50

Rows = NDArray[np.int64]


def deal_groups(
    groups: NDArray[np.str_],
    labels: NDArray[np.int64],
    trained: NDArray[np.bool_],
    folds: int,
    kind: LabelKind,
) -> Rows:
    """A fold for each row, whole groups together, each class's groups spread over the folds.

    A group is in no fold where holding it out with the rest of its fold would leave a class without a trained
    row. The largest groups are dealt first, each to the fold that has least of its main class.
    """
    has = _has(labels, kind)
    names, member_of = np.unique(groups, return_inverse=True)
    counts = np.stack([has[member_of == index].sum(axis=0) for index in range(len(names))])
    of_trained = np.stack([has[(member_of == index) & trained].sum(axis=0) for index in range(len(names))])
    total = of_trained.sum(axis=0)
    held, lost = np.zeros((folds, has.shape[1])), np.zeros((folds, has.shape[1]))
    fold_of = np.full(len(names), NEVER, dtype=np.int64)
    for index in np.argsort(-counts.sum(axis=1), kind="stable"):
        main = int(counts[index].argmax())
        able = [f for f in range(folds) if ((total - lost[f] - of_trained[index] > 0) | (total == 0)).all()]
        if able:
            best = min(able, key=lambda f: (held[f, main], held[f].sum(), f))
            fold_of[index] = best
            held[best] += counts[index]
            lost[best] += of_trained[index]
    return np.asarray(fold_of[member_of], dtype=np.int64)


def cluster(features: Tensor, labels: NDArray[np.int64], clusters: int, kind: LabelKind) -> NDArray[np.str_]:
    """A name for each row's cluster of features, by k-means within each class; over all for many labels."""
    if kind is LabelKind.MANY_LABELS:
        found = _k_means(features, clusters, "all")
        return np.asarray([f"cluster {each}" for each in found.tolist()], dtype=np.str_)
    names = np.empty(len(labels), dtype="U64")
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        found = _k_means(features[torch.from_numpy(rows)], min(clusters, len(rows)), label)
        names[rows] = [f"class {label}, cluster {each}" for each in found.tolist()]
    return names


def _has(labels: NDArray[np.int64], kind: LabelKind) -> NDArray[np.bool_]:
    if kind is LabelKind.MANY_LABELS:
        return np.asarray(labels == 1)
    return np.asarray(labels[:, None] == np.arange(labels.max() + 1)[None, :])


def _k_means(features: Tensor, clusters: int, *purpose: object) -> Tensor:
    """Lloyd's iterations in float64 from k-means++ seeds (Arthur & Vassilvitskii, SODA 2007)."""
    points = features.double()
    centres = _spread(points, clusters, generator("clusters", *purpose))
    nearest = torch.zeros(len(points), dtype=torch.int64)
    for _ in range(CLUSTER_STEPS):
        before, nearest = nearest, torch.cdist(points, centres).argmin(dim=1)
        if torch.equal(before, nearest):
            break
        for index in range(len(centres)):
            if (nearest == index).any():
                centres[index] = points[nearest == index].mean(dim=0)
    return nearest


def _spread(points: Tensor, clusters: int, random: torch.Generator) -> Tensor:
    chosen: Sequence[int] = [int(torch.randint(len(points), (), generator=random))]
    for _ in range(clusters - 1):
        distance = torch.cdist(points, points[list(chosen)]).amin(dim=1).square()
        if not distance.sum() > 0:
            break
        chosen = [*chosen, int(torch.multinomial(distance, 1, generator=random))]
    return points[list(chosen)].clone()
