"""What building a network needs besides its spec."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from surefoot.errors import InputError
from surefoot.networks.network import Network
from surefoot.predictions.predictions import Predictions
from surefoot.recipes.recipe import Protocol, Spec
from surefoot.store.draft import Draft
from surefoot.store.store import Store
from surefoot.tasks import task_named
from surefoot.tasks.task import Samples, Split, Task
from surefoot.training.data import Inputs, task_inputs
from surefoot.training.initial import drawn_network
from surefoot.training.loop import Progress
from surefoot.workers.jobs import WorkOrder

TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


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


@dataclass(frozen=True, eq=False)
class TaskContext:
    """The task, its samples, a device, pretrained weights."""

    task: Task
    inputs: Mapping[Split, Inputs]
    device: torch.device
    weights: Path | None = None

    @staticmethod
    def open(order: WorkOrder) -> "TaskContext":
        """Find the task and decode its images, or find them decoded."""
        task = task_named(order.task, root=None if order.root is None else Path(order.root))
        inputs = task_inputs(task, order.jobs[0].recipe, cache=order.cache_path)
        return TaskContext(task, inputs, torch.device(order.device), order.weights_path)


@dataclass(frozen=True)
class Listener:
    """Who hears of progress and of pretrained weights, and says when to stop."""

    progress: Callable[[str, Progress], None] = lambda _phase, _progress: None
    weights: Callable[[str], None] = lambda _: None
    must_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class Build:
    """One network in the making."""

    spec: Spec
    context: TaskContext
    store: Store
    draft: Draft
    listener: Listener


def restored(spec: Spec, weights: dict[str, Tensor], context: TaskContext) -> Network:
    """A network with weights from the store, on the device, in evaluation mode, and to be left as it is."""
    network = drawn_network(spec.recipe, context.task, context.inputs, seed=spec.seed)
    network.load_state_dict(weights)
    for parameter in network.parameters():
        parameter.requires_grad = False
    return network.to(context.device).eval()


def predictions_of(logits: Tensor, samples: Samples, task: Task) -> Predictions:
    """Logits with all that is known of their samples."""
    return Predictions.from_logits(
        logits,
        np.asarray(samples.labels),
        class_names=task.class_names,
        groups=samples.groups,
        ids=samples.ids,
    )
