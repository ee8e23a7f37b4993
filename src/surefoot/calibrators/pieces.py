"""Isotonic and histogram calibration: a curve for each class, given by points, as `one_vs_rest` describes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.calibrators.calibration import naming_classes, numbers_from
from surefoot.calibrators.one_vs_rest import OneVsRest, curve_count, curve_data, facts_of
from surefoot.errors import require_whole
from surefoot.predictions.outcomes import Array, Bools, Index
from surefoot.predictions.predictions import Predictions

BINS = 10
MOST_BINS = 1_000_000
CELLS = 1024  # of equal width between the first and the last point of a curve
FEW_POINTS = 16
MOST_IN_A_CELL = 32  # points; with more, values are searched for
SORTED_CELLS = 4096  # of equal width between the lowest and the highest score of an isotonic fit,
RANKED_CELLS = 512  # and of a histogram's,
# A forest's equal probabilities have log odds that differ in the last digits: in steps of so many in 1 of log
# odds they are equal. If they were not, a curve would be fitted to their order, which is by chance.
STEPS = {np.dtype(np.float32): 2.0**14, np.dtype(np.float64): 2.0**30}
MANY_ROWS = 2000  # if it has so many
TOUCHING = 1e-6  # rows; more than the rounding of a sum


@dataclass(frozen=True, kw_only=True)
class Pieces(OneVsRest):
    """Curves given by points, from log odds to probabilities, with straight lines in between."""

    scores: tuple[tuple[float, ...], ...]  # of each curve, not falling
    probabilities: tuple[tuple[float, ...], ...]

    @cached_property
    def _curves(self) -> "list[_Curve]":
        return [
            _Curve.of(np.array(x), np.array(y)) for x, y in zip(self.scores, self.probabilities, strict=True)
        ]

    def shares(self, log_odds: Array) -> Array:
        """The calibrated probability of each curve's class (curves, n), in the place of its log odds."""
        return self._transformed(log_odds, lambda shares: shares)

    def curve(self, log_odds: Array) -> Array:
        """Calibrated log odds (curves, n), in the place of those given."""
        return self._transformed(log_odds, _log_odds_of_shares)

    def log_probabilities(self, log_odds: Array) -> Array:
        """The logarithms of the calibrated probabilities (curves, n), in the place of the log odds."""
        return self._transformed(log_odds, lambda shares: np.log(shares, out=shares))

    def _transformed(self, log_odds: Array, of_shares: Callable[[Array], Array]) -> Array:
        """A function of the shares, which may be overwritten; of steps it is computed once for each step."""
        for curve, values in zip(self._curves, log_odds, strict=True):
            passed = passed_points(curve.points, values)
            if curve.is_steps:
                values[:] = of_shares(curve.heights.copy()).take(passed)
                continue
            values -= curve.starts.take(passed)
            values *= curve.slopes.take(passed)
            values += curve.heights.take(passed)
            of_shares(values)
        return log_odds

    def parameters(self) -> dict[str, list[float]]:
        """How many points each curve has."""
        return {"points": [float(len(points)) for points in self.scores]}

    def summary(self) -> str:
        """How many curves there are, and of how many points."""
        counts = sorted(map(len, self.scores))
        curves = "1 curve" if len(counts) == 1 else f"{len(counts):,} curves"
        points = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        return f"{curves} of {points} points"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        points = {
            name: [list(curve) for curve in getattr(self, name)] for name in ("scores", "probabilities")
        }
        return super().to_dict() | points

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """From plain values; scores do not fall, probabilities are above 0 and below 1."""
        facts = cls.facts(document)
        count = curve_count(facts["label_kind"], facts["classes"])
        lists = document["scores"], document["probabilities"]
        if not all(isinstance(each, list) and len(each) == count for each in lists):
            raise ValueError(f"scores and probabilities are not lists of {count} curves")
        scores = tuple(numbers_from(curve, "scores", len(curve)) for curve in lists[0])
        probabilities = tuple(
            numbers_from(curve, "probabilities", len(own))
            for curve, own in zip(lists[1], scores, strict=True)
        )
        for curve, values in zip(scores, probabilities, strict=True):
            if not curve or np.any(np.diff(curve) < 0):
                raise ValueError("scores fall, or a curve has none")
            if not all(0 < value < 1 for value in values):
                raise ValueError("probabilities are not all above 0 and below 1")
        return cls(**facts, scores=scores, probabilities=probabilities)


@dataclass(frozen=True, kw_only=True)
class IsotonicCalibration(Pieces):
    """The curve that never falls with the least squared error."""

    kind: ClassVar[str] = "isotonic"


