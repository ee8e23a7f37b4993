"""Samples that are vectors: the columns of a table as numbers, by means and categories of the training rows.

Does not need torch. What was fitted on the training rows is a value, an `Encoding`, which a bundle holds.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError, is_number, shown
from surefoot.lab.tasks.columns import (
    LARGEST_INPUT,
    LARGEST_WHOLE,
    Raw,
    column_of,
    is_list,
    is_numeric_type,
    numbers_in,
    refuse_numbers_as_text,
    short,
    text_of,
    texts_in,
    vectors_in,
)
from surefoot.predictions.tables import decoding

MOST_CATEGORIES = 1000  # of one column
NAMED = 12  # categories that a message lists
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Number:
    """A column of numbers: (x - mean) / deviation, 0 where it is missing; and 1 where it is, else 0."""

    kind: ClassVar[str] = "number"
    column: str
    mean: float
    deviation: float  # 1 where all numbers are the same
    some_missing: bool  # in training

    @property
    def width(self) -> int:
        """How many inputs of a network it is."""
        return 2

    @staticmethod
    def fit(column: str, values: Raw) -> "Number":
        """By the training rows."""
        known = values[~np.isnan(values)]
        if not len(known):
            raise InputError(f"column {column!r} is empty in every row for training; needed: some numbers")
        deviation = float(known.std())
        # Relative: equal numbers may differ from their mean in the last digit.
        is_constant = deviation <= 1e-12 * float(np.abs(known).max())
        return Number(
            column, float(known.mean()), 1.0 if is_constant else deviation, len(known) < len(values)
        )

    def read(self, column: pa.ChunkedArray) -> Raw:
        """Numbers, NaN where they are missing."""
        return numbers_in(column, self.column)

    def encode(self, values: Raw) -> NDArray[np.float64]:
        """(n, 2)."""
        missing = np.isnan(values)
        with np.errstate(over="ignore"):
            standardised = (np.where(missing, self.mean, values) - self.mean) / self.deviation
        too_far = np.flatnonzero(np.abs(standardised) > LARGEST_INPUT)
        if len(too_far):
            raise InputError(
                f"column {self.column!r} has the number {values[too_far[0]]:g}, and in training a mean of "
                f"{self.mean:g} and a standard deviation of {self.deviation:g}; allowed: up to "
                f"{LARGEST_INPUT:g} standard deviations from the mean"
            )
        return np.stack([standardised, missing], axis=1)

    def never_seen(self, values: Raw) -> NDArray[np.bool_]:
        """The rows without a number, if training had none of these."""
        return np.isnan(values) & (not self.some_missing)


@dataclass(frozen=True)
class Category:
    """A column of names: one input per name of the training rows, and one for all others.

    A missing value is a name of its own where training had it.
    """

    kind: ClassVar[str] = "category"
    column: str
    values: tuple[str | None, ...]

    @property
    def width(self) -> int:
        """How many inputs of a network it is."""
        return len(self.values) + 1

    @staticmethod
    def fit(column: str, values: Raw) -> "Category":
        """By the training rows."""
        names = sorted({value for value in values.tolist() if value is not None})
        if len(names) > MOST_CATEGORIES:
            raise InputError(
                f"column {column!r} has {len(names):,} different texts, such as {names[0]!r}; allowed: "
                f"numbers, or at most {MOST_CATEGORIES:,} categories"
            )
        return Category(column, (*names, *([None] if None in values.tolist() else [])))

    def read(self, column: pa.ChunkedArray) -> Raw:
        """Text, None where it is missing."""
        texts = texts_in(column, self.column)
        if set(self.values) <= {"true", "false", None}:  # as a csv file may write it
            texts = np.asarray([None if text is None else text.lower() for text in texts], dtype=object)
        return texts

    def encode(self, values: Raw) -> NDArray[np.float64]:
        """(n, width)."""
        places = {name: place for place, name in enumerate(self.values)}
        return np.eye(self.width)[[places.get(value, len(places)) for value in values.tolist()]]

    def never_seen(self, values: Raw) -> NDArray[np.bool_]:
        """The rows whose value is not one of training."""
        known = set(self.values)
        return np.asarray([value not in known for value in values.tolist()], dtype=np.bool_)


@dataclass(frozen=True)
class Vector:
    """A column of lists of one length: its numbers as they are, none missing."""

    kind: ClassVar[str] = "vector"
    column: str
    length: int

    @property
    def width(self) -> int:
        """How many inputs of a network it is."""
        return self.length

    @staticmethod
    def fit(column: str, values: Raw) -> "Vector":
        """By the training rows."""
        return Vector(column, values.shape[1])

    def read(self, column: pa.ChunkedArray) -> Raw:
        """Numbers (n, length)."""
        values = vectors_in(column, self.column)
        self._check(values)
        return values

    def _check(self, values: Raw) -> None:
        if values.shape[1:] != (self.length,):
            got = " x ".join(map(str, values.shape[1:]))
            raise InputError(
                f"the vectors in {self.column!r} have {got} numbers; needed: {self.length}, as in training"
            )

    def encode(self, values: Raw) -> NDArray[np.float32]:
        """(n, length)."""
        self._check(values)
        return values

    def never_seen(self, values: Raw) -> NDArray[np.bool_]:
        """None: every row has all numbers."""
        return np.zeros(len(values), dtype=np.bool_)


Feature = Number | Category | Vector
FEATURES: dict[str, type[Number] | type[Category] | type[Vector]] = {
    each.kind: each for each in (Number, Category, Vector)
}


@dataclass(frozen=True, eq=False)
class RawColumns:
    """The columns of some rows as they were read, by name."""

    columns: Mapping[str, Raw]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: Any) -> "RawColumns":
        """The rows selected by indices or by a mask."""
        return RawColumns({name: values[rows] for name, values in self.columns.items()})

    def contents(self) -> list[str]:
        """A hash of each row. Numbers count as float32, so that a csv and a parquet file give the same."""
        texts = [values for values in self.columns.values() if values.dtype == object]
        rest = [values.reshape(len(self), -1) for values in self.columns.values() if values.dtype != object]
        numbers = np.concatenate(rest, axis=1).astype(np.float32) if rest else np.empty((len(self), 0))
        result = []
        for row, own in enumerate(numbers):
            words = json.dumps([values[row] for values in texts], ensure_ascii=False)
            result.append(hashlib.sha256(own.tobytes() + words.encode()).hexdigest())
        return result

    def description(self) -> str:
        """What the columns are: kinds and names; of a vector its length, as its column may be a file."""
        kinds = [(_kind_of(values), name, values) for name, values in self.columns.items()]
        return json.dumps(
            [[kind.kind, values.shape[1] if kind is Vector else name] for kind, name, values in kinds],
            ensure_ascii=False,
        )


def _kind_of(values: Raw) -> type[Number] | type[Category] | type[Vector]:
    if values.ndim == 2:
        return Vector
    return Category if values.dtype == object else Number


@dataclass(frozen=True)
class Unseen:
    """A value that training never had: the first of its column in some rows, and how many there are."""

    column: str
    value: str | None
    row: int
    rows: int

    def __str__(self) -> str:
        value = "empty" if self.value is None else shown(self.value)
        return f"column {self.column!r} is {value} in row {self.row}, which training never had"


@dataclass(frozen=True)
class Encoding:
    """From the columns of a table to the inputs of a network; part of a bundle."""

    features: tuple[Feature, ...]

    @staticmethod
    def fit(raw: RawColumns) -> "Encoding":
        """By the training rows."""
        return Encoding(tuple(_kind_of(values).fit(name, values) for name, values in raw.columns.items()))

    @property
    def width(self) -> int:
        """The number of inputs."""
        return sum(feature.width for feature in self.features)

    @property
    def only_vector(self) -> Vector | None:
        """The vector, where that is the only feature: rows may then be an array."""
        (first, *others) = self.features
        return first if isinstance(first, Vector) and not others else None

    def read(self, table: pa.Table) -> RawColumns:
        """The columns of other rows, which have the same names."""
        return RawColumns({each.column: each.read(column_of(table, each.column)) for each in self.features})

    def read_array(self, values: Vectors) -> RawColumns:
        """The same from an array of vectors, where these are the only feature."""
        if self.only_vector is None:
            needed = ", ".join(each.column for each in self.features[:NAMED])
            raise InputError(f"an array of vectors; needed: a table with columns: {needed}")
        self.only_vector.encode(values)  # refuses another length
        return RawColumns({self.only_vector.column: values})

    def read_rows(self, rows: Sequence[Any]) -> RawColumns:
        """The same from mappings of names to values; a null is missing, and further names are ignored."""
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                named = ", ".join(f'"{feature.column}": ...' for feature in self.features)
                raise InputError(f"row {number} is {short(row)}; needed: an object {{{named}}}")
            for feature in self.features:
                if feature.column not in row:
                    needed = ", ".join(each.column for each in self.features)
                    raise InputError(f"row {number} has no {feature.column!r}; needed: {needed}")
        columns = {}
        for feature in self.features:
            values = [row[feature.column] for row in rows]
            columns[feature.column] = pa.chunked_array([_column_of_values(feature, values)])
        return self.read(pa.table(columns))

    def encode(self, raw: RawColumns) -> Vectors:
        """The network's inputs (n, width)."""
        parts = [feature.encode(raw.columns[feature.column]) for feature in self.features]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def unseen(self, raw: RawColumns) -> list[Unseen]:
        """Values that training never had, the first of each column."""
        result = []
        for feature in self.features:
            values = raw.columns[feature.column]
            rows = np.flatnonzero(feature.never_seen(values))
            if len(rows):
                value = values[rows[0]] if isinstance(feature, Category) else None
                result.append(Unseen(feature.column, value, int(rows[0]), len(rows)))
        return result

    def unseen_inputs(self, inputs: Vectors) -> dict[str, int]:
        """How many encoded rows have a value that training never had, by column."""
        counts = {}
        ends = np.cumsum([feature.width for feature in self.features])
        for feature, end in zip(self.features, ends.tolist(), strict=True):
            is_marked = isinstance(feature, Category) or (
                isinstance(feature, Number) and not feature.some_missing
            )
            count = int(inputs[:, end - 1].sum()) if is_marked else 0
            if count:
                counts[feature.column] = count
        return counts

    def refuse_unseen(self, raw: RawColumns) -> None:
        """Raise for a value that training never had."""
        for first in self.unseen(raw):
            feature = next(each for each in self.features if each.column == first.column)
            allowed = "a number"
            if isinstance(feature, Category):
                names = ["an empty cell" if name is None else name for name in feature.values]
                allowed = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
            raise InputError(f"{first}; allowed: {allowed}, or --allow-unseen (allow_unseen=True)")

    def positions(self) -> NDArray[np.int64]:
        """(width,): which feature each input belongs to; each number of a vector is a feature of its own."""
        result: list[int] = []
        for feature in self.features:
            start = result[-1] + 1 if result else 0
            own = range(feature.length) if isinstance(feature, Vector) else [0] * feature.width
            result += [start + each for each in own]
        return np.asarray(result, dtype=np.int64)

    def continuous(self) -> NDArray[np.bool_]:
        """(width,): which inputs are numbers, and not marks of a category or of a missing value."""
        result: list[bool] = []
        for feature in self.features:
            if isinstance(feature, Number):
                result += [True, False]
            else:
                result += [isinstance(feature, Vector)] * feature.width
        return np.asarray(result, dtype=np.bool_)

    def blank(self) -> Vectors:
        """(width,): the inputs of a row of which nothing is known; numbers of a vector are 0."""
        parts = []
        for feature in self.features:
            if isinstance(feature, Vector):
                parts.append(np.zeros(feature.width))
            else:
                unknown = np.nan if isinstance(feature, Number) else object()
                dtype = np.float64 if isinstance(feature, Number) else object
                parts.append(feature.encode(np.asarray([unknown], dtype=dtype))[0])
        return np.concatenate(parts).astype(np.float32)

    def sentence(self) -> str:
        """What the features are.

        >>> Encoding((Number("age", 40.0, 10.0, False), Category("site", ("a", "b")))).sentence()
        'the features are 1 number and 1 category (site: 2 values): 5 inputs'
        """
        numbers = sum(isinstance(each, Number) for each in self.features)
        categories = [each for each in self.features if isinstance(each, Category)]
        parts = [f"{numbers:,} number{'s' if numbers > 1 else ''}"] if numbers else []
        if categories:
            listed = ", ".join(f"{each.column}: {len(each.values)} values" for each in categories[:NAMED])
            more = ", ..." if len(categories) > NAMED else ""
            noun = "category" if len(categories) == 1 else "categories"
            parts.append(f"{len(categories):,} {noun} ({listed}{more})")
        parts += [f"a vector of {each.length:,}" for each in self.features if isinstance(each, Vector)]
        text = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
        return f"the features are {text}: {self.width:,} inputs"

    def as_dict(self) -> list[dict[str, Any]]:
        """Plain values."""
        return [
            {"kind": each.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in vars(each).items()}}
            for each in self.features
        ]


