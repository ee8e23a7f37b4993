"""The training loop: exact to resume at any step, and never waiting for the host within an epoch.

Whatever is random in a step is seeded from the step's own number, so a run that goes on from a checkpoint
draws what it would have drawn. On a CPU the arithmetic is float32 on one thread, and the same to the bit; on
a GPU it is bfloat16 in autocast, channels last, compiled.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.recipes import Recipe
from surefoot.seeds import derive_seed, generator
from surefoot.training.batches import Inputs, fetched

SECONDS_BETWEEN_CHECKPOINTS = 20.0

Loss = Callable[[Tensor, Tensor], Tensor]


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
    network.to(device)
    if device.type == "cuda":
        cast(Any, network).to(memory_format=torch.channels_last)  # torch's types have no such word
    optimiser = _optimiser(network, recipe, device)
    start, first_step, so_far = 0, 0, 0.0
    if checkpoint is not None:
        start, first_step, so_far = checkpoint.epoch, checkpoint.step, checkpoint.loss
        restore(network, optimiser, checkpoint)
    saved_at = time.monotonic()
    forward = torch.compile(network) if device.type == "cuda" else network
    network.train()
    with _arithmetic(device), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for epoch in range(start, recipe.epochs):
            for group in optimiser.param_groups:
                group["lr"] = (rate or recipe.rate)(epoch)
            began = time.monotonic()
            batches = epoch_batches(len(inputs), recipe.batch, generator(seed, "order", epoch))
            total = torch.tensor(so_far, dtype=torch.float64, device=device)
            for step, (rows, raw) in enumerate(fetched(inputs, batches[first_step:], device), first_step):
                total += _step(
                    forward, inputs, rows, raw, labels, loss, optimiser, derive_seed(seed, epoch, step)
                )
                stop = hooks.must_stop()
                if stop or time.monotonic() - saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                    hooks.save(take(network, optimiser, epoch, step + 1, float(total)))
                    saved_at = time.monotonic()
                if stop:
                    raise StoppedError
            mean = float(total) / len(batches)
            _refuse_divergence(mean, epoch, recipe)
            hooks.progress(Progress(epoch + 1, recipe.epochs, mean, time.monotonic() - began))
            first_step, so_far = 0, 0.0


def epoch_batches(n: int, batch: int, order: torch.Generator) -> list[Tensor]:
    """All rows in a new order, in batches of one size; the last is filled up from the epoch's first rows."""
    rows = torch.randperm(n, generator=order)
    batch = min(batch, n)
    missing = -n % batch
    return list(torch.split(torch.cat([rows, rows[:missing]]), batch))


def take(
    network: nn.Module, optimiser: torch.optim.Optimizer, epoch: int, step: int, loss: float
) -> Checkpoint:
    """A checkpoint, copied to the host."""
    weights = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
    state = optimiser.state
    momentum = [state[p]["momentum_buffer"].detach().cpu().clone() for p in _parameters(optimiser)]
    return Checkpoint(epoch, step, weights, momentum, loss)


def restore(network: nn.Module, optimiser: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Put the network and the optimiser back to a checkpoint."""
    network.load_state_dict(checkpoint.weights)
    for parameter, momentum in zip(_parameters(optimiser), checkpoint.momentum, strict=True):
        optimiser.state[parameter]["momentum_buffer"] = momentum.to(parameter.device).clone()


def _step(
    forward: Callable[[Tensor], Tensor],
    inputs: Inputs,
    rows: Tensor,
    raw: Tensor,
    labels: Tensor,
    loss: Loss,
    optimiser: torch.optim.Optimizer,
    seed: int,
) -> Tensor:
    device = labels.device
    torch.manual_seed(seed)  # for dropout; views have their own generator
    rows = rows.to(device, non_blocking=True)
    with torch.no_grad():
        views = inputs.training_views(raw, rows, torch.Generator(device=device).manual_seed(seed))
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
        value = loss(forward(views), labels[rows])
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(value)
    optimiser.step()
    return value.detach().double()


def _optimiser(network: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.SGD:
    return torch.optim.SGD(
        [parameter for parameter in network.parameters() if parameter.requires_grad],
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        fused=device.type == "cuda",
    )


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


@contextmanager
def _arithmetic(device: torch.device) -> Iterator[None]:
    """One thread on a CPU, where sums would otherwise depend on how many there are; TF32 on a GPU."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    if device.type == "cpu":
        torch.set_num_threads(1)
    else:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def _refuse_divergence(loss: float, epoch: int, recipe: Recipe) -> None:
    if not abs(loss) < float("inf"):
        raise InputError(
            f"training diverged in epoch {epoch + 1} of {recipe.epochs}: the loss is {loss} at learning rate "
            f"{recipe.rate(epoch):g}; try a lower one, such as {recipe.learning_rate / 10:g}"
        )
