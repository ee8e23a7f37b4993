"""Exported graphs say what PyTorch says, at any batch size, and say what they are; else there is no file."""

import json
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from PIL.ExifTags import Base
from scipy.special import expit, softmax
from torch import nn

import surefoot
from surefoot import InputError
from surefoot.deploy.bundle import Preprocessing
from surefoot.deploy.export import EXTRA, export_bundle, export_model, export_preprocessed
from surefoot.deploy.export_images import preprocessed
from tests.deploy.made import COLOURS, ran
from tests.deploy.test_bundle import bundled, weighty

METHODS = ("ensemble-of-t", "bayesian-t", "novelty-energy")
BATCHES = (1, 2, 5, 11)


@pytest.fixture(scope="module", params=["one label", "many labels"])
def made(request, tmp_path_factory):
    return ran(tmp_path_factory.mktemp("ran"), many=request.param == "many labels", methods=METHODS)


def samples(rows):
    return torch.randn(rows, 3, 12, 12, generator=torch.Generator().manual_seed(100 + rows))


def check(bundle, run):
    """Against the house's own reading of the networks' logits, which shares no code with the graph."""
    for rows in BATCHES:
        probabilities, logits = run(samples(rows))
        np.testing.assert_allclose(probabilities, bundle.predict(samples(rows)).probs(), atol=1e-4)
        again = softmax(logits, axis=1) if bundle.kind == "one_label" else expit(logits)
        np.testing.assert_allclose(probabilities, again, atol=1e-5)


@pytest.mark.parametrize(
    ("made", "method"),
    [("one label", "ensemble-of-t"), ("one label", "novelty-energy"), ("many labels", "bayesian-t")],
    indirect=["made"],
)
def test_torch_export(made, method, tmp_path):
    bundle = bundled(made, method, tmp_path / "bundle")
    parity = export_preprocessed(bundle, tmp_path / "model.pt2")
    assert parity.probabilities <= 1e-4
    extra = {EXTRA: ""}
    module = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    check(bundle, lambda x: [each.numpy() for each in module(x)])
    facts = json.loads(extra[EXTRA])
    assert json.loads(facts["class_names"]) == list(bundle.class_names)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    return bundled(ran(folder, methods=("ensemble-of-t",)), "ensemble-of-t", folder / "bundle"), folder


WITHOUT_US = """
import json, sys
sys.modules["torch"] = sys.modules["surefoot"] = None  # an import fails
import onnxruntime, predict_onnx
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
print(json.dumps([predict_onnx.predict(session, path) for path in sys.argv[1:]]))
predict_onnx.main("model.onnx", sys.argv[1])
"""


def odd_images(folder):
    """A JPEG large enough to be decoded at a reduced size, on its side; transparent; 16 bits; a palette."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (300, 420, 3), dtype=np.uint8)
    smooth = Image.fromarray(pixels).resize((420, 300), Image.Resampling.BOX, (0, 0, 40, 30))
    exif = Image.Exif()
    exif[Base.Orientation] = 6
    smooth.save(folder / "turned.jpg", exif=exif)
    smooth.convert("P").save(folder / "palette.png", transparency=3)
    alpha = Image.fromarray(rng.integers(0, 256, (300, 420), dtype=np.uint8))
    Image.merge("RGBA", [*smooth.split(), alpha]).save(folder / "transparent.png")
    Image.fromarray(rng.integers(0, 65536, (30, 20), dtype=np.uint16)).save(folder / "grey.png")
    smooth.convert("CMYK").save(folder / "cmyk.jpg")
    return sorted(str(path) for path in folder.iterdir())


def test_an_image_in_and_probabilities_out_without_torch(ensemble, tmp_path):
    """The written program, where neither torch nor surefoot can be imported, on the files as they are."""
    bundle, folder = ensemble
    paths = [*map(str, sorted((folder / "images").rglob("*.*"))[:24]), *odd_images(tmp_path)]
    export_bundle(bundle, folder / "model.onnx")
    command = [sys.executable, "-c", WITHOUT_US, *paths]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found, line = done.stdout.splitlines()
    expected = bundle.predict(torch.stack([bundle.preprocess(path) for path in paths])).probs()
    found = json.loads(found)
    np.testing.assert_allclose([list(each.values()) for each in found], expected, atol=1e-5)
    assert tuple(found[0]) == COLOURS
    best = max(found[0], key=found[0].get)
    assert line.split("\t")[:2] == [paths[0], f"{best} {found[0][best]:.4f}"]
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape) == ("image", "tensor(uint8)", ["height", "width", 3])
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["preprocessing"])["view"] == 12
    assert "member 1: T = " in facts["temperature"]
    assert facts["kind"] == "one_label"
    assert [file.name for file in folder.glob("*.onnx*")] == ["model.onnx"], "it holds the weights too"


@pytest.mark.parametrize("short_side", [16, 256, None])
@pytest.mark.parametrize("size", [(37, 53), (500, 333), (30, 301), (5, 4)])
def test_preprocessing_in_the_graph_is_pillow_s(size, short_side):
    """The resized pixels are the same whole numbers, so that views differ by float32's rounding only."""
    ours = Preprocessing(view=24, resize=32, short_side=short_side)
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    differences = (
        preprocessed(torch.from_numpy(pixels), ours)[0] - ours.of_image(Image.fromarray(pixels))
    ).abs()
    assert differences.max() < 5e-6


