"""Losses against what they are defined to be, worked out in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_expit, log_softmax, logsumexp, softmax

from surefoot.lab.training.losses import (
    Distillation,
    NoisyClassification,
    classification_loss,
    distillation_loss,
    sampled_loss,
)
from surefoot.predictions.labels import IGNORE, LabelKind

ONE, MANY = LabelKind.ONE_LABEL, LabelKind.MANY_LABELS


def drawn(*shape, seed=0, size=3.0):
    return np.random.default_rng(seed).normal(size=shape) * size


def test_classification_leaves_out_what_is_ignored():
    z, y = drawn(5, 3), np.array([0, 2, IGNORE, 1, IGNORE])
    known = y >= 0
    expected = -log_softmax(z, axis=1)[known, y[known]].mean()
    assert float(classification_loss(torch.from_numpy(z), torch.from_numpy(y), ONE)) == pytest.approx(
        expected, rel=1e-6
    )
    labels = np.array([[1, 0, IGNORE], [0, IGNORE, 1], [1, 1, 1], [0, 0, 0], [IGNORE] * 3])
    each = np.where(labels == 1, log_expit(z), log_expit(-z))
    expected = -each[labels >= 0].mean()
    found = classification_loss(torch.from_numpy(z), torch.from_numpy(labels), MANY)
    assert float(found) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(1, 7), st.sampled_from([1e-2, 1.0, 30.0]))
def test_sampled_loss_is_minus_the_log_of_the_mean_probability(seed, samples, size):
    z, y = drawn(samples, 6, 4, seed=seed, size=size), np.array([0, 1, 2, 3, IGNORE, 0])
    log_p = log_softmax(z, axis=2)[:, np.arange(6), np.maximum(y, 0)]
    expected = -(logsumexp(log_p, axis=0) - math.log(samples))[y >= 0].mean()
    assert float(sampled_loss(torch.from_numpy(z), torch.from_numpy(y), ONE)) == pytest.approx(
        expected, rel=1e-4, abs=1e-6
    )
    labels = np.where(drawn(6, 4, seed=seed) > 0, 1, 0)
    labels[0, 0] = IGNORE
    log_p = np.where(labels == 1, log_expit(z), log_expit(-z))
    expected = -(logsumexp(log_p, axis=0) - math.log(samples))[labels >= 0].mean()
    found = sampled_loss(torch.from_numpy(z), torch.from_numpy(labels), MANY)
    assert float(found) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", [ONE, MANY])
def test_sampled_loss_and_its_slope_are_finite_up_to_ten_thousand(kind):
    z = torch.tensor([[[1e4, -1e4, 0.0]], [[-1e4, 1e4, 1e4]]], requires_grad=True)
    y = torch.tensor([1]) if kind is ONE else torch.tensor([[0, 1, IGNORE]])
    loss = sampled_loss(z, y, kind)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()
    if kind is ONE:
        assert float(loss.detach()) == pytest.approx(math.log(4))  # one sample of two, and there a tie of two


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_distillation_loss_by_hand(temperature):
    z, t = drawn(7, 3), log_softmax(drawn(7, 3, seed=1), axis=1)
    expected = (
        temperature**2
        * -(softmax(t / temperature, axis=1) * log_softmax(z / temperature, axis=1)).sum(axis=1).mean()
    )
    tensors = torch.from_numpy(z), torch.from_numpy(t)
    assert float(distillation_loss(*tensors, temperature, ONE)) == pytest.approx(expected, rel=1e-6)
    q = expit(t / temperature)
    expected = (
        temperature**2 * -(q * log_expit(z / temperature) + (1 - q) * log_expit(-z / temperature)).mean()
    )
    assert float(distillation_loss(*tensors, temperature, MANY)) == pytest.approx(expected, rel=1e-6)


def test_distillation_adds_the_loss_of_the_targets_and_of_the_labels():
    views, outputs = torch.randn(4, 2), torch.randn(4, 2)
    rows, labels = torch.tensor([3, 1, 0, 2]), torch.tensor([0, 1, IGNORE, IGNORE])
    targets = torch.randn(4, 2).log_softmax(dim=1)
    loss = Distillation(ONE, 2.0, 0.5, targets)(outputs, views, rows, labels)
    expected = distillation_loss(outputs, targets[rows], 2.0, ONE)
    assert torch.allclose(loss, expected + 0.5 * classification_loss(outputs, labels, ONE))


def test_noise_goes_by_the_variance():
    objective = NoisyClassification(ONE, 4000)
    mean, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    torch.manual_seed(0)
    still = objective((mean, torch.full((1, 2), 1e-8)), mean, labels, labels)
    noisy = objective((mean, torch.full((1, 2), 9.0)), mean, labels, labels)
    assert float(still) == pytest.approx(-float(mean.log_softmax(1)[0, 0]), abs=1e-3)
    # The difference of the logits is N(2, 18): the mean of its sigmoid, by quadrature.
    d = np.linspace(-30, 34, 20001)
    density = np.exp(-((d - 2) ** 2) / 36) / math.sqrt(36 * math.pi)
    assert float(noisy) == pytest.approx(-math.log(np.trapezoid(expit(d) * density, d)), abs=0.03)
