"""Errors where the model is sure."""

import numpy as np

from surefoot.outcomes import Judged
from surefoot.statistics import NAN, Proportion


def error_above(predictions: Judged, threshold: float) -> float:
    """Error rate among decisions with confidence > threshold; NaN where there are none."""
    outcomes = predictions.outcomes
    sure = outcomes.confidence > threshold
    weight = sure if outcomes.weight is None else sure * outcomes.weight
    total = float(weight.sum())
    return float((weight * ~outcomes.correct).sum()) / total if total else NAN


def error_above_count(predictions: Judged, threshold: float) -> Proportion:
    """The same as k wrong of n sure, with the exact binomial interval."""
    outcomes = predictions.outcomes
    sure = outcomes.confidence > threshold
    return Proportion.of(int(np.sum(sure & ~outcomes.correct)), int(sure.sum()))


def e99(predictions: Judged) -> float:
    """Error rate among decisions with confidence > 0.99; below 0.01 for a calibrated model."""
    return error_above(predictions, 0.99)


def e99_count(predictions: Judged) -> Proportion:
    """E99 as k wrong of n sure, with the exact binomial interval.

    >>> from surefoot import Predictions
    >>> e99_count(Predictions.from_probs([[0.999, 0.001], [0.6, 0.4]], [1, 0])).k
    1
    """
    return error_above_count(predictions, 0.99)
