"""Evaluate files larger than memory: one pass, and another only where cells must be finer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np

from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
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
from surefoot.metrics import (
    METRICS,
    Metric,
    augrc,
    aurc,
    coverage_at_1,
    coverage_at_5,
    debiased_l2,
    ece,
    risk_at_80,
    risk_at_90,
)
from surefoot.metrics.calibration import (
    FLOOR_RESAMPLES,
    ece_of,
    mean_of_defined,
    smooth_ece_of,
    spread_on_grid,
)
from surefoot.predictions.labels import refuse_other_classifier
from surefoot.predictions.outcomes import Array, Curve
from surefoot.runtime import usable_cores
from surefoot.streaming.accumulate import Accumulator, Request, Shape, accumulate
from surefoot.streaming.bounds import Binned, View, farthest, worst_bound
from surefoot.streaming.cells import Column
from surefoot.streaming.engines import Engine, Threads, Tick
from surefoot.streaming.outcomes import Scaling
from surefoot.streaming.readers import Part, parts_of, shape_of

PARTS = 2000

RANKED = {
    "ece": ece,
    "debiased_l2": debiased_l2,
    "aurc": aurc,
    "augrc": augrc,
    "risk_at_80": risk_at_80,
    "risk_at_90": risk_at_90,
    "coverage_at_1": coverage_at_1,
    "coverage_at_5": coverage_at_5,
}


def replicates(
    column: Column, names: list[str], *, resamples: int, rng: np.random.Generator, tick: Tick
) -> Mapping[str, Array]:
    """Metrics of one block's decisions drawn anew, again and again."""
    count, wrong, confidence = coarse(column, PARTS)
    share = np.stack([count - wrong, wrong]) / count.sum()
    found = {name: np.empty(resamples) for name in names}
    for index in range(resamples):
        right, missed = rng.multinomial(int(count.sum()), share.reshape(-1)).reshape(2, -1).astype(float)
        drawn = right + missed
        sums = (drawn, missed, drawn * confidence)
        curve = Curve(*(np.append(0.0, np.cumsum(values)) for values in sums))
        for name in names:
            if name == "smooth_ece":
                residuals = spread_on_grid(confidence, right - drawn * confidence)
                found[name][index] = smooth_ece_of(residuals, drawn.sum())
            else:
                found[name][index] = RANKED[name](Binned((curve,), curve))
        tick(1)
    return found


