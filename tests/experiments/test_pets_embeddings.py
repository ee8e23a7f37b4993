"""The task of embeddings, with vectors drawn here; the script that writes them, against the network itself."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from surefoot import plugins
from surefoot.errors import InputError
from surefoot.networks.backbones import build_network
from surefoot.store.store import Store
from surefoot.tasks import TASKS, task_named
from surefoot.tasks.task import Split
from tests.cli.command import in_a_process, rows_of
from tests.tasks.trees import pets_tree

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
COUNTS = {"train": 60, "val": 40, "test_familiar": 40, "test_unfamiliar": 30}
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])  # of ImageNet


@pytest.fixture(scope="module")
def script():
    """The module; afterwards its task is not registered any more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TASKS, "_entries", list(TASKS))
        patch.setattr(plugins, "_loaded", dict(plugins._loaded))
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("pets_embeddings")
        del sys.modules["pets_embeddings"]


def made_up():
    """Columns as the script writes them: vectors of six numbers, of which one tells the class."""
    rng = np.random.default_rng(0)
    splits = np.repeat(list(COUNTS), list(COUNTS.values()))
    labels = rng.integers(0, 2, len(splits))
    vectors = rng.normal(size=(len(splits), 6)).astype(np.float32)
    vectors[:, 0] += 3 * labels
    return {
        "ids": np.asarray([f"pet{row}" for row in range(len(splits))]),
        "splits": splits,
        "labels": labels,
        "groups": np.where(splits == "test_unfamiliar", "new", np.where(labels == 1, "cats", "dogs")),
        "vectors": vectors,
        "class_names": np.asarray(["dog", "cat"]),
    }


def test_the_task_has_the_rows_of_the_file(script, tmp_path):
    columns = made_up()
    order = np.random.default_rng(1).permutation(len(columns["ids"]))  # rows in any order
    columns |= {name: columns[name][order] for name in script.COLUMNS}
    np.savez(tmp_path / "pets-embeddings.npz", **columns)
    task = task_named("pets-embeddings", root=tmp_path)
    assert task.class_names == ("dog", "cat")
    assert {str(split): len(samples) for split, samples in task.splits.items()} == COUNTS
    row_of = {name: row for row, name in enumerate(columns["ids"].tolist())}
    for split, samples in task.splits.items():
        rows = [row_of[name] for name in samples.ids.tolist()]
        assert set(columns["splits"][rows]) == {str(split)}
        assert np.array_equal(samples.inputs, columns["vectors"][rows])
        assert np.array_equal(samples.labels, columns["labels"][rows])
        assert np.array_equal(samples.groups, columns["groups"][rows])


def test_the_published_experiment_runs_on_it(script, tmp_path):
    np.savez(tmp_path / "pets-embeddings.npz", **made_up())
    values = ("members=2", "runs=2", "epochs=3", "width=8", "resamples=20")
    words = [word for value in values for word in ("--set", value)]
    words += ["--store", tmp_path / "runs", "--workers", "1", "--device", "cpu"]
    said = in_a_process("run", FOLDER / "pets-embeddings.toml", "--root", tmp_path, *words)
    assert "Sharpness-aware + risk-budget T" in [row[0] for row in rows_of(said.stdout)]
    networks = Store(tmp_path / "runs").networks()
    assert [network.state for network in networks] == ["done"] * 4
    assert len({network.recipe for network in networks}) == 2  # plain and sharpness-aware


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vectors": np.full((170, 6), np.nan)}, "needed: a row per sample, finite numbers"),
        ({"labels": np.zeros(3, dtype=int)}, "'labels': 3"),
        ({"labels": np.full(170, 2)}, r"labels \[2\]; allowed: an index of class_names"),
        ({"splits": np.full(170, "trian")}, "split 'trian'; allowed: train, val"),
        ({"vectors": np.zeros(170)}, r"vectors of shape \(170,\)"),
        ({"ids": np.asarray([None] * 170)}, "no embeddings .*needed: the output of pets_embeddings.py"),
    ],
)
def test_other_columns_are_refused(changes, message, script, tmp_path):
    np.savez(tmp_path / "pets-embeddings.npz", **made_up() | changes)
    with pytest.raises(InputError, match=message):
        task_named("pets-embeddings", root=tmp_path)


def test_other_files_are_refused(script, tmp_path):
    with pytest.raises(InputError, match=r"no embeddings; needed: pets-embeddings.npz \(Oxford-IIIT Pets"):
        task_named("pets-embeddings", root=tmp_path)
    (tmp_path / "pets-embeddings.npz").write_bytes(b"PK something else")
    with pytest.raises(InputError, match=r"no embeddings .*needed: the output of pets_embeddings.py"):
        task_named("pets-embeddings", root=tmp_path)


def test_the_script_writes_the_features_of_the_centre(script, tmp_path, capsys):
    root = pets_tree(tmp_path)
    rng = np.random.default_rng(0)
    pixels = {}
    for path in sorted((root / "Oxford_IIIT_Pets" / "images").iterdir()):
        pixels[path.stem] = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels[path.stem]).save(path, format="PNG")  # exact, whatever its name says
    network = build_network("resnet18", 2, generator=torch.Generator().manual_seed(7)).eval()
    backbone = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("fc.")}
    save_file(backbone, tmp_path / "backbone.safetensors")
    words = ["--root", root, "--weights", tmp_path / "backbone.safetensors", "--view", 32, "--resize", 40]
    words += ["-o", tmp_path / "pets-embeddings.npz"]
    assert script.main([str(word) for word in words]) == 0
    task, images = task_named("pets-embeddings", root=tmp_path), task_named("cat-dog", root=root)
    assert task.identity == images.identity
    samples = task.splits[Split.TEST_UNFAMILIAR]
    centres = np.stack([pixels[name][4:36, 4:36] for name in samples.ids.tolist()])
    views = torch.from_numpy(((centres / 255 - MEAN) / DEVIATION).transpose(0, 3, 1, 2)).float()
    with torch.no_grad():
        expected = network.features(views).numpy()
    assert samples.inputs == pytest.approx(expected, rel=1e-3, abs=1e-4)

    words[3] = tmp_path / "gone.safetensors"
    assert script.main([str(word) for word in words]) == 2
    assert "gone.safetensors" in capsys.readouterr().err
