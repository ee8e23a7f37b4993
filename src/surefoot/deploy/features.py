"""Penultimate features of networks, projected at random: what `monitor` compares besides their outputs."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.lab.networks.network import Network
from surefoot.lab.training.predict import FixedSamples
from surefoot.predictions.validate import MOST_FEATURES

SEED = 23


def one_pass(network: nn.Module, inputs: Tensor, *, features: bool) -> tuple[Tensor, Tensor | None]:
    """A deployed network's logits and, if requested, the inputs of its last layer."""
    if not features:
        return network(inputs), None
    inner = network.network if isinstance(network, FixedSamples) else network
    if not isinstance(inner, Network) or not inner.head_name:
        raise InputError(f"a network of type {type(inner).__name__} gives logits only; needed: features")
    found = inner.features(inputs)
    assert isinstance(network, Network | FixedSamples)
    return network.of_features(found), found


def projected(features: Sequence[Tensor]) -> Tensor:
    """(n, at most 64) from the features (n, width) of one or more networks, as one vector.

    Up to 64 numbers are left as they are; more are multiplied by a fixed matrix of random numbers, which
    preserves distances approximately (Johnson & Lindenstrauss 1984).
    """
    whole = torch.cat([each.float().cpu() for each in features], dim=1)
    width = whole.shape[1]
    if width <= MOST_FEATURES:
        return whole
    matrix = np.random.default_rng(SEED).standard_normal((width, MOST_FEATURES)) / np.sqrt(MOST_FEATURES)
    return whole @ torch.from_numpy(matrix).float()
