"""What a task never allows, what its identity depends on, and paths that leave the image root."""

import hashlib

import numpy as np
import pytest

from surefoot import IGNORE, InputError, LabelKind
from surefoot.lab.tasks.task import (
    ImageFiles,
    Samples,
    Split,
    Task,
    image_paths_below,
    refuse_shared_content,
    unlabelled_labels,
)

ONE = LabelKind.ONE_LABEL


def points(prefix, labels, **optional):
    labels = np.asarray(labels, dtype=np.int64)
    ids = np.asarray([f"{prefix}{i}" for i in range(len(labels))])
    return Samples(ids=ids, labels=labels, inputs=np.zeros((len(labels), 2), np.float32), **optional)


def unlabelled(ids):
    return Samples(
        ids=np.asarray(ids), labels=unlabelled_labels(len(ids), ONE, 2), inputs=np.zeros((len(ids), 2))
    )


def task(**splits):
    return Task("t", ONE, ("a", "b"), {Split(name): samples for name, samples in splits.items()})


@pytest.mark.parametrize("other", [Split.TRAIN, Split.VAL, Split.TEST_FAMILIAR, Split.UNLABELLED])
def test_an_unfamiliar_sample_is_nowhere_else(other):
    splits = {
        Split.TRAIN: points("train", [0, 1]),
        Split.TEST_UNFAMILIAR: points("u", [0, 1]),
    }
    shared = unlabelled(["u1"]) if other is Split.UNLABELLED else points("u", [0, 1])
    with pytest.raises(InputError, match=r"sample 'u[01]' is in both .*; allowed: one split"):
        Task("t", ONE, ("a", "b"), splits | {other: shared})


@pytest.mark.parametrize("other", [Split.TRAIN, Split.VAL, Split.UNLABELLED])
def test_an_unfamiliar_file_is_nowhere_else_under_any_name(tmp_path, other):
    (tmp_path / "u.jpg").touch()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "u.jpg")
    (tmp_path / "x.jpg").touch()

    def files(prefix, *names):
        ids = np.asarray([f"{prefix}{name}" for name in names])
        labels = (
            np.arange(len(names)) % 2 if prefix != "unlabelled" else unlabelled_labels(len(names), ONE, 2)
        )
        return Samples(ids=ids, labels=labels, inputs=ImageFiles(tmp_path, names))

    splits = {Split.TRAIN: files("train", "x.jpg", "y.jpg"), Split.TEST_UNFAMILIAR: files("test", "u.jpg")}
    Task("t", ONE, ("a", "b"), splits)
    splits[other] = files(other.value, "link.jpg", "z.jpg")
    with pytest.raises(
        InputError, match=f"file '.*u.jpg' is in both {other} and|file '.*u.jpg' is in both test_unf"
    ):
        Task("t", ONE, ("a", "b"), splits)


@pytest.mark.parametrize("other", [Split.TRAIN, Split.VAL, Split.UNLABELLED])
def test_the_content_of_an_unfamiliar_file_is_nowhere_else(other):
    whole = task(
        train=points("t", [0, 1]),
        val=points("v", [0, 1]),
        test_unfamiliar=points("u", [0, 1]),
        unlabelled=unlabelled(["g0", "g1"]),
    )
    contents = {split: [f"{split}{row}" for row in range(2)] for split in whole.splits}
    refuse_shared_content(whole, contents)
    contents[other][1] = "test_unfamiliar0"
    with pytest.raises(
        InputError, match=rf"1 unfamiliar image also in {other}, such as u0 = .1; allowed: none"
    ):
        refuse_shared_content(whole, contents)


def test_files_that_cannot_be_opened_are_not_one_content():
    whole = task(train=points("t", [0, 1]), test_unfamiliar=points("u", [0, 1]))
    refuse_shared_content(whole, {Split.TRAIN: ["", "a"], Split.TEST_UNFAMILIAR: ["", "b"]})


def test_every_class_is_trained_on():
    with pytest.raises(
        InputError, match=r"class 'b' has no training samples \(2 in test_unfamiliar, such as u0\)"
    ):
        task(train=points("t", [0, 0]), test_unfamiliar=points("u", [1, 1]))
    with pytest.raises(InputError, match=r"class 'b' has no training samples .nor any others."):
        task(train=points("t", [0, 0]))
    with pytest.raises(InputError, match=r"'t' has no training samples"):
        task(val=points("t", [0, 1]))
    with pytest.raises(InputError, match=r"two or more"):
        Task("t", ONE, ("a",), {Split.TRAIN: points("t", [0])})


