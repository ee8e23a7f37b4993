"""Ten heads on embeddings as one stack of batched matrix products, compared with one head: time and bits.

    OMP_NUM_THREADS=1 python benchmarks/heads.py

Heads are perceptrons with three hidden layers, or linear, on vectors of 512 numbers; batches of 121 as in the
task `pets`; one thread. Time is processor time per step, the least of several repetitions, so that other load
counts little. In a stack, weights are (heads, outputs, inputs) and products `baddbmm`; BatchNorm, which is
per channel, sees all heads as channels of one batch. "Same bits" compares the weights after ten steps.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.networks.backbones import build_network

INPUTS, BATCH, CLASSES, STEPS, HEADS = 512, 121, 2, 10, 10
WIDTHS = (0, 16, 32, 64, 128, 256)  # 0 is a linear head
SECONDS = 1.0  # of measurement


class Alone:
    """A head as the training loop trains it: modules and an optimiser of its own."""

    def __init__(self, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        hidden = (width,) * 3 if width else ()
        options = {"inputs": INPUTS, "hidden": hidden, "layer_dropout": 0.0}
        self.network = build_network("mlp", CLASSES, generator=generator, **options).train()
        self.optimiser = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9, fused=True)

    def step(self, views: Tensor, labels: Tensor) -> None:
        loss = F.cross_entropy(self.network(views), labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()


class Stack:
    """Several heads with one operation for all."""

    def __init__(self, networks: list[nn.Module]) -> None:
        layers = [[m for m in network.modules() if isinstance(m, nn.Linear)] for network in networks]
        norms = [[m for m in network.modules() if isinstance(m, nn.BatchNorm1d)] for network in networks]
        self.weights = [_joined(torch.stack, each, "weight") for each in zip(*layers, strict=True)]
        self.biases = [_joined(torch.stack, each, "bias") for each in zip(*layers, strict=True)]
        self.scales = [_joined(torch.cat, each, "weight") for each in zip(*norms, strict=True)]
        self.shifts = [_joined(torch.cat, each, "bias") for each in zip(*norms, strict=True)]
        self.means = [torch.zeros_like(each) for each in self.scales]
        self.variances = [torch.ones_like(each) for each in self.scales]
        parameters = [*self.weights, *self.biases, *self.scales, *self.shifts]
        self.optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True)
        self.ones = torch.ones(len(networks))

    def step(self, views: Tensor, labels: Tensor) -> None:
        """`views` (heads, batch, inputs), `labels` (heads, batch)."""
        heads, x = len(views), views
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
            if layer < len(self.scales):
                x = x.transpose(0, 1).reshape(BATCH, -1)
                of_layer = (self.means[layer], self.variances[layer], self.scales[layer], self.shifts[layer])
                x = F.batch_norm(F.relu(x), *of_layer, True, 0.1, 1e-5)
                x = x.view(BATCH, heads, -1).transpose(0, 1)
        losses = torch.stack([F.cross_entropy(x[head], labels[head]) for head in range(heads)])
        self.optimiser.zero_grad(set_to_none=True)
        losses.backward(self.ones)
        self.optimiser.step()


def _joined(join: Callable[[list[Tensor]], Tensor], modules: tuple[nn.Module, ...], name: str) -> Tensor:
    return join([getattr(module, name).detach() for module in modules]).requires_grad_()


def milliseconds(step: Callable[[], None]) -> float:
    """Processor time of a step."""
    step()
    times, end = [], time.process_time() + SECONDS
    while time.process_time() < end:
        begin = time.process_time()
        for _ in range(5):
            step()
        times.append((time.process_time() - begin) / 5)
    return 1000 * min(times)


def weights_after(heads: list[int], width: int, views: Tensor, labels: Tensor) -> list[list[Tensor]]:
    """The weights of each of these heads, trained in a stack of them."""
    stack = Stack([Alone(width, seed).network for seed in heads])
    for step in range(STEPS):
        stack.step(views[step, heads], labels[step, heads])
    return [[each[place].detach() for each in stack.weights] for place in range(len(heads))]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def main() -> None:
    """A row per width."""
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    views = torch.rand(STEPS, HEADS, BATCH, INPUTS, generator=random)
    labels = torch.randint(0, CLASSES, (STEPS, HEADS, BATCH), generator=random)
    print(
        "| head | one head, ms | stack of ten, ms | times one head | same bits in other stacks | as alone |"
    )
    print("|---|--:|--:|--:|---|---|")
    for width in WIDTHS:
        alone = [Alone(width, seed) for seed in range(HEADS)]
        for head, each in enumerate(alone):
            for step in range(STEPS):
                each.step(views[step, head], labels[step, head])
        by_ten = weights_after(list(range(HEADS)), width, views, labels)
        others = [[head] for head in range(HEADS)] + [[7, 2, 5], [9, 8, 1, 0]]
        stable = all(
            same(found, by_ten[head])
            for heads in others
            for head, found in zip(heads, weights_after(heads, width, views, labels), strict=True)
        )
        linear = [[m.weight for m in a.network.modules() if isinstance(m, nn.Linear)] for a in alone]
        equal = sum(same(one, other) for one, other in zip(by_ten, linear, strict=True))
        stack = Stack([each.network for each in alone])
        one = milliseconds(lambda: alone[0].step(views[0, 0], labels[0, 0]))  # noqa: B023
        ten = milliseconds(lambda: stack.step(views[0], labels[0]))  # noqa: B023
        name = f"3 x {width}" if width else "linear"
        numbers = f"{one:.2f} | {ten:.2f} | {ten / one:.1f}"
        print(f"| {name} | {numbers} | {'yes' if stable else 'no'} | {equal} of {HEADS} |", flush=True)


if __name__ == "__main__":
    main()
