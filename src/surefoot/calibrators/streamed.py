"""The temperature of files larger than memory: the search of `calibrators.search`, one reading a step.

It starts from the fit on some rows of all files, so that one reading of everything is usually enough: the
error after a step of Halley's method is about the cube of the step.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.calibrators.calibration import Calibration, Evidence
from surefoot.calibrators.search import (
    LOOSE,
    Rows,
    bounds_for,
    is_at_bound,
    is_flat,
    is_separable,
    mean_square,
    search,
)
from surefoot.calibrators.search import read as read_rows
from surefoot.calibrators.temperature import (
    Temperature,
    at_least_one,
    factor_of,
    fit_temperature,
    only_labelled,
)
from surefoot.errors import InputError
from surefoot.metrics import METRICS
from surefoot.metrics.accumulate import accumulate_source
from surefoot.predictions.classes import Order
from surefoot.predictions.engines import Engine
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import average, extremes_of
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.readers import IN_MEMORY, Batch, Part, Shape, batches, labelled
from surefoot.predictions.scanned import ScannedPredictions
from surefoot.predictions.zeros import raise_zeros, stand_in, zeros_and_smallest
from surefoot.progress import Progress, Watch
from surefoot.runtime import in_parallel

METHODS = ("temperature", "softening")
PILOT_NUMBERS = 2**22  # logits that the first fit is made on,
PILOT_ROWS = 2**17  # or so many rows: they give T to less than a percent, which one more step makes exact
PILOT_PARTS = 32
FEWEST_OF_BATCH = 64  # rows, about, of which the size of the logits is the mean


@dataclass(frozen=True, eq=False)
class Rescaling:
    """A calibration that needs nothing but a row's logits."""

    calibration: Calibration
    order: Order  # of the classes, as the calibration's `check` returned it

    @staticmethod
    def of(calibration: Calibration, shape: Shape) -> "Rescaling":
        """Of rows of that shape."""
        if calibration.needs_novelty:
            raise InputError(f"a {calibration.kind} calibration cannot be streamed; allowed: {IN_MEMORY}")
        return Rescaling(calibration, calibration.check(shape))

    def __call__(self, logits: NDArray[np.floating], kind: LabelKind) -> NDArray[np.floating]:
        """Calibrated logits (members, rows, classes)."""
        given = Predictions.from_logits(logits, None, kind=kind)
        return self.calibration.calibrated(given, self.order).logits


@dataclass(frozen=True)
class Reading:
    """Derivatives of the summed NLL at one scale, and what else a fit needs of all rows."""

    rows: int = 0
    slope: float = 0.0
    slope_squared: float = 0.0  # summed row by row
    second: float = 0.0
    third: float = 0.0
    squares: float = 0.0  # the mean square of the rows' logits, for one label about their mean, of all rows
    largest: float = 0.0  # logit, without its sign
    flat: bool = True  # all logits of a row are equal
    separable: bool = True  # every label is predicted correctly
    zeros: bool = False  # some probability is exactly 0
    smallest: float = 0.0  # the log of the smallest other one

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
            self.zeros or other.zeros,
            min(self.smallest, other.smallest),
        )


def fit_files(
    method: str, source: ScannedPredictions, options: Iterable[str], *, force: bool, shown: Progress
) -> Temperature:
    """`fit_calibration` over files: the same T to 1e-6 of it, with the same evidence."""
    if method not in METHODS:
        have = ", ".join(METHODS)
        raise InputError(f"method {method!r} cannot be streamed; have: {have}, or {IN_MEMORY}")
    for option in options:
        raise InputError(f"{option} cannot be streamed; allowed: {IN_MEMORY}")
    with source.reader(shown) as engine:
        fitted = _fit(source, engine, shown.bar)
        if method == "softening":
            fitted = at_least_one(fitted)
        nll, ece = METRICS.named("nll_unclipped"), METRICS.named("ece")
        scaling = Rescaling.of(fitted, source.shape)
        accumulator = accumulate_source(source, (nll, ece), scaling, engine, shown.bar)
    nlls = (accumulator.ratio(number, nll) for number in (1, 0))  # before, after
    eces = (ece.from_cells(version)[0] for version in accumulator.versions[::-1])
    fitted = replace(fitted, evidence=Evidence(*nlls, *eces))
    return fitted if force else fitted.cautious()


