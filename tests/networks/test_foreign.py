"""timm and torchvision are not installed here: small doubles with the same faces stand in for them."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from surefoot import InputError
from surefoot.lab.networks.architectures import resnet18
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.networks.network import Network
from surefoot.lab.networks.weights import load_weights
from tests.networks.conftest import seeded


class TimmModel(nn.Module):
    head_hidden_size = 4
    default_cfg = {"classifier": "head.fc"}  # noqa: RUF012

    def __init__(self, in_chans):
        super().__init__()
        self.stem = nn.Conv2d(in_chans, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.ModuleDict({"fc": nn.Linear(4, 1000)})

    def reset_classifier(self, num_classes):
        assert num_classes == 0
        self.head["fc"] = nn.Identity()

    def forward(self, x):
        return self.head["fc"](self.norm(self.stem(x)).mean((2, 3)))


class TorchvisionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.classifier = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1000))

    def forward(self, x):
        return self.classifier(self.body(x))


TORCHVISION = {"resnet18": TorchvisionModel, "squeezenet1_0": lambda: nn.Conv2d(3, 4, 3)}


def create_timm_model(name, *, pretrained, in_chans):
    assert not pretrained
    return TimmModel(in_chans)


def list_torchvision_models(module):
    return list(TORCHVISION)


def get_torchvision_model(name, *, weights):
    assert weights is None
    return TORCHVISION[name]()


@pytest.fixture
def libraries(monkeypatch):
    timm, torchvision = ModuleType("timm"), ModuleType("torchvision")
    timm.list_models = lambda: ["convnext_tiny", "convnext_small"]
    timm.is_model = lambda name: name in timm.list_models()
    timm.create_model = create_timm_model
    torchvision.models = SimpleNamespace(list_models=list_torchvision_models, get_model=get_torchvision_model)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("name", "width"), [("timm:convnext_tiny", 4), ("torchvision:resnet18", 5)])
def test_features_then_logits(images, name, width):
    network = build_network(name, 3, generator=seeded(), head="gaussian", head_dropout=0.2).eval()
    assert network.features(images).shape == (2, width)
    assert network(images).shape == (2, 3)
    assert network.sample_logits(images, 5, seeded()).shape == (5, 2, 3)
    assert (network.name, network.width, network.classes) == (name, width, 3)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", ["timm:convnext_tiny", "torchvision:resnet18"])
def test_the_seed_alone_decides_a_library_the_weights(name):
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        states.append(build_network(name, 3, generator=seeded()).state_dict())
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", ["timm:convnext_tiny", "torchvision:resnet18"])
def test_the_library_s_own_files_load(images, tmp_path, name):
    torch.manual_seed(3)
    theirs = TimmModel(3) if name.startswith("timm") else TorchvisionModel()
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    network = build_network(name, 1000, generator=seeded())
    report = load_weights(network, tmp_path / "theirs.pth")
    assert len(report.left_out) == 2
    assert report.missing == report.unexpected == ()
    head = f"{network.published_head}."
    network.head.load_state_dict(
        {key.removeprefix(head): value for key, value in theirs.state_dict().items() if key.startswith(head)}
    )
    assert torch.equal(network.eval()(images), theirs.eval()(images))


def test_timm_takes_other_channels(libraries):
    network = build_network("timm:convnext_tiny", 3, generator=seeded(), channels=1).eval()
    assert network(torch.zeros(1, 1, 8, 8)).shape == (1, 3)


LIBRARY_REFUSALS = {
    "timm:convnext_tin": ({}, "unknown timm model 'convnext_tin'; nearest: convnext_tiny"),
    "timm:qqq": ({}, "unknown timm model 'qqq'; it has 2 others"),
    "torchvision:resnet19": ({}, "unknown torchvision model 'resnet19'; nearest: resnet18"),
    "torchvision:squeezenet1_0": ({}, "does not end in a linear layer; allowed: ones that do"),
    "torchvision:resnet18": (
        {"channels": 1},
        "network 'torchvision:resnet18' has no option 'channels'; have: none",
    ),
    "timm:convnext_tiny": ({"small_stem": True}, "has no option 'small_stem'; have: channels"),
}


@pytest.mark.parametrize("name", LIBRARY_REFUSALS)
def test_libraries_refuse(libraries, name):
    options, message = LIBRARY_REFUSALS[name]
    with pytest.raises(InputError, match=message):
        build_network(name, 2, generator=seeded(), **options)


def test_a_torchvision_for_another_torch_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match=r"needs a torchvision that fits torch .*, got: operator torchvision::nms"
    ):
        build_network("timm:resnet10t", 2, generator=seeded())


@pytest.mark.parametrize("name", ["timm:convnext_tiny", "torchvision:resnet18"])
def test_says_what_to_install(monkeypatch, name):
    library = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        InputError, match=rf"needs {library}, .*; install it: pip install 'surefoot\[backbones\]'"
    ):
        build_network(name, 2, generator=seeded())


def plain(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes))


def with_features(*, classes, width=6):
    model = plain(classes)
    model.features = nn.Flatten()
    return model


def one_of_ours(classes):
    from surefoot.lab.networks.heads import LinearHead

    return resnet18(lambda width: LinearHead(width, classes))


def no_classes(size):
    return plain(size)


def a_word(classes):
    return "network"


HERE = __name__


def test_a_user_s_function(tmp_path):
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        network = build_network(f"{HERE}:plain", 4, generator=seeded())
        assert torch.equal(torch.get_rng_state(), before)
        states.append(network.state_dict())
    assert network(torch.zeros(2, 3, 2, 2)).shape == (2, 4)
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())
    torch.save(plain(4).state_dict(), tmp_path / "own.pth")
    assert load_weights(network, tmp_path / "own.pth").matched == ("1.weight", "1.bias")


def test_a_user_s_network_has_features_where_the_user_wrote_them():
    network = build_network(f"{HERE}:with_features", 4, generator=seeded())
    assert network.features(torch.zeros(2, 3, 2, 2)).shape == (2, 12)
    network = build_network(f"{HERE}:plain", 4, generator=seeded())
    for use in (lambda: network.features(torch.zeros(2, 12)), lambda: network.head, lambda: network.width):
        with pytest.raises(
            InputError, match=rf"'{HERE}:plain' gives logits only; .* returns a surefoot.lab.networks"
        ):
            use()


def test_a_network_of_our_shape_is_used_as_it_is():
    network = build_network(f"{HERE}:one_of_ours", 4, generator=seeded())
    assert isinstance(network, Network)
    assert network.state_dict()["fc.weight"].shape == (4, 512)
    assert network.name == f"{HERE}:one_of_ours"


USER_REFUSALS = {
    "no.such.module:build": ({}, "cannot import 'no.such.module': No module named 'no'"),
    f"{HERE}:nothing": ({}, "has no function 'nothing'"),
    f"{HERE}:HERE": ({}, "has no function 'HERE'"),
    f"{HERE}:": ({}, "has no function ''"),
    ":build": ({}, "cannot import ''"),
    f"{HERE}:no_classes": ({}, "cannot be called with classes=2: missing a required argument: 'size'"),
    f"{HERE}:a_word": ({}, "returned str; allowed: a torch.nn.Module"),
    f"{HERE}:plain": ({"head": "gaussian"}, "has its own last layer, got head 'gaussian'"),
    f"{HERE}:with_features": ({"channels": 1}, "has no option 'channels'; have: none"),
}


@pytest.mark.parametrize("name", USER_REFUSALS)
def test_a_user_s_function_is_refused(name):
    options, message = USER_REFUSALS[name]
    with pytest.raises(InputError, match=message):
        build_network(name, 2, generator=seeded(), **options)
