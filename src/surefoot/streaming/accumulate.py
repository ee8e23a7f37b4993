"""Mergeable sums and counts of predictions."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from surefoot.metrics.calibration import SMOOTH_GRID, spread_on_grid
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Array
from surefoot.streaming.cells import ONE, Grid, Histogram, LogOdds, Whole
from surefoot.streaming.outcomes import (
    Batch,
    BatchOutcomes,
    Scaling,
    class_by_class,
    sigmoid_outcomes,
    softmax_outcomes,
)


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of some facts and of all their products; the sums are carried in two float64, head and rest."""

    head: Array  # (facts,)
    rest: Array  # what was rounded off the head
    products: Array  # (facts, facts)

    @staticmethod
    def empty(facts: int) -> "Sums":
        return Sums(np.zeros(facts), np.zeros(facts), np.zeros((facts, facts)))

    @staticmethod
    def of(facts: Array) -> "Sums":
        """Of facts (facts, rows)."""
        return Sums(facts.sum(axis=1), np.zeros(len(facts)), facts @ facts.T)

    @property
    def total(self) -> Array:
        return self.head + self.rest

    def merged(self, other: "Sums") -> "Sums":
        """Both together; Knuth's two-sum keeps what the addition rounds off."""
        head = self.head + other.head
        of_other = head - self.head
        lost = (self.head - (head - of_other)) + (other.head - of_other)
        return Sums(head, self.rest + other.rest + lost, self.products + other.products)


NUMBERS_AT_ONCE = 120_000  # logits held in float64 at a time: what is made of them stays in the cache
SUMMED = ("nll", "nll_unclipped", "squared_error", "true_class_error", "entropy", "confidence", "wrong")


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
class Request:
    """What is tallied: under which scalings (None is as given), above which confidences, in which cells."""

    shape: Shape
    thresholds: tuple[float, ...]
    versions: tuple[Scaling | None, ...]
    grids: tuple[Grid, ...]  # one per version

    @staticmethod
    def of(
        shape: Shape, thresholds: tuple[float, ...] = (), versions: tuple[Scaling | None, ...] = (None,)
    ) -> "Request":
        return Request(shape, thresholds, versions, (Grid.of(shape.blocks),) * len(versions))

    @property
    def facts(self) -> int:
        """How many sums are kept: of the decisions, then version by version."""
        return 1 + len(self.versions) * (len(SUMMED) + 2 * len(self.thresholds))

    def place(self, version: int, fact: str) -> int:
        """Where a version's sum is found."""
        names = [*SUMMED, *(f"{what}{t!r}" for t in self.thresholds for what in ("sure", "wrong above"))]
        return 1 + version * len(names) + names.index(fact)


@dataclass(frozen=True, eq=False)
class Accumulator:
    """Sums and counts of some rows; two of them merge into that of all their rows."""

    question: Request
    rows: int  # with at least one known label
    sums: Sums
    histograms: tuple[Histogram, ...]  # one per version
    residuals: Array  # (versions, blocks, SMOOTH_GRID): what smooth ECE reads
    odds: tuple[LogOdds, ...]  # one per version; none for one label
    one_hot: bool = True  # many labels: every row has exactly one

    @staticmethod
    def empty(question: Request) -> "Accumulator":
        shape, versions = question.shape, len(question.versions)
        many = shape.kind is LabelKind.MANY_LABELS
        return Accumulator(
            question=question,
            rows=0,
            sums=Sums.empty(question.facts),
            histograms=tuple(Histogram.empty(grid, shape.blocks) for grid in question.grids),
            residuals=np.zeros((versions, shape.blocks, SMOOTH_GRID)),
            odds=tuple(LogOdds.empty(shape.classes) for _ in range(versions)) if many else (),
        )

    def merged(self, other: "Accumulator") -> "Accumulator":
        """Both together: whole numbers exactly, sums to the last digits of a float64."""
        pairs = zip(self.histograms, other.histograms, strict=True)
        return Accumulator(
            question=self.question,
            rows=self.rows + other.rows,
            sums=self.sums.merged(other.sums),
            histograms=tuple(ours.merged(theirs) for ours, theirs in pairs),
            residuals=self.residuals + other.residuals,
            odds=tuple(ours.merged(theirs) for ours, theirs in zip(self.odds, other.odds, strict=True)),
            one_hot=self.one_hot and other.one_hot,
        )