def floors(columns: tuple[Column, ...]) -> Array:
    """The ECE again and again with 'correct' drawn from the confidences, a mean over blocks."""
    rng = np.random.default_rng(0)
    parts = max(50, 2 * PARTS // len(columns))
    blocks = [coarse(column, parts) for column in columns if len(column.count)]
    values = np.empty((len(blocks), FLOOR_RESAMPLES))
    for of_block, (count, _, confidence) in zip(values, blocks, strict=True):
        mass = np.append(0.0, np.cumsum(count))
        sure = np.append(0.0, np.cumsum(count * confidence))
        doubt = np.clip(1 - confidence, 0, 1)
        for index in range(FLOOR_RESAMPLES):
            errors = np.cumsum(rng.binomial(count.astype(np.int64), doubt))
            of_block[index] = ece_of(Curve(mass, np.append(0.0, errors), sure))
    return np.array([mean_of_defined(column.tolist()) for column in values.T])


def coarse(column: Column, parts: int) -> tuple[Array, Array, Array]:
    """Neighbouring cells put together: decisions, errors and mean confidence of about so many parts."""
    ends = np.cumsum(column.count)
    part = ((ends - column.count) / ends[-1] * parts).astype(np.int64)
    first = np.flatnonzero(np.diff(part, prepend=-1))
    count, wrong, sure = (
        np.add.reduceat(values, first) for values in (column.count, column.wrong, column.confidence)
    )
    return count, wrong, sure / count


MEANS = {  # metric: the facts whose sum it is a mean of; a root is taken where ROOTS says so
    "nll": {"nll": 1.0},
    "nll_unclipped": {"nll_unclipped": 1.0},
    "brier": {"squared_error": 1.0},
    "brier_true_class": {"true_class_error": 1.0},
    "entropy": {"entropy": 1.0},
    "nll_minus_entropy": {"nll": 1.0, "entropy": -1.0},
}
ROOTS = ("brier", "brier_true_class")
ABOVE = "error_above_"
E99 = 0.99


def thresholds_of(metrics: Sequence[Metric]) -> tuple[float, ...]:
    """The confidences above which errors must be counted."""
    names = [metric.name for metric in metrics]
    above = {float(name.removeprefix(ABOVE)) for name in names if name.startswith(ABOVE)}
    return tuple(sorted({E99, *above}))


def evaluation_of(
    tallies: Mapping[str, Accumulator], metrics: Sequence[Metric], *, resamples: int, seed: int, tick: Tick
) -> Evaluation:
    """All scores of one or two sides. Of two versions the first is calibrated, the second as given."""
    sides, uncalibrated, change = {}, {}, {}
    for index, (side, tally) in enumerate(tallies.items()):
        if not tally.rows:
            raise InputError(f"the {side} predictions have no labels; needed: at least one")
        scored = []
        for version in range(len(tally.question.versions)):
            rng = np.random.default_rng([seed, index])
            scored.append(_set_scores(View(tally, version), metrics, resamples, rng, tick))
        sides[side] = scored[0]
        if len(scored) > 1:
            uncalibrated[side] = scored[1]
            change[side] = {metric.name: _change(tally, metric.name, scored) for metric in metrics}
    gap = {}
    if len(sides) > 1:
        gap = {m.name: _gap(*(sides[side].metrics[m.name] for side in SIDES[::-1])) for m in metrics}
    return Evaluation(tuple(metrics), resamples, sides, gap, uncalibrated, change)


def _set_scores(
    view: View, metrics: Sequence[Metric], resamples: int, rng: np.random.Generator, tick: Tick
) -> SetScores:
    shape, rows = view.tally.question.shape, view.tally.rows
    drawn: Mapping[str, Array] = {}
    if view.one_label and resamples:
        names = [m.name for m in metrics if m.name in RANKED or m.name == "smooth_ece"]
        drawn = replicates(view.pooled, names, resamples=resamples, rng=rng, tick=tick)
    calibrated = floors(view.columns) if any(m.name.startswith("ece_floor") for m in metrics) else np.empty(0)
    return SetScores(
        n=rows,
        members=shape.members,
        classes=shape.classes,
        kind=shape.kind,
        independent=rows,
        metrics={metric.name: _score(view, metric, drawn, calibrated) for metric in metrics},
    )


def _score(view: View, metric: Metric, drawn: Mapping[str, Array], calibrated: Array) -> Score:
    name = metric.name
    if name in MEANS:
        return _normal(view, metric, _mean(view, name))
    if name == "e99" or name.startswith(ABOVE):
        return _above(view, metric)
    if name == "label_error":
        return _label_error(view)
    if name == "signed_ece":
        return _normal(view, metric, view.signed_ece()) if view.one_label else Score(view.signed_ece())
    if name.startswith("ece_floor"):
        return Score(float(np.mean(calibrated) if name == "ece_floor" else np.percentile(calibrated, 95)))
    value, bound = view.smooth_ece(), None
    if name != "smooth_ece":
        value, ends = view.ranked(name)
        bound = farthest(value, ends)
    spread = drawn.get(name, np.empty(0))
    interval = centred_interval(value, spread, metric.bounds, factor=few_samples_factor(view.tally.rows))
    if name.startswith("risk_at") and view.one_label and bound == 0:
        return _kept(view, value, float(name.removeprefix("risk_at_")) / 100, interval)
    return Score(value, interval.low, interval.high, bound=bound)


def _mean(view: View, name: str) -> float:
    value = sum(weight * view.mean(fact) for fact, weight in MEANS[name].items())
    return float(np.sqrt(value)) if name in ROOTS else float(value)


def _above(view: View, metric: Metric) -> Score:
    threshold = _threshold(metric.name)
    wrong, sure = round(view.total(f"wrong above{threshold!r}")), round(view.total(f"sure{threshold!r}"))
    count = Proportion.of(wrong, sure)
    if view.one_label or not sure:
        return Score(count.value, count.low, count.high, count.k, count.n)
    # Decisions that belong to one row say less than as many apart: the wider end of the two intervals.
    normal = _normal(view, metric, count.value)
    return Score(count.value, min(count.low, normal.low), max(count.high, normal.high), count.k, count.n)


def _label_error(view: View) -> Score:
    if view.one_label:
        count = Proportion.of(round(view.total("wrong")), round(view.decisions))
        return Score(count.value, count.low, count.high, count.k, count.n)
    value, ends = view.label_error()
    return Score(value, bound=farthest(value, ends))


def _kept(view: View, value: float, coverage: float, interval: Interval) -> Score:
    """Errors among the most confident, as a count where no run of ties is cut."""
    kept = int(np.ceil(coverage * view.decisions - 1e-9))
    errors = value * kept
    if abs(errors - round(errors)) > 1e-6:
        return Score(value, interval.low, interval.high, bound=0.0)
    count = Proportion.of(round(errors), kept)
    return Score(count.value, count.low, count.high, count.k, count.n, bound=0.0)


def _normal(view: View, metric: Metric, value: float) -> Score:
    """The value and a normal interval, from the rows' squares and products."""
    half = _half_width(view.tally, _direction(view, metric.name))
    if not np.isfinite(half):
        return Score(value)
    low, high = np.clip([value - half, value + half], *metric.bounds).tolist()
    return Score(value, low, high)


def _half_width(tally: Accumulator, direction: Array) -> float:
    """Of the 95% interval of a ratio of sums: each row pulls at it by direction @ facts / decisions."""
    square = float(direction @ tally.sums.products @ direction)
    factor = few_samples_factor(tally.rows)
    return float(NORMAL * factor * np.sqrt(max(0.0, square)) / tally.sums.total[0])


def _direction(view: View, name: str) -> Array:
    """How a mean (or its root, or a ratio) changes with each sum, times the number of decisions."""
    question = view.tally.question
    direction = np.zeros(question.facts)
    if name == "e99" or name.startswith(ABOVE):
        threshold = _threshold(name)
        wrong, sure = f"wrong above{threshold!r}", f"sure{threshold!r}"
        scale = view.decisions / view.total(sure) if view.total(sure) else NAN
        direction[question.place(view.version, wrong)] = scale
        direction[question.place(view.version, sure)] = -scale * view.total(wrong) / (view.total(sure) or NAN)
        return direction
    weights = {"confidence": 1.0, "wrong": 1.0} if name == "signed_ece" else MEANS[name]
    for fact, weight in weights.items():
        direction[question.place(view.version, fact)] = weight
    direction[0] = -sum(weight * view.mean(fact) for fact, weight in weights.items())
    root = _mean(view, name) if name in ROOTS else 0.5
    return direction / (2 * root) if root else direction


def _threshold(name: str) -> float:
    return E99 if name == "e99" else float(name.removeprefix(ABOVE))


def _gap(first: Score, second: Score) -> Score:
    """The difference of two independent scores, from their own intervals."""
    ends = [Interval(score.value, score.low, score.high) for score in (first, second)]
    interval = difference_of_proportions(*ends)
    bound = None if first.bound is None else first.bound + (second.bound or 0.0)
    return Score(interval.value, interval.low, interval.high, bound=bound)


def _change(tally: Accumulator, name: str, scored: Sequence[SetScores]) -> Score:
    """Calibrated less as given; paired, where it is a mean: the products across versions were tallied too."""
    after, before = (scores.metrics[name] for scores in scored)
    value = after.value - before.value
    if needs_exact((after.k, after.n), (before.k, before.n)):
        return _gap(after, before)
    views = [View(tally, version) for version in (0, 1)]
    signed = name == "signed_ece" and views[0].one_label
    if name in MEANS or signed or name == "e99" or name.startswith(ABOVE):
        directions = [_direction(view, name) for view in views]
        half = _half_width(tally, directions[0] - directions[1])
        return Score(value, value - half, value + half) if np.isfinite(half) else Score(value)
    bound = None if after.bound is None else after.bound + (before.bound or 0.0)
    return Score(value, bound=bound)


TOLERANCE = 1e-4  # what ECE and all that is read from the risk-coverage curve may be off
PASSES = 4

Watch = Callable[[str, int | None], AbstractContextManager[Tick]]


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
    """An evaluation, and what was noticed on the way."""

    evaluation: Evaluation
    readings: int  # of all rows of a side, the most
    seconds: float  # that the reading took
    one_hot: tuple[str, ...]  # sides of many labels where every row has exactly one


def silently(_doing: str, _total: int | None) -> AbstractContextManager[Tick]:
    """Show nobody how far it is."""
    return nullcontext(lambda _rows: None)


def evaluate_files(
    sources: Mapping[str, Source],
    *,
    scaling: Scaling | None = None,
    metrics: Sequence[Metric] = METRICS,
    resamples: int = RESAMPLES,
    seed: int = 0,
    engine: Engine | None = None,
    watch: Watch = silently,
) -> Streamed:
    """`scoring.evaluate` over files, in memory that does not grow with their rows."""
    refuse_other_classifier({side: source.shape for side, source in sources.items()})
    engine = engine or Threads(usable_cores())
    start = monotonic()
    tallies = {
        side: accumulate_source(source, metrics, scaling, engine, partial(_watched, watch, side))
        for side, source in sources.items()
    }
    seconds = monotonic() - start
    with watch("resampling", resamples * sum(len(t.question.versions) for t in tallies.values())) as tick:
        found = evaluation_of(tallies, metrics, resamples=resamples, seed=seed, tick=tick)
    readings = max(len(grid.zooms) + 1 for t in tallies.values() for grid in t.question.grids)
    return Streamed(found, readings, seconds, tuple(side for side, t in tallies.items() if t.one_hot))


def accumulate_source(
    source: Source, metrics: Sequence[Metric], scaling: Scaling | None, engine: Engine, watch: Watch
) -> Accumulator:
    """A side's tally, with cells so fine that the bound holds, if a few readings can make it so."""
    versions = (None,) if scaling is None else (scaling, None)
    question = Request.of(source.shape, thresholds_of(metrics), versions)
    for number in range(1, PASSES + 1):
        with watch("reading" if number == 1 else f"reading, time {number}", source.rows) as tick:
            found = engine(source.parts, source.shape, partial(accumulate, question=question), tick)
        closer = _closer(found)
        if closer is None:
            break
        question = closer
    return found


def _closer(found: Accumulator) -> Request | None:
    """The question again with finer cells where the bound is missed; None if it holds or cannot."""
    question = found.question
    grids = list(question.grids)
    for version, histogram in enumerate(found.histograms):
        if worst_bound(found, version) > TOLERANCE:
            grids[version] = histogram.closer() or grids[version]
    return replace(question, grids=tuple(grids)) if grids != list(question.grids) else None


def _watched(watch: Watch, side: str, doing: str, total: int | None) -> AbstractContextManager[Tick]:
    return watch(f"{doing} {side}", total)
