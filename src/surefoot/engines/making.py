"""What it takes to make a network besides its spec."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from surefoot.engines.orders import Order
from surefoot.networks import Network
from surefoot.predictions import Predictions
from surefoot.recipes import Spec
from surefoot.store import Draft, Store
from surefoot.tasks import task_named
from surefoot.tasks.base import Samples, Split, Task
from surefoot.training.batches import Inputs
from surefoot.training.inputs import task_inputs
from surefoot.training.loop import Progress
from surefoot.training.start import drawn_network


@dataclass(frozen=True, eq=False)
class Workshop:
    """The task, its samples, a device, pretrained weights."""

    task: Task
    inputs: Mapping[Split, Inputs]
    device: torch.device
    weights: Path | None = None

    @staticmethod
    def open(order: Order) -> "Workshop":
        """Find the task and decode its images, or find them decoded."""
        task = task_named(order.task, root=None if order.root is None else Path(order.root))
        inputs = task_inputs(task, order.jobs[0].recipe, cache=order.cache_path)
        return Workshop(task, inputs, torch.device(order.device), order.weights_path)


@dataclass(frozen=True)
class Listener:
    """Who hears of progress and of pretrained weights, and says when to stop."""

    progress: Callable[[str, Progress], None] = lambda _phase, _progress: None
    weights: Callable[[str], None] = lambda _: None
    must_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class Making:
    """One network in the making."""

    spec: Spec
    workshop: Workshop
    store: Store
    draft: Draft
    listener: Listener


def restored(spec: Spec, weights: dict[str, Tensor], workshop: Workshop) -> Network:
    """A network with weights from the store, on the device, in evaluation mode, and to be left as it is."""
    network = drawn_network(spec.recipe, workshop.task, workshop.inputs, seed=spec.seed)
    network.load_state_dict(weights)
    for parameter in network.parameters():
        parameter.requires_grad = False
    return network.to(workshop.device).eval()


def predictions_of(logits: Tensor, samples: Samples, task: Task) -> Predictions:
    """Logits with all that is known of their samples."""
    return Predictions.from_logits(
        logits,
        np.asarray(samples.labels),
        class_names=task.class_names,
        groups=samples.groups,
        ids=samples.ids,
    )
