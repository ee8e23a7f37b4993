import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logsumexp, softmax
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import nn
from torch.overrides import TorchFunctionMode

from surefoot import InputError, LabelKind
from surefoot.lab import novelty as knn
from surefoot.lab.networks.external import UserNetwork
from surefoot.lab.novelty import (
    NOVELTY_SCORES,
    distances_within,
    energy,
    max_probability,
    neighbour_distances,
    novelty_scores,
    odin,
)
from surefoot.lab.training.predict import predict
from surefoot.predictions.novelty import Scale, auroc, fit_scale
from tests.novelty.samples import perceptron, points, views_of

CPU = torch.device("cpu")


def draw(n=200, classes=5, size=3.0, seed=0):
    return size * np.random.default_rng(seed).standard_normal((n, classes))


def nearest(features, reference, k):
    """The k-th smallest distance by scikit-learn."""
    features, reference = (
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in (features, reference)
    )
    return NearestNeighbors(n_neighbors=k, algorithm="brute").fit(reference).kneighbors(features)[0][:, -1]


def test_energy_is_scipy_s():
    logits = draw()
    one, many = (energy(torch.from_numpy(logits), kind).numpy() for kind in LabelKind)
    assert np.allclose(one, -logsumexp(logits, axis=1), rtol=1e-13)
    assert np.allclose(many, -np.logaddexp(0, logits).sum(axis=1), rtol=1e-13)
    assert energy(torch.zeros(1, 2), LabelKind.ONE_LABEL).dtype == torch.float64


def test_max_probability_is_scipy_s():
    logits = draw()
    one, many = (max_probability(torch.from_numpy(logits), kind).numpy() for kind in LabelKind)
    assert np.allclose(one, 1 - softmax(logits, axis=1).max(axis=1), rtol=1e-9)
    assert np.allclose(many, (1 - np.maximum(expit(logits), 1 - expit(logits))).mean(axis=1), rtol=1e-9)


def test_the_surest_samples_do_not_tie():
    logits = torch.tensor([[50.0, 0.0, 0.0], [60.0, 0.0, 0.0]])
    found = max_probability(logits, LabelKind.ONE_LABEL).tolist()
    assert found == pytest.approx([2 * np.exp(-50), 2 * np.exp(-60)], rel=1e-12)


@pytest.mark.parametrize(("n", "k"), [(300, 50), (51, 50), (50, 49), (2, 1)])
def test_distances_are_scikit_learn_s(n, k, monkeypatch):
    monkeypatch.setattr(knn, "QUERIES_AT_ONCE", 32)  # in several parts, some of fewer rows than neighbours
    monkeypatch.setattr(knn, "REFERENCES_AT_ONCE", 40)
    features, reference = draw(70, 6, seed=1), draw(n, 6, seed=2)
    found = neighbour_distances(torch.from_numpy(features), torch.from_numpy(reference), device=CPU)
    assert np.allclose(found.numpy(), nearest(features, reference, k), rtol=1e-9)
    within = distances_within(torch.from_numpy(reference), device=CPU)
    expected = [nearest(reference[[i]], np.delete(reference, i, axis=0), k)[0] for i in range(n)]
    assert np.allclose(within.numpy(), expected, rtol=1e-9)


class Far(TorchFunctionMode):
    """Lets tensors of the "meta" device come back to the CPU, as zeros, and notes where distances are made."""

    def __init__(self):
        super().__init__()
        self.products = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.cpu and args[0].device.type == "meta":
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        result = function(*args, **(kwargs or {}))
        if function is torch.addmm:
            self.products.add(result.device.type)
        return result


@pytest.mark.parametrize("n", [300, 41])
@pytest.mark.parametrize("own", [False, True])
def test_distances_are_made_on_the_device_and_come_back(own, n, monkeypatch):
    """The "meta" device stands for a GPU: like one it refuses tensors of the CPU, so nothing may be made there."""
    monkeypatch.setattr(knn, "QUERIES_AT_ONCE", 32)
    monkeypatch.setattr(knn, "REFERENCES_AT_ONCE", 40)
    features, reference = torch.from_numpy(draw(70, 6)), torch.from_numpy(draw(n, 6))
    with Far() as far:
        if own:
            found = distances_within(reference, device=torch.device("meta"))
        else:
            found = neighbour_distances(features, reference, device=torch.device("meta"))
    assert far.products == {"meta"}
    assert (found.device, found.shape, found.dtype) == (CPU, (n if own else 70,), torch.float64)


def test_equal_samples_are_neighbours_but_not_of_themselves():
    same = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])  # two alike, but for their length
    assert distances_within(same, device=CPU).tolist() == pytest.approx([2**0.5] * 3)
    assert distances_within(same[:2], device=CPU).tolist() == pytest.approx([0, 0], abs=1e-7)
    with pytest.raises(InputError, match="1 reference samples; allowed: two or more"):
        neighbour_distances(same, same[:1], device=CPU)


