"""One network from its spec to its logits in the store; goes on where it was stopped."""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from surefoot.engines.orders import Order
from surefoot.errors import InputError
from surefoot.predictions import Predictions
from surefoot.recipes import Protocol, Spec
from surefoot.seeds import derive_seed
from surefoot.store import Draft, Store
from surefoot.tasks import task_named
from surefoot.tasks.base import Split, Task
from surefoot.training.batches import Inputs, joined
from surefoot.training.inputs import task_inputs
from surefoot.training.loop import Hooks, Progress, train
from surefoot.training.objectives import classification_loss
from surefoot.training.predict import predict
from surefoot.training.start import initial_network
from surefoot.version import VERSION

TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


@dataclass(frozen=True, eq=False)
class Workshop:
    """What training takes besides the spec: the task, its samples, a device, pretrained weights."""

    task: Task
    inputs: Mapping[Split, Inputs]
    device: torch.device
    weights: Path | None = None

    @staticmethod
    def open(order: Order) -> "Workshop":
        """Find the task and decode its images, or find them decoded."""
        task = task_named(order.task, root=None if order.root is None else Path(order.root))
        inputs = task_inputs(task, order.recipe, cache=Path(order.cache))
        return Workshop(task, inputs, torch.device(order.device), order.weights_path)


@dataclass(frozen=True)
class Phase:
    """Train on some splits, then predict others."""

    name: str
    trained: tuple[Split, ...]
    predicted: tuple[Split, ...]
    weights: str = "weights"  # what its weights are called

    @property
    def parts(self) -> tuple[str, ...]:
        """The files that it makes."""
        return (f"{self.weights}.safetensors", *(f"{split}.npz" for split in self.predicted))


def phases(protocol: Protocol, task: Task) -> tuple[Phase, ...]:
    """The paper's two trainings, or one that never sees val."""
    if Split.VAL not in task.splits:
        raise InputError(f"task {task.name!r} has no val split; needed: one, to calibrate on")
    tested = tuple(split for split in TESTED if split in task.splits)
    if protocol is Protocol.HOLDOUT:
        return (Phase("train", (Split.TRAIN,), (Split.VAL, *tested)),)
    return (
        Phase("train", (Split.TRAIN,), (Split.VAL,), "weights_train"),
        Phase("final", (Split.TRAIN, Split.VAL), tested),
    )


@dataclass(frozen=True)
class Listener:
    """Who hears of progress, and says when to stop."""

    progress: Callable[[str, Progress], None] = lambda _phase, _progress: None
    must_stop: Callable[[], bool] = lambda: False


def produce(spec: Spec, workshop: Workshop, store: Store, *, listener: Listener = Listener()) -> None:  # noqa: B008
    """Train what is missing of a network; `ClaimedError` if another process is at it."""
    if store.is_done(spec):
        return
    with store.claim(spec) as draft:
        if store.is_done(spec):  # by another process, since we looked
            draft.discard()
            return
        for phase in phases(spec.recipe.protocol, workshop.task):
            if not all(draft.has(part) for part in phase.parts):
                _carry_out(phase, spec, workshop, draft, listener)
        draft.finish(_facts(spec, workshop, draft))


def _carry_out(phase: Phase, spec: Spec, workshop: Workshop, draft: Draft, listener: Listener) -> None:
    network = initial_network(
        spec.recipe, workshop.task, workshop.inputs, seed=spec.seed, weights=workshop.weights
    )
    inputs = joined([workshop.inputs[split] for split in phase.trained])
    labels = np.concatenate([workshop.task.splits[split].labels for split in phase.trained])
    seed = derive_seed(workshop.task.identity, spec.recipe.digest, spec.seed, phase.name)
    began = time.time()

    def tell(progress: Progress) -> None:
        draft.log({"phase": phase.name, **vars(progress), "at": time.time()})
        listener.progress(phase.name, progress)

    train(
        network,
        inputs,
        torch.from_numpy(labels),
        partial(classification_loss, kind=workshop.task.kind),
        spec.recipe,
        seed=seed,
        device=workshop.device,
        hooks=Hooks(tell, partial(draft.save_checkpoint, phase.name), listener.must_stop),
        checkpoint=draft.checkpoint(phase.name),
    )
    weights = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    draft.save_weights(phase.weights, weights)
    for split in phase.predicted:
        draft.save_predictions(split, _predictions(network, workshop, split))
    draft.log({"phase": phase.name, "trained_and_predicted": time.time() - began})


def _predictions(network: nn.Module, workshop: Workshop, split: Split) -> Predictions:
    samples, task = workshop.task.splits[split], workshop.task
    logits = predict([network], workshop.inputs[split], workshop.device)
    return Predictions.from_logits(
        logits, samples.labels, class_names=task.class_names, groups=samples.groups, ids=samples.ids
    )


def _facts(spec: Spec, workshop: Workshop, draft: Draft) -> dict[str, Any]:
    device = workshop.device
    return {
        "surefoot": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "seconds": draft.seconds(),
        "seed": spec.seed,
        "key": spec.key,
    }
