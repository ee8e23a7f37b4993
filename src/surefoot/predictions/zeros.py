"""Probabilities of exactly 0, as forests, trees and nearest neighbours give them. Does not need torch.

A probability below LEAST, in whatever type, is read as LEAST, so that its logarithm is the same number from
every file and type. What the model meant is not known: of a forest of 100 trees, a 0 is anything below 0.01.
So a calibration reads a 0 as half the smallest positive probability of the data that it was fitted on.
"""

import math

import numpy as np
from numpy.typing import NDArray

from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import Floats, extremes_of, map_rows

Array = NDArray[np.float64]

LEAST = 2.0**-126  # the smallest normal float32, 1.2e-38
LOG_ZERO = math.log(LEAST)  # -87.3
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
    if not _some_may_be_zero(logits):
        return False, 0.0

    def look(part: slice) -> tuple[bool, float]:
        logs = log_probs(logits[:, part], kind)
        zeros = _are_zero(logs)
        return bool(zeros.any()), float(np.min(logs, initial=0.0, where=~zeros))

    found = map_rows(logits.shape[1], logits, look)
    return any(some for some, _ in found), min(smallest for _, smallest in found)


def raise_zeros(logits: Floats, kind: LabelKind, lowest: float) -> Floats:
    """Logits (members, n, classes) whose probabilities are at least `lowest`, in their own type."""
    if kind is LabelKind.MANY_LABELS:
        limit = math.log(lowest) - math.log1p(-lowest)
        return np.clip(logits, limit, -limit)
    raised = np.empty_like(logits)

    def write(part: slice) -> None:
        raised[:, part] = np.maximum(log_probs(logits[:, part], kind), math.log(lowest))

    map_rows(logits.shape[1], logits, write)
    return raised


def count_true_zeros(logits: Floats, labels: NDArray[np.integer], kind: LabelKind) -> int:
    """How many known labels have a probability of exactly 0 (members, n, classes): by every member."""
    if not _some_may_be_zero(logits):
        return 0

    def count(part: slice) -> int:
        of_part, truth = logits[:, part], labels[part]
        if kind is LabelKind.MANY_LABELS:
            towards = np.where(truth == 1, of_part, -of_part)  # log p is about this number where it is low
            return int(_are_zero(np.where(truth >= 0, towards, 0.0)).all(axis=0).sum())
        rows = np.flatnonzero(truth >= 0)
        of_truth = log_probs(of_part[:, rows], kind)[:, np.arange(len(rows)), truth[rows]]
        return int(_are_zero(of_truth).all(axis=0).sum())

    return sum(map_rows(logits.shape[1], logits, count))


def _are_zero(logs: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.abs(logs - LOG_ZERO) <= TOLERANCE)


def log_probs(logits: Floats, kind: LabelKind) -> Array:
    """Log p of each class; for many labels that of the less probable of present and absent."""
    if kind is LabelKind.MANY_LABELS:
        magnitude = np.abs(logits.astype(np.float64))
        return np.asarray(-magnitude - np.log1p(np.exp(-magnitude)))
    shifted = logits - logits.max(axis=-1, keepdims=True).astype(np.float64)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _some_may_be_zero(logits: Floats) -> bool:
    """Whether the logits span enough for the logarithm of a 0."""
    low, high = extremes_of(logits) if logits.size else (0.0, 0.0)
    return max(high - low, high, -low) >= -LOG_ZERO - math.log(logits.shape[-1]) - TOLERANCE
