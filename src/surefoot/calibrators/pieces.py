"""Isotonic and histogram calibration: a curve for each class, given by points, as `one_vs_rest` describes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from surefoot.calibrators.calibration import require_numbers
from surefoot.calibrators.declaration import Calibrator, Option
from surefoot.calibrators.one_vs_rest import OneVsRest, curve_count, curve_data, curve_facts
from surefoot.calibrators.temperature import WEIGHTS
from surefoot.errors import InputError
from surefoot.predictions.outcomes import Array

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

BINS = Option("bins", int, 10, "number of bins", low=1, high=1_000_000)
# A forest's equal probabilities have log odds that differ in the last digits: in steps of so many in 1 of log
# odds they are equal. If they were not, a curve would be fitted to their order, which is by chance.
STEPS = {np.dtype(np.float32): 2.0**14, np.dtype(np.float64): 2.0**30}


@dataclass(frozen=True, kw_only=True)
class Pieces(OneVsRest):
    """Curves given by points, from log odds to probabilities, with straight lines in between."""

    scores: tuple[tuple[float, ...], ...]  # of each curve, not falling
    probabilities: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        count = curve_count(self.label_kind, self.classes)
        if (len(self.scores), len(self.probabilities)) != (count, count):
            raise InputError(f"scores and probabilities are not lists of {count} curves")
        for curve, values in zip(self.scores, self.probabilities, strict=True):
            require_numbers("scores", curve)
            require_numbers("probabilities", values, count=len(curve))
            if not curve or np.any(np.diff(curve) < 0):
                raise InputError("scores fall, or a curve has none")
            if not all(0 < value < 1 for value in values):
                raise InputError("probabilities are not all above 0 and below 1")

    @classmethod
    def of_points(
        cls,
        points: Callable[[Array, Array, Array, Array], tuple[Array, Array]],
        val: "Predictions",
        weights: ArrayLike | None,
    ) -> Self:
        """The points of each curve, from its different scores with their weight and that of their positives.

        A score is given by the lowest and the highest of its tied rows.
        """
        labelled, scores, positive, rows = curve_data(val, weights)
        steps = STEPS[labelled.logits.dtype]
        curves = []
        for score, is_positive, weight in zip(
            scores, positive, np.broadcast_to(rows, scores.shape), strict=True
        ):
            known = np.flatnonzero(weight)
            if not len(known):  # no label of this class is known: the curve changes nothing it could know of
                curves.append((np.array([0.0]), np.array([0.5])))
                continue
            order = known[np.argsort(score[known])]
            mass = weight[order]
            x, y = points(*_pooled(score[order], mass, mass * is_positive[order], steps))
            least = max(1 / (float(mass.sum()) + 2), float(np.finfo(float).eps))  # so that 1 - least is not 1
            curves.append((x, np.clip(y, least, 1 - least)))
        return cls(
            scores=tuple(tuple(x.tolist()) for x, _ in curves),
            probabilities=tuple(tuple(y.tolist()) for _, y in curves),
            **curve_facts(labelled, positive, rows),
        )

    def shares(self, log_odds: Array) -> Array:
        """The calibrated probability of each curve's class (curves, n), in the place of its log odds."""
        for x, y, values in zip(self.scores, self.probabilities, log_odds, strict=True):
            values[:] = np.interp(values, x, y)  # of two points with the same score, the second one counts
        return log_odds

    def curve(self, log_odds: Array) -> Array:
        """Calibrated log odds (curves, n), in the place of those given."""
        shares = self.shares(log_odds)
        others = np.subtract(1, shares)
        # Where log1p would be more exact than log(1 - share), log(share) is all that counts.
        return np.subtract(np.log(shares, out=shares), np.log(others, out=others), out=shares)

    def log_probabilities(self, log_odds: Array) -> Array:
        """The logarithms of the calibrated probabilities (curves, n), in the place of the log odds."""
        shares = self.shares(log_odds)
        return np.log(shares, out=shares)

    def parameters(self) -> dict[str, list[float]]:
        """How many points each curve has."""
        return {"points": [float(len(points)) for points in self.scores]}

    def summary(self) -> str:
        """How many curves there are, and of how many points."""
        counts = sorted(map(len, self.scores))
        curves = "1 curve" if len(counts) == 1 else f"{len(counts):,} curves"
        points = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        return f"{curves} of {points} points"


