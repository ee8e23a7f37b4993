"""The exact minimiser of the NLL over one positive scale of the logits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from surefoot import kernels
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import (
    average_sigmoid,
    average_softmax,
    can_fuse,
    exp_into,
    map_chunks,
)
from surefoot.predictions.predictions import Predictions

FEWEST_ROWS = 250  # a search on this many finds the scale to some percent
MORE = 8  # times as many rows for the next search
FEWEST_ON_A_GPU = 4000  # where so many take no longer,
MORE_ON_A_GPU = 32  # and the number of readings counts
EXACT = 1e-6  # tolerance of the last relative step if it bisects the bracket
CLOSE = 1e-4  # if it is Halley's: the error left is about the cube of the step
MANY_ROWS = 40_000
LOOSE = 5e-3  # for many rows, which take long to read: one step less, with an error below 1e-7
ROUGH = 1e-2  # for a search on some of the rows, which only finds a start
STEPS = 200
REACH = 1e3  # T is searched within this factor of 1 and of the size of the logits (typical and largest)


class Derivatives(Protocol):
    """Of the summed NLL at one scale."""

    @property
    def slope(self) -> float: ...

    @property
    def second(self) -> float: ...

    @property
    def third(self) -> float: ...


Read = TypeVar("Read", bound=Derivatives)


class Rows(NamedTuple):
    """Some rows of predictions, which have been checked."""

    logits: Tensor
    labels: Tensor
    kind: LabelKind


@dataclass(frozen=True)
class Reading:
    """Derivatives of the summed NLL at one scale; the first row by row as well."""

    scale: float
    slope: float
    second: float
    third: float
    row_slopes: "Tensor | kernels.Slopes"  # or what compiled code has found of them

    @property
    def squared_slopes(self) -> float:
        """The sum of the squares of the rows' slopes."""
        slopes = self.row_slopes
        if isinstance(slopes, kernels.Slopes):
            return slopes.squared
        return float(
            np.square(slopes.numpy()).sum() if slopes.device.type == "cpu" else slopes.square().sum()
        )

    @property
    def largest_slope(self) -> float:
        slopes = self.row_slopes
        if isinstance(slopes, kernels.Slopes):
            return slopes.largest
        return float(slopes.numpy().max() if slopes.device.type == "cpu" else slopes.max())


def halley(slope: float, second: float, third: float) -> float:
    """Halley's step towards the root of the slope, in ratios that do not overflow for logits of any size.

    NaN if the second derivative is 0.

    >>> halley(1e-200, 1e-300, 0.0) == halley(1e200, 1e100, 0.0) == -1e100
    True
    """
    if not second > 0:
        return math.nan
    newton = slope / second
    bend = 2 - newton * (third / second)
    return -2 * newton / bend if bend > 0 else math.nan


def best_scale(
    predictions: Predictions, lowest: float, highest: float, weights: Tensor | None = None
) -> tuple[float, Reading]:
    """The scale in [lowest, highest] with the lowest NLL, weighted if given, and a reading near it."""
    scale = start = math.sqrt(lowest * highest)
    on_cpu = predictions.logits.device.type == "cpu"
    fewest, more = (FEWEST_ROWS, MORE) if on_cpu else (FEWEST_ON_A_GPU, MORE_ON_A_GPU)
    stride = predictions.n // fewest
    while stride > 1:
        every = Rows(
            predictions.logits[:, ::stride], _contiguous(predictions.labels[::stride]), predictions.kind
        )
        some = None if weights is None else _contiguous(weights[::stride])
        scale, _ = search(partial(read, every, weights=some), scale, lowest, highest, ROUGH)
        if is_at_bound(scale, lowest, highest):  # with few rows, all predictions may be correct
            scale = start
        stride //= more
    tolerance = LOOSE if predictions.n >= MANY_ROWS else CLOSE
    return search(partial(read, predictions, weights=weights), scale, lowest, highest, tolerance)


def _contiguous(values: Tensor) -> Tensor:
    """A copy without gaps; by numpy on the host, where torch would wake its threads, which then keep a core
    busy for a while."""
    if values.device.type != "cpu":
        return values.contiguous()
    return torch.from_numpy(np.ascontiguousarray(values.numpy()))


