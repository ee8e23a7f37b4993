"""G: pictures related to a task, without labels."""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surefoot.kinds import LabelKind
from surefoot.tasks.base import Samples, unlabelled_labels
from surefoot.tasks.draws import shuffled
from surefoot.tasks.images import ImageFiles, image_paths_below


@dataclass(frozen=True)
class Unlabelled:
    """A folder of images without labels, all of them or so many drawn by lot."""

    images: Path
    limit: int | None
    seed: int


def unlabelled_samples(wanted: Unlabelled, kind: LabelKind, classes: int) -> Samples:
    """The images below the folder, in the order of their names."""
    paths = image_paths_below(wanted.images)
    if wanted.limit is not None and wanted.limit < len(paths):
        drawn = shuffled(paths, random.Random(f"surefoot unlabelled {wanted.seed}"))
        paths = sorted(drawn[: wanted.limit])
    return Samples(
        ids=np.asarray([f"unlabelled/{path}" for path in paths], dtype=np.str_),
        labels=unlabelled_labels(len(paths), kind, classes),
        inputs=ImageFiles(wanted.images, tuple(paths)),
    )
