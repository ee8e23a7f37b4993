"""Gender of faces: familiar from 18 to 59 years of age, unfamiliar younger and older. LFW+."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.lab.tasks.layouts import (
    CELEBA,
    LFW_PLUS,
    WITHOUT_G,
    Layout,
    Place,
    TaskEntry,
    reading,
    unlabelled_split,
)
from surefoot.lab.tasks.task import ImageFiles, Samples, Split, Task
from surefoot.predictions.labels import LabelKind

CLASS_NAMES = ("female", "male")
ADULT, OLD = 18, 60  # familiar: ADULT <= age < OLD
FOLDS = (Split.TRAIN, Split.TRAIN, Split.VAL, Split.TEST_FAMILIAR, Split.TEST_FAMILIAR)

LABELS = Place(LFW_PLUS, "labels", ("LFW+_Release/lfw+_labels.mat", "lfw+_labels.mat"))
IMAGES = Place(LFW_PLUS, "images", ("LFW+_Release/lfw+_jpg24", "lfw+_jpg24"))
UNLABELLED = Place(
    CELEBA, "unlabelled images", ("CelebA/img_align_celeba", "CelebA", "unlabelled/celeba"), WITHOUT_G
)
GENDER = TaskEntry(
    "gender",
    "Gender",
    "LFW+; familiar is age 18 to 59",
    lambda root, _: load_gender(root),
    layout=Layout((LABELS, IMAGES, UNLABELLED)),
)


@dataclass(frozen=True)
class Fold:
    """One of the five preset folds."""

    images: list[str]
    columns: dict[str, NDArray[np.int64]]  # age, gender, race


def load_gender(root: Path) -> Task:
    """Folds 1 and 2 for training, 3 for validation, 4 and 5 for testing; unfamiliar faces of 4 and 5 only."""
    file = LABELS.require(root)
    with reading(file):
        folds = read_folds(file)
    images = IMAGES.require(root)
    parts: dict[Split, list[Samples]] = {}
    left_out = 0
    for split, fold in zip(FOLDS, folds, strict=True):
        samples = _samples(images, fold, file)
        age = fold.columns["age"]
        familiar = (age >= ADULT) & (age < OLD)
        parts.setdefault(split, []).append(samples.take(familiar))
        if split is Split.TEST_FAMILIAR:
            parts.setdefault(Split.TEST_UNFAMILIAR, []).append(samples.take(~familiar))
        else:
            left_out += int((~familiar).sum())
    return Task(
        name="gender",
        kind=LabelKind.ONE_LABEL,
        class_names=CLASS_NAMES,
        splits={split: _concatenated(samples) for split, samples in parts.items()}
        | unlabelled_split(UNLABELLED, root, LabelKind.ONE_LABEL, len(CLASS_NAMES)),
        remarks=(f"{left_out:,} unfamiliar faces of folds 1 to 3 are left out",) if left_out else (),
    )


def read_folds(file: Path) -> list[Fold]:
    """The five folds of `lfw+_labels.mat`, a MATLAB 7.3 file: HDF5, where cells are references.

    `AttrName` names the columns, `image_list_5fold` holds five cells of file names, `label` five matrices
    of one row per face (in HDF5 one column: MATLAB stores arrays column by column).
    """
    import h5py

    with h5py.File(file, "r") as stored:
        attributes = [_text(stored[reference]).lower() for reference in _cells(stored["AttrName"])]
        folds = []
        for names, labels in zip(_cells(stored["image_list_5fold"]), _cells(stored["label"]), strict=True):
            images = [_text(stored[reference]) for reference in _cells(stored[names])]
            values = np.asarray(stored[labels])
            if values.shape != (len(attributes), len(images)):
                raise InputError(f"{file}: labels of shape {values.shape} for {len(images)} images")
            for column, row in np.argwhere(np.isnan(values))[:1]:
                raise InputError(f"{file}: {attributes[column]} of {images[row]} is NaN; needed: a number")
            table = dict(zip(attributes, values.astype(np.int64), strict=True))
            folds.append(Fold(images, {name: table[name] for name in ("age", "gender", "race")}))
    if len(folds) != len(FOLDS):
        raise InputError(f"{file}: {len(folds)} folds; needed: {len(FOLDS)}")
    return folds


def _cells(dataset: Any) -> list[Any]:
    return list(np.asarray(dataset).flat)


def _text(dataset: Any) -> str:
    return "".join(chr(code) for code in np.asarray(dataset).flat)


def _samples(images: Path, fold: Fold, file: Path) -> Samples:
    gender = fold.columns["gender"]
    for row in np.flatnonzero((gender != 0) & (gender != 1))[:1]:
        raise InputError(f"{file}: gender of {fold.images[row]} is {gender[row]}; allowed: 0 and 1")
    decades = [f"{10 * (age // 10)} to {10 * (age // 10) + 9}" for age in fold.columns["age"].tolist()]
    return Samples(
        ids=np.asarray(fold.images, dtype=np.str_),
        labels=gender,
        inputs=ImageFiles(images, tuple(fold.images)),
        groups=np.asarray(decades, dtype=np.str_),
        attributes=pa.table({name: fold.columns[name] for name in ("age", "race")}),
    )


def _concatenated(parts: list[Samples]) -> Samples:
    images = [part.inputs for part in parts if isinstance(part.inputs, ImageFiles)]
    return Samples(
        ids=np.concatenate([part.ids for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        inputs=ImageFiles(images[0].root, tuple(path for files in images for path in files.paths)),
        groups=np.concatenate([part.groups for part in parts if part.groups is not None]),
        attributes=pa.concat_tables([part.attributes for part in parts]),
    )
