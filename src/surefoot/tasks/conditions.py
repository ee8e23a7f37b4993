"""What makes a sample familiar: conditions on the manifest's columns, all of which must hold."""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from surefoot.errors import InputError

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
