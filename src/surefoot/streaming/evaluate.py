"""Evaluate files larger than memory: one pass, and another only where cells must be finer."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, cast

import numpy as np

from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.bootstrap import AT_ONCE, CELLS, curve_of, mean_on_curves
from surefoot.evaluation.scores import SIDES, Evaluation, Score, SetScores
from surefoot.intervals import (
    NAN,
    NORMAL,
    Interval,
    Proportion,
    centred_interval,
    difference_of_proportions,
    few_samples_factor,
    needs_exact,
)
from surefoot.metrics import METRICS, Metric
from surefoot.metrics.metric import Cells, Range
from surefoot.predictions.labels import refuse_other_classifier
from surefoot.predictions.outcomes import Array, HasOutcomes
from surefoot.progress import Tick, Watch, silently
from surefoot.runtime import usable_cores
from surefoot.streaming.accumulate import Accumulator, Request, Shape, Version, accumulate
from surefoot.streaming.engines import Engine, Threads
from surefoot.streaming.outcomes import Applied, Rescaling, Scaling
from surefoot.streaming.readers import Part, parts_of, shape_of

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration


def evaluation_of(
    accumulators: Mapping[str, Accumulator],
    metrics: Sequence[Metric],
    *,
    resamples: int,
    seed: int,
    tick: Tick,
) -> Evaluation:
    """All scores of one or two sides. Of two versions the first is calibrated, the second as given."""
    sides, uncalibrated, change = {}, {}, {}
    for index, (side, accumulator) in enumerate(accumulators.items()):
        if not accumulator.rows:
            raise InputError(f"the {side} predictions have no labels; needed: at least one")
        scored = []
        for version in range(len(accumulator.request.versions)):
            rng = np.random.default_rng([seed, index])
            scored.append(_set_scores(accumulator.scored[version], metrics, resamples, rng, tick))
        sides[side] = scored[0]
        if len(scored) > 1:
            uncalibrated[side] = scored[1]
            change[side] = {metric.name: _change(accumulator, metric, scored) for metric in metrics}
    gap = {}
    if len(sides) > 1:
        gap = {m.name: _gap(*(sides[side].metrics[m.name] for side in SIDES[::-1])) for m in metrics}
    return Evaluation(tuple(metrics), resamples, sides, gap, uncalibrated, change)


def _set_scores(
    version: Version, metrics: Sequence[Metric], resamples: int, rng: np.random.Generator, tick: Tick
) -> SetScores:
    shape, rows = version.accumulator.request.shape, version.accumulator.rows
    metrics = [metric.of_kind(shape.kind) for metric in metrics]
    drawn: Mapping[str, Array] = {}
    if version.one_label and resamples:
        ranked = [m for m in metrics if (m.curve or m.of_residuals) and m.resampled]
        if ranked:
            drawn = replicates(version.pooled_cells, ranked, resamples=resamples, rng=rng, tick=tick)
    return SetScores(
        n=rows,
        members=shape.members,
        classes=shape.classes,
        kind=shape.kind,
        independent=rows,
        metrics={
            metric.name: _ranked_score(version, metric, drawn.get(metric.name, np.empty(0)))
            if metric.numerator is None
            else _ratio_score(version, metric)
            for metric in metrics
        },
        zeros=version.accumulator.zeros if version.is_as_given else 0,
    )


def replicates(
    cells: Cells, metrics: Sequence[Metric], *, resamples: int, rng: np.random.Generator, tick: Tick
) -> Mapping[str, Array]:
    """Metrics of one block's decisions in each resample, drawn from parts of its cells: right, then wrong."""
    curve = cells.curve.coarse(CELLS)
    count, wrong, confidence = (np.diff(sums) for sums in (curve.mass, curve.errors, curve.confidence))
    share = np.append(count - wrong, wrong) / count.sum()
    values = [np.empty((len(metrics), 0))]
    for start in range(0, resamples, AT_ONCE):
        size = min(AT_ONCE, resamples - start)
        right, missed = np.split(
            rng.multinomial(int(count.sum()), share, size=size).astype(np.float64), 2, axis=1
        )
        curves = [curve_of(right + missed, missed, confidence / count)]
        values.append(np.stack([m.transform.values(mean_on_curves(m, curves)) for m in metrics]))
        tick(size)
    drawn = np.concatenate(values, axis=1)
    return {metric.name: of_metric for metric, of_metric in zip(metrics, drawn, strict=True)}


