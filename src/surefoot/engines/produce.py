"""One network from its spec to its logits in the store; goes on where it was stopped."""

import platform
from typing import Any

import torch

from surefoot.engines.averaged import average_and_predict
from surefoot.engines.held_out import train_and_predict_held_out
from surefoot.engines.making import Listener, Making, Workshop
from surefoot.engines.trained import train_and_predict
from surefoot.errors import InputError
from surefoot.recipes import Averaged, HeldOut, Spec
from surefoot.store import Draft, Store
from surefoot.version import VERSION


def produce(spec: Spec, workshop: Workshop, store: Store, *, listener: Listener = Listener()) -> None:  # noqa: B008
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
        making = Making(spec, workshop, store, draft, listener)
        variant, found = spec.recipe.variant, {}
        if isinstance(variant, Averaged):
            found = average_and_predict(making)
        elif isinstance(variant, HeldOut):
            train_and_predict_held_out(making)
        else:
            train_and_predict(making)
        draft.finish(_facts(spec, workshop, draft) | found)


def _facts(spec: Spec, workshop: Workshop, draft: Draft) -> dict[str, Any]:
    device = workshop.device
    return {
        "surefoot": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "seconds": draft.logged("seconds"),
        "seconds_per_sample": draft.logged("prediction_seconds") / max(1.0, draft.logged("predicted")),
        "seed": spec.seed,
        "key": spec.key,
    }
