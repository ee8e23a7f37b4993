"""Columns of a table as arrays: numbers, text, vectors. What cannot be used is refused, with its row."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError, did_you_mean, is_numeric
from surefoot.io import refuse_special
from surefoot.predictions.columns import refuse_repeated
from surefoot.predictions.tables import decoding, is_text, values_in

NAMED = 12  # columns that a message lists
LARGEST_NUMBER = 1e100  # so that means and deviations are finite
LARGEST_WHOLE = 2**63
LARGEST_INPUT = 1e18  # of a network, so that squares are finite in float32
Raw = NDArray[Any]  # (n,) float64 with NaN where missing; (n,) text with None; (n, length) float32


def column_of(table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column by name, without the encoding of a dictionary."""
    if name not in table.column_names:
        have = ", ".join(table.column_names[:NAMED]) + (", ..." if table.num_columns > NAMED else "")
        raise InputError(f"no column {name!r}{did_you_mean(name, table.column_names)}; have: {have}")
    refuse_repeated([each for each in table.column_names if each == name])
    column = table[name]
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def is_list(kind: pa.DataType) -> bool:
    """Whether a column's values are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_numeric_type(kind: pa.DataType) -> bool:
    """Whether a column's values are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def numbers_in(column: pa.ChunkedArray, name: str) -> Raw:
    """Float64, NaN where a number is missing."""
    import pyarrow.compute as pc  # slow to import

    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if not is_numeric_type(column.type):
        row = int(np.flatnonzero(~np.asarray(column.is_null()))[0]) if column.null_count < len(column) else 0
        value = values_in(column.slice(row, 1))[0]
        raise InputError(
            f"column {name!r} is {short(value)} in row {row}; allowed: a number, or an empty cell where it "
            "is missing"
        )
    values = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan), dtype=np.float64)
    too_large = np.abs(values) > LARGEST_NUMBER
    if too_large.any():
        row = int(np.flatnonzero(too_large)[0])
        got = "infinite" if np.isinf(values[row]) else f"{values[row]:g}"
        raise InputError(
            f"column {name!r} is {got} in row {row}; allowed: finite numbers up to {LARGEST_NUMBER:g} in size"
        )
    return values


def texts_in(column: pa.ChunkedArray, name: str) -> Raw:
    """Text, None where it is missing; whole numbers are written without a point."""
    if not (
        is_text(column.type)
        or is_numeric_type(column.type)
        or pa.types.is_boolean(column.type)
        or pa.types.is_null(column.type)
    ):
        raise InputError(
            f"column {name!r} holds {column.type} values; allowed as features: numbers, text, true or "
            "false, lists of numbers"
        )
    return np.asarray([text_of(value) for value in values_in(column)], dtype=object)


def text_of(value: Any) -> str | None:
    if value is None or value == "" or value != value:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE
    return str(int(value)) if is_whole else str(value)


def refuse_numbers_as_text(texts: Raw, name: str) -> None:
    """Raise where most values of a column of text are numbers: one that is not made all of them text."""
    known = [(row, text) for row, text in enumerate(texts.tolist()) if text is not None]
    others = [(row, text) for row, text in known if not is_numeric(text)]
    if known and len(others) < len(known) / 2:
        row, text = others[0] if others else known[0]
        raise InputError(
            f"column {name!r} is {text!r} in row {row}, and most of its values are numbers; allowed: numbers "
            f'with empty cells where they are missing, or categories = ["{name}"]'
        )


def vectors_in(column: pa.ChunkedArray, name: str) -> Raw:
    """Float32 (n, length) of a column of lists."""
    import pyarrow.compute as pc  # slow to import

    if not is_list(column.type):
        raise InputError(
            f"column {name!r} holds {column.type} values; needed: lists of numbers, all of one length"
        )
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), -1))
    if (lengths < 1).any():
        row = int(np.flatnonzero(lengths < 1)[0])
        raise InputError(f"column {name!r} is empty in row {row}; allowed: a vector in every row")
    different = np.flatnonzero(lengths != lengths[:1])
    if len(different):
        raise InputError(
            f"column {name!r} has {lengths[0]:,} numbers in row 0 and {lengths[different[0]]:,} in row "
            f"{different[0]}; allowed: vectors of one length"
        )
    inner = pc.list_flatten(column)
    if not is_numeric_type(inner.type):
        raise InputError(f"column {name!r} holds lists of {inner.type}; allowed: lists of numbers")
    numbers = np.asarray(pc.fill_null(inner.cast(pa.float32(), safe=False), np.nan), dtype=np.float32)
    values = numbers.reshape(len(lengths), -1)
    _refuse_too_large(values, name)
    return values


def _refuse_too_large(values: Raw, name: str) -> None:
    fits = np.abs(values) <= LARGEST_INPUT
    wrong = np.flatnonzero(~fits.all(axis=1))
    if len(wrong):
        bad = values[wrong[0]][~fits[wrong[0]]][0]
        got = "NaN or an empty value" if np.isnan(bad) else f"{bad:g}".replace("inf", "an infinite number")
        raise InputError(
            f"the vector in {name!r} has {got} in row {wrong[0]}; allowed: finite numbers up to "
            f"{LARGEST_INPUT:g} in size"
        )


def short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # of a whole number with thousands of digits
        return f"of type {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def read_array(file: Path) -> NDArray[np.float32]:
    """An array (n, length) of finite numbers in an .npy file."""
    with decoding("an array"):
        refuse_special(file)
        values = np.load(file, allow_pickle=False)
        if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "fiu":
            got = f"{values.dtype} of shape {values.shape}" if isinstance(values, np.ndarray) else "no array"
            raise InputError(f"the array is {got}; needed: numbers of shape (rows, length)")
        if not values.shape[1]:
            raise InputError("the vectors have 0 numbers; needed: one or more")
    with np.errstate(over="ignore"):
        result = values.astype(np.float32)
    _refuse_too_large(result, file.name)
    return result
