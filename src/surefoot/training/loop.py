"""The training loop: exact to resume at any step, and never waiting for the host within an epoch."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.recipes.recipe import Recipe
from surefoot.runtime import derive_seed, generator, one_thread
from surefoot.training.data import Inputs, fetched
from surefoot.training.losses import Objective

MOST_COMPILATIONS = 512  # of one function, in one process
WARM_UP = 3  # steps before a capture, for compilation and the choice of convolution algorithms


class Stepper:
    """Carries out steps one operation after another. `total` sums the losses, where the network is."""

    def __init__(
        self, network: nn.Module, inputs: Inputs, labels: Tensor, objective: Objective, recipe: Recipe
    ) -> None:
        self.device = labels.device
        self.network = network.to(self.device)
        self.inputs, self.labels, self.objective = inputs, labels, objective.on(self.device)
        self.total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.forward: Callable[[Tensor], Any] = objective.part(network)
        self.optimiser = torch.optim.SGD(
            [parameter for parameter in network.parameters() if parameter.requires_grad],
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        for parameter in self._parameters():  # as the first step would make them, but there from the start
            self.optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def set_rate(self, rate: float) -> None:
        """The learning rate from here on."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def step(self, rows: Tensor, raw: Tensor, draws: Tensor, seed: int) -> None:
        """One batch: its rows, their raw samples, its random numbers, and a seed for dropout and noise."""
        torch.default_generator.manual_seed(seed)  # always: a user's network may draw in ways unknown to us
        self._carry_out(rows.to(self.device), raw, draws)

    def _carry_out(self, rows: Tensor, raw: Tensor, draws: Tensor) -> None:
        with torch.no_grad():
            views = self.inputs.training_views(raw, rows, draws)
        on_gpu = self.device.type == "cuda"
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            value = self.objective(self.forward(views), views, rows, self.labels[rows])
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(value)
        self.optimiser.step()
        self.total += value.detach()

    def state(self) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Weights and momentum, copied to the host."""
        weights = {name: value.detach().cpu().clone() for name, value in self.network.state_dict().items()}
        return weights, [self._momentum(parameter).detach().cpu().clone() for parameter in self._parameters()]

    def restore(self, weights: dict[str, Tensor], momentum: list[Tensor]) -> None:
        """Put weights and momentum back, in the memory where they are."""
        self.network.load_state_dict(weights)
        for parameter, value in zip(self._parameters(), momentum, strict=True):
            self._momentum(parameter).copy_(value)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimiser.param_groups for parameter in group["params"]]

    def _momentum(self, parameter: Tensor) -> Tensor:
        return cast(Tensor, self.optimiser.state[parameter]["momentum_buffer"])


class CapturedStepper(Stepper):
    """The same on a GPU, captured as a graph for each learning rate and replayed."""

    def __init__(
        self, network: nn.Module, inputs: Inputs, labels: Tensor, objective: Objective, recipe: Recipe
    ) -> None:
        _compile_as_often_as_needed()
        cast(Any, network).to(memory_format=torch.channels_last)  # torch's types have no such word
        super().__init__(network, inputs, labels, objective, recipe)
        self.forward = cast(Callable[[Tensor], Any], torch.compile(objective.part(network), dynamic=False))
        self.graph: torch.cuda.CUDAGraph | None = None
        self.held: tuple[Tensor, ...] = ()  # rows, raw samples and draws, where the graph looks for them

    def set_rate(self, rate: float) -> None:
        """A rate is part of the captured graph, so a new one takes a new capture."""
        if rate != self.optimiser.param_groups[0]["lr"]:
            self.graph = None
        super().set_rate(rate)

    def step(self, rows: Tensor, raw: Tensor, draws: Tensor, seed: int) -> None:
        """Copy what is new to where the graph looks for it, and replay."""
        given = (rows.to(self.device, non_blocking=True), raw, draws)
        if self.graph is None:
            self._capture(given)
        for held, new in zip(self.held, given, strict=True):
            held.copy_(new, non_blocking=True)
        torch.cuda.manual_seed(seed)
        assert self.graph is not None
        self.graph.replay()

    def _capture(self, given: tuple[Tensor, ...]) -> None:
        """Warm up beside the work at hand, put everything back as it was, and record a step."""
        self.held = tuple(tensor.clone() for tensor in given)
        kept, total = self.state(), self.total.clone()
        stream = cast(Any, torch.cuda.Stream)()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._carry_out(*self.held)
        torch.cuda.current_stream().wait_stream(stream)
        self.restore(*kept)
        self.total.copy_(total)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._carry_out(*self.held)


def _compile_as_often_as_needed() -> None:
    """A worker meets many networks and batches; beyond torch's limit of 8 it would go on uncompiled."""
    import torch._dynamo  # takes seconds, and only a GPU's steps are compiled

    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MOST_COMPILATIONS)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 8 * MOST_COMPILATIONS)


@contextmanager
def arithmetic(device: torch.device) -> Iterator[None]:
    """One thread on a CPU, where sums would otherwise depend on how many there are; TF32 on a GPU.

    No search for the fastest convolutions: it is won by chance, so two runs would differ, and gains nothing.
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
