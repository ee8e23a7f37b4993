"""Predictions from tables, batches and other libraries' outputs are those from the same arrays."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from surefoot import InputError, Predictions, read_predictions
from tests.optional import optional

NAMES = ("cat", "dog", "ant")
RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.normal(size=(9, 3)), np.arange(9) % 3
GROUPS = np.array(list("aabbccddd"))
TEXT = [NAMES[label] for label in LABELS]
EXPECTED = Predictions.from_logits(LOGITS, LABELS, class_names=NAMES, groups=GROUPS)


def frame():
    columns = {f"logit_{name}": LOGITS[:, i] for i, name in enumerate(NAMES)}
    more = {"truth": TEXT, "breed": GROUPS, "age": range(9), "label": "predicted"}
    return pd.DataFrame(columns | more, index=list("zyxwvutsr"))


def assert_same(found, expected=EXPECTED):
    assert np.array_equal(found.logits, expected.logits)
    assert np.array_equal(found.labels, expected.labels)
    assert (found.class_names, found.kind) == (expected.class_names, expected.kind)
    assert found.groups.tolist() == expected.groups.tolist()


def polars(table):
    return optional("polars").from_pandas(table.reset_index(drop=True))


def dataset(table):
    return optional("datasets").Dataset.from_pandas(table, preserve_index=False)


@pytest.mark.parametrize("made", [lambda t: t, pa.Table.from_pandas, polars, dataset])
def test_a_table_of_any_library_is_read(made):
    columns = [f"logit_{name}" for name in NAMES]
    found = Predictions.from_frame(made(frame()), logits=columns, label="truth", groups="breed")
    assert_same(found)
    assert found.attributes.column_names == ["age", "label"]  # a column that only looks like one is not used
    assert found.grouped_by("age").groups.tolist() == list(range(9))
    reordered = Predictions.from_frame(made(frame()), logits=columns[::-1], label="truth")
    assert np.array_equal(reordered.logits, EXPECTED.logits[:, :, ::-1])
    assert np.array_equal(reordered.labels, 2 - EXPECTED.labels)


def test_columns_of_lists_other_names_many_labels_and_one_probability():
    lists = pd.DataFrame({"z": list(LOGITS), "y": TEXT, "g": GROUPS})
    assert_same(Predictions.from_frame(lists, logits="z", label="y", groups="g", class_names=NAMES))
    wide = pd.DataFrame(LOGITS, columns=["a", "b", "c"]).assign(y=TEXT, g=GROUPS)
    assert_same(
        Predictions.from_frame(wide, logits=["a", "b", "c"], label="y", groups="g", class_names=NAMES)
    )
    many = wide.assign(x0=1, x1=0, x2=-100)
    found = Predictions.from_frame(many, logits=["a", "b", "c"], label=["x0", "x1", "x2"])
    assert found.labels.tolist() == [[1, 0, -100]] * 9
    assert found.class_names == ("a", "b", "c")
    one = pd.DataFrame({"p": [0.2, 0.9], "y": [0, 1]})
    assert Predictions.from_frame(one, probs="p", label="y").probs()[:, 1].tolist() == pytest.approx(
        [0.2, 0.9]
    )
    unlabelled = Predictions.from_frame(wide, logits=["a", "b"], kind="one_label")
    assert (unlabelled.labels == -100).all()


def test_the_numbers_of_a_class_label_count_its_own_names():
    datasets = optional("datasets")
    columns = [f"logit_{name}" for name in NAMES]
    table = datasets.Dataset.from_pandas(frame(), preserve_index=False)
    other = table.cast_column("truth", datasets.ClassLabel(names=["dog", "ant", "cat"]))
    assert_same(Predictions.from_frame(other, logits=columns, label="truth", groups="breed"))
    lists = datasets.Dataset.from_dict({"z": LOGITS.tolist(), "y": LABELS.tolist(), "g": GROUPS.tolist()})
    lists = lists.cast_column("y", datasets.ClassLabel(names=list(NAMES)))
    assert_same(Predictions.from_frame(lists, logits="z", label="y", groups="g"))
    in_file = other.remove_columns("label").rename_columns({"truth": "label", "breed": "groups"})
    assert_same(Predictions.from_frame(in_file))
    assert_same(Predictions.from_frame(lists.rename_columns({"z": "logits", "y": "label", "g": "groups"})))
    unnamed = other.rename_columns(dict(zip(columns, "012", strict=True)))  # not its names: class indices
    indices = Predictions.from_frame(unnamed, logits=["0", "1", "2"], label="truth")
    assert indices.labels.tolist() == [["dog", "ant", "cat"].index(name) for name in TEXT]
    for given, says in (
        (
            datasets.DatasetDict({"test": table}),
            r"several splits: test; needed: one, such as dataset\['test'\]",
        ),
        (table.to_iterable_dataset(), "IterableDataset is read row by row; needed: a Dataset"),
    ):
        with pytest.raises(InputError, match=says):
            Predictions.from_frame(given, logits=columns, label="truth")


def test_columns_may_have_numbers_as_names_and_a_lazy_table_is_collected():
    found = Predictions.from_frame(pd.DataFrame(LOGITS).assign(y=LABELS), logits=[0, 1, 2], label="y")
    assert np.array_equal(found.logits, EXPECTED.logits)
    assert found.class_names == ("0", "1", "2")
    lazy = polars(frame()).lazy()
    assert_same(
        Predictions.from_frame(lazy, logits=[f"logit_{n}" for n in NAMES], label="truth", groups="breed")
    )


@pytest.mark.parametrize("labels", [TEXT, np.array(TEXT), pd.Series(TEXT), pd.Categorical(TEXT)])
def test_labels_may_be_class_names(labels):
    assert_same(Predictions.from_logits(LOGITS, labels, class_names=NAMES, groups=pd.Series(GROUPS)))


def test_an_npz_may_hold_class_names_as_labels(tmp_path):
    np.savez(tmp_path / "p.npz", logits=LOGITS, labels=np.array(TEXT), classes=np.array(NAMES), groups=GROUPS)
    assert_same(read_predictions(tmp_path / "p.npz"))
    np.savez(tmp_path / "q.npz", logits=LOGITS, labels=np.array(TEXT))
    with pytest.raises(InputError, match=r"q.npz: labels are text, and no classes are named"):
        read_predictions(tmp_path / "q.npz")


def test_batches_of_a_generator_and_the_output_of_a_trainer():
    parts = [slice(0, 4), slice(4, 9)]
    torch = pytest.importorskip("torch")
    batches = ((torch.from_numpy(LOGITS[part]), [TEXT[i] for i in range(9)[part]]) for part in parts)
    assert_same(Predictions.from_batches(batches, class_names=NAMES, groups=GROUPS))
    one = Predictions.from_batches(iter([(np.array([1.0, 2.0]), [0, 1]), (np.array([3.0]), [1])]))
    assert one.logits[0, :, 1].tolist() == [1, 2, 3]
    output = namedtuple("PredictionOutput", "predictions label_ids metrics")
    given = {"class_names": NAMES, "groups": GROUPS}
    assert_same(Predictions.from_prediction_output(output(LOGITS, LABELS, {}), **given))
    assert_same(Predictions.from_prediction_output(output((LOGITS, "hidden"), LABELS, {}), **given))


REFUSED = {
    "unknown column 'gone'; have: logit_cat,": lambda f: Predictions.from_frame(
        f, logits=["gone"], label="truth"
    ),
    "column 'z' holds lists; allowed: its name alone, logits='z'": lambda f: Predictions.from_frame(
        f.assign(z=[[0.0, 1.0]] * len(f)), logits=["z"], label="truth"
    ),
    "column 'age' is given twice": lambda f: Predictions.from_frame(f, logits=["age", "age"], label="truth"),
    "label without logits or probs": lambda f: Predictions.from_frame(f, label="truth"),
    "2 class names for 1 columns": lambda f: Predictions.from_frame(
        f, logits=["age"], label="truth", class_names=["a", "b"]
    ),
    "label 'dog' in row 1 is not a class; allowed: cat, ant": lambda f: Predictions.from_frame(
        f, logits=["logit_cat", "logit_ant"], label="truth"
    ),
    "int is not a table; allowed": lambda _: Predictions.from_frame(3, logits=["a"]),
    "has a column that cannot be read: .* column age": lambda f: Predictions.from_frame(
        f.assign(age=[{"a": 1}, 3, *range(7)]), logits=["logit_cat", "logit_dog"], label="truth"
    ),
    "labels are text, and no classes are named": lambda _: Predictions.from_logits(LOGITS, TEXT),
    "is empty in row 1; allowed": lambda _: Predictions.from_logits(
        LOGITS, ["cat", None, *TEXT[2:]], class_names=NAMES
    ),
    "a batch has 9 rows of logits and 2 labels": lambda _: Predictions.from_batches([(LOGITS, [1, 2])]),
    r"a row of logits has shape \(3,\) in the first batch and \(2,\) in another": lambda _: (
        Predictions.from_batches([(LOGITS, LABELS), ([[0.0, 1.0]], [1])])
    ),
    "batches has type int; allowed: an iterable": lambda _: Predictions.from_batches(5),
    "no batches; needed: at least one": lambda _: Predictions.from_batches([]),
    "has no label_ids; needed: a test set with labels": lambda _: Predictions.from_prediction_output(
        SimpleNamespace(predictions=LOGITS, label_ids=None)
    ),
    "dict has no predictions; needed: a PredictionOutput": lambda _: Predictions.from_prediction_output({}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_wrong_is_one_sentence(sentence):
    with pytest.raises(InputError, match=sentence):
        REFUSED[sentence](frame())


def test_unknown_keyword_arguments_are_refused_by_name():
    with pytest.raises(TypeError, match=r"from_logits\(\) got an unexpected keyword argument 'group'"):
        Predictions.from_logits(LOGITS, LABELS, group=GROUPS)
