"""Scores of files larger than memory, from sums and cells: docs/streaming.md says how."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from typing import cast

import numpy as np

from surefoot.calibrators import Calibration
from surefoot.calibrators.streamed import Rescaling
from surefoot.errors import InputError
from surefoot.evaluation.bootstrap import AT_ONCE, CELLS, Drawn, mean_of_blocks
from surefoot.evaluation.scores import Score, Scored, SetScores, independent_difference
from surefoot.intervals import NAN, NORMAL, Proportion, centred_interval, few_samples_factor, needs_exact
from surefoot.metrics import Metric
from surefoot.metrics.accumulate import Accumulator, Version, accumulate_source, farthest
from surefoot.metrics.metric import Cells
from surefoot.predictions.labels import ONE_HOT
from surefoot.predictions.outcomes import Array, HasOutcomes
from surefoot.predictions.readers import IN_MEMORY
from surefoot.predictions.scanned import ScannedPredictions
from surefoot.progress import Progress, Tick
from surefoot.text import count_of


def scored_files(
    given: Mapping[str, ScannedPredictions],
    calibration: Calibration | None,
    metrics: Sequence[Metric],
    resamples: int,
    seed: int,
    shown: Progress,
) -> dict[str, Scored]:
    """Each side's scores, in memory that does not grow with its rows."""
    for metric in metrics:
        if not metric.can_be_streamed:
            raise InputError(f"metric {metric.name!r} cannot be streamed; needed: {IN_MEMORY}")
    accumulators = _accumulated(given, calibration, metrics, shown)
    versions = sum(len(accumulator.request.versions) for accumulator in accumulators.values())
    with shown.bar("resampling", resamples * versions) as tick:
        return scored_accumulators(accumulators, metrics, resamples=resamples, seed=seed, tick=tick)


def _accumulated(
    given: Mapping[str, ScannedPredictions],
    calibration: Calibration | None,
    metrics: Sequence[Metric],
    shown: Progress,
) -> dict[str, Accumulator]:
    """Each side's sums and cells; notes say how fast they were read."""
    scalings = {
        side: None if calibration is None else Rescaling.of(calibration, each.shape)
        for side, each in given.items()
    }
    start, accumulators = monotonic(), {}
    with given["familiar"].reader(shown) as engine:
        for side, each in given.items():

            def watch(doing: str, total: int | None, side: str = side) -> AbstractContextManager[Tick]:
                return shown.bar(f"{doing} {side}", total)

            accumulators[side] = accumulate_source(each, metrics, scalings[side], engine, watch)
    seconds = monotonic() - start
    for side, accumulator in accumulators.items():
        if accumulator.one_hot:
            shown.note(ONE_HOT.format(given[side].files[0]))
    rows = sum(accumulator.rows for accumulator in accumulators.values())
    grids = [grid for accumulator in accumulators.values() for grid in accumulator.request.grids]
    readings = max(len(grid.zooms) + 1 for grid in grids)
    passes = "" if readings == 1 else f", in {readings} passes"
    rate = f"{rows / seconds / 1e6:.2f} million rows/s{passes}"
    shown.note(f"streamed {count_of(rows, 'row')} in {seconds:.1f} s: {rate}")
    return accumulators


def scored_accumulators(
    accumulators: Mapping[str, Accumulator],
    metrics: Sequence[Metric],
    *,
    resamples: int,
    seed: int,
    tick: Tick,
) -> dict[str, Scored]:
    """All scores of each side. Of two versions the first is calibrated, the second as given."""
    result = {}
    for index, (side, accumulator) in enumerate(accumulators.items()):
        if not accumulator.rows:
            raise InputError(f"the {side} predictions have no labels; needed: at least one")
        scores = [
            _set_scores(version, metrics, resamples, np.random.default_rng([seed, index]), tick)
            for version in accumulator.scored
        ]
        change = {}
        if len(scores) > 1:
            change = {metric.name: _change(accumulator, metric, scores) for metric in metrics}
        result[side] = Scored(scores, change)
    return result


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
        drawn = [Drawn(right + missed, missed, confidence / count)]
        values.append(np.stack([m.transform.values(mean_of_blocks(m, drawn)) for m in metrics]))
        tick(size)
    every = np.concatenate(values, axis=1)
    return {metric.name: of_metric for metric, of_metric in zip(metrics, every, strict=True)}


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


def _half_width(accumulator: Accumulator, gradient: Array) -> float:
    """Of the 95% interval of a ratio of sums: each row moves it by gradient @ facts / decisions."""
    square = float(gradient @ accumulator.sums.products @ gradient)
    factor = few_samples_factor(accumulator.rows)
    with np.errstate(invalid="ignore"):  # one row has no spread: 0 times an infinite factor
        return float(NORMAL * factor * np.sqrt(np.maximum(0.0, square)) / accumulator.sums.total[0])


def _change(accumulator: Accumulator, metric: Metric, scored: Sequence[SetScores]) -> Score:
    """Calibrated less as given; paired for ratios of sums, whose products across versions are known."""
    after, before = (scores.metrics[metric.name] for scores in scored)
    value = after.value - before.value
    if needs_exact((after.k, after.n), (before.k, before.n)):
        return independent_difference(after, before)
    metric = metric.of_kind(accumulator.request.shape.kind)
    if metric.numerator is not None:
        gradients = [accumulator.scored[number].gradient(metric) for number in (0, 1)]
        half = _half_width(accumulator, gradients[0] - gradients[1])
        return Score(value, value - half, value + half) if np.isfinite(half) else Score(value)
    bound = None if after.bound is None else after.bound + (before.bound or 0.0)
    return Score(value, bound=bound)