def _ratio_score(version: Version, metric: Metric) -> Score:
    """A ratio of sums with a normal interval; of whole numbers, k of n, with the exact one."""
    value = version.ratio(metric)
    low = high = NAN
    half = _half_width(version.accumulator, version.gradient(metric))
    if np.isfinite(half):
        low, high = np.clip([value - half, value + half], *metric.bounds).tolist()
    if metric.count is None:
        return Score(value, low, high)
    count = Proportion.of(*map(round, version.sums(metric)))
    if version.one_label or not count.n:
        return Score(count.value, count.low, count.high, count.k, count.n)
    # Decisions of one row are not independent: take the wider end of the two intervals.
    return Score(count.value, min(count.low, low), max(count.high, high), count.k, count.n)


def _ranked_score(version: Version, metric: Metric, drawn: Array) -> Score:
    """A metric from cells, with the interval of its resamples; k of n where that is known exactly."""
    value, ends = metric.from_cells(version)
    bound = None if ends is None else farthest(value, ends)
    factor = few_samples_factor(version.accumulator.rows)
    interval = centred_interval(value, drawn, metric.bounds, factor=factor)
    if metric.count is not None and metric.curve is not None and version.one_label and bound == 0:
        count = metric.count(cast(HasOutcomes, version))  # reads the curve alone
        if count is not None:
            return Score(count.value, count.low, count.high, count.k, count.n, bound=bound)
    return Score(value, interval.low, interval.high, bound=bound)


def farthest(value: float, ends: Range) -> float:
    """How far the value can be from the truth."""
    return float(max(value - ends[0], ends[1] - value, 0.0)) if np.isfinite(ends).all() else NAN


def _half_width(accumulator: Accumulator, gradient: Array) -> float:
    """Of the 95% interval of a ratio of sums: each row moves it by gradient @ facts / decisions."""
    square = float(gradient @ accumulator.sums.products @ gradient)
    factor = few_samples_factor(accumulator.rows)
    with np.errstate(invalid="ignore"):  # one row has no spread: 0 times an infinite factor
        return float(NORMAL * factor * np.sqrt(np.maximum(0.0, square)) / accumulator.sums.total[0])


def _gap(first: Score, second: Score) -> Score:
    """The difference of two independent scores, from their own intervals."""
    ends = [Interval(score.value, score.low, score.high) for score in (first, second)]
    interval = difference_of_proportions(*ends)
    bound = None if first.bound is None else first.bound + (second.bound or 0.0)
    return Score(interval.value, interval.low, interval.high, bound=bound)


def _change(accumulator: Accumulator, metric: Metric, scored: Sequence[SetScores]) -> Score:
    """Calibrated less as given; paired for ratios of sums, whose products across versions are known."""
    after, before = (scores.metrics[metric.name] for scores in scored)
    value = after.value - before.value
    if needs_exact((after.k, after.n), (before.k, before.n)):
        return _gap(after, before)
    metric = metric.of_kind(accumulator.request.shape.kind)
    if metric.numerator is not None:
        gradients = [accumulator.scored[number].gradient(metric) for number in (0, 1)]
        half = _half_width(accumulator, gradients[0] - gradients[1])
        return Score(value, value - half, value + half) if np.isfinite(half) else Score(value)
    bound = None if after.bound is None else after.bound + (before.bound or 0.0)
    return Score(value, bound=bound)


TOLERANCE = 1e-4  # what ECE and all that is read from the risk-coverage curve may be off
PASSES = 4
IN_MEMORY = "all rows in memory (read_predictions in Python, --no-stream)"


