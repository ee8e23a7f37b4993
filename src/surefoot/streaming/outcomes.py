"""Per-decision outcomes in numpy and float64, class by class."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.metrics.proper import CLIP
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Array
from surefoot.streaming.cells import ONE, Whole

LEAST, MOST = np.log(CLIP)


@dataclass(frozen=True)
class Scaling:
    """Temperatures that members are divided by: one after they are averaged, or one each before."""

    temperatures: tuple[float, ...]
    averaged_first: bool = True


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a file: logits (members, rows, classes), labels (rows,) or (rows, classes)."""

    logits: NDArray[np.floating]
    labels: Whole


@dataclass(frozen=True, eq=False)
class BatchOutcomes:
    """Facts per decision, (blocks, rows) each; where the label is not known they are 0."""

    log_p_true: Array
    squared_error: Array
    true_class_error: Array  # (1 - p_true)^2
    confidence: Array  # rounded, as in `outcomes`
    doubt: Array  # 1 - confidence as a whole number of 1e-12
    wrong: NDArray[np.bool_]
    entropy: Array
    score: Array | None = None  # many labels: log odds

    @property
    def nll(self) -> Array:
        return np.asarray(-np.clip(self.log_p_true, LEAST, MOST))


def class_by_class(batch: Batch, rows: slice, kind: LabelKind, scaling: Scaling | None) -> Array:
    """Averaged and scaled logits (classes, rows) in float64, to be overwritten."""
    logits = batch.logits[:, rows]
    if scaling is not None and (len(logits) == 1 or not scaling.averaged_first):
        factors = np.array(scaling.temperatures, dtype=logits.dtype).reshape(-1, 1, 1)
        logits = logits / factors  # in the type of the file, as a calibration does it in memory
    if len(logits) == 1:
        return _double(logits[0])
    average = _average_softmax if kind is LabelKind.ONE_LABEL else _average_sigmoid
    averaged = average(np.stack([_double(member) for member in logits]))
    if scaling is not None and scaling.averaged_first:
        averaged /= scaling.temperatures[0]
    return averaged


def softmax_outcomes(logits: Array, labels: Whole) -> BatchOutcomes:
    """Facts of rows that all have a label. `logits` (classes, rows) is scratch and is overwritten."""
    rows = np.arange(len(labels))
    logits -= logits.max(axis=0)
    true = logits[labels, rows]
    unnormalised = np.exp(logits)
    total = unnormalised.sum(axis=0)
    log_total = np.log(total)
    wrong = true < 0
    tied = np.flatnonzero((total >= 2) & ~wrong)  # with two at the top, the first is the predicted class
    wrong[tied] = logits[:, tied].argmax(axis=0) != labels[tied]
    logits *= unnormalised
    entropy = log_total - logits.sum(axis=0) / total
    unnormalised[labels, rows] = 0.0
    others = unnormalised.sum(axis=0)
    np.square(unnormalised, out=unnormalised)
    squares = unnormalised.sum(axis=0)
    true_class_error = np.square(others / total)
    sure = np.rint(1 / total * ONE)
    return BatchOutcomes(
        log_p_true=(true - log_total)[None],
        squared_error=((true_class_error + squares / np.square(total)) / len(logits))[None],
        true_class_error=true_class_error[None],
        confidence=(sure / ONE)[None],
        doubt=(ONE - sure)[None],
        wrong=wrong[None],
        entropy=entropy[None],
    )


def sigmoid_outcomes(score: Array, labels: Whole) -> BatchOutcomes:
    """Facts of every row and class, from log odds and labels (classes, rows)."""
    known, positive = labels >= 0, labels == 1
    magnitude = np.abs(score)
    small = np.exp(-magnitude)
    softplus, whole = np.log1p(small), 1 + small
    wrong = (score >= 0) != positive  # a probability of exactly one half says 'present'
    against = np.where(positive, score < 0, score > 0)  # the truth has the smaller probability
    squared = np.square(np.where(against, 1.0, small) / whole)
    sure = np.rint(1 / whole * ONE)
    return BatchOutcomes(
        log_p_true=np.where(known, -softplus - np.where(against, magnitude, 0.0), 0.0),
        squared_error=np.where(known, squared, 0.0),
        true_class_error=np.where(known, squared, 0.0),
        confidence=np.where(known, sure / ONE, 0.0),
        doubt=ONE - sure,
        wrong=wrong & known,
        entropy=np.where(known, softplus + magnitude * small / whole, 0.0),
        score=score,
    )


def _double(logits: NDArray[np.floating]) -> Array:
    return np.array(logits.T, dtype=np.float64, order="C")


def _average_softmax(logits: Array) -> Array:
    """log p = logsumexp over members of log softmax, less log M; (members, classes, rows)."""
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return np.asarray(_log_sum(logits) - np.log(len(logits)))


def _average_sigmoid(logits: Array) -> Array:
    """Log odds of the mean sigmoid: of the sums, for log M would swallow log odds that are close to 0."""
    return _log_sum(-np.logaddexp(0, -logits)) - _log_sum(-np.logaddexp(0, logits))


def _log_sum(logs: Array) -> Array:
    top = logs.max(axis=0)
    return np.asarray(np.log(np.exp(logs - top).sum(axis=0)) + top)
