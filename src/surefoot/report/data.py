"""What the figures show, as a few hundred numbers however many the predictions are."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from surefoot.metrics import nll
from surefoot.metrics.calibration import binned
from surefoot.outcomes import Outcomes
from surefoot.predictions import LabelKind, Predictions
from surefoot.statistics import clopper_pearson

Numbers = tuple[float, ...]

HISTOGRAM_BINS = 25
CURVE_POINTS = 200
CURVE_ROWS = 20_000  # rows read for the temperature curve: it is a picture, and each point is a reading
TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75, *np.arange(2.0, 8.01, 0.25).tolist())
CLASSES_SHOWN = 30


@dataclass(frozen=True)
class Reliability:
    """Ten equal-mass bins: how many decisions, their confidence, their accuracy with its exact interval.

    `band_low` and `band_high` hold the middle 95% of accuracies that a calibrated model would show.
    """

    number: Numbers
    confidence: Numbers
    accuracy: Numbers
    low: Numbers
    high: Numbers
    band_low: Numbers
    band_high: Numbers


@dataclass(frozen=True)
class Histogram:
    """Share of decisions per equal-width bin of confidence."""

    edges: Numbers
    share: Numbers


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the most confident share, read where a confidence threshold can stop."""

    coverage: Numbers
    risk: Numbers


@dataclass(frozen=True)
class TemperatureCurve:
    """NLL of both sides while T varies."""

    temperature: Numbers
    familiar: Numbers
    unfamiliar: Numbers
    rows: int  # the most rows read of a side


@dataclass(frozen=True)
class ClassScores:
    """One true class: how many, how often wrong, how much too sure."""

    name: str
    n: int
    error: float
    overconfidence: float


def reliability(outcomes: Outcomes) -> Reliability:
    """The reliability diagram of all decisions (many labels: of all classes together)."""
    number, confidence, accuracy = binned(outcomes.pooled_curve)
    kept = number > 0
    number, confidence, accuracy = number[kept], confidence[kept], accuracy[kept]
    ends = [clopper_pearson(round(a * n), int(n)) for a, n in zip(accuracy, number, strict=True)]
    return Reliability(
        number=_numbers(number),
        confidence=_numbers(confidence),
        accuracy=_numbers(accuracy),
        low=tuple(low for low, _ in ends),
        high=tuple(high for _, high in ends),
        band_low=_numbers(binom.ppf(0.025, number, confidence) / number),
        band_high=_numbers(binom.ppf(0.975, number, confidence) / number),
    )


def histogram(outcomes: Outcomes, lowest: float) -> Histogram:
    """Confidences from the lowest that is possible (1 / classes) to 1."""
    edges = np.linspace(lowest, 1, HISTOGRAM_BINS + 1)
    counts, _ = np.histogram(np.clip(outcomes.confidence, lowest, 1), edges)
    return Histogram(_numbers(edges), _numbers(counts / max(1, counts.sum())))


def risk_coverage(outcomes: Outcomes) -> RiskCoverage:
    """The risk-coverage curve at evenly spread knots; the last is always full coverage."""
    curve = outcomes.pooled_curve
    knots = np.unique(np.searchsorted(curve.mass[1:], np.linspace(0, curve.total, CURVE_POINTS)[1:])) + 1
    mass, errors = curve.mass[knots], curve.errors[knots]
    return RiskCoverage(_numbers(mass / curve.total), _numbers(errors / mass))


def temperature_curve(familiar: Predictions, unfamiliar: Predictions) -> TemperatureCurve:
    """The paper's curve: clipped NLL on both sides as the averaged logits are divided by T."""
    few = [_some(side).average() for side in (familiar, unfamiliar)]
    values = [[nll(side.with_logits(side.logits / t)) for t in TEMPERATURES] for side in few]
    return TemperatureCurve(
        tuple(TEMPERATURES), tuple(values[0]), tuple(values[1]), max(side.n for side in few)
    )


def class_scores(predictions: Predictions) -> list[ClassScores]:
    """Per true class, the largest classes first where there are many."""
    outcomes = predictions.outcomes
    names = predictions.class_names or tuple(f"class {index}" for index in range(predictions.classes))
    if predictions.kind is LabelKind.ONE_LABEL:
        true = predictions.labels.numpy()[outcomes.row]
    else:
        true = np.repeat(
            np.arange(predictions.classes), [block.stop - block.start for block in outcomes.blocks]
        )
    n = np.bincount(true, minlength=predictions.classes)
    right = np.bincount(true, outcomes.correct, minlength=predictions.classes)
    sure = np.bincount(true, outcomes.confidence, minlength=predictions.classes)
    shown = sorted(np.argsort(-n, kind="stable")[:CLASSES_SHOWN].tolist())
    return [
        ClassScores(names[i], int(n[i]), float(1 - right[i] / n[i]), float((sure[i] - right[i]) / n[i]))
        for i in shown
        if n[i]
    ]


def _some(predictions: Predictions) -> Predictions:
    stride = -(-predictions.n // CURVE_ROWS)
    return predictions if stride == 1 else predictions.take(slice(None, None, stride))


def _numbers(values: object) -> Numbers:
    return tuple(float(value) for value in np.asarray(values))
