"""From tallies to the evaluation that `scoring.evaluate` gives for what fits in memory.

Means have normal intervals from the tallied squares and products, proportions exact ones, and what ranks
decisions resamples of its cells. For many labels a row's answers depend on each other, and cells do not know
of rows: what ranks them has no interval then.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from surefoot.errors import InputError
from surefoot.metrics import Metric
from surefoot.outcomes import Array
from surefoot.scores import SIDES, Evaluation, Score, SetScores
from surefoot.statistics import (
    NAN,
    NORMAL,
    Interval,
    Proportion,
    centred_interval,
    difference_of_proportions,
    few_samples_factor,
    needs_exact,
)
from surefoot.tally.counting import Tally
from surefoot.tally.resampling import RANKED, floors, replicates
from surefoot.tally.view import View, farthest

Tick = Callable[[int], None]

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
    tallies: Mapping[str, Tally], metrics: Sequence[Metric], *, resamples: int, seed: int, tick: Tick
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


def _half_width(tally: Tally, direction: Array) -> float:
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


def _change(tally: Tally, name: str, scored: Sequence[SetScores]) -> Score:
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
