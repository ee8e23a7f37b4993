"""Predictions -> metrics with intervals: familiar, unfamiliar, the gap, the effect of a calibration."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from surefoot.calibrators import Calibration
from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.bootstrap import Draw, resampled
from surefoot.evaluation.groups import group_scores
from surefoot.evaluation.scores import (
    SIDES,
    Evaluation,
    Score,
    Scored,
    SetScores,
    change,
    counted,
    independent_difference,
    require_resampling,
)
from surefoot.evaluation.streamed import scored_files
from surefoot.metrics import METRICS, Metric
from surefoot.metrics.intervals import centred_interval, few_samples_factor
from surefoot.predictions.arguments import checked
from surefoot.predictions.classes import in_one_order
from surefoot.predictions.labels import LabelKind, refuse_other_classifier
from surefoot.predictions.outcomes import Array, Index
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.readers import IN_MEMORY
from surefoot.predictions.scanned import ScannedPredictions
from surefoot.progress import Progress, Tick, progress_of

ANYWHERE = (-np.inf, np.inf)


@checked
def evaluate(
    familiar: Predictions | ScannedPredictions,
    unfamiliar: Predictions | ScannedPredictions | None = None,
    *,
    calibration: Calibration | None = None,
    metrics: Sequence[Metric | str] = METRICS,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: bool | Progress = False,
) -> Evaluation:
    """Score one or two sets of predictions, in memory or scanned; `progress` shows a bar.

    `metrics` are entries of `METRICS`, or their names; by default all, for scanned predictions all that can
    be streamed.

    Intervals are from the bootstrap over samples, over whole groups where there are groups, and exact
    (Clopper-Pearson) for proportions. What the calibration changed is paired: the same resamples before
    and after. Those of scanned predictions are explained in docs/streaming.md.

    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
    >>> result = evaluate(val, metrics=["label_error", "nll"])
    >>> result.sides["familiar"].metrics["label_error"].value
    0.25
    """
    require_resampling(resamples, seed)
    if not metrics:
        raise InputError("metrics are empty; allowed: names of METRICS, by default all")
    given = {side: p for side, p in zip(SIDES, (familiar, unfamiliar), strict=True) if p is not None}
    shown, chosen = progress_of(progress), _chosen(metrics)
    in_memory = {side: each for side, each in given.items() if isinstance(each, Predictions)}
    scanned = {side: each for side, each in given.items() if isinstance(each, ScannedPredictions)}
    for side in in_memory if scanned else ():
        raise InputError(f"{side} is in memory and {', '.join(scanned)} scanned; allowed: both the same")
    if scanned:
        refuse_other_classifier(scanned)
        if metrics is METRICS:
            chosen = _streamable(chosen, shown)
        scored = scored_files(scanned, calibration, chosen, resamples, seed, shown)
    else:
        in_memory = in_one_order(in_memory)
        versions = len(given) * (1 if calibration is None else 2)
        with shown.bar("resampling", resamples * versions) as tick:
            scored = _scored_in_memory(in_memory, calibration, chosen, resamples, seed, tick)
    found = evaluation_of(scored, chosen, resamples)
    return found if scanned else replace(found, predictions=in_memory, calibration=calibration)


def evaluation_of(sides: Mapping[str, Scored], metrics: Sequence[Metric], resamples: int) -> Evaluation:
    """The scores of one or two sides, and their gap."""
    calibrated = {side: each for side, each in sides.items() if len(each.scores) > 1}
    return Evaluation(
        tuple(metrics),
        resamples,
        {side: each.scores[0] for side, each in sides.items()},
        _gap(metrics, *(sides[side] for side in SIDES[::-1])) if len(sides) > 1 else {},
        {side: each.scores[1] for side, each in calibrated.items()},
        {side: each.change for side, each in calibrated.items()},
    )


def _streamable(metrics: Sequence[Metric], shown: Progress) -> list[Metric]:
    for metric in metrics:
        if not metric.can_be_streamed:
            shown.note(
                f"note: metric {metric.name!r} cannot be streamed and is left out; needed: {IN_MEMORY}"
            )
    return [metric for metric in metrics if metric.can_be_streamed]


def _scored_in_memory(
    given: Mapping[str, Predictions],
    calibration: Calibration | None,
    metrics: Sequence[Metric],
    resamples: int,
    seed: int,
    tick: Tick,
) -> dict[str, Scored]:
    for side, predictions in given.items():
        if not predictions.outcomes.total:
            raise InputError(f"the {side} predictions have no labels; needed: at least one")
    result = {}
    for index, (side, predictions) in enumerate(given.items()):
        versions = [predictions] if calibration is None else [calibration(predictions), predictions]
        scored = _scored(versions, metrics, resamples, np.random.default_rng([seed, index]), tick)
        *calibrated, as_given = scored.scores
        as_given = replace(as_given, zeros=predictions.true_zeros())
        result[side] = replace(scored, scores=[*calibrated, as_given])
    return result


def _scored(
    versions: Sequence[Predictions],
    metrics: Sequence[Metric],
    resamples: int,
    rng: np.random.Generator,
    tick: Tick = lambda _: None,
) -> Scored:
    """The scores of one or two versions of the same samples, and their difference, on the same resamples."""
    draw = Draw.of(versions[0].n, versions[0].groups, resamples=resamples, rng=rng)
    drawn = [resampled(version.outcomes, metrics, draw, tick) for version in versions]
    pairs = zip(versions, drawn, strict=True)
    scores = [_scores(version, metrics, values, draw.unit_of) for version, values in pairs]
    return Scored(scores, differences(metrics, scores, drawn) if len(versions) > 1 else {}, drawn[0])


def _gap(metrics: Sequence[Metric], first: Scored, second: Scored) -> dict[str, Score]:
    """The sides are independent: differences of proportions are exact, and resamples are not paired."""
    ours, theirs = first.scores[0].metrics, second.scores[0].metrics
    gap = {}
    if first.drawn is not None and second.drawn is not None:
        gap = differences(metrics, [first.scores[0], second.scores[0]], [first.drawn, second.drawn])
    apart = [name for name in ours if name not in gap or (ours[name].n and theirs[name].n)]
    return gap | {name: independent_difference(ours[name], theirs[name]) for name in apart}


@checked
def paired_differences(
    first: Predictions,
    second: Predictions,
    *,
    metrics: Sequence[Metric | str] = METRICS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Score]:
    """The first set's metrics less the second's, for two predictions of the same samples in the same order.

    Both are scored on the same resamples, so what they share cancels. Groups are the first set's.

    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 200, labels=[0, 1, 0, 0] * 100)
    >>> softer = val.with_logits(val.logits / 2)
    >>> change = paired_differences(softer, val, metrics=["nll"])["nll"]
    >>> change.high < 0
    True
    """
    if not np.array_equal(first.labels, second.labels):
        raise InputError("the labels differ; a paired comparison needs the same rows in the same order")
    require_resampling(resamples, seed)
    scored = _scored([first, second], _chosen(metrics), resamples, np.random.default_rng([seed, 0]))
    return dict(scored.change)


def _chosen(metrics: Sequence[Metric | str]) -> list[Metric]:
    return [METRICS.named(metric) if isinstance(metric, str) else metric for metric in metrics]


def differences(
    metrics: Sequence[Metric], scores: Sequence[SetScores], spread: Sequence[Array]
) -> dict[str, Score]:
    """The first less the second, metric by metric, with the interval of their resampled differences."""
    (a, b), result = scores, {}
    factor = few_samples_factor(min(a.independent, b.independent))
    for metric, drawn in zip(metrics, spread[0] - spread[1], strict=True):
        ours, theirs = a.metrics[metric.name], b.metrics[metric.name]
        interval = centred_interval(ours.value - theirs.value, drawn, ANYWHERE, factor=factor)
        result[metric.name] = change(ours, theirs, interval.low, interval.high)
    return result


def _scores(predictions: Predictions, metrics: Sequence[Metric], drawn: Array, unit_of: Index) -> SetScores:
    rows = np.flatnonzero(np.bincount(predictions.outcomes.row))  # with a label
    independent = int(np.count_nonzero(np.bincount(unit_of[rows])))
    factor = few_samples_factor(independent)
    pairs = zip(metrics, drawn, strict=True)
    return SetScores(
        n=len(rows),
        members=predictions.members,
        classes=predictions.classes,
        kind=predictions.kind,
        independent=independent,
        metrics={metric.name: _score(metric, predictions, values, factor) for metric, values in pairs},
        groups=group_scores(predictions, metrics),
    )


def _score(metric: Metric, predictions: Predictions, drawn: Array, factor: float) -> Score:
    interval = centred_interval(metric.function(predictions), drawn, metric.bounds, factor=factor)
    count = metric.count(predictions) if metric.count else None
    if count is None:
        return Score(interval.value, interval.low, interval.high)
    independent = predictions.groups is None and predictions.kind is LabelKind.ONE_LABEL
    return counted(count, interval.low, interval.high, independent=independent)