@dataclass(frozen=True, kw_only=True)
class HistogramCalibration(Pieces):
    """The share of the class in each of some bins of equal numbers of rows."""

    kind: ClassVar[str] = "histogram"


OfPieces = TypeVar("OfPieces", bound=Pieces)


def _log_odds_of_shares(shares: Array) -> Array:
    """In place. Where log1p would be more exact than log(1 - share), log(share) is all that counts."""
    others = np.subtract(1, shares)
    np.log(others, out=others)
    np.log(shares, out=shares)
    shares -= others
    return shares


@dataclass(frozen=True, eq=False)
class _Curve:
    """Points, and for each number of points that a value has passed the line that it is on: numpy.interp."""

    points: Array
    starts: Array  # (points + 1,)
    heights: Array
    slopes: Array

    @staticmethod
    def of(scores: Array, probabilities: Array) -> "_Curve":
        """Of two points with the same score, the second is that of the score."""
        starts, heights = (np.concatenate([each[:1], each]) for each in (scores, probabilities))
        slopes = np.zeros(len(starts))
        spans, rises = scores[1:] - scores[:-1], probabilities[1:] - probabilities[:-1]
        np.divide(rises, spans, out=slopes[1:-1], where=spans >= np.finfo(np.float64).tiny)
        if not slopes.any():  # only the points at which the height changes matter
            steps = np.flatnonzero(heights[1:] != heights[:-1])
            kept = np.append(0, steps + 1)
            return _Curve(scores[steps], starts[kept], heights[kept], slopes[kept])
        return _Curve(scores, starts, heights, slopes)

    @cached_property
    def is_steps(self) -> bool:
        """Whether it is constant between points."""
        return not self.slopes.any()


def passed_points(points: Array, values: Array) -> NDArray[np.integer]:
    """As np.searchsorted(points, values, side="right"), in a fifth of its time.

    Few points are compared with every value. Of more, the cell of equal width that a value is in says which
    it has passed, but for those in the same one.

    >>> passed_points(np.array([0.0, 1.0, 1.0, 3.0]), np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0]))
    array([0, 1, 1, 3, 3, 4, 4], dtype=uint8)
    """
    if len(points) <= FEW_POINTS:
        count = np.zeros(len(values), dtype=np.uint8)
        for point in points:
            count += values >= point
        return count
    first, span = points[0], points[-1] - points[0]
    if len(values) >= CELLS and CELLS * 1e-300 < span < np.inf:

        def cells_of(numbers: Array) -> Index:
            places = numbers - first
            places *= CELLS / span
            np.clip(places, 0, CELLS, out=places)
            found: Index = places.astype(np.intp)
            return found  # rises with the numbers, however they are rounded

        in_cell = np.bincount(cells_of(points), minlength=CELLS + 1)
        most = int(in_cell.max())
        if most <= MOST_IN_A_CELL:
            passed: Index = (np.cumsum(in_cell) - in_cell).take(cells_of(values))
            following = np.append(points, np.inf)
            for _ in range(most):
                passed += following.take(passed) <= values
            return passed
    return np.searchsorted(points, values, side="right")


@naming_classes
def fit_isotonic_calibration(val: Predictions, *, weights: ArrayLike | None = None) -> IsotonicCalibration:
    """The non-decreasing step function with the least squared error. Zadrozny & Elkan, KDD 2002.

    Between its steps it is interpolated along the log odds. A probability is at least 1 / (n + 2) and at most
    1 - 1 / (n + 2): no number of rows shows that something is impossible.
    """

    def points_of_rows(score: Array, is_positive: Bools, steps: float) -> tuple[Array, Array]:
        return _isotonic_points(*_pooled(*_ordered_in_cells(score, is_positive), steps))

    return _fit_pieces(IsotonicCalibration, val, weights, _isotonic_points, points_of_rows)


def _isotonic_points(lows: Array, highs: Array, mass: Array, positives: Array) -> tuple[Array, Array]:
    from scipy.optimize import isotonic_regression  # slow to import

    fitted = isotonic_regression(positives / mass, weights=mass)
    first, last = fitted.blocks[:-1], fitted.blocks[1:] - 1
    scores = np.stack([lows[first], highs[last]], axis=1).ravel()
    different = np.append(True, scores[1:] > scores[:-1])  # a block of one score has one end
    return scores[different], np.repeat(fitted.x[first], 2)[different]