def test_a_program_of_the_user_s_is_not_replaced(ensemble, tmp_path):
    (tmp_path / "predict_onnx.py").write_text("mine")
    with pytest.raises(InputError, match=r"predict_onnx\.py exists and was not written by this command"):
        export_bundle(ensemble[0], tmp_path / "model.onnx")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("method", ["bayesian-t", "novelty-energy"])
@pytest.mark.parametrize("made", ["many labels"], indirect=True)
def test_onnx_of_what_is_harder_to_export(made, method, tmp_path):
    bundle = bundled(made, method, tmp_path / "bundle")
    bundle = weighty(bundle) if method == "novelty-energy" else bundle
    export_preprocessed(bundle, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert (given.name, given.shape) == ("images", ["batch", 3, 12, 12])
    assert [file.name for file in tmp_path.glob("*model*")] == ["model.onnx"], "it holds the weights too"
    check(bundle, lambda x: session.run(["probabilities", "logits"], {"images": x.numpy()}))


class Turncoat(nn.Module):
    """Says one thing in PyTorch and another when it is exported."""

    def __init__(self, by):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.by = by

    def forward(self, x):
        return self.layer(x) + (torch.tensor([self.by, 0, 0]) if torch.compiler.is_compiling() else 0)


def test_a_graph_that_differs_is_refused_and_leaves_no_file(tmp_path):
    (tmp_path / "model.pt2").write_text("an older one")
    with pytest.raises(InputError, match=r"differs from PyTorch by up to .* nothing was written"):
        export_model(surefoot.Calibrated(Turncoat(0.01)), (4,), tmp_path / "model.pt2", name="x", facts={})
    assert (tmp_path / "model.pt2").read_text() == "an older one"
    assert len(list(tmp_path.iterdir())) == 1
    close = export_model(
        surefoot.Calibrated(Turncoat(1e-6)), (4,), tmp_path / "model.pt2", name="x", facts={}
    )
    assert 0 < close.probabilities < 1e-5


@pytest.mark.parametrize("by", [np.nan, np.inf])
def test_a_graph_that_says_no_number_is_refused(by, tmp_path):
    with pytest.raises(InputError, match=r"differs from PyTorch by up to nan .* nothing was written"):
        export_model(surefoot.Calibrated(Turncoat(by)), (4,), tmp_path / "model.pt2", name="x", facts={})
    assert list(tmp_path.iterdir()) == []


def test_the_difference_is_measured_right(tmp_path):
    """A shift of one logit by 5e-5 in the graph alone is a difference of 5e-5."""
    found = export_model(
        surefoot.Calibrated(Turncoat(5e-5)), (4,), tmp_path / "model.pt2", name="x", facts={}
    )
    assert found.logits == pytest.approx(5e-5, rel=0.02)


class Restless(nn.Module):
    """Its graph depends on its input's values, which no exporter can hold."""

    def forward(self, x):
        return x if float(x.sum()) > 0 else -x


def test_a_model_that_cannot_be_exported_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"no \.pt2 can be made of this model: "):
        export_model(surefoot.Calibrated(Restless()), (4,), tmp_path / "model.pt2", name="x", facts={})
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_ending_is_refused(ensemble, tmp_path):
    with pytest.raises(InputError, match=r"unknown file type '.pb'; have: .onnx, .pt2"):
        export_bundle(ensemble[0], tmp_path / "model.pb")


@pytest.mark.parametrize("outputs", [1, 4])
def test_one_logit_and_an_ensemble_of_a_user_s_own(outputs, tmp_path):
    torch.manual_seed(0)
    kind = "one_label" if outputs == 1 else "many_labels"
    model = surefoot.Ensemble(
        [surefoot.Calibrated(nn.Linear(4, outputs), t, kind=kind) for t in (0.5, 3.0)]
    ).eval()
    export_model(model, (4,), tmp_path / "model.pt2", name="x", facts={})
    x = torch.randn(7, 4)
    with torch.no_grad():
        found, _ = torch.export.load(tmp_path / "model.pt2").module()(x)
    p = np.mean([expit(m.model(x).detach().numpy() / float(m.temperature)) for m in model.members], axis=0)
    np.testing.assert_allclose(found, np.concatenate([1 - p, p], axis=1) if outputs == 1 else p, atol=1e-5)
