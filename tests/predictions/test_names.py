"""Names that look like numbers, labels, formulas or nothing: refused, or the same after every file type."""

import csv
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot import InputError, Predictions, read_predictions, write_predictions
from surefoot.calibrators import fit_calibration
from surefoot.evaluation.evaluate import evaluate
from surefoot.predictions.readers import batches, parts_of, shape_of
from surefoot.text import from_spreadsheet, spreadsheet_text, visible

NASTY = [
    "label", "labels", "logits", "ids", "groups", "novelty", "-100", "-100.0", "0", "1", "01", "1.0", "-1",
    "+1", "1e5", "=1+1", "@x", "-x", "+x", "'=x", "''=x", "'", "''", '"', 'a"b', "a,b", "a\nb", "a\rb",
    "a\r\nb", "\ta", "a\t", "", " ", " a", "a ", "a\0", "\x1b[31m", "[bold]", "nan", "null", "true", "false",
    "None", "é", "e\u0301", "\u202e", "\ufeff", "x" * 3000, "_", "s", "logit_a", "label_a", ";", "\N{SNOWMAN}",
]  # fmt: skip
names = st.one_of(st.sampled_from(NASTY), st.text(max_size=5))
SUFFIXES = (".npz", ".parquet", ".csv")


def rows_in_batches(path):
    parts = parts_of([path])
    shape = shape_of(parts)
    read = [batch for part in parts for batch in batches(part, shape)]
    return shape.class_names, np.concatenate([b.labels for b in read]), np.hstack([b.logits for b in read])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_names_are_refused_or_survive_every_file_type(data, tmp_path):
    class_names = data.draw(st.lists(names, min_size=2, max_size=4))
    texts = st.lists(names, min_size=6, max_size=6)
    column = data.draw(names)
    many = data.draw(st.booleans())
    classes, rng = len(class_names), np.random.default_rng(0)
    labels = rng.integers(0, 2, (6, classes)) if many else np.array([0, 1, -100, 1, 0, classes - 1])
    try:
        given = Predictions.from_logits(
            rng.normal(size=(6, classes)).astype(np.float32),
            labels,
            class_names=class_names,
            groups=data.draw(texts),
            ids=data.draw(texts),
            attributes=pa.table({column: data.draw(texts)}),
        )
    except InputError:
        return
    for suffix in SUFFIXES:
        path = tmp_path / f"p{suffix}"
        try:
            write_predictions(given, path)
        except InputError:
            assert suffix != ".npz"  # a column that would be read as something else
            continue
        again = read_predictions(path)
        assert again.class_names == tuple(class_names)
        assert again.labels.tolist() == labels.tolist()
        assert np.array_equal(again.logits.astype(np.float64), given.logits.astype(np.float64))
        assert again.groups.tolist() == given.groups.tolist()
        assert again.ids.tolist() == given.ids.tolist()
        assert again.attributes.column_names == [column]
        assert again.attributes[column].to_pylist() == given.attributes[column].to_pylist() or re.fullmatch(
            r"\s*[\w.+-]*\s*", "".join(given.attributes[column].to_pylist())
        )  # a column of numbers is read as numbers from a .csv
        if suffix == ".csv":
            refuse_formulas(path)
        if suffix != ".npz":
            read_names, read_labels, read_logits = rows_in_batches(path)
            assert read_names == tuple(class_names)
            assert read_labels.tolist() == labels.tolist()
            assert np.array_equal(read_logits.astype(float), given.logits.astype(np.float64))


