"""How often the predicted label is wrong."""

import numpy as np

from surefoot.outcomes import Array, Judged, Outcomes, Ranking
from surefoot.statistics import NAN, Proportion


def label_error(predictions: Judged) -> float:
    """1 - accuracy; for many labels 1 - mean average precision.

    Among equal logits the first class is the predicted one.
    """
    outcomes = predictions.outcomes
    if outcomes.score is None:
        return outcomes.mean(~outcomes.correct)
    return 1 - mean_average_precision(outcomes)


def label_error_count(predictions: Judged) -> Proportion | None:
    """Wrong labels of all labels; average precision is not a count, so many labels have none."""
    outcomes = predictions.outcomes
    if outcomes.score is not None:
        return None
    return Proportion.of(int((~outcomes.correct).sum()), len(outcomes.row))


def mean_average_precision(predictions: Judged) -> float:
    """Mean over classes of the interpolated average precision of PASCAL VOC (2010 and later).

    AP = sum over recall steps of (r_i - r_(i-1)) * max precision at recall >= r_i. Ignored labels are
    dropped, and a class without a positive has no AP and is left out. Everingham et al., IJCV 2010.
    """
    outcomes = predictions.outcomes
    precisions = _average_precisions(outcomes)
    return float(np.nanmean(precisions)) if np.isfinite(precisions).any() else NAN


def _average_precisions(outcomes: Outcomes) -> Array:
    assert outcomes.positive is not None
    weight = np.ones(len(outcomes.row)) if outcomes.weight is None else outcomes.weight
    found = weight * outcomes.positive
    blocks = zip(outcomes.blocks, outcomes.score_rankings, strict=True)
    return np.array([_average_precision(found[block], weight[block], ranking) for block, ranking in blocks])


def _average_precision(found: Array, weight: Array, ranking: Ranking) -> float:
    true_positives = ranking.accumulate(found)
    if not len(true_positives) or not true_positives[-1]:
        return NAN
    seen = ranking.accumulate(weight)
    precision = true_positives / np.maximum(seen, 1)
    best_from_here_on = np.maximum.accumulate(precision[::-1])[::-1]
    recall_steps = np.diff(true_positives, prepend=0) / true_positives[-1]
    return float(recall_steps @ best_from_here_on)
