"""Novelty scaling: a temperature that rises with the novelty of a sample."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from surefoot.calibrators.calibration import Calibration, data_facts, for_any_data, require_numbers
from surefoot.calibrators.declaration import Calibrator
from surefoot.calibrators.search import known_labels, row_derivatives, search_bounds
from surefoot.calibrators.temperature import TINY, fit_temperature, only_labelled
from surefoot.errors import InputError
from surefoot.predictions.outcomes import Array

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

GRID_T0 = tuple(np.geomspace(1 / 16, 4, 13).tolist())  # in units of the plain T
GRID_T1 = (0.0, *np.geomspace(1 / 16, 64, 16).tolist())
LOGITS_ON_THE_GRID = 200_000  # the grid only finds a start, so it uses every k-th row: about this many logits
Pair = np.ndarray[tuple[int], np.dtype[np.float64]]  # T0, T1
LEAST_GAIN = 1e-12  # in NLL; below it, the novelty is given no weight


@dataclass(frozen=True, kw_only=True)
class NoveltyScaling(Calibration):
    """T(x) = T0 + T1 novelty(x). Members are averaged first."""

    kind: ClassVar[str] = "novelty"
    needs_novelty: ClassVar[bool] = True

    t0: float
    t1: float
    at_bound: bool = False  # T0 or T1 is at the end of the search range
    separable: bool = False  # every label is predicted correctly
    flat: bool = False  # all logits of a row are equal

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers("t0", [self.t0], least=TINY)
        require_numbers("t1", [self.t1], least=0)

    def apply(self, predictions: "Predictions") -> "Predictions":
        """The logits of each sample divided by its T; the samples must have their novelty."""
        temperatures = self.temperatures_at(novelty_of(predictions)).reshape(1, -1, 1)
        return predictions.with_logits(predictions.logits / temperatures.astype(predictions.logits.dtype))

    def temperatures_at(self, novelty: Array) -> Array:
        """The temperature of each sample."""
        return self.t0 + self.t1 * novelty

    def parameters(self) -> dict[str, list[float]]:
        """T0 and T1."""
        return {"T0": [self.t0], "T1": [self.t1]}

    def lines(self) -> list[str]:
        """The formula with its numbers."""
        return [f"T = {self.t0:.5g} + {self.t1:.5g} * novelty, n = {self.n:,}"]

    def remarks(self) -> list[str]:
        """Warnings about the search."""
        remarks = []
        if self.t1 == 0:
            remarks.append("the validation data gave novelty no weight: this is plain T-scaling")
        if self.flat:
            remarks.append("the logits of every row are equal, so T has no effect; T = 1 is used")
        elif self.separable:
            remarks.append(
                f"every label is predicted correctly, so the NLL keeps falling with T: T = {self.t0:.3g} "
                "is only the end of the search range; use more validation data"
            )
        elif self.at_bound:
            remarks.append(
                f"T0 = {self.t0:.3g} or T1 = {self.t1:.3g} is the end of the search range: samples of some "
                "novelty are all predicted correctly, or their logits are useless; use more validation data"
            )
        return remarks


@for_any_data
def fit_novelty_scaling(val: "Predictions") -> NoveltyScaling:
    """T0 > 0 and T1 >= 0 that minimise the unclipped NLL of `val`, never worse than one T for all.

    (T0, T1) = argmin mean -log p_true(z / (T0 + T1 novelty)). The novelty is between 0 and 1. Several members
    are averaged first. The best point of a grid is the start of L-BFGS-B with the exact gradient.
    Li & Hoiem, CVPR 2020.
    """
    novelty_of(val)
    labelled = only_labelled(val).average()
    plain = fit_temperature(labelled)
    without_novelty = NoveltyScaling(
        t0=plain.temperature,
        t1=0.0,
        at_bound=plain.at_bound,
        separable=plain.separable,
        flat=plain.flat,
        **data_facts(labelled),
    )
    if plain.flat or plain.separable:
        return without_novelty
    from scipy.optimize import Bounds, minimize

    lowest, highest = search_bounds(labelled)
    unit = math.sqrt(1 / lowest / highest) if plain.at_bound else plain.temperature
    low, high = np.array([1 / highest, 0.0]) / unit, np.array([1 / lowest, 1 / lowest]) / unit
    start = _best_of_grid(labelled, unit, np.array([plain.temperature / unit, 0.0]))

    def objective(at: Pair) -> tuple[float, Pair]:
        return _nll(labelled, unit * at, unit)

    result = minimize(
        objective,
        np.clip(start, low, high),
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(low, high),
        options={"ftol": 1e-16, "gtol": 1e-10},
    )
    nll_plain, _ = _nll(labelled, np.array([plain.temperature, 0.0]))
    if result.x[1] == 0 or not result.fun < nll_plain - LEAST_GAIN:
        return without_novelty
    at_bound = bool(result.x[0] < 1.01 * low[0] or (result.x > high / 1.01).any())
    t0, t1 = (unit * result.x).tolist()
    return replace(without_novelty, t0=t0, t1=t1, at_bound=at_bound)


def novelty_of(predictions: "Predictions") -> Array:
    """The novelty of each sample, refused unless it is there and between 0 and 1."""
    novelty = predictions.novelty
    if novelty is None:
        raise InputError("the predictions have no novelty; needed: a novelty between 0 and 1 for every row")
    low, high = float(novelty.min()), float(novelty.max())
    if low < 0 or high > 1:
        raise InputError(f"novelty from {low:g} to {high:g}; allowed: from 0 to 1")
    return novelty


def _best_of_grid(labelled: "Predictions", unit: float, plain: Pair) -> Pair:
    """The best of the grid's points and of one T for all, in units of `unit`."""
    thinned = labelled.take(slice(None, None, max(1, labelled.n * labelled.classes // LOGITS_ON_THE_GRID)))
    points = [plain, *(np.array([t0, t1]) for t0 in GRID_T0 for t1 in GRID_T1)]
    nlls = [float(row_derivatives(thinned, _scales(thinned, unit * at), 0).sum()) for at in points]
    return points[int(np.argmin(nlls))]


def _scales(labelled: "Predictions", at: Pair) -> Array:
    """1 / T of each row."""
    return 1 / (float(at[0]) + float(at[1]) * novelty_of(labelled))


def _nll(labelled: "Predictions", at: Pair, unit: float = 1.0) -> tuple[float, Pair]:
    """The mean NLL at (T0, T1) and its gradient, times `unit`: with b = 1/T, dNLL/dT = -b^2 dNLL/db."""
    scales = _scales(labelled, at)
    rows, slopes = row_derivatives(labelled, scales, 1)
    of_t = -np.square(scales) * slopes
    gradient = np.array([float(of_t.sum()), float(of_t @ novelty_of(labelled))])
    count = known_labels(labelled)
    return float(rows.sum()) / count, unit * gradient / count


NOVELTY = Calibrator(
    "novelty", "Novelty scaling", "softmax(z / (T0 + T1 novelty)), members averaged first",
    "Li & Hoiem, CVPR 2020", kind=NoveltyScaling.kind, fit=fit_novelty_scaling,
    read=NoveltyScaling.from_dict, one_model=False
)  # fmt: skip
