"""The data of every curve: a few hundred numbers, however many predictions there are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.calibrators import Calibration
from surefoot.evaluation.comparison import TEST_SPLITS, MethodRun, MethodRuns
from surefoot.evaluation.scores import SIDES
from surefoot.intervals import Proportion, binomial_quantile, clopper_pearson
from surefoot.metrics import e99_count, nll
from surefoot.metrics.calibration import binned_whole
from surefoot.metrics.proper import CLIP
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Outcomes
from surefoot.predictions.predictions import Predictions

Numbers = tuple[float, ...]

HISTOGRAM_BINS = 25
CURVE_POINTS = 200
CURVE_ROWS = 20_000  # rows used for a temperature curve: each point of it reads them all
TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75, *np.arange(2.0, 8.01, 0.25).tolist())
CLASSES_SHOWN = 30

CONFIDENCE_EDGES = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)  # the last bin is what E99 counts
DOTS = tuple(np.arange(2.0, 6.01, 0.25).tolist())
CURVE_TEMPERATURES = (1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875, *DOTS)
BEYOND_USE = 3  # points of a curve that are worse on both sides than T = 1, so that its turn is visible
BAND_COVERAGES = np.linspace(0, 1, 101)


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
        band_low=_numbers(binomial_quantile(0.025, number, confidence) / number),
        band_high=_numbers(binomial_quantile(0.975, number, confidence) / number),
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


def nll_by_temperature(
    predictions: Predictions, temperatures: Sequence[float], *, clip: tuple[float, float] = CLIP
) -> list[float]:
    """The metric `nll` with the averaged logits divided by each T; only p(true) is computed."""
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
    low, high = (math.log(end) if end else -math.inf for end in clip)
    return [float(-log_p.clamp(low, high).mean()) for log_p in logs]


def class_scores(predictions: Predictions) -> list[ClassScores]:
    """Per true class (many labels: per class), the largest ones where there are many."""
    outcomes = predictions.outcomes
    names = predictions.class_names or tuple(f"class {index}" for index in range(predictions.classes))
    if predictions.kind is LabelKind.ONE_LABEL:
        true = predictions.labels.cpu().numpy()[outcomes.row]
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


@dataclass(frozen=True)
class ConfidenceBins:
    """Per bin of confidence (above `edges[i]`, up to `edges[i + 1]`): k wrong of n, with exact intervals."""

    edges: tuple[float, ...]
    errors: tuple[Proportion, ...]


@dataclass(frozen=True)
class MethodCurve:
    """NLL of both sides while T varies, at T = 1, and as calibrated on validation data where it was."""

    temperature: tuple[float, ...]
    familiar: tuple[float, ...]
    unfamiliar: tuple[float, ...]
    uncalibrated: tuple[float, float]
    calibrated: tuple[float, float] | None


def lowest_confidence(predictions: Predictions) -> float:
    """The lowest confidence that a prediction can have."""
    return 0.5 if predictions.kind is LabelKind.MANY_LABELS else 1 / predictions.classes


def confidence_bins(predictions: Predictions) -> ConfidenceBins:
    """The error rate by confidence, in bins that are narrow at high confidence."""
    lowest = lowest_confidence(predictions)
    edges = tuple(edge for edge in CONFIDENCE_EDGES if edge > lowest)
    start = max(edge for edge in CONFIDENCE_EDGES if edge <= lowest)
    outcomes = predictions.outcomes
    place = np.searchsorted(edges[:-1], outcomes.confidence, side="left")  # a bin includes its upper edge
    n = np.bincount(place, minlength=len(edges)).tolist()
    k = np.bincount(place[~outcomes.correct], minlength=len(edges)).tolist()
    errors = tuple(Proportion.of(wrong, count) for wrong, count in zip(k, n, strict=True))
    return ConfidenceBins((start, *edges), errors)


def e99_bars(methods: Sequence[MethodRuns]) -> dict[str, dict[str, Proportion]]:
    """E99 of each method's first run on each side, as k wrong of n above 0.99 confidence."""
    return {m.name: {side: e99_count(p) for side, p in m.runs[0].sides.items()} for m in methods}


def single_temperature(calibration: Calibration | None) -> float | None:
    """The T of a calibration that divides the averaged logits by one number; None for any other."""
    return None if calibration is None else calibration.single_temperature


def method_curve(run: MethodRun) -> MethodCurve:
    """The T-curve of a run's uncalibrated predictions, with the calibrated point.

    Where the calibration is not a single T, the point is that of the calibrated predictions, which may be
    off the curve (a T for each member, a T that depends on novelty).
    """
    fitted = single_temperature(run.calibration)
    temperatures = CURVE_TEMPERATURES
    first, last = temperatures[0], temperatures[-1]
    if fitted is not None and not first <= fitted <= last:  # extend the curve to the fitted T
        beyond: list[float] = np.geomspace(first if fitted < first else last, fitted, 8)[1:-1].tolist()
        temperatures = tuple(sorted({*CURVE_TEMPERATURES, *beyond, fitted}))
    few = [some_rows(run.before[split]) for split in TEST_SPLITS.values()]
    x, y = (nll_by_temperature(side, [*temperatures, 1.0 if fitted is None else fitted]) for side in few)
    calibrated = None
    if fitted is not None:
        calibrated = (x[-1], y[-1])
    elif run.calibration is not None:
        familiar, unfamiliar = (nll(some_rows(run.sides[side])) for side in SIDES)
        calibrated = (familiar, unfamiliar)
    one = temperatures.index(1.0)
    # The curve ends a little after the last T that is fitted, or no worse than T = 1 on either side: what
    # comes later is worse on both, and would make the rest of the figure small.
    good = [i for i, t in enumerate(temperatures) if x[i] <= x[one] or y[i] <= y[one] or t <= (fitted or 1.0)]
    end = min(len(temperatures), max(good, default=len(temperatures)) + 1 + BEYOND_USE)
    return MethodCurve(temperatures[:end], tuple(x[:end]), tuple(y[:end]), (x[one], y[one]), calibrated)


def risk_curve(outcomes: Outcomes) -> RiskCoverage:
    """The risk-coverage curve; without points where no label is known."""
    return risk_coverage(outcomes) if outcomes.total else RiskCoverage((), ())


def risk_band(runs: Sequence[Outcomes]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lowest and the highest risk of any run at each of BAND_COVERAGES."""
    curves = [risk_curve(outcomes) for outcomes in runs if outcomes.total]
    risks = np.asarray([np.interp(BAND_COVERAGES, curve.coverage, curve.risk) for curve in curves])
    return risks.min(axis=0), risks.max(axis=0)
