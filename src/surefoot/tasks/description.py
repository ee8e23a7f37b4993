"""A user's task as a TOML file: keys, and the conditions that make a sample familiar."""

import datetime
import random
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.predictions.labels import LabelKind
from surefoot.tasks.task import ImageFiles, Samples, image_paths_below, shuffled, unlabelled_labels

ORDERINGS: dict[str, Callable[[Any, Any], Any]] = {
    "at_least": pc.greater_equal,
    "at_most": pc.less_equal,
    "above": pc.greater,
    "below": pc.less,
}
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
    def asks_for_text(self) -> bool:
        """Whether the column's values are compared with text."""
        return isinstance(self.value[0] if isinstance(self.value, list) else self.value, str)


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


def holding(conditions: tuple[Condition, ...], table: pa.Table) -> NDArray[np.bool_]:
    """The rows where every condition holds. A missing value fulfils none but `missing = true`.

    >>> table = pa.table({"age": [17, 18, None, 60]})
    >>> holding(parse_conditions({"age": {"at_least": 18, "below": 60}}), table).tolist()
    [False, True, False, False]
    """
    result = np.ones(table.num_rows, dtype=np.bool_)
    for condition in conditions:
        if condition.column not in table.column_names:
            have = ", ".join(table.column_names)
            raise InputError(f"familiar.{condition.column}: no such column; have: {have}")
        result &= _holds(condition, table[condition.column])
    return result


def _condition(column: str, operator: str, value: Any) -> Condition:
    where = f"familiar.{column}.{operator}"
    if operator not in OPERATORS:
        raise InputError(f"familiar.{column}: unknown operator {operator!r}; have: {', '.join(OPERATORS)}")
    if operator == "missing":
        _require(isinstance(value, bool), where, value, "true or false")
    elif operator in ("in", "not_in"):
        _require(isinstance(value, list) and bool(value), where, value, "a list of values")
        kinds = {_kind_of(each) for each in value}
        _require(len(kinds) == 1 and None not in kinds, where, value, "values of one type")
    else:
        _require(_kind_of(value) is not None, where, value, "a number, text, a date, true or false")
    if operator in ORDERINGS:
        _require(_kind_of(value) in ("numbers", "dates"), where, value, "a number or a date")
    return Condition(column, operator, value)


def _holds(condition: Condition, column: pa.ChunkedArray) -> NDArray[np.bool_]:
    missing = np.asarray(pc.is_null(column, nan_is_null=True))
    if condition.operator == "missing":
        return np.asarray(missing == condition.value, dtype=np.bool_)
    if missing.all():
        return np.zeros(len(column), dtype=np.bool_)
    _check_kind(condition, column)
    holds = np.asarray(pc.fill_null(_compare(condition, column), False), dtype=np.bool_)
    return np.asarray(~missing & holds, dtype=np.bool_)


def _compare(condition: Condition, column: pa.ChunkedArray) -> Any:
    if condition.operator in ("in", "not_in"):
        found = pc.is_in(*_like(column, condition.value))
        return found if condition.operator == "in" else pc.invert(found)
    compare = ORDERINGS.get(condition.operator, pc.equal)
    values, (value,) = _like(column, [condition.value])
    return compare(values, value)


def _like(column: pa.ChunkedArray, values: list[Any]) -> tuple[Any, Any]:
    """Column and values in one type: whole numbers meet fractions as fractions, days moments as moments."""
    given = pa.array(values)
    if pa.types.is_temporal(column.type):
        return column.cast(pa.timestamp("us")), given.cast(pa.timestamp("us"))
    if _column_kind(column.type) == "numbers" and column.type != given.type:
        return column.cast(pa.float64(), safe=False), given.cast(pa.float64(), safe=False)
    return column.cast(given.type), given


