"""Rows of a file, and the calibration that they are read with."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.predictions.classes import Order
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import Whole

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration

IN_MEMORY = "all rows in memory (read_predictions in Python, --no-stream)"


@dataclass(frozen=True)
class Shape:
    """What all batches must have in common."""

    kind: LabelKind
    classes: int
    members: int
    class_names: tuple[str, ...] | None = None

    @property
    def blocks(self) -> int:
        """Parts of the decisions that are ranked apart: one, or for many labels the classes."""
        return 1 if self.kind is LabelKind.ONE_LABEL else self.classes


@dataclass(frozen=True, eq=False)
class Rescaling:
    """A calibration that needs nothing but a row's logits."""

    calibration: "Calibration"
    order: Order  # of the classes, as the calibration's `check` returned it

    @staticmethod
    def of(calibration: "Calibration", shape: Shape) -> "Rescaling":
        """Of rows of that shape."""
        if calibration.needs_novelty:
            raise InputError(f"a {calibration.kind} calibration cannot be streamed; allowed: {IN_MEMORY}")
        return Rescaling(calibration, calibration.check(shape))

    def __call__(self, logits: NDArray[np.floating], kind: LabelKind) -> NDArray[np.floating]:
        """Calibrated logits (members, rows, classes)."""
        from surefoot.predictions.predictions import Predictions

        return self.calibration.calibrated(
            Predictions.from_logits(logits, None, kind=kind), self.order
        ).logits


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a file: logits (members, rows, classes), labels (rows,) or (rows, classes)."""

    logits: NDArray[np.floating]
    labels: Whole


def labelled(batch: Batch) -> Batch:
    """The rows that have a known label."""
    known = batch.labels >= 0 if batch.labels.ndim == 1 else (batch.labels >= 0).any(axis=1)
    return batch if known.all() else Batch(batch.logits[:, known], batch.labels[known])
