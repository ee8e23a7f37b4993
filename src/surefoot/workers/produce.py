"""One network from its spec to its logits and novelty scores in the store; resumes where it was stopped."""

import platform
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot import __version__
from surefoot.errors import InputError
from surefoot.novelty import Scale, fit_scale, novelty_scores
from surefoot.recipes.recipe import Spec
from surefoot.recipes.variants import Averaged, HeldOut
from surefoot.store.draft import Draft
from surefoot.store.files import novelty_file
from surefoot.store.store import Store
from surefoot.tasks.task import Split
from surefoot.workers.averaged import average_and_predict
from surefoot.workers.build import Build, Listener, TaskContext, phases, restored
from surefoot.workers.held_out import train_and_predict_held_out
from surefoot.workers.trained import train_and_predict


def score_novelty(spec: Spec, context: TaskContext, store: Store, names: tuple[str, ...]) -> None:
    """Compute what is missing of the named scores, over all that the network predicts.

    The scale is that of the samples that the very weights were trained on.
    """
    missing = tuple(name for name in names if not store.has_novelty(spec, name))
    if not missing:
        return
    found: dict[str, dict[str, NDArray[np.float64]]] = {name: {} for name in missing}
    for phase in phases(spec.recipe.protocol, context.task):
        network = restored(spec, store.weights(spec, phase.weights), context)
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
                found[name][split] = by_split[split]
                found[name][f"{split}_scale"] = np.array([scale.low, scale.high])
    for name, arrays in found.items():
        store.save_extra_arrays(spec, novelty_file(name), arrays)


def stored_novelty(
    spec: Spec, store: Store, name: str, split: Split
) -> tuple[NDArray[np.float64], Scale] | None:
    """A score as computed, and the scale that makes it novelty from 0 to 1; None where it is missing."""
    arrays = store.extra_arrays(spec, novelty_file(name))
    if arrays is None or split not in arrays:
        return None
    low, high = arrays[f"{split}_scale"]
    return arrays[split], Scale(float(low), float(high))


def produce(spec: Spec, context: TaskContext, store: Store, *, listener: Listener = Listener()) -> None:  # noqa: B008
    """Make what is missing of a network; `ClaimedError` if another process is at it."""
    if store.is_done(spec):
        return
    for teacher in spec.needs():
        if not store.is_done(teacher):
            raise InputError(
                f"a network made from others needs the one of {spec.task} with seed {teacher.seed} first; "
                f"it is not in {store.root}"
            )
    with store.claim(spec) as draft:
        if store.is_done(spec):  # by another process, since we looked
            draft.discard()
            return
        build = Build(spec, context, store, draft, listener)
        variant, found = spec.recipe.variant, {}
        if isinstance(variant, Averaged):
            found = average_and_predict(build)
        elif isinstance(variant, HeldOut):
            train_and_predict_held_out(build)
        else:
            train_and_predict(build)
        draft.finish(_facts(spec, context, draft) | found)


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
