"""Networks trained without some familiar subgroups, which they then predict; nothing unfamiliar is seen."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.recipes.variants import HeldOut
from surefoot.tasks.task import Samples, Split
from surefoot.training.data import joined
from surefoot.training.folds import cluster, deal_groups
from surefoot.training.losses import Classification
from surefoot.training.predict import features, predict
from surefoot.workers.build import Build, phases, predictions_of, restored
from surefoot.workers.trained import answer, trained_on

HELD_OUT = "held_out"
SPLITS = (Split.TRAIN, Split.VAL)


def train_and_predict_held_out(build: Build) -> None:
    """Train on train less one fold's subgroups; predict those subgroups' samples of train and val."""
    variant, task, context = build.spec.recipe.variant, build.context.task, build.context
    assert isinstance(variant, HeldOut)
    if build.draft.has(f"{HELD_OUT}.npz"):
        return
    labels = np.concatenate([task.splits[split].labels for split in SPLITS])
    trained = np.arange(len(labels)) < len(task.splits[Split.TRAIN])
    groups = _groups(build, labels)
    fold = deal_groups(groups, labels, trained, variant.folds, task.kind)
    held = fold == variant.fold
    if not held.any():
        raise InputError(
            f"task {task.name!r} has too few subgroups to hold out fold {variant.fold + 1} of "
            f"{variant.folds}; "
            "needed: at least two of every class"
        )
    inputs = joined([context.inputs[split] for split in SPLITS])
    kept = np.flatnonzero(trained & ~held)
    network = trained_on(
        inputs.take(torch.from_numpy(kept)),
        labels[kept],
        "train",
        build,
        objective=Classification(task.kind),
    )
    rows = np.flatnonzero(held)
    asked = answer(build, HELD_OUT)
    logits = predict([network], inputs.take(torch.from_numpy(rows)), context.device, answer=asked)
    samples = _samples(build, groups, rows)
    build.draft.save_predictions(HELD_OUT, predictions_of(logits, samples, task))


def _groups(build: Build, labels: NDArray[np.int64]) -> NDArray[np.str_]:
    """The task's own subgroups, or clusters of a network's features where it names none."""
    task, context = build.context.task, build.context
    variant = build.spec.recipe.variant
    assert isinstance(variant, HeldOut)
    named = [task.splits[split].groups for split in SPLITS]
    if variant.teachers is None:
        if any(each is None for each in named):
            raise InputError(
                f"task {task.name!r} names no subgroups; needed: a network whose features make them"
            )
        return np.concatenate([each for each in named if each is not None])
    teacher = build.spec.needs()[0]
    first = phases(build.spec.recipe.protocol, task)[0]  # the one that has not seen val
    network = restored(teacher, build.store.weights(teacher, first.weights), context)
    inputs = joined([context.inputs[split] for split in SPLITS])
    seen = predict([network], inputs, context.device, answer=features)[0]
    return cluster(seen, labels, 2 * variant.folds, task.kind)


def _samples(build: Build, groups: NDArray[np.str_], rows: NDArray[np.int64]) -> Samples:
    parts = [build.context.task.splits[split] for split in SPLITS]
    whole = Samples(
        ids=np.concatenate([part.ids for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        inputs=np.zeros((len(groups), 0)),
    )
    return replace(whole, groups=groups).take(rows)
