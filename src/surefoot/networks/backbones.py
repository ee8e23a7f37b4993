"""Every network by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Generator

from surefoot.errors import InputError
from surefoot.networks.densenet import densenet161
from surefoot.networks.external import timm_network, torchvision_network, user_network
from surefoot.networks.heads import HEADS, HeadKind
from surefoot.networks.mlp import Perceptron
from surefoot.networks.network import HeadBuilder, Network, materialise
from surefoot.networks.resnet import resnet18, resnet34, resnet50

HE = "He et al., CVPR 2016"
HUANG = "Huang et al., CVPR 2017"
LI = "Li & Hoiem, CVPR 2020"
IMAGES = ("channels", "small_stem")


@dataclass(frozen=True)
class Backbone:
    """A network of our own; `options` are the keywords that `build` takes beside the head."""

    name: str
    title: str
    width: int  # of the features, unless an option changes it
    build: Callable[..., Network]
    options: tuple[str, ...]
    reference: str


# fmt: off
BACKBONES: tuple[Backbone, ...] = (
    Backbone("resnet18", "ResNet-18", 512, resnet18, IMAGES, HE),
    Backbone("resnet34", "ResNet-34", 512, resnet34, IMAGES, HE),
    Backbone("resnet50", "ResNet-50", 2048, resnet50, IMAGES, HE),
    Backbone("densenet161", "DenseNet-161", 2208, densenet161, (*IMAGES, "layer_dropout"), HUANG),
    Backbone("mlp", "Perceptron, 3 x 1024", 1024, Perceptron, ("inputs", "hidden", "layer_dropout"), LI),
)
# fmt: on

ELSEWHERE = "timm:NAME, torchvision:NAME, package.module:function"


def build_network(
    name: str,
    classes: int,
    *,
    generator: Generator,
    head: str = "linear",
    head_dropout: float = 0.0,
    **options: Any,
) -> Network:
    """The network of that name on the CPU, with weights drawn from the generator and from nowhere else.

    `head` is a name in HEADS, `head_dropout` the rate on the features before it; `options` are the
    backbone's own (`channels`, `small_stem`, `layer_dropout`; for the perceptron `inputs`, `hidden`).

    >>> import torch
    >>> network = build_network("mlp", 2, generator=torch.Generator().manual_seed(0), hidden=(8, 8))
    >>> network(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """
    _check_whole("classes", classes)
    _check_rate("head_dropout", head_dropout)
    _check_values(options)
    kind = head_named(head)
    make_head = partial(kind.build, classes=classes, dropout=head_dropout)
    source, colon, rest = name.partition(":")
    if not colon:
        network = _own(name, make_head, generator, options)
    elif source == "timm":
        _check_options(name, options, ("channels",))
        network = timm_network(rest, make_head, generator, **options)
    elif source == "torchvision":
        _check_options(name, options, ())
        network = torchvision_network(rest, make_head, generator)
    else:
        _check_options(name, options, ())
        _check_plain(name, kind, head_dropout)
        network = user_network(name, classes, generator)
    network.name = name
    return network


def _own(name: str, head: HeadBuilder, generator: Generator, options: dict[str, Any]) -> Network:
    backbone = backbone_named(name)
    _check_options(name, options, backbone.options)
    return materialise(partial(backbone.build, head, **options), generator)


def backbone_named(name: str) -> Backbone:
    """The backbone of that name."""
    for backbone in BACKBONES:
        if backbone.name == name:
            return backbone
    have = ", ".join(backbone.name for backbone in BACKBONES)
    raise InputError(f"unknown network {name!r}; have: {have}, {ELSEWHERE}")


def head_named(name: str) -> HeadKind:
    """The kind of head of that name."""
    for kind in HEADS:
        if kind.name == name:
            return kind
    raise InputError(f"unknown head {name!r}; have: {', '.join(kind.name for kind in HEADS)}")


def _check_options(name: str, options: dict[str, Any], allowed: tuple[str, ...]) -> None:
    for option in options:
        if option not in allowed:
            have = ", ".join(allowed) or "none"
            raise InputError(f"network {name!r} has no option {option!r}; have: {have}")


def _check_values(options: dict[str, Any]) -> None:
    for option, value in options.items():
        if option in CHECKS:
            CHECKS[option](option, value)


def _check_whole(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}; allowed: a whole number from 1")


def _check_widths(name: str, value: object) -> None:
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} is {value!r}; allowed: a list of whole numbers")
    for width in value:
        _check_whole(name, width)


def _check_rate(name: str, value: object) -> None:
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name} is {value!r}; allowed: a rate from 0 to below 1")


def _check_yes_or_no(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; allowed: True, False")


CHECKS: dict[str, Callable[[str, object], None]] = {
    "channels": _check_whole,
    "small_stem": _check_yes_or_no,
    "layer_dropout": _check_rate,
    "inputs": _check_whole,
    "hidden": _check_widths,
}


def _check_plain(name: str, kind: HeadKind, head_dropout: float) -> None:
    if kind.name != "linear" or head_dropout != 0:
        raise InputError(
            f"network {name!r} brings its own last layer, got head {kind.name!r} with dropout "
            f"{head_dropout}; allowed: 'linear' with 0"
        )
