"""Cat or dog: familiar are the first 20 dog and 9 cat breeds, unfamiliar the others. Oxford-IIIT Pets."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from surefoot.errors import InputError
from surefoot.lab.tasks.layouts import (
    AUTHORS,
    IMAGENET,
    PETS,
    WITHOUT_G,
    Layout,
    Place,
    TaskEntry,
    below,
    reading,
    unlabelled_split,
)
from surefoot.lab.tasks.split import partition
from surefoot.lab.tasks.task import ImageFiles, Samples, Split, Task
from surefoot.predictions.labels import LabelKind

CLASS_NAMES = ("dog", "cat")
CAT, DOG = 1, 2  # species numbers in the lists
FAMILIAR_BREEDS = {CAT: 9, DOG: 20}

FOLDERS = ("Oxford_IIIT_Pets", "oxford-iiit-pet", ".")

IMAGES = Place(PETS, "images", below(FOLDERS, "images"))
TRAINVAL = Place(PETS, "list of training images", below(FOLDERS, "annotations/trainval.txt"))
TEST = Place(PETS, "list of test images", below(FOLDERS, "annotations/test.txt"))
OWN_HALVES = "without it trainval is halved at random"
TRAIN = Place(AUTHORS, "the authors' training half", below(FOLDERS, "annotations/train.txt"), OWN_HALVES)
VAL = Place(AUTHORS, "the authors' validation half", below(FOLDERS, "annotations/val.txt"), OWN_HALVES)
UNLABELLED = Place(
    IMAGENET,
    "unlabelled images",
    ("ILSVRC2012/ILSVRC2012_img_train", "ILSVRC2012_img_train", "unlabelled/imagenet"),
    WITHOUT_G,
)
CAT_DOG = TaskEntry(
    "cat-dog",
    "Cat vs. dog",
    "Oxford-IIIT Pets; familiar are the first 20 dog and 9 cat breeds",
    lambda root, _: load_cat_dog(root),
    layout=Layout((IMAGES, TRAINVAL, TEST, TRAIN, VAL, UNLABELLED)),
)


@dataclass(frozen=True)
class Pet:
    """A line of the lists."""

    name: str
    species: int
    breed: int  # from 1, counted separately for cats and dogs

    @property
    def familiar(self) -> bool:
        return self.breed <= FAMILIAR_BREEDS[self.species]

    @property
    def label(self) -> int:
        return 1 if self.species == CAT else 0


def load_cat_dog(root: Path) -> Task:
    """The standard split and the authors' halves of trainval; unfamiliar breeds are for testing only."""
    images = IMAGES.require(root)
    trainval = read_pets(TRAINVAL.require(root))
    test = read_pets(TEST.require(root))
    train, val = _halves(root, trainval)
    pets = {
        Split.TRAIN: train,
        Split.VAL: val,
        Split.TEST_FAMILIAR: [pet for pet in test if pet.familiar],
        Split.TEST_UNFAMILIAR: [pet for pet in test if not pet.familiar],
    }
    left_out = sum(not pet.familiar for pet in trainval)
    return Task(
        name="cat-dog",
        kind=LabelKind.ONE_LABEL,
        class_names=CLASS_NAMES,
        splits={split: _samples(images, chosen) for split, chosen in pets.items()}
        | unlabelled_split(UNLABELLED, root, LabelKind.ONE_LABEL, len(CLASS_NAMES)),
        remarks=(f"{left_out:,} trainval images of unfamiliar breeds are left out",) if left_out else (),
    )


def read_pets(file: Path) -> list[Pet]:
    """A list: name, class, species, breed; lines that begin with # are comments."""
    pets = []
    with reading(file):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip() and not line.startswith("#"):
                name, _, species, breed = line.split()
                pets.append(Pet(name, int(species), int(breed)))
                if pets[-1].species not in FAMILIAR_BREEDS:
                    raise InputError(f"{file}: species {species} in line {number}; allowed: 1 and 2")
    return pets


def _halves(root: Path, trainval: list[Pet]) -> tuple[list[Pet], list[Pet]]:
    """The authors' halves of trainval if their lists exist, or random ones; familiar breeds only."""
    train_list, val_list = TRAIN.find(root), VAL.find(root)
    if train_list is not None and val_list is not None:
        train = [pet for pet in read_pets(train_list) if pet.familiar]
        return train, [pet for pet in read_pets(val_list) if pet.familiar]
    pets = [pet for pet in trainval if pet.familiar]
    shares = {Split.TRAIN: 0.5, Split.VAL: 0.5}
    splits = partition([pet.name for pet in pets], [str(pet.label) for pet in pets], shares, seed=0)
    train = [pet for pet, split in zip(pets, splits, strict=True) if split is Split.TRAIN]
    return train, [pet for pet, split in zip(pets, splits, strict=True) if split is Split.VAL]


def _samples(images: Path, pets: list[Pet]) -> Samples:
    breeds = [pet.name.rpartition("_")[0] for pet in pets]
    species = ["cat" if pet.species == CAT else "dog" for pet in pets]
    return Samples(
        ids=np.asarray([pet.name for pet in pets], dtype=np.str_),
        labels=np.asarray([pet.label for pet in pets], dtype=np.int64),
        inputs=ImageFiles(images, tuple(f"{pet.name}.jpg" for pet in pets)),
        groups=np.asarray(breeds, dtype=np.str_),
        attributes=pa.table({"species": species, "breed": breeds}),
    )
