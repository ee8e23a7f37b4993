"""CSV files: numbers mean the same in memory and in batches, and lines have any length."""

import csv

import numpy as np
import pytest

from surefoot import InputError, Predictions, read_predictions, write_predictions
from tests.predictions.test_names import rows_in_batches

MANY = "logit_a,logit_b,label_a,label_b\n"


@pytest.mark.parametrize(
    "text",
    [
        "logit_a,logit_b,label\n0xFFFFFFFFFFFFFFFF,0,a\n1,2,b\n",
        "logit_a,logit_b,label\n1,0,a\n1,0x10,b\n",
        "logit_a,logit_b,label\n1,true,a\n1,0,b\n",
        MANY + "1,2,0,1\n3,4,0xFFFFFFFFFFFFFF9C,0\n",  # 64 bits of -100
        MANY + "1,2,0,1\n3,4,true,0\n",
    ],
)
def test_what_is_no_decimal_number_is_refused_in_memory_and_in_batches(text, tmp_path):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(InputError, match=r"0x|true"):
        read_predictions(tmp_path / "p.csv")
    with pytest.raises(InputError, match=r"0x|true"):
        rows_in_batches(tmp_path / "p.csv")


@pytest.mark.parametrize("values", ["0,1\n3,4,1,0", "false,True\n3,4,TRUE,false", "0.0,1\n3,4,1,0e0"])
def test_labels_per_class_are_numbers_or_booleans(values, tmp_path):
    (tmp_path / "p.csv").write_text(f"{MANY}1,2,{values}\n")
    assert read_predictions(tmp_path / "p.csv").labels.tolist() == [[0, 1], [1, 0]]
    assert rows_in_batches(tmp_path / "p.csv")[1].tolist() == [[0, 1], [1, 0]]


def test_a_column_that_only_begins_like_labels_is_text(tmp_path):
    (tmp_path / "p.csv").write_text("logit_a,logit_b,label,label_source\n1,2,a,by hand\n2,1,b,007\n")
    assert read_predictions(tmp_path / "p.csv").attributes["label_source"].to_pylist() == ["by hand", "007"]


@pytest.mark.parametrize(
    ("classes", "named", "ids"),
    [
        (3, "x" * 200_000, "r"),
        (20_000, "a class with a rather long name " * 2, "r"),
        (3, "x", "r" * 1_500_000),
    ],
    ids=["long name", "many names", "long ids"],
)
def test_lines_of_any_length_survive(classes, named, ids, tmp_path):
    names = [f"{named}{index}" for index in range(classes)]
    given = Predictions.from_logits(
        np.random.default_rng(0).normal(size=(3, classes)),
        [0, 2, 1],
        class_names=names,
        ids=["1", "2", ids],
    )
    write_predictions(given, tmp_path / "p.csv")
    again = read_predictions(tmp_path / "p.csv")
    assert again.class_names == tuple(names)
    assert again.labels.tolist() == [0, 2, 1]
    assert np.array_equal(again.logits, given.logits)
    assert again.ids.tolist() == ["1", "2", ids]
    assert rows_in_batches(tmp_path / "p.csv")[1].tolist() == [0, 2, 1]
    assert csv.field_size_limit() == 131_072
