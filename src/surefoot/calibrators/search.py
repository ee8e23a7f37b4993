"""The NLL and its slopes in one scale of the logits, and the exact minimiser. Numpy only."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import Floats, Whole, averaged_columns, map_rows
from surefoot.predictions.outcomes import Array

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

FEWEST_ROWS = 250  # a search on this many finds the scale to some percent
MORE = 8  # times as many rows for the next search
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

    logits: Floats
    labels: Whole
    kind: LabelKind


@dataclass(frozen=True)
class Reading:
    """The summed NLL at one scale and its derivatives; the first row by row as well."""

    scale: float
    slope: float
    second: float
    third: float
    row_slopes: Array
    nll: float = math.nan  # where it is asked for

    @property
    def squared_slopes(self) -> float:
        """The sum of the squares of the rows' slopes."""
        return float(np.square(self.row_slopes).sum())


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
    predictions: "Predictions", lowest: float, highest: float, weights: Array | None = None
) -> tuple[float, Reading]:
    """The scale in [lowest, highest] with the lowest NLL, weighted if given, and a reading near it."""
    scale = start = math.sqrt(lowest * highest)
    stride = predictions.n // FEWEST_ROWS
    while stride > 1:
        every = Rows(predictions.logits[:, ::stride], predictions.labels[::stride], predictions.kind)
        some = None if weights is None else weights[::stride]
        scale, _ = search(partial(read, every, weights=some), scale, lowest, highest, ROUGH)
        if is_at_bound(scale, lowest, highest):  # with few rows, all predictions may be correct
            scale = start
        stride //= MORE
    tolerance = LOOSE if predictions.n >= MANY_ROWS else CLOSE
    return search(partial(read, predictions, weights=weights), scale, lowest, highest, tolerance)


def search_bounds(predictions: "Predictions") -> tuple[float, float]:
    """The scales between which the best one is searched."""
    low, high = predictions.extremes
    return bounds_for(max(-low, high), size=math.sqrt(mean_square(predictions)))


def mean_square(predictions: "Predictions | Rows", fewest: int = FEWEST_ROWS) -> float:
    """Of the (averaged) logits of some rows; for one label about the mean of each row."""
    rows = predictions.logits[0]
    logits = rows[:: 1 + len(rows) // fewest].astype(np.float64)
    if predictions.kind is LabelKind.ONE_LABEL:
        logits = logits - logits.mean(axis=1)[:, None]
    return float((logits * logits).mean())


def bounds_for(largest: float, size: float) -> tuple[float, float]:
    """The same from the largest logit of all rows (a few rows may dominate T) and the root mean square."""
    return 1 / (REACH * max(1.0, largest)), REACH / min(1.0, max(size, 1e-30))


def is_at_bound(scale: float, lowest: float, highest: float) -> bool:
    """Whether the best scale is at an end of what was searched."""
    return not lowest * 1.01 < scale < highest / 1.01


def is_flat(predictions: "Predictions | Rows") -> bool:
    """Whether all (averaged) logits of each row are equal, so that no scale changes anything."""
    softmax = predictions.kind is LabelKind.ONE_LABEL
    for logits in (predictions.logits[0, :1], predictions.logits[0]):  # usually the first row is enough
        level = logits[:, :1] if softmax else 0.0
        if not bool((logits == level).all()):
            return False
    return True


def is_separable(predictions: "Predictions | Rows") -> bool:
    """Whether every label has the top logit of its row, or for many labels the right sign."""
    logits, labels = predictions.logits[0], predictions.labels
    if predictions.kind is LabelKind.ONE_LABEL:
        return bool((logits[np.arange(len(labels)), labels] >= logits.max(axis=1)).all())
    return bool(((labels < 0) | np.where(labels == 1, logits >= 0, logits <= 0)).all())


def row_derivatives(rows: "Predictions | Rows", scale: float | Array, orders: int) -> Array:
    """Each row's NLL, its (averaged) logits multiplied by the scale (or by its own), and so many derivatives.

    (orders + 1, n), in the scale. For many labels a row's NLL is the sum over its known labels. Every row has
    a label.
    """
    logits, labels, kind = rows.logits, rows.labels, rows.kind
    result = np.empty((orders + 1, logits.shape[1]))
    derivatives = _of_softmax if kind is LabelKind.ONE_LABEL else _of_sigmoid

    def read_part(part: slice) -> None:
        own = scale[part] if isinstance(scale, np.ndarray) else scale
        derivatives(averaged_columns(logits[:, part], kind), labels[part].T, own, result[:, part])

    map_rows(logits.shape[1], logits, read_part)
    return result


def _of_softmax(logits: Array, labels: Whole, scale: float | Array, into: Array) -> None:
    """With d = z - max z and p the scaled softmax: the slope is E[d] - d_true, then come p's cumulants."""
    logits -= logits.max(axis=0)
    true = logits[labels, np.arange(len(labels))]
    weights = logits * scale
    np.exp(weights, out=weights)
    total = weights.sum(axis=0)
    into[0] = np.log(total) - scale * true
    moments = []
    for _ in into[1:]:
        weights *= logits
        moments.append(weights.sum(axis=0) / total)
    if moments:
        into[1] = moments[0] - true
    if len(moments) > 1:
        squared = np.square(moments[0])
        into[2] = moments[1] - squared
    if len(moments) > 2:
        into[3] = moments[2] - moments[0] * (3 * moments[1] - 2 * squared)


def _of_sigmoid(logits: Array, labels: Whole, scale: float | Array, into: Array) -> None:
    """With s the log odds signed towards the truth (0 where ignored) and w = sigmoid(-b s)."""
    towards_truth = logits * np.where(labels == 1, 1.0, np.where(labels == 0, -1.0, 0.0))
    scaled = towards_truth * scale
    small = np.exp(-np.abs(scaled))
    into[0] = np.where(labels >= 0, np.log1p(small) + np.maximum(-scaled, 0), 0.0).sum(axis=0)
    wrong = towards_truth * np.where(scaled >= 0, small, 1.0) / (1 + small)  # s w
    right = towards_truth - wrong  # s (1 - w)
    variance = wrong * right
    each = (-wrong, variance, -variance * (right - wrong))
    for row, values in zip(into[1:], each, strict=False):
        row[:] = values.sum(axis=0)


def mean_nll(predictions: "Predictions", scale: float) -> float:
    """The unclipped NLL with all logits multiplied by `scale`, in float64."""
    return float(row_derivatives(predictions, scale, 0).sum()) / known_labels(predictions)


def known_labels(predictions: "Predictions") -> int:
    """How many labels the NLL is a mean of."""
    return int((predictions.labels >= 0).sum())


def read(rows: "Predictions | Rows", scale: float, weights: Array | None = None) -> Reading:
    """The NLL's derivatives with the (averaged) logits multiplied by `scale`. Every row has a label."""
    derivatives = row_derivatives(rows, scale, 3)[1:]
    if weights is not None:
        derivatives *= weights
    slope, second, third = derivatives.sum(axis=1).tolist()
    return Reading(scale, slope, second, third, derivatives[0])


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
