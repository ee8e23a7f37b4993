"""The data of the curves of methods: means over runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.evaluation.comparison import TEST_SPLITS, MethodRun, MethodRuns, RunScore
from surefoot.evaluation.differences import mean_count
from surefoot.evaluation.scores import SIDES
from surefoot.metrics import e99_count, nll
from surefoot.plots.curves import (
    CURVE_ROWS,
    Numbers,
    TemperatureCurve,
    lowest_confidence,
    nll_by_temperature,
    risk_coverage,
    single_temperature,
    some_rows,
)
from surefoot.predictions.outcomes import Outcomes
from surefoot.predictions.predictions import Predictions

CONFIDENCE_EDGES = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)  # the last bin is what E99 counts
DOTS = tuple(np.arange(2.0, 6.01, 0.25).tolist())
CURVE_TEMPERATURES = (1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875, *DOTS)
BEYOND_USE = 3  # points of a curve that are worse on both sides than T = 1, so that its turn is visible
COVERAGES = np.linspace(0, 1, 101)  # of the mean over runs


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


def method_curve(runs: Sequence[MethodRun]) -> TemperatureCurve:
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
    calibrated = (math.nan, familiar, unfamiliar) if marks else None  # each run has its own T
    return TemperatureCurve(temperatures[:end], tuple(x[:end]), tuple(y[:end]), CURVE_ROWS, calibrated)


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
