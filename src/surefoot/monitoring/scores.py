"""What the monitor compares: some numbers of each row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.calibrators import Calibration
from surefoot.decisions.chunks import Keys, Source, confidences, facts_of, groups_of, identities_of, joined
from surefoot.decisions.groups import (
    NO_INTERVAL,
    Grouped,
    mean_of,
    proportion_of,
    some_of,
)
from surefoot.metrics.intervals import Interval
from surefoot.monitoring.detectors import MOST_ROWS
from surefoot.predictions.classes import class_names_of
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.novelty import energy
from surefoot.predictions.outcomes import Array, Bools, Index
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.validate import Floats

MOST_PROBS = 2**24  # probabilities of many labels that are kept of one side, to compare label by label


@dataclass(frozen=True, eq=False)
class Scores:
    """What the monitor compares: numbers for each row, and which rows are accepted."""

    confidence: Array
    own_energy: Array
    one_logit: Bools  # of each part of the rows: whether all first logits are 0
    own_novelty: Array | None  # if the file has it
    accepted: Array | None  # 0 or 1 for each row, with thresholds
    known: Bools  # which rows have a label
    correct: Bools | Array  # of each labelled row; many labels: the share of its labels
    sure_of_labels: Array | None  # many labels: the mean confidence of the same labels
    calibrated: bool
    vectors: Floats | None  # (n, classes): average logits; None of many rows
    probs: Array | None  # many labels: (n, classes), not calibrated; None of many
    classes: NDArray[np.integer] | None  # the predicted class; None for many labels
    features: Array | None  # None of many rows
    ids: pa.ChunkedArray | None
    identities: dict[str, pa.ChunkedArray]
    groups: Keys | None
    class_names: tuple[str, ...]

    @property
    def n(self) -> int:
        return len(self.confidence)

    @cached_property
    def novelty(self) -> Mapping[str, Array]:
        """'energy', and 'novelty' if the file has it.

        0 for files with one logit, which is stored with a 0: their energy would rank the rows by class.
        """
        energy = np.zeros(self.n) if self.one_logit.all() else self.own_energy
        return {"energy": energy} | ({} if self.own_novelty is None else {"novelty": self.own_novelty})

    @cached_property
    def group_of(self) -> Index | None:
        """The group of each row as a number; None where rows are independent."""
        return None if self.groups is None else self.groups.group_of

    def grouped(self, values: Array) -> Grouped:
        """Values of all rows, or of the labelled ones, with their groups."""
        every = len(values) == self.n
        return values, self.group_of if every else some_of(self.group_of, self.known)

    @property
    def surplus(self) -> Array | None:
        """Correct less confidence of each labelled row; None without labels."""
        if len(self.correct) < 2:
            return None
        sure = self.confidence[self.known] if self.sure_of_labels is None else self.sure_of_labels
        return np.asarray(self.correct - sure)

    @cached_property
    def accuracy(self) -> Interval:
        """NaN without labels."""
        if len(self.correct) < 2:
            return NO_INTERVAL
        correct, group_of = self.grouped(np.asarray(self.correct))
        if self.classes is None:
            return mean_of((correct, group_of))
        k = proportion_of(correct > 0, group_of)
        return Interval(k.value, k.low, k.high)


def scores_of(
    source: Source,
    *,
    calibration: Calibration | None = None,
    accepted: Callable[[Predictions], Bools] | None = None,
    arranged: Callable[[Predictions], Predictions] = lambda rows: rows,
) -> Scores:
    """The scores that a check compares; `arranged` is applied to the rows first."""
    seen = 0  # by several threads: what one of them has missed is left out in the end

    def work(rows: Predictions) -> Scores:
        nonlocal seen
        seen += rows.n
        return _limited(_scores(arranged(rows), calibration, accepted), seen)

    scores = joined(facts_of(source, work))
    return _limited(scores, scores.n)


def _limited(scores: Scores, rows: int) -> Scores:
    """Without what is not compared of so many rows."""
    if rows * len(scores.class_names) > MOST_PROBS:
        scores = replace(scores, probs=None)
    return scores if rows <= MOST_ROWS else replace(scores, vectors=None, features=None)


def _scores(
    predictions: Predictions,
    calibration: Calibration | None,
    accepted: Callable[[Predictions], Bools] | None,
) -> Scores:
    one_label = predictions.kind is LabelKind.ONE_LABEL
    calibrated = predictions if calibration is None else calibration(predictions)
    confidence, of_calibrated = confidences(calibrated)
    known, correct, sure = _against_labels(calibrated, of_calibrated)
    predicted = of_calibrated if calibration is None else confidences(predictions)[1]
    return Scores(
        confidence=confidence,
        own_energy=energies(predictions),
        one_logit=np.array([one_label and not predictions.logits[:, :, 0].any()]),
        own_novelty=predictions.novelty,
        accepted=None if accepted is None else accepted(predictions).astype(float),
        known=known,
        correct=correct,
        sure_of_labels=sure,
        calibrated=calibration is not None,
        vectors=predictions.average().logits[0],
        probs=None if one_label else predictions.probs(),
        classes=predicted if one_label else None,
        features=None if predictions.features is None else predictions.features.astype(np.float64),
        ids=None if predictions.ids is None else pa.chunked_array([pa.array(predictions.ids)]),
        identities=identities_of(predictions),
        groups=groups_of(predictions),
        class_names=class_names_of(predictions),
    )


def energies(predictions: Predictions) -> Array:
    """The energy of each row, the mean over members: averaged logits have another one."""
    return np.asarray(np.mean([energy(member, predictions.kind) for member in predictions.logits], axis=0))


def _against_labels(
    calibrated: Predictions, predicted: NDArray[np.integer]
) -> tuple[Bools, Bools | Array, Array | None]:
    """Which rows have a label, and whether these are correct; many labels: means over those of a row."""
    if calibrated.kind is LabelKind.ONE_LABEL:
        known = calibrated.labels >= 0
        return known, (predicted == calibrated.labels)[known], None
    outcomes = calibrated.outcomes
    decisions = np.bincount(outcomes.row, minlength=calibrated.n)
    known = decisions > 0
    correct, sure = (
        np.bincount(outcomes.row, values, calibrated.n)[known] / decisions[known]
        for values in (outcomes.correct, outcomes.confidence)
    )
    return known, correct, sure
