"""The same rows give the same answer by every route: what `predict` writes, files, folders and patterns."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from surefoot import (
    InputError,
    LabelKind,
    Predictions,
    evaluate,
    read_predictions,
    scan_predictions,
    write_predictions,
)
from surefoot.predictions.tables import write_csv
from tests.cli.command import surefoot
from tests.conftest import draw_many_labels, draw_one_label

NAMES = ["cat", "dog", "=eel"]
ROWS = 400


def drawn(many=False, n=ROWS):
    options = {
        "class_names": NAMES,
        "ids": [f"{i}.png" for i in range(n)],
        "attributes": {"who": [i % 9 for i in range(n)]},
    }
    return draw_many_labels(n, 3, **options) if many else draw_one_label(n, 3, **options)


def as_predicted(predictions, file, *, truth=True):
    """Predictions as `surefoot predict --probabilities` writes them, one image unreadable; with true labels."""
    probs = predictions.probs()
    top = [NAMES[index] for index in probs.argmax(axis=1)]
    columns = {
        "path": ["bad.png", *predictions.ids],
        "label": [None, *top],
        "confidence": [None, *probs.max(axis=1)],
        "entropy": [None, *probs.max(axis=1)],
        "novelty": [None, *probs[:, 0]],
        "decision": [None, *["accept"] * predictions.n],
        **{f"prob_{name}": [None, *column] for name, column in zip(NAMES, probs.T, strict=True)},
        "error": ["not an image", *[None] * predictions.n],
        "who": [0, *predictions.attributes["who"].to_pylist()],
    }
    if truth and predictions.kind is LabelKind.ONE_LABEL:
        columns["true_label"] = [None, *(NAMES[label] for label in predictions.labels.tolist())]
    elif truth:
        for name, column in zip(NAMES, predictions.labels.T.tolist(), strict=True):
            columns[f"label_{name}"] = [None, *column]
    table = pa.table(columns)
    write_csv(table, file) if file.suffix == ".csv" else pa.parquet.write_table(table, file)
    return file


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("many", [False, True])
def test_commands_read_what_predict_writes(suffix, many, tmp_path):
    expected = drawn(many)
    file = as_predicted(expected, tmp_path / f"out{suffix}")
    read = read_predictions(file)
    assert (read.kind, read.class_names) == (expected.kind, tuple(NAMES))
    assert read.ids.tolist() == expected.ids.tolist()
    assert np.allclose(read.probs(), expected.probs())
    assert np.array_equal(read.labels, expected.labels)
    assert read.attributes.column_names == ["who"]
    value = evaluate(read, resamples=0).sides["familiar"].metrics["nll"].value
    assert value == pytest.approx(evaluate(expected, resamples=0).sides["familiar"].metrics["nll"].value)
    for options in (["--stream"], ["--no-stream", "--group-by", "who"]):
        done = surefoot("evaluate", file, "--format", "json", "--resamples", 0, *options)
        assert json.loads(done.stdout)["familiar"]["metrics"]["nll"]["value"] == pytest.approx(value)
    surefoot("calibrate", file, "-o", tmp_path / "c.json")
    bare = as_predicted(expected, tmp_path / f"bare{suffix}", truth=False)
    for source in (file, bare):
        surefoot("apply", tmp_path / "c.json", source, "-o", tmp_path / "applied.npz")
        applied = read_predictions(tmp_path / "applied.npz", unlabelled=expected.kind)
        assert (applied.n, applied.ids.tolist()) == (ROWS, expected.ids.tolist())
    surefoot("monitor", file, bare, "--kind", expected.kind)
    if not many:
        surefoot("thresholds", file, "--target-error", 0.9, "-o", tmp_path / "t.json")
        surefoot("sets", file)
    for command in (["evaluate"], ["evaluate", "--stream"], ["calibrate", "-o", tmp_path / "d.json"]):
        refused = surefoot(*command, bare, check=2)
        assert "needed: the true class in a column 'true_label', or 'label_<class>'" in refused.stderr


def test_without_probabilities_there_is_nothing_to_read(tmp_path):
    table = pa.parquet.read_table(as_predicted(drawn(), tmp_path / "all.parquet"))
    few = table.select([name for name in table.column_names if not name.startswith("prob_")])
    pa.parquet.write_table(few, tmp_path / "few.parquet")
    for options in (["--stream"], ["--no-stream"]):
        refused = surefoot("evaluate", tmp_path / "few.parquet", *options, check=2)
        assert "needed: 'surefoot predict --probabilities'" in refused.stderr


@pytest.fixture
def parts(tmp_path):
    """The same rows in one file, and in parts of each type."""
    whole = drawn()
    for suffix in (".npz", ".parquet", ".csv"):
        folder = tmp_path / suffix[1:]
        folder.mkdir()
        for number, rows in enumerate(np.array_split(np.arange(ROWS), 3)):
            write_predictions(whole.take(rows), folder / f"part{number}{suffix}")
        (folder / "notes.txt").touch()
        (folder / f".hidden{suffix}").touch()
    write_predictions(whole, tmp_path / "whole.npz")
    return tmp_path


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv"])
def test_parts_are_read_as_one(parts, kind):
    whole = read_predictions(parts / "whole.npz")
    files = [parts / kind / f"part{number}.{kind}" for number in range(3)]
    for name in (parts / kind, f"{parts}/{kind}/part*.{kind}", f"{parts}/{kind[:2]}*/*.{kind}", files):
        read = read_predictions(name)
        assert np.array_equal(read.logits, whole.logits)
        assert np.array_equal(read.labels, whole.labels)
        assert read.ids.tolist() == whole.ids.tolist()
        assert read.attributes["who"].to_pylist() == whole.attributes["who"].to_pylist()
    surefoot("calibrate", parts / "whole.npz", "-o", parts / "c.json")
    scored = ("--no-stream", "--format", "json", "--group-by", "who", "--resamples", 20)
    expected = surefoot("evaluate", parts / "whole.npz", *scored).stdout
    for name in (parts / kind, f"{parts}/{kind}/*.{kind}"):
        assert surefoot("evaluate", name, *scored).stdout == expected
        surefoot("apply", parts / "c.json", name, "-o", parts / "applied.npz")
        assert read_predictions(parts / "applied.npz").n == ROWS
        surefoot("thresholds", name, "--target-error", 0.9, "--familiar-test", name, "-o", parts / "t.json")
        surefoot("sets", name, "--unfamiliar", name)
        surefoot("monitor", name, name)


def test_which_files_a_name_stands_for_is_never_guessed(parts):
    for read in (read_predictions, scan_predictions):
        with pytest.raises(InputError, match=r"\*.npz: no file matches this pattern"):
            read(f"{parts}/none/*.npz")
        with pytest.raises(
            InputError, match=r"files of several types \(.csv, .npz, .parquet\); allowed: one"
        ):
            read(f"{parts}/*/part*")
        with pytest.raises(InputError, match="the list of prediction files is empty"):
            read([])
    (parts / "empty").mkdir()
    assert (
        "no predictions in this folder" in surefoot("monitor", parts / "empty", parts / "npz", check=2).stderr
    )
    surefoot("calibrate", parts / "whole.npz", "-o", parts / "c.json")
    for name in (parts / "npz", f"{parts}/npz/*.npz"):
        refused = surefoot("apply", parts / "c.json", name, "-o", parts / "npz" / "part1.npz", check=2)
        assert "is the input" in refused.stderr
    for name in ("familiar", "unfamiliar"):
        (parts / "empty" / f"{name}.npz").write_bytes((parts / "whole.npz").read_bytes())
    refused = surefoot("evaluate", parts / "empty", check=2)
    assert (
        "familiar and unfamiliar predictions in one folder; allowed: one file of these two" in refused.stderr
    )


def test_parts_that_do_not_fit_together_are_refused(tmp_path):
    good, rows = drawn(n=20), {"logits": np.zeros((20, 3)), "labels": np.zeros(20, int)}
    others = {
        "members differ: .*a.npz 1, .*b.npz 2": Predictions.from_logits(np.zeros((2, 20, 3)), rows["labels"]),
        "features differ: .*a.npz 0, .*b.npz 5": Predictions.from_logits(**rows, features=np.zeros((20, 5))),
        "groups differ: .*a.npz False, .*b.npz True": Predictions.from_logits(**rows, groups=list(range(20))),
        "classes differ: .*a.npz 3, .*b.npz 4": Predictions.from_logits(np.zeros((20, 4)), rows["labels"]),
        "columns of the files differ": Predictions.from_logits(**rows, attributes={"who": ["x"] * 20}),
    }
    write_predictions(good, tmp_path / "a.npz")
    for message, other in others.items():
        write_predictions(other, tmp_path / "b.npz")
        with pytest.raises(InputError, match=message):
            read_predictions(tmp_path)
