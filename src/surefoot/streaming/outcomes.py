"""Outcomes of rows of a file, under a calibration."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.predictions.classes import Order
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import Facts, Whole, average, facts_of
from surefoot.predictions.validate import LARGEST_LOGIT

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


@dataclass(frozen=True)
class Scaling:
    """Temperatures that members are divided by: one after they are averaged, or one each before."""

    temperatures: tuple[float, ...]
    averaged_first: bool = True

    def check(self, logits: NDArray[np.floating]) -> None:
        """Refuse logits that would be too large, as in memory; averages are checked when they are made."""
        if len(logits) == 1 or not self.averaged_first:
            self.check_size(logits)

    def check_size(self, logits: NDArray[np.floating]) -> None:
        """The same of logits that are divided as they are."""
        largest = max(-float(logits.min()), float(logits.max())) / min(1.0, *self.temperatures)
        most = min(LARGEST_LOGIT, float(np.finfo(logits.dtype).max))
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
        return self.calibration.calibrated(given, self.order).logits


Rescaling = Scaling | Applied


def rescaling_of(calibration: "Calibration", shape: Shape) -> Rescaling:
    """A calibration, to be applied while streaming."""
    if calibration.needs_novelty:
        raise InputError(f"a {calibration.kind} calibration cannot be streamed; allowed: {IN_MEMORY}")
    order = calibration.check(shape)
    if not calibration.temperatures or calibration.lowest_probability is not None:
        return Applied(calibration, order)
    return Scaling(calibration.temperatures, averaged_first=calibration.averages_members)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a file: logits (members, rows, classes), labels (rows,) or (rows, classes)."""

    logits: NDArray[np.floating]
    labels: Whole


def labelled(batch: Batch) -> Batch:
    """The rows that have a known label."""
    known = batch.labels >= 0 if batch.labels.ndim == 1 else (batch.labels >= 0).any(axis=1)
    return batch if known.all() else Batch(batch.logits[:, known], batch.labels[known])


def outcomes_of(batch: Batch, rows: slice, kind: LabelKind, scaling: Rescaling | None) -> Facts:
    """Facts of some rows of a batch, whose members are scaled and averaged."""
    logits, labels = batch.logits[:, rows], batch.labels[rows]
    if isinstance(scaling, Applied):
        logits, scaling = scaling(logits, kind), None
    if scaling is not None:
        if len(logits) > 1 and scaling.averaged_first:
            logits = average(logits, kind)[None]
            scaling.check_size(logits)
        with np.errstate(over="ignore"):  # of an infinite one all logits are 0
            factors = np.array(scaling.temperatures, dtype=logits.dtype).reshape(-1, 1, 1)
        logits = logits / factors  # in the type of the file, as a calibration does it in memory
    return facts_of(logits, labels, kind)
