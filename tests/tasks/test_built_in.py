"""The two tasks that need no download, and the list of all of them."""

from pathlib import Path

import numpy as np
import pytest

from surefoot import IGNORE, InputError
from surefoot.lab.tasks import TASKS, Split, task_named
from surefoot.lab.tasks.letters import (
    CLASS_NAMES,
    FAMILIAR_FACES,
    UNFAMILIAR_FACES,
    UNLABELLED_FACES,
    load_letters,
)
from surefoot.lab.tasks.toy import GRID, TOYS, load_toy
from surefoot.lab.tasks.toy import test_grid as grid_of_points

TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.name)
class TestToys:
    def test_sizes_and_regions(self, toy):
        task = load_toy(toy.name)
        assert [len(task.splits[s]) for s in (Split.TRAIN, Split.VAL, Split.UNLABELLED)] == [1200, 1200, 1200]
        assert sum(len(task.splits[s]) for s in TESTED) == GRID**2
        for split, samples in task.splits.items():
            points = samples.inputs.astype(np.float64)
            assert samples.inputs.dtype == np.float32
            assert np.abs(points).max() <= 1
            if split is not Split.UNLABELLED:
                assert toy.familiar(points).mean() == (split is not Split.TEST_UNFAMILIAR)
                assert (toy.red(points) == samples.labels).all()
                assert 0.3 < samples.labels.mean() < 0.7

    def test_the_unlabelled_cover_both_sides(self, toy):
        points = load_toy(toy.name).splits[Split.UNLABELLED].inputs.astype(np.float64)
        assert 0.2 < toy.familiar(points).mean() < 0.8
        grid = {tuple(point) for point in grid_of_points().astype(np.float32).tolist()}
        assert not grid & {tuple(point) for point in points.astype(np.float32).tolist()}

    def test_the_seed_decides_the_points_and_nothing_else(self, toy):
        one, again, other = load_toy(toy.name, seed=1), load_toy(toy.name, seed=1), load_toy(toy.name, seed=2)
        assert one.identity == again.identity != other.identity
        for split in Split:
            same = np.array_equal(one.splits[split].inputs, other.splits[split].inputs)
            assert np.array_equal(one.splits[split].inputs, again.splits[split].inputs)
            assert same == (split in TESTED)


def test_the_grid_covers_the_plane_evenly():
    grid = grid_of_points()
    assert grid.mean(axis=0).tolist() == pytest.approx([0, 0], abs=1e-12)
    assert grid[0].tolist() == [-1 + 1 / GRID] * 2
    assert grid[1].tolist() == [-1 + 3 / GRID, -1 + 1 / GRID]


@pytest.fixture(scope="module")
def letters():
    return load_letters()


class TestLetters:
    def test_sizes_faces_and_labels(self, letters):
        counts = {split.value: len(samples) for split, samples in letters.splits.items()}
        assert counts == {
            "train": 4160,
            "val": 1040,
            "test_familiar": 2080,
            "test_unfamiliar": 2080,
            "unlabelled": 1240,
        }
        assert letters.class_names == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        faces = {split: set(samples.groups.tolist()) for split, samples in letters.splits.items()}
        assert faces[Split.TRAIN] == faces[Split.VAL] == faces[Split.TEST_FAMILIAR] == set(FAMILIAR_FACES)
        assert faces[Split.TEST_UNFAMILIAR] == set(UNFAMILIAR_FACES)
        assert faces[Split.UNLABELLED] == set(UNLABELLED_FACES)
        assert not set(FAMILIAR_FACES) & set(UNFAMILIAR_FACES) & set(UNLABELLED_FACES)
        for split in (Split.TRAIN, Split.VAL, *TESTED):
            assert set(letters.class_counts(split).tolist()) == {
                len(letters.splits[split]) // len(CLASS_NAMES)
            }
        assert (letters.splits[Split.UNLABELLED].labels == IGNORE).all()

    def test_pictures_show_something_and_no_two_are_the_same(self, letters):
        for samples in letters.splits.values():
            pictures = samples.inputs
            assert (pictures.dtype, pictures.shape[1:]) == (np.uint8, (32, 32, 3))
            assert (pictures.std(axis=(1, 2, 3)) > 8).all()
            assert len({picture.tobytes() for picture in pictures}) == len(pictures)

    def test_a_familiar_letter_is_nearer_to_its_own_kind(self, letters):
        """Nearest class mean on contrast-free pictures: far above chance, and worse where unfamiliar."""

        def flat(samples):
            x = samples.inputs[..., 0].reshape(len(samples), -1).astype(np.float64)
            x = np.abs(x - np.median(x, axis=1, keepdims=True))
            return x / np.linalg.norm(x, axis=1, keepdims=True)

        train = letters.splits[Split.TRAIN]
        pictures = flat(train)
        means = np.stack([pictures[train.labels == label].mean(axis=0) for label in range(26)])
        right = [
            (flat(letters.splits[s]) @ means.T).argmax(axis=1) == letters.splits[s].labels for s in TESTED
        ]
        familiar, unfamiliar = (each.mean() for each in right)
        assert familiar > unfamiliar > 3 / 26

    def test_the_same_every_time(self, letters):
        few = dict.fromkeys(Split, 2)
        one, again, other = (load_letters(seed=seed, per_glyph=few) for seed in (0, 0, 1))
        assert one.identity == again.identity != other.identity
        for split in Split:
            pictures = one.splits[split].inputs
            assert np.array_equal(again.splits[split].inputs, pictures)
            assert not np.array_equal(other.splits[split].inputs, pictures)
            assert np.array_equal(letters.splits[split].inputs[: len(pictures)], pictures)


def test_tasks_in_display_order():
    assert [entry.name for entry in TASKS] == [
        "toy",
        "letters",
        "pets",
        "gender",
        "cat-dog",
        "animals",
        "objects",
    ]


@pytest.mark.parametrize("entry", TASKS, ids=lambda entry: entry.name)
def test_every_entry_is_complete(entry, tmp_path):
    assert TASKS.named(entry.name) is entry
    assert entry.title
    assert 20 < len(entry.description) < 80
    if entry.layout is None:
        for variant in entry.variants or ("",):
            task = task_named(f"{entry.name}/{variant}".rstrip("/"))
            assert list(task.splits) == list(Split)
    else:
        assert entry.layout.missing(tmp_path) == [p for p in entry.layout.places if not p.optional] != []
        for source in entry.layout.sources():
            assert source.published.startswith("http")
            assert source.terms
            assert source.citation
        with pytest.raises(InputError, match=r"needed: "):
            task_named(entry.name, root=tmp_path)
        with pytest.raises(InputError, match=f"task '{entry.name}' needs a root folder"):
            task_named(entry.name)


def test_unknown_names_are_refused():
    with pytest.raises(
        InputError,
        match=r"unknown task 'cat' \(did you mean 'cat-dog'\?\); have: toy, letters, pets, gender, cat-dog, animals, objects",
    ):
        task_named("cat")
    with pytest.raises(
        InputError, match=r"task 'toy' has no variant 'moons'; have: wave, rings, spiral, checkers"
    ):
        task_named("toy/moons")
    with pytest.raises(InputError, match=r"task 'letters' has no variant 'x'; have: none"):
        task_named("letters/x")
    with pytest.raises(InputError, match=r"No such file"):
        task_named("nowhere.toml")
    assert task_named("toy").name == "toy/wave"
    assert Path("nowhere.toml").exists() is False
