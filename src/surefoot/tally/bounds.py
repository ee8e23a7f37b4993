"""How far a number read from cells can be from the number read from all decisions: proven, not estimated.

Running sums are exact where a cell ends. At a cut within a cell of n decisions, e of them wrong, the a most
confident hold between max(0, a - (n - e)) and min(a, e) errors, and their confidences lie between the
cell's mean and its ends. What is monotone in the errors (AURC, AUGRC, risk at a coverage) is so between its
values with each cell's errors all first and all last; the ECE is a total variation over nine such cuts,
whose largest and least value in a box are found exactly.
"""

from itertools import pairwise

import numpy as np

from surefoot.metrics.calibration import bin_edges
from surefoot.outcomes import Array
from surefoot.tally.cells import ONE, Column


def ece_range(column: Column) -> tuple[float, float]:
    """The least and the largest ECE that decisions in these cells can have."""
    curve = column.curve()
    edges = bin_edges(curve.total)
    low, high = _residual_range(column, edges)
    largest = _largest_variation(low, high) / curve.total
    return _least_variation(low, high) / curve.total, min(1.0, largest)


def coverage_range(column: Column, risk: float) -> tuple[float, float]:
    """The least and the largest coverage that a threshold can reach at this risk."""
    curve = column.curve()
    ends = curve.mass[curve.errors <= risk * curve.mass + 1e-12]
    before, errors = curve.mass[:-1], curve.errors[:-1]
    right = np.where(column.mixed, column.count - column.wrong, 0.0)
    spare = risk * (before + right) - errors + 1e-12
    wrong = np.clip(np.floor(spare / (1 - risk)), 0, column.wrong)
    best = np.where(column.mixed & (spare >= 0), before + right + wrong, 0.0)
    return float(ends.max() / curve.total), float(max(ends.max(), best.max()) / curve.total)


def _residual_range(column: Column, edges: Array) -> tuple[Array, Array]:
    """Confidence less correctness, summed over the most confident up to each edge: least and largest."""
    curve = column.curve()
    cell = np.clip(np.searchsorted(curve.mass, edges, side="left") - 1, 0, len(column.count) - 1)
    taken = edges - curve.mass[cell]
    count, wrong, sure = column.count[cell], column.wrong[cell], column.confidence[cell]
    left = count - taken
    top = 1 - column.start[cell] / ONE
    bottom = 1 - (column.start[cell] + column.width[cell] - 1) / ONE
    mean_errors, mean_sure = wrong * taken / count, sure * taken / count
    cut = column.mixed[cell] & (taken > 0) & (left > 0)
    fewest = np.where(cut, np.maximum(0.0, taken - (count - wrong)), mean_errors)
    most = np.where(cut, np.minimum(taken, wrong), mean_errors)
    surest = np.where(cut, np.minimum(taken * top, sure - left * bottom), mean_sure)
    base = curve.confidence[cell] + curve.errors[cell] - edges
    return base + fewest + mean_sure, base + most + np.maximum(surest, mean_sure)


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
