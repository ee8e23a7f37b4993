"""Vector, matrix and Dirichlet scaling: an affine map of the logits, regularised, fitted exactly."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.calibrators.calibration import Calibration, data_facts, require_numbers
from surefoot.calibrators.declaration import Calibrator, Option
from surefoot.calibrators.logistic import (
    EXACT,
    ROUGH,
    Design,
    Diagonal,
    Full,
    Penalty,
    Problem,
    minimised,
    with_bias,
)
from surefoot.calibrators.temperature import WEIGHTS, fit_temperature, weighted_rows
from surefoot.errors import InputError
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import Floats
from surefoot.predictions.outcomes import Array, Bools

if TYPE_CHECKING:
    from surefoot.predictions.predictions import Predictions

FOLDS = 5
SEED = 0
GRID = tuple(10.0**power for power in range(6, -5, -1))  # of the regularisation, from strong to weak
_KEYS = tuple(np.sqrt(np.arange(2.0, 66.0)).tolist())  # of a sum of a row's logits that differs between rows
HOPELESS = 1.01  # times the lowest NLL: the search goes no further after two weaker ones in a row above it
LOGITS_IN_CROSS_VALIDATION = 2**20  # about so many, of every k-th row
FEW_ROWS_PER_PARAMETER = 10
MOST_PRINTED = 8  # numbers in a line
SEPARATED = 1e-6  # an NLL on the fitted rows below this one
CERTAIN = 30.0  # log odds of every label from which a fit without a best one starts, and ends at once,
NO_MARGIN = 1e-6  # unless they are this many units of the logits or less


@dataclass(frozen=True, kw_only=True)
class Affine(Calibration):
    """softmax(W f + b), or a sigmoid of each; f are centred logits or log probabilities."""

    is_log_probability: ClassVar[bool] = False  # of f; else it is z - mean z, for many labels z
    is_diagonal: ClassVar[bool] = False

    weights: tuple[tuple[float, ...], ...]  # (classes, classes); of a diagonal one, (1, classes)
    bias: tuple[float, ...]
    regularisation: float
    cross_validated: bool  # whether cross-validation chose the regularisation
    separable: bool = False  # the labels of the fitted rows are predicted perfectly

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = 1 if self.is_diagonal else self.classes
        if len(self.weights) != rows:
            raise InputError(f"weights are not a list of {rows} rows")
        for name, numbers in (*(("weights", row) for row in self.weights), ("bias", self.bias)):
            require_numbers(name, numbers, count=self.classes)
        require_numbers("regularisation", [self.regularisation], least=0)

    @classmethod
    def fit(
        cls,
        val: "Predictions",
        *,
        regularisation: float | None = None,
        weights: ArrayLike | None = None,
    ) -> Self:
        """The parameters with the least mean NLL + r penalty(V), V those of logits in units of T.

        T is that of `fit_temperature`. The penalty of a vector is mean_k (v_k - mean v)^2 + mean_k b_k^2: the
        more regularisation, the closer to one temperature. That of a matrix is the mean over i != j of V_ij^2
        + mean_k b_k^2 (ODIR). Without `regularisation`, five-fold cross-validation on `val` chooses it.
        """
        if val.kind is LabelKind.MANY_LABELS and not cls.is_diagonal:
            raise InputError(
                f"method {cls.kind!r} mixes classes that exclude each other, and these rows have many "
                "labels; allowed: vector, platt, beta, isotonic, histogram, temperature"
            )
        REGULARISATION.check(regularisation)
        labelled, rows = weighted_rows(val, weights)
        features = _features(cls, labelled.logits[0], labelled.kind)
        plain = fit_temperature(labelled, weights=None if weights is None else rows)
        unit = plain.temperature
        if plain.at_bound:
            unit = max(float(np.sqrt(np.square(features).mean())), 1e-30)
        if plain.separable:
            margin = _smallest_margin(labelled) / (CERTAIN + math.log(labelled.classes))
            unit = margin if margin > NO_MARGIN * unit else unit
        features /= unit
        chosen = regularisation
        if chosen is None:
            chosen = _cross_validated(cls, features, labelled, rows)
        design, penalty = _design(cls, features), _penalty(cls, labelled, chosen)
        problem = _problem(design, labelled.labels, rows, penalty)
        found = minimised(problem, design.start(), tolerance=EXACT)
        own, bias = found[:, :-1] / unit, found[:, -1]
        return cls(
            weights=tuple(map(tuple, (own.T if cls.is_diagonal else own).tolist())),
            bias=tuple(bias.tolist()),
            regularisation=float(chosen),
            cross_validated=regularisation is None,
            separable=float(problem.losses(found).sum()) < SEPARATED,
            **data_facts(labelled),
        )

    def apply(self, predictions: "Predictions") -> "Predictions":
        """W f + b, computed in float64."""
        weights, bias = np.array(self.weights), np.array(self.bias)
        features = _features(type(self), predictions.logits[0], self.label_kind)
        calibrated = features * weights.T if self.is_diagonal else weights @ features
        calibrated += bias[:, None]
        return predictions.with_logits(calibrated.T.astype(predictions.logits.dtype, order="C")[None])

    def parameters(self) -> dict[str, list[float]]:
        """The weights of each class's own logit, and the biases; the others are in the file."""
        own = self.weights[0] if self.is_diagonal else [self.weights[k][k] for k in range(self.classes)]
        return {"weights": list(own), "bias": list(self.bias)}

    @property
    def parameter_count(self) -> int:
        """How many numbers were fitted."""
        return sum(len(row) for row in self.weights) + len(self.bias)

    def summary(self) -> str:
        """The fitted numbers where they are few, otherwise how many there are."""
        chosen = ", by cross-validation" if self.cross_validated else ""
        fitted = super().summary()
        if 2 * self.classes > MOST_PRINTED:
            fitted = f"{self.parameter_count:,} parameters"
        return f"{fitted} (regularisation {self.regularisation:g}{chosen})"

    def remarks(self) -> list[str]:
        """Warnings about the number of rows and about labels that are predicted perfectly."""
        if self.separable:
            return [
                "the labels of these rows can be predicted perfectly: no fit is the best, as a more certain "
                "one is always better; use more validation data, or the method 'temperature'"
            ]
        if self.n < FEW_ROWS_PER_PARAMETER * self.parameter_count:
            return [
                f"n = {self.n:,} rows are few for {self.parameter_count:,} parameters: compare with the "
                "method 'temperature' on other held-out rows"
            ]
        return []