def _cells_with_steps(mass: Array, positives: Array) -> Bools:
    """Which cells can have a step of the isotonic curve of all rows, inside or at an end.

    The curve's integral is the largest convex function below the cumulative positives. With the rows of each
    cell pooled it is nowhere lower, so a step is where the cumulative positives may reach the pooled one: at
    an end of a cell, or inside, where they are lowest if its negatives come first. Between rows that are all
    positive, or all negative, there is none.
    """
    from scipy.optimize import isotonic_regression  # slow to import

    pooled = isotonic_regression(positives / mass, weights=mass).x
    above = np.cumsum(positives - pooled * mass)  # at the upper end of each cell
    gaps = np.append(0.0, above[:-1])  # at its lower end
    is_mixed = (positives > 0) & (positives < mass)
    result: Bools = is_mixed & (gaps <= pooled * (mass - positives) + TOUCHING)
    same = ~is_mixed[1:] & ~is_mixed[:-1] & ((positives[1:] > 0) == (positives[:-1] > 0))
    steps = (gaps[1:] <= TOUCHING) & ~same
    result[1:] |= steps
    result[:-1] |= steps
    return result


@naming_classes
def fit_histogram_calibration(
    val: Predictions, *, bins: int = BINS, weights: ArrayLike | None = None
) -> HistogramCalibration:
    """The share of the class in each of `bins` bins with equal numbers of rows. Zadrozny & Elkan, ICML 2001.

    Rows with the same logits are in the same bin. A probability is at least 1 / (n + 2), as for `isotonic`.
    """
    require_whole("bins", bins, 1, MOST_BINS)

    def points(lows: Array, highs: Array, mass: Array, positives: Array) -> tuple[Array, Array]:
        reached = np.cumsum(mass)
        last = np.searchsorted(reached, _limits(reached[-1], bins))
        starts = np.unique(np.append(0, last + 1))
        starts = starts[starts < len(lows)]
        shares = np.add.reduceat(positives, starts) / np.add.reduceat(mass, starts)
        edges = (lows[starts[1:]] + highs[starts[1:] - 1]) / 2
        return _steps(lows[0], edges, highs[-1], shares)

    @cache
    def ends_of_bins(rows: int) -> Index:
        """The ranks of the first row and of the last one of each bin."""
        last = np.unique(np.ceil(_limits(rows, bins)).astype(np.intp) - 1)
        return np.concatenate([[0], last[last < rows - 1], [rows - 1]])

    def points_of_rows(score: Array, is_positive: Bools, steps: float) -> tuple[Array, Array] | None:
        ranks = ends_of_bins(len(score))
        scores = order_statistics(score, np.concatenate([ranks, ranks[1:-1] + 1]))
        before, after = scores[1 : len(ranks) - 1], scores[len(ranks) :]
        if _are_tied(before, after, steps).any():  # a bin's end divides rows with the same score
            return None
        mass = ranks[1:] - ranks[:-1]
        mass[0] += 1
        shares = np.bincount(passed_points(after, score.compress(is_positive)), minlength=len(mass)) / mass
        return _steps(scores[0], (after + before) / 2, scores[len(ranks) - 1], shares)

    return _fit_pieces(HistogramCalibration, val, weights, points, points_of_rows)


def _limits(total: float, bins: int) -> Array:
    """The weight of all rows up to the end of each bin but the last."""
    return np.asarray(total * np.arange(1, bins) / bins * (1 - 1e-12))


def _steps(lowest: float, edges: Array, highest: float, shares: Array) -> tuple[Array, Array]:
    """The two ends of each bin."""
    return np.concatenate([[lowest], np.repeat(edges, 2), [highest]]), np.repeat(shares, 2)


def order_statistics(values: Array, ranks: Index) -> Array:
    """As np.sort(values)[ranks]; of many values, only those in the same cells of equal width are sorted.

    >>> order_statistics(np.array([3.0, 1.0, 2.0]), np.array([0, 2]))
    array([1., 3.])
    """
    if len(values) < MANY_ROWS:
        return np.asarray(np.sort(values)[ranks])
    cell = _cells(values, RANKED_CELLS)
    count = np.bincount(cell, minlength=RANKED_CELLS + 1)
    own = np.searchsorted(np.cumsum(count), ranks, side="right")
    is_sorted = np.zeros(len(count), dtype=bool)
    is_sorted[own] = True
    ordered = np.sort(values.compress(is_sorted.take(cell)))
    count[is_sorted] = 0
    return np.asarray(ordered[ranks - np.cumsum(count)[own]])


