import threading

import pytest
import torch
from torch import nn

from surefoot import InputError
from surefoot.lab.networks.backbones import BACKBONES, build_network
from surefoot.lab.networks.heads import HEADS
from surefoot.lab.networks.network import Network, describe
from tests.networks.conftest import seeded, small


def input_for(name, n=2):
    shape = (n, 2) if BACKBONES.named(name).takes_vectors else (n, 3, 32, 32)
    return torch.randn(shape, generator=seeded(3))


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda backbone: backbone.name)
class TestEveryBackbone:
    def test_features_then_logits(self, backbone):
        network = build_network(backbone.name, 5, generator=seeded()).eval()
        features = network.features(input_for(backbone.name))
        assert features.shape == (2, backbone.width)
        assert (network.width, network.classes, network.name) == (backbone.width, 5, backbone.name)
        assert torch.equal(network(input_for(backbone.name)), network.head(features))
        assert isinstance(network, Network)

    def test_the_seed_alone_decides_the_weights(self, backbone):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        first = build_network(backbone.name, 2, generator=seeded(5)).state_dict()
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(1)
        again = build_network(backbone.name, 2, generator=seeded(5)).state_dict()
        other = build_network(backbone.name, 2, generator=seeded(6)).state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
        matrices = [name for name, tensor in first.items() if tensor.ndim > 1]
        assert not any(torch.equal(first[name], other[name]) for name in matrices)
        assert all(torch.isfinite(tensor).all() for tensor in first.values())

    def test_the_head_does_not_change_the_backbone(self, backbone):
        plain = build_network(backbone.name, 2, generator=seeded())
        other = build_network(backbone.name, 7, generator=seeded(), head="gaussian", head_dropout=0.2)
        head = f"{plain.head_name}."
        theirs = other.state_dict()
        same = [torch.equal(t, theirs[n]) for n, t in plain.state_dict().items() if not n.startswith(head)]
        assert bool(same) is (backbone.name != "linear")  # which is its head alone
        assert all(same)
        assert set(theirs) - set(plain.state_dict()) == {f"{head}variance.weight", f"{head}variance.bias"}

    def test_eval_mode_leaves_statistics_untouched_and_training_does_not(self, backbone):
        network = build_network(backbone.name, 2, generator=seeded()).eval()
        before = {name: tensor.clone() for name, tensor in network.named_buffers()}
        network(input_for(backbone.name, n=4))
        assert all(torch.equal(tensor, before[name]) for name, tensor in network.named_buffers())
        network.train()(input_for(backbone.name, n=4))
        assert not any(torch.equal(tensor, before[name]) for name, tensor in network.named_buffers())

    def test_the_last_layer_is_glorot_normal_with_bias_0(self, backbone):
        options = {"inputs": 500} if backbone.name == "linear" else {}
        head = build_network(backbone.name, 50, generator=seeded(), head="gaussian", **options).head
        for layer in (head, head.variance):
            expected = (2 / (head.in_features + 50)) ** 0.5
            assert layer.weight.std().item() == pytest.approx(expected, rel=0.05)
            assert not layer.bias.any()


def test_convolutions_have_he_s_scale_and_norms_start_fresh():
    """Over the outputs in ResNet, over the inputs in DenseNet: as torchvision's."""
    resnet = build_network("resnet18", 2, generator=seeded()).state_dict()
    densenet = build_network("densenet161", 2, generator=seeded()).state_dict()
    assert resnet["conv1.weight"].std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)
    assert densenet["features.conv0.weight"].std().item() == pytest.approx((2 / (3 * 49)) ** 0.5, rel=0.05)
    for state, norm in ((resnet, "bn1"), (densenet, "features.norm0")):
        assert (state[f"{norm}.weight"] == 1).all()
        assert (state[f"{norm}.running_var"] == 1).all()
        assert not state[f"{norm}.bias"].any()
        assert not state[f"{norm}.running_mean"].any()
        assert state[f"{norm}.num_batches_tracked"] == 0


