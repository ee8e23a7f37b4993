"""All networks by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from torch import Generator

from surefoot.errors import InputError, is_whole, require
from surefoot.lab.networks.architectures import (
    LinearClassifier,
    Perceptron,
    ResidualPerceptron,
    densenet161,
    resnet18,
    resnet34,
    resnet50,
)
from surefoot.lab.networks.external import Importing, timm_network, torchvision_network, user_network
from surefoot.lab.networks.heads import HEADS
from surefoot.lab.networks.network import Network, materialise
from surefoot.registry import Registry

HE = "He et al., CVPR 2016"
HUANG = "Huang et al., CVPR 2017"
LI = "Li & Hoiem, CVPR 2020"
GORISHNIY = "Gorishniy et al., NeurIPS 2021"
IMAGES = ("channels", "small_stem")


@dataclass(frozen=True)
class Backbone:
    """A built-in network; `options` are the keywords that `build` takes in addition to the head."""

    name: str
    title: str
    width: int  # of the features, unless an option changes it
    build: Callable[..., Network]
    options: tuple[str, ...]
    reference: str

    @property
    def takes_vectors(self) -> bool:
        """Whether samples may be vectors; images are flattened to one."""
        return "inputs" in self.options


BACKBONES: Registry[Backbone] = Registry("network", (
    Backbone("resnet18", "ResNet-18", 512, resnet18, IMAGES, HE),
    Backbone("resnet34", "ResNet-34", 512, resnet34, IMAGES, HE),
    Backbone("resnet50", "ResNet-50", 2048, resnet50, IMAGES, HE),
    Backbone("densenet161", "DenseNet-161", 2208, densenet161, (*IMAGES, "layer_dropout"), HUANG),
    Backbone("mlp", "Perceptron, 3 x 1024", 1024, Perceptron, ("inputs", "hidden", "layer_dropout"), LI),
    Backbone("linear", "Logistic regression", 2, LinearClassifier, ("inputs",), "Cox, JRSS B 1958"),
    Backbone("residual-mlp", "Residual perceptron, 3 blocks", 1024, ResidualPerceptron,
             ("inputs", "width", "blocks", "layer_dropout"), GORISHNIY),
), or_else=", timm:NAME, torchvision:NAME, package.module:function")  # fmt: skip


def build_network(
    name: str,
    classes: int,
    *,
    generator: Generator,
    head: str = "linear",
    head_dropout: float = 0.0,
    importing: Importing = import_module,
    **options: Any,
) -> Network:
    """The network of that name on the CPU, with weights drawn from the generator alone.

    `head` is a name in HEADS, `head_dropout` the rate on the features before it; `options` are the
    own of the backbone (`channels`, `small_stem`, `layer_dropout`; `inputs`, `hidden`, `width`, `blocks`);
    `importing` is how the module of a user's own function is found.

    >>> import torch
    >>> network = build_network("mlp", 2, generator=torch.Generator().manual_seed(0), hidden=(8, 8))
    >>> network(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """
    _check_whole("classes", classes)
    _check_rate("head_dropout", head_dropout)
    for option, value in options.items():
        if option in OPTION_CHECKS:
            OPTION_CHECKS[option](option, value)
    kind = HEADS.named(head)
    make_head = partial(kind.build, classes=classes, dropout=head_dropout)
    source, colon, rest = name.partition(":")
    if not colon:
        backbone = BACKBONES.named(name)
        _check_options(name, options, backbone.options)
        network = materialise(partial(backbone.build, make_head, **options), generator)
    elif source == "timm":
        _check_options(name, options, ("channels",))
        network = timm_network(rest, make_head, generator, **options)
    elif source == "torchvision":
        _check_options(name, options, ())
        network = torchvision_network(rest, make_head, generator)
    else:
        _check_options(name, options, ())
        if kind.name != "linear" or head_dropout != 0:
            raise InputError(
                f"network {name!r} has its own last layer, got head {kind.name!r} with dropout "
                f"{head_dropout}; allowed: 'linear' with 0"
            )
        network = user_network(name, classes, generator, importing)
    network.name = name
    return network


def _check_options(name: str, options: dict[str, Any], allowed: tuple[str, ...]) -> None:
    for option in options:
        if option not in allowed:
            have = ", ".join(allowed) or "none"
            raise InputError(f"network {name!r} has no option {option!r}; have: {have}")


def _check_whole(name: str, value: object) -> None:
    require(is_whole(value, least=1), name, value, "a whole number from 1")


def _check_widths(name: str, value: object) -> None:
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} is {value!r}; allowed: a list of whole numbers")
    for width in value:
        _check_whole(name, width)


def _check_rate(name: str, value: object) -> None:
    in_range = isinstance(value, int | float) and 0 <= value < 1
    require(in_range, name, value, "a rate from 0 to below 1")


OPTION_CHECKS: dict[str, Callable[[str, object], None]] = {
    "channels": _check_whole,
    "small_stem": lambda name, value: require(isinstance(value, bool), name, value, "True, False"),
    "layer_dropout": _check_rate,
    "inputs": _check_whole,
    "width": _check_whole,
    "blocks": _check_whole,
    "hidden": _check_widths,
}
