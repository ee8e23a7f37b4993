"""Sharpness-aware steps, schedules, weight averages and mixing, each against a plain loop written by hand."""

import copy
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.training.data import Points, generator
from surefoot.lab.training.loop import AVERAGE_WARM_UP, Hooks, StoppedError, epoch_batches, train
from surefoot.lab.training.losses import Classification, classification_loss, sampled_loss
from surefoot.predictions.labels import LabelKind
from surefoot.runtime import derive_seed

ONE, MANY = LabelKind.ONE_LABEL, LabelKind.MANY_LABELS
CPU = torch.device("cpu")
PLAIN = Recipe(network="mlp", learning_rate=0.1, epochs=3, batch=16, weight_decay=0.01)
SEED = 5


def made(many=False):
    """A small network with BatchNorm, inputs and labels; some labels of many are ignored."""
    random = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    inputs = torch.randn(60, 3, generator=random)
    if many:
        return network, inputs, torch.randint(-1, 2, (60, 4), generator=random)
    return network, inputs, torch.randint(0, 4, (60,), generator=random)


def trained(recipe, many=False, **options):
    network, inputs, labels = made(many)
    objective = Classification(MANY if many else ONE, recipe.label_smoothing)
    train(network, Points(inputs), labels, objective, recipe, seed=SEED, device=CPU, **options)
    return network


def by_hand(recipe, many=False):
    """The same training as a plain loop: returns the network and the averaged state."""
    network, inputs, labels = made(many)
    loss = multi_label_loss if many else F.cross_entropy
    velocity = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
    average, count = copy.deepcopy(network.state_dict()), 0
    alpha = recipe.mixup or recipe.regmixup
    network.train()
    for epoch in range(recipe.epochs):
        batches = epoch_batches(60, recipe.batch, generator(SEED, "order", epoch))
        shares = np.random.default_rng(derive_seed(SEED, "mix", epoch))
        shares = shares.beta(alpha, alpha, size=len(batches)) if alpha else np.ones(len(batches))
        for step, rows in enumerate(batches):
            share = float(np.float32(shares[step]))
            x, y = inputs[rows], labels[rows]
            before = copy.deepcopy(network.state_dict())

            def value(x=x, y=y, share=share):
                if not alpha:
                    return loss(network(x), y)
                x2, y2 = x.roll(1, 0), y.roll(1, 0)
                mixed = share * x + (1 - share) * x2
                if recipe.mixup:
                    out, clean = network(mixed), 0.0
                else:
                    clean, out = network(torch.cat([x, mixed])).chunk(2)
                    clean = loss(clean, y)
                return clean + share * loss(out, y) + (1 - share) * loss(out, y2)

            slopes = torch.autograd.grad(value(), list(network.parameters()))
            if recipe.sharpness:
                statistics = copy.deepcopy(dict(network.named_buffers()))
                norm = math.sqrt(sum(float(each.double().square().sum()) for each in slopes))
                with torch.no_grad():
                    for parameter, slope in zip(network.parameters(), slopes, strict=True):
                        parameter += recipe.sharpness * slope / norm
                slopes = torch.autograd.grad(value(), list(network.parameters()))
                for name, parameter in network.named_parameters():
                    parameter.data.copy_(before[name])
                for name, buffer in network.named_buffers():
                    buffer.copy_(statistics[name])
            if recipe.schedule == "cosine":
                rate = recipe.learning_rate * math.cos(math.pi * count / 2 / (3 * len(batches))) ** 2
            else:
                rate = recipe.learning_rate * (0.1 if epoch == 2 else 1)
            with torch.no_grad():
                for (name, parameter), slope in zip(network.named_parameters(), slopes, strict=True):
                    velocity[name] = 0.9 * velocity[name] + slope + recipe.weight_decay * parameter
                    parameter -= rate * velocity[name]
            decay = min(recipe.weight_average, (1 + count) / (AVERAGE_WARM_UP + count))
            for name, now in network.state_dict().items():
                average[name] = decay * average[name] + (1 - decay) * now if now.is_floating_point() else now
            count += 1
    return network, average


def multi_label_loss(logits, labels):
    known = labels >= 0
    return F.binary_cross_entropy_with_logits(logits[known], labels[known].float())


