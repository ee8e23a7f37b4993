"""Probabilities of exactly 0, as forests, trees and nearest neighbours give them. Does not need torch.

A probability below LEAST, in whatever type, is read as LEAST, so that its logarithm is the same number from
every file and type. What the model meant is not known: of a forest of 100 trees, a 0 is anything below 0.01.
So a calibration reads a 0 as half the smallest positive probability of the data that it was fitted on.
"""

import math

import numpy as np
from numpy.typing import NDArray

from surefoot.predictions.labels import LabelKind

Floats = NDArray[np.floating]
Array = NDArray[np.float64]

LEAST = 2.0**-126  # the smallest normal float32, 1.2e-38
LOG_ZERO = math.log(LEAST)  # -87.3
NUMBERS_AT_ONCE = 2**20
TOLERANCE = 1.1e-3  # of a logarithm: that of a row's sum, which may be off by 1e-3, and that of float32
MOST = 0.25  # that a 0 is read as: of a tree, all probabilities may be 0 and 1


def as_zeros(probs: Floats) -> Floats:
    """The probabilities, those below LEAST as LEAST; a copy."""
    return np.maximum(probs, probs.dtype.type(LEAST))


def half_of_smallest(logits: Floats, kind: LabelKind) -> float | None:
    """Half the smallest positive probability where some are exactly 0; None where none is."""
    zeros, smallest = zeros_and_smallest(logits, kind)
    return stand_in(smallest) if zeros else None


def stand_in(smallest: float) -> float | None:
    """What a 0 is read as, from the log of the smallest positive probability; None: as LEAST, which it is."""
    half = min(math.exp(smallest) / 2, MOST)
    return half if half > 2 * LEAST else None


def zeros_and_smallest(logits: Floats, kind: LabelKind) -> tuple[bool, float]:
    """Whether some probability is exactly 0, and the log of the smallest other one."""
    some, smallest = False, 0.0
    for part in _parts(logits) if _some_may_be_zero(logits) else ():
        logs = log_probs(logits[:, part], kind)
        zeros = np.abs(logs - LOG_ZERO) <= TOLERANCE
        some = some or bool(zeros.any())
        smallest = float(np.min(logs, initial=smallest, where=~zeros))
    return some, smallest


def raise_zeros(logits: Floats, kind: LabelKind, lowest: float) -> Floats:
    """Logits (members, n, classes) whose probabilities are at least `lowest`, in their own type."""
    if kind is LabelKind.MANY_LABELS:
        limit = math.log(lowest) - math.log1p(-lowest)
        return np.clip(logits, limit, -limit)
    raised = np.empty_like(logits)
    for part in _parts(logits):
        np.maximum(
            log_probs(logits[:, part], kind), math.log(lowest), out=raised[:, part], casting="same_kind"
        )
    return raised


def count_true_zeros(logits: Floats, labels: NDArray[np.integer], kind: LabelKind) -> int:
    """How many known labels have a probability of exactly 0 (members, n, classes): by every member."""
    if not _some_may_be_zero(logits):
        return 0
    if kind is LabelKind.MANY_LABELS:
        towards_truth = np.where(labels == 1, logits, -logits)  # log p is about this number where it is low
        of_truth = np.where(labels >= 0, towards_truth, 0.0)
    else:
        rows = np.flatnonzero(labels >= 0)
        of_truth = log_probs(logits[:, rows], kind)[:, np.arange(len(rows)), labels[rows]]
    return int((np.abs(of_truth - LOG_ZERO) <= TOLERANCE).all(axis=0).sum())


def log_probs(logits: Floats, kind: LabelKind) -> Array:
    """Log p of each class; for many labels that of the less probable of present and absent."""
    if kind is LabelKind.MANY_LABELS:
        magnitude = np.abs(logits.astype(np.float64))
        return np.asarray(-magnitude - np.log1p(np.exp(-magnitude)))
    shifted = logits - logits.max(axis=-1, keepdims=True).astype(np.float64)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _parts(logits: Floats) -> list[slice]:
    """Some rows at a time, so that their logarithms in float64 take little memory."""
    members, n, classes = logits.shape
    rows = max(1, NUMBERS_AT_ONCE // (members * classes))
    return [slice(start, start + rows) for start in range(0, n, rows)]


def _some_may_be_zero(logits: Floats) -> bool:
    low, high = float(logits.min(initial=0)), float(logits.max(initial=0))
    return may_have_zeros(low, high, logits.shape[-1])


def may_have_zeros(low: float, high: float, classes: int) -> bool:
    """Whether logits from `low` to `high` span enough for the logarithm of a 0."""
    return max(high - low, high, -low) >= -LOG_ZERO - math.log(classes) - TOLERANCE
