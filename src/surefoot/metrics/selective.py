"""Errors by confidence: label error, E99, risk-coverage."""

from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np

from surefoot.errors import InputError
from surefoot.metrics.intervals import NAN, Proportion
from surefoot.metrics.metric import Accumulated, Cells, OfCurve, Range, curve_mean, curves_mean
from surefoot.predictions.arguments import checked
from surefoot.predictions.logits import spans
from surefoot.predictions.outcomes import (
    SURE,
    Array,
    Curve,
    HasOutcomes,
    Ranked,
    is_above,
    is_wrong_above,
    wrong,
)

LARGEST_TABLE = 2**22
STEPS_AT_ONCE = 2**16  # of a curve, so that what is computed of them stays in the cache
FIRST_HARMONICS = np.append(0.0, np.cumsum(1 / np.arange(1, 32)))


@checked
def label_error(predictions: HasOutcomes) -> float:
    """1 - accuracy; for many labels 1 - mean average precision.

    Among equal logits the first class is the predicted one.
    """
    outcomes = predictions.outcomes
    if outcomes.score is None:
        return outcomes.mean_of(wrong)
    return 1 - mean_average_precision(outcomes)


@checked
def label_error_count(predictions: HasOutcomes) -> Proportion | None:
    """Wrong labels of all labels; average precision is not a count, so many labels have none."""
    outcomes = predictions.outcomes
    if outcomes.score is not None:
        return None
    return Proportion.of(int((~outcomes.correct).sum()), len(outcomes.row))


@checked
def mean_average_precision(predictions: HasOutcomes) -> float:
    """Mean over classes of the interpolated average precision of PASCAL VOC (2010 and later).

    AP = sum over recall steps of (r_i - r_(i-1)) * max precision at recall >= r_i. Ignored labels are
    dropped, and a class without a positive has no AP and is left out. Everingham et al., IJCV 2010.
    """
    outcomes = predictions.outcomes
    if outcomes.positive is None:
        raise InputError(
            "the predictions have one label per row; needed: many labels, for a mean average precision"
        )
    return 1 - curves_mean(outcomes.score_curves, precision_error_of)


def precision_error_of(curve: Curve) -> Array:
    """1 - the average precision of one class, whose errors are those without it; NaN if none has it."""
    found = curve.mass - curve.errors
    precision = found[..., 1:] / np.maximum(curve.mass[..., 1:], 1)
    best_from_here_on = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    with np.errstate(invalid="ignore"):
        return np.asarray(1 - (np.diff(found) * best_from_here_on).sum(axis=-1) / found[..., -1])


def streamed_precision_error(accumulated: Accumulated) -> tuple[float, Range]:
    """1 - mean average precision of a stream: the middle of what it can be."""
    low, high = accumulated.mean_average_precision_range()
    return 1 - (low + high) / 2, (1 - high, 1 - low)


@checked
def error_above(predictions: HasOutcomes, threshold: float) -> float:
    """Error rate among decisions with confidence > threshold; NaN where there are none."""
    outcomes = predictions.outcomes
    parts = partial(is_above, threshold=threshold), partial(is_wrong_above, threshold=threshold)
    total, wrong_above = outcomes.sums_of(*parts)
    return wrong_above / total if total else NAN


@checked
def error_above_count(predictions: HasOutcomes, threshold: float) -> Proportion:
    """The same as k wrong of n above, with the exact binomial interval."""
    above = is_above(predictions.outcomes, threshold)
    return Proportion.of(int(is_wrong_above(predictions.outcomes, threshold).sum()), int(above.sum()))


@checked
def e99(predictions: HasOutcomes) -> float:
    """Error rate among decisions with confidence > 0.99; below 0.01 for a calibrated model."""
    return error_above(predictions, SURE)


@checked
def e99_count(predictions: HasOutcomes) -> Proportion:
    """E99 as k wrong of n above, with the exact binomial interval.

    >>> from surefoot import Predictions
    >>> e99_count(Predictions.from_probs([[0.999, 0.001], [0.6, 0.4]], [1, 0])).k
    1
    """
    return error_above_count(predictions, SURE)


@checked
def aurc(predictions: Ranked) -> float:
    """Area under the risk-coverage curve: (1 / n) * sum over i of (errors among the i most confident) / i.

    Geifman & El-Yaniv, NeurIPS 2017. A run of ties counts as the mean over the orders it could be in.
    """
    return curve_mean(predictions.outcomes, aurc_of, pooled=True)


def aurc_of(curve: Curve) -> Array:
    """The area under the risk-coverage curve."""
    harmonic = partial(_harmonics, float(curve.total.max(initial=0)))
    area, last = np.zeros(curve.total.shape), harmonic(curve.total)[..., None]
    for start, end, more in _error_steps(curve):
        before, after = harmonic(start), harmonic(end)
        # An error in place i counts in 1/i + ... + 1/n = H(n) - H(i - 1); H(i - 1) of a run sums to the rest.
        size = np.maximum(end - start, 1.0)
        area += (more * (last - after) + more - more / size * start * (after - before)).sum(axis=-1)
    return np.asarray(area / curve.total)


