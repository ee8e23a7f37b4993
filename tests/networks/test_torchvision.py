"""Our networks are torchvision's: the same names, shapes, sizes and outputs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from surefoot.lab.networks.backbones import build_network
from surefoot.lab.networks.network import describe
from tests.networks.reference_outputs import NAMES, outputs

HERE = Path(__file__).parent
OUTPUTS = HERE / "torchvision_outputs.npz"
SHAPES = json.loads((HERE / "torchvision_names.json").read_text())

PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "densenet161": 28_681_000,
}
# in thousand millions; as remembered of torchvision's table, not looked up in it
MULTIPLY_ADDS = {"resnet18": 1.814, "resnet34": 3.664, "resnet50": 4.089, "densenet161": 7.728}


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def network(name):
    """Built once for all tests: drawing the weights takes longest."""
    return build_network(name, 1000, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def reference():
    with np.load(OUTPUTS) as arrays:
        return dict(arrays)


def test_sizes_are_the_published_ones(network, name):
    description = describe(network, (3, 224, 224))
    assert description.parameters == PARAMETERS[name]
    assert description.multiply_adds / 1e9 == pytest.approx(MULTIPLY_ADDS[name], abs=5e-4)
    assert description.name == name


def test_names_and_shapes_are_those_torchvision_wrote(network, name, reference):
    ours = {key: list(tensor.shape) for key, tensor in network.state_dict().items()}
    assert list(ours) == reference[f"{name}/names"].tolist()
    assert ["x".join(map(str, shape)) for shape in ours.values()] == reference[f"{name}/shapes"].tolist()
    if name in SHAPES:
        assert list(ours.items()) == list(SHAPES[name].items())


def test_same_weights_same_outputs(network, name, reference):
    """Last of the network, whose weights are replaced."""
    expected = reference[f"{name}/outputs"]
    assert np.abs(outputs(network) - expected).max() < 1e-9 * np.abs(expected).max()


def test_the_reference_weights_are_sane(reference):
    logits = reference["resnet18/outputs"]  # the same as ours: see above
    assert np.isfinite(logits).all()
    assert 0.01 < logits.std() < 1e4
    assert np.abs(logits[0] - logits[1]).max() > 1e-3  # the input matters
