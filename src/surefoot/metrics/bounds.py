"""Between what a metric must lie if decisions are only known by their cells of confidence.

Each function takes the cells of a block and the metric's function of a curve. The proofs are in
docs/streaming.md.
"""

from itertools import pairwise

import numpy as np

from surefoot.metrics.calibration import bin_edges
from surefoot.metrics.metric import ONE, Cells, OfCurve, Range
from surefoot.predictions.outcomes import Array


def grows_with_errors(cells: Cells, curve: OfCurve) -> Range:
    """Of a metric that only grows with the errors among the most confident."""
    return curve(cells.wrong_last()), curve(cells.wrong_first())


def ece_range(cells: Cells, _curve: OfCurve) -> Range:
    """The least and the largest ECE that decisions in these cells can have."""
    total = float(cells.count.sum())
    low, high = _residual_range(cells, bin_edges(total))
    return _least_variation(low, high) / total, min(1.0, _largest_variation(low, high) / total)


def coverage_range(cells: Cells, _curve: OfCurve, *, risk: float) -> Range:
    """The least and the largest coverage that a threshold can reach at this risk."""
    known = cells.curve()
    ends = known.mass[known.errors <= risk * known.mass + 1e-12]
    before, errors = known.mass[:-1], known.errors[:-1]
    right = np.where(cells.mixed, cells.count - cells.wrong, 0.0)
    spare = risk * (before + right) - errors + 1e-12
    wrong = np.clip(np.floor(spare / (1 - risk)), 0, cells.wrong)
    best = np.where(cells.mixed & (spare >= 0), before + right + wrong, 0.0)
    return float(ends.max() / known.total), float(max(ends.max(), best.max()) / known.total)


def known_at_bin_edges(cells: Cells, curve: OfCurve) -> Range:
    """Of a metric that reads where bins end only: its value unless an edge is within a mixed cell."""
    known = cells.curve()
    edges = bin_edges(known.total)
    cell = np.searchsorted(known.mass, edges, side="left")
    inside = known.mass[np.minimum(cell, len(known.mass) - 1)] != edges
    value = np.nan if cells.mixed[cell[inside] - 1].any() else curve(known)
    return value, value


def _residual_range(cells: Cells, edges: Array) -> tuple[Array, Array]:
    """Confidence less correctness, summed over the most confident up to each edge: least and largest."""
    curve = cells.curve()
    cell = np.clip(np.searchsorted(curve.mass, edges, side="left") - 1, 0, len(cells.count) - 1)
    taken = edges - curve.mass[cell]
    count, wrong, confidence = cells.count[cell], cells.wrong[cell], cells.confidence[cell]
    left = count - taken
    top = 1 - cells.start[cell] / ONE
    bottom = 1 - (cells.start[cell] + cells.width[cell] - 1) / ONE
    mean_errors, mean_confidence = wrong * taken / count, confidence * taken / count
    cut = cells.mixed[cell] & (taken > 0) & (left > 0)
    fewest = np.where(cut, np.maximum(0.0, taken - (count - wrong)), mean_errors)
    most = np.where(cut, np.minimum(taken, wrong), mean_errors)
    largest = np.where(cut, np.minimum(taken * top, confidence - left * bottom), mean_confidence)
    base = curve.confidence[cell] + curve.errors[cell] - edges
    return base + fewest + mean_confidence, base + most + np.maximum(largest, mean_confidence)


def _largest_variation(low: Array, high: Array) -> float:
    """The largest sum of |x_(i+1) - x_i| with each x_i between its ends: convex, so at the ends."""
    ends = np.stack([low, high], axis=1)
    best = np.zeros(2)
    for here, there in pairwise(ends):
        best = (best[:, None] + np.abs(there[None, :] - here[:, None])).max(axis=0)
    return float(best.max())


def _least_variation(low: Array, high: Array) -> float:
    """The least such sum: stay as long as the next interval allows it, then go to its nearer end."""
    total, left, right = 0.0, float(low[0]), float(high[0])
    for bottom, top in zip(low[1:].tolist(), high[1:].tolist(), strict=True):
        if bottom > right:
            total, left, right = total + bottom - right, bottom, bottom
        elif top < left:
            total, left, right = total + left - top, top, top
        else:
            left, right = max(left, bottom), min(right, top)
    return total
