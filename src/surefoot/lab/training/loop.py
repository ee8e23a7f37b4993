"""The training loop: resumes exactly at any step, and never waits for the host within an epoch."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.store.draft import Checkpoint
from surefoot.lab.training.data import Inputs, fetched, generator
from surefoot.lab.training.losses import Objective
from surefoot.runtime import derive_seed, one_thread

MOST_COMPILATIONS = 512  # of one function, in one process
WARM_UP = 3  # steps before a capture, for compilation and the choice of convolution algorithms
AVERAGE_WARM_UP = 10  # after t steps the average's decay is at most (1 + t) / (10 + t)


class Stepper:
    """Executes steps one operation after another. `total` sums the losses, on the network's device."""

    def __init__(
        self, network: nn.Module, inputs: Inputs, labels: Tensor, objective: Objective, recipe: Recipe
    ) -> None:
        self.device = labels.device
        self.network = network.to(self.device)
        self.inputs, self.labels, self.objective = inputs, labels, objective.on(self.device)
        self.recipe = recipe
        self.total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.forward: Callable[[Tensor], Any] = objective.part(network)
        self.rate = torch.tensor(recipe.learning_rate, device=self.device)
        self.optimiser = torch.optim.SGD(
            [parameter for parameter in network.parameters() if parameter.requires_grad],
            lr=self.rate if self.device.type == "cuda" else recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        for parameter in self._parameters():  # as the first step would create them, but before a capture
            self.optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.average: dict[str, Tensor] = {}  # of the weights and of BatchNorm's statistics
        if recipe.weight_average:
            self.average = {name: value.clone() for name, value in self._floating().items()}
        self.before: list[list[Tensor]] = []  # weights and buffers during a sharpness-aware step, by type
        self.average_share = torch.zeros((), device=self.device)  # of the current weights in the average

    def begin_step(self, rate: float, steps_before: int) -> None:
        """Set the learning rate of the next step, and the share that its weights get in the average."""
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # where a captured graph reads it
            else:
                group["lr"] = rate
        decay = min(self.recipe.weight_average, (1 + steps_before) / (AVERAGE_WARM_UP + steps_before))
        self.average_share.fill_(1 - decay)

    def step(self, rows: Tensor, raw: Tensor, draws: Tensor, seed: int) -> None:
        """One batch: its rows, their raw samples, its random numbers, and a seed for dropout and noise."""
        torch.default_generator.manual_seed(seed)  # always: a user's network may draw from it
        self._execute(rows.to(self.device), raw, draws)

    def _execute(self, rows: Tensor, raw: Tensor, draws: Tensor) -> None:
        with torch.no_grad():
            views = self.inputs.training_views(raw, rows, draws[:-1] if mixing(self.recipe) else draws)
        value = self._backward(views, rows, draws)
        if self.recipe.sharpness:
            with self._uphill():
                self._backward(views, rows, draws)
        self.optimiser.step()
        if self.average:
            with torch.no_grad():
                averages, weights = list(self.average.values()), list(self._floating().values())
                differences = torch._foreach_sub(weights, averages)
                torch._foreach_mul_(differences, self.average_share)
                torch._foreach_add_(averages, differences)
        self.total += value

    def _backward(self, views: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        """The loss of a batch; its gradients are left in the parameters."""
        labels = self.labels[rows]
        on_gpu = self.device.type == "cuda"
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            if mixing(self.recipe):
                value = self._mixed_loss(views, rows, labels, share=draws[-1, 0])
            else:
                value = self.objective(self.forward(views), views, rows, labels)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(value)
        return value.detach()

    def _mixed_loss(self, views: Tensor, rows: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        """Mixup, each sample with the next one: share * loss(its labels) + (1 - share) * loss(the other's).

        Zhang et al., ICLR 2018. RegMixup adds it to the loss of the samples as they are; both are one batch
        for the network (Pinto et al., NeurIPS 2022).
        """
        mixed = (share * views + (1 - share) * views.roll(1, 0)).to(views.dtype)
        mixed = mixed.contiguous(memory_format=torch.channels_last) if views.ndim == 4 else mixed
        value: Tensor | float = 0.0
        if self.recipe.regmixup:
            both = self.forward(torch.cat([views, mixed]))
            count = len(views)
            first, outputs = (
                tuple(part[half] for part in both) if isinstance(both, tuple) else both[half]
                for half in (slice(count), slice(count, None))
            )
            value = self.objective(first, views, rows, labels)
        else:
            outputs = self.forward(mixed)
        value = value + share * self.objective(outputs, mixed, rows, labels)
        return value + (1 - share) * self.objective(outputs, mixed, rows.roll(1), labels.roll(1, 0))

    @contextmanager
    def _uphill(self) -> Iterator[None]:
        """Sharpness-aware minimisation: the weights at w + rho * g / |g| inside, and back at w after.

        The gradients computed inside are the ones that the optimiser uses. BatchNorm's statistics stay those
        of w. Foret et al., ICLR 2021.
        """
        with torch.no_grad():
            parameters = [each for each in self._parameters() if each.grad is not None]
            state = [*parameters, *self.network.buffers()]
            kinds = [
                [each for each in state if each.dtype == dtype] for dtype in {t.dtype: None for t in state}
            ]
            if not self.before:  # allocated once, and copied in one operation per type
                self.before = [[torch.empty_like(each) for each in kind] for kind in kinds]
            for saved, kind in zip(self.before, kinds, strict=True):
                torch._foreach_copy_(saved, kind)
            gradients = [cast(Tensor, each.grad) for each in parameters]
            norm = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(gradients))))
            torch._foreach_mul_(gradients, self.recipe.sharpness / (norm + 1e-12))
            torch._foreach_add_(parameters, gradients)
        yield
        with torch.no_grad():
            for saved, kind in zip(self.before, kinds, strict=True):
                torch._foreach_copy_(kind, saved)

    def finish(self) -> None:
        """Give the network the averaged weights, where an average was requested."""
        with torch.no_grad():
            for name, value in (self._floating() if self.average else {}).items():
                value.copy_(self.average[name])

    def state(self) -> dict[str, Any]:
        """Weights, momentum and the average of the weights, copied to the host: parts of a checkpoint."""
        weights = self.network.state_dict()
        return {
            "weights": {name: value.detach().cpu().clone() for name, value in weights.items()},
            "momentum": [self._momentum(each).detach().cpu().clone() for each in self._parameters()],
            "average": {name: value.cpu().clone() for name, value in self.average.items()},
        }

    def restore(self, weights: dict[str, Tensor], momentum: list[Tensor], average: dict[str, Tensor]) -> None:
        """Copy weights, momentum and average back, into the same memory."""
        self.network.load_state_dict(weights)
        for parameter, value in zip(self._parameters(), momentum, strict=True):
            self._momentum(parameter).copy_(value)
        for name, value in average.items():
            self.average[name].copy_(value)

    def _floating(self) -> dict[str, Tensor]:
        """The weights and BatchNorm's statistics, without its counters."""
        state = self.network.state_dict()
        return {name: value.detach() for name, value in state.items() if value.is_floating_point()}

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimiser.param_groups for parameter in group["params"]]

    def _momentum(self, parameter: Tensor) -> Tensor:
        return cast(Tensor, self.optimiser.state[parameter]["momentum_buffer"])


