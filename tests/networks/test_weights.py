import os
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from surefoot import InputError
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.networks.weights import Mismatch, load_weights, read_weights
from tests.networks.conftest import seeded, small


def network_for(name="resnet18", classes=2, seed=1, **options):
    return build_network(name, classes, generator=seeded(seed), **options)


def published(name="resnet18", classes=365):
    """A state_dict as Places365's: the same architecture with more classes, trained by somebody else."""
    return network_for(name, classes, seed=9).state_dict()


def without_counters(state):
    return {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}


def assert_backbone_is(network, state):
    head = f"{network.head_name}."
    for name, tensor in network.state_dict().items():
        if not name.startswith(head) and name in state:
            assert torch.equal(tensor, state[name].float() if tensor.is_floating_point() else state[name]), (
                name
            )


def places365(state, path):
    """As the authors of Places365 wrote them: DataParallel's names, before BatchNorm counted, not a zip."""
    prefixed = {f"module.{name}": tensor for name, tensor in without_counters(state).items()}
    checkpoint = {"epoch": 90, "arch": "resnet18", "state_dict": prefixed, "best_prec1": 54.7}
    torch.save(checkpoint, path, _use_new_zipfile_serialization=False)


def test_places365_checkpoint(tmp_path):
    state, path = published(), tmp_path / "resnet18_places365.pth.tar"
    places365(state, path)
    network = network_for()
    head = network.fc.weight.clone()
    report = load_weights(network, path)
    assert len(report.matched) == 100
    assert report.left_out == ("fc.weight", "fc.bias")
    assert report.missing == report.unexpected == report.mismatched == ()
    assert report.sentence() == f"{path}: 100 tensors loaded, 2 left out (fc.weight, fc.bias)"
    assert_backbone_is(network, state)
    assert torch.equal(network.fc.weight, head)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused_by_name(tmp_path, number):
    state, path = published(), tmp_path / "resnet18.pth"
    state["layer2.0.conv1.weight"][0, 0, 0, 0] = number
    torch.save(state, path)
    with pytest.raises(
        InputError, match=r"resnet18.pth: layer2.0.conv1.weight holds NaN or infinity; allowed"
    ):
        load_weights(network_for(), path)


def test_torchvision_file_counts_batches(tmp_path):
    state, path = published(), tmp_path / "resnet18.pth"
    state["bn1.num_batches_tracked"].fill_(7)
    torch.save(state, path)
    network = network_for()
    assert len(load_weights(network, path).matched) == 120
    assert network.bn1.num_batches_tracked == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_safetensors_of_other_types_become_float32(tmp_path, dtype):
    state, path = published(), tmp_path / "backbone.safetensors"
    backbone = {
        name: tensor.to(dtype) for name, tensor in without_counters(state).items() if "fc" not in name
    }
    save_file(backbone, path)
    network = network_for()
    report = load_weights(network, path)
    assert (len(report.matched), report.left_out) == (100, ())
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert_backbone_is(network, backbone)


def test_old_densenet_spelling(tmp_path):
    state, path = published("densenet161", 3), tmp_path / "densenet161_places365.pth.tar"
    old = {}
    for name, tensor in without_counters(state).items():
        for part in ("norm1", "norm2", "conv1", "conv2"):
            name = name.replace(f".{part}.", f".{part[:-1]}.{part[-1]}.") if "denselayer" in name else name
        old[f"module.{name}"] = tensor
    assert "module.features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save({"state_dict": old}, path)
    network = network_for("densenet161")
    report = load_weights(network, path)
    assert report.left_out == ("classifier.weight", "classifier.bias")
    assert report.missing == report.unexpected == ()
    assert_backbone_is(network, state)


