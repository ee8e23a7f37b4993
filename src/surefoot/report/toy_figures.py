"""The toy panels of the paper's supplement: the truth, and where in the plane each method goes wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.metrics import nll
from surefoot.metrics.proper import CLIP
from surefoot.predictions import Predictions
from surefoot.report.comparison_data import Drawn, check_methods
from surefoot.report.style import GREY, INK, SMALL, WIDTH, Picture, finished, plain_text
from surefoot.tasks.base import Split, Task
from surefoot.tasks.toy import GRID, load_toy

Map = NDArray[np.float64]

TESTS = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
PLANE = (-1.0, 1.0, -1.0, 1.0)
IMAGE: Any = {"origin": "lower", "extent": PLANE, "interpolation": "none"}
CLASS_COLOURS = ("#0072b2", "#d55e00")
CLASS_MARKERS = ("o", "^")
PALE = ("#a9cbe2", "#fdf0e8")  # the truth behind the points
WORST = float(-np.log(CLIP[0]))
LEVELS = 12  # few enough colours that a map stays small, and that a reader can tell them apart


@dataclass(frozen=True, eq=False)
class ToyRow:
    """One of the toy data sets by name, its methods, and the seed its training points were drawn from."""

    name: str
    methods: tuple[Drawn, ...]
    seed: int = 0


def nll_map(task: Task, familiar: Predictions, unfamiliar: Predictions) -> Map:
    """Clipped NLL at every point of the test grid, from the bottom row up; by id, in whatever order."""
    both = zip(TESTS, (familiar, unfamiliar), strict=True)
    return _over_grid(task, {split: _penalties(task, split, predictions) for split, predictions in both})


def familiar_map(task: Task) -> Map:
    """1 where the test grid is familiar, 0 where it is not."""
    familiar, unfamiliar = (len(task.splits[split].ids) for split in TESTS)
    return _over_grid(task, dict(zip(TESTS, (np.ones(familiar), np.zeros(unfamiliar)), strict=True)))


def truth_map(task: Task) -> Map:
    """The true class at every point of the test grid."""
    return _over_grid(task, {split: task.splits[split].labels.astype(float) for split in TESTS})


def toy_picture(rows: Sequence[ToyRow]) -> Picture:
    """A row per data set: the truth with the training points, then a map of NLL for each method."""
    if not rows:
        raise InputError("no toy data set to draw; allowed: 1 or more")
    for row in rows:
        check_methods(row.methods)
    columns = 1 + max(len(row.methods) for row in rows)
    size = (WIDTH - 0.9) / columns
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 0.6 + (size + 0.5) * len(rows)), layout="constrained")
        panels: Any = figure.subplots(len(rows), columns, squeeze=False)
        for axes in panels.flat:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.patch.set(edgecolor=GREY, linewidth=1.2)
        for row, of_row in zip(rows, panels, strict=True):
            task = load_toy(row.name, seed=row.seed)
            _truth_panel(of_row[0], task, row.name)
            for axes in of_row[1 + len(row.methods) :]:
                axes.set_axis_off()
            for axes, method in zip(of_row[1:], row.methods, strict=False):
                shown = _map_panel(axes, task, method)
        bar = figure.colorbar(shown, ax=panels, shrink=min(1.0, 1.6 / len(rows)), aspect=25, pad=0.01)
        bar.set_label("NLL at a point, nats")
        title = (
            "Where each method goes wrong in the plane: darker is worse; training points come only from "
            "the familiar region, outlined. F and U: mean NLL inside and outside of it."
        )
        return finished(figure, "toy", title)


def _penalties(task: Task, split: Split, predictions: Predictions) -> Map:
    """The NLL of every sample of a split, in the split's own order."""
    ids = task.splits[split].ids.tolist()
    given = [] if predictions.ids is None else predictions.ids.tolist()
    if sorted(given) != ids:
        raise InputError(
            f"{task.name}, {split}: the predictions have {len(set(given) & set(ids))} of the {len(ids)} ids "
            f"of the test grid in {predictions.n} rows; allowed: each once"
        )
    outcomes = predictions.outcomes
    if len(outcomes.row) != len(ids):
        raise InputError(
            f"{task.name}, {split}: {len(ids) - len(outcomes.row)} labels are unknown; allowed: none"
        )
    place = {name: index for index, name in enumerate(ids)}
    values = np.empty(len(ids))
    values[[place[given[row]] for row in outcomes.row]] = -np.clip(outcomes.log_p_true, *np.log(CLIP))
    return values


def _over_grid(task: Task, values: dict[Split, Map]) -> Map:
    """Values of both tests at their places in the plane."""
    grid = np.full((GRID, GRID), np.nan)
    for split, of_split in values.items():
        points = np.asarray(task.splits[split].inputs, dtype=float)
        column, row = np.floor((points + 1) / 2 * GRID).astype(int).T
        grid[row, column] = of_split
    return grid


def outline(task: Task) -> list[tuple[Map, Map]]:
    """The edge of the familiar region as lines, every fourth corner of the grid's stairs."""
    centres = (np.arange(GRID) + 0.5) / GRID * 2 - 1
    drawn = Figure().subplots().contour(centres, centres, familiar_map(task), levels=[0.5])
    kept = [np.concatenate([line[:-1:4], line[-1:]]) for line in drawn.allsegs[0]]
    return [(line[:, 0], line[:, 1]) for line in kept]


def _truth_panel(axes: Axes, task: Task, name: str) -> None:
    axes.imshow(truth_map(task), cmap=ListedColormap(PALE), vmin=0, vmax=1, **IMAGE)
    train = task.splits[Split.TRAIN]
    points = np.asarray(train.inputs)
    for label, (colour, marker) in enumerate(zip(CLASS_COLOURS, CLASS_MARKERS, strict=True)):
        x, y = points[train.labels == label].T
        axes.scatter(x, y, s=2, c=colour, marker=marker, linewidths=0, rasterized=True)
    axes.set_title("truth", fontsize=8)
    axes.set_ylabel(name)
    axes.set_xlabel(f"{len(points):,}\ntraining points", fontsize=8)


def _map_panel(axes: Axes, task: Task, method: Drawn) -> Any:
    shown = nll_map(task, method.familiar, method.unfamiliar)
    colours = colormaps["Greys"].resampled(LEVELS)
    image = axes.imshow(shown, cmap=colours, norm=Normalize(0, WORST), **IMAGE)
    for x, y in outline(task):
        axes.plot(x, y, color=CLASS_COLOURS[1], linewidth=1.2)
    axes.set(xlim=PLANE[:2], ylim=PLANE[2:])
    axes.set_title(plain_text(method.title, 18), fontsize=8)
    axes.set_xlabel(f"F {nll(method.familiar):.3f}\nU {nll(method.unfamiliar):.3f}", fontsize=8, color=INK)
    return image