def search_bounds(predictions: Predictions) -> tuple[float, float]:
    """The scales between which the best one is searched."""
    low, high = predictions.extremes
    return bounds_for(max(-low, high), size=math.sqrt(mean_square(predictions)))


def mean_square(predictions: Predictions | Rows, fewest: int = FEWEST_ROWS) -> float:
    """Of the (averaged) logits of some rows; for one label about the mean of each row."""
    rows = predictions.logits[0]
    some = rows[:: 1 + len(rows) // fewest]
    # numpy on the host, as in `_contiguous`
    logits = some.numpy().astype(np.float64) if some.device.type == "cpu" else some.to(torch.float64)
    if predictions.kind is LabelKind.ONE_LABEL:
        logits = logits - logits.mean(1)[:, None]
    return float((logits * logits).mean())


def bounds_for(largest: float, size: float) -> tuple[float, float]:
    """The same from the largest logit of all rows (a few rows may dominate T) and the root mean square."""
    return 1 / (REACH * max(1.0, largest)), REACH / min(1.0, max(size, 1e-30))


def is_at_bound(scale: float, lowest: float, highest: float) -> bool:
    """Whether the best scale is at an end of what was searched."""
    return not lowest * 1.01 < scale < highest / 1.01


def is_flat(predictions: Predictions | Rows) -> bool:
    """Whether all (averaged) logits of each row are equal, so that no scale changes anything."""
    softmax = predictions.kind is LabelKind.ONE_LABEL
    for logits in (predictions.logits[0, :1], predictions.logits[0]):  # usually the first row is enough
        level = logits[:, :1] if softmax else 0.0
        if not bool((logits == level).all()):
            return False
    return True


def is_separable(predictions: Predictions | Rows) -> bool:
    """Whether every label has the top logit of its row, or for many labels the right sign."""
    logits, labels = predictions.logits[0], predictions.labels
    if predictions.kind is LabelKind.ONE_LABEL:
        return bool((logits.gather(1, labels.unsqueeze(1)).squeeze(1) >= logits.amax(dim=1)).all())
    return bool(((labels < 0) | torch.where(labels == 1, logits >= 0, logits <= 0)).all())


def losses(predictions: Predictions | Rows, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's NLL with its (averaged) logits multiplied by its scale, and the slope in that scale.

    For many labels a row's NLL is the sum over its known labels. Every row has a label.
    """
    softmax = predictions.kind is LabelKind.ONE_LABEL
    logits = predictions.logits
    nll, slopes = torch.empty(2, logits.shape[1], dtype=torch.float64, device=logits.device)

    def lose(part: slice, logits: Tensor, buffer: Tensor) -> None:
        labels, scale = predictions.labels[part], scales[part].to(logits.device).unsqueeze(1)
        if softmax:
            below_top = logits.sub_(logits.amax(dim=1, keepdim=True))
            true = below_top.gather(1, labels.unsqueeze(1)).squeeze(1)
            torch.mul(below_top, scale, out=buffer)
            weights = exp_into(buffer, buffer)
            total = weights.sum(dim=1)
            nll[part] = total.log() - scale.squeeze(1) * true
            slopes[part] = weights.mul_(below_top).sum(dim=1) / total - true
        else:
            towards_truth = torch.where(labels == 1, logits, -logits)
            each = F.softplus(-scale * towards_truth)
            slope = -towards_truth * torch.sigmoid(-scale * towards_truth)
            nll[part] = torch.where(labels >= 0, each, 0.0).sum(dim=1)
            slopes[part] = torch.where(labels >= 0, slope, 0.0).sum(dim=1)

    map_chunks(logits, average_softmax if softmax else average_sigmoid, lose)
    return nll, slopes


def mean_nll(predictions: Predictions, scale: float) -> float:
    """The unclipped NLL with all logits multiplied by `scale`, in float64."""
    rows, _ = losses(predictions, torch.full((predictions.n,), scale, dtype=torch.float64))
    return float(rows.sum()) / known_labels(predictions)


def known_labels(predictions: Predictions) -> int:
    """How many labels the NLL is a mean of."""
    return int((predictions.labels >= 0).sum())


def read(
    rows: Predictions | Rows, scale: float, weights: Tensor | None = None, row_slopes: Tensor | None = None
) -> Reading:
    """The NLL's derivatives with the (averaged) logits multiplied by `scale`. Every row has a label.

    `row_slopes`, a float64 for each row on the device of the logits, is filled with the first derivatives.
    """
    logits, labels, kind = rows.logits, rows.labels, rows.kind
    softmax = kind is LabelKind.ONE_LABEL
    if softmax and can_fuse(logits):
        from surefoot.predictions.fused import softmax_slopes

        derivatives = softmax_slopes(logits, labels, scale)
        weighted = derivatives if weights is None else derivatives * weights
        if row_slopes is not None:
            row_slopes.copy_(weighted[0])
        slope, second, third = weighted.sum(dim=1).tolist()
        return Reading(scale, slope, second, third, weighted[0])
    if softmax and len(logits) == 1 and logits.device.type == "cpu" and kernels.fits(logits[0].numpy()):
        weight, slopes_of = (None if each is None else each.numpy() for each in (weights, row_slopes))
        found = kernels.softmax_slopes(logits[0].numpy(), labels.numpy(), scale, weight, slopes_of)
        return Reading(scale, found.slope, found.second, found.third, found)
    slopes = row_slopes
    if slopes is None:
        slopes = torch.empty(logits.shape[1], dtype=torch.float64, device=logits.device)

    def summed(of_rows: Tensor, part: slice) -> float:
        if weights is None:
            return float(of_rows.sum())
        return float((of_rows.reshape(len(of_rows), -1).sum(dim=1) * weights[part]).sum())

    def read_chunk(part: slice, chunk: Tensor, buffer: Tensor) -> tuple[float, float]:
        if softmax:
            slopes[part], second, third = _read_softmax(chunk, labels[part], scale, buffer)
        else:
            slopes[part], second, third = _read_sigmoid(chunk, labels[part], scale, buffer)
        return summed(second, part), summed(third, part)

    found_in = map_chunks(logits, average_softmax if softmax else average_sigmoid, read_chunk)
    seconds, thirds = zip(*found_in, strict=True)
    if weights is not None:
        slopes.mul_(weights)
    slope = slopes.numpy().sum() if logits.device.type == "cpu" else slopes.sum()  # numpy: one thread
    return Reading(scale, float(slope), sum(seconds), sum(thirds), slopes)


def search(
    read_at: Callable[[float], Read], scale: float, low: float, high: float, tolerance: float
) -> tuple[float, Read]:
    """The root of the slope in [low, high], and the last reading, which is close to it."""
    last_step = math.inf
    for _ in range(STEPS):
        reading = read_at(scale)
        step = halley(reading.slope, reading.second, reading.third)
        low, high = (low, scale) if reading.slope >= 0 else (scale, high)
        following = scale + step
        good = low <= following <= high and abs(step) <= last_step / 2
        if not good:
            following = math.sqrt(low * high)
        last_step = abs(following - scale)
        if last_step <= (tolerance if good else EXACT) * scale:
            return following, reading
        scale = following
    raise AssertionError("the bracket at worst halves in log space, so this is never reached")


def _read_softmax(
    logits: Tensor, labels: Tensor, scale: float, buffer: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """With d = z - max z and p the scaled softmax: the slope is E[d] - d_true, then come p's cumulants."""
    below_top = logits.sub_(logits.amax(dim=1, keepdim=True))
    true = below_top.gather(1, labels.unsqueeze(1)).squeeze(1)
    torch.mul(below_top, scale, out=buffer)
    weights = exp_into(buffer, buffer)
    total = weights.sum(dim=1)
    mean, square, cube = (weights.mul_(below_top).sum(dim=1) / total for _ in range(3))
    squared_mean = mean.square()
    return mean - true, square - squared_mean, cube - mean * (3 * square - 2 * squared_mean)


def _read_sigmoid(
    logits: Tensor, labels: Tensor, scale: float, buffer: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """With s the log odds signed towards the truth (0 where ignored) and w = sigmoid(-b s)."""
    towards_truth = logits.mul_(torch.where(labels == 1, 1.0, torch.where(labels == 0, -1.0, 0.0)))
    wrong = torch.mul(towards_truth, -scale, out=buffer).sigmoid_().mul_(towards_truth)  # s w
    right = towards_truth.sub_(wrong)  # s (1 - w)
    variance = wrong * right
    third = right.sub_(wrong).mul_(variance)
    return wrong.sum(dim=1).neg_(), variance, third.neg_()
