import pytest
import torch
from torch import nn

from surefoot.lab.networks.architectures import DenseNet
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.networks.heads import LinearHead
from surefoot.lab.networks.network import sampling_dropout
from tests.networks.conftest import seeded, small


def tiny_densenet(rate):
    return DenseNet(
        lambda width: LinearHead(width, 3), growth=4, depths=(2, 2), stem_width=8, layer_dropout=rate
    ).eval()


def buffers(network):
    return {name: tensor.clone() for name, tensor in network.named_buffers()}


def test_dropout_samples_differ_follow_the_generator_and_leave_everything_as_it_was(images):
    network = tiny_densenet(0.3)
    modes = {name: module.training for name, module in network.named_modules()}
    before, state, plain = buffers(network), torch.get_rng_state(), network(images)

    def sample(seed):
        with sampling_dropout(network, seeded(seed)):
            assert not any(m.training for m in network.modules() if isinstance(m, nn.BatchNorm2d))
            return torch.stack([network(images) for _ in range(3)])

    samples = sample(0)
    assert not torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], plain)
    assert torch.equal(samples, sample(0))
    assert not torch.equal(samples, sample(1))
    assert torch.equal(network(images), plain)
    assert {name: module.training for name, module in network.named_modules()} == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.named_buffers())
    assert torch.equal(torch.get_rng_state(), state)


def test_samples_do_not_depend_on_the_global_generator(images):
    network, results = tiny_densenet(0.3), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        with sampling_dropout(network, seeded()):
            results.append(network(images))
    assert torch.equal(*results)


def test_two_uses_of_one_generator_differ(images):
    network, generator = tiny_densenet(0.3), seeded()
    results = []
    for _ in range(2):
        with sampling_dropout(network, generator):
            results.append(network(images))
    assert not torch.equal(*results)


def test_modes_are_restored_after_an_error():
    network = small().eval()
    with pytest.raises(RuntimeError), sampling_dropout(network, seeded()):
        network(torch.zeros(1, 3))  # two columns are allowed
    assert not any(module.training for module in network.modules())


def test_a_layer_in_training_mode_stays_in_it():
    network = small().eval()
    network.head.dropout.train()
    with sampling_dropout(network, seeded()):
        pass
    assert network.head.dropout.training
    assert not network.training


def test_dense_layers_drop_at_the_rate_that_was_asked_for():
    network = build_network("densenet161", 2, generator=seeded(), layer_dropout=0.2)
    rates = {name: m.p for name, m in network.named_modules() if isinstance(m, nn.Dropout)}
    assert rates.pop("classifier.dropout") == 0
    assert len(rates) == 6 + 12 + 36 + 24
    assert set(rates.values()) == {0.2}


def test_dropout_keeps_the_mean():
    layer, ones = tiny_densenet(0.2).features.denseblock1.denselayer1.dropout.train(), torch.ones(1_000_000)
    dropped = layer(ones)
    assert dropped.mean().item() == pytest.approx(1, abs=5 * (0.25 / 1e6) ** 0.5)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.2, abs=5 * (0.16 / 1e6) ** 0.5)
