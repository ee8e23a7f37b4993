"""The training loop: exact to resume at any step, and never waiting for the host within an epoch.

Whatever is random is seeded from the epoch's or the step's own number, so a run that goes on from a
checkpoint draws what it would have drawn. How a step is carried out on a CPU and on a GPU is in `steps`.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.recipes import Recipe
from surefoot.seeds import derive_seed, generator
from surefoot.training.batches import Inputs, fetched
from surefoot.training.objectives import Objective
from surefoot.training.steps import CapturedStepper, Stepper, arithmetic

SECONDS_BETWEEN_CHECKPOINTS = 20.0
EIGHTS = 8  # a GPU's batches come in these, so that one compilation serves nearly all networks of a task


@dataclass(frozen=True)
class Progress:
    """Where a training stands after an epoch."""

    epoch: int  # finished, from 1
    epochs: int
    loss: float
    seconds: float  # that this epoch took, or the part of it since going on


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that is needed to go on as if nothing had happened."""

    epoch: int
    step: int  # the next one in that epoch
    weights: dict[str, Tensor]
    momentum: list[Tensor]
    loss: float  # summed over the steps of the epoch so far


class StoppedError(Exception):
    """Training was asked to stop; its last checkpoint is where it stands."""


@dataclass(frozen=True)
class Hooks:
    """What a training tells of itself, and how it is told to stop."""

    progress: Callable[[Progress], None] = lambda _: None
    save: Callable[[Checkpoint], None] = lambda _: None
    must_stop: Callable[[], bool] = lambda: False


class Views(Protocol):
    """Where the random numbers of an epoch's views come from."""

    def begin(self, epoch: int, batches: Sequence[Tensor], /) -> Tensor:
        """Those of each batch: (steps, numbers, batch)."""
        ...


@dataclass(frozen=True, eq=False)
class FreshViews:
    """Drawn anew for each epoch."""

    inputs: Inputs
    seed: int

    def begin(self, epoch: int, batches: Sequence[Tensor]) -> Tensor:
        """All of the epoch's at once."""
        random = generator(self.seed, "views", epoch)
        return self.inputs.draws(len(batches), len(batches[0]), random)


@dataclass(frozen=True)
class Unlabelled:
    """The last rows of the inputs, where they have no labels, and how many go with each labelled one."""

    rows: int
    share: float


def train(
    network: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    objective: Objective,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device,
    hooks: Hooks = Hooks(),  # noqa: B008  frozen
    checkpoint: Checkpoint | None = None,
    rate: Callable[[int], float] | None = None,
    unlabelled: Unlabelled | None = None,
    views: Views | None = None,
) -> None:
    """Train a network in place; `labels` go by the rows of `inputs`, `rate` replaces the recipe's."""
    beside = unlabelled or Unlabelled(0, 0.0)
    inputs, labels = inputs.settled().on(device), labels.to(device)
    views = views or FreshViews(inputs, seed)
    stepper = (CapturedStepper if device.type == "cuda" else Stepper)(
        network, inputs, labels, objective, recipe
    )
    start, first_step, so_far = 0, 0, 0.0
    if checkpoint is not None:
        start, first_step, so_far = checkpoint.epoch, checkpoint.step, checkpoint.loss
        stepper.restore(checkpoint.weights, checkpoint.momentum)
    multiple = EIGHTS if device.type == "cuda" else 1
    saved_at = time.monotonic()
    network.train()
    with arithmetic(device), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for epoch in range(start, recipe.epochs):
            began = time.monotonic()
            stepper.set_rate((rate or recipe.rate)(epoch))
            order = generator(seed, "order", epoch)
            batches = epoch_batches(
                len(inputs) - beside.rows, recipe.batch, order, beside=beside, multiple=multiple
            )
            draws = views.begin(epoch, batches).to(device)
            stepper.total.fill_(so_far)
            for step, (rows, raw) in enumerate(fetched(inputs, batches[first_step:], device), first_step):
                stepper.step(rows, raw, draws[step], derive_seed(seed, epoch, step))
                stop = hooks.must_stop()
                if stop or time.monotonic() - saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                    hooks.save(Checkpoint(epoch, step + 1, *stepper.state(), float(stepper.total)))
                    saved_at = time.monotonic()
                if stop:
                    raise StoppedError
            mean = float(stepper.total) / len(batches)
            _refuse_divergence(mean, epoch, recipe)
            hooks.progress(Progress(epoch + 1, recipe.epochs, mean, time.monotonic() - began))
            first_step, so_far = 0, 0.0


def epoch_batches(
    n: int, batch: int, order: torch.Generator, *, beside: Unlabelled | None = None, multiple: int = 1
) -> list[Tensor]:
    """All n rows in a new order, in as few even batches as none is above `batch`.

    Where there are several, their size is a multiple of `multiple`, if `batch` allows it. What is missing to
    that is filled up from the epoch's first rows. Unlabelled rows, which come after the n, are added to each
    batch in their share, in an order of their own.
    """
    rows = torch.randperm(n, generator=order)
    count = math.ceil(n / batch)
    size = math.ceil(n / count)
    if count > 1:
        size = min(batch, math.ceil(size / multiple) * multiple)
    batches = list(torch.split(torch.cat([rows, rows[: count * size - n]]), size))
    if beside is None or not beside.rows:
        return batches
    more = max(1, round(beside.share * size))
    rounds = math.ceil(count * more / beside.rows)
    drawn = torch.cat([torch.randperm(beside.rows, generator=order) for _ in range(rounds)]) + n
    return [torch.cat([rows, drawn[i * more : (i + 1) * more]]) for i, rows in enumerate(batches)]


def _refuse_divergence(loss: float, epoch: int, recipe: Recipe) -> None:
    if not abs(loss) < float("inf"):
        raise InputError(
            f"training diverged in epoch {epoch + 1} of {recipe.epochs}: the loss is {loss} at learning rate "
            f"{recipe.rate(epoch):g}; try a lower one, such as {recipe.learning_rate / 10:g}"
        )
