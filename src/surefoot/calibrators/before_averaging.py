"""One temperature inside an average: each member's logits are divided by T, then probabilities are averaged.

Members are those of an ensemble, or the samples of a Bayesian network. Unlike T after averaging, this T may
change the predicted class.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from surefoot.calibrators.calibration import naming_classes
from surefoot.calibrators.logistic import softplus
from surefoot.calibrators.search import CLOSE, is_at_bound, is_flat, is_separable, search, search_bounds
from surefoot.calibrators.temperature import Temperature, fit_temperature, interval_factor
from surefoot.errors import InputError
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import Whole, spans
from surefoot.predictions.outcomes import Array
from surefoot.predictions.predictions import Predictions

GRID_POINTS = 61  # scales of the first search: the NLL may have several minima
LOGITS_ON_THE_GRID = 2**21  # about so many of every k-th row
LOGITS_AT_ONCE = 2**21  # in float64


@dataclass(frozen=True, kw_only=True)
class TemperatureBeforeAveraging(Temperature):
    """The T with the lowest NLL of the members' mean probability, each member divided by T first."""

    kind: ClassVar[str] = "temperature-before-averaging"
    averages_members: ClassVar[bool] = False

    members: int  # it was fitted for so many; with another number, or the average, it is another T

    @property
    def needs_members(self) -> int:
        """As many as it was fitted for."""
        return self.members

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The same T for each member."""
        return (self.temperature,) * self.members

    def cautious(self) -> Self:
        """Unchanged: T = 1 before averaging is another model than the average as it is."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return super().to_dict() | {"members": self.members}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """From plain values."""
        plain = Temperature.from_dict(document)
        members = document["members"]
        if not isinstance(members, int) or isinstance(members, bool) or members < 1:
            raise ValueError(f"members is {members!r}; allowed: a whole number from 1")
        if plain.declined is not None:
            raise ValueError(f"declined is {plain.declined}; allowed: none for this kind")
        return cls(members=members, **vars(plain))


@dataclass(frozen=True)
class Slopes:
    """Derivatives of the summed NLL at one scale 1 / T: the first row by row, the second summed."""

    rows: Array
    second: float
    nll: float  # summed
    third: float = 0.0  # not computed: the search takes Newton's steps

    @property
    def slope(self) -> float:
        return float(self.rows.sum())


@naming_classes
def fit_temperature_before_averaging(val: Predictions) -> TemperatureBeforeAveraging:
    """The T that minimises the unclipped NLL of mean_m softmax(z_m / T), exact to 1e-6.

    T = argmin_T mean -log mean_m p_m,true(z_m / T); for many labels a sigmoid. The NLL may have several
    minima: the least of a grid is the start of Newton's steps, which stay between its neighbours.

    >>> two = [[[4.0, 0.0]] * 4, [[4.0, 0.0]] * 4]  # equal members: as one of them
    >>> fit_temperature_before_averaging(Predictions.from_logits(two, [0, 0, 0, 1])).temperature
    3.6409569...
    """
    labelled = _with_labels(val)
    members = labelled.members
    each = [labelled.member(i) for i in range(members)]
    if all(is_flat(one) for one in each) or bool((labelled.logits == labelled.logits[:1]).all()):
        return TemperatureBeforeAveraging(members=members, **vars(fit_temperature(each[0])))
    lowest, highest = search_bounds(labelled)
    scale, low, high = _start(labelled, lowest, highest)
    scale, reading = search(lambda at: read(labelled, at), scale, low, high, CLOSE)
    at_bound = is_at_bound(scale, lowest, highest) or not reading.second > 0
    factor = math.inf
    if not at_bound:
        factor = interval_factor(reading.rows, reading.second, scale, labelled.groups)
    return TemperatureBeforeAveraging(
        temperature=1 / scale,
        low=1 / factor / scale,
        high=factor / scale,
        n=labelled.n,
        label_kind=labelled.kind,
        classes=labelled.classes,
        at_bound=at_bound,
        separable=at_bound and all(is_separable(one) for one in each),
        members=members,
    )


def read(labelled: Predictions, scale: float) -> Slopes:
    """The NLL of the mean probability, all logits multiplied by `scale`, and its derivatives in the scale.

    With l_m = log p_m(true), g_m and h_m its first and second derivative, and w_m = p_m / sum p: the NLL is
    log M - logsumexp_m l_m, its slope -sum w g, its second derivative (sum w g)^2 - sum w (g^2 + h).
    """
    slopes = np.empty(labelled.n)
    second = total = 0.0
    for part, logits in _chunks(labelled):
        labels = labelled.labels[part]
        if labelled.kind is LabelKind.ONE_LABEL:
            log_p, first, bend = _of_true_class(logits, labels, scale)
            known = np.ones_like(log_p[0])
        else:
            log_p, first, bend = _of_true_presence(logits, labels, scale)
            known = (labels >= 0).astype(np.float64)
        top = log_p.max(axis=0)
        weights = np.exp(log_p - top)
        sums = weights.sum(axis=0)
        weights /= sums
        mean = (weights * first).sum(axis=0)
        spread = (weights * (np.square(first) + bend)).sum(axis=0)
        slopes[part] = (-mean * known).reshape(len(labels), -1).sum(axis=1)
        second += float(((np.square(mean) - spread) * known).sum())
        total += float(((math.log(len(logits)) - np.log(sums) - top) * known).sum())
    return Slopes(slopes, second, total)


def _of_true_class(logits: Array, labels: Whole, scale: float) -> tuple[Array, Array, Array]:
    """Each member's log p(true), and its first and second derivative in the scale: (members, n)."""
    logits -= logits.max(axis=2, keepdims=True)
    true = logits[:, np.arange(len(labels)), labels]
    probs = np.exp(scale * logits)
    total = probs.sum(axis=2)
    probs /= total[..., None]
    mean = (probs * logits).sum(axis=2)
    variance = (probs * np.square(logits - mean[..., None])).sum(axis=2)
    return scale * true - np.log(total), true - mean, -variance


