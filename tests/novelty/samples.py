"""Small networks and samples to test with."""

import numpy as np
import torch

from surefoot.lab.networks.backbones import build_network
from surefoot.lab.training.data import Points, images_from


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def points(n, seed=0, size=1.0):
    return Points(size * torch.randn(n, 2, generator=generator(seed)))


def perceptron(classes=3, seed=0):
    network = build_network("mlp", classes, generator=generator(seed), hidden=(16, 16))
    network.train()
    network(torch.randn(200, 2, generator=generator(1)))  # so that BatchNorm has statistics to lose
    return network


def images(n, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 12, 10, 3), dtype=np.uint8)
    return images_from(pixels, view=8, resize=10, augmentation="inception")


def residual(classes=3):
    network = build_network("resnet18", classes, generator=generator(), small_stem=True)
    network.train()
    network(torch.randn(8, 3, 8, 8, generator=generator(1)))
    return network


def views_of(inputs):
    """What the network sees, all at once."""
    rows = torch.arange(len(inputs))
    return inputs.test_views(inputs.fetch(rows, torch.device("cpu")), rows).float()
