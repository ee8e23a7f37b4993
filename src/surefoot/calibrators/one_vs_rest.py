"""Platt, beta, isotonic and histogram calibration: a curve for each class, from log odds to log odds.

A class is compared with all others together; for exclusive classes the probabilities are then divided by
their sum. Two classes have one curve, that of class 1; many labels have one for each label.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from surefoot.calibrators.affine import MOST_PRINTED
from surefoot.calibrators.calibration import Calibration, evidence_from, numbers_from
from surefoot.calibrators.curves import Curves
from surefoot.calibrators.logistic import softplus
from surefoot.calibrators.temperature import FittedModule, weighted_rows
from surefoot.errors import require_whole
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Array, Bools
from surefoot.predictions.predictions import Predictions

BINS = 10
MOST_BINS = 1_000_000
MOST_COUNTED = 127  # points of a curve that values are compared with one by one, instead of searched for,
COUNTED_VALUES = 200  # if there are so many times as many values
FEW_POSITIVES = 20  # rows of a class, or of the others


@dataclass(frozen=True, kw_only=True)
class OneVsRest(Calibration):
    """A curve for each class."""

    n: int
    label_kind: LabelKind
    classes: int
    fewest: int  # rows of the rarest class or of its others

    def apply(self, predictions: Predictions) -> Predictions:
        """Log odds of class 1 of two, log probabilities of more, log odds of many labels; in float64."""
        logits = predictions.logits[0]
        calibrated = self.module(torch.float64)(logits.to(torch.float64))
        return predictions.with_logits(calibrated.to(logits.dtype).unsqueeze(0))

    @abstractmethod
    def module(self, dtype: torch.dtype = torch.float32) -> "OneVsRestModule":
        """As a torch module of logits (n, classes)."""

    def remarks(self) -> list[str]:
        """A warning about few rows."""
        if self.fewest >= FEW_POSITIVES:
            return []
        rows = "row" if self.fewest == 1 else "rows"
        return [f"a class, or all others together, has {self.fewest} {rows} only: its curve is uncertain"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return super().to_dict() | {"label_kind": str(self.label_kind)}

    @classmethod
    def facts(cls, document: dict[str, Any]) -> dict[str, Any]:
        """The fields that all kinds have."""
        return {
            "n": int(document["n"]),
            "label_kind": LabelKind(document["label_kind"]),
            "classes": int(document["classes"]),
            "fewest": int(document["fewest"]),
            "evidence": evidence_from(document),
        }


def curve_count(kind: LabelKind, classes: int) -> int:
    """How many curves there are."""
    return 1 if kind is LabelKind.ONE_LABEL and classes == 2 else classes


@dataclass(frozen=True, kw_only=True)
class LogisticCurves(OneVsRest):
    """Log odds = slope_above * log p - slope_below * log(1 - p) + intercept; Platt's slopes are equal."""

    slopes_above: tuple[float, ...]
    slopes_below: tuple[float, ...]
    intercepts: tuple[float, ...]

    def module(self, dtype: torch.dtype = torch.float32) -> "LogisticModule":
        """As a torch module of logits (n, classes)."""
        curves = (self.slopes_above, self.slopes_below, self.intercepts)
        return LogisticModule(torch.tensor(curves, dtype=dtype), self.label_kind, self.classes)

    def parameters(self) -> dict[str, list[float]]:
        """The slopes and intercepts of all curves."""
        below = {} if self.slopes_above == self.slopes_below else {"b": list(self.slopes_below)}
        return {"a": list(self.slopes_above), **below, "c": list(self.intercepts)}

    def summary(self) -> str:
        """The numbers where they are few."""
        if sum(map(len, self.parameters().values())) <= MOST_PRINTED:
            return super().summary()
        return f"{len(self.intercepts):,} curves"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        curves = ("slopes_above", "slopes_below", "intercepts")
        return super().to_dict() | {name: list(getattr(self, name)) for name in curves}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """From plain values."""
        facts = cls.facts(document)
        count = curve_count(facts["label_kind"], facts["classes"])
        for name in ("slopes_above", "slopes_below", "intercepts"):
            facts[name] = numbers_from(document[name], name, count)
        return cls(**facts)

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


