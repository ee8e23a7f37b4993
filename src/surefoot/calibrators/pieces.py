"""Isotonic and histogram calibration: a curve for each class, given by points, as `one_vs_rest` describes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from surefoot.calibrators.calibration import numbers_from
from surefoot.calibrators.one_vs_rest import OneVsRest, OneVsRestModule, curve_count, curve_data, facts_of
from surefoot.errors import require_whole
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Array, Bools, Index
from surefoot.predictions.predictions import Predictions

BINS = 10
MOST_BINS = 1_000_000
CELLS = 1024  # of equal width between the first and the last point of a curve
MOST_IN_A_CELL = 32  # points; with more, values are searched for
SORTED_CELLS = 4096  # of equal width between the lowest and the highest score of a fit,
MANY_ROWS = 2000  # if it has so many
TOUCHING = 1e-6  # rows; more than the rounding of a sum


@dataclass(frozen=True, kw_only=True)
class Pieces(OneVsRest):
    """Curves given by points, from log odds to probabilities, with straight lines in between."""

    scores: tuple[tuple[float, ...], ...]  # of each curve, not falling
    probabilities: tuple[tuple[float, ...], ...]

    def module(self, dtype: torch.dtype = torch.float32) -> "PiecesModule":
        """As a torch module of logits (n, classes)."""
        return PiecesModule(self.scores, self.probabilities, self.label_kind, self.classes, dtype)

    @cached_property
    def _curves(self) -> "list[_Curve]":
        return [
            _Curve.of(np.array(x), np.array(y)) for x, y in zip(self.scores, self.probabilities, strict=True)
        ]

    def shares(self, log_odds: Array) -> Array:
        """The calibrated probability of each curve's class (curves, n), in the place of its log odds."""
        for curve, values in zip(self._curves, log_odds, strict=True):
            curve.interpolate(values)
        return log_odds

    def curve(self, log_odds: Array) -> Array:
        """Calibrated log odds (curves, n), in the place of those given."""
        shares = self.shares(log_odds)
        others = np.log1p(-shares)
        np.log(shares, out=shares)
        shares -= others
        return shares

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


@dataclass(frozen=True, eq=False)
class _Curve:
    """Points, and for each number of points that a value has passed the line that it is on."""

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
        return _Curve(scores, starts, heights, slopes)

    def interpolate(self, values: Array) -> None:
        """As numpy.interp, in place."""
        passed = passed_points(self.points, values)
        if self.slopes.any():
            values -= self.starts.take(passed)
            values *= self.slopes.take(passed)
            values += self.heights.take(passed)
        else:
            values[:] = self.heights.take(passed)


def passed_points(points: Array, values: Array) -> Index:
    """As np.searchsorted(points, values, side="right"), in a fifth of its time.

    The cell of equal width that a value is in says which points it has passed, but for those in the same one.

    >>> passed_points(np.array([0.0, 1.0, 1.0, 3.0]), np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0]))
    array([0, 1, 1, 3, 3, 4, 4])
    """
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


