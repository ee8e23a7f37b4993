"""Errors by confidence: label error, E99, risk-coverage."""

import numpy as np

from surefoot.intervals import NAN, Proportion
from surefoot.predictions.outcomes import Array, HasOutcomes, Outcomes, Ranked, Ranking


def label_error(predictions: HasOutcomes) -> float:
    """1 - accuracy; for many labels 1 - mean average precision.

    Among equal logits the first class is the predicted one.
    """
    outcomes = predictions.outcomes
    if outcomes.score is None:
        return outcomes.mean(~outcomes.correct)
    return 1 - mean_average_precision(outcomes)


def label_error_count(predictions: HasOutcomes) -> Proportion | None:
    """Wrong labels of all labels; average precision is not a count, so many labels have none."""
    outcomes = predictions.outcomes
    if outcomes.score is not None:
        return None
    return Proportion.of(int((~outcomes.correct).sum()), len(outcomes.row))


def mean_average_precision(predictions: HasOutcomes) -> float:
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


def error_above(predictions: HasOutcomes, threshold: float) -> float:
    """Error rate among decisions with confidence > threshold; NaN where there are none."""
    outcomes = predictions.outcomes
    sure = outcomes.confidence > threshold
    weight = sure if outcomes.weight is None else sure * outcomes.weight
    total = float(weight.sum())
    return float((weight * ~outcomes.correct).sum()) / total if total else NAN


def error_above_count(predictions: HasOutcomes, threshold: float) -> Proportion:
    """The same as k wrong of n sure, with the exact binomial interval."""
    outcomes = predictions.outcomes
    sure = outcomes.confidence > threshold
    return Proportion.of(int(np.sum(sure & ~outcomes.correct)), int(sure.sum()))


def e99(predictions: HasOutcomes) -> float:
    """Error rate among decisions with confidence > 0.99; below 0.01 for a calibrated model."""
    return error_above(predictions, 0.99)


def e99_count(predictions: HasOutcomes) -> Proportion:
    """E99 as k wrong of n sure, with the exact binomial interval.

    >>> from surefoot import Predictions
    >>> e99_count(Predictions.from_probs([[0.999, 0.001], [0.6, 0.4]], [1, 0])).k
    1
    """
    return error_above_count(predictions, 0.99)


def aurc(predictions: Ranked) -> float:
    """Area under the risk-coverage curve: (1 / n) * sum over i of (errors among the i most confident) / i.

    Geifman & El-Yaniv, NeurIPS 2017. A run of ties counts as the mean over the orders it could be in.
    """
    curve = predictions.outcomes.pooled_curve
    if not curve.total:
        return NAN
    mass, errors = curve.mass, curve.errors
    steps = np.diff(mass)
    inside = steps > 0
    slope = np.divide(np.diff(errors), steps, out=np.zeros_like(steps), where=inside)
    # Within a run errors(i) = e0 + slope * (i - i0), so errors(i) / i sums to a harmonic and a plain part.
    area = (errors[:-1] - slope * mass[:-1]) * np.diff(_harmonic(mass)) + slope * steps
    return float(area[inside].sum() / curve.total)


def _harmonic(mass: Array) -> Array:
    """1 + 1/2 + ... + 1/m for each m: from a table, or by digamma where it would be far longer."""
    total = int(mass[-1])
    if total > 4 * len(mass):
        from scipy.special import digamma

        return np.asarray(digamma(mass + 1) + np.euler_gamma)
    return np.append(0.0, np.cumsum(1 / np.arange(1, total + 1)))[mass.astype(np.int64)]


def augrc(predictions: Ranked) -> float:
    """Area under the generalised risk-coverage curve: the chance that a random answer is wrong and kept.

    The integral over coverage of (errors kept) / n. Traub et al., NeurIPS 2024.
    """
    curve = predictions.outcomes.pooled_curve
    return float(np.trapezoid(curve.errors, curve.mass) / curve.total**2) if curve.total else NAN


def risk_at_coverage(predictions: Ranked, coverage: float) -> float:
    """Error rate among the ceil(coverage * n) most confident decisions."""
    curve = predictions.outcomes.pooled_curve
    if not curve.total:
        return NAN
    kept = np.ceil(coverage * curve.total - 1e-9)
    return float(np.interp(kept, curve.mass, curve.errors) / kept)


def risk_at_coverage_count(predictions: Ranked, coverage: float) -> Proportion | None:
    """The same as k wrong of n kept; None where a run of ties is cut, as k is then an expectation."""
    curve = predictions.outcomes.pooled_curve
    kept = int(np.ceil(coverage * curve.total - 1e-9))
    errors = float(np.interp(kept, curve.mass, curve.errors))
    return Proportion.of(round(errors), kept) if abs(errors - round(errors)) < 1e-9 else None


def coverage_at_risk(predictions: Ranked, risk: float) -> float:
    """The largest share that a confidence threshold can answer with an error rate of at most `risk`."""
    curve = predictions.outcomes.pooled_curve
    if not curve.total:
        return NAN
    reached = curve.errors <= risk * curve.mass + 1e-12
    return float(curve.mass[reached].max() / curve.total)


def risk_at_80(predictions: Ranked) -> float:
    """Error rate among the most confident 80%."""
    return risk_at_coverage(predictions, 0.8)


def risk_at_90(predictions: Ranked) -> float:
    """Error rate among the most confident 90%."""
    return risk_at_coverage(predictions, 0.9)


def coverage_at_1(predictions: Ranked) -> float:
    """The share that can be answered at an error rate of 1%."""
    return coverage_at_risk(predictions, 0.01)


def coverage_at_5(predictions: Ranked) -> float:
    """The share that can be answered at an error rate of 5%."""
    return coverage_at_risk(predictions, 0.05)
