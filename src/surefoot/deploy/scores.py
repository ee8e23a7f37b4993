"""What thresholds and the monitor keep of each row, from predictions in memory or from files in chunks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.calibrators import Calibration
from surefoot.deploy.detectors import MOST_ROWS
from surefoot.deploy.groups import (
    IDENTITY,
    NO_INTERVAL,
    PREDICTED_CLASS,
    Grouped,
    mean_of,
    proportion_of,
    some_of,
)
from surefoot.errors import InputError
from surefoot.intervals import Interval
from surefoot.predictions.classes import class_names_of
from surefoot.predictions.files import refuse_other_columns
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import averaged_columns, map_rows
from surefoot.predictions.novelty import energy
from surefoot.predictions.outcomes import DECIMALS, Array, Bools, Curve, Index, Ranking
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.readers import Part, batch_rows
from surefoot.predictions.scanned import ScannedPredictions
from surefoot.predictions.validate import Floats
from surefoot.runtime import in_parallel

NUMBERS = 2**18  # logits in a chunk
MOST_PROBS = 2**24  # probabilities of many labels that are kept of one side, to compare label by label
Source = Predictions | ScannedPredictions
Facts = TypeVar("Facts")


def first_rows(source: Source) -> Predictions:
    """The predictions themselves; of files, rows of the first one that names its classes, if one does."""
    if isinstance(source, Predictions):
        return source
    first, seen = None, set()
    for part in source.parts:
        if part.path in seen:
            continue
        rows = next(source.predictions_in(part), None)
        if rows is not None:
            seen.add(part.path)
            if rows.class_names is not None:
                return rows
            first = rows if first is None else first
    if first is None:
        raise InputError("no rows in any of these files; allowed: at least one row")
    return first


def facts_of(source: Source, work: Callable[[Predictions], Facts]) -> list[Facts]:
    """`work` of all rows in memory, or of some thousand rows of files at a time, in their order."""
    if isinstance(source, Predictions):
        return [work(source)]
    if source.engine != "local":
        raise InputError(f"the engine is {source.engine!r}; allowed here: 'local', which needs no cluster")
    first = first_rows(source)

    def read(part: Part) -> list[Facts]:
        facts = []
        for rows in source.predictions_in(part, rows=batch_rows(first, NUMBERS)):
            refuse_other_columns({"other files": first, part.path: rows})
            facts.append(work(rows))
        return facts

    every = [facts for of_part in in_parallel(read, source.parts) for facts in of_part]
    pa.default_memory_pool().release_unused()  # some hundred megabytes that were decoded
    return every


@dataclass(frozen=True, eq=False)
class Keys:
    """A column of names or numbers: each value once, as they first appear, and which of them a row has."""

    values: pa.Array
    codes: NDArray[np.integer]

    @staticmethod
    def of(column: NDArray[Any]) -> "Keys":
        """Of a column's values."""
        encoded = pa.array(column).dictionary_encode()
        return Keys(encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False))

    @staticmethod
    def joined(parts: "Sequence[Keys]") -> "Keys":
        """The rows of all parts, one after another."""
        encoded = [pa.DictionaryArray.from_arrays(pa.array(part.codes), part.values) for part in parts]
        same = pa.chunked_array(encoded).unify_dictionaries().chunks
        return Keys(same[-1].dictionary, np.concatenate([each.indices.to_numpy() for each in same]))

    @cached_property
    def names(self) -> list[Any]:
        """The values as Python's."""
        names: list[Any] = self.values.to_pylist()
        return names

    @property
    def group_of(self) -> Index | None:
        """The group of each row; None where no two rows are of one group."""
        return None if np.bincount(self.codes).max(initial=0) < 2 else cast(Index, self.codes)

    def take(self, rows: NDArray[Any]) -> "Keys":
        """Some of the rows, with their values as they first appear among these."""
        again = Keys.of(self.codes[rows])
        return Keys(self.values.take(again.values), again.codes)

    def rows_of(self, rows: Index) -> list[Index]:
        """Those of the rows that have each value."""
        codes = self.codes[rows]
        ends = np.cumsum(np.bincount(codes, minlength=len(self.values)))
        return np.split(rows[np.argsort(codes, kind="stable")], ends[:-1])

    def divides_as(self, other: "Keys") -> bool:
        """Whether both divide the rows in the same way."""
        pairs = len(np.unique(self.codes.astype(np.int64) * len(other.values) + other.codes))
        return pairs == len(np.unique(self.codes)) == len(np.unique(other.codes))