def _cells(values: Array, cells: int) -> Index:
    """The number of each value's cell, from 0 to `cells`: it never falls, however values are rounded."""
    low, high = values.min(), values.max()
    places = values - low
    places *= cells / max(float(high - low), 1e-300)
    np.minimum(places, cells, out=places)
    found: Index = places.astype(np.intp)
    return found


def _fit_pieces(
    kind: type[OfPieces],
    val: Predictions,
    weights: ArrayLike | None,
    points: Callable[[Array, Array, Array, Array], tuple[Array, Array]],
    points_of_rows: Callable[[Array, Bools, float], tuple[Array, Array] | None],
) -> OfPieces:
    """The points of each curve, from its different scores with their weight and that of their positives.

    A score is given by the lowest and the highest of its tied rows.

    `points_of_rows` are the same, from the scores of many rows in any order that all count 1; where it can
    not give them, they are computed as all others.
    """
    labelled, scores, positive, rows = curve_data(val, weights)
    steps = STEPS[labelled.logits.dtype]
    all_count_one = np.broadcast_to((rows == 1).all(axis=1), len(scores))
    every = zip(scores, positive, np.broadcast_to(rows, scores.shape), all_count_one, strict=True)
    curves = []
    for score, is_positive, weight, count_one in every:
        if not (count_one or weight.all()):
            known = weight > 0
            score, is_positive, weight = score[known], is_positive[known], weight[known]
            count_one = (weight == 1).all()
        if not len(score):  # no label of this class is known: the curve changes nothing it could know of
            curves.append((np.array([0.0]), np.array([0.5])))
            continue
        total = float(len(score) if count_one else weight.sum())
        found = None
        if len(score) >= MANY_ROWS and count_one:
            found = points_of_rows(score, is_positive, steps)
        if found is None:
            order = np.argsort(score)
            mass = weight[order]
            found = points(*_pooled(score[order], mass, mass * is_positive[order], steps))
        x, y = found
        least = max(1 / (total + 2), float(np.finfo(float).eps))  # so that 1 - least is not 1
        curves.append((x, np.clip(y, least, 1 - least)))
    return kind(
        scores=tuple(tuple(x.tolist()) for x, _ in curves),
        probabilities=tuple(tuple(y.tolist()) for _, y in curves),
        **facts_of(labelled, positive, rows),
    )


def _pooled(ordered: Array, mass: Array, positives: Array, steps: float) -> tuple[Array, Array, Array, Array]:
    """Rows with the same score as one; the lowest and the highest score of each, weights and positives."""
    tied = _are_tied(ordered[1:], ordered[:-1], steps)
    if not tied.any():
        return ordered, ordered, mass, positives
    firsts, lasts = np.flatnonzero(np.append(True, ~tied)), np.flatnonzero(np.append(~tied, True))
    weight, hits = (np.add.reduceat(each, firsts) for each in (mass, positives))
    return ordered[firsts], ordered[lasts], weight, hits


def _are_tied(scores: Array, others: Array, steps: float) -> Bools:
    result: Bools = np.rint(scores * steps) == np.rint(others * steps)
    return result


def _ordered_in_cells(score: Array, is_positive: Bools) -> tuple[Array, Array, Array]:
    """Scores from low to high with their rows and positives; where the curve has no step, rows are pooled.

    Only the rows in cells with steps, and in the first and the last one, are sorted. Pooled rows have the
    score NaN.
    """
    cell = _cells(score, SORTED_CELLS)
    rows = np.bincount(cell, minlength=SORTED_CELLS + 1)
    positives = np.bincount(cell.compress(is_positive), minlength=SORTED_CELLS + 1)
    filled = np.flatnonzero(rows)
    chosen = _cells_with_steps(rows[filled].astype(np.float64), positives[filled].astype(np.float64))
    chosen[[0, -1]] = True
    opened = filled[chosen]
    is_open = np.zeros(len(rows), dtype=bool)
    is_open[opened] = True
    single = np.flatnonzero(is_open.take(cell))
    single = single[np.argsort(score[single])]
    rows[opened] = positives[opened] = 0
    place = np.append(cell[single], SORTED_CELLS)
    # Before each single row, and after the last: the pooled rows of all cells in between.
    ordered, mass, hits = np.full(2 * len(single) + 1, np.nan), *np.ones((2, 2 * len(single) + 1))
    ordered[1::2], hits[1::2] = score[single], is_positive[single]
    for pooled, every in ((mass[::2], rows), (hits[::2], positives)):
        pooled[:] = np.cumsum(every).take(place)
        pooled[1:] -= pooled[:-1].copy()
    present = np.flatnonzero(mass)
    return ordered[present], mass[present], hits[present]
