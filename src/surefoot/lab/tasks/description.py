"""A user's task as a TOML file: its keys, and the conditions that make a sample familiar."""

import datetime
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import (
    InputError,
    is_number,
    is_numeric,
    is_whole,
    one_line,
    one_of,
    refuse_unknown,
    require,
)
from surefoot.io import read_toml
from surefoot.lab.tasks.columns import column_of
from surefoot.lab.tasks.task import ImageFiles, Samples, image_paths_below, shuffled, unlabelled_labels
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.tables import empty_cells, is_text, values_in

ORDERINGS = {  # and the names of Arrow's functions
    "at_least": "greater_equal",
    "at_most": "less_equal",
    "above": "greater",
    "below": "less",
}
WRITTEN_FOR_NONE = ("nan", "<na>", "na", "n/a", "#n/a", "nat", "none", "null")  # in any case
OPERATORS = ("equals", "in", "not_in", *ORDERINGS, "missing")


@dataclass(frozen=True)
class Condition:
    """A column, an operator and a value, such as age at_least 18."""

    column: str
    operator: str
    value: Any

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {self.value!r}"

    @property
    def values(self) -> list[Any]:
        """The values that the column's values are compared with."""
        return self.value if isinstance(self.value, list) else [self.value]


def parse_conditions(familiar: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The `[familiar]` table of a task.

    >>> [str(each) for each in parse_conditions({"age": {"at_least": 18, "below": 60}})]
    ['age at_least 18', 'age below 60']
    """
    conditions = []
    for column, tests in familiar.items():
        if not isinstance(tests, Mapping) or not tests:
            raise InputError(f"familiar.{column} is {tests!r}; allowed: a table such as {{ at_least = 18 }}")
        conditions += [_condition(column, operator, value) for operator, value in tests.items()]
    return tuple(conditions)


def rows_where(conditions: tuple[Condition, ...], table: pa.Table) -> list[bool | None]:
    """Whether every condition holds in each row; None where it cannot be known (`missing_in`).

    >>> table = pa.table({"age": [17, 18, None, 60]})
    >>> rows_where(parse_conditions({"age": {"at_least": 18, "below": 60}}), table)
    [False, True, None, False]
    """
    result = np.ones(table.num_rows, dtype=np.bool_)
    for of_column in _by_column(conditions).values():
        column = _column_of(of_column[0], table)
        missing = _missing(of_column, column)
        for condition in of_column:
            result &= _holds(condition, column, missing)
    unknown = np.zeros(table.num_rows, dtype=np.bool_)
    for missing in missing_in(conditions, table).values():
        unknown |= missing
    return [None if no else yes for yes, no in zip(result.tolist(), unknown.tolist(), strict=True)]


def missing_in(conditions: tuple[Condition, ...], table: pa.Table) -> dict[str, NDArray[np.bool_]]:
    """The rows without a value, by column; none of a column that a condition tests for `missing`."""
    masks = {
        name: _missing(of_column, _column_of(of_column[0], table))
        for name, of_column in _by_column(conditions).items()
        if all(condition.operator != "missing" for condition in of_column)
    }
    return {name: mask for name, mask in masks.items() if mask.any()}


def _by_column(conditions: Sequence[Condition]) -> dict[str, list[Condition]]:
    return {
        name: [each for each in conditions if each.column == name]
        for name in dict.fromkeys(each.column for each in conditions)
    }


def _condition(column: str, operator: str, value: Any) -> Condition:
    what = f"familiar.{column}.{operator}"
    if operator not in OPERATORS:
        raise InputError(f"familiar.{column}: unknown operator {operator!r}; have: {', '.join(OPERATORS)}")
    if operator == "missing":
        require(isinstance(value, bool), what, value, "true or false")
    elif operator in ("in", "not_in"):
        require(isinstance(value, list) and bool(value), what, value, "a list of values")
        types = {_type_of(each) for each in value}
        require(len(types) == 1 and None not in types, what, value, "values of one type")
    else:
        require(_type_of(value) is not None, what, value, "a number, text, a date, true or false")
    if operator in ORDERINGS:
        require(_type_of(value) in ("numbers", "dates"), what, value, "a number or a date")
    return Condition(column, operator, value)


def _column_of(condition: Condition, table: pa.Table) -> pa.ChunkedArray:
    try:
        return column_of(table, condition.column)
    except InputError as error:
        raise InputError(f"familiar.{condition.column}: {error}") from error


def _missing(conditions: Sequence[Condition], column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Rows without a value, or with text that programs write for none and no condition names."""
    import pyarrow.compute as pc  # slow to import

    empty = empty_cells(column)
    if not is_text(column.type):
        return empty
    named = [value for each in conditions for value in each.values if isinstance(value, str)]
    lower = pc.utf8_lower(pc.fill_null(column, ""))
    stands_for_none = pc.and_not(
        pc.is_in(lower, pa.array(WRITTEN_FOR_NONE, lower.type)),
        pc.is_in(column, pa.array(named, column.type)),
    )
    return np.asarray(empty | np.asarray(stands_for_none), dtype=np.bool_)


def _holds(condition: Condition, column: pa.ChunkedArray, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
    import pyarrow.compute as pc  # slow to import

    if condition.operator == "missing":
        return np.asarray(missing == condition.value, dtype=np.bool_)
    if missing.all():
        return np.zeros(len(column), dtype=np.bool_)
    _check_type(condition, column)
    try:
        holds = _compared(condition, column)
    except pa.ArrowInvalid as error:  # a time that does not fit
        raise InputError(f"familiar.{condition.column}: {one_line(error)}; allowed: other values") from error
    return np.asarray(~missing & np.asarray(pc.fill_null(holds, False)), dtype=np.bool_)


def _compared(condition: Condition, column: pa.ChunkedArray) -> Any:
    import pyarrow.compute as pc  # slow to import

    if condition.operator in ("in", "not_in"):
        holds = pc.is_in(*_in_one_type(column, condition.value))
        return holds if condition.operator == "in" else pc.invert(holds)
    values, (value,) = _in_one_type(column, [condition.value])
    return getattr(pc, ORDERINGS.get(condition.operator, "equal"))(values, value)


def _in_one_type(column: pa.ChunkedArray, values: list[Any]) -> tuple[Any, Any]:
    """Column and values cast to one type: numbers of different types to float64, dates to timestamps."""
    given = pa.array(values)
    if pa.types.is_temporal(column.type):
        loses_nothing = getattr(column.type, "unit", None) != "ns"  # of nanoseconds, less than the unit
        return column.cast(pa.timestamp("us"), safe=loses_nothing), given.cast(pa.timestamp("us"))
    if _column_type(column.type) == "numbers" and column.type != given.type:
        return column.cast(pa.float64(), safe=False), given.cast(pa.float64(), safe=False)
    return column.cast(given.type), given


def _check_type(condition: Condition, column: pa.ChunkedArray) -> None:
    needed, have = _type_of(condition.values[0]), _column_type(column.type)
    if needed == have:
        return
    row, allowed = int(np.flatnonzero(~np.asarray(column.is_null()))[0]), have
    if have == "text" and needed == "numbers":
        row = next((i for i, text in enumerate(values_in(column)) if text and not is_numeric(text)), row)
        allowed = "numbers, and empty cells where they are missing"
    raise InputError(
        f"familiar.{condition.column}.{condition.operator} is {condition.value!r}, but the column holds "
        f"{have} ({values_in(column.slice(row, 1))[0]!r} in row {row}); allowed: {allowed}"
    )


def _type_of(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "numbers" if value == value else None
    if isinstance(value, str):
        return "text"
    return "dates" if isinstance(value, datetime.date) else None


def _column_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "true or false"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "numbers"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "dates"
    return "text" if is_text(kind) else str(kind)


@dataclass(frozen=True)
class Unlabelled:
    """A folder of images, or a table of rows, without labels: all of them, or `limit` drawn at random."""

    source: Path
    limit: int | None
    seed: int

    def drawn(self, names: list[str]) -> list[str]:
        """The names, or so many of them, sorted."""
        if self.limit is None or self.limit >= len(names):
            return sorted(names)
        return sorted(
            shuffled(sorted(names), random.Random(f"surefoot unlabelled {self.seed}"))[: self.limit]
        )


def unlabelled_samples(source: Unlabelled, kind: LabelKind, classes: int) -> Samples:
    """The images below the folder, in the order of their names."""
    paths = source.drawn(image_paths_below(source.source))
    return Samples(
        ids=np.asarray([f"unlabelled/{path}" for path in paths], dtype=np.str_),
        labels=unlabelled_labels(len(paths), kind, classes),
        inputs=ImageFiles(source.source, tuple(paths)),
    )


TABLES = ("task", "familiar", "splits", "unlabelled")
TEXT_KEYS = ("name", "manifest", "images", "label", "labels", "ignored", "path", "id", "groups", "identity")
TASK_KEYS = (*TEXT_KEYS, "classes", "features", "categories")
REPEATED = ("repeated_pictures", "repeated_rows")


class Repeated(StrEnum):
    """What to do with the same sample in several rows."""

    AS_GIVEN = "as_given"
    ONCE = "once"  # use one of equal files, or rows
    ALIKE = "alike"  # use one of images that look alike
    TOGETHER = "together"  # use one of equal files, and all images that look alike in one split


SPLIT_KEYS = ("column", "resolved", "val", "test", "seed", "keep_together", *REPEATED, "balance")
UNLABELLED_KEYS = ("images", "rows", "limit", "seed")
BOTH = "both unlabelled.images and unlabelled.rows; allowed: one of the two"
OF_IMAGES = ("images", "path")  # keys of [task] that a task of vectors has not


@dataclass(frozen=True)
class ByShare:
    """Splits drawn at random: these shares of the familiar rows."""

    val: float
    test: float
    seed: int
    keep_together: str | None


@dataclass(frozen=True)
class ByColumn:
    """Splits read from a column with train, val and test; or without val, which is then a share of train."""

    column: str
    val: float | None
    seed: int
    keep_together: str | None


@dataclass(frozen=True)
class Resolved:
    """Splits read from a file that `write_resolved` wrote: the column holds the names of the splits."""

    column: str


@dataclass(frozen=True)
class FeatureColumns:
    """Which columns are the features of a task of vectors; or the .npy file that holds them."""

    names: tuple[str, ...]
    categories: tuple[str, ...]  # of these, those that are categories although they look like numbers
    array: Path | None  # names is then its stem


@dataclass(frozen=True, kw_only=True)
class Description:
    """The content of a task's TOML file; its paths are already joined to its folder."""

    name: str
    manifest: Path
    images: Path
    label: str | None
    labels: str | None
    ignored: str | None
    path: str | None  # None: the samples are vectors
    id: str | None
    groups: str | None
    features: FeatureColumns | None
    classes: tuple[str, ...] | None
    identity: str | None
    familiar: tuple[Condition, ...]
    splits: ByShare | ByColumn | Resolved
    repeated: Repeated
    balance: bool  # each split has the same number of rows per label
    unlabelled: Unlabelled | None

    def columns(self) -> list[str]:
        """The columns that the manifest must have, in addition to those of the conditions."""
        named = [self.path, self.label, self.labels, self.ignored, self.id, self.groups]
        if self.features is not None:
            named += self.features.categories
        if isinstance(self.splits, Resolved):
            named.append(self.splits.column)
        else:
            named += [getattr(self.splits, "column", None), self.splits.keep_together]
        return [name for name in named if name is not None]

    def files(self) -> list[Path]:
        """The files that it is read from, except the images."""
        array = None if self.features is None else self.features.array
        unlabelled = None if self.features is None or self.unlabelled is None else self.unlabelled.source
        return [file for file in (self.manifest, array, unlabelled) if file is not None]

    def text_columns(self) -> list[str]:
        """Columns whose values are names and stay text as written, unless a condition compares numbers."""
        numeric = {each.column for each in self.familiar if not isinstance(each.values[0], str)}
        return [name for name in self.columns() if name not in numeric]


def read_description(file: Path) -> Description:
    """Read a task's TOML file."""
    document = read_toml(file)
    try:
        return _describe(document, file.parent)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _describe(document: Mapping[str, Any], folder: Path) -> Description:
    if isinstance(document.get("task"), str) or "parts" in document:
        raise InputError("this file describes an experiment, and a task is needed; 'surefoot run' runs it")
    refuse_unknown("key", document, TABLES)
    task, familiar, splits, unlabelled = (_table(document, name) for name in TABLES)
    refuse_unknown("key of [task]", task, TASK_KEYS)
    texts = {key: _text(task, "task", key) for key in TEXT_KEYS}
    for needed in ("name", "manifest"):
        if texts[needed] is None:
            raise InputError(f'no task.{needed}; needed: {needed} = "..." in [task]')
    if (texts["label"] is None) == (texts["labels"] is None):
        raise InputError("task.label or task.labels, exactly one of the two, names the column of the labels")
    if texts["ignored"] is not None and texts["labels"] is None:
        raise InputError("task.ignored needs task.labels; with task.label every row has one label")
    rule = _split_rule(splits)
    if isinstance(rule, Resolved) and familiar:
        raise InputError("a [familiar] table and splits.resolved; allowed: one of the two")
    if not isinstance(rule, Resolved) and not familiar:
        raise InputError("no [familiar] table; needed: a condition, such as age = { at_least = 18 }")
    features = _features(task, folder)
    _refuse_other_samples(features, task, splits)
    key, allowed = (REPEATED[0], list(Repeated)) if features is None else (REPEATED[1], list(Repeated)[:2])
    repeated = splits.get(key, "as_given")
    one_of(f"splits.{key}", repeated, allowed)
    balance = splits.get("balance", "as_given")
    one_of("splits.balance", balance, ("as_given", "label"))
    if balance == "label" and texts["label"] is None:
        raise InputError("splits.balance is 'label', but a row has several labels; needed: task.label")
    return Description(
        name=texts["name"] or "",
        manifest=folder / (texts["manifest"] or ""),
        images=folder / (texts["images"] or "."),
        label=texts["label"],
        labels=texts["labels"],
        ignored=texts["ignored"],
        path=(texts["path"] or "path") if features is None else None,
        id=texts["id"],
        groups=texts["groups"],
        features=features,
        classes=_classes(task),
        identity=texts["identity"],
        familiar=parse_conditions(familiar),
        splits=rule,
        repeated=Repeated(repeated),
        balance=balance == "label",
        unlabelled=_unlabelled(unlabelled, folder, "images" if features is None else "rows")
        if unlabelled
        else None,
    )


def _features(task: Mapping[str, Any], folder: Path) -> FeatureColumns | None:
    """The features of a task of vectors; None for one of images."""
    value, categories = task.get("features"), _names(task, "categories")
    if value is None:
        if categories:
            raise InputError("task.categories without task.features; needed: both, or neither")
        return None
    if isinstance(value, str) and value.lower().endswith(".npy"):
        if categories:
            raise InputError(f"task.categories with task.features = {value!r}; an array has no categories")
        return FeatureColumns((Path(value).stem,), (), folder / value)
    names = (value,) if isinstance(value, str) and value else _names(task, "features")
    if not names:
        raise InputError(
            f"task.features is {value!r}; allowed: a column of lists, an .npy file, or a list of columns"
        )
    labels = {task.get(key) for key in ("label", "labels", "ignored")}
    if label := next((name for name in names if name in labels), None):
        raise InputError(f"column {label!r} is both a feature and the label; allowed: one of the two")
    refuse_unknown("category", categories, names)
    return FeatureColumns(names, categories, None)


def _refuse_other_samples(
    features: FeatureColumns | None, task: Mapping[str, Any], splits: Mapping[str, Any]
) -> None:
    """Refuse keys of images in a task of vectors, and the other way round."""
    images, rows = REPEATED
    if features is None and rows in splits:
        raise InputError(f"splits.{rows} without task.features; for images: splits.{images}")
    if features is not None:
        for name, table, keys in (("task", task, OF_IMAGES), ("splits", splits, (images,))):
            if key := next((key for key in keys if key in table), None):
                other = f"; for rows: splits.{rows}" if name == "splits" else ""
                raise InputError(f"{name}.{key} and task.features; allowed: images or features{other}")


def _names(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    names = value if isinstance(value, list) else [None]
    valid = all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
    require(valid, f"task.{key}", value, "a list of different columns")
    return tuple(names)


def _split_rule(table: Mapping[str, Any]) -> ByShare | ByColumn | Resolved:
    refuse_unknown("key of [splits]", table, SPLIT_KEYS)
    column, resolved, together = (
        _text(table, "splits", key) for key in ("column", "resolved", "keep_together")
    )
    if resolved is not None:
        refuse_unknown("key of [splits] with splits.resolved", table, ("resolved",))
        return Resolved(resolved)
    seed, val, test = _whole(table, "splits", "seed") or 0, _share(table, "val"), _share(table, "test")
    if column is not None:
        if test is not None:
            raise InputError("both splits.test and splits.column; the column names the rows for testing")
        return ByColumn(column, val, seed, together)
    if val is None or test is None:
        raise InputError("splits need a column, or both val and test, such as val = 0.2 and test = 0.4")
    if val + test >= 1:
        raise InputError(
            f"splits.val + splits.test is {val + test:g}; allowed: below 1, the rest is for training"
        )
    return ByShare(val, test, seed, together)


def _unlabelled(table: Mapping[str, Any], folder: Path, key: str) -> Unlabelled:
    refuse_unknown("key of [unlabelled]", table, UNLABELLED_KEYS)
    source = _text(table, "unlabelled", key)
    if source is None or {"images", "rows"} <= set(table):
        needed = {"images": "a folder", "rows": "a table with the same features"}[key]
        raise InputError(f"no unlabelled.{key}; needed: {needed}" if source is None else BOTH)
    limit, seed = (_whole(table, "unlabelled", key) for key in ("limit", "seed"))
    return Unlabelled(folder / source, limit, seed or 0)


def _classes(task: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = task.get("classes")
    if value is None:
        return None
    names = value if isinstance(value, list) else []
    valid = len(names) >= 2 and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    require(valid, "task.classes", value, "a list of two or more different names")
    return tuple(names)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name, {})
    require(isinstance(value, Mapping), name, value, f"a table [{name}]")
    return dict(value)


def _text(table: Mapping[str, Any], name: str, key: str) -> str | None:
    value = table.get(key)
    valid = value is None or (isinstance(value, str) and value != "" and "\0" not in value)
    require(valid, f"{name}.{key}", value, "text")
    return value


def _whole(table: Mapping[str, Any], name: str, key: str) -> int | None:
    value = table.get(key)
    require(value is None or is_whole(value, least=0), f"{name}.{key}", value, "a whole number from 0")
    return value


def _share(table: Mapping[str, Any], key: str) -> float | None:
    value = table.get(key)
    valid = value is None or (is_number(value) and 0 < value < 1)
    require(valid, f"splits.{key}", value, "a share between 0 and 1")
    return None if value is None else float(value)
