"""Averaged weights, and BatchNorm statistics taken anew."""

import torch

from surefoot.networks.backbones import build_network
from surefoot.training.data import Points
from surefoot.training.initial import mixed, refresh_statistics

CPU = torch.device("cpu")


def network(seed):
    return build_network(
        "mlp", 2, generator=torch.Generator().manual_seed(seed), hidden=(8, 8), layer_dropout=0.5
    )


def test_the_mean_and_the_line_between():
    a, b = ({"w": torch.tensor([value]), "n": torch.tensor(3)} for value in (1.0, 4.0))
    assert mixed([a, b], [0.5, 0.5])["w"].item() == 2.5
    assert mixed([a, b], [0.75, 0.25])["w"].item() == 1.75
    assert mixed([a, b], [0.5, 0.5])["n"].item() == 3


def test_a_mean_of_one_is_itself_to_the_bit():
    weights = network(0).state_dict()
    assert all(torch.equal(value, mixed([weights], [1.0])[name]) for name, value in weights.items())


def test_statistics_are_those_of_the_samples_and_nothing_else_changes():
    made = network(0)
    made.train()
    made.hidden[0].eval()
    modes = [module.training for module in made.modules()]
    before = {name: value.clone() for name, value in made.state_dict().items()}
    points = Points(torch.randn(512, 2, generator=torch.Generator().manual_seed(1)) * 3 + 1)
    refresh_statistics(made, points, CPU)
    assert [module.training for module in made.modules()] == modes
    for name, value in made.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(value, before[name])
    first = made.hidden[0]
    seen = first.relu(first.linear(points.values)).detach()
    assert torch.allclose(first.norm.running_mean, seen.mean(0), atol=1e-4)
    halves = torch.stack([half.var(0) for half in seen.split(256)]).mean(0)
    assert torch.allclose(first.norm.running_var, halves, rtol=1e-4)
    assert first.norm.momentum == 0.1
