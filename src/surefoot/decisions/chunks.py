"""What is kept of each row, from predictions in memory or from files in chunks, and what thresholds read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.decisions.groups import (
    IDENTITY,
    PREDICTED_CLASS,
    some_of,
)
from surefoot.errors import InputError
from surefoot.predictions.classes import class_names_of
from surefoot.predictions.files import refuse_other_columns
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import averaged_columns, map_rows
from surefoot.predictions.outcomes import DECIMALS, Array, Bools, Curve, Index, Ranking
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.readers import Part, batch_rows, naming
from surefoot.predictions.scanned import ScannedPredictions
from surefoot.runtime import in_parallel

NUMBERS = 2**18  # logits in a chunk
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
        facts, start = [], part.first
        for rows in source.predictions_in(part, rows=batch_rows(first, NUMBERS)):
            refuse_other_columns({"other files": first, part.path: rows})
            with naming(part.path, start):
                facts.append(work(rows))
            start += rows.n
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
        encoded = [
            pa.DictionaryArray.from_arrays(pa.array(part.codes), values)
            for part, values in zip(parts, _of_one_type([part.values for part in parts]), strict=True)
        ]
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
    if isinstance(first, dict):  # columns, of which a file may lack some
        names = dict.fromkeys(name for each in values for name in each)
        return {name: _joined([each[name] for each in values if name in each]) for name in names}
    if isinstance(first, Keys):
        return Keys.joined(values)
    if isinstance(first, pa.ChunkedArray):
        return pa.chunked_array(_of_one_type([chunk for each in values for chunk in each.chunks]))
    return np.concatenate(values) if isinstance(first, np.ndarray) else first


def _of_one_type(columns: list[pa.Array]) -> list[pa.Array]:
    """As text where files have other types, such as numbers and text."""
    is_one = len({column.type for column in columns}) == 1
    return columns if is_one else [column.cast(pa.string()) for column in columns]


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
        for field in predictions.attributes.schema:
            if IDENTITY.fullmatch(field.name) and not pa.types.is_nested(field.type):
                columns[field.name] = predictions.attributes[field.name]
    return columns
