"""The structure all networks share: features, then a head; and its cost."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from surefoot.lab.networks.heads import LinearHead

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@contextmanager
def global_draws_from(generator: Generator, device: torch.device) -> Iterator[None]:
    """Inside, torch's global generators of the CPU and of a CUDA `device` are seeded from `generator`.

    Afterwards their state is restored.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed every other device too
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def sampling_dropout(network: nn.Module, generator: Generator) -> Iterator[None]:
    """Inside, dropout layers are in training mode and all others stay as they are (BatchNorm too).

    Monte Carlo dropout for networks that drop in every layer: call the network once per sample
    (Gal & Ghahramani, ICML 2016).
    """
    layers = [module for module in network.modules() if isinstance(module, DROPOUTS)]
    modes = [layer.training for layer in layers]
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    try:
        for layer in layers:
            layer.train()
        with global_draws_from(generator, device):
            yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.train(mode)


HeadBuilder = Callable[[int], LinearHead]  # from the width of the features


class Network(nn.Module):
    """`features(x)` gives (n, width), `head` turns them into logits (n, classes); `forward` does both.

    Not a wrapper: a subclass registers its parts under the names that published weights have.
    """

    head_name: ClassVar[str]  # the attribute that holds the head
    published_prefix: ClassVar[str] = (
        ""  # our names of backbone parameters are this prefix and the published name
    )
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
        """The number of features."""
        return self.head.in_features

    @property
    def classes(self) -> int:
        """The number of logits."""
        return self.head.out_features

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes)."""
        return self.of_features(self.features(images))

    def of_features(self, features: Tensor) -> Tensor:
        """Logits (n, classes) of features (n, width)."""
        logits: Tensor = getattr(self, self.head_name)(features)
        return logits

    def sample_logits(self, images: Tensor, samples: int, generator: Generator) -> Tensor:
        """Logits (samples, n, classes) from one pass through the backbone, sampled at the head."""
        return self.head.sample_logits(self.features(images), samples, generator)


def initialise(network: Network, generator: Generator) -> None:
    """Draw every weight from the generator, which is on the CPU; the backbone's before the head's.

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
    """The network that `build` makes, with weights from the generator alone.

    It is built on the meta device first: the layers' own initialisation would draw from the global generator.
    """
    with torch.device("meta"):
        network = build()
    network = network.to_empty(device="cpu")
    initialise(network, generator)
    return network


@dataclass(frozen=True)
class Description:
    """A network's size and the cost of one forward pass."""

    name: str
    parameters: int
    trained_parameters: int  # without the frozen ones
    weight_bytes: int  # of parameters and buffers
    shape: tuple[int, ...]  # of the one input that multiply_adds are counted for
    multiply_adds: int  # of convolutions and matrix products; the paper's "FLOPs" are these


def describe(network: Network, shape: tuple[int, ...]) -> Description:
    """Count parameters and multiply-adds for one input of that shape, without computing anything."""
    parameters = list(network.parameters())
    shadow = copy.deepcopy(network).to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        shadow(torch.empty((1, *shape), device="meta"))
    return Description(
        name=network.name,
        parameters=sum(parameter.numel() for parameter in parameters),
        trained_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        weight_bytes=sum(
            tensor.numel() * tensor.element_size() for tensor in (*parameters, *network.buffers())
        ),
        shape=shape,
        multiply_adds=counter.get_total_flops() // 2,  # a multiplication and an addition are two
    )
