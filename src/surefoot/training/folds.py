"""Folds of familiar subgroups, so that some can be held out: stand-ins for unfamiliar samples."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from surefoot.predictions.labels import LabelKind

if TYPE_CHECKING:
    from torch import Tensor

NEVER = -1  # the fold of groups that cannot be held out
CLUSTER_STEPS = 50


def deal_groups(
    groups: NDArray[np.str_],
    labels: NDArray[np.int64],
    trained: NDArray[np.bool_],
    folds: int,
    kind: LabelKind,
) -> NDArray[np.int64]:
    """A fold for each row, whole groups together, each class's groups spread over the folds.

    A group is in no fold where holding it out with the rest of its fold would leave a class without a trained
    row. The largest groups are assigned first, each to the fold that has least of its main class.
    """
    if kind is LabelKind.MANY_LABELS:
        has = labels == 1
    else:
        has = labels[:, None] == np.arange(labels.max() + 1)[None, :]
    names, member_of = np.unique(groups, return_inverse=True)
    counts = np.stack([has[member_of == index].sum(axis=0) for index in range(len(names))])
    of_trained = np.stack([has[(member_of == index) & trained].sum(axis=0) for index in range(len(names))])
    total = of_trained.sum(axis=0)
    held_out, lost = np.zeros((folds, has.shape[1])), np.zeros((folds, has.shape[1]))
    fold_of = np.full(len(names), NEVER, dtype=np.int64)
    for index in np.argsort(-counts.sum(axis=1), kind="stable"):
        main = int(counts[index].argmax())
        possible = [
            f for f in range(folds) if ((total - lost[f] - of_trained[index] > 0) | (total == 0)).all()
        ]
        if possible:
            best = min(possible, key=lambda f: (held_out[f, main], held_out[f].sum(), f))
            fold_of[index] = best
            held_out[best] += counts[index]
            lost[best] += of_trained[index]
    return np.asarray(fold_of[member_of], dtype=np.int64)


def cluster(
    features: "Tensor", labels: NDArray[np.int64], clusters: int, kind: LabelKind
) -> NDArray[np.str_]:
    """A name for each row's cluster of features, by k-means within each class; over all for many labels."""
    if kind is LabelKind.MANY_LABELS:
        nearest = _k_means(features, clusters, "all")
        return np.asarray([f"cluster {each}" for each in nearest.tolist()], dtype=np.str_)
    names = np.empty(len(labels), dtype="U64")
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        nearest = _k_means(features[rows], min(clusters, len(rows)), label)
        names[rows] = [f"class {label}, cluster {each}" for each in nearest.tolist()]
    return names


def _k_means(features: "Tensor", clusters: int, *purpose: object) -> "Tensor":
    """Lloyd's iterations in float64 from k-means++ seeds (Arthur & Vassilvitskii, SODA 2007)."""
    import torch  # here, because planning needs `deal_groups` and no torch

    from surefoot.runtime import generator

    points, random = features.double(), generator("clusters", *purpose)
    chosen = [int(torch.randint(len(points), (), generator=random))]
    for _ in range(clusters - 1):
        distance = torch.cdist(points, points[chosen]).amin(dim=1).square()
        if not distance.sum() > 0:
            break
        chosen.append(int(torch.multinomial(distance, 1, generator=random)))
    centres = points[chosen].clone()
    nearest = torch.zeros(len(points), dtype=torch.int64)
    for _ in range(CLUSTER_STEPS):
        before, nearest = nearest, torch.cdist(points, centres).argmin(dim=1)
        if torch.equal(before, nearest):
            break
        for index in range(len(centres)):
            if (nearest == index).any():
                centres[index] = points[nearest == index].mean(dim=0)
    return nearest