def close(left, right):
    return all(torch.allclose(left[name].float(), right[name].float(), atol=2e-5) for name in right)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schedule": "cosine"},
        {"sharpness": 0.2},
        {"sharpness": 0.05, "schedule": "cosine", "weight_average": 0.9},
        {"mixup": 0.4},
        {"regmixup": 10.0},
        {"sharpness": 0.1, "regmixup": 10.0},
    ],
    ids=str,
)
def test_training_is_the_same_as_a_loop_by_hand(changes, many):
    recipe = replace(PLAIN, **changes)
    network, average = by_hand(recipe, many)
    assert close(
        trained(recipe, many).state_dict(), average if recipe.weight_average else network.state_dict()
    )


@pytest.mark.parametrize(
    "changes",
    [{"sharpness": 0.1}, {"weight_average": 0.9}, {"schedule": "cosine"}, {"mixup": 0.4}, {"regmixup": 10.0}],
    ids=str,
)
def test_each_option_changes_the_weights(changes):
    plain, other = trained(PLAIN).state_dict(), trained(replace(PLAIN, **changes)).state_dict()
    assert not close(plain, other)


def test_the_average_includes_the_statistics_of_batchnorm():
    last, average = (trained(replace(PLAIN, weight_average=each)) for each in (0.0, 0.95))
    for name in ("1.running_mean", "1.running_var"):
        assert not torch.allclose(last.state_dict()[name], average.state_dict()[name])
    name = "1.num_batches_tracked"
    assert torch.equal(last.state_dict()[name], average.state_dict()[name])


@pytest.mark.parametrize("steps", [1, 5, 11])
def test_a_stopped_training_resumes_to_the_same_weights(steps):
    recipe = replace(
        PLAIN, sharpness=0.1, schedule="cosine", weight_average=0.9, regmixup=5.0, label_smoothing=0.1
    )
    saved, count = [], iter(range(1, 100))
    hooks = Hooks(save=saved.append, must_stop=lambda: next(count) == steps)
    with pytest.raises(StoppedError):
        trained(recipe, hooks=hooks)
    resumed, whole = trained(recipe, checkpoint=saved[-1]), trained(recipe)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_dropout_is_drawn_from_the_seed_of_each_step():
    def weights(seed):
        network, inputs, labels = made()
        network.append(nn.Dropout(0.5))
        torch.manual_seed(seed)
        recipe = replace(PLAIN, sharpness=0.1)
        train(network, Points(inputs), labels, Classification(ONE), recipe, seed=SEED, device=CPU)
        return network[0].weight

    assert torch.equal(weights(0), weights(1))


def test_the_cosine_falls_from_the_rate_to_nothing():
    recipe = replace(PLAIN, schedule="cosine", epochs=10)
    rates = [recipe.rate(epoch / 4) for epoch in range(41)]
    assert rates[0] == recipe.learning_rate
    assert rates[20] == pytest.approx(recipe.learning_rate / 2)
    assert rates[40] == pytest.approx(0, abs=1e-15)
    assert all(after < before for before, after in pairwise(rates))


def test_smoothing_spreads_its_share_over_the_classes():
    logits, labels = (
        torch.randn(6, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 3, 0, 1]),
    )
    target = 0.7 * F.one_hot(labels, 4) + 0.3 / 4
    expected = -(target * logits.log_softmax(1)).sum(1).mean()
    assert torch.allclose(classification_loss(logits, labels, ONE, 0.3), expected)
    assert torch.allclose(sampled_loss(logits[None], labels, ONE, 0.3), expected)


def test_smoothing_of_many_labels_is_towards_a_half_and_leaves_out_ignored_ones():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(-1, 2, (6, 4), generator=torch.Generator().manual_seed(1))
    known = labels >= 0
    target = labels[known] * 0.7 + 0.15
    expected = F.binary_cross_entropy_with_logits(logits[known], target)
    assert torch.allclose(classification_loss(logits, labels, MANY, 0.3), expected)


def test_smoothing_of_a_sampled_loss_is_of_the_mean_probability():
    logits = torch.randn(5, 6, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    mean = logits.softmax(2).mean(0)
    target = 0.8 * F.one_hot(labels, 3) + 0.2 / 3
    expected = -(target * mean.log()).sum(1).mean()
    assert torch.allclose(sampled_loss(logits, labels, ONE, 0.2), expected)
