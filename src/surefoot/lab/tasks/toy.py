"""Four data sets in the plane, where the truth and the familiar region are known everywhere.

Li & Hoiem's supplement shows four: two classes, training points from a part of the plane, 1200 for training
and 1200 for validation, and a test set that is dense over the whole plane. It gives no formulas; the four
here are our own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.lab.tasks.layouts import TaskEntry
from surefoot.lab.tasks.task import Samples, Split, Task, unlabelled_labels
from surefoot.predictions.labels import LabelKind

TRAINING_POINTS = 1200
VALIDATION_POINTS = 1200
UNLABELLED_POINTS = 1200
GRID = 128  # test points along each side of the plane, which is [-1, 1] x [-1, 1]
CLASS_NAMES = ("blue", "red")

Points = NDArray[np.float64]
Truth = Callable[[Points], NDArray[np.bool_]]


@dataclass(frozen=True)
class Toy:
    """Which points are red, and which are familiar."""

    name: str
    title: str
    red: Truth
    familiar: Truth


def load_toy(name: str, *, seed: int = 0) -> Task:
    """One of the four, by name; the points are drawn from the seed, the test grid is always the same."""
    toy = next((each for each in TOYS if each.name == name), None)
    if toy is None:
        raise InputError(f"unknown toy {name!r}; have: {', '.join(each.name for each in TOYS)}")
    generator = np.random.default_rng(seed)
    train = _draw(toy.familiar, TRAINING_POINTS, generator)
    val = _draw(toy.familiar, VALIDATION_POINTS, generator)
    grid = test_grid()
    familiar = toy.familiar(grid)
    anywhere = _plane(UNLABELLED_POINTS, generator)
    return Task(
        name=f"toy/{name}",
        kind=LabelKind.ONE_LABEL,
        class_names=CLASS_NAMES,
        splits={
            Split.TRAIN: _samples(toy, train, f"train-{seed}"),
            Split.VAL: _samples(toy, val, f"val-{seed}"),
            Split.TEST_FAMILIAR: _samples(toy, grid[familiar], "grid-familiar"),
            Split.TEST_UNFAMILIAR: _samples(toy, grid[~familiar], "grid-unfamiliar"),
            Split.UNLABELLED: Samples(
                ids=_ids(f"around-{seed}", len(anywhere)),
                labels=unlabelled_labels(len(anywhere), LabelKind.ONE_LABEL, len(CLASS_NAMES)),
                inputs=anywhere.astype(np.float32),
            ),
        },
    )


def test_grid() -> Points:
    """The centres of GRID x GRID cells that cover the plane, row by row from the bottom left."""
    centres = (np.arange(GRID) + 0.5) / GRID * 2 - 1
    across, up = np.meshgrid(centres, centres)
    return np.stack([across.ravel(), up.ravel()], axis=1)


def _samples(toy: Toy, points: Points, prefix: str) -> Samples:
    return Samples(
        ids=_ids(prefix, len(points)),
        labels=toy.red(points).astype(np.int64),
        inputs=points.astype(np.float32),
    )


def _ids(prefix: str, count: int) -> NDArray[np.str_]:
    return np.asarray([f"{prefix}-{index:05d}" for index in range(count)], dtype=np.str_)


def _plane(count: int, generator: np.random.Generator) -> Points:
    return generator.uniform(-1, 1, size=(count, 2))


def _draw(region: Truth, count: int, generator: np.random.Generator) -> Points:
    """Points of a region, uniformly distributed."""
    result = np.empty((0, 2))
    while len(result) < count:
        points = _plane(4 * count, generator)
        result = np.concatenate([result, points[region(points)]])
    return result[:count]


def _radius(points: Points) -> NDArray[np.float64]:
    return np.asarray(np.hypot(points[:, 0], points[:, 1]))


TOYS = (
    Toy(
        "wave",
        "above or below a sine; familiar is the middle half",
        red=lambda points: points[:, 1] > 0.45 * np.sin(3.5 * points[:, 0]),
        familiar=lambda points: np.abs(points[:, 0]) < 0.5,
    ),
    Toy(
        "rings",
        "on a ring or off it; familiar is one side of a line",
        red=lambda points: (_radius(points) > 0.35) & (_radius(points) < 0.75),
        familiar=lambda points: points[:, 0] + 0.5 * points[:, 1] > 0,
    ),
    Toy(
        "spiral",
        "two arms of a spiral; familiar is a disc",
        red=lambda points: np.sin(np.arctan2(points[:, 1], points[:, 0]) + 8 * _radius(points)) > 0,
        familiar=lambda points: _radius(points) < 0.6,
    ),
    Toy(
        "checkers",
        "a checkerboard; familiar is a strip along a diagonal",
        red=lambda points: np.floor(2 * points).sum(axis=1) % 2 == 0,
        familiar=lambda points: np.abs(points[:, 0] - points[:, 1]) < 0.6,
    ),
)

TOY = TaskEntry(
    "toy",
    "Toy",
    "four two-class sets of points in the plane; part of it is familiar",
    lambda _, variant: load_toy(variant),
    tuple(toy.name for toy in TOYS),
)