def _error_steps(curve: Curve) -> Iterator[tuple[Array, Array, Array]]:
    """Where errors are added: the mass before and after each step, and how many; some steps at a time."""
    for part in spans(curve.mass.shape[-1] - 1, STEPS_AT_ONCE):
        more = np.diff(curve.errors[..., part.start : part.stop + 1])
        some = np.flatnonzero(more.any(axis=tuple(range(more.ndim - 1))))
        place = part.start + some
        yield curve.mass[..., place], curve.mass[..., place + 1], more[..., some]


def _harmonics(most: float, mass: Array) -> Array:
    """H(m) for each m of whole numbers up to `most`; from a table that resamples share."""
    if most >= LARGEST_TABLE:
        return _harmonic(mass)
    return np.asarray(_harmonic_table(int(most).bit_length())[np.rint(mass).astype(np.int64)])


@lru_cache(maxsize=2)
def _harmonic_table(bits: int) -> Array:
    parts = spans(2**bits, STEPS_AT_ONCE)
    return np.concatenate([_harmonic(np.arange(part.start, part.stop, dtype=np.float64)) for part in parts])


def _harmonic(mass: Array) -> Array:
    """H(m) = 1 + 1/2 + ... + 1/m for each m; of a large m by Euler and Maclaurin, to the last digit."""
    large = np.maximum(mass, len(FIRST_HARMONICS))
    square = np.square(1 / large)
    rest = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    result = np.log(large) + np.euler_gamma + 0.5 / large - rest
    first = FIRST_HARMONICS[np.minimum(mass, len(FIRST_HARMONICS) - 1).astype(np.int64)]
    return np.where(mass < len(FIRST_HARMONICS), first, result)


@checked
def augrc(predictions: Ranked) -> float:
    """Area under the generalised risk-coverage curve: the chance that a decision is wrong and accepted.

    The integral over coverage of (errors accepted) / n. Traub et al., NeurIPS 2024.
    """
    return curve_mean(predictions.outcomes, augrc_of, pooled=True)


def augrc_of(curve: Curve) -> Array:
    """The area under the generalised risk-coverage curve."""
    # Of each error, the coverage without it.
    rejected = sum((more * (start + end)).sum(axis=-1) / 2 for start, end, more in _error_steps(curve))
    return np.asarray((curve.total * curve.total_errors - rejected) / curve.total**2)


@checked
def risk_at_coverage(predictions: Ranked, coverage: float) -> float:
    """Error rate among the ceil(coverage * n) most confident decisions."""
    return curve_mean(predictions.outcomes, partial(risk_of, coverage=coverage), pooled=True)


def risk_of(curve: Curve, coverage: float) -> Array:
    """The error rate at a coverage."""
    accepted = np.ceil(coverage * curve.total - 1e-9)[..., None]
    return (curve.errors_at(accepted) / accepted)[..., 0]


def risk_at_coverage_count(predictions: Ranked, coverage: float) -> Proportion | None:
    """The same as k wrong of n accepted; None where a run of ties is cut, as k is then an expectation."""
    curve = predictions.outcomes.pooled_curve
    accepted = int(np.ceil(coverage * curve.total - 1e-9))
    errors = float(curve.errors_at(np.array(accepted)))
    return Proportion.of(round(errors), accepted) if abs(errors - round(errors)) < 1e-9 else None


@checked
def coverage_at_risk(predictions: Ranked, risk: float) -> float:
    """The largest share that a confidence threshold can accept with an error rate of at most `risk`."""
    return curve_mean(predictions.outcomes, partial(coverage_of, risk=risk), pooled=True)


def coverage_of(curve: Curve, risk: float) -> Array:
    """The largest coverage at a risk."""
    accepted = np.where(curve.errors <= risk * curve.mass + 1e-12, curve.mass, 0.0)
    return np.asarray(accepted.max(axis=-1) / curve.total)


@checked
def risk_at_80(predictions: Ranked) -> float:
    """Error rate among the most confident 80%."""
    return risk_at_coverage(predictions, 0.8)


@checked
def risk_at_90(predictions: Ranked) -> float:
    """Error rate among the most confident 90%."""
    return risk_at_coverage(predictions, 0.9)


@checked
def coverage_at_1(predictions: Ranked) -> float:
    """The share that can be accepted at an error rate of 1%."""
    return coverage_at_risk(predictions, 0.01)


@checked
def coverage_at_5(predictions: Ranked) -> float:
    """The share that can be accepted at an error rate of 5%."""
    return coverage_at_risk(predictions, 0.05)


def grows_with_errors(cells: Cells, curve: OfCurve) -> Range:
    """The range, from cells, of a metric that only grows with the errors among the most confident."""
    return float(curve(cells.wrong_last())), float(curve(cells.wrong_first()))


def coverage_range(cells: Cells, _curve: OfCurve, *, risk: float) -> Range:
    """The least and the largest coverage that a threshold can reach at this risk, from cells."""
    known = cells.curve
    ends = known.mass[known.errors <= risk * known.mass + 1e-12]
    before, errors = known.mass[:-1], known.errors[:-1]
    right = np.where(cells.mixed, cells.count - cells.wrong, 0.0)
    spare = risk * (before + right) - errors + 1e-12
    wrong = np.clip(np.floor(spare / (1 - risk)), 0, cells.wrong)
    best = np.where(cells.mixed & (spare >= 0), before + right + wrong, 0.0)
    return float(ends.max() / known.total), float(max(ends.max(), best.max()) / known.total)
