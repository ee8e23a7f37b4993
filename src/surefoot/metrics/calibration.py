"""Calibration: does confidence equal accuracy?

Confidence is the top probability (many labels: max(p, 1 - p), class by class, then the mean over classes).
Bins hold equal numbers of decisions by rank of confidence: boundaries ceil(linspace(0, n, 11)) from the
least confident. A decision in a run of equal confidences counts with the mean accuracy of its run, so no
value depends on the order of rows.
"""

from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from surefoot.metrics.intervals import NAN
from surefoot.metrics.metric import ROOT, Accumulated, Cells, OfCurve, Range, curves_mean, mean_of_defined
from surefoot.predictions.arguments import checked
from surefoot.predictions.logits import spans
from surefoot.predictions.outcomes import (
    ONE,
    Array,
    Curve,
    Curves,
    HasOutcomes,
    Index,
    Outcomes,
    Ranked,
    interpolated,
)

BINS = 10
FLOOR_RESAMPLES = 200
FLOOR_PARTS = 500  # of all blocks together, in each of which errors are drawn
SMOOTH_GRID = 2048
DECISIONS_AT_ONCE = 2**16  # that are spread on the grid
SMOOTH_EXACT = 1e-9
SMOOTH_FAR = 39.0  # times the width: from here on the kernel is 0, as exp(-39^2 / 2) is
SMOOTH_STEPS = 100  # usually five or six


def bin_edges(total: float | Array, bins: int = BINS) -> Array:
    """Where bins begin and end, counted from the most confident decision; a row for each total."""
    whole = np.asarray(total, dtype=np.float64)[..., None]
    edges = np.arange(bins + 1) * (whole / bins)  # as `np.linspace` of one total, to the bit
    edges[..., -1:] = whole
    return np.asarray(whole - np.ceil(edges)[..., ::-1])


def binned(curve: Curve, bins: int = BINS) -> tuple[Array, Array, Array]:
    """Per bin, most confident first: number of decisions, mean confidence, accuracy (NaN if empty)."""
    edges = bin_edges(curve.total, bins)
    number = np.diff(edges)
    with np.errstate(invalid="ignore"):
        confidence = np.diff(interpolated(edges, curve.mass, curve.confidence)[0]) / number
        accuracy = 1 - np.diff(curve.errors_at(edges)) / number
    return number, confidence, accuracy


def binned_whole(curve: Curve, bins: int = BINS) -> tuple[Array, Array, Array]:
    """The same with runs of ties not divided: an edge within a run moves to its end, so bins may be empty."""
    ends = curve.at_run_ends(bin_edges(curve.total, bins))
    number = np.diff(ends.mass)
    with np.errstate(invalid="ignore", divide="ignore"):
        return number, np.diff(ends.confidence) / number, 1 - np.diff(ends.errors) / number


@checked
def ece(predictions: Ranked) -> float:
    """Expected calibration error: sum over bins of n_b / n * |accuracy_b - confidence_b|.

    Guo et al., ICML 2017; ten equal-mass bins as in Li & Hoiem, CVPR 2020.

    >>> from surefoot import Predictions
    >>> round(ece(Predictions.from_probs([[0.9, 0.1]] * 10, [0] * 6 + [1] * 4)), 4)  # sure 0.9, right 0.6
    0.3
    """
    return curves_mean(predictions.outcomes.block_curves, ece_of)


def ece_of(curve: Curve) -> Array:
    """The ECE of one block: the sum over bins of |sum of confidence - correct|, over the total."""
    residual = curve.residual_at(bin_edges(curve.total))
    return np.asarray(np.abs(np.diff(residual)).sum(axis=-1) / curve.total)


@checked
def signed_ece(predictions: Ranked) -> float:
    """Mean confidence less accuracy: above 0 is overconfident, below is underconfident."""
    return curves_mean(predictions.outcomes.block_curves, signed_of)


def signed_of(curve: Curve) -> Array:
    """The signed ECE of one block."""
    return np.asarray((curve.confidence[..., -1] - (curve.total - curve.total_errors)) / curve.total)


def overconfidence(decisions: Outcomes) -> Array:
    """Confidence less correctness."""
    return decisions.confidence - decisions.correct