def _of_true_presence(logits: Array, labels: Whole, scale: float) -> tuple[Array, Array, Array]:
    """The same for each label of many: (members, n, classes)."""
    towards_truth = np.where(labels == 1, logits, -logits)
    near, right = softplus(scale * towards_truth)
    bend = -np.square(towards_truth) * right * (1 - right)
    return scale * towards_truth - near, towards_truth * (1 - right), bend


def _chunks(predictions: Predictions) -> Iterator[tuple[slice, Array]]:
    """Some rows of all members at a time, as copies in float64."""
    rows = max(1, LOGITS_AT_ONCE // (predictions.members * predictions.classes))
    for part in spans(predictions.n, rows):
        yield part, predictions.logits[:, part].astype(np.float64)


def _start(labelled: Predictions, lowest: float, highest: float) -> tuple[float, float, float]:
    """The best scale of a grid, computed on some rows, and its neighbours on the grid.

    The neighbours move on where all rows disagree with these rows about the slope there.
    """
    grid = np.geomspace(lowest, highest, GRID_POINTS).tolist()
    per_row = labelled.members * labelled.classes
    every = labelled.take(slice(None, None, max(1, labelled.n * per_row // LOGITS_ON_THE_GRID)))
    best = int(np.argmin([read(every, scale).nll for scale in grid]))
    low, high = max(0, best - 1), min(GRID_POINTS - 1, best + 1)
    while low > 0 and read(labelled, grid[low]).slope > 0:
        low -= 1
    while high < GRID_POINTS - 1 and read(labelled, grid[high]).slope < 0:
        high += 1
    return grid[best], grid[low], grid[high]


def _with_labels(val: Predictions) -> Predictions:
    """The rows with at least one known label, members not averaged."""
    known = (val.labels >= 0).reshape(val.n, -1).any(axis=1)
    if not known.any():
        raise InputError("no labels to fit a temperature on; allowed: predictions with at least one label")
    return val if known.all() else val.take(known)
