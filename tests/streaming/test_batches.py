"""Files a batch at a time say what they say when read whole, and are refused for the same reasons."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from surefoot import (
    IGNORE,
    InputError,
    Predictions,
    evaluate,
    read_predictions,
    scan_predictions,
    write_predictions,
)
from surefoot.predictions import readers as reading
from surefoot.predictions.paths import files_named, is_large
from surefoot.predictions.readers import batches, parts_of, shape_of
from tests.conftest import draw_many_labels, draw_one_label

NAMES = ["cat", "dog", "7", "a.b"]


def rows_of(files):
    parts = parts_of(files)
    shape = shape_of(parts)
    found = [batch for part in parts for batch in batches(part, shape)]
    logits = np.concatenate([batch.logits for batch in found], axis=1)
    return logits, np.concatenate([batch.labels for batch in found]), shape


WRITTEN = {
    "one label": draw_one_label(500),
    "float32": draw_one_label(500, dtype=np.float32),
    "names": draw_one_label(500, class_names=NAMES),
    "members": draw_one_label(300, members=3),
    "many labels": draw_many_labels(400, 4, class_names=NAMES),
    "many labels, members": draw_many_labels(200, 3, members=2),
}


@pytest.mark.parametrize(
    ("name", "suffix"),
    [(name, ".parquet") for name in WRITTEN]
    + [(name, ".csv") for name, p in WRITTEN.items() if p.members == 1],
)
def test_what_surefoot_writes(name, suffix, tmp_path, monkeypatch):
    predictions = WRITTEN[name]
    monkeypatch.setattr(reading, "MOST_ROWS", 64)
    write_predictions(predictions, tmp_path / f"p{suffix}")
    logits, labels, shape = rows_of([tmp_path / f"p{suffix}"])
    whole = read_predictions(tmp_path / f"p{suffix}")
    assert np.array_equal(logits, whole.logits)
    assert np.array_equal(labels, whole.labels)
    assert (shape.kind, shape.classes, shape.members) == (whole.kind, whole.classes, whole.members)
    assert shape.class_names == whole.class_names


TABLES = {
    "probs": {"probs": [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]], "label": [0, 2]},
    "float16": {"logits": pa.array([[np.float16(1), np.float16(2)]] * 2, pa.list_(pa.float16())), "label": [1, IGNORE]},
    "wide probs": {"prob_cat": [0.1, 1.0], "prob_dog": [0.9, 0.0], "label": ["dog", "cat"]},
    "wide, whole": {"logit_cat": [1, 2], "logit_dog": [3, -4], "label": ["1", "cat"]},
    "one logit": {"logit": [1.5, -2.0], "label": [1, 0]},
    "one prob": {"prob": [0.0, 0.75], "label": [True, False]},
    "one logit in lists": {"logits": [[1.5], [-2.0]], "labels": [[1], [0]]},
    "many probs": {"prob_a": [0.1, 0.0], "prob_b": [0.5, 1.0], "label_a": [1, 0], "label_b": [IGNORE, 1]},
    "float labels": {"logits": [[1.0, 2.0]] * 2, "label": [1.0, 0.0], "note": ["x", None]},
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_what_others_write(name, tmp_path):
    pq.write_table(pa.table(TABLES[name]), tmp_path / "p.parquet")
    logits, labels, shape = rows_of([tmp_path / "p.parquet"])
    whole = read_predictions(tmp_path / "p.parquet")
    assert np.array_equal(logits, whole.logits)
    assert logits.dtype == whole.logits.dtype
    assert np.array_equal(labels, whole.labels)
    assert shape.kind is whole.kind


BAD = {
    "nan": {"logits": [[1.0, float("nan")]], "label": [0]},
    "infinity": {"logits": [[1.0, float("inf")]], "label": [0]},
    "huge": {"logits": [[1.0, 1e200]], "label": [0]},
    "no label": {"logits": [[1.0, 2.0]]},
    "no scores": {"label": [0]},
    "other names": {"Logits": [[1.0, 2.0]], "target": [0]},
    "both": {"logits": [[1.0, 2.0]], "probs": [[0.5, 0.5]], "label": [0]},
    "label": {"logits": [[1.0, 2.0]], "label": [2]},
    "part of a label": {"logits": [[1.0, 2.0]], "label": [0.5]},
    "name": {"prob_a": [0.5], "prob_b": [0.5], "label": ["c"]},
    "not probabilities": {"probs": [[1.5, -0.5]], "label": [0]},
    "sum": {"probs": [[0.5, 0.1]], "label": [0]},
    "labels": {"logits": [[1.0, 2.0]], "labels": [[1, 0, 1]]},
    "label of many": {"logits": [[1.0, 2.0]], "labels": [[1, 3]]},
    "ragged": {"logits": [[1.0, 2.0], [1.0]], "label": [0, 0]},
    "gap": {"logits": [[1.0, 2.0], None], "label": [0, 0]},
    "text": {"logit_a": ["x"], "logit_b": ["y"], "label": [0]},
    "one class": {"logits": [[1.0]], "labels": [[1, 0]]},
    "infinite label": {"logits": [[1.0, 2.0]], "label": [float("inf")]},
    "empty lists": {"logits": pa.array([[]], pa.list_(pa.float64())), "label": [0]},
    "empty lists of lists": {"logits": pa.array([[]], pa.list_(pa.list_(pa.float64()))), "label": [0]},
    "four deep": {"logits": [[[[1.0, 2.0]]]], "label": [0]},
    "labels three deep": {"logits": [[1.0, 2.0]], "labels": [[[1, 0]]]},
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_whole_is_refused_in_batches(name, tmp_path):
    file = tmp_path / "p.parquet"
    pq.write_table(pa.table(BAD[name]), file)
    with pytest.raises(InputError, match=r"p\.parquet"):
        read_predictions(file)
    with pytest.raises(InputError, match=r"p\.parquet.*: .*(allowed|needed|must be equal)"):
        rows_of([file])


def test_a_file_of_other_columns_is_not_passed_over(tmp_path):
    for name, table in (("a", TABLES["float labels"]), ("b", BAD["other names"])):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    with pytest.raises(
        InputError, match=r"b\.parquet: got Logits, target \(did you mean 'logits' .*needed: exactly"
    ):
        rows_of([tmp_path / "a.parquet", tmp_path / "b.parquet"])


@pytest.mark.parametrize(
    "metadata",
    [b"{nope", b"\xff\xfe", b"[" * 100_000, b'{"class_names": 5}', b'{"class_names": [[1], [2]]}'],
    ids=["cut short", "no text", "a tower", "a number", "lists"],
)
@pytest.mark.parametrize(
    "read", [read_predictions, lambda file: rows_of([file])], ids=["whole", "in batches"]
)
def test_metadata_that_surefoot_did_not_write(read, metadata, tmp_path):
    table = pa.table({"logits": [[1.0, 2.0]], "label": [0]})
    pq.write_table(table.replace_schema_metadata({"surefoot": metadata}), tmp_path / "p.parquet")
    with pytest.raises(InputError, match=r"p\.parquet: .*metadata 'surefoot' are .*; allowed"):
        read(tmp_path / "p.parquet")


@pytest.mark.parametrize(
    "read", [read_predictions, lambda file: rows_of([file])], ids=["whole", "in batches"]
)
def test_a_label_of_too_many_digits_is_a_sentence_too(read, tmp_path):
    """Python reads no number of 5000 digits, and one of 20 could wrap to another label."""
    pq.write_table(pa.table({"logits": [[1.0, 2.0]], "label": ["9" * 5000]}), tmp_path / "p.parquet")
    with pytest.raises(InputError, match=r"p\.parquet: the label in row 0 has 5000 digits; allowed: 15"):
        read(tmp_path / "p.parquet")


def test_a_refusal_deep_in_a_file_says_from_where_it_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_ROWS", 500)
    table = pa.table({"logits": [[1.0, 2.0]] * 2000, "label": [0] * 1503 + [5] + [0] * 496})
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(
        InputError, match="rows counted from 1,500: label 5 in row 3 is out of range; allowed: 0 to 1"
    ):
        rows_of([tmp_path / "p.parquet"])


def test_files_must_be_alike(tmp_path):
    write_predictions(draw_one_label(20, 3), tmp_path / "a.parquet")
    write_predictions(draw_one_label(20, 4), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"classes differ: other files 3, .*b\.parquet 4; must be equal"):
        rows_of(sorted(tmp_path.iterdir()))


def test_class_names_must_be_alike_also_after_a_file_without_any(tmp_path):
    for file, names in (("0", None), ("1", ["a", "b"]), ("2", None), ("3", ["b", "a"])):
        write_predictions(draw_one_label(20, 2, class_names=names), tmp_path / f"{file}.parquet")
    files = sorted(tmp_path.iterdir())
    assert rows_of(files[:3])[2].class_names == ("a", "b")
    assert rows_of(files[::2])[2].class_names is None
    with pytest.raises(
        InputError, match=r"class names differ: other files a, b, .*3\.parquet b, a; must be equal"
    ):
        rows_of(files)


def test_what_a_name_stands_for(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.parquet", "a.parquet", "notes.txt", "[x].parquet", "deep/d.parquet"):
        (tmp_path / name).touch()

    def found(name):
        return [file.relative_to(tmp_path).as_posix() for file in files_named(name)]

    assert found(tmp_path) == ["[x].parquet", "a.parquet", "b.parquet"]
    assert found(f"{tmp_path}/[ab].parquet") == ["a.parquet", "b.parquet"]
    assert found(f"{tmp_path}/[x].parquet") == ["[x].parquet"]
    assert found(f"{tmp_path}/**/d.parquet") == ["deep/d.parquet"]
    assert found(tmp_path / "missing.parquet") == ["missing.parquet"]
    with pytest.raises(InputError, match="no file matches this pattern"):
        files_named(f"{tmp_path}/*.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no predictions in this folder"):
        files_named(tmp_path / "empty")


def test_what_is_streamed_unless_told_otherwise(tmp_path):
    small, large, npz = tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "c.npz"
    small.touch()
    for file in (large, npz):
        with file.open("wb") as handle:
            handle.truncate(2**29)  # sparse: it takes no room
    assert not is_large([small])
    assert is_large([small, small])
    assert is_large([large])
    assert not is_large([npz, npz])
    with pytest.raises(InputError, match=r"c\.npz: a \.npz file cannot be streamed; have: \.parquet, \.csv"):
        parts_of([npz])
    with pytest.raises(InputError, match=r"b\.parquet: .*[Pp]arquet"):
        parts_of([large])
    with pytest.raises(InputError, match="No such file or directory"):
        parts_of([tmp_path / "missing.csv"])


def test_parts_are_row_groups_and_hold_every_row(tmp_path, monkeypatch):
    table = pa.table({"logits": [[1.0, 2.0]] * 1000, "label": [0, 1] * 500})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=100)
    size = pq.read_metadata(tmp_path / "p.parquet").row_group(0).total_byte_size
    assert [part.rows for part in parts_of([tmp_path / "p.parquet"])] == [1000]  # few bytes are one part
    monkeypatch.setattr("surefoot.predictions.readers.PART_BYTES", int(2.5 * size))
    parts = parts_of([tmp_path / "p.parquet"])
    monkeypatch.setattr("surefoot.predictions.readers.MOST_PARTS", 2)
    assert [part.rows for part in parts_of([tmp_path / "p.parquet"])] == [500, 500]
    assert [(part.groups, part.first, part.rows) for part in parts] == [
        ((0, 1, 2), 0, 300),
        ((3, 4, 5), 300, 300),
        ((6, 7, 8), 600, 300),
        ((9,), 900, 100),
    ]


def test_empty_files_are_skipped_unless_all_are(tmp_path):
    nothing = pa.table({"logits": pa.array([], pa.list_(pa.float64())), "label": pa.array([], pa.int64())})
    pq.write_table(nothing, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no rows in any of these files"):
        rows_of([tmp_path / "a.parquet"])
    write_predictions(Predictions.from_logits(np.eye(3), [0, 1, 2]), tmp_path / "b.parquet")
    assert len(rows_of(sorted(tmp_path.iterdir()))[1]) == 3


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_the_shape_of_files_without_labels(suffix, tmp_path):
    table = pa.table({"logit_cat": [1.0, 2.0], "logit_dog": [0.0, 3.0]})
    write = pq.write_table if suffix == ".parquet" else pyarrow.csv.write_csv
    write(table, tmp_path / f"p{suffix}")
    scanned = scan_predictions(tmp_path / f"p{suffix}", unlabelled="one_label")
    assert (scanned.kind, scanned.classes, scanned.class_names) == ("one_label", 2, ("cat", "dog"))
    assert repr(scanned).startswith("ScannedPredictions(one_label, members=1")
    with pytest.raises(InputError, match="no column 'label'"):
        evaluate(scanned)