class CapturedStepper(Stepper):
    """The same on a GPU, captured as a graph and replayed."""

    def __init__(
        self, network: nn.Module, inputs: Inputs, labels: Tensor, objective: Objective, recipe: Recipe
    ) -> None:
        import torch._dynamo  # takes seconds, and only a GPU's steps are compiled

        # A worker trains many networks; beyond torch's limit of 8 compilations it would continue uncompiled.
        config: Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, MOST_COMPILATIONS)
        config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 8 * MOST_COMPILATIONS)
        cast(Any, network).to(memory_format=torch.channels_last)  # not in torch's types
        super().__init__(network, inputs, labels, objective, recipe)
        self.forward = cast(Callable[[Tensor], Any], torch.compile(objective.part(network), dynamic=False))
        self.graph: torch.cuda.CUDAGraph | None = None
        self.arguments: tuple[Tensor, ...] = ()  # rows, raw samples and draws, where the graph reads them

    def step(self, rows: Tensor, raw: Tensor, draws: Tensor, seed: int) -> None:
        """Copy the arguments to where the graph reads them, and replay."""
        arguments = (rows.to(self.device, non_blocking=True), raw, draws)
        if self.graph is None:
            self._capture(arguments)
        for argument, new in zip(self.arguments, arguments, strict=True):
            argument.copy_(new, non_blocking=True)
        torch.cuda.manual_seed(seed)
        assert self.graph is not None
        self.graph.replay()

    def _capture(self, arguments: tuple[Tensor, ...]) -> None:
        """Warm up on another stream, restore weights and momentum, and record a step."""
        self.arguments = tuple(tensor.clone() for tensor in arguments)
        state, total = self.state(), self.total.clone()
        stream = cast(Any, torch.cuda.Stream)()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._execute(*self.arguments)
        torch.cuda.current_stream().wait_stream(stream)
        self.restore(**state)
        self.total.copy_(total)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._execute(*self.arguments)


