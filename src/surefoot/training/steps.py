"""One step of training, on a CPU or on a GPU.

On a CPU: float32 on one thread, the same to the bit every time. On a GPU: bfloat16 in autocast, channels
last, compiled, and the whole step (views, forward, backward, update) captured once as a CUDA graph and
replayed, so that the host has next to nothing to do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from surefoot.recipes import Recipe
from surefoot.threads import one_thread
from surefoot.training.batches import Inputs
from surefoot.training.objectives import Objective

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
