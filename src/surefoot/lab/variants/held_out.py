"""Held-out networks: trained without some familiar subgroups, which they then predict."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError, require_number, require_whole
from surefoot.lab.recipes.recipe import Recipe, Teachers
from surefoot.lab.tasks.task import Samples, Split, Task
from surefoot.lab.variants.base import Variant
from surefoot.predictions.labels import LabelKind

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.lab.variants.build import Build

HELD_OUT = "held_out"  # the name of their predictions
FAMILIAR = "held_out_familiar"  # of validation samples whose subgroups were trained on
SPLITS = (Split.TRAIN, Split.VAL)
NEVER = -1  # the fold of groups that cannot be held out
CLUSTER_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class HeldOut(Variant):
    """Trained without some familiar subgroups, which it then predicts: stand-ins for unfamiliar samples."""

    name: ClassVar[str] = "held-out"

    fold: int  # from 0
    folds: int = 5
    teachers: Teachers | None = None  # whose features are clustered into subgroups, where the task names none

    def __post_init__(self) -> None:
        require_whole("folds", self.folds, 2)
        require_number(
            "fold", self.fold, lambda v: isinstance(v, int) and 0 <= v < self.folds, "from 0 to below folds"
        )

    @property
    def needs(self) -> Teachers | None:
        """The network whose features are clustered."""
        return self.teachers

    @property
    def label(self) -> str:
        """With its fold."""
        return f"{self.name} fold {self.fold}"

    def obstacle(self, recipe: Recipe, _task: Task) -> str | None:
        """Subgroups are named by the task or made from features."""
        if self.teachers is None or recipe.gives_features:
            return None
        return "needs subgroups, or features to make them from, and there are neither"

    def trainings(self, _recipe: Recipe) -> int:
        """Once, on train without one fold."""
        return 1

    def produce(self, build: "Build") -> dict[str, Any]:
        """Train on train less one fold's subgroups; predict their samples, and all other samples of val."""
        import torch

        from surefoot.lab.variants.build import Phase, Training

        if build.draft.has(f"{HELD_OUT}.npz"):
            return {}
        task = build.context.task
        samples, is_train = _joined(task)
        groups = self._groups(build, samples)
        is_held_out = deal_groups(groups, samples.labels, is_train, self.folds, task.kind) == self.fold
        if not is_held_out.any():
            raise InputError(
                f"task {task.name!r} has too few subgroups to hold out fold {self.fold + 1} of {self.folds}; "
                "needed: at least two of every class"
            )
        inputs = build.context.joined(SPLITS)
        trained = np.flatnonzero(is_train & ~is_held_out)
        phase = Phase("train", (Split.TRAIN,), ())
        network = Training(
            build, phase, inputs.take(torch.from_numpy(trained)), samples.labels[trained]
        ).trained_network()
        grouped = replace(samples, groups=groups)
        for name, is_predicted in ((FAMILIAR, ~is_train & ~is_held_out), (HELD_OUT, is_held_out)):
            rows = np.flatnonzero(is_predicted)
            if len(rows):
                of_rows = inputs.take(torch.from_numpy(rows))
                build.draft.save_predictions(name, build.predict(network, name, of_rows, grouped.take(rows)))
        return {}

    def _groups(self, build: "Build", samples: Samples) -> NDArray[np.str_]:
        """The task's own subgroups, or clusters of a network's features where it names none."""
        from surefoot.lab.training.predict import network_features, predict

        context = build.context
        if self.teachers is None:
            if samples.groups is None:
                raise InputError(
                    f"task {context.task.name!r} names no subgroups; needed: a network, to cluster features"
                )
            return samples.groups
        (network, *_) = build.teachers(build.phases[0])  # the training that has not seen val
        inputs = context.joined(SPLITS)
        features = predict([network], inputs, context.device, predictor=network_features)[0]
        return cluster(features, samples.labels, 2 * self.folds, context.task.kind)


def all_folds(recipe: Recipe, task: Task, folds: int) -> tuple[HeldOut, ...]:
    """A variant per fold: of the task's own subgroups, or of clusters of the first network's features."""
    samples, is_train = _joined(task)
    if samples.groups is not None:
        named = min(folds, len(np.unique(samples.groups)))
        if named >= 2:
            fold = deal_groups(samples.groups, samples.labels, is_train, named, task.kind)
            used = sorted(set(fold.tolist()) - {NEVER})
            if len(used) >= 2:
                return tuple(HeldOut(fold=each, folds=named) for each in used)
    first = Teachers(recipe, (0,))
    return tuple(HeldOut(fold=each, folds=folds, teachers=first) for each in range(folds))


def _joined(task: Task) -> tuple[Samples, NDArray[np.bool_]]:
    """The samples of train and val without their inputs, and which of them are train's."""
    parts = [task.splits[split] for split in SPLITS]
    groups = [part.groups for part in parts if part.groups is not None]
    samples = Samples(
        ids=np.concatenate([part.ids for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        inputs=np.zeros((sum(map(len, parts)), 0)),
        groups=np.concatenate(groups) if len(groups) == len(parts) else None,
    )
    return samples, np.arange(len(samples)) < len(parts[0])


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
    import torch

    from surefoot.lab.training.data import generator

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