def test_written_by_python_2(tmp_path):
    """Python 2's text is bytes."""
    path = tmp_path / "old.pth.tar"
    torch.save({"state_dict": {"module.a": torch.ones(2)}}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    for word in (b"state_dict", b"module.a"):
        today = b"X" + struct.pack("<I", len(word)) + word
        assert today in content
        content = content.replace(today, b"U" + bytes([len(word)]) + word)  # BINUNICODE -> SHORT_BINSTRING
    path.write_bytes(content)
    assert torch.equal(read_weights(path)["a"], torch.ones(2))


def test_names_under_wrappers(tmp_path):
    path = tmp_path / "wrapped.pt"
    torch.save({"model": {"_orig_mod.module.conv1.weight": torch.ones(1)}}, path)
    assert list(read_weights(path)) == ["conv1.weight"]


def test_the_last_layer_is_not_loaded(tmp_path):
    state, path = published(classes=2), tmp_path / "same.pth"
    torch.save(state, path)
    network = network_for(classes=2)
    assert load_weights(network, path).left_out == ("fc.weight", "fc.bias")
    assert not torch.equal(network.fc.weight, state["fc.weight"])


def test_a_gaussian_head_is_a_last_layer_too(tmp_path):
    path = tmp_path / "bayesian.pth"
    torch.save(network_for(head="gaussian", seed=3).state_dict(), path)
    assert len(load_weights(network_for(), path).left_out) == 4


def test_another_stem_stays_as_initialised_and_is_reported(tmp_path):
    path = tmp_path / "colour.pth"
    torch.save(published(), path)
    network = network_for(channels=1, small_stem=True)
    stem = network.conv1.weight.clone()
    report = load_weights(network, path)
    assert report.mismatched == (Mismatch("conv1.weight", (64, 3, 7, 7), (64, 1, 3, 3)),)
    assert torch.equal(network.conv1.weight, stem)
    assert "1 of another shape (conv1.weight)" in report.sentence()


@pytest.mark.parametrize(
    ("file_of", "network_of", "message"),
    [
        ("resnet34", "resnet18", "100 of 180 tensors match"),  # every name of ResNet-18 is in ResNet-34
        ("resnet18", "resnet34", "100 of 180 tensors match"),
        ("resnet50", "resnet18", "77 of 265 tensors match"),
        ("resnet18", "densenet161", "0 of .* tensors match"),
    ],
)
def test_another_architecture_is_refused_and_changes_nothing(tmp_path, file_of, network_of, message):
    path = tmp_path / "weights.pth"
    torch.save(published(file_of), path)
    network = network_for(network_of)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(InputError, match=f"weights.pth does not fit network '{network_of}': {message}"):
        load_weights(network, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


SPECIAL = {
    "quantised": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    "meta": lambda t: t.to("meta"),
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "sparse_coo": torch.Tensor.to_sparse,
    "sparse_csr": lambda t: t.flatten(1).to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore")  # some of these are announced as beta or deprecated
@pytest.mark.parametrize("kind", SPECIAL)
def test_a_tensor_that_does_not_simply_hold_its_numbers_is_refused(kind, tmp_path):
    state, path = published(), tmp_path / "weights.pth"
    torch.save(state | {"conv1.weight": SPECIAL[kind](state["conv1.weight"])}, path)
    with pytest.raises(InputError, match=rf"holds a {kind} tensor under 'conv1\.weight'; allowed: dense"):
        load_weights(network_for(), path)


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "int8", "uint16", "int64", "bool", "complex64"]
)
def test_weights_of_a_type_that_does_not_hold_them_are_refused(name, ending, tmp_path):
    state, path = published(), tmp_path / f"weights{ending}"
    state["conv1.weight"] = state["conv1.weight"].to(getattr(torch, name))
    torch.save(state, path) if ending == ".pth" else save_file(state, path)
    network = network_for()
    before = network.bn1.weight.clone()
    with pytest.raises(InputError, match=rf"conv1\.weight is {name} for float32 weights; allowed: float32"):
        load_weights(network, path)
    assert torch.equal(network.bn1.weight, before)


class Evil:
    """Makes a folder when it is unpickled by anything that runs code."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("as_zip", [True, False])
def test_code_in_a_file_is_refused_and_never_run(tmp_path, as_zip):
    path = tmp_path / "evil.pth"
    torch.save(
        {"state_dict": published(), "x": Evil(tmp_path / "hacked")},
        path,
        _use_new_zipfile_serialization=as_zip,
    )
    with pytest.raises(
        InputError, match=r"evil.pth holds \w+\.mkdir, and code in a weights file is never run"
    ):
        load_weights(network_for(), path)
    assert not (tmp_path / "hacked").exists()


def test_a_whole_pickled_network_is_refused(tmp_path):
    path = tmp_path / "whole.pth"
    torch.save(small(), path)
    with pytest.raises(InputError, match=r"holds surefoot.lab.networks.architectures.Perceptron, and code"):
        load_weights(small(), path)


def text(path):
    path.write_text("<html>not found</html>")


def empty(path):
    path.write_bytes(b"")


def cut_off(path):
    torch.save(small().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-200])


def another_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")


def number(path):
    torch.save(3, path)


def nothing_in_it(path):
    torch.save({}, path)


def numbers(path):
    torch.save({"state_dict": {"conv1.weight": 3}}, path)


def broken_safetensors(path):
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")


REFUSED = {
    "text": ("a.pth", text, "is not a file of PyTorch weights, or is damaged"),
    "empty": ("a.pth.tar", empty, "is not a file of PyTorch weights, or is damaged"),
    "cut off": ("a.pth", cut_off, "is not a file of PyTorch weights, or is damaged"),
    "another zip": ("a.pt", another_zip, "is not a file of PyTorch weights, or is damaged"),
    "a number": ("a.pth", number, "holds int; allowed: tensors by name"),
    "nothing": ("a.pth", nothing_in_it, "holds dict; allowed: tensors by name"),
    "numbers": ("a.pth", numbers, "holds int under 'conv1.weight'; allowed: tensors by name"),
    "text as safetensors": ("a.safetensors", text, "is not a safetensors file"),
    "empty safetensors": ("a.safetensors", empty, "is not a safetensors file"),
    "too long a header": ("a.safetensors", broken_safetensors, "is not a safetensors file"),
    "another ending": ("a.h5", text, r"unknown ending; allowed: .pth.tar, .pth, .pt, .safetensors"),
    "a folder": ("a.pth", Path.mkdir, "cannot read .*a.pth: a folder; allowed: a regular file"),
    "a folder of safetensors": ("a.safetensors", Path.mkdir, "cannot read .*a.safetensors"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case, tmp_path):
    name, write, message = REFUSED[case]
    write(tmp_path / name)
    with pytest.raises(InputError, match=message) as refusal:
        load_weights(small(), tmp_path / name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["none.pth", "none.safetensors"])
def test_a_missing_file(name, tmp_path):
    with pytest.raises(InputError, match=f"cannot read .*{name}: .*No such file"):
        read_weights(tmp_path / name)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_refused_or_read_and_nothing_else(tmp_path, data):
    path = tmp_path / "damaged.pth"
    torch.save({"a": torch.ones(3), "b": 1}, path, _use_new_zipfile_serialization=data.draw(st.booleans()))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 599)) % len(content)  # the length differs: an address is in it
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with pytest.raises(InputError):  # as it is: "b" is no tensor
        read_weights(path)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["resnet18_animalfree", "resnet18_tiny"])
def test_the_real_backbones_load(name):
    folder = os.environ.get("SUREFOOT_DATA")
    if not folder:
        pytest.skip("SUREFOOT_DATA does not name the folder of real data")
    network = network_for()
    report = load_weights(network, Path(folder) / f"{name}.safetensors")
    assert len(report.matched) == 100
    assert report.left_out == report.missing == report.unexpected == report.mismatched == ()
    features = network.eval().features(torch.randn(2, 3, 64, 64, generator=seeded()))
    assert torch.isfinite(features).all()
    assert 0.1 < features.std() < 10
