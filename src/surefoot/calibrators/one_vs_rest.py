"""Platt and beta calibration: a curve for each class, from log odds to log odds.

A class is compared with all others together; for exclusive classes the probabilities are then divided by
their sum. Two classes have one curve, that of class 1; many labels have one for each label. Curves of points
are in `pieces`.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from surefoot.calibrators.affine import MOST_PRINTED
from surefoot.calibrators.calibration import Calibration, data_facts, require_numbers
from surefoot.calibrators.declaration import Calibrator
from surefoot.calibrators.logistic import Full, Problem, minimised, softplus, with_bias
from surefoot.calibrators.temperature import WEIGHTS, weighted_rows
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import map_rows, spans
from surefoot.predictions.outcomes import Array, Bools
from surefoot.predictions.validate import Floats

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

NUMBERS_IN_CACHE = 2**15  # of a kind that is computed from others of its size
PART = 8  # one of this many rows is fitted first, and all rows from there,
ENOUGH = 8000  # if there are so many
ROUGH = 1e-4
FEW_POSITIVES = 20  # rows of a class, or of the others


@dataclass(frozen=True, kw_only=True)
class OneVsRest(Calibration):
    """A curve for each class."""

    fewest: int  # rows of the rarest class or of its others

    def apply(self, predictions: "Predictions") -> "Predictions":
        """Log odds of class 1 of two, log probabilities of more, log odds of many labels; in float64."""
        logits = predictions.logits[0]
        result = np.empty_like(logits)
        written = result.T

        @np.errstate(over="ignore")  # in every thread; what becomes infinite is refused
        def write(part: slice) -> None:
            own = log_odds_of(logits[part], self.label_kind)
            if curve_count(self.label_kind, self.classes) == 1:
                written[0, part], written[1, part] = 0, self.curve(own)[0]
            elif self.label_kind is LabelKind.MANY_LABELS:
                written[:, part] = self.curve(own)
            else:
                written[:, part] = self.log_probabilities(own)

        map_rows(len(logits), logits[None], write)
        return predictions.with_logits(result[None])

    @abstractmethod
    def curve(self, log_odds: Array) -> Array:
        """Calibrated log odds (curves, n), in the place of those given."""

    @abstractmethod
    def log_probabilities(self, log_odds: Array) -> Array:
        """The logarithms of the calibrated probabilities (curves, n), in the place of the log odds."""

    def remarks(self) -> list[str]:
        """A warning about few rows."""
        if self.fewest >= FEW_POSITIVES:
            return []
        rows = "row" if self.fewest == 1 else "rows"
        return [f"a class, or all others together, has {self.fewest} {rows} only: its curve is uncertain"]


def curve_count(kind: LabelKind, classes: int) -> int:
    """How many curves there are."""
    return 1 if kind is LabelKind.ONE_LABEL and classes == 2 else classes


@dataclass(frozen=True, kw_only=True)
class LogisticCurves(OneVsRest):
    """Log odds = slope_above * log p - slope_below * log(1 - p) + intercept; Platt's slopes are equal."""

    slopes_above: tuple[float, ...]
    slopes_below: tuple[float, ...]
    intercepts: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("slopes_above", "slopes_below", "intercepts"):
            require_numbers(name, getattr(self, name), count=curve_count(self.label_kind, self.classes))

    @classmethod
    @abstractmethod
    def features(cls, log_odds: Array) -> list[Array]:
        """What the slopes, one or two, are of."""

    @classmethod
    def fit(cls, val: "Predictions", *, weights: ArrayLike | None = None) -> Self:
        """One or two slopes and an intercept for each curve, with Platt's targets; two are of 0 or more.

        Minimises the NLL with the targets (k + 1) / (k + 2) and 1 / (n - k + 2) instead of 1 and 0, for k
        of n rows of the class: labels that are separated perfectly give no infinite slope.

        >>> from surefoot import Predictions
        >>> fitted = PlattScaling.fit(Predictions.from_logits([[4.0, 0.0]] * 4, [0, 0, 0, 1]))
        >>> round(float(fitted(Predictions.from_logits([[4.0, 0.0]], [0])).probs()[0, 0]), 4)
        0.6833
        """
        labelled, scores, positive, rows = curve_data(val, weights)
        positives, total = (rows * positive).sum(axis=1), rows.sum(axis=1)
        above, below = (positives + 1) / (positives + 2), 1 / (total - positives + 2)
        each = cls.features(scores)
        columns = np.stack(each) if len(each) > 1 else each[0][None]
        units = np.maximum(np.sqrt(np.vecdot(columns, columns) / columns.shape[2]), 1e-30)
        columns /= units[:, :, None]
        targets = np.where(positive, above[:, None], below[:, None])
        shares = np.broadcast_to(rows / np.maximum(total, 1e-300)[:, None], scores.shape)
        each_curve = zip(columns.swapaxes(0, 1), targets, shares, strict=True)
        found = np.stack([_best_curve(*each) for each in each_curve])
        slopes = [found[:, place] / unit for place, unit in enumerate(units)]
        return cls(
            slopes_above=tuple(slopes[0].tolist()),
            slopes_below=tuple(slopes[-1].tolist()),
            intercepts=tuple(found[:, -1].tolist()),
            **curve_facts(labelled, positive, rows),
        )

    @np.errstate(over="ignore", invalid="ignore")  # slopes of any size may come from a file
    def curve(self, log_odds: Array) -> Array:
        """Calibrated log odds (curves, n), in the place of those given."""
        above, below, intercepts = (
            np.array(each)[:, None] for each in (self.slopes_above, self.slopes_below, self.intercepts)
        )
        if self.slopes_above == self.slopes_below:
            log_odds *= below
        else:
            near = np.log1p(np.exp(-np.abs(log_odds)))
            high = below * (near + np.maximum(log_odds, 0))
            np.subtract(high, above * (near - np.minimum(log_odds, 0)), out=log_odds)
        log_odds += intercepts
        return log_odds

    def log_probabilities(self, log_odds: Array) -> Array:
        """The logarithms of the calibrated probabilities (curves, n), in the place of the log odds."""
        for some in spans(log_odds.shape[1], 1 + NUMBERS_IN_CACHE // len(log_odds)):
            own = self.curve(log_odds[:, some])
            near = np.negative(np.abs(own))
            np.log1p(np.exp(near, out=near), out=near)
            np.minimum(own, 0, out=own)
            own -= near
        return log_odds

    def parameters(self) -> dict[str, list[float]]:
        """The slopes and intercepts of all curves."""
        below = {} if self.slopes_above == self.slopes_below else {"b": list(self.slopes_below)}
        return {"a": list(self.slopes_above), **below, "c": list(self.intercepts)}

    def summary(self) -> str:
        """The numbers where they are few."""
        if sum(map(len, self.parameters().values())) <= MOST_PRINTED:
            return super().summary()
        return f"{len(self.intercepts):,} curves"

    def remarks(self) -> list[str]:
        """Also if a curve falls."""
        falling = sum(a + b < 0 for a, b in zip(self.slopes_above, self.slopes_below, strict=True))
        if not falling:
            return super().remarks()
        return [
            *super().remarks(),
            f"{falling} of {len(self.intercepts)} curves fall: higher logits mean lower probabilities; check "
            "that labels and classes are in the same order",
        ]


class PlattScaling(LogisticCurves):
    """sigmoid(a s + c) of the log odds s of each class. Platt, 1999."""

    kind: ClassVar[str] = "platt"

    @classmethod
    def features(cls, log_odds: Array) -> list[Array]:
        """The log odds."""
        return [log_odds]


class BetaCalibration(LogisticCurves):
    """sigmoid(a log p - b log(1 - p) + c), a and b of 0 or more, of each class. Kull et al., AISTATS 2017."""

    kind: ClassVar[str] = "beta"

    @classmethod
    def features(cls, log_odds: Array) -> list[Array]:
        """log p and -log(1 - p)."""
        return [-softplus(-log_odds)[0], softplus(log_odds)[0]]


def log_odds_of(logits: Floats, kind: LabelKind) -> Array:
    """Of each curve's class against all others, in float64: (classes, n), or (1, n) of two classes.

    log p_k - log(1 - p_k) = z_k - logsumexp of the others; computed without cancellation.

    >>> log_odds_of(np.array([[0.0, 40.0, 0.0]]), LabelKind.ONE_LABEL).T.round(4).tolist()
    [[-40.0, 39.3069, -40.0]]
    """
    if kind is LabelKind.ONE_LABEL and logits.shape[1] == 2:
        return np.subtract(logits[:, 1], logits[:, 0], dtype=np.float64)[None]
    result = np.array(logits.T, dtype=np.float64, order="C")
    if kind is LabelKind.ONE_LABEL:
        for part in spans(len(logits), 1 + NUMBERS_IN_CACHE // len(result)):
            _to_log_odds(result[:, part])
    return result


def _to_log_odds(logits: Array) -> None:
    """In place, of (classes, n)."""
    below = logits - logits.max(axis=0)
    weights = np.exp(below)
    rest = weights.sum(axis=0) - weights
    weights *= below < 0
    others = weights.sum(axis=0)  # than the largest logit
    np.copyto(rest, others, where=rest < 0.5)  # of the largest logit: a difference would cancel
    lost = np.flatnonzero(others < 1e-290)  # too little for an exponential
    if not len(lost):
        np.subtract(below, np.log(rest, out=rest), out=logits)
        return
    given = logits[:, lost]
    largest = given.argmax(axis=0), np.arange(len(lost))
    top, given[largest] = given[largest], -np.inf
    with np.errstate(divide="ignore"):
        np.subtract(below, np.log(rest, out=rest), out=logits)
    logits[largest[0], lost] = top - np.logaddexp.reduce(given, axis=0)


def curve_data(val: "Predictions", weights: ArrayLike | None) -> "tuple[Predictions, Array, Bools, Array]":
    """The labelled rows, and log odds, which are of a curve's class, and weights: (curves, n).

    Weights that are the same for every curve are (1, n).
    """
    labelled, counts = weighted_rows(val, weights)
    scores = log_odds_of(labelled.logits[0], labelled.kind)
    labels = labelled.labels.T
    if labelled.kind is LabelKind.MANY_LABELS:
        return labelled, scores, np.ascontiguousarray(labels == 1), counts * (labels >= 0)
    of_curve = np.array([1]) if len(scores) == 1 else np.arange(labelled.classes)
    positive = labels == of_curve[:, None]
    return labelled, scores, positive, counts[None]


def curve_facts(labelled: "Predictions", positive: Bools, rows: Array) -> dict[str, Any]:
    """The fields of every calibration by curves."""
    known = rows > 0
    positives, all_known = (np.count_nonzero(each, axis=1) for each in (positive & known, known))
    return data_facts(labelled) | {"fewest": int(np.minimum(positives, all_known - positives).min())}


def _best_curve(features: Array, targets: Array, weights: Array) -> Array:
    """Slopes and the intercept with the least NLL; two slopes are of 0 or more."""

    def problem(step: int) -> Problem:
        each = (with_bias(features), targets[None], weights[None])
        inputs, truth, counts = (np.ascontiguousarray(rows[:, ::step]) for rows in each)
        return Problem(Full(inputs, 1), truth, counts, exclusive=False)

    share = float(weights @ targets) if weights.any() else 0.5
    flat = np.append(np.zeros(len(features)), math.log(share / (1 - share)))
    start = flat[None]
    if len(targets) >= ENOUGH:
        start = minimised(problem(PART), start, tolerance=ROUGH)
    found: Array = minimised(problem(1), start)[0]
    if len(features) == 1 or (found[:-1] >= 0).all():
        return found
    candidates = [flat]  # with one slope of 0, or two
    for place in (0, 1):
        slope, intercept = _best_curve(features[[place]], targets, weights)
        if slope >= 0:
            candidates.append(np.array([*((slope, 0.0) if place == 0 else (0.0, slope)), intercept]))
    return min(candidates, key=lambda each: float(problem(1).losses(each[None]).sum()))


PLATT = Calibrator(
    "platt", "Platt scaling", "sigmoid(a log(p / (1 - p)) + c) of each class, divided by the sum",
    "Platt, 1999", kind=PlattScaling.kind, fit=PlattScaling.fit, read=PlattScaling.from_dict,
    options=(WEIGHTS,)
)  # fmt: skip
BETA = Calibrator(
    "beta", "Beta calibration", "sigmoid(a log p - b log(1 - p) + c) of each class, divided by the sum",
    "Kull et al., AISTATS 2017", kind=BetaCalibration.kind, fit=BetaCalibration.fit,
    read=BetaCalibration.from_dict, options=(WEIGHTS,)
)  # fmt: skip
