"""Data for the examples: points around three centres. Unfamiliar points have a larger spread."""

import numpy as np
from numpy.typing import NDArray

CLASSES = ("ash", "elm", "oak")
DIMENSIONS = 6
SPREAD = {"train": 0.9, "val": 0.9, "familiar": 0.9, "unfamiliar": 1.6}
ROWS = {"train": 400, "val": 600, "familiar": 1000, "unfamiliar": 1000}


def draw(part: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The points of a part, and the index of each point's class."""
    random = np.random.default_rng(list(SPREAD).index(part))
    labels = random.integers(0, len(CLASSES), ROWS[part])
    centres = 1.5 * np.eye(len(CLASSES), DIMENSIONS)
    points = centres[labels] + SPREAD[part] * random.standard_normal((ROWS[part], DIMENSIONS))
    return points.astype(np.float32), labels
