"""Mammal, bird, herptile or fish: half of each one's subclasses are familiar, half are not. ImageNet."""

import math
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from surefoot.errors import InputError
from surefoot.predictions.labels import LabelKind
from surefoot.tasks.layouts import COCO, IMAGENET, WITHOUT_G, Layout, Place, below, reading, unlabelled_split
from surefoot.tasks.task import ENDINGS, ImageFiles, Samples, Split, Task, shuffled

CLASS_NAMES = ("mammal", "bird", "herptile", "fish")
ROOTS = {"mammal": (1204,), "bird": (1274,), "herptile": (1322, 1358), "fish": (1365,)}  # ILSVRC2012 ids
PER_CLASS = 1000  # or as many as the smallest superclass has: 400 of the validation images
TRAINING_SHARE = 0.8
SEED = 1234  # the authors'

HOMES = ("ILSVRC2012", ".")


META = Place(IMAGENET, "hierarchy", below(HOMES, "ILSVRC2012_devkit_t12/data/meta.mat"))
TRUTH = Place(
    IMAGENET,
    "validation labels",
    below(HOMES, "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"),
)
TRAIN = Place(IMAGENET, "training images", below(HOMES, "ILSVRC2012_img_train"))
VAL = Place(IMAGENET, "validation images", below(HOMES, "ILSVRC2012_img_val"))
UNLABELLED = Place(COCO, "unlabelled images", ("MSCOCO/train2014", "train2014", "unlabelled/coco"), WITHOUT_G)
LAYOUT = Layout((META, TRUTH, TRAIN, VAL, UNLABELLED))


@dataclass(frozen=True)
class Synset:
    """A node of the hierarchy; the 1000 classes are its leaves."""

    number: int
    wnid: str
    words: str
    children: tuple[int, ...]


@dataclass(frozen=True)
class Picture:
    """An image of a subclass."""

    path: str
    synset: Synset
    label: int


def load_animals(root: Path) -> Task:
    """1000 per superclass for training (800) and validation (200), 400 for each side of the test."""
    synsets = read_synsets(META.require(root))
    sides = {label: _halves(subclasses(synsets, name)) for label, name in enumerate(CLASS_NAMES)}
    familiar, unfamiliar = ({label: half[side] for label, half in sides.items()} for side in (0, 1))
    trained, tested = TRAIN.require(root), VAL.require(root)
    truth = _validation(tested, TRUTH.require(root))
    train, val = _training(_draw(_from_folders(trained, familiar)))
    return Task(
        name="animals",
        kind=LabelKind.ONE_LABEL,
        class_names=CLASS_NAMES,
        splits={
            Split.TRAIN: _samples(trained, train, "train"),
            Split.VAL: _samples(trained, val, "train"),
            Split.TEST_FAMILIAR: _samples(tested, _joined(_draw(_from_list(truth, familiar))), "val"),
            Split.TEST_UNFAMILIAR: _samples(tested, _joined(_draw(_from_list(truth, unfamiliar))), "val"),
        }
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
    """The leaves below a superclass's roots, by ILSVRC2012_ID; each once, whichever way leads to it."""
    waiting, seen = list(ROOTS[superclass]), set()
    while waiting:
        number = waiting.pop()
        if number not in synsets:
            raise InputError(
                f"meta.mat has no node {number}, below {superclass}; needed: ILSVRC 2012's devkit"
            )
        if number not in seen:
            seen.add(number)
            waiting += synsets[number].children
    return [synsets[number] for number in sorted(seen) if not synsets[number].children]


def _halves(leaves: list[Synset]) -> tuple[list[Synset], list[Synset]]:
    middle = (len(leaves) + 1) // 2
    return leaves[:middle], leaves[middle:]


def _from_folders(folder: Path, wanted: dict[int, list[Synset]]) -> list[list[Picture]]:
    """The training images of each superclass by wnid and name."""
    found = []
    for label, synsets in wanted.items():
        pictures = []
        for synset in sorted(synsets, key=lambda each: each.wnid):
            place = folder / synset.wnid
            if not place.is_dir():
                raise InputError(f"{place}: no such folder; needed: the images of {synset.words}")
            names = sorted(file.name for file in place.iterdir() if file.name.lower().endswith(ENDINGS))
            pictures += [Picture(f"{synset.wnid}/{name}", synset, label) for name in names]
        found.append(pictures)
    return found


def _validation(folder: Path, truth: Path) -> list[tuple[str, int]]:
    """Name and class of every validation image: the labels are in the order of the names."""
    names = sorted(file.name for file in folder.iterdir() if file.name.lower().endswith(ENDINGS))
    with reading(truth):
        numbers = [int(line) for line in truth.read_text(encoding="ascii").split()]
    if len(names) != len(numbers):
        raise InputError(f"{folder}: {len(names)} images for the {len(numbers)} labels of {truth.name}")
    return list(zip(names, numbers, strict=True))


def _from_list(truth: list[tuple[str, int]], wanted: dict[int, list[Synset]]) -> list[list[Picture]]:
    place = {synset.number: (synset, label) for label, synsets in wanted.items() for synset in synsets}
    found: list[list[Picture]] = [[] for _ in wanted]
    for name, number in truth:
        if number in place:
            synset, label = place[number]
            found[label].append(Picture(name, synset, label))
    return found


def _draw(pictures: list[list[Picture]]) -> list[list[Picture]]:
    """As many of each superclass, at most PER_CLASS, by the authors' lot."""
    count = min(PER_CLASS, *(len(each) for each in pictures))
    generator = random.Random(SEED)
    return [shuffled(each, generator)[:count] for each in pictures]


def _training(drawn: list[list[Picture]]) -> tuple[list[Picture], list[Picture]]:
    generator = random.Random(SEED)
    train, val = [], []
    for pictures in drawn:
        mixed = shuffled(pictures, generator)
        count = math.ceil(len(mixed) * TRAINING_SHARE)
        train += mixed[:count]
        val += mixed[count:]
    return train, val


def _joined(pictures: list[list[Picture]]) -> list[Picture]:
    return [picture for each in pictures for picture in each]


def _samples(folder: Path, pictures: list[Picture], prefix: str) -> Samples:
    return Samples(
        ids=np.asarray([f"{prefix}/{picture.path}" for picture in pictures], dtype=np.str_),
        labels=np.asarray([picture.label for picture in pictures], dtype=np.int64),
        inputs=ImageFiles(folder, tuple(picture.path for picture in pictures)),
        groups=np.asarray([picture.synset.wnid for picture in pictures], dtype=np.str_),
        attributes=pa.table({"subclass": [picture.synset.words for picture in pictures]}),
    )
