import copy
import math

import numpy as np
import pytest
import torch

from surefoot import InputError, LabelKind
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.novelty import STEP, log_score, novelty_scores, odin, stepped
from surefoot.lab.training.data import Images, images_from
from tests.novelty.samples import images, perceptron, points, residual, views_of

CPU = torch.device("cpu")
KINDS = list(LabelKind)


def score(network, view, kind):
    """The score of one sample, from the definition."""
    cooled = network(view.unsqueeze(0))[0] / 1000
    if kind is LabelKind.ONE_LABEL:
        return torch.softmax(cooled, 0).max()
    sure = torch.sigmoid(cooled)
    return torch.maximum(sure, 1 - sure).log().mean()


DEVIATIONS = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).reshape(3, 1, 1)  # of ImageNet


def slow_odin(network, inputs, kind, eps):
    """One sample at a time, in float64 throughout: after the step, and without it.

    As in the authors' code, the sign of the gradient is divided by each channel's deviation: a step of eps in
    pixel values from 0 to 1 is one of eps / deviation in the normalised ones. Points are not normalised.
    """
    unit = DEVIATIONS if isinstance(inputs, Images) else 1.0
    network = copy.deepcopy(network).double().eval()
    found = []
    for view in views_of(inputs).double():
        leaf = view.clone().requires_grad_()
        before = score(network, leaf, kind)
        log_before = before.log() if kind is LabelKind.ONE_LABEL else before
        (slope,) = torch.autograd.grad(-log_before, leaf)
        with torch.no_grad():
            found.append(torch.stack([-score(network, view - eps * slope.sign() / unit, kind), -before]))
    return torch.stack(found, dim=1)


CASES = {
    "mlp": (perceptron, points(70), STEP),
    "mlp, a large step": (perceptron, points(70), 0.05),
    "resnet": (residual, images(3), STEP),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_one_sample_at_a_time(case, kind):
    make, inputs, eps = CASES[case]
    network = make()
    found = odin(network, inputs, kind=kind, device=CPU, eps=eps)
    expected, still = slow_odin(network, inputs, kind, eps)
    assert found.dtype == torch.float64
    assert (found - expected).abs().max() < 3e-9
    assert (expected - still).abs().median() > 3e-8  # the step is seen


@pytest.mark.parametrize("kind", KINDS)
def test_the_step_raises_the_score(kind):
    """By finite differences: moving a number as the step does never makes the network less sure."""
    network = copy.deepcopy(perceptron()).double().eval()
    views = views_of(points(100)).double()
    direction = (stepped(network, views, kind, 1.0) - views).round()
    with torch.no_grad():
        before = log_score(network(views), kind)
        for column in range(2):
            alone = torch.zeros_like(views)
            alone[:, column] = 1e-6 * direction[:, column]
            assert (log_score(network(views + alone), kind) > before).double().mean() > 0.97
        assert (log_score(network(views + 1e-6 * direction), kind) > before).all()


def state(network):
    """All that a caller could notice."""
    return {
        "modes": [module.training for module in network.modules()],
        "asked": [parameter.requires_grad for parameter in network.parameters()],
        "slopes": [None if p.grad is None else p.grad.clone() for p in network.parameters()],
        "values": {name: value.clone() for name, value in network.state_dict().items()},
    }


@pytest.mark.parametrize("make", [perceptron, residual])
def test_the_network_is_left_as_it_was_found(make):
    network, inputs = make(), points(70) if make is perceptron else images(5)
    first, second, *_ = network.parameters()
    first.requires_grad_(False)
    second.grad = torch.full_like(second, 3.0)
    network.head.eval()  # one part in another mode than the rest
    before = state(network)
    novelty_scores(network, {"train": inputs}, reference=["train"], kind=LabelKind.ONE_LABEL, device=CPU)
    after = state(network)
    assert before["modes"] == after["modes"]
    assert len(set(after["modes"])) == 2
    assert before["asked"] == after["asked"]
    for old, new in zip(before["slopes"], after["slopes"], strict=True):
        assert (old is None) == (new is None)
        assert old is None or torch.equal(old, new)
    assert before["values"].keys() == after["values"].keys()
    assert all(torch.equal(before["values"][name], after["values"][name]) for name in after["values"])


def test_modes_come_back_after_an_error():
    network = perceptron()
    with pytest.raises(RuntimeError):
        odin(network, images(3), kind=LabelKind.ONE_LABEL, device=CPU)
    assert all(module.training for module in network.modules())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_where_slopes_are_off(context):
    network, inputs = perceptron(), points(70)
    expected = odin(network, inputs, kind=LabelKind.ONE_LABEL, device=CPU)
    with context():
        assert torch.equal(odin(network, inputs, kind=LabelKind.ONE_LABEL, device=CPU), expected)


@pytest.mark.parametrize("eps", [-1e-3, math.nan, math.inf])
def test_refuses_steps(eps):
    with pytest.raises(InputError, match=r"eps is .*; allowed: a number from 0"):
        odin(perceptron(), points(3), kind=LabelKind.ONE_LABEL, device=CPU, eps=eps)


def test_the_step_is_the_paper_s_by_default():
    network, inputs = perceptron(), points(20)
    expected = odin(network, inputs, kind=LabelKind.ONE_LABEL, device=CPU, eps=0.0014)
    assert torch.equal(odin(network, inputs, kind=LabelKind.ONE_LABEL, device=CPU), expected)
    scores = novelty_scores(
        network, {"test": inputs}, reference=(), kind=LabelKind.ONE_LABEL, device=CPU, names=["odin"]
    )
    assert scores["odin"]["test"].tolist() == expected.tolist()


def test_the_step_is_one_of_pixel_values():
    """From pixels, without the normalised views: S at pixels moved by eps, in units from 0 to 1."""
    network, inputs, eps = residual().eval(), images(4), 0.01
    means = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
    pixels = views_of(inputs) * DEVIATIONS.float() + means  # of the crop, from 0 to 1
    leaf = pixels.clone().requires_grad_()
    logits = network((leaf - means) / DEVIATIONS.float())
    (slope,) = torch.autograd.grad(1000 * (logits / 1000).log_softmax(1).amax(1).sum(), leaf)
    with torch.no_grad():
        moved = network((pixels + eps * slope.sign() - means) / DEVIATIONS.float()).double()
    expected = -(moved / 1000).softmax(1).amax(1)
    found = odin(network, inputs, kind=LabelKind.ONE_LABEL, device=CPU, eps=eps)
    still = odin(network, inputs, kind=LabelKind.ONE_LABEL, device=CPU, eps=0.0)
    assert (found - expected).abs().max() < 0.01 * (found - still).abs().min()


def test_images_of_one_channel_have_the_mean_deviation():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 9, 9, 1), dtype=np.uint8)
    inputs = images_from(pixels, view=8, resize=9, augmentation="none")
    network = build_network("mlp", 3, generator=torch.Generator().manual_seed(0), hidden=(16,), inputs=64)
    network.eval()
    views = views_of(inputs)
    moved = stepped(network, views, LabelKind.ONE_LABEL, 0.5 / 0.226)
    with torch.no_grad():
        expected = -(network(moved).double() / 1000).softmax(1).amax(1)
    found = odin(network, inputs, kind=LabelKind.ONE_LABEL, device=CPU, eps=0.5)
    assert (found - expected).abs().max() < 1e-9