class VectorScaling(Affine):
    """softmax(w * f + b), f = z - mean z: a weight and a bias for each class. Guo et al., ICML 2017.

    For many labels sigmoid(w_k z_k + b_k).
    """

    kind: ClassVar[str] = "vector"
    is_diagonal: ClassVar[bool] = True


class MatrixScaling(Affine):
    """softmax(W f + b), f = z - mean z, regularised off the diagonal (ODIR). Kull et al., NeurIPS 2019."""

    kind: ClassVar[str] = "matrix"


class DirichletScaling(Affine):
    """softmax(W log p + b), as matrix scaling of the logarithms of the probabilities."""

    kind: ClassVar[str] = "dirichlet"
    is_log_probability: ClassVar[bool] = True


def _smallest_margin(labelled: "Predictions") -> float:
    """How far the logits of known labels are at least above all others, or on the right side of 0."""
    logits, labels = labelled.logits[0].astype(np.float64), labelled.labels
    if labelled.kind is LabelKind.MANY_LABELS:
        return float(np.abs(logits[labels >= 0]).min())
    rows = np.arange(len(labels))
    true = logits[rows, labels]
    logits[rows, labels] = -np.inf
    return float((true - logits.max(axis=1)).min())


@dataclass(frozen=True, eq=False)
class _Fold:
    """Rows to fit and rows to test."""

    train: Problem
    test: Problem
    share: float  # the weight of the rows to test


