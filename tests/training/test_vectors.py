"""Training on vectors: logistic regression against scikit-learn's, noise and dropout of features by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from surefoot import InputError, LabelKind
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks.features import Category, Encoding, Number, Vector
from surefoot.lab.tasks.task import Samples, Split, Task
from surefoot.lab.training.data import FeatureLayout, Points, task_inputs
from surefoot.lab.training.initial import initial_network
from surefoot.lab.training.loop import train
from surefoot.lab.training.losses import Classification

CPU = torch.device("cpu")
ENCODING = Encoding((Number("age", 40.0, 9.0, False), Category("ward", ("a", "b")), Vector("e", 2)))


def made(n=300, seed=0):
    """Three overlapping classes of four numbers: no weights separate them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    values = rng.standard_normal((n, 4)) + np.asarray([[0, 0, 0, 0], [1, 0, 1, 0], [0, 1, -1, 0]])[labels]
    return values.astype(np.float32), labels


def task_of(values, labels):
    half = len(values) // 2
    splits = {
        split: Samples(np.asarray([f"{split}{i}" for i in range(half)]), labels[rows], values[rows])
        for split, rows in ((Split.TRAIN, slice(half)), (Split.VAL, slice(half, None)))
    }
    return Task("vectors", LabelKind.ONE_LABEL, ("a", "b", "c"), splits)


def test_a_linear_network_is_logistic_regression(tmp_path):
    task = task_of(*made(600))
    recipe = Recipe(network="linear", learning_rate=0.5, epochs=200, batch=1000)
    inputs = task_inputs(task, recipe, cache=tmp_path)
    network = initial_network(recipe, task, inputs, seed=0, weights=None)
    labels = task.splits[Split.TRAIN].labels
    objective = Classification(LabelKind.ONE_LABEL, 0.0)
    train(network, inputs[Split.TRAIN], torch.from_numpy(labels), objective, recipe, seed=1, device=CPU)
    oracle = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(
        task.splits[Split.TRAIN].inputs, labels
    )
    with torch.no_grad():
        ours = network(inputs[Split.VAL].values).softmax(dim=1).numpy()
    np.testing.assert_allclose(ours, oracle.predict_proba(task.splits[Split.VAL].inputs), atol=1e-4)


def test_views_are_noisy_numbers_and_unknown_features():
    layout = FeatureLayout.of(ENCODING)
    values = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32))
    points = Points(values, noise=0.3, dropout=0.25, layout=layout)
    draws = points.draws(2, 50, torch.Generator().manual_seed(0))
    assert draws.shape == (2, 7 + 4, 50)
    rows = torch.arange(50)
    views = points.training_views(points.fetch(rows, CPU), rows, draws[1]).numpy()
    uniform = draws[1].numpy().astype(np.float64)
    expected = values.numpy().copy()
    for column in (0, 5, 6):  # the number, and those of the vector; the others are marks
        expected[:, column] += 0.3 * norm.ppf(uniform[column])
    unknown = uniform[7:] < 0.25
    expected[unknown[0], :2] = [0, 1]
    expected[unknown[1], 2:5] = [0, 0, 1]
    expected[unknown[2], 5] = 0
    expected[unknown[3], 6] = 0
    np.testing.assert_allclose(views, expected, atol=2e-5)
    assert 0.15 < unknown.mean() < 0.35
    ends = torch.tensor([0.0, 1 - 2**-24]).expand(11, 2)
    assert torch.isfinite(points.training_views(values[:2], rows[:2], ends)).all()
    only = replace(points, noise=0.0)
    assert only.draws(1, 50, torch.Generator()).shape == (1, 4, 50)
    assert torch.equal(points.test_views(values, rows), values)


def test_without_noise_and_dropout_the_views_are_the_samples():
    points = Points(torch.randn(5, 3), layout=FeatureLayout.plain(3))
    assert not points.has_random_views
    draws = points.draws(3, 4, torch.Generator())
    assert draws.shape == (3, 0, 4)
    assert points.training_views(points.values, torch.arange(5), draws[0]) is points.values


def test_a_recipe_decides_its_own_views(tmp_path):
    """Also where the networks of one order have different recipes."""
    recipe = Recipe(network="mlp", width=8, epochs=2, learning_rate=0.1)
    values, labels = made()
    inputs = task_inputs(task_of(values, labels), recipe, cache=tmp_path)[Split.TRAIN]
    noisy = inputs.for_recipe(replace(recipe, feature_noise=0.1, feature_dropout=0.2))
    assert (inputs.has_random_views, noisy.has_random_views) == (False, True)
    assert noisy.take(torch.arange(3)).on(CPU).noise == 0.1
    trained = []
    for samples in (inputs, noisy, noisy):
        network = initial_network(
            recipe, task_of(values, labels), {Split.TRAIN: inputs}, seed=0, weights=None
        )
        objective = Classification(LabelKind.ONE_LABEL, 0.0)
        train(network, samples, torch.from_numpy(labels[:150]), objective, recipe, seed=1, device=CPU)
        trained.append(network.state_dict()["output.weight"])
    assert torch.equal(trained[1], trained[2])
    assert not torch.allclose(trained[0], trained[1], atol=1e-3)


def test_networks_and_options_of_the_other_kind_are_refused(tmp_path):
    task, recipe = task_of(*made()), Recipe(network="resnet18")
    inputs = task_inputs(task, recipe, cache=tmp_path)
    with pytest.raises(
        InputError, match=r"'resnet18' takes images, .* has vectors; allowed: mlp, linear, residual-mlp,"
    ):
        initial_network(recipe, task, inputs, seed=0, weights=None)
    pictures = task_of(np.zeros((10, 4, 4, 3), np.uint8), np.arange(10) % 3)
    small = Recipe(network="linear", view=4, resize=4, augmentation="none", feature_noise=0.1)
    images = task_inputs(pictures, small, cache=tmp_path)
    with pytest.raises(InputError, match=r"feature_noise is 0.1, and task 'vectors' has images; allowed: 0"):
        initial_network(small, pictures, images, seed=0, weights=None)
