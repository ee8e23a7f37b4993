"""Initial networks: a user's own is called once before it is trained; averaged weights get new statistics."""

import pytest
import torch
from torch import nn

from surefoot.errors import InputError
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks.letters import PER_GLYPH, load_letters
from surefoot.lab.tasks.task import Split
from surefoot.lab.training.data import Images, Points
from surefoot.lab.training.initial import initial_network, mixed, refresh_statistics

HERE = __name__
VIEW = 12


def flat(outputs, inputs=3 * VIEW * VIEW):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs))


def right(classes):
    return flat(classes)


def too_many(classes):
    return flat(classes + 3)


def for_other_images(classes):
    return flat(classes, inputs=7)


def maps(classes):
    return nn.Conv2d(3, classes, 3)


class Keeping(nn.Module):
    """Makes a tensor when it is first asked, and keeps it."""

    kept = None

    def __init__(self, classes):
        super().__init__()
        self.own = flat(classes)

    def forward(self, images):
        self.kept = torch.ones(1, device=images.device) if self.kept is None else self.kept
        return self.own(images) * self.kept


def keeping(classes):
    return Keeping(classes)


class Named(nn.Module):
    def forward(self, images):
        return {"logits": images}


def mapping(classes):
    return Named()


@pytest.fixture(scope="module")
def letters():
    return load_letters(per_glyph=dict.fromkeys(PER_GLYPH, 1))


def drawn(name, task):
    recipe = Recipe(network=f"{HERE}:{name}", view=VIEW, resize=VIEW)
    pixels = torch.zeros(4, 3, VIEW, VIEW, dtype=torch.uint8)
    size = torch.full((4,), VIEW)
    images = Images(pixels, size, size, view=VIEW, share=1.0, augmentation="none")
    return initial_network(recipe, task, {Split.TRAIN: images}, seed=0, weights=None)


def test_one_that_answers_rightly_is_left_as_it_was(letters):
    network = drawn("right", letters)
    assert network.training
    assert int(network.state_dict()["model.1.num_batches_tracked"]) == 0


def test_one_that_keeps_tensors_is_trained_as_if_never_asked(letters):
    network = drawn("keeping", letters)
    assert network.model.kept is None
    network(torch.zeros(2, 3, VIEW, VIEW)).sum().backward()


WRONG = {
    "too_many": r"gives shape \(2, 29\) for samples of shape \(2, 3, 12, 12\)",
    "maps": r"gives shape \(2, 26, 10, 10\) for samples",
    "mapping": r"gives dict for samples",
    "for_other_images": r"fails on samples of shape \(2, 3, 12, 12\) \((RuntimeError|ValueError): ",
}


@pytest.mark.parametrize(("name", "says"), WRONG.items())
def test_one_that_does_not_is_refused_before_training(name, says, letters):
    with pytest.raises(
        InputError, match=rf"network '{HERE}:{name}' {says}.*needed: logits of shape \(2, 26\)"
    ):
        drawn(name, letters)


def mlp(seed):
    return build_network(
        "mlp", 2, generator=torch.Generator().manual_seed(seed), hidden=(8, 8), layer_dropout=0.5
    )


def test_the_mean_and_the_line_between():
    a, b = ({"w": torch.tensor([value]), "n": torch.tensor(3)} for value in (1.0, 4.0))
    assert mixed([a, b], [0.5, 0.5])["w"].item() == 2.5
    assert mixed([a, b], [0.75, 0.25])["w"].item() == 1.75
    assert mixed([a, b], [0.5, 0.5])["n"].item() == 3


def test_a_mean_of_one_is_itself_to_the_bit():
    weights = mlp(0).state_dict()
    assert all(torch.equal(value, mixed([weights], [1.0])[name]) for name, value in weights.items())


def test_statistics_are_those_of_the_samples_and_nothing_else_changes():
    made = mlp(0)
    made.train()
    made.hidden[0].eval()
    modes = [module.training for module in made.modules()]
    before = {name: value.clone() for name, value in made.state_dict().items()}
    points = Points(torch.randn(512, 2, generator=torch.Generator().manual_seed(1)) * 3 + 1)
    refresh_statistics(made, points, torch.device("cpu"))
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