@dataclass(frozen=True)
class Source:
    """Files, the parts they are read in, and what their rows look like."""

    files: tuple[Path, ...]
    parts: tuple[Part, ...]
    shape: Shape

    @staticmethod
    def of(files: Sequence[Path]) -> "Source":
        parts = tuple(part for part in parts_of(files) if part.rows != 0)
        return Source(tuple(files), parts, shape_of(parts))

    @property
    def rows(self) -> int | None:
        """How many, where the files say it before they are read."""
        known = [part.rows for part in self.parts if part.rows is not None]
        return sum(known) if len(known) == len(self.parts) else None


@dataclass(frozen=True)
class Streamed:
    """An evaluation, and how it was made."""

    evaluation: Evaluation
    readings: int  # of all rows of a side, the most
    seconds: float  # that the reading took
    one_hot: tuple[str, ...]  # sides of many labels where every row has exactly one


def rescaling_of(calibration: "Calibration", shape: Shape) -> Rescaling:
    """A calibration, to be applied while streaming."""
    if calibration.needs_novelty:
        raise InputError(f"a {calibration.kind} calibration cannot be streamed; allowed: {IN_MEMORY}")
    order = calibration.check(shape)
    if not calibration.temperatures or calibration.lowest_probability is not None:
        return Applied(calibration, order)
    return Scaling(calibration.temperatures, averaged_first=calibration.averages_members)


def evaluate_files(
    sources: Mapping[str, Source],
    *,
    calibration: "Calibration | None" = None,
    metrics: Sequence[Metric] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    engine: Engine | None = None,
    watch: Watch = silently,
) -> Streamed:
    """`evaluate` over files, in memory that does not grow with their rows.

    By default all metrics that can be streamed.
    """
    refuse_other_classifier({side: source.shape for side, source in sources.items()})
    engine = engine or Threads(usable_cores())
    if metrics is None:
        metrics = [metric for metric in METRICS if metric.can_be_streamed]
    for metric in metrics:
        if not metric.can_be_streamed:
            raise InputError(f"metric {metric.name!r} cannot be streamed; needed: {IN_MEMORY}")
    scalings = {
        side: None if calibration is None else rescaling_of(calibration, source.shape)
        for side, source in sources.items()
    }
    start = monotonic()
    accumulators = {}
    for side, source in sources.items():

        def watch_side(doing: str, total: int | None, side: str = side) -> AbstractContextManager[Tick]:
            return watch(f"{doing} {side}", total)

        accumulators[side] = accumulate_source(source, metrics, scalings[side], engine, watch_side)
    seconds = monotonic() - start
    requests = [accumulator.request for accumulator in accumulators.values()]
    with watch("resampling", resamples * sum(len(request.versions) for request in requests)) as tick:
        evaluation = evaluation_of(accumulators, metrics, resamples=resamples, seed=seed, tick=tick)
    readings = max(len(grid.zooms) + 1 for request in requests for grid in request.grids)
    one_hot = tuple(side for side, accumulator in accumulators.items() if accumulator.one_hot)
    return Streamed(evaluation, readings, seconds, one_hot)


def accumulate_source(
    source: Source, metrics: Sequence[Metric], scaling: Rescaling | None, engine: Engine, watch: Watch
) -> Accumulator:
    """A side's sums and cells, in cells so fine that the bound holds, if a few readings can make it so."""
    versions = (None,) if scaling is None else (scaling, None)
    request = Request.of(source.shape, metrics, versions)
    for number in range(1, PASSES + 1):
        with watch("reading" if number == 1 else f"reading, time {number}", source.rows) as tick:
            result = engine(source.parts, source.shape, partial(accumulate, request=request), tick)
        grids = list(request.grids)
        for version, histogram in enumerate(result.histograms):
            if worst_bound(result.scored[version], request.metrics) > TOLERANCE:
                grids[version] = histogram.refined() or grids[version]
        if grids == list(request.grids):
            break
        request = replace(request, grids=tuple(grids))
    return result


def worst_bound(version: Version, metrics: Sequence[Metric]) -> float:
    """How far any metric of a curve can be from the truth, of those whose range is known."""
    on_curves = [metric for metric in metrics if metric.curve is not None] if version.decisions else []
    estimates = [metric.from_cells(version) for metric in on_curves]
    bounds = [farthest(value, ends) for value, ends in estimates if ends is not None]
    return max((bound for bound in bounds if np.isfinite(bound)), default=0.0)
