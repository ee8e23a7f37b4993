"""One network from its spec to its logits in the store; goes on where it was stopped."""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.networks import build_network, load_weights
from surefoot.predictions import LabelKind, Predictions
from surefoot.recipes import Protocol, Recipe, Spec
from surefoot.seeds import derive_seed, generator
from surefoot.store import Draft, Store
from surefoot.tasks.base import Samples, Split, Task
from surefoot.training.batches import Inputs
from surefoot.training.loop import Hooks, Progress, train
from surefoot.training.objectives import classification_loss
from surefoot.training.predict import predict
from surefoot.version import VERSION

TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


@dataclass(frozen=True, eq=False)
class Workshop:
    """What training takes besides the spec: the task, its samples, a device, pretrained weights."""

    task: Task
    inputs: Mapping[Split, Inputs]
    device: torch.device
    weights: Path | None = None


@dataclass(frozen=True)
class Phase:
    """Train on some splits, then predict others."""

    name: str
    trained: tuple[Split, ...]
    predicted: tuple[Split, ...]


def phases(protocol: Protocol, splits: tuple[Split, ...]) -> tuple[Phase, ...]:
    """The paper's two trainings, or one that never sees val."""
    tested = tuple(split for split in TESTED if split in splits)
    if protocol is Protocol.HOLDOUT:
        return (Phase("train", (Split.TRAIN,), (Split.VAL, *tested)),)
    return (
        Phase("train", (Split.TRAIN,), (Split.VAL,)),
        Phase("final", (Split.TRAIN, Split.VAL), tested),
    )


def produce(
    spec: Spec,
    workshop: Workshop,
    store: Store,
    *,
    progress: Callable[[str, Progress], None] = lambda *_: None,
) -> None:
    """Train what is missing of a network; `Claimed` if another process is at it."""
    if store.is_done(spec):
        return
    with store.claim(spec) as draft:
        if store.is_done(spec):  # done by another process since we looked
            draft.discard()
            return
        for phase in phases(spec.recipe.protocol, tuple(workshop.task.splits)):
            if not all(draft.has(f"{split}.npz") for split in phase.predicted):
                _carry_out(phase, spec, workshop, draft, progress)
        draft.finish(_facts(spec, workshop, draft))


def initial_network(
    recipe: Recipe, task: Task, inputs: Inputs, *, seed: int, weights: Path | None
) -> nn.Module:
    """A network as training begins: pretrained where the recipe says so, its last layer drawn anew."""
    raise AssertionError