def refuse_formulas(path):
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.reader(file):
            for cell in line:
                assert not cell or cell[0] not in "=+-@\t\r\n" or float(cell) is not None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_applied_predictions_evaluate_as_the_calibration_does(suffix, tmp_path):
    rng = np.random.default_rng(1)
    given = Predictions.from_logits(
        (3 * rng.normal(size=(200, 3))).astype(np.float32),
        rng.integers(0, 3, 200),
        class_names=["=label", "-x", "1"],
        groups=[f"@{i % 7}" for i in range(200)],
    )
    calibrated = fit_calibration("temperature", given)(given)
    write_predictions(calibrated, tmp_path / f"p{suffix}")
    ours = evaluate(calibrated, resamples=50).sides["familiar"]
    again = evaluate(read_predictions(tmp_path / f"p{suffix}"), resamples=50).sides["familiar"]
    assert again.n == ours.n
    for name, score in ours.metrics.items():
        for part in ("value", "low", "high"):
            assert getattr(again.metrics[name], part) == pytest.approx(
                getattr(score, part), rel=1e-9, abs=1e-12, nan_ok=True
            )


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (["", "b"], "not empty"),
        ([" a", "b"], "no spaces"),
        (["a\N{NO-BREAK SPACE}", "b"], "no spaces"),
        (["-100", "b"], "mark of unknown labels"),
        (["-0100.00", "b"], "mark of unknown labels"),
        (["é", "e\u0301"], "occurs twice"),
        (["a", "a\u200b"], "occurs twice"),
        (["a\0", "b"], "null"),
        (["a\ud800", "b"], "Unicode"),
    ],
)
def test_names_that_a_file_cannot_tell_apart_are_refused(pair, reason):
    with pytest.raises(InputError, match=reason):
        Predictions.from_logits(np.zeros((2, 2)), [0, 1], class_names=pair)


def test_a_column_without_a_class_is_refused(tmp_path):
    (tmp_path / "p.csv").write_text("logit_,logit_a,logit_b,label\n1,2,3,a\n")
    with pytest.raises(InputError, match="'logit_' names no class"):
        read_predictions(tmp_path / "p.csv")


def test_labels_true_and_false_are_names_whatever_the_spaces_of_the_header(tmp_path):
    (tmp_path / "p.csv").write_text("logit_true,logit_false, label\n1,2,true\n1,2,false\n")
    assert read_predictions(tmp_path / "p.csv").labels.tolist() == [0, 1]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("column", ["logit_z", "label", "label_a", "ids", "probs"])
def test_columns_that_would_be_read_as_something_else_are_not_written(column, suffix, tmp_path):
    given = Predictions.from_logits(
        np.zeros((2, 2)), [0, 1], class_names=["a", "b"], attributes={column: ["x", "y"]}
    )
    with pytest.raises(InputError, match="would be read as something else"):
        write_predictions(given, tmp_path / f"p{suffix}")
    assert list(tmp_path.iterdir()) == []
    write_predictions(given, tmp_path / "p.npz")
    assert read_predictions(tmp_path / "p.npz").attributes.column_names == [column]


@given(st.text(st.sampled_from("'=+-@\t\r\na1.e"), max_size=6))
def test_text_in_a_spreadsheet_is_no_formula_and_comes_back(text):
    cell = spreadsheet_text(text)
    assert from_spreadsheet(cell) == text
    if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and cell:
        float(cell)  # a number is no formula


@given(st.text(max_size=20))
def test_visible_text_has_nothing_that_a_terminal_runs(text):
    shown = visible(text)
    assert all(unicodedata.category(each) not in ("Cc", "Cf", "Zl", "Zp", "Cs") for each in shown)
    assert not text.isprintable() or shown == text


@pytest.mark.parametrize("names", [("True", "False"), ("false", "true"), ("TRUE", "b", "FALSE")])
def test_a_boolean_label_is_the_class_of_that_name(names, tmp_path):
    truth = np.array([True, False, True])
    logits = np.random.default_rng(0).normal(size=(3, len(names)))
    expected = [[name.lower() for name in names].index(str(each).lower()) for each in truth]
    given = Predictions.from_logits(logits, truth, class_names=names)
    assert given.labels.tolist() == expected
    table = pa.table({f"logit_{name}": logits[:, i] for i, name in enumerate(names)} | {"label": truth})
    pa.parquet.write_table(table, tmp_path / "p.parquet")
    assert read_predictions(tmp_path / "p.parquet").labels.tolist() == expected
    assert rows_in_batches(tmp_path / "p.parquet")[1].tolist() == expected


def test_a_boolean_label_is_an_index_unless_a_class_has_its_name():
    logits = np.zeros((2, 2))
    assert Predictions.from_logits(logits, [True, False], class_names=["a", "b"]).labels.tolist() == [1, 0]
    with pytest.raises(InputError, match="label 'False' in row 1 is not a class; allowed: True, other"):
        Predictions.from_logits(logits, [True, False], class_names=["True", "other"])