class IsotonicCalibration(Pieces):
    """The curve that never falls with the least squared error."""

    kind: ClassVar[str] = "isotonic"


class HistogramCalibration(Pieces):
    """The share of the class in each of some bins of equal numbers of rows."""

    kind: ClassVar[str] = "histogram"


def fit_isotonic_calibration(val: "Predictions", *, weights: ArrayLike | None = None) -> IsotonicCalibration:
    """The non-decreasing step function with the least squared error. Zadrozny & Elkan, KDD 2002.

    Between its steps it is interpolated along the log odds. A probability is at least 1 / (n + 2) and at most
    1 - 1 / (n + 2): no number of rows shows that something is impossible.
    """
    from scipy.optimize import isotonic_regression  # slow to import

    def points(lows: Array, highs: Array, mass: Array, positives: Array) -> tuple[Array, Array]:
        fitted = isotonic_regression(positives / mass, weights=mass)
        first, last = fitted.blocks[:-1], fitted.blocks[1:] - 1
        scores = np.stack([lows[first], highs[last]], axis=1).ravel()
        different = np.append(True, scores[1:] > scores[:-1])  # a block of one score has one end
        return scores[different], np.repeat(fitted.x[first], 2)[different]

    return IsotonicCalibration.of_points(points, val, weights)


def fit_histogram_calibration(
    val: "Predictions", *, bins: int = BINS.default, weights: ArrayLike | None = None
) -> HistogramCalibration:
    """The share of the class in each of `bins` bins with equal numbers of rows. Zadrozny & Elkan, ICML 2001.

    Rows with the same logits are in the same bin. A probability is at least 1 / (n + 2), as for `isotonic`.
    """
    BINS.check(bins)

    def points(lows: Array, highs: Array, mass: Array, positives: Array) -> tuple[Array, Array]:
        reached = np.cumsum(mass)
        last = np.searchsorted(reached, reached[-1] * np.arange(1, bins) / bins * (1 - 1e-12))
        starts = np.unique(np.append(0, last + 1))
        starts = starts[starts < len(lows)]
        shares = np.add.reduceat(positives, starts) / np.add.reduceat(mass, starts)
        edges = (lows[starts[1:]] + highs[starts[1:] - 1]) / 2
        return np.concatenate([lows[:1], np.repeat(edges, 2), highs[-1:]]), np.repeat(shares, 2)

    return HistogramCalibration.of_points(points, val, weights)


def _pooled(ordered: Array, mass: Array, positives: Array, steps: float) -> tuple[Array, Array, Array, Array]:
    """Rows with the same score as one; the lowest and the highest score of each, weights and positives."""
    places = np.rint(ordered * steps)
    tied = places[1:] == places[:-1]
    if not tied.any():
        return ordered, ordered, mass, positives
    firsts, lasts = np.flatnonzero(np.append(True, ~tied)), np.flatnonzero(np.append(~tied, True))
    weight, hits = (np.add.reduceat(each, firsts) for each in (mass, positives))
    return ordered[firsts], ordered[lasts], weight, hits


ISOTONIC = Calibrator(
    "isotonic", "Isotonic regression", "a non-decreasing curve of each class's p, divided by the sum",
    "Zadrozny & Elkan, KDD 2002", kind=IsotonicCalibration.kind, fit=fit_isotonic_calibration,
    read=IsotonicCalibration.from_dict, options=(WEIGHTS,)
)  # fmt: skip
HISTOGRAM = Calibrator(
    "histogram", "Histogram binning", "the share of each class in bins of equal mass, divided by the sum",
    "Zadrozny & Elkan, ICML 2001", kind=HistogramCalibration.kind, fit=fit_histogram_calibration,
    read=HistogramCalibration.from_dict, options=(BINS, WEIGHTS)
)  # fmt: skip
