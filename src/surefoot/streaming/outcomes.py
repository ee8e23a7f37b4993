"""Per-decision outcomes in numpy and float64, class by class."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from surefoot import kernels
from surefoot.errors import InputError
from surefoot.predictions.classes import Order
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import ONE, Array, Bools
from surefoot.predictions.validate import LARGEST_LOGIT
from surefoot.streaming.cells import Whole

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration


@dataclass(frozen=True)
class Scaling:
    """Temperatures that members are divided by: one after they are averaged, or one each before."""

    temperatures: tuple[float, ...]
    averaged_first: bool = True

    def check(self, logits: NDArray[np.floating]) -> None:
        """Refuse logits that would be too large, as in memory; averages are checked when they are made."""
        if len(logits) == 1 or not self.averaged_first:
            self._check_size(logits, logits.dtype)

    def divide(self, averaged: Array, dtype: "np.dtype[np.floating]") -> None:
        """Averages of members of that type, in place."""
        self._check_size(averaged, dtype)
        averaged /= self.temperatures[0]

    def _check_size(self, logits: NDArray[np.floating], dtype: "np.dtype[np.floating]") -> None:
        largest = max(-float(logits.min()), float(logits.max())) / min(1.0, *self.temperatures)
        most = min(LARGEST_LOGIT, float(np.finfo(dtype).max))
        if not largest <= most:
            raise InputError(f"calibrated logits are up to {largest:g} in size; allowed: up to {most:g}")


@dataclass(frozen=True, eq=False)
class Applied:
    """Any other calibration that needs nothing but a row's logits."""

    calibration: "Calibration"
    order: Order = None  # of the classes, as the calibration's `check` returned it

    def __call__(self, logits: NDArray[np.floating], kind: LabelKind) -> NDArray[np.floating]:
        """Calibrated logits (members, rows, classes)."""
        from surefoot.predictions.predictions import Predictions

        given = Predictions.from_logits(logits, None, kind=kind)
        calibrated = self.calibration.calibrated(given, self.order)
        result: NDArray[np.floating] = calibrated.logits.numpy()
        return result


Rescaling = Scaling | Applied


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a file: logits (members, rows, classes), labels (rows,) or (rows, classes)."""

    logits: NDArray[np.floating]
    labels: Whole


@dataclass(frozen=True, eq=False)
class BatchOutcomes:
    """Facts per decision, (blocks, rows) each; of any value where the label is not known."""

    log_p_true: Array
    squared_error: Array
    confidence: Array  # rounded, as in `outcomes`
    doubt: Array  # 1 - confidence as a whole number of 1e-12
    correct: Bools
    entropy: Array
    score: Array | None = None  # many labels: log odds
    known: Bools | None = None  # many labels: whether the label is


def outcomes_of(batch: Batch, rows: slice, kind: LabelKind, scaling: Rescaling | None) -> BatchOutcomes:
    """Facts of some rows of a batch, whose members are scaled and averaged."""
    logits, labels = batch.logits[:, rows], batch.labels[rows]
    if isinstance(scaling, Applied):
        logits, scaling = scaling(logits, kind), None
    if scaling is not None and (len(logits) == 1 or not scaling.averaged_first):
        with np.errstate(over="ignore"):  # of an infinite one all logits are 0
            factors = np.array(scaling.temperatures, dtype=logits.dtype).reshape(-1, 1, 1)
        logits = logits / factors  # in the type of the file, as a calibration does it in memory
    if kind is LabelKind.ONE_LABEL and len(logits) == 1 and kernels.fits(logits[0]):
        return _compiled_outcomes(logits[0], labels)
    averaged = _averaged(logits, kind)
    if len(logits) > 1 and scaling is not None and scaling.averaged_first:
        scaling.divide(averaged, logits.dtype)
    return (softmax_outcomes if kind is LabelKind.ONE_LABEL else sigmoid_outcomes)(averaged, labels.T)


def _averaged(logits: NDArray[np.floating], kind: LabelKind) -> Array:
    """The mean of the members (classes, rows) in float64, to be overwritten."""
    if len(logits) == 1:
        return _double(logits[0])
    average = _average_softmax if kind is LabelKind.ONE_LABEL else _average_sigmoid
    return average(np.stack([_double(member) for member in logits]))


def _compiled_outcomes(logits: NDArray[np.floating], labels: Whole) -> BatchOutcomes:
    facts, correct, _ = kernels.softmax_facts(logits, labels.astype(np.int64, copy=False), None)
    log_p_true, confidence, squared_error, entropy = facts[:, None]
    return BatchOutcomes(
        log_p_true=log_p_true,
        squared_error=squared_error,
        confidence=confidence,
        doubt=ONE - np.rint(confidence * ONE),
        correct=correct[None],
        entropy=entropy,
    )


def softmax_outcomes(logits: Array, labels: Whole) -> BatchOutcomes:
    """Facts of rows that all have a label. `logits` (classes, rows) is scratch and is overwritten."""
    rows = np.arange(len(labels))
    logits -= logits.max(axis=0)
    true = logits[labels, rows]
    unnormalised = np.exp(logits)
    total = unnormalised.sum(axis=0)
    log_total = np.log(total)
    correct = true >= 0
    tied = np.flatnonzero((total >= 2) & correct)  # with two at the top, the first is the predicted class
    correct[tied] = logits[:, tied].argmax(axis=0) == labels[tied]
    logits *= unnormalised
    entropy = log_total - logits.sum(axis=0) / total
    unnormalised[labels, rows] = 0.0
    others = unnormalised.sum(axis=0)
    np.square(unnormalised, out=unnormalised)
    squares = unnormalised.sum(axis=0)
    confidence = np.rint(1 / total * ONE)
    return BatchOutcomes(
        log_p_true=(true - log_total)[None],
        squared_error=((np.square(others) + squares) / np.square(total) / len(logits))[None],
        confidence=(confidence / ONE)[None],
        doubt=(ONE - confidence)[None],
        correct=correct[None],
        entropy=entropy[None],
    )


def sigmoid_outcomes(score: Array, labels: Whole) -> BatchOutcomes:
    """Facts of every row and class, from log odds and labels (classes, rows)."""
    positive = labels == 1
    magnitude = np.abs(score)
    small = np.exp(-magnitude)
    softplus, whole = np.log1p(small), 1 + small
    against = np.where(positive, score < 0, score > 0)  # the truth has the smaller probability
    confidence = np.rint(1 / whole * ONE)
    return BatchOutcomes(
        log_p_true=-softplus - np.where(against, magnitude, 0.0),
        squared_error=np.square(np.where(against, 1.0, small) / whole),
        confidence=confidence / ONE,
        doubt=ONE - confidence,
        correct=(score >= 0) == positive,  # a probability of exactly one half predicts 'present'
        entropy=softplus + magnitude * small / whole,
        score=score,
        known=labels >= 0,
    )


def _double(logits: NDArray[np.floating]) -> Array:
    return np.array(logits.T, dtype=np.float64, order="C")


def _average_softmax(logits: Array) -> Array:
    """log p = logsumexp over members of log softmax, less log M; (members, classes, rows)."""
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return np.asarray(_log_sum(logits) - np.log(len(logits)))


def _average_sigmoid(logits: Array) -> Array:
    """Log odds of the mean sigmoid: of the sums, because log M would round off log odds close to 0."""
    return _log_sum(-np.logaddexp(0, -logits)) - _log_sum(-np.logaddexp(0, logits))


def _log_sum(logs: Array) -> Array:
    top = logs.max(axis=0)
    return np.asarray(np.log(np.exp(logs - top).sum(axis=0)) + top)
