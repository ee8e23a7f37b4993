"""The data of every curve: a few hundred numbers, however many predictions there are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.calibrators import Calibration
from surefoot.evaluation.comparison import TEST_SPLITS, MethodRun, MethodRuns, RunScore
from surefoot.evaluation.differences import mean_count
from surefoot.evaluation.scores import SIDES
from surefoot.intervals import binomial_quantile, clopper_pearson
from surefoot.metrics import e99_count, nll
from surefoot.metrics.calibration import binned_whole
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import CLIP, Curve, Outcomes, Ranking
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
LEAST_COVERAGE = 0.05  # that decides the height of a figure
COVERAGES = np.linspace(0, 1, 101)  # of the mean over runs


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
    one = predictions.average()
    logits, labels = one.logits[0].astype(np.float64), one.labels
    known = labels >= 0
    if not known.any():
        return [math.nan] * len(temperatures)
    if one.kind is LabelKind.ONE_LABEL:
        # The true logit less each other's: p(true) = 1 / sum exp(z - z_true).
        apart = logits[known] - logits[known, labels[known]][:, None]
        top = apart.max(axis=1)
        below = apart - top[:, None]
        logs = [-np.log(np.exp(below / t).sum(axis=1)) - top / t for t in temperatures]
    else:
        signed = np.where(labels == 1, logits, -logits)[known]
        logs = [-np.logaddexp(0, -signed / t) for t in temperatures]
    low, high = (math.log(end) if end else -math.inf for end in clip)
    return [float(-log_p.clip(low, high).mean()) for log_p in logs]


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


@dataclass(frozen=True)
class MeanError:
    """An error rate in the mean over runs, with the exact interval of the mean counts; k and n of all runs.

    Runs share their images, so counts of several runs are no larger sample.
    """

    value: float
    low: float
    high: float
    k: int
    n: int

    @staticmethod
    def of(counts: Sequence[tuple[int, int]]) -> "MeanError":
        """From k of n in each run; runs without any are left out."""
        defined = [RunScore(0, k / n, k, n) for k, n in counts if n]
        if not defined:
            return MeanError(math.nan, math.nan, math.nan, 0, 0)
        value = float(np.mean([score.value for score in defined]))
        mean = mean_count(defined)
        low, high = (0.0, 1.0) if mean is None else (mean.low, mean.high)
        k, n = (sum(each[place] for each in counts) for place in (0, 1))
        return MeanError(value, min(low, value), max(high, value), k, n)


@dataclass(frozen=True)
class ConfidenceBins:
    """Per bin of confidence (above `edges[i]`, up to `edges[i + 1]`): the error rate, over runs."""

    edges: tuple[float, ...]
    errors: tuple[MeanError, ...]
    runs: int


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


def confidence_bins(runs: Sequence[Predictions]) -> ConfidenceBins:
    """The error rate by confidence, in bins that are narrow at high confidence."""
    lowest = lowest_confidence(runs[0])
    edges = tuple(edge for edge in CONFIDENCE_EDGES if edge > lowest)
    start = max(edge for edge in CONFIDENCE_EDGES if edge <= lowest)
    counts = []
    for outcomes in (run.outcomes for run in runs):
        place = np.searchsorted(edges[:-1], outcomes.confidence, side="left")  # a bin includes its upper edge
        n = np.bincount(place, minlength=len(edges)).tolist()
        k = np.bincount(place[~outcomes.correct], minlength=len(edges)).tolist()
        counts.append(list(zip(k, n, strict=True)))
    errors = tuple(MeanError.of(of_bin) for of_bin in zip(*counts, strict=True))
    return ConfidenceBins((start, *edges), errors, len(runs))


def e99_bars(methods: Sequence[MethodRuns]) -> dict[str, dict[str, MeanError]]:
    """E99 of each method on each side."""
    counts = {m.name: {side: [e99_count(p) for p in runs_on(m, side)] for side in SIDES} for m in methods}
    return {
        name: {
            side: MeanError.of([(each.k, each.n) for each in of_side]) for side, of_side in of_method.items()
        }
        for name, of_method in counts.items()
    }


def runs_on(method: MethodRuns, side: str) -> list[Predictions]:
    """The predictions of every run that was tested on a side."""
    return [run.sides[side] for run in method.runs if side in run.sides]


def single_temperature(calibration: Calibration | None) -> float | None:
    """The T of a calibration that divides the averaged logits by one number; None for any other."""
    return None if calibration is None else calibration.single_temperature


def method_curve(runs: Sequence[MethodRun]) -> MethodCurve:
    """The T-curve of the uncalibrated predictions, with the calibrated point; in the mean over runs.

    Where the calibration is not a single T, the point is that of the calibrated predictions, which may be
    off the curve (a T for each member, a T that depends on novelty).
    """
    fitted = [t for t in (single_temperature(run.calibration) for run in runs) if t is not None]
    temperatures = CURVE_TEMPERATURES
    first, last = temperatures[0], temperatures[-1]
    for end, reached in ((first, min(fitted, default=first)), (last, max(fitted, default=last))):
        if not first <= reached <= last:  # extend the curve to the fitted T
            beyond: list[float] = np.geomspace(end, reached, 8)[1:-1].tolist()
            temperatures = tuple(sorted({*temperatures, *beyond, reached}))
    every = [_run_curve(run, temperatures) for run in runs]
    x, y = np.mean([curve for curve, _ in every], axis=0).tolist()
    marks = [mark for _, mark in every if mark is not None]
    familiar, unfamiliar = np.mean(marks, axis=0).tolist() if marks else (math.nan, math.nan)
    one = temperatures.index(1.0)
    # The curve ends a little after the last T that is fitted, or no worse than T = 1 on either side: what
    # comes later is worse on both, and would make the rest of the figure small.
    needed = max(fitted, default=1.0)
    good = [i for i, t in enumerate(temperatures) if x[i] <= x[one] or y[i] <= y[one] or t <= needed]
    end = min(len(temperatures), max(good, default=len(temperatures)) + 1 + BEYOND_USE)
    calibrated = (familiar, unfamiliar) if marks else None
    return MethodCurve(temperatures[:end], tuple(x[:end]), tuple(y[:end]), (x[one], y[one]), calibrated)


def _run_curve(run: MethodRun, temperatures: Numbers) -> tuple[list[list[float]], tuple[float, ...] | None]:
    """The NLL of both sides at each T; and as calibrated, if the run is."""
    fitted = single_temperature(run.calibration)
    few = [some_rows(run.before[split]) for split in TEST_SPLITS.values()]
    *curve, at_fitted = zip(
        *(nll_by_temperature(side, [*temperatures, 1.0 if fitted is None else fitted]) for side in few),
        strict=True,
    )
    x_y = [list(values) for values in zip(*curve, strict=True)]
    if fitted is not None:
        return x_y, at_fitted
    if run.calibration is None:
        return x_y, None
    return x_y, tuple(nll(some_rows(run.sides[side])) for side in SIDES)


def risk_curves(runs: Sequence[Outcomes]) -> NDArray[np.float64]:
    """(runs, coverages): the risk of each run at each of COVERAGES; of those with a known label."""
    curves = [risk_coverage(outcomes.pooled_curve) for outcomes in runs if outcomes.total]
    return np.asarray([np.interp(COVERAGES, curve.coverage, curve.risk) for curve in curves])