class PiecesModule(OneVsRestModule):
    """Curves of points; each curve is filled up with its last point to the same length."""

    scores: Tensor
    probabilities: Tensor

    def __init__(
        self,
        scores: tuple[tuple[float, ...], ...],
        probabilities: tuple[tuple[float, ...], ...],
        kind: LabelKind,
        classes: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(kind, classes)
        most = max(2, *map(len, scores))
        for name, curves in (("scores", scores), ("probabilities", probabilities)):
            filled = [list(curve) + [curve[-1]] * (most - len(curve)) for curve in curves]
            self.register_buffer(name, torch.tensor(filled, dtype=dtype))

    def shares(self, log_odds: Tensor) -> Tensor:
        """The calibrated probability of each curve's class (curves, n)."""
        return _interpolated(log_odds, self.scores.to(log_odds), self.probabilities.to(log_odds))

    def curve(self, log_odds: Tensor) -> Tensor:
        shares = self.shares(log_odds)
        return torch.log(shares) - torch.log1p(-shares)

    def log_probabilities(self, log_odds: Tensor) -> Tensor:
        return torch.log(self.shares(log_odds))


def _interpolated(values: Tensor, scores: Tensor, probabilities: Tensor) -> Tensor:
    """As numpy.interp, curve by curve; of two points with the same score, the second is that of the score."""
    if torch.compiler.is_compiling():
        # Comparisons instead of a search, which ONNX does not have.
        counts = [(row.unsqueeze(1) >= own).sum(dim=1) for row, own in zip(values, scores, strict=True)]
        passed = torch.stack(counts)
    else:
        passed = torch.searchsorted(scores, values, right=True)
    left = (passed - 1).clamp(min=0)
    spans, rises = scores.diff(dim=1), probabilities.diff(dim=1)
    is_step = spans < torch.finfo(spans.dtype).tiny
    slopes = F.pad(torch.where(is_step, 0, rises / torch.where(is_step, 1, spans)), (0, 1))
    beyond = (values - scores.gather(1, left)).clamp(min=0)
    return probabilities.gather(1, left) + beyond * slopes.gather(1, left)


def fit_isotonic_calibration(val: Predictions, *, weights: ArrayLike | None = None) -> IsotonicCalibration:
    """The non-decreasing step function with the least squared error. Zadrozny & Elkan, KDD 2002.

    Between its steps it is interpolated along the log odds. A probability is at least 1 / (n + 2) and at most
    1 - 1 / (n + 2): no number of rows shows that something is impossible.
    """
    return _fit_pieces(IsotonicCalibration, val, weights, _isotonic_points, _cells_with_steps)


def _isotonic_points(scores: Array, mass: Array, positives: Array) -> tuple[Array, Array]:
    from scipy.optimize import isotonic_regression  # slow to import

    fitted = isotonic_regression(positives / mass, weights=mass)
    ends = np.stack([fitted.blocks[:-1], fitted.blocks[1:] - 1], axis=1).ravel()
    ends = ends[np.diff(ends, prepend=-1) > 0]  # a block of one score has one end
    return scores[ends], fitted.x[ends]


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


def fit_histogram_calibration(
    val: Predictions, *, bins: int = BINS, weights: ArrayLike | None = None
) -> HistogramCalibration:
    """The share of the class in each of `bins` bins with equal numbers of rows. Zadrozny & Elkan, ICML 2001.

    Rows with the same logits are in the same bin. A probability is at least 1 / (n + 2), as for `isotonic`.
    """
    require_whole("bins", bins, 1, MOST_BINS)

    def last_places(mass: Array) -> Index:
        """Of each bin but the last."""
        reached = np.cumsum(mass)
        limits = reached[-1] * np.arange(1, bins) / bins
        places: Index = np.searchsorted(reached, limits * (1 - 1e-12))
        return places

    def points(scores: Array, mass: Array, positives: Array) -> tuple[Array, Array]:
        starts = np.unique(np.append(0, last_places(mass) + 1))
        starts = starts[starts < len(scores)]
        shares = np.add.reduceat(positives, starts) / np.add.reduceat(mass, starts)
        edges = (scores[starts[1:]] + scores[starts[1:] - 1]) / 2
        return np.concatenate([scores[:1], np.repeat(edges, 2), scores[-1:]]), np.repeat(shares, 2)

    def cells_with_edges(mass: Array, _positives: Array) -> Bools:
        result = np.zeros(len(mass), dtype=bool)
        places = last_places(mass)
        result[places] = result[np.minimum(places + 1, len(mass) - 1)] = True
        return result

    return _fit_pieces(HistogramCalibration, val, weights, points, cells_with_edges)


def _fit_pieces(
    kind: type[OfPieces],
    val: Predictions,
    weights: ArrayLike | None,
    points: Callable[[Array, Array, Array], tuple[Array, Array]],
    cells: Callable[[Array, Array], Bools],
) -> OfPieces:
    """The points of each curve, from its different scores with their weight and that of its positives.

    Of many rows with the same weight, it is enough to know the scores in `cells` that points may be in.
    """
    labelled, scores, positive, rows = curve_data(val, weights)
    curves = []
    for score, is_positive, weight in zip(scores, positive, np.broadcast_to(rows, scores.shape), strict=True):
        if not weight.all():
            known = weight > 0
            score, is_positive, weight = score[known], is_positive[known], weight[known]
        if not len(score):  # no label of this class is known: the curve changes nothing it could know of
            curves.append((np.array([0.0]), np.array([0.5])))
            continue
        total = float(weight.sum())
        if len(score) >= MANY_ROWS and total == len(score) and (weight == 1).all():
            ordered, mass, positives = _ordered_in_cells(score, is_positive, cells)
        else:
            order = np.argsort(score)
            ordered, mass = score[order], weight[order]
            positives = mass * is_positive[order]
        if (ordered[1:] == ordered[:-1]).any():  # rows with the same score are one
            firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
            ordered, mass, positives = (
                ordered[firsts],
                *(np.add.reduceat(each, firsts) for each in (mass, positives)),
            )
        x, y = points(ordered, mass, positives)
        least = 1 / (total + 2)
        curves.append((x, np.clip(y, least, 1 - least)))
    return kind(
        scores=tuple(tuple(x.tolist()) for x, _ in curves),
        probabilities=tuple(tuple(y.tolist()) for _, y in curves),
        **facts_of(labelled, positive, rows),
    )


def _ordered_in_cells(
    score: Array, is_positive: Bools, cells: Callable[[Array, Array], Bools]
) -> tuple[Array, Array, Array]:
    """Scores from low to high with their rows and positives; but for those in `cells`, rows are pooled.

    Only the rows in `cells`, and in the first and the last one, are sorted. Pooled rows have the score NaN.
    """
    low, high = score.min(), score.max()
    places = score - low
    places *= SORTED_CELLS / max(float(high - low), 1e-300)
    np.minimum(places, SORTED_CELLS, out=places)
    cell = places.astype(np.intp)
    rows = np.bincount(cell, minlength=SORTED_CELLS + 1)
    positives = np.bincount(cell[is_positive], minlength=SORTED_CELLS + 1)
    filled = np.flatnonzero(rows)
    chosen = cells(rows[filled].astype(np.float64), positives[filled].astype(np.float64))
    chosen[[0, -1]] = True
    is_open = np.zeros(len(rows), dtype=bool)
    is_open[filled[chosen]] = True
    single = np.flatnonzero(is_open.take(cell))
    single = single[np.argsort(score[single])]
    # Before each single row, and after the last: the pooled rows of all cells in between.
    slot = (np.cumsum(rows * is_open) - rows * is_open)[~is_open]
    ordered, mass, hits = np.full(2 * len(single) + 1, np.nan), *np.ones((2, 2 * len(single) + 1))
    ordered[1::2], hits[1::2] = score[single], is_positive[single]
    mass[::2] = np.bincount(slot, rows[~is_open], len(single) + 1)
    hits[::2] = np.bincount(slot, positives[~is_open], len(single) + 1)
    present = np.flatnonzero(mass)
    return ordered[present], mass[present], hits[present]
