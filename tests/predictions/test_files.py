import re
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot import IGNORE, InputError, LabelKind, Predictions, read_predictions, write_predictions
from surefoot.predictions.tables import tables_in
from tests.conftest import draw_many_labels, draw_one_label


def everything(draw, **options):
    """Predictions with every optional part."""
    n = 12
    attributes = pa.table(
        {
            "age": pa.array([None, *range(1, n)]),
            "name": [f"née <{i}>" for i in range(n)],
            "seen": pa.array([True, False] * 6),
        }
    )
    return draw(
        n,
        3,
        class_names=["<script>", "b,c", "ü"],
        groups=["g1", "g2"] * 6,
        ids=list(range(100, 100 + n)),
        novelty=np.linspace(0, 1, n),
        attributes=attributes,
        **options,
    )  # fmt: skip


def assert_equal(a, b):
    assert a.logits.dtype == b.logits.dtype
    assert np.array_equal(a.logits, b.logits)
    assert np.array_equal(a.labels, b.labels)
    assert (a.kind, a.class_names) == (b.kind, b.class_names)
    for part in ("groups", "ids"):
        ours, theirs = getattr(a, part), getattr(b, part)
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.tolist() == theirs.tolist() and ours.dtype.kind == theirs.dtype.kind)
    assert (a.novelty is None) == (b.novelty is None)
    assert a.novelty is None or np.array_equal(a.novelty, b.novelty)
    assert (a.attributes is None) == (b.attributes is None)
    assert a.attributes is None or a.attributes.equals(b.attributes)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_round_trips_are_exact(draw, members, suffix, tmp_path):
    for predictions in (everything(draw, members=members), draw(7, 4, members=members)):
        write_predictions(predictions, tmp_path / f"p{suffix}")
        assert_equal(read_predictions(tmp_path / f"p{suffix}"), predictions)


@pytest.fixture
def in_parts(monkeypatch):
    """Tables are read a few rows at a time."""
    monkeypatch.setattr("surefoot.predictions.tables.AT_ONCE", 500)
    monkeypatch.setattr("surefoot.predictions.tables.CSV_BLOCK", 1)  # the first two lines


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_tables_are_read_a_few_rows_at_a_time(draw, suffix, tmp_path):
    whole = everything(draw)
    write_predictions(whole, tmp_path / f"p{suffix}")
    sizes = [table.num_rows for table in tables_in(tmp_path / f"p{suffix}")]
    assert sum(sizes) == 12
    assert len(sizes) > 1
    read = read_predictions(tmp_path / f"p{suffix}")
    assert np.array_equal(read.logits, whole.logits)
    assert np.array_equal(read.labels, whole.labels)
    assert read.attributes.to_pydict() == whole.attributes.to_pydict()
    assert [str(group) for group in read.groups] == whole.groups.tolist()
    with pytest.raises(ValueError, match="read-only"):
        read.logits[0, 0, 0] = 1


@pytest.mark.usefixtures("in_parts")
def test_an_error_says_from_where_its_rows_are_counted(tmp_path):
    rows = [f"{i},{i},a\n" for i in range(200)]
    (tmp_path / "p.csv").write_text("logit_a,logit_b,label\n" + "".join([*rows[:100], "1,2,c\n", *rows]))
    with pytest.raises(
        InputError, match=r"p\.csv: rows counted from (\d+): label 'c' in row (\d+) is not a"
    ) as e:
        read_predictions(tmp_path / "p.csv")
    start, row = map(int, re.search(r"from (\d+): .* row (\d+)", str(e.value)).groups())
    assert start + row == 100
    table = pa.table({"logits": [[1.0, 2.0]] * 100 + [[1.0, 2.0, 3.0]] * 100, "label": [0] * 200})
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(InputError, match="the lengths must be equal"):
        read_predictions(tmp_path / "p.parquet")


