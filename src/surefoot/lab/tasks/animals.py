"""Mammal, bird, herptile or fish: half of the subclasses of each are familiar, half are not. ImageNet."""

import math
import random
import zlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from surefoot.errors import InputError
from surefoot.lab.tasks.layouts import (
    COCO,
    IMAGENET,
    WITHOUT_G,
    Layout,
    Place,
    TaskEntry,
    below,
    reading,
    unlabelled_split,
)
from surefoot.lab.tasks.task import ENDINGS, ImageFiles, Samples, Split, Task, shuffled
from surefoot.predictions.labels import LabelKind

CLASS_NAMES = ("mammal", "bird", "herptile", "fish")
ROOTS = {"mammal": (1204,), "bird": (1274,), "herptile": (1322, 1358), "fish": (1365,)}  # ILSVRC2012 ids
PER_CLASS = 1000  # or the size of the smallest superclass: 400 of the validation images
TRAINING_SHARE = 0.8
SEED = 1234  # the authors'

FOLDERS = ("ILSVRC2012", ".")

META = Place(IMAGENET, "hierarchy", below(FOLDERS, "ILSVRC2012_devkit_t12/data/meta.mat"))
TRUTH = Place(
    IMAGENET,
    "validation labels",
    below(FOLDERS, "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"),
)
TRAIN = Place(IMAGENET, "training images", below(FOLDERS, "ILSVRC2012_img_train"))
VAL = Place(IMAGENET, "validation images", below(FOLDERS, "ILSVRC2012_img_val"))
UNLABELLED = Place(COCO, "unlabelled images", ("MSCOCO/train2014", "train2014", "unlabelled/coco"), WITHOUT_G)
ANIMALS = TaskEntry(
    "animals",
    "Animals",
    "ImageNet; familiar is the first half of each superclass's subclasses",
    lambda root, _: load_animals(root),
    layout=Layout((META, TRUTH, TRAIN, VAL, UNLABELLED)),
)


@dataclass(frozen=True)
class Synset:
    """A node of the hierarchy; its leaves are the 1000 classes."""

    number: int
    wnid: str
    words: str
    children: tuple[int, ...]


@dataclass(frozen=True)
class Photo:
    """An image of a subclass."""

    path: str
    synset: Synset
    label: int


def load_animals(root: Path) -> Task:
    """1000 per superclass for training (800) and validation (200), 400 for each side of the test."""
    synsets = read_synsets(META.require(root))
    familiar, unfamiliar = [], []
    for name in CLASS_NAMES:
        leaves = subclasses(synsets, name)
        middle = (len(leaves) + 1) // 2
        familiar.append(leaves[:middle])
        unfamiliar.append(leaves[middle:])
    train_folder, val_folder = TRAIN.require(root), VAL.require(root)
    truth = _validation_labels(val_folder, TRUTH.require(root))
    generator = random.Random(SEED)
    train, val = [], []
    for photos in _draw(_training_photos(train_folder, familiar)):
        mixed = shuffled(photos, generator)
        count = math.ceil(len(mixed) * TRAINING_SHARE)
        train += mixed[:count]
        val += mixed[count:]
    tests = {
        Split.TEST_FAMILIAR: _draw(_validation_photos(truth, familiar)),
        Split.TEST_UNFAMILIAR: _draw(_validation_photos(truth, unfamiliar)),
    }
    return Task(
        name="animals",
        kind=LabelKind.ONE_LABEL,
        class_names=CLASS_NAMES,
        splits={
            Split.TRAIN: _samples(train_folder, train, "train"),
            Split.VAL: _samples(train_folder, val, "train"),
        }
        | {split: _samples(val_folder, list(chain(*drawn)), "val") for split, drawn in tests.items()}
        | unlabelled_split(UNLABELLED, root, LabelKind.ONE_LABEL, len(CLASS_NAMES)),
    )


def read_synsets(file: Path) -> dict[int, Synset]:
    """The devkit's `meta.mat`: one record per node, `children` by ILSVRC2012_ID."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    with reading(file):
        try:
            records = np.atleast_1d(loadmat(file, squeeze_me=True)["synsets"])
        except (MatReadError, NotImplementedError, zlib.error) as error:
            raise ValueError(error) from error
        synsets = [
            Synset(
                number=int(record["ILSVRC2012_ID"]),
                wnid=str(record["WNID"]),
                words=str(record["words"]),
                children=tuple(int(child) for child in np.atleast_1d(record["children"]).flat),
            )
            for record in records
        ]
    return {synset.number: synset for synset in synsets}


def subclasses(synsets: dict[int, Synset], superclass: str) -> list[Synset]:
    """The leaves below a superclass's roots, by ILSVRC2012_ID, each once."""
    pending, seen = list(ROOTS[superclass]), set()
    while pending:
        number = pending.pop()
        if number not in synsets:
            raise InputError(
                f"meta.mat has no node {number}, below {superclass}; needed: ILSVRC 2012's devkit"
            )
        if number not in seen:
            seen.add(number)
            pending += synsets[number].children
    return [synsets[number] for number in sorted(seen) if not synsets[number].children]


def _training_photos(folder: Path, synsets: list[list[Synset]]) -> list[list[Photo]]:
    """The training images of each superclass, by wnid and name."""
    result = []
    for label, of_class in enumerate(synsets):
        photos = []
        for synset in sorted(of_class, key=lambda each: each.wnid):
            images = folder / synset.wnid
            if not images.is_dir():
                raise InputError(f"{images}: no such folder; needed: the images of {synset.words}")
            names = sorted(file.name for file in images.iterdir() if file.name.lower().endswith(ENDINGS))
            photos += [Photo(f"{synset.wnid}/{name}", synset, label) for name in names]
        result.append(photos)
    return result


def _validation_labels(folder: Path, truth: Path) -> list[tuple[str, int]]:
    """Name and class of every validation image: the labels are in the order of the names."""
    names = sorted(file.name for file in folder.iterdir() if file.name.lower().endswith(ENDINGS))
    with reading(truth):
        numbers = [int(line) for line in truth.read_text(encoding="ascii").split()]
    if len(names) != len(numbers):
        raise InputError(f"{folder}: {len(names)} images for the {len(numbers)} labels of {truth.name}")
    return list(zip(names, numbers, strict=True))


def _validation_photos(truth: list[tuple[str, int]], synsets: list[list[Synset]]) -> list[list[Photo]]:
    """The validation images of each superclass, in the order of their names."""
    by_number = {synset.number: (synset, label) for label, each in enumerate(synsets) for synset in each}
    result: list[list[Photo]] = [[] for _ in synsets]
    for name, number in truth:
        if number in by_number:
            synset, label = by_number[number]
            result[label].append(Photo(name, synset, label))
    return result


def _draw(photos: list[list[Photo]]) -> list[list[Photo]]:
    """The same number of each superclass, at most PER_CLASS, with the authors' seed."""
    count = min(PER_CLASS, *(len(each) for each in photos))
    generator = random.Random(SEED)
    return [shuffled(each, generator)[:count] for each in photos]


def _samples(folder: Path, photos: list[Photo], prefix: str) -> Samples:
    return Samples(
        ids=np.asarray([f"{prefix}/{photo.path}" for photo in photos], dtype=np.str_),
        labels=np.asarray([photo.label for photo in photos], dtype=np.int64),
        inputs=ImageFiles(folder, tuple(photo.path for photo in photos)),
        groups=np.asarray([photo.synset.wnid for photo in photos], dtype=np.str_),
        attributes=pa.table({"subclass": [photo.synset.words for photo in photos]}),
    )
