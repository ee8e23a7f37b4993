"""A user's TOML and table become a task, or an error of one sentence; resolved splits can be read again."""

import csv
import random
import re
import time
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot import IGNORE, InputError, LabelKind
from surefoot.lab.tasks.description import ByShare, Repeated, read_description
from surefoot.lab.tasks.manifest import load_task, write_resolved
from surefoot.lab.tasks.objects import CLASS_NAMES, load_objects
from surefoot.lab.tasks.task import Split
from surefoot.lab.tasks.toy import load_toy
from tests.tasks.trees import FACES, coco_tree, description, faces, picture, table, voc_tree

ROOT = Path(__file__).parents[2]
TRAIN, VAL, FAMILIAR, UNFAMILIAR = Split.TRAIN, Split.VAL, Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR


def sizes(task):
    return {split.value: len(samples) for split, samples in task.splits.items()}


def test_the_issue_s_example(tmp_path):
    text = FACES.replace("[splits]", "[splits]\nseed = 3") + '[unlabelled]\nimages = "../celeba"\n'
    picture(tmp_path / "celeba" / "g.jpg")
    (tmp_path / "here").mkdir()
    task = load_task(faces(tmp_path / "here", text=text))
    assert (task.name, task.kind, task.class_names) == ("faces", LabelKind.ONE_LABEL, ("f", "m"))
    assert sizes(task) == {"train": 14, "val": 8, "test_familiar": 14, "test_unfamiliar": 24, "unlabelled": 1}
    for split, samples in task.splits.items():
        if split is not Split.UNLABELLED:
            ages = samples.attributes["age"].to_numpy()
            assert ((ages >= 18) & (ages < 60)).all() == (split is not UNFAMILIAR)
            assert [f"p{int(path[:3]) // 2}" for path in samples.inputs.paths] == samples.groups.tolist()
            assert samples.ids.tolist() == list(samples.inputs.paths) == sorted(samples.inputs.paths)
            assert [int(path[:3]) // 3 % 2 for path in samples.inputs.paths] == samples.labels.tolist()
    assert task.splits[Split.UNLABELLED].labels.tolist() == [IGNORE]
    assert task.splits[Split.UNLABELLED].ids.tolist() == ["unlabelled/g.jpg"]


def test_fractions_are_stratified_by_label(tmp_path):
    task = load_task(faces(tmp_path, 600, pictures=False))
    for split, share in ((TRAIN, 0.4), (VAL, 0.2), (FAMILIAR, 0.4)):
        assert task.class_counts(split).tolist() == pytest.approx([180 * share, 180 * share], abs=1)


def test_the_order_of_rows_decides_nothing(tmp_path):
    one = load_task(faces(tmp_path, pictures=False))
    header, *lines = (tmp_path / "manifest.csv").read_text().splitlines()
    random.Random(0).shuffle(lines)
    (tmp_path / "manifest.csv").write_text("\n".join([header, *lines]))
    other = load_task(tmp_path / "task.toml")
    assert one.identity == other.identity
    assert one.splits[TRAIN].ids.tolist() == other.splits[TRAIN].ids.tolist()
    seeded = load_task(description(tmp_path, FACES + "seed = 1\n"))
    assert seeded.identity != one.identity
    assert sizes(seeded) == sizes(one)


def test_parquet_is_the_same_as_csv(tmp_path):
    one = load_task(faces(tmp_path, pictures=False))
    columns = list(
        zip(*[line.split(",") for line in (tmp_path / "manifest.csv").read_text().splitlines()], strict=True)
    )
    values = {name: [int(v) for v in column] if name == "age" else column for name, *column in columns}
    pyarrow.parquet.write_table(pa.table(values), tmp_path / "manifest.parquet")
    other = load_task(description(tmp_path, FACES.replace("manifest.csv", "manifest.parquet")))
    assert one.identity == other.identity


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from("ab"), st.integers(0, 99)), min_size=30, max_size=80
    )
)
def test_keep_together_parts_nobody(tmp_path, rows):
    rows = [(f"{i}.jpg", label, age, f"p{person}") for i, (person, label, age) in enumerate(rows)]
    rows += [(f"{label}{i}.jpg", label, 30, f"single{label}{i}") for label in "ab" for i in range(20)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    task = load_task(description(tmp_path, FACES + 'keep_together = "person"\n'))
    places = defaultdict(set)
    for split, samples in task.splits.items():
        for person in samples.groups.tolist():
            places[person].add("test" if split in (FAMILIAR, UNFAMILIAR) else split)
    assert all(len(splits) == 1 for splits in places.values())
    assert sum(sizes(task).values()) == len(rows)


def test_without_a_person_each_row_stands_alone(tmp_path):
    rows = [(f"{i}.jpg", "ab"[i % 2], 30, "") for i in range(40)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    task = load_task(description(tmp_path, FACES + 'keep_together = "person"\n'))
    assert sizes(task) == {"train": 16, "val": 8, "test_familiar": 16}


COLUMN = """
[task]
name = "t"
manifest = "manifest.csv"
label = "label"
[familiar]
site = { not_in = ["new"] }
[splits]
column = "split"
"""
SPLIT_ROWS = [
    (f"{i:02d}.jpg", "ab"[i % 2], "new" if i >= 20 else "old", s)
    for i, s in enumerate(["train"] * 10 + ["val"] * 4 + ["test"] * 10 + ["train", "val"])
]


def test_a_column_gives_the_splits_and_unfamiliar_training_rows_are_left_out(tmp_path):
    table(tmp_path / "manifest.csv", ("path", "label", "site", "split"), SPLIT_ROWS)
    task = load_task(description(tmp_path, COLUMN))
    assert sizes(task) == {"train": 10, "val": 4, "test_familiar": 6, "test_unfamiliar": 4}
    assert task.remarks == ("2 unfamiliar rows that 'split' puts into train or val are left out",)
    assert task.splits[UNFAMILIAR].ids.tolist() == ["20.jpg", "21.jpg", "22.jpg", "23.jpg"]


def test_val_may_be_a_share_of_train(tmp_path):
    rows = [
        (path, label, site, "train" if split == "val" else split) for path, label, site, split in SPLIT_ROWS
    ]
    table(tmp_path / "manifest.csv", ("path", "label", "site", "split"), rows)
    task = load_task(description(tmp_path, COLUMN + "val = 0.5\n"))
    assert sizes(task) == {"train": 7, "val": 7, "test_familiar": 6, "test_unfamiliar": 4}
    with pytest.raises(InputError, match=r"neither val rows nor splits.val"):
        load_task(description(tmp_path, COLUMN))


def test_a_column_that_parts_a_person_is_refused(tmp_path):
    rows = [(*row, f"p{i}") for i, row in enumerate(SPLIT_ROWS)]
    table(tmp_path / "manifest.csv", ("path", "label", "site", "split", "person"), rows)
    load_task(description(tmp_path, COLUMN + 'keep_together = "person"\n'))
    rows[22] = (*SPLIT_ROWS[22], "p3")
    table(tmp_path / "manifest.csv", ("path", "label", "site", "split", "person"), rows)
    with pytest.raises(
        InputError, match=r"person 'p3' is in train \(row 3\) and in test_unfamiliar \(row 22\)"
    ):
        load_task(description(tmp_path, COLUMN + 'keep_together = "person"\n'))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("splits", ['column = "split"', "val = 0.2\ntest = 0.4"])
def test_rows_without_a_condition_s_value_are_left_out(tmp_path, suffix, splits):
    """Empty cells, NaN and what stands for them; by a column for the splits, by shares, and kept together."""
    columns = {
        "path": [f"{i:02d}.jpg" for i in range(60)],
        "label": ["ab"[i % 2] for i in range(60)],
        "split": [("train", "val", "test")[i // 10 % 3] for i in range(60)],
        "age": [float("nan") if i in (0, 11) else None if i == 22 else 20.0 + i for i in range(60)],
        "site": ["" if i == 33 else "NaN" if i == 34 else "xy"[i > 50] for i in range(60)],
        "person": [None if i < 30 else "" if i < 50 else f"p{i // 2}" for i in range(60)],
    }
    given = pa.table(columns)
    (pyarrow.csv.write_csv if suffix == ".csv" else pyarrow.parquet.write_table)(
        given, tmp_path / f"m{suffix}"
    )
    text = COLUMN.replace('column = "split"', f'{splits}\nkeep_together = "person"')
    text = text.replace("manifest.csv", f"m{suffix}").replace("[splits]", "age = { above = 0 }\n[splits]")
    text = text.replace('not_in = ["new"]', 'equals = "x"')
    task = load_task(description(tmp_path, text))
    used = {each for samples in task.splits.values() for each in samples.ids.tolist()}
    assert not used & {"00.jpg", "11.jpg", "22.jpg", "33.jpg", "34.jpg"}
    assert all(site == "y" for site in task.splits[UNFAMILIAR].attributes["site"].to_pylist())
    (age,) = (each for each in task.remarks if "'age'" in each)
    assert age.startswith(
        "3 rows without a value of 'age' left out, as neither familiar nor unfamiliar (row 0, 11, 22)"
    )
    assert any("2 rows without a value of 'site' left out" in each for each in task.remarks)
    decided = load_task(description(tmp_path, text.replace("above = 0", "above = 0, missing = false")))
    left = {each for samples in decided.splits.values() for each in samples.ids.tolist()} - used
    assert left == ({"22.jpg"} if "column" in splits else {"00.jpg", "11.jpg", "22.jpg"})
    assert set(decided.splits[UNFAMILIAR].ids.tolist()) >= left


def test_a_table_without_any_value_names_the_column(tmp_path):
    table(
        tmp_path / "manifest.csv",
        ("path", "gender", "age", "person"),
        [("a", "f", "", ""), ("b", "m", "", "")],
    )
    with pytest.raises(
        InputError, match=r"no training samples \(none\).*note: 2 rows without a value of 'age'"
    ):
        load_task(description(tmp_path, FACES))


@pytest.mark.parametrize(
    ("persons", "ages", "splits", "message"),
    [
        (["p"] * 40, [30] * 40, "", "no rows for (val|train): .* are 1 group, and 0 for testing only"),
        (
            ["p", "q"] * 20,
            [30] * 20 + [70] * 20,
            "",
            "no rows for train: .* are 2 groups, and 2 for testing only",
        ),
        (list("pqrstuvwxy") * 4, [30] * 40, "", None),
        (["p"] * 40, [30] * 40, 'column = "split"\nval = 0.5', "no rows for (train|val): .* are 1 group"),
    ],
)
def test_keep_together_that_leaves_a_split_empty_is_named(tmp_path, persons, ages, splits, message):
    rows = [(f"{i}.jpg", "ab"[i % 2], ages[i], persons[i], "train") for i in range(40)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person", "split"), rows)
    text = FACES.replace("val = 0.2\ntest = 0.4\n", splits or "val = 0.2\ntest = 0.4\n")
    file = description(tmp_path, f'{text}\nkeep_together = "person"\n')
    if message is None:
        assert set(load_task(file).splits) == {TRAIN, VAL, FAMILIAR}
    else:
        with pytest.raises(
            InputError, match=f"{message}.*; allowed: a column with smaller groups, or no keep_together"
        ):
            load_task(file)


def test_a_class_whose_persons_are_tested_only_is_explained(tmp_path):
    rows = [
        (f"{i}.jpg", "b" if i < 8 else "a", 70 if i % 4 == 0 else 30, f"p{i // (4 if i < 8 else 1)}")
        for i in range(60)
    ]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    with pytest.raises(
        InputError,
        match=r"class 'b' has no training samples .*note: 6 familiar rows for testing only, as the person has",
    ):
        load_task(description(tmp_path, FACES + 'keep_together = "person"\n'))


MANY = """
[task]
name = "t"
manifest = "manifest.csv"
labels = "labels"
ignored = "difficult"
[familiar]
source = { equals = "voc" }
[splits]
val = 0.25
test = 0.25
"""


def test_many_labels_with_ignored_ones(tmp_path):
    rows = [
        (f"{i:02d}.jpg", ("cat; dog", "dog", "", "bird")[i % 4], ("cat;bird", "cat", "", "")[i % 4], "voc")
        for i in range(16)
    ]
    table(
        tmp_path / "manifest.csv",
        ("path", "labels", "difficult", "source"),
        [*rows, ("u.jpg", "cat", "", "coco")],
    )
    task = load_task(description(tmp_path, MANY))
    assert task.kind is LabelKind.MANY_LABELS
    assert task.class_names == ("bird", "cat", "dog")
    expected = [[IGNORE, 1, 1], [0, IGNORE, 1], [0, 0, 0], [1, 0, 0]]
    for samples in task.splits.values():
        for path, labels in zip(samples.inputs.paths, samples.labels.tolist(), strict=True):
            assert labels == ([0, 1, 0] if path == "u.jpg" else expected[int(path[:2]) % 4])
    assert Counter(sizes(task)) == {"train": 8, "val": 4, "test_familiar": 4, "test_unfamiliar": 1}


def test_classes_in_the_order_given_and_ids_of_their_own(tmp_path):
    text = FACES.replace('label = "gender"', 'label = "gender"\nclasses = ["m", "f"]\nid = "name"')
    rows = [(f"images/{i}.jpg", "fm"[i % 2], 30, "", f"00{i}") for i in range(20)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person", "name"), rows)
    task = load_task(description(tmp_path, text))
    assert task.class_names == ("m", "f")
    first = task.splits[TRAIN]
    assert first.ids[0].startswith("00")
    assert first.labels[0] == 1 - int(first.ids[0]) % 2


def test_a_resolved_split_has_no_formulas_and_comes_back(tmp_path):
    text = FACES.replace('label = "gender"', 'label = "gender"\nid = "name"')
    rows = [(f"images/{i}.jpg", ("=m", "-f")[i % 2], 30 + 40 * (i % 4 > 1), "", f"@{i}") for i in range(40)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person", "name"), rows)
    task = load_task(description(tmp_path, text))
    again = load_task(write_resolved(task, tmp_path / "resolved.csv"))
    assert again.identity == task.identity
    assert again.class_names == ("-f", "=m")
    with (tmp_path / "resolved.csv").open(newline="") as file:
        assert not any(cell.startswith(("=", "-", "@")) for line in csv.reader(file) for cell in line)


@pytest.mark.parametrize("name", [" f", "-100", "e\u0301"])
def test_class_names_that_files_cannot_hold_are_refused(name, tmp_path):
    rows = [(f"images/{i}.jpg", ("é", name)[i % 2], 30, "") for i in range(20)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    with pytest.raises(InputError, match="class name"):
        load_task(description(tmp_path, FACES))


def test_numbers_that_name_stay_as_written(tmp_path):
    text = FACES.replace('"gender"', '"code"').replace('groups = "person"', 'groups = "age"')
    table(
        tmp_path / "manifest.csv",
        ("path", "code", "age"),
        [(f"{i}.jpg", ("01", "1")[i % 2], 30) for i in range(20)],
    )
    task = load_task(description(tmp_path, text))
    assert task.class_names == ("01", "1")
    assert set(task.splits[TRAIN].groups.tolist()) == {"30"}


def test_unlabelled_images_may_be_fewer(tmp_path):
    for i in range(10):
        picture(tmp_path / "g" / f"{i}.jpg")
    text = FACES + '[unlabelled]\nimages = "g"\nlimit = 4\n'
    drawn = [load_task(faces(tmp_path, text=text + f"seed = {seed}\n", pictures=False)) for seed in (0, 0, 1)]
    names = [task.splits[Split.UNLABELLED].ids.tolist() for task in drawn]
    assert [len(each) for each in names] == [4, 4, 4]
    assert names[0] == names[1] == sorted(names[0])
    assert names[0] != names[2]


def test_unlabelled_images_that_are_the_task_s_own_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"is in both \w+ and unlabelled"):
        load_task(faces(tmp_path, text=FACES + '[unlabelled]\nimages = "images"\n'))


def test_each_picture_once(tmp_path):
    text = FACES + 'repeated_pictures = "once"\n[unlabelled]\nimages = "g"\n'
    file = faces(tmp_path, text=text)
    picture(tmp_path / "g" / "own.jpg", seed=5)
    images = tmp_path / "images"
    (tmp_path / "g" / "copy.jpg").write_bytes((images / "001.jpg").read_bytes())
    before = load_task(file)
    assert sum(sizes(before).values()) == 61
    where = {path: split for split, s in before.splits.items() for path in s.inputs.paths}
    train, test = (
        [p for p, s in where.items() if s is split and int(p[:3]) // 3 % 2 == 0]
        for split in (TRAIN, FAMILIAR)
    )
    unfamiliar, opposite = (
        "000.jpg",
        next(p for p, s in where.items() if s is TRAIN and int(p[:3]) // 3 % 2 == 1),
    )
    (images / train[0]).write_bytes((images / test[0]).read_bytes())  # the test keeps it
    (images / train[1]).write_bytes((images / unfamiliar).read_bytes())  # no one knows whether it is familiar
    (images / train[2]).write_bytes((images / opposite).read_bytes())  # no one knows its label
    after = load_task(file)
    now = {path: split for split, s in after.splits.items() for path in s.inputs.paths}
    assert where.keys() - now.keys() == {train[0], train[1], unfamiliar, train[2], opposite}
    assert now[test[0]] is FAMILIAR
    assert after.remarks == ("6 files whose picture occurs elsewhere too are left out",)
    assert after.splits[Split.UNLABELLED].ids.tolist() == ["unlabelled/own.jpg"]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from("aabc"), st.sampled_from((30, 30, 70)), st.integers(0, 5)),
        min_size=10,
        max_size=60,
    ),
    st.sampled_from(("", "seed = 4\n", 'keep_together = "person"\n')),
)
def test_balanced_splits_are_the_plain_ones_without_some_rows(tmp_path, rows, keys):
    rows = [(f"{i:02d}.jpg", label, age, f"p{person}") for i, (label, age, person) in enumerate(rows)]
    rows += [(f"{label}{i}.jpg", label, 30, f"single{label}{i}") for label in "abc" for i in range(10)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    plain = load_task(description(tmp_path, FACES + keys))
    task = load_task(description(tmp_path, FACES + keys + 'balance = "label"\n'))
    remarks = iter(task.remarks[len(plain.remarks) :])
    for split, samples in plain.splits.items():
        before, after = (Counter(each.labels.tolist()) for each in (samples, task.splits[split]))
        assert after == dict.fromkeys(before, min(before.values()))
        assert set(task.splits[split].ids.tolist()) <= set(samples.ids.tolist())
        if left_out := before.total() - after.total():
            remark = next(remarks)
            assert remark.startswith(f"{split} has {min(before.values())} rows per label; ")
            assert f" {left_out} rows are left out (" in remark
            for label, count in (before - after).items():
                assert f"{task.class_names[label]} {count}" in re.split(r"[(),] ?", remark)
    assert next(remarks, None) is None
    assert (task.identity == plain.identity) == (task.remarks == plain.remarks)
    random.Random(0).shuffle(rows)
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    assert load_task(tmp_path / "task.toml").identity == task.identity


def test_a_column_s_splits_are_balanced_after_repeated_pictures_and_come_back(tmp_path):
    rows = [(f"{i}.jpg", "aab"[i % 3], "old" if i < 36 else "new") for i in range(54)]
    names = ["train"] * 18 + ["val"] * 9 + ["test"] * 27
    rows = [(*row, name) for row, name in zip(rows, names, strict=True)]
    table(tmp_path / "manifest.csv", ("path", "label", "site", "split"), rows)
    for i in range(54):
        picture(tmp_path / f"{i}.jpg", seed=i)
    picture(tmp_path / "2.jpg", seed=29)  # a b in train that is also in test: train has 5 others
    text = COLUMN + 'repeated_pictures = "once"\nbalance = "label"\n'
    task = load_task(description(tmp_path, text))
    counts = {split: task.class_counts(split).tolist() for split in task.splits}
    assert counts == {TRAIN: [5, 5], VAL: [3, 3], FAMILIAR: [3, 3], UNFAMILIAR: [6, 6]}
    assert task.remarks == (
        "1 files whose picture occurs elsewhere too are left out",
        "train has 5 rows per label; to balance the labels, 7 rows are left out (a 7)",
        "val has 3 rows per label; to balance the labels, 3 rows are left out (a 3)",
        "test_familiar has 3 rows per label; to balance the labels, 3 rows are left out (a 3)",
        "test_unfamiliar has 6 rows per label; to balance the labels, 6 rows are left out (a 6)",
    )
    same(task, load_task(write_resolved(task, tmp_path / "split.csv")))
    other = load_task(description(tmp_path, text + "seed = 1\n"))
    assert other.splits[TRAIN].ids.tolist() != task.splits[TRAIN].ids.tolist()


def test_several_labels_per_row_cannot_be_balanced(tmp_path):
    with pytest.raises(InputError, match=r"splits.balance is 'label', but a row has several labels"):
        read_description(description(tmp_path, MANY + 'balance = "label"\n'))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('manifest = "manifest.csv"\n', "", "no task.manifest"),
        ('"manifest.csv"', '"nowhere.csv"', r"nowhere.csv: .*(No such file|Failed to open)"),
        ('"manifest.csv"', '"manifest.xls"', "unknown file type '.xls'; have: .csv, .parquet"),
        ('label = "gender"', 'label = "sex"', "no column 'sex'; have: path, gender, age, person"),
        ('label = "gender"', 'label = "gender"\nlabels = "age"', "exactly one of the two"),
        ('label = "gender"', 'label = "gender"\nignored = "age"', "task.ignored needs task.labels"),
        ('label = "gender"', "label = 3", "task.label is 3; allowed: text"),
        (
            'label = "gender"',
            'label = "gender"\nclasses = ["f", "x"]',
            "label 'm' in row 3 is not a class; allowed: f, x",
        ),
        ('label = "gender"', 'label = "gender"\nclasses = ["f"]', "two or more different names"),
        (
            "[task]",
            "[task]\nlable = 1",
            "unknown key of \\[task\\] 'lable' \\(did you mean 'label'\\?\\); have: name, manifest",
        ),
        (
            "[splits]",
            "[split]",
            "unknown key 'split' \\(did you mean 'splits'\\?\\); have: task, familiar, splits, unlabelled",
        ),
        ("age = { at_least = 18, below = 60 }", "", r"no \[familiar\] table"),
        ("at_least", "atleast", "unknown operator 'atleast'"),
        ("val = 0.2", "val = 1.2", "splits.val is 1.2; allowed: a share between 0 and 1"),
        ("val = 0.2", "val = 0.7", "is 1.1; allowed: below 1"),
        ("val = 0.2", "", "splits need a column, or both val and test"),
        ("val = 0.2", 'val = 0.2\nseed = "x"', "splits.seed is 'x'; allowed: a whole number"),
        ("val = 0.2", 'val = 0.2\ncolumn = "age"', "both splits.test and splits.column"),
        ("val = 0.2", 'val = 0.2\nrepeated_pictures = "no"', "allowed: as_given, once, alike, together"),
        ("val = 0.2", 'val = 0.2\nbalance = "group"', "splits.balance is 'group'; allowed: as_given, label"),
        ("[task]", '[unlabelled]\nfolder = "x"\n[task]', "unknown key of \\[unlabelled\\] 'folder'"),
        ("[familiar]", "[familiar", "not TOML"),
        ("below = 60", "below = 31", "class '.' has no training samples .1 in test_unfamiliar"),
        ('images = "images"', 'images = "images"\nidentity = "abc"', "but task.identity is abc"),
    ],
)
def test_bad_descriptions_are_refused(tmp_path, old, new, message):
    file = faces(tmp_path, 12, pictures=False)
    if "no training" in message:
        table(
            tmp_path / "manifest.csv",
            ("path", "gender", "age", "person"),
            [("a", "f", 30, ""), ("b", "m", 40, "")],
        )
    description(tmp_path, FACES.replace(old, new))
    with pytest.raises(InputError, match=message):
        load_task(file)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a.jpg", "f", 30, "p"), ("./a.jpg", "m", 30, "q")], "path 'a.jpg' is in rows 0 and 1"),
        ([("a.jpg", "f", 30, "p"), ("", "m", 30, "q")], "column 'path' is empty in row 1"),
        ([("a.jpg", "", 30, "p")], "column 'gender' is empty in row 0"),
        ([("../a.jpg", "f", 30, "p")], "path '../a.jpg' in row 0 leaves the image root"),
        ([("a.jpg", "f", "old", "p")], "holds text .'old' in row 0."),
        ([], "no rows"),
    ],
)
def test_bad_rows_are_named(tmp_path, rows, message):
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    with pytest.raises(InputError, match=message):
        load_task(description(tmp_path, FACES))


def test_an_image_root_that_is_missing_is_named(tmp_path):
    file = faces(tmp_path, 12, text=FACES.replace('images = "images"', 'images = "pictures"'))
    with pytest.raises(InputError, match=r"the image root .*pictures is not a folder; see task.images"):
        load_task(file)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.toml")), ids=lambda file: file.name)
def test_the_examples_are_well_formed(example):
    result = read_description(example)
    assert result.name == example.stem
    assert result.unlabelled is not None
    assert str(result.manifest).startswith(str(ROOT / "examples" / "data"))


def test_the_documented_keys_are_the_real_ones(tmp_path):
    text = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "tasks.md").read_text(), flags=re.DOTALL)[1]
    result = read_description(description(tmp_path, text))
    assert [str(each) for each in result.familiar] == ["age at_least 18", "age below 60"]
    assert result.splits == ByShare(0.2, 0.4, 0, "person")
    assert result.repeated is Repeated.ONCE
    assert result.balance


def test_bad_split_values_and_columns_are_named(tmp_path):
    rows = [*SPLIT_ROWS, ("x.jpg", "a", "old", "dev")]
    table(tmp_path / "manifest.csv", ("path", "label", "site", "split"), rows)
    with pytest.raises(InputError, match=r"'split' is 'dev' in row 26; allowed: train, val, test"):
        load_task(description(tmp_path, COLUMN))
    lists = {"path": ["a"], "label": ["b"], "site": ["old"], "split": [["train"]]}
    pyarrow.parquet.write_table(pa.table(lists), tmp_path / "m.parquet")
    with pytest.raises(InputError, match=r"'split' is \['train'\] in row 0; allowed: train, val, test"):
        load_task(description(tmp_path, COLUMN.replace("manifest.csv", "m.parquet")))
    table(tmp_path / "manifest.csv", ("path", "path", "site", "split"), SPLIT_ROWS)
    with pytest.raises(InputError, match=r"column 'path' occurs twice"):
        load_task(description(tmp_path, COLUMN))


def test_a_hundred_thousand_rows_are_read_in_seconds(tmp_path):
    rows = [(f"{i % 100}/{i}.jpg", "fm"[i % 2], i % 90, f"p{i // 3}") for i in range(100_000)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    start = time.perf_counter()
    task = load_task(description(tmp_path, FACES + 'keep_together = "person"\n'))
    assert len(task.identity) == 64
    assert time.perf_counter() - start < 20
    assert np.sum(list(sizes(task).values())) == 100_000


def same(one, other):
    assert one.identity == other.identity
    assert one.class_names == other.class_names
    for split, samples in one.splits.items():
        order = sorted(range(len(samples)), key=lambda row: samples.ids[row])
        again = other.splits[split]
        assert samples.ids[order].tolist() == again.ids.tolist()
        assert samples.labels[order].tolist() == again.labels.tolist()
        assert [samples.inputs.files()[row] for row in order] == again.inputs.files()


def test_a_user_s_task_comes_back_from_anywhere(tmp_path):
    picture(tmp_path / "g" / "g.jpg")
    task = load_task(faces(tmp_path / "here", text=FACES + '[unlabelled]\nimages = "../g"\n'))
    (tmp_path / "runs" / "one").mkdir(parents=True)
    file = write_resolved(task, tmp_path / "runs" / "one" / "split.csv")
    assert file == tmp_path / "runs" / "one" / "split.toml"
    again = load_task(file)
    same(task, again)
    assert (
        again.splits[Split.TRAIN].attributes["age"].to_pylist()
        == task.splits[Split.TRAIN].attributes["age"].to_pylist()
    )
    document = tomllib.loads(file.read_text())
    assert document["task"]["identity"] == task.identity
    assert document["task"]["images"] == "../.."


def test_many_labels_from_two_folders_come_back(tmp_path):
    voc = [(f"v{i}", [("cat", False)] if i % 2 else [("dog", False), ("cow", True)]) for i in range(10)]
    every = [(name, False) for name in CLASS_NAMES]
    voc_tree(tmp_path, [(f"e{i}", every) for i in range(10)], voc)
    coco_tree(tmp_path, [(5, [("cat", 10), ("tv", 80)]), (2, [])])
    task = load_objects(tmp_path)
    same(task, load_task(write_resolved(task, tmp_path / "split.csv")))


def test_a_changed_split_is_noticed(tmp_path):
    task = load_task(faces(tmp_path))
    file = write_resolved(task, tmp_path / "split.csv")
    manifest = tmp_path / "split.csv"
    manifest.write_text(manifest.read_text().replace('"val"', '"train"', 1))
    with pytest.raises(InputError, match=f"but task.identity is {task.identity}"):
        load_task(file)


def test_a_built_in_task_is_written_for_reading(tmp_path):
    task = load_toy("rings")
    write_resolved(task, tmp_path / "rings.csv")
    rows = pyarrow.csv.read_csv(tmp_path / "rings.csv")
    assert rows.num_rows == sum(len(each) for each in task.splits.values())
    with pytest.raises(InputError, match=r"column 'path' is empty in row 0"):
        load_task(tmp_path / "rings.toml")


def test_only_csv(tmp_path):
    with pytest.raises(InputError, match=r"unknown file type '.txt'; have: .csv"):
        write_resolved(load_toy("rings"), tmp_path / "x.txt")


def test_bad_resolved_files_are_refused(tmp_path):
    file = write_resolved(load_task(faces(tmp_path)), tmp_path / "split.csv")
    text = file.read_text()
    file.write_text(text + "val = 0.2\n")
    with pytest.raises(InputError, match=r"unknown key of \[splits\] .*'val'; have: resolved"):
        load_task(file)
    file.write_text(text + "[familiar]\nage = { equals = 3 }\n")
    with pytest.raises(InputError, match=r"and splits.resolved"):
        load_task(file)
    file.write_text(text)
    manifest = tmp_path / "split.csv"
    manifest.write_text(manifest.read_text().replace('"val"', '"valid"', 1))
    with pytest.raises(InputError, match=r"'split' is 'valid' in row .*; allowed: train, val, test_familiar"):
        load_task(file)