@pytest.mark.usefixtures("in_parts")
def test_a_line_longer_than_what_is_decoded_at_a_time(tmp_path):
    ids = [str(i) if i != 70 else "x" * 10_000 for i in range(100)]
    whole = draw_one_label(100, 3, ids=ids, attributes={"text": [f"line\n{i}" for i in range(100)]})
    write_predictions(whole, tmp_path / "p.csv")
    read = read_predictions(tmp_path / "p.csv")
    assert read.ids.tolist() == ids
    assert np.array_equal(read.logits, whole.logits)
    assert read.attributes.to_pydict() == whole.attributes.to_pydict()


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [(".npz", "f8"), (".npz", "f4"), (".parquet", "f8"), (".parquet", "f4"), (".csv", "f8")],
)
def test_no_number_is_in_memory_twice(suffix, dtype, tmp_path):
    whole = draw_one_label(100_000, 10)
    whole = whole.with_logits(whole.logits.astype(dtype))
    write_predictions(whole, tmp_path / f"p{suffix}")
    tracemalloc.start()
    read = read_predictions(tmp_path / f"p{suffix}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(read.logits, whole.logits)
    assert peak < 1.2 * (read.logits.nbytes + read.labels.nbytes) + 2**20


def test_probabilities_in_float32_are_copied_only_as_logarithms(tmp_path):
    probs = draw_one_label(100_000, 10).probs().astype(np.float32)
    np.savez(tmp_path / "p.npz", probs=probs, labels=np.zeros(len(probs), dtype=np.int64))
    tracemalloc.start()
    read = read_predictions(tmp_path / "p.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * read.logits.nbytes


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_round_trips_of_any_numbers_are_exact(suffix, tmp_path, data):
    width = data.draw(st.sampled_from([32, 64]))
    number = st.floats(-(2.0**100), 2.0**100, width=width)
    rows = data.draw(st.lists(st.tuples(number, number, number), min_size=1, max_size=8))
    logits = np.array(rows, dtype=f"f{width // 8}")
    predictions = Predictions.from_logits(logits, [0] * len(rows))
    write_predictions(predictions, tmp_path / f"p{suffix}")
    assert_equal(read_predictions(tmp_path / f"p{suffix}"), predictions)


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_arrays_in_another_byte_order_are_read_and_written(suffix, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"logits": rng.normal(size=(6, 3)).astype(">f4"), "labels": np.arange(6, dtype=">i8") % 3}
    arrays |= {"groups": np.arange(6, dtype=">i4"), "ids": np.array(list("abcdef")).astype(">U1")}
    np.savez(tmp_path / "swapped.npz", **arrays, novelty=rng.random(6).astype(">f8"))
    read = read_predictions(tmp_path / "swapped.npz")
    np.testing.assert_array_equal(read.logits[0], arrays["logits"].astype("=f4"))
    write_predictions(read, tmp_path / f"again{suffix}")
    again = read_predictions(tmp_path / f"again{suffix}")
    assert [int(each) for each in again.groups] == list(range(6))  # text in a .csv
    assert again.ids.tolist() == list("abcdef")


@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_csv_keeps_the_numbers(draw, tmp_path):
    predictions = everything(draw)
    write_predictions(predictions, tmp_path / "p.csv")
    again = read_predictions(tmp_path / "p.csv")
    assert np.array_equal(again.logits, predictions.logits)
    assert np.array_equal(again.labels, predictions.labels)
    assert again.class_names == predictions.class_names
    assert again.groups.tolist() == predictions.groups.tolist()
    assert again.attributes["name"].to_pylist() == predictions.attributes["name"].to_pylist()


def test_a_csv_by_hand(tmp_path):
    (tmp_path / "p.csv").write_text(
        "logit_cat,logit_dog,label,ids,breed\n1.5,-0.5,dog,007,pug\n2,3,cat,008,\n"
    )
    predictions = read_predictions(tmp_path / "p.csv")
    assert predictions.logits.tolist() == [[[1.5, -0.5], [2.0, 3.0]]]
    assert predictions.labels.tolist() == [1, 0]
    assert predictions.class_names == ("cat", "dog")
    assert predictions.ids.tolist() == ["007", "008"]
    assert predictions.attributes.to_pydict() == {"breed": ["pug", ""]}


def test_labels_by_index_by_name_and_where_names_are_numbers(tmp_path):
    for text, labels in (
        ("logit_cat,logit_dog,label\n1,0,1\n1,0,0\n", [1, 0]),
        ("prob_0,prob_1,label\n0.5,0.5,1\n1,0,0\n", [1, 0]),
        ("prob_3,prob_7,label\n0.5,0.5,7\n1,0,3\n", [1, 0]),
        ("prob_3,prob_7,label\n0.5,0.5,7.0\n1,0,3\n1,0,-100\n", [1, 0, IGNORE]),
        ("prob_1,prob_0,label\n0.5,0.5,1\n1,0,0\n", [0, 1]),
        ("prob_1,prob_0,prob_unsure,label\n1,0,0,1\n0,1,0,0\n", [0, 1]),
        ("prob_1,prob_0,prob_unsure,label\n1,0,0,1\n0,1,0,0\n0,0,1,unsure\n", [0, 1, 2]),
        ("logit_cat,logit_dog,label\n1,0,1.0\n1,0,-100\n", [1, IGNORE]),
        ("logit_a, logit_b, label\n1,0,b\n", [1]),
    ):
        (tmp_path / "p.csv").write_text(text)
        assert read_predictions(tmp_path / "p.csv").labels.tolist() == labels


@pytest.mark.parametrize("names", [("1", "2", "3"), ("2", "1", "0"), ("3", "5", "8"), ("a", "1", "c")])
@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_class_names_that_are_numbers_do_not_move_the_labels(names, suffix, tmp_path):
    predictions = Predictions.from_logits(np.eye(3), [1, 2, 0], class_names=names)
    write_predictions(predictions, tmp_path / f"p{suffix}")
    again = read_predictions(tmp_path / f"p{suffix}")
    assert again.labels.tolist() == [1, 2, 0]
    assert again.class_names == names


def test_odd_names_of_columns_are_classes_all_the_same(tmp_path):
    pq.write_table(
        pa.table({'logit_a"b': [1.0], "logit_x,y": [2.0], "logit_l\nm": [3.0], "label": ["l\nm"]}),
        tmp_path / "p.parquet",
    )
    predictions = read_predictions(tmp_path / "p.parquet")
    assert predictions.class_names == ('a"b', "x,y", "l\nm")
    assert predictions.labels.tolist() == [2]


def test_the_ending_may_be_in_capitals(tmp_path):
    for name in ("P.NPZ", "P.Parquet", "P.CSV"):
        write_predictions(draw_one_label(5), tmp_path / name)
        assert read_predictions(tmp_path / name).n == 5
    assert len(list(tmp_path.iterdir())) == 3


def test_one_column_is_binary(tmp_path):
    (tmp_path / "p.csv").write_text("prob,label\n0.9,1\n0.2,0\n")
    assert np.allclose(read_predictions(tmp_path / "p.csv").probs(), [[0.1, 0.9], [0.8, 0.2]])


def test_wide_many_labels(tmp_path):
    text = "logit_a,logit_b,label_b,label_a\n1,0,1,0\n1,0,-100,1\n"
    (tmp_path / "p.csv").write_text(text)
    predictions = read_predictions(tmp_path / "p.csv")
    assert predictions.kind is LabelKind.MANY_LABELS
    assert predictions.labels.tolist() == [[0, 1], [1, IGNORE]]


def test_plain_lists_in_parquet(tmp_path):
    table = pa.table({"probs": [[0.5, 0.5], [0.25, 0.75]], "label": [1, 0], "site": ["x", "y"]})
    pq.write_table(table, tmp_path / "p.parquet")
    predictions = read_predictions(tmp_path / "p.parquet")
    assert np.allclose(predictions.probs(), [[0.5, 0.5], [0.25, 0.75]])
    assert predictions.grouped_by("site").groups.tolist() == ["x", "y"]


def test_no_labels_only_when_the_kind_is_said(tmp_path):
    np.savez(tmp_path / "p.npz", logits=[[1.0, 2.0]])
    (tmp_path / "p.csv").write_text("logit_a,logit_b\n1,2\n")
    for name in ("p.npz", "p.csv"):
        with pytest.raises(InputError, match=f"{name}: no (array|column) 'label"):
            read_predictions(tmp_path / name)
        assert read_predictions(tmp_path / name, unlabelled=LabelKind.ONE_LABEL).labels.tolist() == [IGNORE]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_one_column_of_scores_is_not_read_as_many_labels(suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    if suffix == ".npz":
        np.savez(path, probs=[0.2, 0.7])
    elif suffix == ".csv":
        path.write_text("prob\n0.2\n0.7\n")
    else:
        pq.write_table(pa.table({"prob": [0.2, 0.7]}), path)
    assert read_predictions(path, unlabelled=LabelKind.ONE_LABEL).logits.shape == (1, 2, 2)
    with pytest.raises(InputError, match="1 class; allowed: two or more"):
        read_predictions(path, unlabelled=LabelKind.MANY_LABELS)


def npz(path, **arrays):
    np.savez(path, **arrays)


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)


def csv(path, text):
    path.write_text(text)


TWO = [[1.0, 2.0], [3.0, 4.0]]
REFUSED = {
    "p.npz no scores": (npz, {"labels": [0]}, "neither logits nor probs; allowed: exactly one"),
    "p.npz both": (npz, {"logits": TWO, "probs": TWO, "labels": [0, 1]}, "logits and probs; allowed: exactly one"),
    "p.npz unknown array": (npz, {"logits": TWO, "labels": [0, 1], "extra": [1]}, "unknown array 'extra'; have: logits"),
    "p.npz NaN": (npz, {"logits": [[1.0, np.nan]], "labels": [0]}, "logits hold NaN in row 0, column 1"),
    "p.npz label": (npz, {"logits": TWO, "labels": [0, 2]}, "label 2 in row 1 is out of range; allowed: 0 to 1"),
    "p.npz lengths": (npz, {"logits": TWO, "labels": [0, 1, 1]}, "3 labels for 2 rows of logits"),
    "p.npz sums": (npz, {"probs": [[0.5, 0.6]], "labels": [0]}, "row 0 sum to 1.1; allowed: 1 within 0.001"),
    "p.npz no rows": (npz, {"logits": np.zeros((0, 2)), "labels": np.zeros(0, int)}, "no rows"),
    "p.npz single class": (npz, {"logits": TWO, "labels": [0, 1], "classes": ["a"]}, "1 class names for 2 classes"),
    "p.npz attributes": (npz, {"logits": TWO, "labels": [0, 1], "attributes": [1.5]}, "attributes' has type float64"),
    "p.parquet no scores": (parquet, {"label": [0]}, "got label; needed: exactly one of 'logits'"),
    "p.parquet both": (parquet, {"logits": TWO, "prob_a": [1, 1], "label": [0, 1]}, "got logits and prob_a"),
    "p.parquet wide and list": (parquet, {"logits": TWO, "logit_a": [1, 1], "label": [0, 1]}, "both 'logits' and 'logit_a'"),
    "p.parquet ragged": (parquet, {"logits": [[1.0], [1.0, 2.0]], "label": [0, 0]}, "1 values in row 0 and 2 in row 1"),
    "p.parquet text": (parquet, {"logits": [["a", "b"]], "label": [0]}, "allowed: numbers"),
    "p.parquet no lists": (parquet, {"logits": [1.0], "label": [0]}, "has type double; allowed: lists of numbers"),
    "p.parquet gap": (parquet, {"logits": [[1.0, None]], "label": [0]}, "'logits' is empty in row"),
    "p.parquet gap in labels": (parquet, {"logits": TWO, "label": [0, None]}, "'label' is empty in row 1"),
    "p.parquet text label": (parquet, {"logits": TWO, "label": ["x", "y"]}, "label 'x' in row 0 is not a class; allowed: whole numbers, as the file names no"),
    "p.parquet two labels": (parquet, {"logits": TWO, "label": [0, 1], "labels": TWO}, "both 'label' and 'labels'"),
    "p.parquet fraction": (parquet, {"logit_0": [1.0], "logit_1": [2.0], "label": [0.7]}, "label '0.7' in row 0 is not a class"),
    "p.parquet fraction without names": (parquet, {"logits": TWO, "label": [0.7, 1.0]}, "row 0 are 0.7; allowed: whole numbers"),
    "p.parquet labels without classes": (parquet, {"logits": TWO, "label_a": [0, 1]}, "'label_a' without 'logit_<class>' columns"),
    "p.csv NaN": (csv, "logit_a,logit_b,label\n1,nan,a\n", "logits hold NaN in row 0, column 1"),
    "p.csv single class": (csv, "logit_a,label\n1,0\n", "a single class 'a'; allowed: two or more"),
    "p.csv not a class": (csv, "logit_a,logit_b,label\n1,0,c\n", "label 'c' in row 0 is not a class; allowed: a, b"),
    "p.csv not a number of a class": (csv, "prob_3,prob_7,label\n1,0,3\n1,0,1\n", "label '1' in row 1 is not a class; allowed: 3, 7"),
    "p.csv text": (csv, "logit_a,logit_b,label\n1,2,a\nx,2,a\n", "'logit_a' has type string with 'x' in row 1; allowed: numbers"),
    "p.csv gap": (csv, "logit_a,logit_b,label\n1,2,a\n,2,a\n", "'logit_a' is empty in row 1"),
    "p.csv twice": (csv, "logit_a,logit_a,label\n1,2,a\n", "'logit_a' occurs twice"),
    "p.csv ragged": (csv, "logit_a,logit_b,label\n1,2,a\n1,2\n", "Row #3: Expected 3 columns"),
    "p.csv empty": (csv, "", "cannot be read"),
    "p.csv no rows": (csv, "logit_a,logit_b,label\n", "no rows"),
    "p.csv half many-label": (csv, "logit_a,logit_b,label_a\n1,2,1\n", "no column 'label_b'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_naming_the_file(case, tmp_path):
    write, content, message = REFUSED[case]
    path = tmp_path / case.split()[0]
    write(path, content) if isinstance(content, str) else write(path, **content)
    with pytest.raises(InputError, match=message) as refused:
        read_predictions(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_refuses_object_arrays_without_unpickling(tmp_path):
    np.savez(tmp_path / "p.npz", logits=np.array([{"a": 1}], dtype=object), labels=[0])
    with pytest.raises(InputError, match="array 'logits' holds Python objects; allowed: numbers and text"):
        read_predictions(tmp_path / "p.npz")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_refuses_truncated_and_corrupt_files(suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    write_predictions(draw_one_label(50), path)
    whole = path.read_bytes()
    broken = [b"", b"garbage", whole[: len(whole) // 2], whole[:-1], whole[:-30] + bytes(30)]
    broken.append(whole[:300] + bytes(64) + whole[364:])
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(InputError) as refused:
            read_predictions(path)
        assert "cannot be read (" in str(refused.value)


def test_refuses_a_single_array_and_damage_inside_a_compressed_one(tmp_path):
    path = tmp_path / "p.npz"
    with path.open("wb") as file:
        np.save(file, np.eye(3))
    with pytest.raises(InputError, match="not a zip archive"):
        read_predictions(path)
    np.savez_compressed(
        path, logits=np.random.default_rng(0).standard_normal((50, 3)), labels=np.zeros(50, int)
    )
    whole = path.read_bytes()
    for place in range(60, 1100, 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(InputError):
            read_predictions(path)


def test_a_list_does_not_fit_into_a_csv(tmp_path):
    predictions = draw_one_label(2, attributes={"tags": [["a"], ["b", "c"]]})
    with pytest.raises(InputError, match=r"column 'tags' has type list.*; a .csv holds numbers and text"):
        write_predictions(predictions, tmp_path / "p.csv")
    assert list(tmp_path.iterdir()) == []


def test_refuses_other_types_missing_files_and_members_in_csv(tmp_path):
    with pytest.raises(InputError, match=r"unknown file type '.pkl'; have: .npz, .parquet, .csv"):
        read_predictions(tmp_path / "p.pkl")
    for suffix in (".npz", ".parquet", ".csv"):
        with pytest.raises(InputError, match="No such file"):
            read_predictions(tmp_path / f"none{suffix}")
    with pytest.raises(InputError, match=r"unknown file type '.txt'"):
        write_predictions(draw_one_label(), tmp_path / "p.txt")
    with pytest.raises(InputError, match=r"a .csv holds one member, got 2"):
        write_predictions(draw_one_label(members=2), tmp_path / "p.csv")
    with pytest.raises(InputError, match="cannot write"):
        write_predictions(draw_one_label(), tmp_path / "no" / "p.npz")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_no_bytes_bring_anything_but_a_sentence(tmp_path, content):
    for suffix in (".npz", ".parquet", ".csv"):
        path = tmp_path / f"p{suffix}"
        path.write_bytes(content)
        with pytest.raises(InputError):
            read_predictions(path)