def accumulate(batches: Iterable[Batch], question: Request) -> Accumulator:
    """The tally of all rows of the batches, each read once and forgotten."""
    found = Accumulator.empty(question)
    for batch in batches:
        found = _counted(found, labelled(batch))
    return found


def labelled(batch: Batch) -> Batch:
    known = batch.labels >= 0 if batch.labels.ndim == 1 else (batch.labels >= 0).any(axis=1)
    return batch if known.all() else Batch(batch.logits[:, known], batch.labels[known])


def _counted(found: Accumulator, batch: Batch) -> Accumulator:
    """The tally with a batch added. Its arrays of counts are its own, and are filled in place."""
    question, n = found.question, len(batch.labels)
    shape = question.shape
    many = shape.kind is LabelKind.MANY_LABELS
    doubts = np.empty((len(question.versions), shape.blocks, n))
    wrong = np.empty(doubts.shape, dtype=bool)
    scores = np.empty(doubts.shape) if many else None
    sums = found.sums
    step = max(1, NUMBERS_AT_ONCE // (shape.members * shape.classes))
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        labels = batch.labels[rows].T
        facts = np.empty((question.facts, rows.stop - start))
        facts[0] = (labels >= 0).sum(axis=0) if many else 1
        for version, scaling in enumerate(question.versions):
            judged = _batch_outcomes(class_by_class(batch, rows, shape.kind, scaling), labels, shape.kind)
            doubts[version, :, rows], wrong[version, :, rows] = judged.doubt, judged.wrong
            if scores is not None:
                scores[version, :, rows] = judged.score
            _sum_facts(judged, question, facts[question.place(version, SUMMED[0]) :])
        sums = sums.merged(Sums.of(facts))
    for version, histogram in enumerate(found.histograms):
        _fill(histogram, found.residuals[version], doubts[version], wrong[version], batch.labels)
        if scores is not None:
            found.odds[version].add(scores[version], batch.labels.T)
    one_hot = found.one_hot and many and _is_one_hot(batch.labels)
    return replace(found, rows=found.rows + n, sums=sums, one_hot=one_hot)


def _is_one_hot(labels: Whole) -> bool:
    return bool((labels >= 0).all() and ((labels == 1).sum(axis=1) == 1).all())


def _batch_outcomes(logits: Array, labels: Whole, kind: LabelKind) -> BatchOutcomes:
    return (softmax_outcomes if kind is LabelKind.ONE_LABEL else sigmoid_outcomes)(logits, labels)


def _sum_facts(judged: BatchOutcomes, question: Request, into: Array) -> None:
    """Each row's facts, summed over its decisions."""
    columns = [
        np.where(judged.confidence > 0, judged.nll, 0.0),  # 0 where the label is not known
        -judged.log_p_true,
        judged.squared_error,
        judged.true_class_error,
        judged.entropy,
        judged.confidence,
        judged.wrong,
    ]
    for threshold in question.thresholds:
        sure = judged.confidence > threshold
        columns += [sure, sure & judged.wrong]
    for row, column in enumerate(columns):
        into[row] = column[0] if len(column) == 1 else column.sum(axis=0)


def _fill(
    histogram: Histogram, residuals: Array, doubts: Array, wrong: NDArray[np.bool_], labels: Whole
) -> None:
    for block, (doubt, missed) in enumerate(zip(doubts, wrong, strict=True)):
        if labels.ndim == 2:
            known = labels[:, block] >= 0
            doubt, missed = doubt[known], missed[known]
        histogram.add(block, doubt, missed)
        confidence = (ONE - doubt) / ONE
        residuals[block] += spread_on_grid(confidence, ~missed - confidence)
