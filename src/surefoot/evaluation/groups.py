"""Some metrics of each group by itself, for all groups at once."""

from collections.abc import Sequence

import numpy as np

from surefoot.evaluation.bootstrap import mean_of_defined
from surefoot.evaluation.scores import GROUP_METRICS, GroupScores, Score
from surefoot.metrics import Metric
from surefoot.metrics.intervals import NAN, Proportion
from surefoot.predictions.outcomes import Array, Bools, Curve, Index, Outcomes
from surefoot.predictions.predictions import Predictions

AT_ONCE = 2**18  # decisions whose curves are computed together


def group_scores(predictions: Predictions, metrics: Sequence[Metric]) -> tuple[GroupScores, ...]:
    """The scores of the groups that have a label; proportions with their exact intervals."""
    if predictions.groups is None:
        return ()
    names, group_of = np.unique(predictions.groups, return_inverse=True)
    outcomes = predictions.outcomes
    n = np.bincount(group_of[np.bincount(outcomes.row, minlength=predictions.n) > 0], minlength=len(names))
    chosen = [m.of_kind(outcomes.kind) for m in metrics if m.name in GROUP_METRICS]
    chosen = [metric for metric in chosen if metric.numerator or metric.curve]
    columns = [_scores(metric, outcomes, group_of[outcomes.row], len(names)) for metric in chosen]
    rows: list[tuple[Score, ...]] = list(zip(*columns, strict=True)) or [()] * len(names)
    metric_names = [metric.name for metric in chosen]
    return tuple(
        GroupScores(str(name), of_group, dict(zip(metric_names, row, strict=True)))
        for name, of_group, row in zip(names.tolist(), n.tolist(), rows, strict=True)
        if of_group
    )


def _scores(metric: Metric, outcomes: Outcomes, group: Index, groups: int) -> list[Score]:
    """A metric's score in every group; `group` is that of each decision."""
    if metric.numerator is None:
        return [Score(value) for value in _on_curves(metric, outcomes, group, groups).tolist()]
    above = np.bincount(group, metric.numerator(outcomes), groups)
    below = np.bincount(group, metric.denominator and metric.denominator(outcomes), groups)
    if metric.count is None:
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: there are no such decisions
            return [Score(value) for value in metric.transform.values(above / below).tolist()]
    pairs = list(zip(above.astype(int).tolist(), below.astype(int).tolist(), strict=True))
    exact = {pair: Proportion.of(*pair) for pair in set(pairs)}
    scores = {pair: Score(p.value, p.low, p.high, p.k, p.n) for pair, p in exact.items()}
    return [scores[pair] for pair in pairs]


def _on_curves(metric: Metric, outcomes: Outcomes, group: Index, groups: int) -> Array:
    """A metric of ranked decisions in every group: of all its decisions, or the mean over its blocks."""
    assert metric.curve is not None
    score, right = outcomes.confidence, outcomes.correct
    if metric.by_score:
        assert outcomes.score is not None
        assert outcomes.positive is not None
        score, right = outcomes.score, outcomes.positive
    blocks = 1 if metric.pooled else len(outcomes.blocks)
    curve_of = group * blocks
    for number, block in enumerate(outcomes.blocks if blocks > 1 else ()):
        curve_of[block] += number
    order = np.lexsort((-score, curve_of))
    size = np.bincount(curve_of, minlength=groups * blocks)
    start, values = np.cumsum(size) - size, np.full(groups * blocks, NAN)
    by_size = np.argsort(size, kind="stable")  # so that curves of about one length are together
    first = int(np.count_nonzero(size == 0))
    while first < len(size):
        most = max(1, AT_ONCE // int(size[by_size[first]]))
        chosen = by_size[first : first + most]
        chosen = chosen[size[chosen] <= 2 * size[chosen[0]]]
        first += len(chosen)
        place = np.minimum(np.arange(size[chosen[-1]]), size[chosen, None] - 1)
        decisions = order[start[chosen, None] + place]
        with np.errstate(invalid="ignore", divide="ignore"):
            values[chosen] = metric.curve(
                _curves(score, outcomes.confidence, ~right, decisions, size[chosen])
            )
    return metric.transform.values(mean_of_defined(values.reshape(groups, blocks), axis=1))


def _curves(score: Array, confidence: Array, wrong: Bools, decisions: Index, size: Index) -> Curve:
    """A curve for each row of decisions, which are ranked; after so many the last one is repeated.

    Within a run of ties, and after the last decision, a knot is the same as that at the end of the run.
    """
    counted = np.arange(decisions.shape[1]) < size[:, None]
    ranked = score[decisions]
    last = np.full(decisions.shape, decisions.shape[1] - 1)
    last[:, :-1] = np.where(ranked[:, 1:] != ranked[:, :-1], np.arange(decisions.shape[1] - 1), last[:, 1:])
    end = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]

    def summed(values: Array | Bools) -> Array:
        running = np.cumsum(values * counted, axis=1, dtype=np.float64)
        return np.pad(np.take_along_axis(running, end, axis=1), ((0, 0), (1, 0)))

    return Curve(summed(counted), summed(wrong[decisions]), summed(confidence[decisions]))