def joined(parts: Sequence[Facts]) -> Facts:
    """The rows of all parts, one after another, of each fact that every part has."""
    if len(parts) == 1:
        return parts[0]
    names = parts[0].__dataclass_fields__  # type: ignore[attr-defined]
    columns = {name: _joined([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **columns)  # type: ignore[type-var]


def _joined(values: list[Any]) -> Any:
    first = values[0]
    if any(each is None for each in values):
        return None
    if isinstance(first, dict):
        return {name: _joined([each.get(name) for each in values]) for name in first}
    if isinstance(first, Keys):
        return Keys.joined(values)
    if isinstance(first, pa.ChunkedArray):
        return pa.chunked_array([chunk for each in values for chunk in each.chunks])
    return np.concatenate(values) if isinstance(first, np.ndarray) else first


def confidences(predictions: Predictions) -> tuple[Array, NDArray[Any]]:
    """The highest probability of each row and its class; for many labels the mean of max(p, 1 - p), and 0.

    >>> [each.tolist() for each in confidences(Predictions.from_probs([[0.1, 0.9]], labels=[1]))]
    [[0.9], [1]]
    """
    confidence = np.empty(predictions.n)
    predicted = np.zeros(predictions.n, np.int16 if predictions.classes < 2**15 else np.int32)

    def write(part: slice) -> None:
        averaged = averaged_columns(predictions.logits[:, part], predictions.kind)
        if predictions.kind is LabelKind.MANY_LABELS:
            confidence[part] = (1 / (1 + np.exp(-np.abs(averaged)))).mean(axis=0)
            return
        predicted[part] = averaged.argmax(axis=0)
        averaged -= averaged.max(axis=0)
        confidence[part] = 1 / np.exp(averaged, out=averaged).sum(axis=0)

    map_rows(predictions.n, predictions.logits, write)
    return confidence.round(DECIMALS), predicted


@dataclass(frozen=True, eq=False)
class Decisions:
    """What thresholds read of each row of one label."""

    confidence: Array
    known: Bools  # which rows have a label
    correct: Bools  # False where it is not known
    groups: Keys | None
    parts: Keys | None  # that have thresholds of their own
    identities: dict[str, pa.ChunkedArray]

    @staticmethod
    def of(predictions: Predictions, per: str | None = None) -> "Decisions":
        """Of calibrated predictions; the parts are the predicted classes or the values of a column."""
        confidence, predicted = confidences(predictions)
        parts = None if per is None else Keys(pa.array(class_names_of(predictions)), predicted)
        if parts is not None and per != PREDICTED_CLASS:
            groups = predictions.grouped_by(str(per)).groups
            assert groups is not None
            parts = Keys.of(groups.astype(str))
        return Decisions(
            confidence,
            predictions.labels >= 0,
            predicted == predictions.labels,
            groups_of(predictions),
            parts,
            identities_of(predictions),
        )

    @cached_property
    def group_of(self) -> Index | None:
        """The group of each labelled row; None where they are independent."""
        return None if self.groups is None else some_of(self.groups.group_of, self.known)

    @property
    def number(self) -> int | None:
        """How many groups the labelled rows are in, if there are any."""
        return None if self.group_of is None else int(self.group_of.max()) + 1

    def ungrouped(self, inside: Keys | None) -> "Decisions":
        """Without groups if these are the `inside`, or one group is all: then new rows of it can be meant."""
        is_one = self.groups is not None and (self.groups.codes == self.groups.codes[:1]).all()
        is_same = self.groups is not None and inside is not None and inside.divides_as(self.groups)
        return replace(self, groups=None) if is_same or (inside is None and is_one) else self

    def take(self, rows: NDArray[Any]) -> "Decisions":
        """Some of the rows."""
        groups = None if self.groups is None else self.groups.take(rows)
        return Decisions(self.confidence[rows], self.known[rows], self.correct[rows], groups, None, {})

    @property
    def curve(self) -> Curve:
        """Of the labelled rows, most confident first."""
        confidence, wrong = self.confidence[self.known], (~self.correct[self.known]).astype(np.float64)
        ranking = Ranking.of(confidence)
        facts: tuple[Array, ...] = (np.ones(len(wrong)), wrong, confidence)
        return Curve(*(np.append(0.0, ranking.accumulate(values)) for values in facts))


def groups_of(predictions: Predictions) -> Keys | None:
    """The groups, if there are any."""
    return None if predictions.groups is None else Keys.of(predictions.groups)


def identities_of(predictions: Predictions) -> dict[str, pa.ChunkedArray]:
    """The columns in which a repeated value should be a group; none where there are groups."""
    if predictions.groups is not None:
        return {}
    columns = {} if predictions.ids is None else {"ids": pa.chunked_array([pa.array(predictions.ids)])}
    if predictions.attributes is not None:
        names = filter(IDENTITY.fullmatch, predictions.attributes.column_names)
        columns |= {name: predictions.attributes[name] for name in names}
    return columns


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