def _fit(source: ScannedPredictions, engine: Engine, watch: Watch) -> Temperature:
    pilot = _some_rows(source)
    lowest = pilot.half_of_smallest()
    start = fit_temperature(
        only_labelled(pilot if lowest is None else pilot.with_zeros_as(lowest))
    ).temperature
    scale, reading = _search(source, 1 / start, lowest, engine, watch)
    of_all = stand_in(reading.smallest) if reading.zeros else None
    if of_all != lowest:
        lowest = of_all
        scale, reading = _search(source, scale, lowest, engine, watch)
    first, last = _bounds(reading)
    facts: dict[str, Any] = {
        "n": reading.rows,
        "label_kind": source.shape.kind,
        "classes": source.shape.classes,
        "class_names": source.shape.class_names,
        "lowest_probability": lowest,
    }
    if reading.flat:
        return Temperature(temperature=1.0, low=0.0, high=math.inf, at_bound=True, flat=True, **facts)
    if reading.separable:
        scale = last
    at_bound = reading.separable or is_at_bound(scale, first, last)
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


def _bounds(reading: Reading) -> tuple[float, float]:
    """`search_bounds` of all rows."""
    return bounds_for(reading.largest, math.sqrt(reading.squares / reading.rows))


def _search(
    source: ScannedPredictions, scale: float, lowest: float | None, engine: Engine, watch: Watch
) -> tuple[float, Reading]:
    numbers = count(1)

    @cache
    def read_at(scale: float) -> Reading:
        with watch(f"fitting, reading {next(numbers)}", source.rows) as tick:
            work = partial(read, shape=source.shape, scale=scale, lowest=lowest)
            return engine(source.parts, source.shape, work, tick)

    first = read_at(scale)
    if first.flat or first.separable:
        return scale, first
    low, high = _bounds(first)
    return search(read_at, min(max(scale, low), high), low, high, LOOSE)


def read(stream: Iterator[Batch], shape: Shape, scale: float, lowest: float | None = None) -> Reading:
    """The NLL's derivatives over all batches, with the averaged logits multiplied by `scale`.

    Probabilities of exactly 0 are read as `lowest`.
    """
    reading = Reading()
    for given in stream:
        zeros, smallest = zeros_and_smallest(given.logits, shape.kind)
        reading = reading.merged(Reading(zeros=zeros, smallest=smallest))
        batch = labelled(given)
        if lowest is not None:
            batch = Batch(raise_zeros(batch.logits, shape.kind, lowest), batch.labels)
        if len(batch.labels):
            rows = Rows(average(batch.logits, shape.kind)[None], batch.labels, shape.kind)
            reading = reading.merged(_read_batch(rows, scale, reading))
    return reading


def _read_batch(rows: Rows, scale: float, before: Reading) -> Reading:
    """Of some rows; whether they are flat or separable is asked only if all rows before were."""
    derivatives = read_rows(rows, scale)
    low, high = extremes_of(rows.logits)
    n = rows.logits.shape[1]
    return Reading(
        rows=n,
        slope=derivatives.slope,
        slope_squared=derivatives.squared_slopes,
        second=derivatives.second,
        third=derivatives.third,
        squares=mean_square(rows, FEWEST_OF_BATCH) * n,
        largest=max(-low, high),
        flat=before.flat and is_flat(rows),
        separable=before.separable and is_separable(rows),
    )


def _some_rows(source: ScannedPredictions) -> Predictions:
    """The first rows of some parts, evenly chosen."""
    shape, parts = source.shape, source.parts[:: -(-len(source.parts) // PILOT_PARTS)]
    numbers = min(PILOT_NUMBERS, PILOT_ROWS * shape.classes * shape.members) // len(parts)

    def first_of(part: Part) -> Batch | None:
        of_part = map(labelled, batches(part, shape, numbers=numbers))
        return next((batch for batch in of_part if len(batch.labels)), None)

    chosen = [batch for batch in in_parallel(first_of, parts) if batch is not None]
    if not chosen:
        raise InputError("no labels to fit a temperature on; allowed: predictions with at least one label")
    logits = np.concatenate([batch.logits for batch in chosen], axis=1)
    return Predictions.from_logits(logits, np.concatenate([batch.labels for batch in chosen]))