@pytest.mark.parametrize("kind", list(LabelKind))
def test_every_score_of_every_set(kind):
    network = perceptron()
    inputs = {"train": points(80), "val": points(60, 1), "far": points(300, 2, size=20.0)}
    found = novelty_scores(network, inputs, reference=["train", "val"], kind=kind, device=CPU)
    assert list(found) == [each.name for each in NOVELTY_SCORES]
    for values in found.values():
        assert {key: (len(value), value.dtype) for key, value in values.items()} == {
            "train": (80, np.float64), "val": (60, np.float64), "far": (300, np.float64),
        }  # fmt: skip
    network.eval()
    for key, samples in inputs.items():
        logits = predict([network], samples, CPU)[0]
        assert np.allclose(found["energy"][key], energy(logits, kind), rtol=1e-6)
        assert np.allclose(found["max-probability"][key], max_probability(logits, kind), rtol=1e-5)
        assert np.array_equal(found["odin"][key], odin(network, samples, kind=kind, device=CPU))
    with torch.no_grad():
        features = {key: network.features(views_of(each)).double().numpy() for key, each in inputs.items()}
    is_ensemble = np.concatenate([features["train"], features["val"]])
    assert np.allclose(found["knn"]["far"], nearest(features["far"], is_ensemble, 50), atol=1e-6)
    own = nearest(is_ensemble, is_ensemble, 51)  # the first of the 51 is the sample itself
    assert np.allclose(np.concatenate([found["knn"]["train"], found["knn"]["val"]]), own, atol=1e-6)


def test_only_what_is_asked_for_and_no_features_needed():
    network = UserNetwork(nn.Linear(2, 3))
    arguments = {"reference": ["train"], "kind": LabelKind.ONE_LABEL, "device": CPU}
    found = novelty_scores(network, {"train": points(9)}, names=["energy", "odin"], eps=0.1, **arguments)
    assert list(found) == ["energy", "odin"]
    assert np.array_equal(
        found["odin"]["train"], odin(network, points(9), kind=LabelKind.ONE_LABEL, device=CPU, eps=0.1)
    )
    with pytest.raises(InputError, match="gives logits only"):
        novelty_scores(network, {"train": points(9)}, **arguments)


def test_logits_are_the_network_s_own_where_the_head_is_unknown():
    model = nn.Linear(2, 3)
    model.features = nn.Linear(2, 4)  # a part of that name, with which the logits have nothing to do
    found = novelty_scores(
        UserNetwork(model), {"a": points(9)}, reference=["a"], kind=LabelKind.ONE_LABEL, device=CPU
    )
    expected = energy(model(points(9).values).detach(), LabelKind.ONE_LABEL)
    assert np.allclose(found["energy"]["a"], expected, rtol=1e-6)


REFUSED = {
    "score": ({"names": ["mahalanobis"]}, "unknown novelty score 'mahalanobis'; have: odin, energy, knn, max-probability"),
    "set": ({"reference": ["val"]}, "unknown reference set 'val'; have: train"),
    "no set": ({"reference": []}, "no reference set for 'knn'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    options, message = REFUSED[case]
    arguments = {"reference": ["train"], "kind": LabelKind.ONE_LABEL, "device": CPU, **options}
    with pytest.raises(InputError, match=message):
        novelty_scores(perceptron(), {"train": points(5)}, **arguments)


SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def test_percentiles_go_to_nought_and_one():
    scores = np.random.default_rng(0).standard_normal(1001) * 1e-7 - 0.3334  # as close together as ODIN's
    scale = fit_scale(scores)
    ordered = np.sort(scores)
    assert (scale.low, scale.high) == (ordered[50], ordered[950])
    found = scale(ordered)
    assert (found[:51] == 0).all()
    assert (found[950:] == 1).all()
    assert found[500] == pytest.approx((ordered[500] - ordered[50]) / (ordered[950] - ordered[50]))
    assert scale([-9, 9]).tolist() == [0, 1]


@given(SCORES, SCORES)
def test_always_between_nought_and_one_and_never_out_of_order(reference, scores):
    found = fit_scale(reference)(sorted(scores))
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()


def test_equal_percentiles_give_nought():
    assert fit_scale([2.0, 2.0, 2.0]) == Scale(2.0, 2.0)
    assert Scale(2.0, 2.0)([1.0, 2.0, 3.0]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("scores", [[], [1.0, math.nan], [math.inf]])
def test_refuses_scores(scores):
    with pytest.raises(InputError, match="allowed: one or more finite numbers"):
        fit_scale(scores)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30), st.lists(st.integers(0, 6), min_size=1, max_size=30)
)
def test_auroc_is_scikit_learn_s_with_ties(familiar, unfamiliar):
    expected = roc_auc_score([0] * len(familiar) + [1] * len(unfamiliar), familiar + unfamiliar)
    assert auroc(familiar, unfamiliar) == pytest.approx(expected, abs=1e-12)


def test_auroc_of_nothing_is_undefined():
    assert math.isnan(auroc([], [1.0]))
    assert math.isnan(auroc([1.0], []))
    assert auroc([0.0, 1.0], [2.0, 3.0]) == 1
