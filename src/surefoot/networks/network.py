"""The shape all networks share: features, then a head."""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from surefoot.networks.heads import LinearHead

HeadBuilder = Callable[[int], LinearHead]  # from the width of the features


class Network(nn.Module):
    """`features(x)` gives (n, width), `head` turns them into logits (n, classes); `forward` does both.

    Not a wrapper: a subclass registers its parts under the names that published weights have.
    """

    head_name: ClassVar[str]  # the attribute that holds the head
    published_prefix: ClassVar[str] = ""  # what our names of the backbone have before the published ones
    convolution_fan: ClassVar[Literal["fan_in", "fan_out"]] = "fan_out"

    name: str = "network"  # as given to build_network; for messages and tables
    features: Callable[[Tensor], Tensor]

    @property
    def head(self) -> LinearHead:
        """The last layer."""
        head = getattr(self, self.head_name)
        assert isinstance(head, LinearHead)
        return head

    @property
    def published_head(self) -> str:
        """The last layer's name in published files."""
        return self.head_name

    @property
    def width(self) -> int:
        """How many features there are."""
        return self.head.in_features

    @property
    def classes(self) -> int:
        """How many logits there are."""
        return self.head.out_features

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes)."""
        logits: Tensor = getattr(self, self.head_name)(self.features(images))
        return logits

    def sample_logits(self, images: Tensor, samples: int, generator: Generator) -> Tensor:
        """Logits (samples, n, classes) from one pass through the backbone, sampled at the head."""
        return self.head.sample_logits(self.features(images), samples, generator)


def initialise(network: Network, generator: Generator) -> None:
    """Draw every weight anew from the generator, which is on the CPU; the backbone's before the head's.

    Convolutions N(0, 2 / fan) (He et al., ICCV 2015), linear layers N(0, 2 / (in + out)) with bias 0
    (Glorot & Bengio, AISTATS 2010), BatchNorm weight 1, bias 0 and fresh statistics.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(
                module.weight, mode=network.convolution_fan, nonlinearity="relu", generator=generator
            )
        elif isinstance(module, nn.Linear):
            initialise_linear(module, generator)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.reset_parameters()


def initialise_linear(layer: nn.Linear, generator: Generator) -> None:
    """Glorot-normal weights, bias 0."""
    nn.init.xavier_normal_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)


def materialise(build: Callable[[], Network], generator: Generator) -> Network:
    """The network that `build` makes, with weights from the generator and from nowhere else.

    Built without memory first: the layers' own initialisation would draw from the global generator.
    """
    with torch.device("meta"):
        network = build()
    network = network.to_empty(device="cpu")
    initialise(network, generator)
    return network
