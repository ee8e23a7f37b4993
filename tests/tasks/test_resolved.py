"""The resolved split, written and read again."""

import tomllib

import pyarrow.csv
import pytest

from surefoot import InputError
from surefoot.tasks.manifest import load_task, write_resolved
from surefoot.tasks.objects import CLASS_NAMES, load_objects
from surefoot.tasks.task import Split
from surefoot.tasks.toy import load_toy
from tests.tasks.trees import FACES, coco_tree, faces, picture, voc_tree


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