@checked
def debiased_l2(predictions: Ranked) -> float:
    """Root of the debiased squared calibration error, over the same bins; 0 where it would be negative.

    sum over bins of n_b / n * ((confidence_b - accuracy_b)^2 - accuracy_b (1 - accuracy_b) / (n_b - 1)).
    Runs of ties are not divided. NaN where a bin has fewer than 2 decisions. Kumar, Liang & Ma, NeurIPS 2019.
    """
    return ROOT.of(curves_mean(predictions.outcomes.block_curves, debiased_squared_of))


def debiased_squared_of(curve: Curve) -> Array:
    """The debiased squared calibration error of one block."""
    number, confidence, accuracy = binned_whole(curve)
    with np.errstate(invalid="ignore", divide="ignore"):
        squared = (confidence - accuracy) ** 2 - accuracy * (1 - accuracy) / (number - 1)
    each = np.where(number > 1, number * squared, np.where(number > 0, NAN, 0.0))
    return np.asarray(each.sum(axis=-1) / curve.total)


@checked
def smooth_ece(predictions: HasOutcomes) -> float:
    """Smooth ECE: the calibration residual smoothed by a Gaussian whose width equals the result.

    With r_s(t) the residuals correct - confidence smoothed by a reflected Gaussian kernel of width s, it is
    the s at which the integral of |r_s| over [0, 1] equals s. Blasiok & Nakkiran, ICLR 2024.
    """
    outcomes = predictions.outcomes
    residual = outcomes.counted(outcomes.correct - outcomes.confidence)
    grids, totals = [], []
    for block in outcomes.blocks:
        totals.append(len(residual[block]) if outcomes.weight is None else outcomes.weight[block].sum())
        grids.append(spread_on_grid(outcomes.confidence[block], residual[block]))
    return mean_of_defined(smooth_eces(np.stack(grids), np.array(totals, dtype=np.float64)).tolist())


def smooth_eces(residuals: Array, totals: Array) -> Array:
    """Smooth ECE of each row of residuals as `spread_on_grid` gives them; NaN where there are none.

    The integral of |r_s| falls as the width s grows, so log(integral / s) bounds the distance to the result.
    """
    from scipy.fft import dct, idct

    result = np.full(len(totals), NAN)
    rows, cells = np.flatnonzero(totals), residuals.shape[1]
    spectra = dct(residuals[rows] / totals[rows, None])
    frequency = np.pi * np.arange(cells)
    memory = np.empty_like(spectra)  # used again: new memory costs as much as the sums

    def excess(spectra: Array, log_width: Array) -> Array:
        width, smoothed = np.exp(log_width)[:, None], memory[: len(spectra)]
        end = np.count_nonzero(frequency * width.min(initial=1.0) < SMOOTH_FAR)
        kernel = np.multiply(frequency[:end], width, out=smoothed[:, :end])
        np.exp(np.multiply(np.square(kernel, out=kernel), -0.5, out=kernel), out=kernel)
        kernel *= spectra[:, :end]
        smoothed[:, end:] = 0.0
        smoothed = idct(smoothed, overwrite_x=True)
        integral = np.abs(smoothed, out=smoothed).sum(axis=1)
        return np.asarray(np.log(np.maximum(integral, np.finfo(float).tiny)) - log_width)

    low = before = np.full(len(rows), np.log(0.5 / cells))  # log widths
    above = excess(spectra, low)
    result[rows[above <= 0]] = np.abs(idct(spectra[above <= 0])).sum(axis=1)
    left = above > 0
    high = low + above  # the integral at the lowest width
    here = high
    below = excess(spectra, high)
    for _ in range(SMOOTH_STEPS):
        if not left.all():
            rows, spectra = rows[left], spectra[left]
            low, high, before, above, here, below = np.stack([low, high, before, above, here, below])[:, left]
        if not len(rows):
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            secant = here - below * (here - before) / (below - above)
        before, above = here, below
        here = np.where((secant > low) & (secant < high), secant, (low + high) / 2)
        below = excess(spectra, here)
        low, high = np.where(below > 0, here, low), np.where(below > 0, high, here)
        result[rows] = np.exp(here)
        left = np.abs(below) > SMOOTH_EXACT
    return result


