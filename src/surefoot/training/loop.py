"""The training loop: exact to resume at any step, and never waiting for the host within an epoch.

Whatever is random is seeded from the epoch's or the step's own number, so a run that goes on from a
checkpoint draws what it would have drawn. How a step is carried out on a CPU and on a GPU is in `steps`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.recipes import Recipe
from surefoot.seeds import derive_seed, generator
from surefoot.training.batches import Inputs, fetched
from surefoot.training.steps import CapturedStepper, Loss, Stepper, arithmetic

SECONDS_BETWEEN_CHECKPOINTS = 20.0


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


def train(
    network: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    loss: Loss,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device,
    hooks: Hooks = Hooks(),  # noqa: B008  frozen
    checkpoint: Checkpoint | None = None,
    rate: Callable[[int], float] | None = None,
) -> None:
    """Train a network in place; `labels` go by the rows of `inputs`, `rate` replaces the recipe's."""
    inputs, labels = inputs.on(device), labels.to(device)
    stepper = (CapturedStepper if device.type == "cuda" else Stepper)(network, inputs, labels, loss, recipe)
    start, first_step, so_far = 0, 0, 0.0
    if checkpoint is not None:
        start, first_step, so_far = checkpoint.epoch, checkpoint.step, checkpoint.loss
        stepper.restore(checkpoint.weights, checkpoint.momentum)
    saved_at = time.monotonic()
    network.train()
    with arithmetic(device), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for epoch in range(start, recipe.epochs):
            began = time.monotonic()
            stepper.set_rate((rate or recipe.rate)(epoch))
            batches = epoch_batches(len(inputs), recipe.batch, generator(seed, "order", epoch))
            draws = inputs.draws(len(batches), len(batches[0]), generator(seed, "views", epoch)).to(device)
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


def epoch_batches(n: int, batch: int, order: torch.Generator) -> list[Tensor]:
    """All rows in a new order, in batches of one size; the last is filled up from the epoch's first rows."""
    rows = torch.randperm(n, generator=order)
    batch = min(batch, n)
    missing = -n % batch
    return list(torch.split(torch.cat([rows, rows[:missing]]), batch))


def _refuse_divergence(loss: float, epoch: int, recipe: Recipe) -> None:
    if not abs(loss) < float("inf"):
        raise InputError(
            f"training diverged in epoch {epoch + 1} of {recipe.epochs}: the loss is {loss} at learning rate "
            f"{recipe.rate(epoch):g}; try a lower one, such as {recipe.learning_rate / 10:g}"
        )