def test_an_id_occurs_once():
    with pytest.raises(InputError, match=r"sample 'a' occurs 2 times \(rows 0, 2\)"):
        Samples(ids=np.asarray(["a", "b", "a"]), labels=np.zeros(3, np.int64), inputs=np.zeros(3))


def test_empty_splits_are_not_there():
    assert list(task(train=points("t", [0, 1]), val=points("v", [])).splits) == [Split.TRAIN]


def test_identity_depends_on_every_part_and_on_no_order():
    def identity(train, names=("a", "b"), **more):
        return Task("t", ONE, names, {Split.TRAIN: train, **more}).identity

    plain = points("t", [0, 1, 1])
    same = identity(plain)
    assert same == identity(plain.take([2, 0, 1]))
    assert len(same) == 64
    changed = {
        identity(points("t", [0, 1, 0])),
        identity(points("s", [0, 1, 1])),
        identity(points("t", [0, 1, 1], groups=np.asarray(["x", "", ""]))),
        identity(plain, names=("a", "c")),
        identity(plain, **{Split.VAL: points("v", [0])}),
    }
    assert len(changed | {same}) == 6


def test_identity_is_the_same_on_every_machine():
    lines = ['["one_label", "a", "b"]', '["train", "é0", "a", "", "x"]', '["train", "é1", "b", "", "y"]']
    expected = hashlib.sha256("".join(f"{line}\n" for line in lines).encode("utf-8")).hexdigest()
    assert task(train=points("é", [0, 1], groups=np.asarray(["x", "y"]))).identity == expected


def test_many_labels_in_words():
    labels = np.asarray([[1, 0, IGNORE], [1, 1, 1]])
    samples = Samples(ids=np.asarray(["x", "y"]), labels=labels, inputs=np.zeros(2))
    many = Task("t", LabelKind.MANY_LABELS, ("a", "b", "c"), {Split.TRAIN: samples})
    assert many.label_text(Split.TRAIN, 0) == ("a", "c")
    assert many.label_text(Split.TRAIN, 1) == ("a;b;c", "")
    assert many.class_counts(Split.TRAIN).tolist() == [2, 1, 1]


def test_a_task_cannot_be_changed():
    built = task(train=points("t", [0, 1]))
    with pytest.raises(TypeError):
        built.splits[Split.VAL] = built.splits[Split.TRAIN]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "deep").mkdir(parents=True)
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (tmp_path / "root" / "in.jpg").touch()
    return tmp_path / "root"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.jpg",
        "deep/../../secret.jpg",
        "/etc/passwd",
        "",
        ".",
        "..",
        "C:/x.jpg",
        "..\\secret.jpg",
        "a\0b",
        "deep/..",
    ],
)
def test_paths_that_climb_are_refused(root, path):
    with pytest.raises(InputError, match=r"in row 1 leaves the image root"):
        ImageFiles(root, ("in.jpg", path))


def test_links_that_lead_out_are_refused(root, tmp_path):
    (root / "file.jpg").symlink_to(tmp_path / "secret.jpg")
    (root / "folder").symlink_to(tmp_path)
    (root / "step").symlink_to(root / "folder")
    for path in ("file.jpg", "folder/secret.jpg", "step/secret.jpg"):
        with pytest.raises(InputError, match=r"leaves the image root through a link"):
            ImageFiles(root, (path,))


def test_links_that_stay_are_fine(root):
    (root / "again.jpg").symlink_to(root / "in.jpg")
    (root / "other").symlink_to(root / "deep")
    assert (
        ImageFiles(root, ("again.jpg", "other/x.jpg", "missing.jpg")).file(2)
        == root.resolve() / "missing.jpg"
    )


def test_the_root_itself_may_be_a_link(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    assert ImageFiles(tmp_path / "link", ("in.jpg",)).files() == [str(root.resolve() / "in.jpg")]


def test_a_folder_is_listed_by_name(root):
    for name in ("b.PNG", "deep/a.jpeg", "notes.txt", ".hidden.jpg"):
        (root / name).touch()
    assert image_paths_below(root) == ["b.PNG", "deep/a.jpeg", "in.jpg"]
    with pytest.raises(InputError, match=r"no such folder"):
        image_paths_below(root / "nowhere")
    (root / "empty").mkdir()
    with pytest.raises(InputError, match=r"no images"):
        image_paths_below(root / "empty")
