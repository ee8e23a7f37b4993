"""Predictions -> metrics with intervals: familiar, unfamiliar, the gap, the effect of a calibration."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from surefoot.arguments import checked
from surefoot.calibrators import Calibration
from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.bootstrap import Bootstrap, Draw
from surefoot.evaluation.scores import (
    GROUP_METRICS,
    SIDES,
    Evaluation,
    GroupScores,
    Score,
    SetScores,
    require_resampling,
)
from surefoot.intervals import (
    Interval,
    centred_interval,
    difference_of_proportions,
    few_samples_factor,
    needs_exact,
)
from surefoot.metrics import METRICS, Metric
from surefoot.predictions.labels import LabelKind, refuse_other_classifier
from surefoot.predictions.outcomes import Array
from surefoot.predictions.predictions import Predictions

ANYWHERE = (-np.inf, np.inf)

Tick = Callable[[int], None]


def silently(_steps: int) -> None:
    """Report no progress."""


def evaluate(
    familiar: Predictions,
    unfamiliar: Predictions | None = None,
    *,
    calibration: Calibration | None = None,
    metrics: Sequence[Metric | str] = METRICS,
    resamples: int = RESAMPLES,
    seed: int = 0,
    tick: Tick = silently,
) -> Evaluation:
    """Score one or two sets of predictions; `tick` is called with the number of resamples done.

    `metrics` are entries of `METRICS`, or their names.

    Intervals are from the bootstrap over samples, over whole groups where there are groups, and exact
    (Clopper-Pearson) for proportions. What the calibration changed is paired: the same resamples before
    and after.
    """
    require_resampling(resamples, seed)
    chosen = _chosen(metrics)
    given = {side: p for side, p in zip(SIDES, (familiar, unfamiliar), strict=True) if p is not None}
    refuse_other_classifier(given)
    for side, predictions in given.items():
        if not predictions.outcomes.total:
            raise InputError(f"the {side} predictions have no labels; needed: at least one")
    spread: dict[str, list[Array]] = {}
    sides, uncalibrated, change = {}, {}, {}
    for index, (side, predictions) in enumerate(given.items()):
        versions = [predictions] if calibration is None else [calibration(predictions), predictions]
        rng = np.random.default_rng([seed, index])
        spread[side] = replicates(versions, chosen, resamples=resamples, rng=rng, tick=tick)
        scored = [_scores(p, chosen, r) for p, r in zip(versions, spread[side], strict=True)]
        scored[-1] = replace(scored[-1], zeros=predictions.true_zeros())
        sides[side] = scored[0]
        if calibration is not None:
            uncalibrated[side] = scored[1]
            change[side] = differences(chosen, scored, spread[side])
    gap = {}
    if unfamiliar is not None:
        scored = [sides[side] for side in SIDES[::-1]]
        gap = differences(chosen, scored, [spread[side][0] for side in SIDES[::-1]])
        # The sides are independent: differences of proportions are exact.
        for name, ours in scored[0].metrics.items():
            theirs = scored[1].metrics[name]
            if ours.n and theirs.n:
                gap[name] = _exact_difference(ours, theirs)
    return Evaluation(tuple(chosen), resamples, sides, gap, uncalibrated, change, given, calibration)


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
    chosen = _chosen(metrics)
    spread = replicates([first, second], chosen, resamples=resamples, rng=np.random.default_rng([seed, 0]))
    scores = [_scores(p, chosen, drawn) for p, drawn in zip((first, second), spread, strict=True)]
    return differences(chosen, scores, spread)


def _chosen(metrics: Sequence[Metric | str]) -> list[Metric]:
    return [METRICS.named(metric) if isinstance(metric, str) else metric for metric in metrics]


def replicates(
    versions: Sequence[Predictions],
    metrics: Sequence[Metric],
    *,
    resamples: int,
    rng: np.random.Generator,
    tick: Tick = silently,
) -> list[Array]:
    """Every metric of every version of the samples, on the same resamples: (metrics, resamples) each."""
    draw = Draw.of(versions[0].n, versions[0].groups, resamples=resamples, rng=rng)
    for predictions in versions:
        _ = predictions.outcomes.entropy  # all facts, in one reading of the logits
    bootstraps = [Bootstrap(predictions.outcomes, metrics, draw) for predictions in versions]
    values: list[list[Array]] = [[np.empty((len(metrics), 0))] for _ in versions]
    for counts in draw.counts():
        for into, bootstrap in zip(values, bootstraps, strict=True):
            into.append(bootstrap.values(counts))
        tick(len(counts))
    return [np.concatenate(each, axis=1) for each in values]


def differences(
    metrics: Sequence[Metric], scores: Sequence[SetScores], spread: Sequence[Array]
) -> dict[str, Score]:
    """The first less the second, metric by metric, with the interval of their resampled differences."""
    (a, b), result = scores, {}
    factor = few_samples_factor(min(a.independent, b.independent))
    for metric, drawn in zip(metrics, spread[0] - spread[1], strict=True):
        ours, theirs = a.metrics[metric.name], b.metrics[metric.name]
        if needs_exact((ours.k, ours.n), (theirs.k, theirs.n)):
            result[metric.name] = _exact_difference(ours, theirs)
        else:
            interval = centred_interval(ours.value - theirs.value, drawn, ANYWHERE, factor=factor)
            result[metric.name] = Score(interval.value, interval.low, interval.high)
    return result


def _exact_difference(ours: Score, theirs: Score) -> Score:
    """The difference of two proportions, from their exact intervals."""
    interval = difference_of_proportions(*(Interval(s.value, s.low, s.high) for s in (ours, theirs)))
    return Score(interval.value, interval.low, interval.high)


def _scores(predictions: Predictions, metrics: Sequence[Metric], spread: Array) -> SetScores:
    rows = np.flatnonzero(np.bincount(predictions.outcomes.row))  # with a label
    independent = len(rows) if predictions.groups is None else len(np.unique(predictions.groups[rows]))
    factor = few_samples_factor(independent)
    pairs = zip(metrics, spread, strict=True)
    return SetScores(
        n=len(rows),
        members=predictions.members,
        classes=predictions.classes,
        kind=predictions.kind,
        independent=independent,
        metrics={metric.name: _score(metric, predictions, drawn, factor) for metric, drawn in pairs},
        groups=_group_scores(predictions, metrics),
    )


def _score(metric: Metric, predictions: Predictions, drawn: Array, factor: float) -> Score:
    interval = centred_interval(metric.function(predictions), drawn, metric.bounds, factor=factor)
    count = metric.count(predictions) if metric.count else None
    if count is None:
        return Score(interval.value, interval.low, interval.high)
    independent = predictions.groups is None and predictions.kind is LabelKind.ONE_LABEL
    if independent or not np.isfinite(interval.low):
        return Score(count.value, count.low, count.high, count.k, count.n)
    # Decisions of one row or group are not independent: take the wider end of the two intervals.
    low, high = min(count.low, interval.low), max(count.high, interval.high)
    return Score(count.value, low, high, count.k, count.n)


def _group_scores(predictions: Predictions, metrics: Sequence[Metric]) -> tuple[GroupScores, ...]:
    """Some metrics of each group by itself; proportions with their exact intervals."""
    if predictions.groups is None:
        return ()
    names, member_of = np.unique(predictions.groups, return_inverse=True)
    selected = [metric for metric in metrics if metric.name in GROUP_METRICS]
    result = []
    for name, outcomes in zip(names, predictions.outcomes.split_by(member_of), strict=True):
        if not outcomes.total:
            continue
        scores = {}
        for metric in selected:
            count = metric.count(outcomes) if metric.count else None
            if count is None:
                scores[metric.name] = Score(metric.function(outcomes))
            else:
                scores[metric.name] = Score(count.value, count.low, count.high, count.k, count.n)
        result.append(GroupScores(str(name), len(np.unique(outcomes.row)), scores))
    return tuple(result)
