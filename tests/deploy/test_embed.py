"""Embeddings of images, compared with the network itself; killed, resumed and refused."""

import json
import os
import signal
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from surefoot.deploy import embed
from surefoot.deploy.bundle import Preprocessing
from surefoot.deploy.embed import METADATA, Encoder, encoder_named, read_images, write_embeddings
from surefoot.errors import InputError
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.training.augment import MEAN, SPREAD
from tests.cli.command import surefoot

SIDE, VIEW = 12, 8


@pytest.fixture
def photos(tmp_path):
    """Eleven square photographs in two folders, and their pixels by path."""
    rng = np.random.default_rng(0)
    pixels = {}
    for number in range(11):
        path = f"{'cats' if number % 2 else 'dogs'}/{number:02d}.png"
        pixels[path] = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        (tmp_path / "photos" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[path]).save(tmp_path / "photos" / path)
    return tmp_path / "photos", pixels


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(embed, "AT_ONCE", 2)
    monkeypatch.setattr(embed, "ROWS_IN_A_PART", 4)


class Colours(nn.Module):
    """The mean of each colour of the view: a vector that is easy to compute by hand."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, views):
        return views.mean((2, 3)) * self.weight


def colours(**changes):
    module = Colours()
    return replace(Encoder("colours", "0", Preprocessing(VIEW, SIDE, SIDE), module, module), **changes)


def centre(pixels):
    edge = (SIDE - VIEW) // 2
    return pixels[edge : edge + VIEW, edge : edge + VIEW] / 255


def test_the_file_has_the_inputs_of_the_last_layer(photos, tmp_path):
    folder, pixels = photos
    network = build_network("resnet18", 2, generator=torch.Generator().manual_seed(7)).eval()
    backbone = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("fc.")}
    save_file(backbone, tmp_path / "backbone.safetensors")
    words = ["--network", "resnet18", "--weights", tmp_path / "backbone.safetensors"]
    words += ["--view", VIEW, "--resize", SIDE, "-o", tmp_path / "out.parquet"]
    assert "(11 images, 512 numbers each)" in surefoot("embed", folder, *words).stdout
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == sorted(pixels)
    assert table["embedding"].type.value_type == pa.float32()
    views = np.stack([(centre(pixels[path]) - MEAN) / SPREAD for path in sorted(pixels)])
    with torch.no_grad():
        expected = network.features(torch.from_numpy(views.transpose(0, 3, 1, 2)).float()).numpy()
    assert np.stack(table["embedding"].to_pylist()) == pytest.approx(expected, rel=1e-3, abs=1e-4)
    facts = json.loads(table.schema.metadata[METADATA])
    assert (facts["network"], facts["view"], facts["resize"], facts["type"]) == ("resnet18", 8, 12, "float")
    assert len(facts["weights"]) == 16


@pytest.mark.usefixtures("small_parts")
def test_a_killed_run_is_resumed_to_the_same_bytes(photos, tmp_path):
    folder, _ = photos
    write_embeddings(read_images(folder), colours(), tmp_path / "unharmed.parquet")
    done, killed = os.pipe()
    child = os.fork()
    if child == 0:  # it says when the second part has begun, and then waits to be killed
        torch.set_num_threads(1)  # makes torch's own pool anew: threads that find the fork's invalid one fail
        seen = []

        def tick(rows):
            seen.append(rows)
            if sum(seen) == 6:
                os.write(killed, b"x")
                signal.pause()

        try:
            write_embeddings(read_images(folder), colours(), tmp_path / "out.parquet", tick=tick)
        finally:
            os._exit(1)
    os.close(killed)
    assert os.read(done, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not (tmp_path / "out.parquet").exists()

    rows = []
    counting = colours(vectors=lambda views: rows.append(len(views)) or Colours()(views))
    result = write_embeddings(read_images(folder), counting, tmp_path / "out.parquet")
    assert (result.rows, result.width, sum(rows)) == (11, 3, 7)  # the first part of four was kept
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "unharmed.parquet").read_bytes()
    assert not list(tmp_path.glob(".*"))

    # Parts of an interrupted run are used for the same images only: one of the first part's is replaced.
    again = tmp_path / "again.parquet"
    with pytest.raises(KeyboardInterrupt):
        write_embeddings(read_images(folder), colours(), again, tick=_interrupt_after(10))
    (folder / "cats" / "01.png").write_bytes((folder / "cats" / "03.png").read_bytes())
    rows.clear()
    write_embeddings(read_images(folder), counting, again)
    assert sum(rows) == 4 + 3
    vectors = pq.read_table(again)["embedding"].to_pylist()
    assert vectors[0] == vectors[1]


def test_a_manifest_keeps_its_columns_and_unreadable_images_are_left_out(photos, tmp_path):
    folder, pixels = photos
    (folder / "broken.jpg").write_bytes(b"no image")
    manifest = tmp_path / "manifest.csv"
    manifest.write_text("path,label,age\ncats/01.png,cat,7\nbroken.jpg,cat,8\ndogs/02.png,dog,\n")
    given = read_images(manifest, root=folder)
    calls = []
    encoder = colours(vectors=lambda views: calls.append(views) or Colours()(views))
    with pytest.raises(
        InputError, match=r"1 image cannot be read: .*broken.jpg \(not an image\).*--skip-unread"
    ):
        write_embeddings(given, encoder, tmp_path / "out.parquet", number_type="float16")
    assert not (tmp_path / "out.parquet").exists()
    result = write_embeddings(
        given, encoder, tmp_path / "out.parquet", number_type="float16", skip_unreadable=True
    )
    assert len(calls) == 1  # nothing was computed twice
    assert [each.reason for each in result.unreadable] == ["not an image"]
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "path", "label", "age", "embedding"]
    assert table.select(["id", "label", "age"]).to_pylist() == [
        {"id": "cats/01.png", "label": "cat", "age": 7},
        {"id": "dogs/02.png", "label": "dog", "age": None},
    ]
    expected = [(centre(pixels[path]) - MEAN) / SPREAD for path in ("cats/01.png", "dogs/02.png")]
    vectors = np.stack(table["embedding"].to_pylist())
    assert table["embedding"].type.value_type == pa.float16()
    assert vectors == pytest.approx(np.stack(expected).mean((1, 2)), abs=2e-3)


class Clip(nn.Module):
    def get_image_features(self, *, pixel_values):
        return pixel_values.mean((2, 3))


class Tokens(nn.Module):
    def forward(self, *, pixel_values):
        tokens = pixel_values.flatten(2).transpose(1, 2)
        return SimpleNamespace(pooler_output=None, last_hidden_state=tokens)


@pytest.mark.parametrize("model", [Clip, Tokens])
def test_hugging_face_models_get_their_own_normalisation(model, photos, monkeypatch, tmp_path):
    """transformers is not installed here: a double with the same face stands in for it."""
    double = ModuleType("transformers")
    double.AutoModel = SimpleNamespace(from_pretrained=lambda name: {"some/model": model}[name]())
    expected = SimpleNamespace(image_mean=[0.5, 0.4, 0.3], image_std=[0.2, 0.3, 0.4])
    double.AutoImageProcessor = SimpleNamespace(from_pretrained=lambda _: expected)
    monkeypatch.setitem(sys.modules, "transformers", double)
    folder, pixels = photos
    encoder = encoder_named("hf:some/model", None, view=VIEW, resize=SIDE)
    write_embeddings(read_images(folder), encoder, tmp_path / "out.parquet")
    vectors = np.stack(pq.read_table(tmp_path / "out.parquet")["embedding"].to_pylist())
    views = np.stack([(centre(pixels[path]) - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4] for path in sorted(pixels)])
    assert vectors == pytest.approx(views.mean((1, 2)), abs=1e-5)
    with pytest.raises(InputError, match=r"'hf:gone' cannot be loaded \(KeyError: 'gone'\); see its library"):
        encoder_named("hf:gone", None)


def test_timm_models_find_their_own_weights(monkeypatch):
    double = ModuleType("timm")
    model = Colours()
    model.default_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    double.create_model = lambda name, **options: {("tiny", True, 0): model}[name, *options.values()]
    monkeypatch.setitem(sys.modules, "timm", double)
    encoder = encoder_named("timm:tiny", None)
    assert encoder.as_dict()["mean"] == [0.5, 0.5, 0.5]
    before = encoder.weights
    with torch.no_grad():
        model.weight[0] = 2
    assert encoder_named("timm:tiny", None).weights != before
    assert not model.training
    assert not model.weight.requires_grad


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["photos", "--network", "resnet18"], "network 'resnet18' has random weights; needed: --weights FILE"),
        (["photos", "--network", "mlp"], "network 'mlp' takes vectors; needed: one that takes images"),
        (["photos", "--network", "resnet19"], "unknown network 'resnet19'"),
        (["photos", "--network", "hf:x"], "network 'hf:x' needs transformers"),
        (["gone", "--network", "resnet18"], "gone: No such file or directory"),
        (["empty", "--network", "resnet18"], "empty: no images"),
        (["photos", "--network", "resnet18", "--root", "."], "--root is . and the images are a folder, photos"),
        (["table.csv", "--network", "resnet18"], "table.csv: no column 'path'; have: file, embedding"),
        (["taken.csv", "--network", "resnet18"], "has a column 'embedding' already"),
        (["out.csv", "--network", "resnet18"], "out.csv: path '../a.png' in row 0 leaves"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(words, message, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("file,embedding\ncats/01.png,2\n")
    (tmp_path / "taken.csv").write_text("path,embedding\ncats/01.png,2\n")
    (tmp_path / "out.csv").write_text("path\n../a.png\n")
    assert message in surefoot("embed", *words, "-o", "out.parquet", check=2).stderr
    assert not list(tmp_path.glob("*.parquet"))


def test_two_processes_do_not_write_one_file(photos, tmp_path):
    folder, _ = photos
    given = read_images(folder)

    def second(_):
        with pytest.raises(InputError, match=r"another process is writing .*out.parquet"):
            write_embeddings(given, colours(), tmp_path / "out.parquet")

    write_embeddings(given, colours(), tmp_path / "out.parquet", tick=second)


def _interrupt_after(rows):
    seen = []

    def tick(count):
        seen.append(count)
        if sum(seen) >= rows:
            raise KeyboardInterrupt

    return tick