def _check_kind(condition: Condition, column: pa.ChunkedArray) -> None:
    value = condition.value[0] if isinstance(condition.value, list) else condition.value
    wanted, have = _kind_of(value), _column_kind(column.type)
    if wanted == have:
        return
    row = int(np.flatnonzero(~np.asarray(column.is_null()))[0])
    if have == "text" and wanted == "numbers":
        row = next((i for i, text in enumerate(column.to_pylist()) if text and not _is_number(text)), row)
    raise InputError(
        f"familiar.{condition.column}.{condition.operator} is {condition.value!r}, but the column holds "
        f"{have} ({column[row].as_py()!r} in row {row}); allowed: {have}"
    )


def _kind_of(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "numbers" if value == value else None
    if isinstance(value, str):
        return "text"
    return "dates" if isinstance(value, datetime.date) else None


def _column_kind(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "true or false"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "numbers"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "dates"
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else str(kind)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _require(fine: bool, where: str, value: Any, allowed: str) -> None:
    if not fine:
        raise InputError(f"{where} is {value!r}; allowed: {allowed}")


@dataclass(frozen=True)
class Unlabelled:
    """A folder of images without labels, all of them or so many drawn by lot."""

    images: Path
    limit: int | None
    seed: int


def unlabelled_samples(wanted: Unlabelled, kind: LabelKind, classes: int) -> Samples:
    """The images below the folder, in the order of their names."""
    paths = image_paths_below(wanted.images)
    if wanted.limit is not None and wanted.limit < len(paths):
        drawn = shuffled(paths, random.Random(f"surefoot unlabelled {wanted.seed}"))
        paths = sorted(drawn[: wanted.limit])
    return Samples(
        ids=np.asarray([f"unlabelled/{path}" for path in paths], dtype=np.str_),
        labels=unlabelled_labels(len(paths), kind, classes),
        inputs=ImageFiles(wanted.images, tuple(paths)),
    )


TEXT_KEYS = ("name", "manifest", "images", "label", "labels", "ignored", "path", "id", "groups", "identity")
TASK_KEYS = (*TEXT_KEYS, "classes")
SPLIT_KEYS = ("column", "resolved", "val", "test", "seed", "keep_together", "repeated_pictures")
UNLABELLED_KEYS = ("images", "limit", "seed")


@dataclass(frozen=True)
class ByShare:
    """Splits drawn by lot: these shares of the familiar rows."""

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
    """Splits read from a file that `write_resolved` wrote: the column holds the very names of the splits."""

    column: str


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a task's TOML file says; paths are already relative to where it lies."""

    name: str
    manifest: Path
    images: Path
    label: str | None
    labels: str | None
    ignored: str | None
    path: str
    id: str | None
    groups: str | None
    classes: tuple[str, ...] | None
    identity: str | None
    familiar: tuple[Condition, ...]
    splits: ByShare | ByColumn | Resolved
    repeated_once: bool  # of files with the same content, one is used
    unlabelled: Unlabelled | None

    def columns(self) -> list[str]:
        """The columns that the manifest must have, but for those of the conditions."""
        named = [self.path, self.label, self.labels, self.ignored, self.id, self.groups]
        if isinstance(self.splits, Resolved):
            named.append(self.splits.column)
        else:
            named += [getattr(self.splits, "column", None), self.splits.keep_together]
        return [name for name in named if name is not None]

    def text_columns(self) -> list[str]:
        """Columns whose values are names and stay as written, unless a condition asks for numbers."""
        numeric = {each.column for each in self.familiar if not each.asks_for_text}
        return [name for name in self.columns() if name not in numeric]


def read_description(file: Path) -> Description:
    """Read a task's TOML file."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not TOML ({error})") from error
    try:
        return _describe(document, file.parent)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _describe(document: Mapping[str, Any], folder: Path) -> Description:
    _refuse_unknown("", document, ("task", "familiar", "splits", "unlabelled"))
    tables = {name: _table(document, name) for name in ("task", "familiar", "splits", "unlabelled")}
    task = tables["task"]
    _refuse_unknown("task.", task, TASK_KEYS)
    texts = {key: _text(task, key) for key in TEXT_KEYS}
    for needed in ("name", "manifest"):
        if texts[needed] is None:
            raise InputError(f'no task.{needed}; needed: {needed} = "..." in [task]')
    if (texts["label"] is None) == (texts["labels"] is None):
        raise InputError("task.label or task.labels, exactly one of the two, says where the labels are")
    if texts["ignored"] is not None and texts["labels"] is None:
        raise InputError("task.ignored goes with task.labels; with task.label every row has its one label")
    splits = _splits(tables["splits"])
    if isinstance(splits, Resolved) and tables["familiar"]:
        raise InputError("a [familiar] table beside splits.resolved; allowed: one of the two")
    if not isinstance(splits, Resolved) and not tables["familiar"]:
        raise InputError("no [familiar] table; needed: a condition, such as age = { at_least = 18 }")
    return Description(
        name=texts["name"] or "",
        manifest=folder / (texts["manifest"] or ""),
        images=folder / (texts["images"] or "."),
        label=texts["label"],
        labels=texts["labels"],
        ignored=texts["ignored"],
        path=texts["path"] or "path",
        id=texts["id"],
        groups=texts["groups"],
        classes=_classes(task),
        identity=texts["identity"],
        familiar=parse_conditions(tables["familiar"]),
        splits=splits,
        repeated_once=_repeated_once(tables["splits"]),
        unlabelled=_unlabelled(tables["unlabelled"], folder),
    )


def _splits(table: Mapping[str, Any]) -> ByShare | ByColumn | Resolved:
    _refuse_unknown("splits.", table, SPLIT_KEYS)
    column, resolved, together = (
        _text(table, key, "splits.") for key in ("column", "resolved", "keep_together")
    )
    if resolved is not None:
        _refuse_unknown("splits.", table, ("resolved",))
        return Resolved(resolved)
    seed, val, test = _whole(table, "seed", "splits.") or 0, _share(table, "val"), _share(table, "test")
    if column is not None:
        if test is not None:
            raise InputError("splits.test beside splits.column; the column says which rows are for testing")
        return ByColumn(column, val, seed, together)
    if val is None or test is None:
        raise InputError("splits need a column, or both val and test, such as val = 0.2 and test = 0.4")
    if val + test >= 1:
        raise InputError(
            f"splits.val + splits.test is {val + test:g}; allowed: below 1, the rest is for training"
        )
    return ByShare(val, test, seed, together)


def _repeated_once(table: Mapping[str, Any]) -> bool:
    value = table.get("repeated_pictures", "as_given")
    if value not in ("as_given", "once"):
        raise InputError(f"splits.repeated_pictures is {value!r}; allowed: as_given, once")
    return bool(value == "once")


def _unlabelled(table: Mapping[str, Any], folder: Path) -> Unlabelled | None:
    if not table:
        return None
    _refuse_unknown("unlabelled.", table, UNLABELLED_KEYS)
    images = _text(table, "images", "unlabelled.")
    if images is None:
        raise InputError("no unlabelled.images; needed: a folder")
    limit, seed = (_whole(table, key, "unlabelled.") for key in ("limit", "seed"))
    return Unlabelled(folder / images, limit, seed or 0)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {value!r}; allowed: a table [{name}]")
    return value


def _text(table: Mapping[str, Any], key: str, where: str = "task.") -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value or "\0" in value):
        raise InputError(f"{where}{key} is {value!r}; allowed: text")
    return value


def _whole(table: Mapping[str, Any], key: str, where: str) -> int | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise InputError(f"{where}{key} is {value!r}; allowed: a whole number from 0")
    return value


def _share(table: Mapping[str, Any], key: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise InputError(f"splits.{key} is {value!r}; allowed: a share between 0 and 1")
    return float(value)


def _classes(task: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = task.get("classes")
    if value is None:
        return None
    names = value if isinstance(value, list) else []
    if len(names) < 2 or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InputError(f"task.classes is {value!r}; allowed: a list of two or more different names")
    return tuple(names)


def _refuse_unknown(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"unknown key {where}{key}; have: {', '.join(known)}")