def encoding_from(document: Any) -> Encoding:
    """From plain values."""
    features: list[Feature] = []
    for values in document:
        given = dict(values)
        kind = FEATURES.get(given.pop("kind"))
        if kind is None or set(given) != set(kind.__dataclass_fields__) - {"kind"}:
            raise InputError(f"feature {short(values)} is not one this version reads")
        plain: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        feature = kind(**plain)
        if not _is_valid(feature):
            raise InputError(f"feature {short(values)} has values that cannot be used")
        features.append(feature)
    if not features:
        raise InputError("there are 0 features; needed: one or more")
    return Encoding(tuple(features))


def _is_valid(feature: Feature) -> bool:
    if not isinstance(feature.column, str):
        return False
    if isinstance(feature, Vector):
        return isinstance(feature.length, int) and feature.length >= 1
    if isinstance(feature, Category):
        return all(value is None or isinstance(value, str) for value in feature.values)
    finite = all(is_number(each) and np.isfinite(each) for each in (feature.mean, feature.deviation))
    return finite and feature.deviation > 0 and isinstance(feature.some_missing, bool)


def read_features(table: pa.Table, names: Sequence[str], categories: Sequence[str]) -> RawColumns:
    """The columns of a manifest: numbers, categories (also those named) and lists, by their types."""
    return RawColumns({name: _read_column(table, name, name in categories) for name in names})


