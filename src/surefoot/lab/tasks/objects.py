"""Which of twenty kinds of objects an image shows. Familiar: PASCAL VOC 2012; unfamiliar: MS COCO 2014."""

import json
import math
import random
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.lab.images.decode import in_parallel
from surefoot.lab.tasks.layouts import (
    COCO,
    PLACES,
    VOC,
    WITHOUT_G,
    Layout,
    Place,
    TaskEntry,
    below,
    reading,
    unlabelled_split,
)
from surefoot.lab.tasks.task import ImageFiles, Samples, Split, Task, shuffled
from surefoot.predictions.labels import IGNORE, LabelKind

COCO_NAMES = {  # VOC's name: COCO's
    "aeroplane": "airplane",
    "bicycle": "bicycle",
    "bird": "bird",
    "boat": "boat",
    "bottle": "bottle",
    "bus": "bus",
    "car": "car",
    "cat": "cat",
    "chair": "chair",
    "cow": "cow",
    "diningtable": "dining table",
    "dog": "dog",
    "horse": "horse",
    "motorbike": "motorcycle",
    "person": "person",
    "pottedplant": "potted plant",
    "sheep": "sheep",
    "sofa": "couch",
    "train": "train",
    "tvmonitor": "tv",
}
CLASS_NAMES = tuple(COCO_NAMES)
SMALL = 50  # square pixels: the label of a smaller COCO object is ignored
TRAINING_SHARE = 0.8
SEED = 1234  # the authors'

VOC_FOLDERS = ("VOCdevkit/VOC2012", "VOC2012")
COCO_FOLDERS = ("MSCOCO", ".")

IMAGES = Place(VOC, "images", below(VOC_FOLDERS, "JPEGImages"))
ANNOTATIONS = Place(VOC, "annotations", below(VOC_FOLDERS, "Annotations"))
TRAIN = Place(VOC, "list of training images", below(VOC_FOLDERS, "ImageSets/Main/train.txt"))
VAL = Place(VOC, "list of validation images", below(VOC_FOLDERS, "ImageSets/Main/val.txt"))
COCO_IMAGES = Place(COCO, "validation images", below(COCO_FOLDERS, "val2014"))
INSTANCES = Place(COCO, "annotations", below(COCO_FOLDERS, "annotations/instances_val2014.json"))
UNLABELLED = Place(
    PLACES, "unlabelled images", ("Places365", "places365_standard", "unlabelled/places365"), WITHOUT_G
)
OBJECTS = TaskEntry(
    "objects",
    "Objects",
    "familiar is PASCAL VOC 2012, unfamiliar MS COCO 2014; many labels",
    lambda root, _: load_objects(root),
    layout=Layout((IMAGES, ANNOTATIONS, TRAIN, VAL, COCO_IMAGES, INSTANCES, UNLABELLED)),
)


def load_objects(root: Path) -> Task:
    """VOC train, split 80 to 20 with the authors' seed; VOC val and COCO val for testing."""
    images, annotations = IMAGES.require(root), ANNOTATIONS.require(root)
    mixed = shuffled(_names(TRAIN.require(root)), random.Random(SEED))
    count = math.ceil(len(mixed) * TRAINING_SHARE)
    names = {
        Split.TRAIN: mixed[:count],
        Split.VAL: mixed[count:],
        Split.TEST_FAMILIAR: _names(VAL.require(root)),
    }
    unfamiliar = _coco(COCO_IMAGES.require(root), INSTANCES.require(root))
    return Task(
        name="objects",
        kind=LabelKind.MANY_LABELS,
        class_names=CLASS_NAMES,
        splits={split: _voc(images, annotations, chosen) for split, chosen in names.items()}
        | {Split.TEST_UNFAMILIAR: unfamiliar}
        | unlabelled_split(UNLABELLED, root, LabelKind.MANY_LABELS, len(CLASS_NAMES)),
    )


def _names(file: Path) -> list[str]:
    with reading(file):
        return file.read_text(encoding="ascii").split()


def _voc(images: Path, annotations: Path, names: list[str]) -> Samples:
    labels = list(in_parallel(lambda name: _voc_labels(annotations / f"{name}.xml"), names))
    return Samples(
        ids=np.asarray([f"voc/{name}" for name in names], dtype=np.str_),
        labels=np.asarray(labels, dtype=np.int64).reshape(-1, len(CLASS_NAMES)),
        inputs=ImageFiles(images, tuple(f"{name}.jpg" for name in names)),
    )


def _voc_labels(file: Path) -> NDArray[np.int64]:
    with reading(file):
        objects = []
        for thing in ElementTree.parse(file).getroot().iter("object"):
            name = thing.findtext("name")
            if name not in COCO_NAMES:
                raise InputError(f"{file}: object {name!r}; allowed: {', '.join(CLASS_NAMES)}")
            objects.append((CLASS_NAMES.index(name), thing.findtext("difficult", "0").strip() == "1"))
    return labels_of(objects)


def labels_of(objects: Iterable[tuple[int, bool]]) -> NDArray[np.int64]:
    """From (class, is difficult): 1 for a class with an easy object, IGNORE with only difficult ones, else 0.

    >>> labels_of([(0, True), (1, True), (1, False)])[:3].tolist()
    [-100, 1, 0]
    """
    labels = np.zeros(len(CLASS_NAMES), dtype=np.int64)
    for label, difficult in objects:
        labels[label] = (labels[label] or IGNORE) if difficult else 1
    return labels


def _coco(images: Path, file: Path) -> Samples:
    """Every validation image, also those without any of the twenty classes."""
    with reading(file):
        document: dict[str, Any] = json.loads(file.read_bytes())
        label_of = {name: label for label, name in enumerate(COCO_NAMES.values())}
        categories = {c["id"]: label_of[c["name"]] for c in document["categories"] if c["name"] in label_of}
        if len(categories) != len(label_of):
            raise InputError(f"{file}: {len(categories)} of the {len(label_of)} categories")
        objects: dict[int, list[tuple[int, bool]]] = {int(each["id"]): [] for each in document["images"]}
        for thing in document["annotations"]:
            if thing["category_id"] in categories:
                label = categories[thing["category_id"]]
                objects[thing["image_id"]].append((label, thing["area"] < SMALL))
        names = {int(each["id"]): str(each["file_name"]) for each in document["images"]}
    order = sorted(names)
    return Samples(
        ids=np.asarray([f"coco/{names[number]}" for number in order], dtype=np.str_),
        labels=np.asarray([labels_of(objects[number]) for number in order]).reshape(-1, len(CLASS_NAMES)),
        inputs=ImageFiles(images, tuple(names[number] for number in order)),
    )
