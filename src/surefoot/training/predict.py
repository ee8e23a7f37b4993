"""What networks say of samples: each sample is read once, however many the networks are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from surefoot.networks.network import Network, sampling_dropout
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import average_sigmoid, average_softmax
from surefoot.training.data import Inputs, fetched

ROWS_AT_ONCE = 256

Answer = Callable[[nn.Module, Tensor], Tensor]


def plainly(network: nn.Module, views: Tensor) -> Tensor:
    """The network's own logits."""
    logits: Tensor = network(views)
    return logits


def features(network: nn.Module, views: Tensor) -> Tensor:
    """What the last layer sees."""
    assert isinstance(network, Network)
    return network.features(views)


@dataclass(frozen=True, eq=False)
class Sampled:
    """Log of the mean probability over samples of dropout and logit noise; for many labels its log odds.

    With dropout before the last layer alone, the backbone runs once; with dropout in every layer, once a
    sample.
    """

    kind: LabelKind
    samples: int
    generator: Generator  # on the device that predicts
    whole_network: bool = False

    def __call__(self, network: nn.Module, views: Tensor) -> Tensor:
        assert isinstance(network, Network)
        if self.whole_network:
            parts = []
            for _ in range(self.samples):
                with sampling_dropout(network, self.generator):
                    seen = network.features(views)
                parts.append(network.head.sample_logits(seen, 1, self.generator))
            logits = torch.cat(parts)
        else:
            logits = network.sample_logits(views, self.samples, self.generator)
        average = average_softmax if self.kind is LabelKind.ONE_LABEL else average_sigmoid
        return average(logits.float())


def predict(
    networks: Sequence[nn.Module], inputs: Inputs, device: torch.device, *, answer: Answer = plainly
) -> Tensor:
    """Answers (members, n, classes) in float32 on the host; networks are left in the mode they were in."""
    with torch.inference_mode(), evaluating(networks):
        parts = [
            torch.stack([answer(network, views).float() for network in networks]).cpu()
            for views in batches_seen(inputs, device, ROWS_AT_ONCE)
        ]
    return torch.cat(parts, dim=1)


def batches_seen(inputs: Inputs, device: torch.device, rows_at_once: int) -> Iterator[Tensor]:
    """What networks see of the samples in testing, in order, some rows at a time."""
    inputs = inputs.on(device)
    rows = torch.split(torch.arange(len(inputs)), rows_at_once)
    for some, raw in fetched(inputs, rows, device):
        yield inputs.test_views(raw, some.to(device)).float()


@contextmanager
def evaluating(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, the networks are in evaluation mode; afterwards every part is in the mode it was in."""
    modes = [[(module, module.training) for module in network.modules()] for network in networks]
    for network in networks:
        network.eval()
    try:
        yield
    finally:
        for module, training in (pair for of_network in modes for pair in of_network):
            module.training = training
