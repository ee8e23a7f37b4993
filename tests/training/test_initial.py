"""A network of the user's own is asked once before it is trained."""

import pytest
import torch
from torch import nn

from surefoot.errors import InputError
from surefoot.recipes.recipe import Recipe
from surefoot.tasks import task_named
from surefoot.tasks.task import Split
from surefoot.training.data import Images
from surefoot.training.initial import initial_network

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
    return task_named("letters")


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
