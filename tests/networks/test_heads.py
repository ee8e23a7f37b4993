import pytest
import torch
from torch.nn import functional as F

from surefoot.lab.networks import heads
from surefoot.lab.networks.heads import HEADS, GaussianHead, LinearHead, add_noise
from tests.networks.conftest import seeded, small

SAMPLES = 40_000


def draw(shape, seed=1):
    return torch.randn(shape, generator=seeded(seed))


def fixed(head):
    """The same head with weights from a seed."""
    with torch.no_grad():
        for seed, parameter in enumerate(head.parameters()):
            parameter.copy_(draw(parameter.shape, seed))
    return head


def dropout_variance(head, features):
    """Var sum_j w_cj m_j f_j / (1 - p) = p / (1 - p) sum_j (w_cj f_j)^2."""
    rate = head.dropout.p
    return rate / (1 - rate) * (features**2) @ (head.weight**2).T


def assert_moments(samples, mean, variance):
    """Within five standard errors; the variance's from the fourth moment of the samples themselves."""
    samples = samples.double()
    error = (samples.var(dim=0) / len(samples)).sqrt()
    assert ((samples.mean(dim=0) - mean).abs() <= 5 * error + 1e-6).all()
    squares = (samples - samples.mean(dim=0)) ** 2
    error = (squares.var(dim=0) / len(samples)).sqrt()
    assert ((squares.mean(dim=0) - variance).abs() <= 5 * error + 1e-6).all()


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.5])
def test_dropout_samples_have_the_mean_and_variance_of_the_formula(rate):
    head, features = fixed(LinearHead(6, 3, dropout=rate)).eval(), draw((4, 6))
    samples = head.sample_logits(features, SAMPLES, seeded())
    assert samples.shape == (SAMPLES, 4, 3)
    assert_moments(samples, head(features), dropout_variance(head, features))


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_noise_and_dropout_add_up(rate):
    head, features = fixed(GaussianHead(6, 3, dropout=rate)).eval(), draw((4, 6))
    with torch.no_grad():
        head.variance.weight.zero_()  # then the noise does not depend on what is dropped
    noise = F.softplus(head.variance.bias)
    samples = head.sample_logits(features, SAMPLES, seeded())
    assert_moments(samples, head(features), dropout_variance(head, features) + noise)


def test_the_noise_follows_the_variance_head():
    head, features = fixed(GaussianHead(6, 3)).eval(), draw((4, 6))
    mean, variance = head.mean_and_variance(features)
    assert torch.equal(mean, head(features))
    assert_moments(head.sample_logits(features, SAMPLES, seeded()), mean, variance)


def test_noise_for_the_training_loss():
    mean, variance = draw((4, 3)), draw((4, 3), 2).exp()
    assert_moments(add_noise(mean.expand(SAMPLES, -1, -1), variance, seeded()), mean, variance)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_variance_is_positive_and_finite_for_extreme_features(scale, sign):
    head = fixed(GaussianHead(6, 3))
    features = torch.full((1, 6), sign * scale, requires_grad=True)
    _, variance = head.mean_and_variance(features)
    assert (variance > 0).all()
    assert torch.isfinite(variance).all()
    variance.sqrt().sum().backward()
    assert torch.isfinite(features.grad).all()


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.name)
class TestEveryHead:
    def test_same_seed_same_samples(self, kind):
        head, features = fixed(kind.build(6, 3, dropout=0.3)), draw((4, 6))
        first = head.sample_logits(features, 5, seeded())
        assert torch.equal(first, head.sample_logits(features, 5, seeded()))
        assert not torch.equal(first, head.sample_logits(features, 5, seeded(1)))

    def test_sampling_is_the_same_in_both_modes_and_leaves_the_global_generator(self, kind):
        head, features = fixed(kind.build(6, 3, dropout=0.3)), draw((4, 6))
        before = torch.get_rng_state()
        training = head.train().sample_logits(features, 5, seeded())
        assert torch.equal(training, head.eval().sample_logits(features, 5, seeded()))
        assert torch.equal(before, torch.get_rng_state())

    def test_forward_drops_in_training_mode_only(self, kind):
        head, features = fixed(kind.build(6, 3, dropout=0.5)), draw((4, 6))
        expected = features @ head.weight.T + head.bias
        assert torch.allclose(head.eval()(features), expected, atol=1e-5)
        assert not torch.allclose(head.train()(features), expected, atol=1e-5)

    def test_samples_in_chunks_have_the_same_shape_and_moments(self, kind, monkeypatch):
        head, features = fixed(kind.build(6, 3, dropout=0.2)).eval(), draw((4, 6))
        whole = head.sample_logits(features, 10_000, seeded())
        monkeypatch.setattr(heads, "LARGEST_CHUNK", 6 * 4 * 3_000)
        parts = head.sample_logits(features, 10_000, seeded())
        assert parts.shape == whole.shape
        assert torch.allclose(parts.mean(dim=0), whole.mean(dim=0), atol=0.2)
        monkeypatch.setattr(heads, "LARGEST_CHUNK", 1)
        assert head.sample_logits(features, 3, seeded()).shape == (3, 4, 3)

    def test_no_rows(self, kind):
        assert kind.build(6, 3, dropout=0.2).sample_logits(torch.zeros(0, 6), 2, seeded()).shape == (2, 0, 3)

    def test_gradients_reach_the_features_and_every_weight(self, kind):
        head = fixed(kind.build(6, 3, dropout=0.2))
        features = draw((4, 6)).requires_grad_()
        head.sample_logits(features, 50, seeded()).square().sum().backward()
        for tensor in (features, *head.parameters()):
            assert tensor.grad.abs().sum() > 0

    def test_samples_under_autocast_are_float32(self, kind):
        head, features = fixed(kind.build(6, 3, dropout=0.2)), draw((4, 6))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            samples = head.sample_logits(features, 5, seeded())
        assert samples.dtype == torch.float32
        assert torch.allclose(samples, head.sample_logits(features, 5, seeded()), atol=0.1)

    def test_compiles_in_one_piece(self, kind):
        head, features = fixed(kind.build(6, 3, dropout=0.2)).eval(), draw((4, 6))
        compiled = torch.compile(head, backend="eager", fullgraph=True)
        assert torch.equal(compiled(features), head(features))


def test_a_thinned_layer_is_the_layer_on_dropped_features():
    head, features = fixed(LinearHead(6, 3, dropout=0.4)), draw((4, 6))
    masks = heads.dropout_masks(features, 0.4, 5, seeded())
    assert {round(float(value), 5) for value in masks.flatten()} == {0.0, round(1 / 0.6, 5)}
    expected = torch.stack([(features * mask) @ head.weight.T + head.bias for mask in masks])
    assert torch.allclose(head.sample_logits(features, 5, seeded()), expected, atol=1e-5)


def test_nothing_is_sampled_where_there_is_nothing_to_sample():
    head, features = fixed(LinearHead(6, 3)), draw((4, 6))
    samples = head.sample_logits(features, 5, seeded())
    assert samples.shape == (5, 4, 3)
    assert torch.equal(samples[3], head(features))


def test_a_network_samples_from_one_pass_through_the_backbone(monkeypatch):
    network, points = small(head="gaussian", head_dropout=0.2, layer_dropout=0.0).eval(), draw((4, 2))
    passes = []
    network.hidden.register_forward_hook(lambda *_: passes.append(1))
    samples = network.sample_logits(points, 20, seeded())
    assert len(passes) == 1
    assert torch.equal(samples, network.head.sample_logits(network.features(points), 20, seeded()))