def read_alike(table: pa.Table, other: RawColumns) -> RawColumns:
    """The same columns, of the same kinds, of another table."""
    columns: dict[str, Raw] = {}
    for name, values in other.columns.items():
        column, kind = column_of(table, name), _kind_of(values)
        if kind is Vector:
            columns[name] = Vector(name, values.shape[1]).read(column)
        else:
            columns[name] = (numbers_in if kind is Number else texts_in)(column, name)
    return RawColumns(columns)


def _read_column(table: pa.Table, name: str, is_category: bool) -> Raw:
    column = column_of(table, name)
    if is_list(column.type):
        return vectors_in(column, name)
    if pa.types.is_null(column.type):
        raise InputError(f"column {name!r} is empty in every row; needed: some values")
    if is_category or not is_numeric_type(column.type):
        texts = texts_in(column, name)
        if not is_category:
            refuse_numbers_as_text(texts, name)
        return texts
    return numbers_in(column, name)


def _column_of_values(feature: Feature, values: list[Any]) -> pa.Array:
    """Values of a request as Arrow would read them from a file."""
    for row, value in enumerate(values):
        valid = value is None or is_number(value) if isinstance(feature, Number) else True
        if isinstance(feature, Category):
            valid = (
                value is None
                or isinstance(value, str | float)
                or (isinstance(value, int) and abs(value) < LARGEST_WHOLE)
            )
        if isinstance(feature, Vector):
            valid = isinstance(value, list | tuple) and all(is_number(each) for each in value)
        if not valid:
            needed = {Number: "a number", Category: "text", Vector: "a list of numbers"}[type(feature)]
            raise InputError(f"{feature.column!r} is {short(value)} in row {row}; allowed: {needed}")
    with decoding(f"column {feature.column!r}"):
        if isinstance(feature, Category):
            return pa.array([text_of(value) for value in values], pa.string())
        inner = pa.float64() if isinstance(feature, Number) else pa.list_(pa.float64())
        return pa.array(values, inner, from_pandas=True)