def spread_on_grid(confidence: Array, residual: Array) -> Array:
    """Share each residual between the two nearest cells: second-order exact in the cell's width."""
    grid = np.zeros(SMOOTH_GRID)
    for part in spans(len(confidence), DECISIONS_AT_ONCE):
        cell, right = place_on_grid(confidence[part], SMOOTH_GRID)
        moved = residual[part] * right
        grid += np.bincount(cell, residual[part] - moved, SMOOTH_GRID)
        grid += np.bincount(cell + 1, moved, SMOOTH_GRID)
    return grid


def place_on_grid(confidence: Array, cells: int) -> tuple[Index, Array]:
    """The left one of the two nearest cells, and the share of the right one."""
    place = np.clip(confidence * cells - 0.5, 0, cells - 1)
    cell = np.minimum(place.astype(np.int64), cells - 2)
    return cell, place - cell


def streamed_smooth_ece(accumulated: Accumulated) -> tuple[float, None]:
    """Smooth ECE of a stream: its grid is accumulated as it is, so it is exact."""
    totals = [float(cells.count.sum()) for cells in accumulated.cells]
    return mean_of_defined(smooth_eces(accumulated.residuals, np.array(totals)).tolist()), None


@checked
def ece_floor(predictions: Ranked) -> float:
    """The mean ECE that a perfectly calibrated model with these confidences would show at this n."""
    return float(np.mean(_calibrated_eces(predictions.outcomes)))


@checked
def ece_floor_95(predictions: Ranked) -> float:
    """The ECE that a perfectly calibrated model would exceed one time in twenty at this n."""
    return float(np.percentile(_calibrated_eces(predictions.outcomes), 95))


_ECES: WeakKeyDictionary[Curves, Array] = WeakKeyDictionary()  # for both floors


def _calibrated_eces(curves: Curves) -> Array:
    """The ECE again and again with errors drawn from the confidences: binomial in each part of a curve."""
    if curves not in _ECES:
        rng = np.random.default_rng(0)
        parts = max(FLOOR_PARTS // len(curves.block_curves), 5 * BINS)
        blocks = [curve.coarse(parts) for curve in curves.block_curves if curve.total]
        values = np.full((max(1, len(blocks)), FLOOR_RESAMPLES), NAN)
        for of_block, curve in zip(values, blocks, strict=False):
            count, summed = np.diff(curve.mass), np.diff(curve.confidence)
            doubt = np.clip(1 - summed / np.maximum(count, 1), 0, 1)
            size = (FLOOR_RESAMPLES, len(count))
            errors = np.cumsum(rng.binomial(np.rint(count).astype(np.int64), doubt, size=size), axis=1)
            mass, confidence = (
                np.broadcast_to(v, (size[0], size[1] + 1)) for v in (curve.mass, curve.confidence)
            )
            of_block[:] = ece_of(Curve(mass, np.pad(errors.astype(np.float64), ((0, 0), (1, 0))), confidence))
        _ECES[curves] = values.mean(axis=0)
    return _ECES[curves]


def ece_range(cells: Cells, _curve: OfCurve) -> Range:
    """The least and the largest ECE that decisions in these cells can have.

    ECE over ten bins is (1/n) sum |D(m_(i+1)) - D(m_i)| with D = C - (m - E), the nine inner D each
    within an interval (`metrics/cells.py`). The sum is convex, so its maximum is at a corner (dynamic
    programming); the minimum keeps D constant as long as the next interval allows.
    """
    total = float(cells.count.sum())
    low, high = _residual_range(cells, bin_edges(total))
    return _least_variation(low, high) / total, min(1.0, _largest_variation(low, high) / total)


def known_at_bin_edges(cells: Cells, curve: OfCurve) -> Range:
    """Of a metric that reads where bins end only: its value unless an edge is within a mixed cell."""
    known = cells.curve
    edges = bin_edges(known.total)
    cell = np.searchsorted(known.mass, edges, side="left")
    inside = known.mass[np.minimum(cell, len(known.mass) - 1)] != edges
    value = NAN if cells.mixed[cell[inside] - 1].any() else float(curve(known))
    return value, value


def _residual_range(cells: Cells, edges: Array) -> tuple[Array, Array]:
    """Confidence less correctness, summed over the most confident up to each edge: least and largest."""
    curve = cells.curve
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
