"""`surefoot bundle`, `predict` and `export` as people use them."""

import json
import os
import shutil

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import surefoot as package
from surefoot.deploy import predict as predicting
from surefoot.lab.experiments.methods import METHODS
from tests import warm
from tests.cli.command import surefoot as command_line
from tests.deploy.made import ROWS, ran

THRESHOLDS = {"accept": 0.4, "reject": 0.34, "made_by": "a test"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An experiment that was run, and thresholds."""
    folder = tmp_path_factory.mktemp("deploy")
    found = ran(folder, methods=("single", "ensemble-of-t"), runs=2)
    (folder / "thresholds.json").write_text(json.dumps(THRESHOLDS))
    return found


@pytest.fixture
def surefoot(here):
    """The command in this process."""
    return here


@pytest.fixture(scope="module")
def bundle(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles") / "ensemble"
    command = ["bundle", "tiny", "ensemble-of-t", "-o", folder, "--store", made.store.root]
    command += ["--thresholds", made.images.parent / "thresholds.json", "--resamples", "20"]
    command_line(*command)
    return folder


def test_from_a_run_to_predictions(made, bundle, surefoot, tmp_path):
    done = surefoot("predict", bundle, made.images, "-o", tmp_path / "out.parquet")
    assert done.stdout == f"predictions: {tmp_path / 'out.parquet'} ({ROWS} images)\n"
    assert done.stderr == "", "nothing for the eye where nobody watches"
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["path", "label", "confidence", "entropy", "novelty", "decision", "error"]
    rows = {row["path"]: row for row in table.to_pylist()}
    stored = made.stored(METHODS.named("ensemble-of-t")).after["test_unfamiliar"]
    probs = stored.probs()
    assert [rows[str(made.images / path)]["confidence"] for path in stored.ids] == pytest.approx(
        probs.max(axis=1), abs=1e-5
    )
    assert {row["decision"] for row in rows.values()} <= {"accept", "review", "reject"}
    assert all((row["confidence"] >= 0.4) == (row["decision"] == "accept") for row in rows.values())


def test_a_flipped_bit_in_stored_weights_is_not_bundled(made, surefoot, tmp_path):
    spec = made.stored(METHODS.named("single")).specs[0]
    weights = made.store.weights_file(spec)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
    try:
        command = ("bundle", "tiny", "single", "-o", tmp_path / "b", "--store", made.store.root)
        refused = surefoot(*command, check=2)
    finally:
        weights.write_bytes(whole)
    assert f"{weights} is damaged (its sha256 is not" in refused.stderr
    assert f"remove its folder ({weights.parent}) and repeat 'surefoot run'" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_bit_in_a_bundle_is_noticed(made, bundle, surefoot, tmp_path):
    shutil.copytree(bundle, tmp_path / "b")
    weights = tmp_path / "b" / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
    refused = surefoot("predict", tmp_path / "b", made.images, "-o", tmp_path / "out.csv", check=2)
    assert refused.stderr == (
        f"surefoot: {tmp_path / 'b'}: weights.safetensors is not the file that was bundled: damaged, or "
        "changed since; copy the bundle again, or write it again with 'surefoot bundle'\n"
    )
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_the_whole_way_to_a_watch_over_predictions(made, surefoot, tmp_path, ending):
    printed, thresholds, folder, today = (
        tmp_path / name for name in ("said", "thresholds.json", "bundle", f"today.{ending}")
    )
    store = ("--store", made.store.root)
    surefoot("predictions", "tiny", "ensemble-of-t", "-o", printed, *store)
    surefoot("thresholds", printed / "familiar.npz", "--target-error", 0.9, "-o", thresholds)
    chosen = ("--thresholds", thresholds)
    surefoot("bundle", "tiny", "ensemble-of-t", "-o", folder, *chosen, "--resamples", 0, *store)
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    predicted = ("predict", folder, made.images, bad, "-o", today, "--skip-unreadable")
    surefoot(*predicted, "--probabilities")
    look = surefoot("monitor", printed / "familiar.npz", today, *chosen, "--format", "json")
    found = json.loads(look.stdout)
    assert found["n"]["current"] == ROWS, "what could not be read is left out"
    again = package.read_predictions(today, unlabelled=package.LabelKind.ONE_LABEL)
    stored = package.read_predictions(printed / "unfamiliar.npz")
    place = {str(path): row for row, path in enumerate(again.ids)}
    rows = [place[str(made.images / path)] for path in stored.ids]
    assert again.novelty[rows] == pytest.approx(stored.novelty, abs=1e-4)
    assert again.probs()[rows] == pytest.approx(stored.probs(), abs=1e-5)
    for streamed in ("--stream", "--no-stream"):
        refused = surefoot("evaluate", today, streamed, check=2)
        assert "predicted class; needed: the true class in a column 'true_label'" in refused.stderr
    calibration = tmp_path / "c.json"
    surefoot("calibrate", printed / "familiar.npz", "-o", calibration)
    surefoot("apply", calibration, today, "-o", tmp_path / "twice.npz")
    twice = package.read_predictions(tmp_path / "twice.npz", unlabelled=again.kind)
    assert np.array_equal(twice.logits, package.load_calibration(calibration)(again).logits)
    assert twice.ids.tolist() == again.ids.tolist()
    streamed = surefoot("evaluate", f"{tmp_path}/*.{ending}", check=2)
    assert "whose 'label' is the predicted class" in streamed.stderr
    surefoot(*predicted)
    bare = surefoot("monitor", printed / "familiar.npz", today, check=2)
    assert "needed: 'surefoot predict --probabilities'" in bare.stderr


def test_predictions_are_the_method_s_own(made, surefoot, tmp_path):
    done = surefoot("predictions", "tiny", "single", "-o", tmp_path / "p", "--store", made.store.root)
    assert done.stdout.count("rows)\n") == 2
    stored = made.stored(METHODS.named("single")).after
    for split in ("familiar", "unfamiliar"):
        found = package.read_predictions(tmp_path / "p" / f"{split}.npz")
        assert np.array_equal(found.logits, stored[f"test_{split}"].logits)
        assert found.novelty is not None
    again = surefoot(
        "predictions", "tiny", "single", "-o", tmp_path / "p", "--store", made.store.root, check=2
    )
    assert again.stderr.count("\n") == 1


def test_a_run_is_chosen_by_number(made, surefoot, tmp_path):
    for run in (0, 1):
        surefoot("bundle", made.folder, "single", "-o", tmp_path / str(run), "--run", run, "--resamples", 0)
    seeds = [
        json.loads((tmp_path / str(run) / "bundle.json").read_text())["networks"][0]["seed"] for run in (0, 1)
    ]
    assert seeds == [0, 1]
    printed = surefoot("bundle", made.folder, "single", "-o", tmp_path / "2", "--run", 2, check=2)
    assert printed.stderr == "surefoot: run is 2; allowed: 0 to 1\n"
    assert not (tmp_path / "2").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tiny", "novelty"), "'novelty' needs a gradient for every prediction"),
        (("tiny", "magic"), "unknown method 'magic'; have: single"),
        (("tiny", "distill"), "'tiny' has no networks for 'distill'; it was run with: single, ensemble-of-t"),
        (("huge", "single"), "no experiment 'huge' was run in"),
        (("tiny", "single", "--task", "toy"), "has no task 'toy'; choose one with --task: colours with mlp"),
        (("tiny", "single", "--network", "resnet"), "no network 'resnet'; choose one with --network: colours with mlp"),
        (("tiny", "single", "--task", "colours", "--network", "resnet"), "has no network 'resnet' for 'colours'; choose one"),
        (("tiny", "single", "--thresholds", "gone.json"), "gone.json: No such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_bundled_is_one_sentence(made, surefoot, tmp_path, arguments, says):
    done = surefoot("bundle", *arguments, "-o", tmp_path / "b", "--store", made.store.root, check=2)
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not a thresholds file: not JSON"),
        ("[]", "needed: an object with 'accept' and 'reject'"),
        ('{"accept": 0.9}', "no threshold 'reject'"),
        ('{"accept": 2, "reject": 0}', "accept is 2; allowed: a confidence from 0 to 1"),
        ('{"accept": true, "reject": 0}', "accept is True"),
        ('{"accept": 0.5, "reject": 0.9}', "reject is 0.9, above accept"),
        ('{"accept": 0.5, "reject": 0, "for_class": "red"}', "thresholds for 'red' alone"),
        ('{"accept": 0.5, "reject": 0, "classes": 4}', "thresholds for 4 classes, and the bundle has 3"),
        (
            '{"accept": 0.5, "reject": 0, "class_names": ["a", "b", "c"]}',
            "the classes of the thresholds are a, b, c",
        ),
    ],
)
def test_bad_thresholds_are_one_sentence(made, bundle, surefoot, tmp_path, text, says):
    (tmp_path / "t.json").write_text(text)
    done = surefoot(
        "predict", bundle, made.images, "-o", tmp_path / "o.csv", "--thresholds", tmp_path / "t.json", check=2
    )
    assert says in done.stderr
    assert not (tmp_path / "o.csv").exists()


def test_other_thresholds_and_none_for_a_side(made, bundle, surefoot, tmp_path):
    (tmp_path / "t.json").write_text('{"accept": null, "reject": null}')
    surefoot("predict", bundle, made.images, "-o", tmp_path / "o.csv", "--thresholds", tmp_path / "t.json")
    assert set(pyarrow.csv.read_csv(tmp_path / "o.csv")["decision"].to_pylist()) == {"review"}


@pytest.mark.parametrize(("by", "notes"), [(1.0, 0), (1.01, 1)])
def test_thresholds_of_another_calibration_are_remarked_on(made, bundle, surefoot, tmp_path, by, notes):
    calibration = json.loads((bundle / "calibration.json").read_text())
    calibration["members"][1]["temperature"] *= by
    (tmp_path / "t.json").write_text(json.dumps({**THRESHOLDS, "calibration": calibration}))
    command = ("bundle", made.folder, "ensemble-of-t", "-o", tmp_path / "b", "--resamples", 0)
    done = surefoot(*command, "--thresholds", tmp_path / "t.json")
    assert done.stderr.count("note: the thresholds were chosen under another calibration") == notes
    assert package.load_bundle(tmp_path / "b").thresholds.accept == THRESHOLDS["accept"]


@pytest.mark.parametrize(("names", "notes"), [(None, 1), (["green", "red", "<b>blue|s</b>"], 0)])
def test_thresholds_without_class_names_are_noted(made, bundle, surefoot, tmp_path, names, notes):
    document = {**THRESHOLDS, "kind": "thresholds", "class_names": names}
    (tmp_path / "t.json").write_text(json.dumps(document))
    command = ("predict", bundle, made.images, "-o", tmp_path / "o.csv", "--thresholds", tmp_path / "t.json")
    assert surefoot(*command).stderr.count("note: no class names in ") == notes


def test_unreadable_images_lose_nothing(made, bundle, surefoot, tmp_path):
    images = tmp_path / "images"
    shutil.copytree(made.images / "part0", images / "some" / "deeper")
    (images / "text.png").write_text("not an image")
    whole = (made.images / "part0" / "000.png").read_bytes()
    (images / "half.png").write_bytes(whole[: len(whole) // 2])
    Image.new("1", (20_000, 10_000)).save(images / "bomb.png")
    os.mkfifo(images / "pipe.png")
    (images / os.fsdecode(b"odd\xff.png")).write_bytes(whole)
    done = surefoot("predict", bundle, images, "-o", tmp_path / "out.parquet", check=1)
    assert done.stderr.startswith(
        f"4 of {ROWS // 2 + 5} images cannot be read and have an error instead of a label: "
    )
    rows = {row["path"]: row for row in pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()}
    assert len(rows) == ROWS // 2 + 5
    wrong = {path: row["error"] for path, row in rows.items() if row["error"]}
    assert wrong[str(images / "text.png")] == "not an image"
    assert wrong[str(images / "bomb.png")] == "more than 89,478,485 pixels"
    assert wrong[str(images / "pipe.png")] == "not a regular file"
    assert rows[str(images / "odd\ufffd.png")]["confidence"] is not None, "a name that is no text"
    assert "truncated" in wrong[str(images / "half.png")]
    assert sum(row["confidence"] is not None for row in rows.values()) == ROWS // 2 + 1
    surefoot("predict", bundle, images, "-o", tmp_path / "out.parquet", "--skip-unreadable")


def test_files_folders_and_patterns(made, bundle, surefoot, tmp_path, monkeypatch):
    monkeypatch.chdir(made.images)
    given = ("part0/000.png", "part1", "part*/00*", "part1/001.jpg")
    surefoot("predict", bundle, *given, "-o", tmp_path / "out.csv")
    paths = pyarrow.csv.read_csv(tmp_path / "out.csv")["path"].to_pylist()
    assert paths[:2] == ["part0/000.png", "part1/001.jpg"]
    assert sorted(paths) == sorted(set(paths)), "each once"
    assert len(paths) == ROWS // 2 + 5  # part1, and 000, 002, 004, 006, 008 of part0
    for wrong, says in (("gone", "gone: no such file or folder"), ("gone*", "gone*: matches no image")):
        assert says in surefoot("predict", bundle, wrong, "-o", tmp_path / "x.csv", check=2).stderr


def test_the_output_is_refused_before_the_work(made, bundle, surefoot, tmp_path):
    printed = surefoot("predict", bundle, made.images, "-o", tmp_path / "out.xlsx", check=2).stderr
    assert "unknown file type '.xlsx'; have: .parquet, .csv" in printed
    shutil.copy(made.images / "part0" / "000.png", tmp_path / "image.csv")
    printed = surefoot(
        "predict", bundle, tmp_path / "image.csv", "-o", tmp_path / "image.csv", check=2
    ).stderr
    assert "image.csv is among the images; allowed: another file" in printed
    printed = surefoot("predict", tmp_path, made.images, "-o", tmp_path / "out.csv", check=2).stderr
    assert "is not a bundle: it has no bundle.json" in printed


def test_rows_are_written_in_groups_and_in_order(made, bundle, surefoot, tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "AT_ONCE", 8)
    monkeypatch.setattr(predicting, "ROWS_IN_A_GROUP", 24)
    surefoot("predict", bundle, made.images, "-o", tmp_path / "out.parquet")
    file = pyarrow.parquet.ParquetFile(tmp_path / "out.parquet")
    assert file.metadata.num_row_groups == ROWS // 24
    paths = file.read()["path"].to_pylist()
    assert paths == sorted(paths)


def test_export_prints_the_difference(bundle, surefoot, tmp_path):
    done = surefoot("export", bundle, "-o", tmp_path / "model.pt2")
    first, second = done.stdout.splitlines()
    assert first.startswith(
        "largest difference from PyTorch for images of 131 x 97, 97 x 131, 500 x 30 pixels: "
    )
    assert float(first.split(": ")[1].split()[0]) <= 1e-4
    assert second.startswith(f"exported: {tmp_path / 'model.pt2'} (")
    assert done.stderr == ""
    names = torch.export.load(tmp_path / "model.pt2").graph_signature.user_outputs
    assert len(names) == 2


def test_a_file_that_is_there_is_replaced_and_a_folder_is_not(made, bundle, surefoot, tmp_path):
    for name in ("out.csv", "model.pt2"):
        (tmp_path / name).write_text("of yesterday")
    surefoot("predict", bundle, made.images / "part0" / "000.png", "-o", tmp_path / "out.csv")
    assert pyarrow.csv.read_csv(tmp_path / "out.csv").num_rows == 1
    printed = surefoot("export", bundle, "-o", tmp_path / "model.pt2", "--preprocessed").stdout
    assert printed.startswith("largest difference from PyTorch for batches of 1, 3, 8: ")
    assert torch.export.load(tmp_path / "model.pt2") is not None
    printed = surefoot("bundle", made.folder, "single", "-o", tmp_path, "--resamples", 0, check=2).stderr
    assert printed == f"surefoot: {tmp_path} exists already; allowed: a new folder, so that nothing is lost\n"
    assert {file.name for file in tmp_path.iterdir()} == {"out.csv", "model.pt2"}


def test_a_bundle_needs_neither_the_data_nor_the_store(made, bundle, tmp_path):
    """In a process of its own, from a copy elsewhere, with nothing but the bundle and an image."""
    shutil.copytree(bundle, tmp_path / "bundle")
    shutil.copy(made.images / "part0" / "000.png", tmp_path / "one.png")
    code = (
        "import surefoot; b = surefoot.load_bundle('bundle'); "
        "print(b.probabilities(b.preprocess('one.png')[None])[0].tolist())"
    )
    done = warm.run(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours = package.load_bundle(bundle)
    expected = ours.probabilities(ours.preprocess(made.images / "part0" / "000.png")[None])[0].tolist()
    assert json.loads(done.stdout) == pytest.approx(expected, abs=1e-6)