def test_threads_that_build_at_once_do_not_disturb_each_other():
    alone = small(seed=4).state_dict()
    is_ensemble = {}

    def build(place):
        is_ensemble[place] = small(seed=4).state_dict()

    threads = [threading.Thread(target=build, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for state in is_ensemble.values():
        assert all(torch.equal(tensor, state[name]) for name, tensor in alone.items())
    assert len(is_ensemble) == 4


@pytest.mark.parametrize("name", ["resnet18", "densenet161"])
@pytest.mark.parametrize("channels", [1, 5])
def test_other_numbers_of_channels(name, channels):
    network = build_network(name, 2, generator=seeded(), channels=channels).eval()
    assert network(torch.zeros(1, channels, 32, 32)).shape == (1, 2)


@pytest.mark.parametrize("name", ["resnet18", "densenet161"])
def test_the_small_stem_keeps_images_four_times_as_large(name):
    sizes = []
    for small_stem in (False, True):
        network = build_network(name, 2, generator=seeded(), small_stem=small_stem).to("meta").eval()
        block = network.features.denseblock1 if name == "densenet161" else network.layer1
        block.register_forward_pre_hook(lambda _, maps: sizes.append(tuple(maps[0].shape[2:])))
        network(torch.zeros(1, 3, 32, 32, device="meta"))
    assert sizes == [(8, 8), (32, 32)]


def test_the_perceptron_is_linear_relu_norm_dropout():
    network = small(hidden=(16, 8), inputs=6, layer_dropout=0.3)
    assert [type(part) for part in network.hidden[0]] == [nn.Linear, nn.ReLU, nn.BatchNorm1d, nn.Dropout]
    assert [layer.dropout.p for layer in network.hidden] == [0.3, 0.3]
    assert network.width == 8
    assert network.eval()(torch.zeros(4, 2, 3)).shape == (4, 3)
    assert network.hidden[0].linear.weight.std().item() == pytest.approx((2 / 22) ** 0.5, rel=0.2)


def test_a_residual_block_adds_to_its_input():
    """Against the formula: first, x + dropout(W relu(V bn(x))) three times, bn, relu."""
    network = build_network("residual-mlp", 3, generator=seeded(), inputs=6, width=16, layer_dropout=0.4)
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm1d)):
        norm.running_mean.uniform_(-1, 1, generator=seeded(1))
        norm.running_var.uniform_(0.5, 2, generator=seeded(2))
    weights = network.eval().state_dict()
    points = torch.randn(5, 2, 3, generator=seeded(3))

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x, name):
        return (x - weights[f"{name}.running_mean"]) / (weights[f"{name}.running_var"] + 1e-5).sqrt()

    x = linear(points.reshape(5, 6), "first")
    for block in ("blocks.0", "blocks.1", "blocks.2"):
        x = x + linear(linear(norm(x, f"{block}.norm"), f"{block}.linear1").relu(), f"{block}.linear2")
    expected = linear(norm(x, "norm").relu(), "output")
    assert torch.allclose(network(points), expected, atol=1e-5)
    assert [block.dropout.p for block in network.blocks] == [0.4] * 3


def test_compiles_in_one_piece(images):
    network = build_network("resnet18", 2, generator=seeded(), head="gaussian", head_dropout=0.2).eval()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images), network(images))


def test_describes_frozen_parameters_and_bytes():
    network = small()
    network.hidden.requires_grad_(requires_grad=False)
    description = describe(network, (2,))
    weights = 2 * 16 + 16 * 8 + 8 * 3
    others = 16 + 2 * 16 + 8 + 2 * 8 + 3
    assert description.parameters == weights + others
    assert description.trained_parameters == 8 * 3 + 3
    assert description.multiply_adds == weights
    assert description.weight_bytes == 4 * (weights + others + 2 * 16 + 2 * 8) + 2 * 8
    assert next(network.parameters()).device.type == "cpu"


REFUSED = {
    "unknown": (("vgg16", 2), {}, r"unknown network 'vgg16'; have: resnet18, .*, mlp, linear, residual-mlp, timm:NAME, torchvision:NAME, package"),
    "no classes": (("mlp", 0), {}, "classes is 0; allowed: a whole number from 1"),
    "part of a class": (("mlp", 2.0), {}, "classes is 2.0; allowed: a whole number"),
    "another's option": (("resnet18", 2), {"layer_dropout": 0.2}, "network 'resnet18' has no option 'layer_dropout'; have: channels, small_stem"),
    "no channels": (("resnet18", 2), {"channels": 0}, "channels is 0; allowed: a whole number from 1"),
    "all dropped": (("mlp", 2), {"layer_dropout": 1.0}, "layer_dropout is 1.0; allowed: a rate from 0 to below 1"),
    "less than nothing dropped": (("mlp", 2), {"head_dropout": -0.1}, "head_dropout is -0.1; allowed: a rate"),
    "not a number": (("mlp", 2), {"head_dropout": float("nan")}, "head_dropout is nan; allowed: a rate"),
    "a word for a flag": (("resnet18", 2), {"small_stem": "no"}, "small_stem is 'no'; allowed: True, False"),
    "one width": (("mlp", 2), {"hidden": 8}, "hidden is 8; allowed: a list of whole numbers"),
    "no width": (("mlp", 2), {"hidden": (8, 0)}, "hidden is 0; allowed: a whole number from 1"),
    "unknown head": (("mlp", 2), {"head": "cauchy"}, "unknown head 'cauchy'; have: linear, gaussian"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    arguments, options, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        build_network(*arguments, generator=seeded(), **options)


def test_registries_have_different_names_and_say_what_they_are():
    for registry in (BACKBONES, HEADS):
        assert len({entry.name for entry in registry}) == len(registry)
        assert all(entry.title and entry.reference for entry in registry)
    assert all(BACKBONES.named(backbone.name) is backbone for backbone in BACKBONES)
