"""The data of every curve: a few hundred numbers, however many predictions there are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.calibrators import Calibration
from surefoot.calibrators.search import row_derivatives
from surefoot.metrics.calibration import binned_whole
from surefoot.metrics.intervals import binomial_quantile, clopper_pearson
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import CLIP, Curve, Outcomes, Ranking
from surefoot.predictions.predictions import Predictions

Numbers = tuple[float, ...]

HISTOGRAM_BINS = 25
CURVE_POINTS = 200
CURVE_ROWS = 20_000  # rows used for a temperature curve: each point of it reads them all
TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75, *np.arange(2.0, 8.01, 0.25).tolist())
CLASSES_SHOWN = 30

LEAST_COVERAGE = 0.05  # that decides the height of a figure


@dataclass(frozen=True)
class Reliability:
    """Equal-mass bins, ties not split: how many decisions, their confidence, accuracy, its exact interval.

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
    """Error rate among the most confident share, at every confidence that can be a threshold."""

    coverage: Numbers
    risk: Numbers


@dataclass(frozen=True)
class TemperatureCurve:
    """NLL of both sides while T varies."""

    temperature: Numbers
    familiar: Numbers
    unfamiliar: Numbers
    rows: int  # used, of the larger side
    fitted: tuple[float, float, float] | None  # T and the NLL of both sides there

    @property
    def uncalibrated(self) -> tuple[float, float]:
        """The NLL of both sides at T = 1."""
        one = self.temperature.index(1.0)
        return self.familiar[one], self.unfamiliar[one]

    @property
    def calibrated(self) -> tuple[float, float] | None:
        """The NLL of both sides at the fitted T."""
        return None if self.fitted is None else self.fitted[1:]


@dataclass(frozen=True)
class ClassScores:
    """One true class: how many, how often wrong, how overconfident."""

    name: str
    n: int
    error: float
    overconfidence: float


def reliability(*runs: Outcomes) -> Reliability:
    """The reliability diagram of all decisions (many labels: of all classes together).

    Of several runs: in bins of all their decisions, each counted as one run's share, because runs share
    their images.
    """
    bins = np.stack(binned_whole(_curve_of_runs(runs)))
    number, confidence, accuracy = bins[:, bins[0] > 0]
    whole = np.maximum(1.0, number.round())
    ends = [clopper_pearson(round(a * n), int(n)) for a, n in zip(accuracy, whole, strict=True)]
    return Reliability(
        number=_numbers(number),
        confidence=_numbers(confidence),
        accuracy=_numbers(accuracy),
        low=tuple(low for low, _ in ends),
        high=tuple(high for _, high in ends),
        band_low=_numbers(binomial_quantile(0.025, whole, confidence) / whole),
        band_high=_numbers(binomial_quantile(0.975, whole, confidence) / whole),
    )


def _curve_of_runs(runs: Sequence[Outcomes]) -> Curve:
    """All decisions of some runs as one curve, with the total of one of them."""
    if len(runs) == 1:
        return runs[0].pooled_curve
    confidence = np.concatenate([outcomes.confidence for outcomes in runs])
    wrong = np.concatenate([~outcomes.correct for outcomes in runs])
    ranking = Ranking.of(confidence)
    sums = (np.ones(len(wrong)), wrong.astype(np.float64), confidence)
    return Curve(*(np.append(0.0, ranking.accumulate(values)) / len(runs) for values in sums))


def histogram(lowest: float, *runs: Outcomes) -> Histogram:
    """Confidences from the lowest that is possible (1 / classes) to 1."""
    edges = np.linspace(lowest, 1, HISTOGRAM_BINS + 1)
    confidence = np.concatenate([each.confidence for each in runs])
    counts, _ = np.histogram(np.clip(confidence, lowest, 1), edges)
    return Histogram(_numbers(edges), _numbers(counts / max(1, counts.sum())))


def risk_coverage(curve: Curve) -> RiskCoverage:
    """The risk-coverage curve at evenly spread knots, from none (the first run's risk) to full coverage."""
    if not curve.total:
        return RiskCoverage((), ())
    knots = np.unique(np.searchsorted(curve.mass[1:], np.linspace(0, curve.total, CURVE_POINTS)[1:])) + 1
    risk = curve.errors[knots] / curve.mass[knots]
    coverage = np.append(0.0, curve.mass[knots] / curve.total)
    return RiskCoverage(_numbers(coverage), _numbers(np.append(risk[0], risk)))


def highest_risk(coverage: Sequence[float], risk: Sequence[float]) -> float:
    """The highest of a curve, except at very low coverage, where it is of a few predictions."""
    return max((y for x, y in zip(coverage, risk, strict=True) if x >= LEAST_COVERAGE), default=0.0)


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


def nll_by_temperature(
    predictions: Predictions, temperatures: Sequence[float], *, clip: tuple[float, float] = CLIP
) -> list[float]:
    """The metric `nll` with the averaged logits divided by each T; only p(true) is computed."""
    low, high = (-math.log(end) if end else math.inf for end in clip)
    known = predictions.labels >= 0
    if not known.any():
        return [math.nan] * len(temperatures)
    if predictions.kind is LabelKind.MANY_LABELS:
        logits = predictions.average().logits[0]
        towards_truth = np.where(predictions.labels == 1, logits, -logits)[known].astype(np.float64)
        rows = [np.logaddexp(0, -towards_truth / t) for t in temperatures]
    else:
        labelled = predictions if known.all() else predictions.take(known)
        rows = [row_derivatives(labelled, 1 / t, 0)[0] for t in temperatures]
    return [float(each.clip(high, low).mean()) for each in rows]


def class_scores(predictions: Predictions) -> list[ClassScores]:
    """Per true class (many labels: per class), the largest ones where there are many."""
    outcomes = predictions.outcomes
    names = predictions.class_names or tuple(f"class {index}" for index in range(predictions.classes))
    if predictions.kind is LabelKind.ONE_LABEL:
        true = predictions.labels[outcomes.row]
    else:
        true = np.repeat(
            np.arange(predictions.classes), [block.stop - block.start for block in outcomes.blocks]
        )
    n = np.bincount(true, minlength=predictions.classes)
    right = np.bincount(true, outcomes.correct, minlength=predictions.classes)
    confidence = np.bincount(true, outcomes.confidence, minlength=predictions.classes)
    largest = sorted(np.argsort(-n, kind="stable")[:CLASSES_SHOWN].tolist())
    return [
        ClassScores(names[i], int(n[i]), float(1 - right[i] / n[i]), float((confidence[i] - right[i]) / n[i]))
        for i in largest
        if n[i]
    ]


def some_rows(predictions: Predictions) -> Predictions:
    """At most CURVE_ROWS of the rows, evenly spaced."""
    stride = -(-predictions.n // CURVE_ROWS)
    return predictions if stride == 1 else predictions.take(slice(None, None, stride))


def _numbers(values: object) -> Numbers:
    return tuple(float(value) for value in np.asarray(values))


def lowest_confidence(predictions: Predictions) -> float:
    """The lowest confidence that a prediction can have."""
    return 0.5 if predictions.kind is LabelKind.MANY_LABELS else 1 / predictions.classes


def single_temperature(calibration: Calibration | None) -> float | None:
    """The T of a calibration that divides the averaged logits by one number; None for any other."""
    return None if calibration is None else calibration.single_temperature