def _cross_validated(kind: type[Affine], features: Array, labelled: "Predictions", rows: Array) -> float:
    """The regularisation of the grid with the lowest NLL of rows left out; of equal ones the strongest.

    Without groups, equal rows are a group: neither copies nor the order of rows change the folds.
    """
    part = np.arange(labelled.n)[:: max(1, features.size // LOGITS_IN_CROSS_VALIDATION)]
    if len(part) < labelled.n:
        features, labelled, rows = features[:, part], labelled.take(part), rows[part]
    folds, design = _folds(kind, features, labelled, rows), _design(kind, features)
    parameters = [design.start()] * len(folds)
    best, least, worse = GRID[0], math.inf, 0
    for strength in GRID:
        penalty = _penalty(kind, labelled, strength)
        parameters = [
            minimised(replace(fold.train, penalty=penalty), at, tolerance=ROUGH)
            for fold, at in zip(folds, parameters, strict=True)
        ]
        tested = zip(folds, parameters, strict=True)
        total = sum(fold.share * float(fold.test.losses(found).sum()) for fold, found in tested)
        if total < least:
            best, least = strength, total
        worse = worse + 1 if total > HOPELESS * least else 0
        if worse == 2:
            break
    return best


def folds_of(n: int, groups: NDArray[np.generic] | None, folds: int = FOLDS) -> Iterator[Bools]:
    """For each fold, whether a row is held out; a group is never divided. The same every time.

    Fewer folds where there are fewer rows or groups; none where there is one only.

    >>> [fold.tolist() for fold in folds_of(4, np.array(["a", "b", "a", "b"]))]
    [[True, False, True, False], [False, True, False, True]]
    """
    unit_of = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    units = int(unit_of.max()) + 1 if n else 0
    count = min(folds, units)
    if count < 2:
        return
    fold_of = np.empty(units, dtype=np.int64)
    fold_of[np.random.default_rng(SEED).permutation(units)] = np.arange(units) % count
    for fold in range(count):
        yield fold_of[unit_of] == fold


def _folds(kind: type[Affine], features: Array, labelled: "Predictions", rows: Array) -> list[_Fold]:
    """Without those that have no known label to fit or to test."""
    units, labels = labelled.groups, labelled.labels
    if units is None:
        units = sum((weight * column for weight, column in zip(_KEYS, features, strict=False)), np.zeros(1))

    def problem(part: Bools) -> Problem:
        index = np.flatnonzero(part)
        return _problem(_design(kind, features.take(index, axis=1)), labels.take(index, axis=0), rows[index])

    result = []
    for held_out in folds_of(labelled.n, units):
        train, test = problem(~held_out), problem(held_out)
        if train.weights.any() and test.weights.any():
            result.append(_Fold(train, test, float(rows[held_out].sum())))
    return result


def _problem(
    design: Design, labels: NDArray[np.integer], rows: Array, penalty: Penalty | None = None
) -> Problem:
    """The weighted mean NLL over known labels, with a penalty; labels are as in `Predictions`."""
    exclusive = labels.ndim == 1
    if exclusive:
        targets = np.zeros((design.classes, len(labels)))
        targets[labels, np.arange(len(labels))] = 1.0
        weights = rows.reshape(1, -1)
    else:
        targets = np.ascontiguousarray((labels == 1).T, dtype=np.float64)
        weights = rows * np.ascontiguousarray((labels >= 0).T)
    total = float(weights.sum())
    return Problem(design, targets, weights / (total or 1.0), exclusive, penalty)


def _features(kind: type[Affine], logits: Floats, label_kind: LabelKind) -> Array:
    """(classes, n): the logits of many labels; of one label centred, or log probabilities."""
    features = np.array(logits.T, dtype=np.float64, order="C")
    if label_kind is LabelKind.ONE_LABEL and kind.is_log_probability:
        features -= features.max(axis=0)
        features -= np.log(np.exp(features).sum(axis=0))
    elif label_kind is LabelKind.ONE_LABEL:
        features -= features.mean(axis=0)
    return features


def _design(kind: type[Affine], features: Array) -> Design:
    if kind.is_diagonal:
        return Diagonal(features, len(features))
    return Full(with_bias(features), len(features))


def _penalty(kind: type[Affine], labelled: "Predictions", strength: float = 0.0) -> Penalty:
    """Of a vector: the variance of weights over classes and the squares of biases; otherwise ODIR."""
    classes = labelled.classes
    if kind.is_diagonal:
        squared = np.tile([0.0, 1 / classes], (classes, 1))
        return Penalty(strength, squared, np.array([1.0, 0.0]))
    squared = np.full((classes, classes + 1), 1 / max(1, classes * (classes - 1)))
    squared[:, -1] = 1 / classes
    squared[np.arange(classes), np.arange(classes)] = 0.0
    return Penalty(strength, squared)


REGULARISATION = Option(
    "regularisation",
    float,
    None,
    "strength of the regularisation",
    low=0,
    shown_default="chosen by cross-validation",
)
VECTOR = Calibrator(
    "vector", "Vector scaling", "softmax(w z + b), a weight and a bias for each class",
    "Guo et al., ICML 2017", kind=VectorScaling.kind, fit=VectorScaling.fit, read=VectorScaling.from_dict,
    options=(REGULARISATION, WEIGHTS)
)  # fmt: skip
MATRIX = Calibrator(
    "matrix", "Matrix scaling", "softmax(W z + b), regularised off the diagonal",
    "Kull et al., NeurIPS 2019", kind=MatrixScaling.kind, fit=MatrixScaling.fit,
    read=MatrixScaling.from_dict, options=(REGULARISATION, WEIGHTS), one_label_only=True
)  # fmt: skip
DIRICHLET = replace(
    MATRIX, name="dirichlet", title="Dirichlet calibration",
    formula="softmax(W log p + b), regularised off the diagonal", kind=DirichletScaling.kind,
    fit=DirichletScaling.fit, read=DirichletScaling.from_dict
)  # fmt: skip
