"""Networks by name, their heads, and pretrained weights."""

from surefoot.networks.backbones import BACKBONES, Backbone, backbone_named, build_network, head_named
from surefoot.networks.description import Description, describe
from surefoot.networks.heads import HEADS, GaussianHead, HeadKind, LinearHead, add_noise
from surefoot.networks.network import Network
from surefoot.networks.randomness import sampling_dropout
from surefoot.networks.weights import Mismatch, WeightsReport, load_weights, load_weights_and_head

__all__ = [
    "BACKBONES",
    "HEADS",
    "Backbone",
    "Description",
    "GaussianHead",
    "HeadKind",
    "LinearHead",
    "Mismatch",
    "Network",
    "WeightsReport",
    "add_noise",
    "backbone_named",
    "build_network",
    "describe",
    "head_named",
    "load_weights",
    "load_weights_and_head",
    "sampling_dropout",
]
