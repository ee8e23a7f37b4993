"""Tasks whose samples are vectors: rows of a table, lists in a column, an array; and what is refused."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from surefoot import InputError
from surefoot.lab.tasks.check import inspect, near_rows, usual_distance
from surefoot.lab.tasks.features import Encoding, RawColumns, encoding_from, read_features
from surefoot.lab.tasks.manifest import load_task, write_resolved
from surefoot.lab.tasks.task import Split
from tests.tasks.trees import description

TRAIN, UNFAMILIAR, UNLABELLED = Split.TRAIN, Split.TEST_UNFAMILIAR, Split.UNLABELLED
TABLE = """
[task]
name = "patients"
manifest = "manifest.csv"
label = "outcome"
id = "patient"
features = ["age", "income", "ward", "smoker", "code"]
categories = ["code"]
[familiar]
hospital = { in = ["a", "b"] }
[splits]
val = 0.2
test = 0.3
"""


def patients(count=120, seed=0):
    """A table with numbers, missing ones, text, true and false, and codes that look like numbers."""
    rng = np.random.default_rng(seed)
    hospital = np.asarray(["a", "b", "c"])[np.arange(count) % 3]
    age = rng.integers(18, 90, count)
    income = np.round(rng.lognormal(3, 1, count), 2)
    ward = rng.choice(["north", "south", "east"], count).astype(object)
    ward[hospital == "c"] = "west"
    return {
        "patient": [f"p{index:03d}" for index in range(count)],
        "hospital": hospital.tolist(),
        "outcome": np.where(age + 20 * rng.standard_normal(count) > 54, "died", "lived").tolist(),
        "age": age.tolist(),
        "income": [
            None if draw < 0.2 else value for draw, value in zip(rng.random(count), income, strict=True)
        ],
        "ward": [None if draw < 0.1 else value for draw, value in zip(rng.random(count), ward, strict=True)],
        "smoker": (rng.random(count) < 0.5).tolist(),
        "code": rng.integers(1, 4, count).tolist(),
    }


def write(folder, columns, text=TABLE, name="manifest.csv"):
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith(".csv"):
        pyarrow.csv.write_csv(pa.table(columns), folder / name)
    else:
        pyarrow.parquet.write_table(pa.table(columns), folder / name)
    return description(folder, text.replace("manifest.csv", name))


def vectors(folder, values, text="", labels=None):
    """A parquet manifest with a list column; the last third is unfamiliar."""
    count = len(values)
    columns = {
        "name": [f"v{index:03d}" for index in range(count)],
        "label": ["ab"[index % 2] for index in range(count)] if labels is None else labels,
        "site": ["new" if 3 * index >= 2 * count else "old" for index in range(count)],
        "embedding": list(values),
    }
    toml = TABLE.replace('"outcome"', '"label"').replace('"patient"', '"name"')
    toml = re.sub(r"features = .*\ncategories = .*", 'features = "embedding"', toml)
    toml = toml.replace('hospital = { in = ["a", "b"] }', 'site = { equals = "old" }')
    return write(folder, columns, toml + text, "manifest.parquet")


def test_the_encoding_is_scikit_learn_s(tmp_path):
    """Standardised numbers, marks of missing ones and one-hot categories, fitted on the training rows."""
    columns = patients(300)
    task = load_task(write(tmp_path, columns))
    names = np.asarray(columns["patient"])
    frame = {name: np.asarray(values, object) for name, values in columns.items()}
    numbers = np.stack([frame[name].astype(float) for name in ("age", "income")], axis=1)
    texts = [
        [str(v).lower() if v is not None else "~missing" for v in frame[n]]
        for n in ("ward", "smoker", "code")
    ]
    table = np.concatenate([numbers.astype(object), np.asarray(texts, object).T], axis=1)

    def numeric(column):
        return [
            (
                f"value {column}",
                Pipeline(
                    [("scale", StandardScaler()), ("fill", SimpleImputer(strategy="constant", fill_value=0))]
                ),
                [column],
            ),
            (f"missing {column}", MissingIndicator(features="all"), [column]),
        ]

    def categorical(column):
        return [(f"category {column}", OneHotEncoder(handle_unknown="ignore", sparse_output=False), [column])]

    oracle = ColumnTransformer([*numeric(0), *numeric(1), *categorical(2), *categorical(3), *categorical(4)])
    rows = {split: [np.flatnonzero(names == i)[0] for i in each.ids] for split, each in task.splits.items()}
    oracle.fit(table[rows[TRAIN]])
    widths = [feature.width for feature in task.encoding.features]
    assert widths == [2, 2, 5, 3, 4]  # north, south, east, missing; true, false; 1, 2, 3; and the unseen ones
    unseen = np.cumsum(widths)[2:] - 1
    for split, samples in task.splits.items():
        expected = oracle.transform(table[rows[split]]).astype(float)
        assert samples.inputs.dtype == np.float32
        np.testing.assert_allclose(np.delete(samples.inputs, unseen, axis=1), expected, rtol=1e-5, atol=1e-6)
        is_west = [frame["ward"][row] == "west" for row in rows[split]]
        assert samples.inputs[:, unseen].tolist() == [[float(west), 0, 0] for west in is_west]
    assert sum(task.splits[UNFAMILIAR].inputs[:, unseen[0]]) > 50
    again = encoding_from(json.loads(json.dumps(task.encoding.as_dict())))
    assert again == task.encoding
    values = [{name: column[row] for name, column in columns.items()} for row in rows[UNFAMILIAR]]
    raw = again.read_rows(values)
    assert np.array_equal(again.encode(raw), task.splits[UNFAMILIAR].inputs)
    with pytest.raises(
        InputError, match=r"column 'ward' is 'west' in row \d+, .* allowed: east, north, south,"
    ):
        again.refuse_unseen(raw)


def test_order_and_format_decide_nothing_and_values_do(tmp_path):
    columns = patients()
    one = load_task(write(tmp_path / "csv", columns))
    order = np.random.default_rng(1).permutation(len(columns["age"]))
    other = {name: [values[row] for row in order] for name, values in columns.items()}
    as_parquet = load_task(write(tmp_path / "parquet", other, name="manifest.parquet"))
    resolved = load_task(write_resolved(one, tmp_path / "split.csv"))
    for task in (as_parquet, resolved):
        assert task.identity == one.identity
        assert task.encoding == one.encoding
        for split, samples in task.splits.items():
            assert np.array_equal(samples.inputs, one.splits[split].inputs)
    columns["age"][7] += 1
    changed = load_task(write(tmp_path / "changed", columns))
    fewer = load_task(write(tmp_path / "fewer", columns, TABLE.replace('"age", ', "")))
    assert len({one.identity, changed.identity, fewer.identity}) == 3
    assert one.training_identity == changed.training_identity  # the seeds, as for images
    (tmp_path / "split.csv").write_text((tmp_path / "split.csv").read_text().replace("p001", "p999"))
    with pytest.raises(InputError, match=r"the split is \w+, but task.identity is"):
        load_task(tmp_path / "split.toml")


def test_a_column_of_lists_is_an_array_beside_the_manifest(tmp_path):
    values = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    as_lists = load_task(vectors(tmp_path / "a", values))
    file = vectors(tmp_path / "b", values)
    file.write_text(file.read_text().replace('"embedding"', '"made/e.npy"'))
    (tmp_path / "b/made").mkdir()
    np.save(tmp_path / "b/made/e.npy", values.astype(np.float64))
    as_array = load_task(file)
    resolved = load_task(write_resolved(as_lists, tmp_path / "split.csv"))
    assert as_lists.identity == as_array.identity == resolved.identity
    for split, samples in as_lists.splits.items():
        rows = [int(name[1:]) for name in samples.ids]
        assert np.array_equal(samples.inputs, values[rows])
        assert np.array_equal(samples.inputs, resolved.splits[split].inputs)
    np.save(tmp_path / "b/made/e.npy", values[1:])
    with pytest.raises(InputError, match=r"e.npy: the array has 59 rows; needed: 60, as the manifest"):
        load_task(file)


def test_unlabelled_rows_are_encoded_alike_and_never_repeat_a_test_row(tmp_path):
    values = np.random.default_rng(0).standard_normal((90, 5)).astype(np.float32)
    np.save(tmp_path / "g.npy", np.concatenate([values[85:], values[:4] + 1]))
    text = '[unlabelled]\nrows = "../g.npy"\n'
    plain = load_task(vectors(tmp_path / "a", values, text))
    assert len(plain.splits[UNLABELLED]) == 9
    once = vectors(tmp_path / "b", values, text)
    once.write_text(once.read_text().replace("[splits]", '[splits]\nrepeated_rows = "once"'))
    task = load_task(once)
    assert np.array_equal(task.splits[UNLABELLED].inputs, values[:4] + 1)
    assert task.splits[UNLABELLED].ids.tolist()[0] == "unlabelled/row-0000005"
    assert "5 rows whose features occur elsewhere too are left out" in task.remarks
    columns = patients()
    pyarrow.csv.write_csv(pa.table(columns), tmp_path / "g.csv")
    rows = '[unlabelled]\nrows = "../g.csv"\nlimit = 50\n'
    of_table = load_task(write(tmp_path / "c", columns, TABLE + rows))
    assert len(of_table.splits[UNLABELLED]) == 50
    by_id = dict(zip(of_table.splits[TRAIN].ids, of_table.splits[TRAIN].inputs, strict=True))
    same = [i for i in of_table.splits[UNLABELLED].ids if i.removeprefix("unlabelled/") in by_id]
    assert len(same) > 5
    for name, row in zip(of_table.splits[UNLABELLED].ids, of_table.splits[UNLABELLED].inputs, strict=True):
        assert name not in same or np.array_equal(row, by_id[name.removeprefix("unlabelled/")])


def test_leaks_near_copies_and_unseen_values_are_found(tmp_path):
    values = np.random.default_rng(0).standard_normal((90, 20)).astype(np.float32)
    clean = inspect(load_task(vectors(tmp_path, values)))
    assert [each.name for each in clean] == ["no_unlabelled"]
    ids = load_task(tmp_path / "task.toml").splits[TRAIN].ids
    copied, near = int(ids[0][1:]), int(ids[1][1:])
    values[80], values[81] = values[copied], values[near] + np.float32(0.001)
    findings = {each.name: each for each in inspect(load_task(vectors(tmp_path, values)))}
    assert findings["leak"].serious
    assert findings["leak"].samples == (f"train v{copied:03d} = test_unfamiliar v080",)
    assert findings["look_alike"].samples == (f"train v{near:03d} ~ test_unfamiliar v081",)
    unseen = {each.name: each for each in inspect(load_task(write(tmp_path / "t", patients())))}
    assert unseen["unseen_values"].samples == ("ward: 38 rows",)
    coarse = patients()
    coarse["age"], coarse["income"] = [40] * 120, [1.0] * 120
    equal = [each for each in inspect(load_task(write(tmp_path / "u", coarse))) if each.name == "equal_rows"]
    assert equal
    assert not any(each.serious for each in equal)


def test_near_rows_are_all_pairs_within_the_distance():
    rng = np.random.default_rng(3)
    values = rng.standard_normal((150, 30))
    values[100:] = values[:50] + 0.2 * rng.standard_normal((50, 30)) * rng.random((50, 1))
    sides = rng.integers(0, 3, 150)
    gaps = np.linalg.norm(values[:, None] - values[None], axis=2)
    pairs = [(a, b) for a, b in np.argwhere(gaps <= 0.5).tolist() if sides[a] < sides[b]]
    assert len(pairs) > 5
    assert near_rows(values, sides, 0.5) == sorted(pairs)
    np.fill_diagonal(gaps, np.inf)
    assert usual_distance(values) == pytest.approx(np.median(gaps.min(axis=1)))


def test_blank_rows_and_positions_are_those_of_an_unknown_row(tmp_path):
    """What feature dropout uses: a dropped feature looks like one that is missing or unseen."""
    encoding = load_task(write(tmp_path, patients())).encoding
    unknown = {"age": None, "income": None, "ward": "?", "smoker": "?", "code": "?"}
    assert np.array_equal(encoding.encode(encoding.read_rows([unknown]))[0], encoding.blank())
    assert encoding.positions().tolist() == [0] * 2 + [1] * 2 + [2] * 5 + [3] * 3 + [4] * 4
    assert np.flatnonzero(encoding.continuous()).tolist() == [0, 2]
    mixed = Encoding.fit(
        read_features(pa.table({"v": [[1.0, 2.0], [3.0, 4.0]], "x": [1, 2]}), ("v", "x"), ())
    )
    assert mixed.positions().tolist() == [0, 1, 2, 2]
    assert mixed.blank().tolist() == [0, 0, 0, 1]


VECTORS = [[float(i), 1.0] for i in range(30)]
WRONG_VECTORS = [
    (
        [*VECTORS, [1.0]],
        "column 'embedding' has 2 numbers in row 0 and 1 in row 30; allowed: vectors of one length",
    ),
    (
        [*VECTORS, [1.0, float("nan")]],
        "the vector in 'embedding' has NaN or an empty value in row 30; allowed: finite",
    ),
    (
        [*VECTORS, [1.0, float("inf")]],
        "the vector in 'embedding' has an infinite number in row 30; allowed: finite",
    ),
    (
        [*VECTORS, [1.0, None]],
        "the vector in 'embedding' has NaN or an empty value in row 30; allowed: finite",
    ),
    ([*VECTORS, None], "column 'embedding' is empty in row 30; allowed: a vector in every row"),
    ([["a"]] * 31, "column 'embedding' holds lists of string; allowed: lists of numbers"),
]


@pytest.mark.parametrize(("values", "message"), WRONG_VECTORS, ids=lambda each: str(each)[:20])
def test_wrong_vectors_are_refused(tmp_path, values, message):
    with pytest.raises(InputError, match=re.escape(message)):
        load_task(vectors(tmp_path, values))


WRONG_TABLES = [
    (
        {"age": ["NA", *range(119)]},
        "",
        "column 'age' is 'NA' in row 0, and most of its values are numbers; allowed:",
    ),
    ({"age": [float("inf"), *range(119)]}, "", "column 'age' is infinite in row 0; allowed: finite numbers"),
    ({"age": [None] * 120}, "", "column 'age' is empty in every row; needed: some values"),
    (
        {"age": ["2020-01-01"] * 120},
        "",
        "column 'age' holds date32[day] values; allowed as features: numbers, text,",
    ),
    ({}, ('"age"', '"height"'), "no column 'height'; have: patient, hospital, outcome, age"),
    ({}, ('"age"', '"outcome"'), "column 'outcome' is both a feature and the label; allowed: one of the two"),
    (
        {},
        ("[familiar]", 'images = "."\n[familiar]'),
        "task.images and task.features; allowed: images or features",
    ),
    ({}, ('["code"]', '["zip"]'), "unknown category 'zip'; have: age, income, ward, smoker, code"),
    ({}, ("[splits]", '[splits]\nrepeated_pictures = "once"'), "splits.repeated_pictures and task.features"),
    (
        {},
        ("0.3", '0.3\n[unlabelled]\nimages = "."'),
        "no unlabelled.rows; needed: a table with the same features",
    ),
    (
        {},
        (re.search(r"features = .*", TABLE)[0], "features = 3"),
        "task.features is 3; allowed: a list of different",
    ),
]


@pytest.mark.parametrize(("changes", "text", "message"), WRONG_TABLES, ids=lambda each: str(each)[:30])
def test_wrong_tables_are_refused(tmp_path, changes, text, message):
    columns = patients() | {
        name: list(map(str, values)) if "NA" in values else values for name, values in changes.items()
    }
    file = write(tmp_path, columns, TABLE.replace(*text) if text else TABLE)
    with pytest.raises(InputError, match=re.escape(message)):
        load_task(file)


def test_wrong_rows_of_a_request_are_refused():
    encoding = Encoding.fit(RawColumns({"x": np.asarray([1.0, 2.0]), "v": np.ones((2, 2), np.float32)}))
    for rows, message in (
        ([{"x": 1}], "row 0 has no 'v'; needed: x, v"),
        ([{"x": 1, "v": [1, 2, 3]}], "the vectors in 'v' have 3 numbers; needed: 2, as in training"),
        ([{"x": "1", "v": [1, 2]}], "'x' is '1' in row 0; allowed: a number"),
        ([3], 'row 0 is 3; needed: an object {"x": ..., "v": ...}'),
        ([{"x": 1, "v": [1, "a"]}], "'v' is [1, 'a'] in row 0; allowed: a list of numbers"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            encoding.read_rows(rows)
    with pytest.raises(
        InputError, match="column 'x' is empty in row 0, which training never had; allowed: a number"
    ):
        encoding.refuse_unseen(encoding.read_rows([{"x": None, "v": [1, 2]}]))
    for wrong in ({"deviation": 0.0}, {"mean": "a"}, {"kind": "other"}, {"more": 1}):
        with pytest.raises(InputError, match=r"^feature \{"):
            encoding_from([{**encoding.as_dict()[0], **wrong}])


@pytest.mark.parametrize(("splits", "limit"), [('repeated_rows = "once"\n', ""), ("", "limit = 0\n")])
def test_no_unlabelled_row_may_be_left(tmp_path, splits, limit):
    """All of them occur in the table, too; or none is wanted."""
    text = f'{TABLE}{splits}[unlabelled]\nrows = "manifest.csv"\n{limit}'.replace('id = "patient"\n', "")
    task = load_task(write(tmp_path, patients(), text))
    assert set(task.splits) == set(Split) - {UNLABELLED}


def test_balance_and_groups_work_as_for_images(tmp_path):
    text = TABLE.replace("[familiar]", 'groups = "hospital"\n[familiar]') + 'balance = "label"\n'
    task = load_task(write(tmp_path, patients(), text))
    for split, samples in task.splits.items():
        assert len(set(task.class_counts(split).tolist())) == 1
        assert set(samples.groups) <= ({"c"} if split is UNFAMILIAR else {"a", "b"})
    assert replace(task, contents="").identity != task.identity
