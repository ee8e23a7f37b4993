"""One network from its spec to its logits and novelty scores in the store; resumes where it was stopped."""

import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot import __version__
from surefoot.errors import InputError
from surefoot.novelty import Scale, fit_scale, novelty_scores
from surefoot.recipes.recipe import Spec
from surefoot.store.draft import Draft
from surefoot.store.store import Store
from surefoot.tasks import task_named
from surefoot.tasks.task import Split
from surefoot.training.data import task_inputs
from surefoot.variants.build import Build, Listener, TaskContext, phases
from surefoot.workers.jobs import WorkOrder


def open_context(order: WorkOrder) -> TaskContext:
    """The task of an order, its images decoded or read from the cache."""
    task = task_named(order.task, root=None if order.root is None else Path(order.root))
    inputs = task_inputs(task, order.jobs[0].recipe, cache=order.cache_path)
    return TaskContext(task, inputs, torch.device(order.device), order.weights_path)


def score_novelty(spec: Spec, context: TaskContext, store: Store, names: tuple[str, ...]) -> None:
    """Compute the named scores that are missing, for all splits that the network predicts.

    The scale is that of the samples on which these weights were trained.
    """
    missing = tuple(name for name in names if not store.has_novelty(spec, name))
    if not missing:
        return
    files: dict[str, dict[str, NDArray[np.float64]]] = {name: {} for name in missing}
    for phase in phases(spec.recipe.protocol, context.task):
        network = context.restored(spec, store.weights(spec, phase.weights))
        splits = (*phase.trained, *phase.predicted)
        scores = novelty_scores(
            network,
            {str(split): context.inputs[split] for split in splits},
            reference=[str(split) for split in phase.trained],
            kind=context.task.kind,
            device=context.device,
            names=missing,
        )
        for name, by_split in scores.items():
            scale = fit_scale(np.concatenate([by_split[split] for split in phase.trained]))
            for split in phase.predicted:
                files[name][split] = by_split[split]
                files[name][f"{split}_scale"] = np.array([scale.low, scale.high])
    for name, arrays in files.items():
        store.save_novelty(spec, name, arrays)


def stored_novelty(
    spec: Spec, store: Store, name: str, split: Split
) -> tuple[NDArray[np.float64], Scale] | None:
    """A score as computed, and the scale that makes it novelty from 0 to 1; None where it is missing."""
    arrays = store.novelty(spec, name)
    if arrays is None or split not in arrays:
        return None
    low, high = arrays[f"{split}_scale"]
    return arrays[split], Scale(float(low), float(high))


def produce(spec: Spec, context: TaskContext, store: Store, *, listener: Listener = Listener()) -> None:  # noqa: B008
    """Build a network, or the rest of it; `ClaimedError` if another process is building it."""
    if store.is_done(spec):
        return
    for teacher in spec.needs():
        if not store.is_done(teacher):
            raise InputError(
                f"a network made from others needs the one of {spec.task} with seed {teacher.seed} first; "
                f"it is not in {store.root}"
            )
    with store.claim(spec) as draft:
        if store.is_done(spec):  # by another process since the first check
            draft.discard()
            return
        build = Build(spec, context.for_recipe(spec.recipe), store, draft, listener)
        facts = build.variant.produce(build)
        draft.finish(_facts(spec, context, draft) | facts)


def _facts(spec: Spec, context: TaskContext, draft: Draft) -> dict[str, Any]:
    device = context.device
    return {
        "surefoot": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "seconds": draft.logged("seconds"),
        "seconds_per_sample": draft.logged("prediction_seconds") / max(1.0, draft.logged("predicted")),
        "seed": spec.seed,
        "key": spec.key,
    }