@contextmanager
def arithmetic(device: torch.device) -> Iterator[None]:
    """One thread on a CPU, where sums would otherwise depend on how many there are; TF32 on a GPU.

    No search for the fastest convolutions: its outcome is random, so runs would differ, and it gains nothing.
    """
    if device.type == "cpu":
        with one_thread():
            yield
        return
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


SECONDS_BETWEEN_CHECKPOINTS = 20.0
GPU_BATCH_MULTIPLE = 8  # so that one compilation serves nearly all networks of a task


@dataclass(frozen=True)
class Progress:
    """Where a training stands after an epoch."""

    epoch: int  # finished, from 1
    epochs: int
    loss: float
    seconds: float  # of this epoch, or of the part since it was resumed


class StoppedError(Exception):
    """Training was stopped on request, after saving a checkpoint."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a training: progress, checkpoints, and whether to stop."""

    progress: Callable[[Progress], None] = lambda _: None
    save: Callable[[Checkpoint], None] = lambda _: None
    must_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class FreshViews:
    """Views drawn independently in each epoch."""

    inputs: Inputs
    seed: int

    def begin(self, epoch: int, batches: Sequence[Tensor]) -> Tensor:
        """The random numbers of each batch's views: (steps, numbers, batch)."""
        random = generator(self.seed, "views", epoch)
        return self.inputs.draws(len(batches), len(batches[0]), random)


