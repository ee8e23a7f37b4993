"""What the figures show, as a few hundred numbers however many the predictions are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binom

from surefoot.metrics.calibration import binned_whole
from surefoot.metrics.proper import CLIP
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
    """Equal-mass bins, ties kept whole: how many decisions, their confidence, accuracy, its exact interval.

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
    fitted: tuple[float, float, float] | None  # T and the NLL of both sides there


@dataclass(frozen=True)
class ClassScores:
    """One true class: how many, how often wrong, how much too sure."""

    name: str
    n: int
    error: float
    overconfidence: float


def reliability(outcomes: Outcomes) -> Reliability:
    """The reliability diagram of all decisions (many labels: of all classes together)."""
    number, confidence, accuracy = binned_whole(outcomes.pooled_curve)
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
    """The risk-coverage curve at evenly spread knots, from none (the first run's risk) to full coverage."""
    curve = outcomes.pooled_curve
    knots = np.unique(np.searchsorted(curve.mass[1:], np.linspace(0, curve.total, CURVE_POINTS)[1:])) + 1
    risk = curve.errors[knots] / curve.mass[knots]
    coverage = np.append(0.0, curve.mass[knots] / curve.total)
    return RiskCoverage(_numbers(coverage), _numbers(np.append(risk[0], risk)))


def temperature_curve(
    familiar: Predictions, unfamiliar: Predictions, *, fitted: float | None = None
) -> TemperatureCurve:
    """The paper's curve: clipped NLL on both sides as the averaged logits are divided by T."""
    few = [some_rows(side).average() for side in (familiar, unfamiliar)]
    temperatures = TEMPERATURES
    if fitted is not None and not TEMPERATURES[0] <= fitted <= TEMPERATURES[-1]:
        start, end = (TEMPERATURES[-1], 1.5 * fitted) if fitted > 1 else (fitted / 1.5, TEMPERATURES[0])
        beyond = np.geomspace(float(start), float(end), 12).tolist()
        temperatures = tuple(sorted({*TEMPERATURES, *beyond}))

    curves = [nll_by_temperature(side, [*temperatures, fitted or 1.0]) for side in few]
    *values, last = zip(*curves, strict=True)
    return TemperatureCurve(
        temperature=tuple(temperatures),
        familiar=tuple(value[0] for value in values),
        unfamiliar=tuple(value[1] for value in values),
        rows=max(side.n for side in few),
        fitted=None if fitted is None else (fitted, *last),
    )


def nll_by_temperature(predictions: Predictions, temperatures: Sequence[float]) -> list[float]:
    """What the metric `nll` is as the averaged logits are divided by each T; only p(true) is worked out."""
    one = predictions.average()
    logits, labels = one.logits[0].double(), one.labels
    known = labels >= 0
    if not known.any():
        return [math.nan] * len(temperatures)
    if one.kind is LabelKind.ONE_LABEL:
        logits = logits[known]
        # The true logit less each other's: p(true) = 1 / sum exp(z - z_true).
        logits = logits - logits.gather(1, labels[known].unsqueeze(1))
        logs = [-torch.logsumexp(logits / t, dim=1) for t in temperatures]
    else:
        signed = torch.where(labels == 1, logits, -logits)[known]
        logs = [torch.nn.functional.logsigmoid(signed / t) for t in temperatures]
    low, high = np.log(CLIP)
    return [float(-log_p.clamp(low, high).mean()) for log_p in logs]


def class_scores(predictions: Predictions) -> list[ClassScores]:
    """Per true class (many labels: per class), the largest ones where there are many."""
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


def some_rows(predictions: Predictions) -> Predictions:
    """At most CURVE_ROWS of them, evenly spread."""
    stride = -(-predictions.n // CURVE_ROWS)
    return predictions if stride == 1 else predictions.take(slice(None, None, stride))


def _numbers(values: object) -> Numbers:
    return tuple(float(value) for value in np.asarray(values))
