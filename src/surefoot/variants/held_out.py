"""Held-out networks: trained without some familiar subgroups, which they then predict."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError, require_number, require_whole
from surefoot.recipes.recipe import Recipe, Teachers
from surefoot.tasks.task import Samples, Split, Task
from surefoot.training.folds import NEVER, cluster, deal_groups
from surefoot.variants.base import Variant

if TYPE_CHECKING:
    from surefoot.variants.build import Build

HELD_OUT = "held_out"  # the name of their predictions
SPLITS = (Split.TRAIN, Split.VAL)


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

    def produce(self, build: "Build") -> dict[str, Any]:
        """Train on train less one fold's subgroups; predict those subgroups' samples of train and val."""
        import torch

        from surefoot.variants.build import Phase, Training

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
        trained, predicted = (np.flatnonzero(rows) for rows in (is_train & ~is_held_out, is_held_out))
        phase = Phase("train", (Split.TRAIN,), ())
        network = Training(
            build, phase, inputs.take(torch.from_numpy(trained)), samples.labels[trained]
        ).trained_network()
        predictions = build.predict(
            network,
            HELD_OUT,
            inputs.take(torch.from_numpy(predicted)),
            replace(samples, groups=groups).take(predicted),
        )
        build.draft.save_predictions(HELD_OUT, predictions)
        return {}

    def _groups(self, build: "Build", samples: Samples) -> NDArray[np.str_]:
        """The task's own subgroups, or clusters of a network's features where it names none."""
        from surefoot.training.predict import network_features, predict

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