@dataclass(frozen=True)
class Unlabelled:
    """How many of the last rows of the inputs have no labels, and how many go with each labelled one."""

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
    rate: Callable[[float], float] | None = None,
    unlabelled: Unlabelled | None = None,
) -> None:
    """Train a network in place; `labels` are in the order of `inputs`, `rate` replaces the recipe's."""
    labelled = len(inputs) - (0 if unlabelled is None else unlabelled.rows)
    inputs, labels = inputs.with_fixed_views().on(device), labels.to(device)
    views = objective.views or FreshViews(inputs, seed)
    stepper = (CapturedStepper if device.type == "cuda" else Stepper)(
        network, inputs, labels, objective, recipe
    )
    first_epoch, first_step, loss = 0, 0, 0.0
    if checkpoint is not None:
        first_epoch, first_step, loss = checkpoint.epoch, checkpoint.step, checkpoint.loss
        stepper.restore(checkpoint.weights, checkpoint.momentum, checkpoint.average)
    saved_at = time.monotonic()
    network.train()
    with arithmetic(device), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for epoch in range(first_epoch, recipe.epochs):
            started = time.monotonic()
            order = generator(seed, "order", epoch)
            batches = epoch_batches(
                labelled, recipe.batch, order, unlabelled=unlabelled, multiple=batch_multiple(device)
            )
            draws = with_mixing_shares(views.begin(epoch, batches), recipe, derive_seed(seed, "mix", epoch))
            draws = draws.to(device)
            stepper.total.fill_(loss)
            for step, (rows, raw) in enumerate(fetched(inputs, batches[first_step:], device), first_step):
                stepper.begin_step(
                    (rate or recipe.rate)(epoch + step / len(batches)), epoch * len(batches) + step
                )
                stepper.step(rows, raw, draws[step], derive_seed(seed, epoch, step))
                stop = hooks.must_stop()
                if stop or time.monotonic() - saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                    hooks.save(Checkpoint(epoch, step + 1, loss=float(stepper.total), **stepper.state()))
                    saved_at = time.monotonic()
                if stop:
                    raise StoppedError
            mean = float(stepper.total) / len(batches)
            if not math.isfinite(mean):
                lower = f"a lower one, such as {recipe.learning_rate / 10:g}"
                smaller = f", or a sharpness below {recipe.sharpness:g}" if recipe.sharpness else ""
                raise InputError(
                    f"training diverged in epoch {epoch + 1} of {recipe.epochs}: the loss is {mean} at "
                    f"learning rate {recipe.rate(epoch):g}; try {lower}{smaller}"
                )
            hooks.progress(Progress(epoch + 1, recipe.epochs, mean, time.monotonic() - started))
            first_step, loss = 0, 0.0
    stepper.finish()


def mixing(recipe: Recipe) -> bool:
    """Whether samples are mixed."""
    return bool(recipe.mixup or recipe.regmixup)


def with_mixing_shares(draws: Tensor, recipe: Recipe, seed: int) -> Tensor:
    """An epoch's random numbers, after them the mixing share of each batch where samples are mixed."""
    if not mixing(recipe):
        return draws
    alpha = recipe.mixup or recipe.regmixup
    shares = np.random.default_rng(seed).beta(alpha, alpha, size=(len(draws), 1, 1)).astype(np.float32)
    return torch.cat([draws, torch.from_numpy(shares).expand(-1, 1, draws.shape[2])], dim=1)


def batch_multiple(device: torch.device) -> int:
    """What the size of the labelled part of a batch is a multiple of."""
    return GPU_BATCH_MULTIPLE if device.type == "cuda" else 1


def batch_sizes(
    n: int, batch: int, *, unlabelled: Unlabelled | None = None, multiple: int = 1
) -> tuple[int, int]:
    """How many labelled and how many unlabelled rows each batch of `epoch_batches` has."""
    count = math.ceil(n / batch)
    size = math.ceil(n / count)
    if count > 1:
        size = min(batch, math.ceil(size / multiple) * multiple)
    if unlabelled is None or not unlabelled.rows:
        return size, 0
    return size, max(1, round(unlabelled.share * size))


def epoch_batches(
    n: int, batch: int, order: torch.Generator, *, unlabelled: Unlabelled | None = None, multiple: int = 1
) -> list[Tensor]:
    """All n rows in random order, in the fewest batches of one size that is at most `batch`.

    Where there are several, their size is a multiple of `multiple`, if `batch` allows it. The last one is
    filled up from the epoch's first rows. Unlabelled rows, which come after the n, are added to each batch in
    their share, in a random order of their own.
    """
    rows = torch.randperm(n, generator=order)
    size, more = batch_sizes(n, batch, unlabelled=unlabelled, multiple=multiple)
    count = math.ceil(n / batch)
    batches = list(torch.split(torch.cat([rows, rows[: count * size - n]]), size))
    if unlabelled is None or not more:
        return batches
    rounds = math.ceil(count * more / unlabelled.rows)
    drawn = torch.cat([torch.randperm(unlabelled.rows, generator=order) for _ in range(rounds)]) + n
    return [torch.cat([rows, drawn[i * more : (i + 1) * more]]) for i, rows in enumerate(batches)]
