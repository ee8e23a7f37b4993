"""Scores of files larger than memory, from sums and cells: docs/streaming.md says how."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from time import monotonic
from typing import cast

import numpy as np

from surefoot.calibrators import Calibration
from surefoot.calibrators.streamed import Rescaling
from surefoot.errors import InputError
from surefoot.evaluation.bootstrap import AT_ONCE, CELLS, Drawn, mean_of_blocks
from surefoot.evaluation.scores import Score, Scored, SetScores, change, counted
from surefoot.metrics import Metric
from surefoot.metrics.accumulate import Accumulator, accumulate_source, farthest
from surefoot.metrics.intervals import NAN, NORMAL, Proportion, centred_interval, few_samples_factor
from surefoot.metrics.metric import Cells
from surefoot.predictions.labels import ONE_HOT, LabelKind
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
    versions = sum(len(accumulator.versions) for accumulator in accumulators.values())
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
            _set_scores(accumulator, number, metrics, resamples, np.random.default_rng([seed, index]), tick)
            for number in range(len(accumulator.versions))
        ]
        changes = {}
        if len(scores) > 1:
            changes = {metric.name: _change(accumulator, metric, scores) for metric in metrics}
        result[side] = Scored(scores, changes)
    return result


def _set_scores(
    accumulator: Accumulator,
    number: int,
    metrics: Sequence[Metric],
    resamples: int,
    rng: np.random.Generator,
    tick: Tick,
) -> SetScores:
    """Of one version."""
    shape, rows = accumulator.request.shape, accumulator.rows
    metrics = [metric.of_kind(shape.kind) for metric in metrics]
    drawn: Mapping[str, Array] = {}
    if shape.kind is LabelKind.ONE_LABEL and resamples:
        ranked = [m for m in metrics if (m.curve or m.of_residuals) and m.resampled]
        if ranked:
            cells = accumulator.versions[number].pooled_cells
            drawn = replicates(cells, ranked, resamples=resamples, rng=rng, tick=tick)
    return SetScores(
        n=rows,
        members=shape.members,
        classes=shape.classes,
        kind=shape.kind,
        independent=rows,
        metrics={
            metric.name: _ranked_score(accumulator, number, metric, drawn.get(metric.name, np.empty(0)))
            if metric.numerator is None
            else _ratio_score(accumulator, number, metric)
            for metric in metrics
        },
        zeros=accumulator.zeros if accumulator.request.scalings[number] is None else 0,
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


def _ratio_score(accumulator: Accumulator, number: int, metric: Metric) -> Score:
    """A ratio of sums with a normal interval; of whole numbers, k of n, with the exact one."""
    value, half = (
        accumulator.ratio(number, metric),
        _half_width(accumulator, accumulator.gradient(number, metric)),
    )
    low, high = np.clip([value - half, value + half], *metric.bounds).tolist()
    if metric.count is None:
        return Score(value, low, high)
    one_label = accumulator.request.shape.kind is LabelKind.ONE_LABEL
    return counted(
        Proportion.of(*map(round, accumulator.sums(number, metric))), low, high, independent=one_label
    )


def _ranked_score(accumulator: Accumulator, number: int, metric: Metric, drawn: Array) -> Score:
    """A metric from cells, with the interval of its resamples; k of n where that is known exactly."""
    version = accumulator.versions[number]
    value, ends = metric.from_cells(version)
    bound = None if ends is None else farthest(value, ends)
    interval = centred_interval(value, drawn, metric.bounds, factor=few_samples_factor(accumulator.rows))
    score = Score(value, interval.low, interval.high, bound=bound)
    if metric.count is None or metric.curve is None or version.odds is not None or bound != 0:
        return score
    count = metric.count(cast(HasOutcomes, version))  # reads the curve alone
    return score if count is None else replace(counted(count, NAN, NAN, independent=True), bound=bound)


def _half_width(accumulator: Accumulator, gradient: Array) -> float:
    """Of the 95% interval of a ratio of sums, which a row moves by gradient @ what it adds / decisions."""
    square = float(gradient @ accumulator.products @ gradient)
    factor = few_samples_factor(accumulator.rows)
    with np.errstate(invalid="ignore"):  # one row has no spread: 0 times an infinite factor
        half = float(NORMAL * factor * np.sqrt(np.maximum(0.0, square)) / accumulator.totals[0])
    return half if np.isfinite(half) else NAN


def _change(accumulator: Accumulator, metric: Metric, scored: Sequence[SetScores]) -> Score:
    """Calibrated less as given; paired for ratios of sums, whose products across versions are known."""
    after, before = (scores.metrics[metric.name] for scores in scored)
    value, half = after.value - before.value, NAN
    metric = metric.of_kind(accumulator.request.shape.kind)
    if metric.numerator is not None:
        half = _half_width(accumulator, accumulator.gradient(0, metric) - accumulator.gradient(1, metric))
    return change(after, before, value - half, value + half)
