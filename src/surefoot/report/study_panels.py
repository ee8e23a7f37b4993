"""Figures with one panel per method: error by confidence, reliability, the toy planes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.evaluation.comparison import TEST_SPLITS, MethodRuns
from surefoot.evaluation.scores import SIDES
from surefoot.metrics import nll
from surefoot.plots import draw_reliability, draw_strokes, percent_axes
from surefoot.plots.curves import histogram, lowest_confidence, reliability
from surefoot.predictions.outcomes import CLIP
from surefoot.predictions.predictions import Predictions
from surefoot.report.study_curves import ConfidenceBins, confidence_bins, runs_on
from surefoot.report.style import (
    COLOURS,
    GREY,
    INK,
    LINES,
    MARKERS,
    PAGE_WIDTH,
    SMALL,
    Picture,
    finished,
    key_below,
    panels,
    plain_text,
    side_cycle,
)
from surefoot.tasks.task import Split, Task
from surefoot.tasks.toy import GRID, load_toy
from surefoot.text import short_number

ACROSS = 4  # methods side by side in the figure of errors by confidence
PAIRS = 2  # and in the reliability diagrams, which have two panels each

Map = NDArray[np.float64]

PLANE = (-1.0, 1.0, -1.0, 1.0)
IMAGE: Any = {"origin": "lower", "extent": PLANE, "interpolation": "none"}
CLASS_COLOURS = ("#0072b2", "#d55e00")
CLASS_MARKERS = ("o", "^")
PALE = ("#a9cbe2", "#fdf0e8")  # the truth behind the points
WORST = float(-np.log(CLIP[0]))
LEVELS = 12  # few enough colours that a map stays small, and that a reader can distinguish them


def confidence_picture(methods: Sequence[MethodRuns]) -> Picture:
    """Error rate by confidence, a panel per method with counts below; the first method behind the others."""
    title = "How often each method is wrong at each confidence, and how many predictions that is."
    bins = [{side: confidence_bins(runs_on(method, side)) for side in SIDES} for method in methods]
    every = [error for of_method in bins for of_side in of_method.values() for error in of_side.errors]
    most = max(p.n for p in every) / min(of_side.runs for of_method in bins for of_side in of_method.values())
    highest = max((error.high for error in every if error.n), default=1.0)
    rows = -(-len(methods) // ACROSS)
    with rc_context(SMALL):
        figure, grid = panels(
            title,
            2.9 * rows,
            2 * rows,
            ACROSS,
            margins=(0.75, 0.15, 0.85),
            gaps=(0.2, 0.12 if rows == 1 else 0.35),
            titles=0.2,
            height_ratios=[3, 1] * rows,
        )
        for unused in range(len(methods), rows * ACROSS):
            row, column = divmod(unused, ACROSS)
            for axes in (grid[2 * row, column], grid[2 * row + 1, column]):
                axes.set_axis_off()
        for index, (method, method_bins) in enumerate(zip(methods, bins, strict=True)):
            row, column = divmod(index, ACROSS)
            upper, lower = grid[2 * row, column], grid[2 * row + 1, column]
            if index:
                for side, first_method in bins[0].items():
                    values = [p.value for p in first_method.errors]
                    upper.plot(_middles(first_method), values, color=GREY, linewidth=1, linestyle=LINES[side])
            _error_panel(upper, method_bins, first=column == 0, highest=highest)
            upper.set_title(plain_text(method.label, 38), loc="left", fontsize=9)
            _count_panel(lower, method_bins, first=column == 0, most=most)
            if index + ACROSS >= len(methods):
                lower.set_xlabel("confidence")
        first = (
            [Line2D([], [], color=GREY, linewidth=1, label=plain_text(methods[0].label))]
            if len(methods) > 1
            else []
        )
        calibrated = Patch(color=GREY, alpha=0.3, linewidth=0, label="if calibrated")
        key_below(figure, [*(_side_key(side) for side in SIDES), calibrated, *first], columns=4)
        return finished(figure, "error-by-confidence", title)


def reliability_picture(methods: Sequence[MethodRuns]) -> Picture:
    """Reliability diagrams, familiar and unfamiliar side by side for each method, counts at the foot."""
    title = "Accuracy in ten equal-mass bins by confidence; below the diagonal a method is overconfident."
    rows = -(-len(methods) // PAIRS)
    lowest = min(lowest_confidence(p) for method in methods for p in method.runs[0].sides.values())
    with rc_context(SMALL):
        figure, grid = panels(
            title,
            2.3 * rows,
            rows,
            2 * PAIRS,
            margins=(0.65, 0.15, 0.8),
            gaps=(0.25, 0.5),
            titles=0.35,
            sharex=True,
            sharey=True,
        )
        for axes in grid.flat[2 * len(methods) :]:
            axes.set_axis_off()
        for index, method in enumerate(methods):
            for place, side in enumerate(SIDES):
                axes = grid.flat[2 * index + place]
                runs = [predictions.outcomes for predictions in runs_on(method, side)]
                axes.set_prop_cycle(side_cycle(side))
                draw_reliability(axes, reliability(*runs), histogram(lowest, *runs), side, markersize=4)
                axes.set_yticks([0, 0.5, 1])
                name = plain_text(method.label, 38) if place == 0 else ""
                axes.set_title(f"{name}\n{side}, n = {runs[0].total:,.0f}", loc="left", fontsize=8.5)
        for axes in grid[:, 0]:
            axes.set_ylabel("accuracy")
        for index in range(max(0, 2 * (len(methods) - PAIRS)), 2 * len(methods)):
            grid.flat[index].tick_params(labelbottom=True)
            grid.flat[index].set_xlabel("confidence")
        band = Patch(color=GREY, alpha=0.3, linewidth=0, label="if calibrated, 95%")
        shares = Patch(color=GREY, alpha=0.4, linewidth=0, label="confidences")
        key_below(figure, [*(_side_key(side) for side in SIDES), band, shares], columns=4)
        return finished(figure, "reliability-methods", title)


def _side_style(side: str) -> Any:
    return {"color": COLOURS[side], "marker": MARKERS[side], "linestyle": LINES[side]}


def _side_key(side: str) -> Line2D:
    return Line2D([], [], label=side, **_side_style(side))


def _middles(bins: ConfidenceBins) -> Any:
    return np.arange(len(bins.errors)) + 0.5


def _error_panel(axes: Axes, sides: dict[str, ConfidenceBins], *, first: bool, highest: float) -> None:
    edges = sides["familiar"].edges
    axes.fill_between(
        np.repeat(range(len(edges)), 2)[1:-1],
        [1 - edge for edge in np.repeat(edges[1:], 2)],
        [1 - edge for edge in np.repeat(edges[:-1], 2)],
        color=GREY,
        alpha=0.3,
        linewidth=0,
    )
    for (side, bins), nudge in zip(sides.items(), (-0.08, 0.08), strict=True):
        points = [(x + nudge, p) for x, p in zip(_middles(bins), bins.errors, strict=True) if p.n]
        places = [x for x, _ in points]
        draw_strokes(
            axes, places, [p.low for _, p in points], [p.high for _, p in points], COLOURS[side], 0.8
        )
        axes.plot(places, [p.value for _, p in points], markersize=4, linewidth=1.3, **_side_style(side))
    axes.set(xlim=(0, len(edges) - 1), ylim=(0, min(1.0, 1.05 * highest)))
    axes.set_xticks([])
    percent_axes(axes.yaxis)
    axes.tick_params(labelleft=first)
    if first:
        axes.set_ylabel("error rate")


def _count_panel(axes: Axes, sides: dict[str, ConfidenceBins], *, first: bool, most: float) -> None:
    edges = sides["familiar"].edges
    for (side, bins), nudge in zip(sides.items(), (-0.2, 0.2), strict=True):
        counts = [max(p.n / bins.runs, 0.1) for p in bins.errors]
        draw_strokes(axes, _middles(bins) + nudge, [0.1] * len(counts), counts, COLOURS[side], 4)
    axes.set_yscale("log")
    axes.set(xlim=(0, len(edges) - 1), ylim=(0.5, max(2, 2 * most)))
    axes.set_xticks(range(len(edges)), [f"{edge:g}".removeprefix("0") or "0" for edge in edges], fontsize=8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.tick_params(labelleft=first)
    if first:
        axes.set_ylabel("predictions")


def nll_map(task: Task, familiar: Predictions, unfamiliar: Predictions) -> Map:
    """Clipped NLL at every point of the test grid, from the bottom row up; the rows are matched by id."""
    both = zip(TEST_SPLITS.values(), (familiar, unfamiliar), strict=True)
    return _over_grid(task, {split: _penalties(task, split, predictions) for split, predictions in both})


def familiar_map(task: Task) -> Map:
    """1 where the test grid is familiar, 0 where it is not."""
    values = zip(TEST_SPLITS.values(), (1.0, 0.0), strict=True)
    return _over_grid(task, {split: np.full(len(task.splits[split].ids), value) for split, value in values})


def truth_map(task: Task) -> Map:
    """The true class at every point of the test grid."""
    return _over_grid(
        task, {split: task.splits[split].labels.astype(float) for split in TEST_SPLITS.values()}
    )


def toy_picture(name: str, methods: Sequence[MethodRuns], *, seed: int = 0) -> Picture:
    """The truth with the training points of a toy data set and seed, then a map of NLL for each method."""
    columns = 1 + len(methods)
    size = (PAGE_WIDTH - 0.9) / columns
    task = load_toy(name, seed=seed)
    with rc_context(SMALL):
        figure = Figure(figsize=(PAGE_WIDTH, 1.1 + size), layout="constrained")
        grid: Any = figure.subplots(1, columns, squeeze=False)
        for axes in grid.flat:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.patch.set(edgecolor=GREY, linewidth=1.2)
        _truth_panel(grid[0, 0], task, name)
        images = [_map_panel(*each, task) for each in zip(grid[0, 1:], methods, strict=True)]
        bar = figure.colorbar(images[-1], ax=grid, aspect=25, pad=0.01)
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
    lines = [np.concatenate([line[:-1:4], line[-1:]]) for line in drawn.allsegs[0]]
    return [(line[:, 0], line[:, 1]) for line in lines]


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


def _map_panel(axes: Axes, method: MethodRuns, task: Task) -> Any:
    familiar, unfamiliar = (method.runs[0].sides[side] for side in SIDES)
    colours = colormaps["Greys"].resampled(LEVELS)
    image = axes.imshow(nll_map(task, familiar, unfamiliar), cmap=colours, norm=Normalize(0, WORST), **IMAGE)
    for x, y in outline(task):
        axes.plot(x, y, color=CLASS_COLOURS[1], linewidth=1.2)
    axes.set(xlim=PLANE[:2], ylim=PLANE[2:])
    axes.set_title(plain_text(method.label, 18), fontsize=8)
    axes.set_xlabel(f"F {nll(familiar):.3f}\nU {nll(unfamiliar):.3f}", fontsize=8, color=INK)
    return image