@dataclass(frozen=True, kw_only=True)
class PlattScaling(LogisticCurves):
    """sigmoid(a s + c) of the log odds s."""

    kind: ClassVar[str] = "platt"


@dataclass(frozen=True, kw_only=True)
class BetaCalibration(LogisticCurves):
    """sigmoid(a log p - b log(1 - p) + c), a and b of 0 or more."""

    kind: ClassVar[str] = "beta"


@dataclass(frozen=True, kw_only=True)
class Pieces(OneVsRest):
    """Curves given by points, from log odds to probabilities, with straight lines in between."""

    scores: tuple[tuple[float, ...], ...]  # of each curve, not falling
    probabilities: tuple[tuple[float, ...], ...]

    def module(self, dtype: torch.dtype = torch.float32) -> "PiecesModule":
        """As a torch module of logits (n, classes)."""
        return PiecesModule(self.scores, self.probabilities, self.label_kind, self.classes, dtype)

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


Logistic = TypeVar("Logistic", bound=LogisticCurves)
OfPieces = TypeVar("OfPieces", bound=Pieces)


class OneVsRestModule(FittedModule, ABC):
    """Logits (n, classes) to log odds of each curve (curves, n), through the curve, and back."""

    def __init__(self, kind: LabelKind, classes: int) -> None:
        super().__init__()
        self.kind, self.classes = kind, classes

    @abstractmethod
    def curve(self, log_odds: Tensor) -> Tensor:
        """Calibrated log odds (curves, n)."""

    def log_probabilities(self, log_odds: Tensor) -> Tensor:
        """Of each curve, (curves, n)."""
        return -F.softplus(-self.curve(log_odds))

    def forward(self, logits: Tensor) -> Tensor:
        given = log_odds(logits, self.kind)
        if self.kind is LabelKind.MANY_LABELS:
            return self.curve(given).T
        if self.classes == 2:
            return F.pad(self.curve(given), (0, 0, 1, 0)).T
        return self.log_probabilities(given).T


