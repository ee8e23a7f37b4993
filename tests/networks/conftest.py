"""Generators and small networks to test with."""

import pytest
import torch

from surefoot.lab.networks.backbones import build_network


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def small(classes=3, seed=0, **options):
    """A perceptron that takes no time."""
    return build_network("mlp", classes, generator=seeded(seed), **{"hidden": (16, 8), **options})


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32, generator=seeded(7))
