"""One temperature inside an average: each member's logits are divided by T, then probabilities are averaged.

Members are those of an ensemble, or the samples of a Bayesian network. Unlike T after averaging, this T may
change the predicted class.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from surefoot.calibrators.calibration import data_facts, for_any_data
from surefoot.calibrators.declaration import Calibrator
from surefoot.calibrators.search import (
    CLOSE,
    Reading,
    Rows,
    is_at_bound,
    is_flat,
    is_separable,
    row_derivatives,
    search,
    search_bounds,
)
from surefoot.calibrators.temperature import Temperature, fit_temperature, interval_factor, only_labelled
from surefoot.errors import InputError, is_whole
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import spans

if TYPE_CHECKING:
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.members, least=1):
            raise InputError(f"members is {self.members!r}; allowed: a whole number from 1")
        if self.declined is not None:
            raise InputError(f"declined is {self.declined}; allowed: none for this kind")

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


@for_any_data
def fit_temperature_before_averaging(val: "Predictions") -> TemperatureBeforeAveraging:
    """The T that minimises the unclipped NLL of mean_m softmax(z_m / T), exact to 1e-6.

    T = argmin_T mean -log mean_m p_m,true(z_m / T); for many labels a sigmoid. The NLL may have several
    minima: the least of a grid is the start of Newton's steps, which stay between its neighbours.

    >>> from surefoot import Predictions
    >>> two = [[[4.0, 0.0]] * 4, [[4.0, 0.0]] * 4]  # equal members: as one of them
    >>> fit_temperature_before_averaging(Predictions.from_logits(two, [0, 0, 0, 1])).temperature
    3.6409569...
    """
    labelled = only_labelled(val)
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
        factor = interval_factor(reading.row_slopes, reading.second, scale, labelled.groups)
    return TemperatureBeforeAveraging(
        temperature=1 / scale,
        low=1 / factor / scale,
        high=factor / scale,
        at_bound=at_bound,
        separable=at_bound and all(is_separable(one) for one in each),
        members=members,
        **data_facts(labelled),
    )


def read(labelled: "Predictions", scale: float) -> Reading:
    """The NLL of the mean probability, all logits multiplied by `scale`, and its derivatives in the scale.

    With l_m = log p_m(true), g_m and h_m its first and second derivative, and w_m = p_m / sum p: the NLL is
    log M - logsumexp_m l_m, its slope -sum w g, its second derivative (sum w g)^2 - sum w (g^2 + h).
    """
    logits, labels, kind = labelled.logits, labelled.labels, labelled.kind
    if kind is LabelKind.MANY_LABELS:  # each label is averaged by itself: as a row of its own
        logits, labels = logits.reshape(len(logits), -1, 1), labels.reshape(-1, 1)
    rows = np.empty((2, len(labels)))
    second = 0.0
    for part in spans(len(labels), max(1, LOGITS_AT_ONCE // (len(logits) * logits.shape[2]))):
        each = [row_derivatives(Rows(one[None, part], labels[part], kind), scale, 2) for one in logits]
        log_p, first, bend = -np.stack(each, axis=1)
        top = log_p.max(axis=0)
        weights = np.exp(log_p - top)
        sums = weights.sum(axis=0)
        weights /= sums
        mean = (weights * first).sum(axis=0)
        second += float((np.square(mean) - (weights * (np.square(first) + bend)).sum(axis=0)).sum())
        rows[:, part] = math.log(len(logits)) - np.log(sums) - top, -mean
    nll, slopes = rows.reshape(2, labelled.n, -1).sum(axis=2)
    return Reading(scale, float(slopes.sum()), second, 0.0, slopes, nll=float(nll.sum()))


def _start(labelled: "Predictions", lowest: float, highest: float) -> tuple[float, float, float]:
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


TEMPERATURE_BEFORE_AVERAGING = Calibrator(
    "temperature-before-averaging", "One temperature before averaging",
    "mean over members of softmax(z_m / T), one T", "Li & Hoiem, CVPR 2020",
    kind=TemperatureBeforeAveraging.kind, fit=fit_temperature_before_averaging,
    read=TemperatureBeforeAveraging.from_dict, one_model=False
)  # fmt: skip