class LogisticModule(OneVsRestModule):
    """Curves of two slopes and an intercept."""

    parameters_of_curves: Tensor

    def __init__(self, curves: Tensor, kind: LabelKind, classes: int) -> None:
        super().__init__(kind, classes)
        self.register_buffer("parameters_of_curves", curves)

    def curve(self, log_odds: Tensor) -> Tensor:
        above, below, intercept = self.parameters_of_curves.to(log_odds).unsqueeze(2)
        # s = log p - log(1 - p), so that equal slopes give slope * s exactly, however large s is.
        calibrated: Tensor = below * log_odds + (above - below) * -F.softplus(-log_odds) + intercept
        return calibrated


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
    elif not values.is_cuda and scores.shape[1] <= min(MOST_COUNTED, values.numel() // COUNTED_VALUES):
        passed = _counted(values, scores)
    else:
        passed = torch.searchsorted(scores, values, right=True)
    left = (passed - 1).clamp(min=0)
    spans, rises = scores.diff(dim=1), probabilities.diff(dim=1)
    is_step = spans < torch.finfo(spans.dtype).tiny
    slopes = F.pad(torch.where(is_step, 0, rises / torch.where(is_step, 1, spans)), (0, 1))
    beyond = (values - scores.gather(1, left)).clamp(min=0)
    return probabilities.gather(1, left) + beyond * slopes.gather(1, left)


def _counted(values: Tensor, scores: Tensor) -> Tensor:
    """As torch.searchsorted(right=True): its search takes 25 ns for each value, a comparison 0.2 ns."""
    own = values.detach().numpy()
    passed = np.zeros(own.shape, dtype=np.uint8)
    for point in scores.numpy().T:
        passed += own >= point[:, None]
    return torch.from_numpy(passed).to(torch.int64)


def log_odds(logits: Tensor, kind: LabelKind) -> Tensor:
    """Of each curve's class against all others: (classes, n), or (1, n) of two classes.

    log p_k - log(1 - p_k) = z_k - logsumexp of the others; computed without cancellation.

    >>> log_odds(torch.tensor([[0.0, 40.0, 0.0]]), LabelKind.ONE_LABEL).T
    tensor([[-40.0000,  39.3069, -40.0000]])
    """
    if kind is LabelKind.MANY_LABELS:
        return logits.T.contiguous()
    if logits.shape[1] == 2:
        return (logits[:, 1] - logits[:, 0]).unsqueeze(0)
    below = logits.T.contiguous()
    below = below - below.amax(dim=0)
    weights = below.exp()
    found = below - torch.log((weights.sum(dim=0) - weights).clamp(min=0.5))  # of all but the largest logit
    largest = logits.argmax(dim=1).unsqueeze(0)
    others = below.scatter(0, largest, -torch.inf).logsumexp(dim=0, keepdim=True)
    return found.scatter(0, largest, -others)


def fit_platt_scaling(val: Predictions, *, weights: ArrayLike | None = None) -> PlattScaling:
    """sigmoid(a s + c) of the log odds s of each class, with Platt's targets. Platt, 1999.

    Minimises the NLL with the targets (k + 1) / (k + 2) and 1 / (n - k + 2) instead of 1 and 0, for k of n
    rows of the class: labels that are separated perfectly give no infinite slope.

    >>> fitted = fit_platt_scaling(Predictions.from_logits([[4.0, 0.0]] * 4, [0, 0, 0, 1]))
    >>> round(torch.softmax(fitted.module()(torch.tensor([[4.0, 0.0]])), dim=1)[0, 0].item(), 4)
    0.6833
    """
    return _fit_logistic(PlattScaling, val, weights, lambda s: [s])


def fit_beta_calibration(val: Predictions, *, weights: ArrayLike | None = None) -> BetaCalibration:
    """sigmoid(a log p - b log(1 - p) + c), a and b of 0 or more, of each class. Kull et al., AISTATS 2017.

    With Platt's targets, as `fit_platt_scaling`.
    """
    return _fit_logistic(BetaCalibration, val, weights, lambda s: [-softplus(-s)[0], softplus(s)[0]])


def fit_isotonic_calibration(val: Predictions, *, weights: ArrayLike | None = None) -> IsotonicCalibration:
    """The non-decreasing step function with the least squared error. Zadrozny & Elkan, KDD 2002.

    Between its steps it is interpolated along the log odds. A probability is at least 1 / (n + 2) and at most
    1 - 1 / (n + 2): no number of rows shows that something is impossible.
    """
    from scipy.optimize import isotonic_regression  # slow to import

    def points(scores: Array, mass: Array, positives: Array) -> tuple[Array, Array]:
        fitted = isotonic_regression(positives / mass, weights=mass)
        ends = np.stack([fitted.blocks[:-1], fitted.blocks[1:] - 1], axis=1).ravel()
        ends = ends[np.diff(ends, prepend=-1) > 0]  # a block of one score has one end
        return scores[ends], fitted.x[ends]

    return _fit_pieces(IsotonicCalibration, val, weights, points)


def fit_histogram_calibration(
    val: Predictions, *, bins: int = BINS, weights: ArrayLike | None = None
) -> HistogramCalibration:
    """The share of the class in each of `bins` bins with equal numbers of rows. Zadrozny & Elkan, ICML 2001.

    Rows with the same logits are in the same bin. A probability is at least 1 / (n + 2), as for `isotonic`.
    """
    require_whole("bins", bins, 1, MOST_BINS)

    def points(scores: Array, mass: Array, positives: Array) -> tuple[Array, Array]:
        reached = np.cumsum(mass)
        limits = reached[-1] * np.arange(1, bins) / bins
        starts = np.unique(np.append(0, np.searchsorted(reached, limits * (1 - 1e-12)) + 1))
        starts = starts[starts < len(scores)]
        shares = np.add.reduceat(positives, starts) / np.add.reduceat(mass, starts)
        edges = (scores[starts[1:]] + scores[starts[1:] - 1]) / 2
        return np.concatenate([scores[:1], np.repeat(edges, 2), scores[-1:]]), np.repeat(shares, 2)

    return _fit_pieces(HistogramCalibration, val, weights, points)


def _data(val: Predictions, weights: ArrayLike | None) -> tuple[Predictions, Array, Bools, Array]:
    """The labelled rows, and of each curve log odds, which are of its class, and weights: (curves, n)."""
    labelled, counts = weighted_rows(val, weights)
    scores = log_odds(labelled.logits[0].to(torch.float64), labelled.kind).numpy()
    labels = labelled.labels.numpy().T
    if labelled.kind is LabelKind.MANY_LABELS:
        return labelled, scores, np.ascontiguousarray(labels == 1), counts * (labels >= 0)
    of_curve = np.array([1]) if len(scores) == 1 else np.arange(labelled.classes)
    positive = labels == of_curve[:, None]
    return labelled, scores, positive, np.broadcast_to(counts, positive.shape)


def _facts(labelled: Predictions, positive: Bools, rows: Array) -> dict[str, Any]:
    known = rows > 0
    positives, all_known = (np.count_nonzero(each, axis=1) for each in (positive & known, known))
    return {
        "n": labelled.n,
        "label_kind": labelled.kind,
        "classes": labelled.classes,
        "fewest": int(np.minimum(positives, all_known - positives).min()),
    }


def _fit_logistic(
    kind: type[Logistic],
    val: Predictions,
    weights: ArrayLike | None,
    features: Callable[[Array], list[Array]],
) -> Logistic:
    """One or two slopes and an intercept for each curve; two slopes are of 0 or more."""
    labelled, scores, positive, rows = _data(val, weights)
    positives, total = (rows * positive).sum(axis=1), rows.sum(axis=1)
    above, below = (positives + 1) / (positives + 2), 1 / (total - positives + 2)
    columns = np.stack(features(scores))
    units = np.maximum(np.sqrt(np.vecdot(columns, columns) / columns.shape[2]), 1e-30)
    columns /= units[:, :, None]
    targets = np.where(positive, above[:, None], below[:, None])
    curves = Curves.of(columns, targets, rows / np.maximum(total, 1e-300)[:, None])
    start = np.zeros((len(scores), len(columns) + 1))
    start[:, -1] = np.log((positives + 1) / (total - positives + 1))
    found = curves.minimised(start)
    if len(columns) == 2:
        found = _with_slopes_not_negative(curves, start, found)
    slopes = [found[:, place] / unit for place, unit in enumerate(units)]
    return kind(
        slopes_above=tuple(slopes[0].tolist()),
        slopes_below=tuple(slopes[-1].tolist()),
        intercepts=tuple(found[:, -1].tolist()),
        **_facts(labelled, positive, rows),
    )


def _with_slopes_not_negative(curves: Curves, start: Array, found: Array) -> Array:
    """The best parameters whose slopes are of 0 or more: where they are not, one of them or both are 0."""
    wrong = (found[:, :-1] < 0).any(axis=1)
    if not wrong.any():
        return found
    best, least = found.copy(), np.where(wrong, np.inf, -np.inf)
    for free in ([0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 1.0]):
        candidate = curves.minimised(start, np.tile(free, (len(found), 1)))
        losses = curves.losses(candidate)
        better = (candidate[:, :-1] >= 0).all(axis=1) & (losses < least)
        best[better], least[better] = candidate[better], losses[better]
    return best


def _fit_pieces(
    kind: type[OfPieces],
    val: Predictions,
    weights: ArrayLike | None,
    points: Callable[[Array, Array, Array], tuple[Array, Array]],
) -> OfPieces:
    """The points of each curve, from its different scores with their weight and that of its positives."""
    labelled, scores, positive, rows = _data(val, weights)
    curves = []
    for score, is_positive, weight in zip(scores, positive, rows, strict=True):
        order = np.argsort(score)
        if not weight.all():
            order = order[weight[order] > 0]
        if not len(order):  # no label of this class is known: the curve changes nothing it could know of
            curves.append((np.array([0.0]), np.array([0.5])))
            continue
        ordered, mass = score[order], weight[order]
        firsts = np.flatnonzero(np.diff(ordered, prepend=-np.inf))
        positives = mass * is_positive[order]
        if len(firsts) < len(order):  # rows with the same score are one
            ordered, mass, positives = (
                ordered[firsts],
                *(np.add.reduceat(each, firsts) for each in (mass, positives)),
            )
        x, y = points(ordered, mass, positives)
        least = 1 / (float(mass.sum()) + 2)
        curves.append((x, np.clip(y, least, 1 - least)))
    return kind(
        scores=tuple(tuple(x.tolist()) for x, _ in curves),
        probabilities=tuple(tuple(y.tolist()) for _, y in curves),
        **_facts(labelled, positive, rows),
    )
