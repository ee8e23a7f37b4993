"""The temperature of files larger than memory: the search of `calibrators.search`, one reading a step.

It starts from the fit on some rows of all files, so that one reading of everything is usually enough: the
error after a step of Halley's method is about the cube of the step.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from typing import Any

import numpy as np

from surefoot.calibrators import Evidence
from surefoot.calibrators.search import LOOSE, bounds_for, is_at_bound, search
from surefoot.calibrators.temperature import (
    Temperature,
    at_least_one,
    factor_of,
    fit_temperature,
    only_labelled,
)
from surefoot.errors import InputError
from surefoot.metrics import METRICS
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Array
from surefoot.predictions.predictions import Predictions
from surefoot.progress import Watch, silently
from surefoot.runtime import usable_cores
from surefoot.streaming.accumulate import NUMBERS_AT_ONCE, Shape, Version, labelled
from surefoot.streaming.cells import Whole
from surefoot.streaming.engines import Engine, Threads
from surefoot.streaming.evaluate import IN_MEMORY, Source, accumulate_source
from surefoot.streaming.outcomes import Batch, Scaling, class_by_class
from surefoot.streaming.readers import batches

METHODS = ("temperature", "softening")
PILOT_NUMBERS = 2**22  # logits that the first fit is made on
PILOT_PARTS = 32


@dataclass(frozen=True)
class Reading:
    """Derivatives of the summed NLL at one scale, and what else a fit needs of all rows."""

    rows: int = 0
    slope: float = 0.0
    slope_squared: float = 0.0  # summed row by row
    second: float = 0.0
    third: float = 0.0
    squares: float = 0.0  # of all logits, for one label about their row's mean
    largest: float = 0.0  # logit, without its sign
    flat: bool = True  # all logits of a row are equal
    separable: bool = True  # every label is predicted correctly

    def merged(self, other: "Reading") -> "Reading":
        """Over the rows of both."""
        return Reading(
            self.rows + other.rows,
            self.slope + other.slope,
            self.slope_squared + other.slope_squared,
            self.second + other.second,
            self.third + other.third,
            self.squares + other.squares,
            max(self.largest, other.largest),
            self.flat and other.flat,
            self.separable and other.separable,
        )


def require_streamable(method: str) -> None:
    """Refuse a method whose fit needs all rows at once."""
    if method not in METHODS:
        have = ", ".join(METHODS)
        raise InputError(f"method {method!r} cannot be streamed; have: {have}, or {IN_MEMORY}")


def fit_files(
    method: str, source: Source, *, engine: Engine | None = None, watch: Watch = silently
) -> Temperature:
    """`fit_calibration(..., force=True)` over files: the same T to 1e-6 of it, with the same evidence."""
    require_streamable(method)
    engine = engine or Threads(usable_cores())
    fitted = _fit(source, engine, watch)
    if method == "softening":
        fitted = at_least_one(fitted)
    nll, ece = METRICS.named("nll_unclipped"), METRICS.named("ece")
    accumulator = accumulate_source(source, (nll, ece), Scaling((fitted.temperature,)), engine, watch)
    before, after = (Version(accumulator, number) for number in (1, 0))
    nlls = (version.ratio(nll) for version in (before, after))
    eces = (ece.from_cells(version)[0] for version in (before, after))
    return replace(fitted, evidence=Evidence(*nlls, *eces))


def _fit(source: Source, engine: Engine, watch: Watch) -> Temperature:
    pilot = only_labelled(_some_rows(source))
    scale, reading = _search(source, 1 / fit_temperature(pilot).temperature, engine, watch)
    lowest, highest = _bounds(reading, source.shape)
    facts: dict[str, Any] = {
        "n": reading.rows,
        "label_kind": source.shape.kind,
        "classes": source.shape.classes,
    }
    if reading.flat:
        return Temperature(temperature=1.0, low=0.0, high=math.inf, at_bound=True, flat=True, **facts)
    if reading.separable:
        scale = highest
    at_bound = reading.separable or is_at_bound(scale, lowest, highest)
    factor = math.inf
    if not at_bound:
        factor = factor_of(reading.slope_squared, reading.rows, reading.second, scale)
    return Temperature(
        temperature=1 / scale,
        low=1 / factor / scale,
        high=factor / scale,
        at_bound=at_bound,
        separable=reading.separable,
        **facts,
    )


def _bounds(reading: Reading, shape: Shape) -> tuple[float, float]:
    """`search_bounds` of all rows."""
    size = math.sqrt(reading.squares / (reading.rows * shape.classes))
    return bounds_for(reading.largest, size)


def _search(source: Source, scale: float, engine: Engine, watch: Watch) -> tuple[float, Reading]:
    numbers = count(1)

    @cache
    def read_at(scale: float) -> Reading:
        with watch(f"fitting, reading {next(numbers)}", source.rows) as tick:
            return engine(source.parts, source.shape, partial(read, shape=source.shape, scale=scale), tick)

    first = read_at(scale)
    if first.flat or first.separable:
        return scale, first
    low, high = _bounds(first, source.shape)
    return search(read_at, min(max(scale, low), high), low, high, LOOSE)


def read(stream: Iterator[Batch], shape: Shape, scale: float) -> Reading:
    """The NLL's derivatives over all batches, with the averaged logits multiplied by `scale`."""
    reading = Reading()
    step = max(1, NUMBERS_AT_ONCE // (shape.members * shape.classes))
    of_chunk = _read_softmax if shape.kind is LabelKind.ONE_LABEL else _read_sigmoid
    for batch in map(labelled, stream):
        for start in range(0, len(batch.labels), step):
            rows = slice(start, start + step)
            logits = class_by_class(batch, rows, shape.kind, None)
            reading = reading.merged(of_chunk(logits, batch.labels[rows].T, scale))
    return reading


def _read_softmax(logits: Array, labels: Whole, scale: float) -> Reading:
    """With d = z - max z and p the scaled softmax: the slope is E[d] - d_true, then come p's cumulants."""
    flat = not np.ptp(logits, axis=0).any()
    largest = float(np.abs(logits).max())
    logits -= logits.max(axis=0)
    squares = float(np.einsum("ij,ij", logits, logits) - np.square(logits.sum(axis=0)).sum() / len(logits))
    true = logits[labels, np.arange(logits.shape[1])]
    weights = np.exp(logits * scale)
    total = weights.sum(axis=0)
    moments = []
    for _ in range(3):
        weights *= logits
        moments.append(weights.sum(axis=0) / total)
    mean, square, cube = moments
    slopes = mean - true
    second = square - np.square(mean)
    third = cube - mean * (3 * square - 2 * np.square(mean))
    sizes = (squares, largest)
    return _reading(slopes, second, third, sizes, flat=flat, separable=bool((true >= 0).all()))


def _read_sigmoid(logits: Array, labels: Whole, scale: float) -> Reading:
    """With s the log odds signed towards the truth (0 where ignored) and w = sigmoid(-b s)."""
    towards_truth = logits * np.where(labels == 1, 1.0, np.where(labels == 0, -1.0, 0.0))
    small = np.exp(-np.abs(scale * towards_truth))
    wrong = np.where(towards_truth >= 0, small, 1.0) / (1 + small)
    variance = wrong * (1 - wrong) * np.square(towards_truth)
    third = -variance * towards_truth * (1 - 2 * wrong)
    slopes = -(towards_truth * wrong).sum(axis=0)
    separable = bool((towards_truth >= 0).all())
    sizes = (float(np.einsum("ij,ij", logits, logits)), float(np.abs(logits).max()))
    return _reading(slopes, variance, third, sizes, flat=not logits.any(), separable=separable)


def _reading(
    slopes: Array, second: Array, third: Array, sizes: tuple[float, float], *, flat: bool, separable: bool
) -> Reading:
    squared = float(slopes @ slopes)
    sums = (float(slopes.sum()), squared, float(second.sum()), float(third.sum()))
    return Reading(len(slopes), *sums, *sizes, flat=flat, separable=separable)


def _some_rows(source: Source) -> Predictions:
    """Some rows of some parts, evenly chosen."""
    shape, parts = source.shape, source.parts[:: -(-len(source.parts) // PILOT_PARTS)]
    rows = max(1, PILOT_NUMBERS // (shape.classes * shape.members * len(parts)))
    chosen = []
    for part in parts:
        for batch in map(labelled, batches(part, shape)):
            if len(batch.labels):
                stride = -(-len(batch.labels) // rows)
                chosen.append(Batch(batch.logits[:, ::stride].copy(), batch.labels[::stride].copy()))
                break
    if not chosen:
        raise InputError("no labels to fit a temperature on; allowed: predictions with at least one label")
    logits = np.concatenate([batch.logits for batch in chosen], axis=1)
    return Predictions.from_logits(logits, np.concatenate([batch.labels for batch in chosen]))
