"""Networks' outputs for samples: each sample is read once, however many networks there are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from surefoot.lab.networks.heads import GaussianHead, dropout_masks, masked_linear, positive
from surefoot.lab.networks.network import Network, sampling_dropout
from surefoot.lab.training.average import average_members
from surefoot.lab.training.data import Inputs, fetched
from surefoot.predictions.labels import LabelKind

ROWS_AT_ONCE = 256

Predictor = Callable[[nn.Module, Tensor], Tensor]  # a network and a batch of views, to (batch, outputs)


def network_logits(network: nn.Module, views: Tensor) -> Tensor:
    """The network's own logits."""
    logits: Tensor = network(views)
    return logits


def network_features(network: nn.Module, views: Tensor) -> Tensor:
    """The inputs of the last layer."""
    assert isinstance(network, Network)
    return network.features(views)


@dataclass(frozen=True, eq=False)
class Sampled:
    """Log of the mean probability over samples of dropout and logit noise; for many labels its log odds.

    With dropout before the last layer alone, the backbone runs once; with dropout in every layer, once a
    sample. Each sample's logits are divided by the temperature before the average.
    """

    kind: LabelKind
    samples: int
    generator: Generator  # on the device that predicts
    whole_network: bool = False
    temperature: float = 1.0

    def __call__(self, network: nn.Module, views: Tensor) -> Tensor:
        return average_members(self.draw(network, views) / self.temperature, self.kind)

    def draw(self, network: nn.Module, views: Tensor) -> Tensor:
        """The logits of each sample, (samples, n, classes), not divided by the temperature."""
        assert isinstance(network, Network)
        if not self.whole_network:
            return network.sample_logits(views, self.samples, self.generator).float()
        parts = []
        for _ in range(self.samples):
            with sampling_dropout(network, self.generator):
                features = network.features(views)
            parts.append(network.head.sample_logits(features, 1, self.generator))
        return torch.cat(parts).float()


class FixedSamples(nn.Module):
    """A network with a Gaussian head; its samples of dropout and noise are drawn once, the same for all rows.

    log mean_s softmax(z_s), for many labels its log odds: a row gets the same prediction each time, whatever
    else is in its batch. Each row's samples are distributed as they were in training. `scaling` is applied to
    the logits of all samples before the average; it does nothing unless it is replaced.
    """

    mask: Tensor
    noise: Tensor

    def __init__(self, network: Network, samples: int, kind: LabelKind, generator: Generator) -> None:
        super().__init__()
        self.network = network
        self.kind = kind
        self.samples = samples
        self.scaling: nn.Module = nn.Identity()
        blank = torch.empty(0, network.width)
        mask = dropout_masks(blank, network.head.dropout.p, samples, generator)
        self.register_buffer("mask", mask, persistent=False)
        noise = torch.randn(samples, 1, network.classes, generator=generator)
        self.register_buffer("noise", noise, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes)."""
        return self.of_features(self.network.features(images))

    def of_features(self, features: Tensor) -> Tensor:
        """Logits (n, classes) of features (n, width)."""
        head = self.network.head
        assert isinstance(head, GaussianHead)
        mean = masked_linear(head, features, self.mask).float()
        variance = positive(masked_linear(head.variance, features, self.mask).float())
        logits = mean + variance.sqrt() * self.noise
        return average_members(self.scaling(logits), self.kind)


def draw_samples(
    network: nn.Module, inputs: Inputs, device: torch.device, sampler: Sampled, *, every: int = 1
) -> Tensor:
    """The logits of each sample, (samples, rows, classes), on the host: of all rows, or of every k-th.

    They are the samples that `predict` averages, where the sampler's generator has the same seed.
    """
    parts: list[Tensor] = []
    start = 0
    with torch.inference_mode(), evaluating([network]):
        for views in test_batches(inputs, device, ROWS_AT_ONCE):
            logits = sampler.draw(network, views)
            parts.append(logits[:, -start % every :: every].cpu())
            start += len(views)
    return torch.cat(parts, dim=1)


def predict(
    networks: Sequence[nn.Module],
    inputs: Inputs,
    device: torch.device,
    *,
    predictor: Predictor = network_logits,
) -> Tensor:
    """Outputs (members, n, classes) in float32 on the host; networks are left in the mode they were in."""
    with torch.inference_mode(), evaluating(networks):
        parts = [
            torch.stack([predictor(network, views).float() for network in networks]).cpu()
            for views in test_batches(inputs, device, ROWS_AT_ONCE)
        ]
    return torch.cat(parts, dim=1)


def test_batches(inputs: Inputs, device: torch.device, rows_at_once: int) -> Iterator[Tensor]:
    """The test views of the samples, in order, some rows at a time."""
    inputs = inputs.on(device)
    rows = torch.split(torch.arange(len(inputs)), rows_at_once)
    for batch, raw in fetched(inputs, rows, device):
        yield inputs.test_views(raw, batch.to(device)).float()


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
