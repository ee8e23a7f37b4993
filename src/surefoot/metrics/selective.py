"""Selective prediction: answer the most confident, leave the rest; ties count with their run's mean."""

import numpy as np
from scipy.special import digamma

from surefoot.outcomes import Array, Ranked
from surefoot.statistics import NAN, Proportion


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
