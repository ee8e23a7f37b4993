"""The columns of a table of predictions, as arrays. Does not need torch."""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from surefoot.errors import InputError
from surefoot.predictions.labels import IGNORE

METADATA = b"surefoot"
ANSWERS = frozenset({"path", "label", "confidence", "entropy", "novelty", "error"})  # of 'surefoot predict'
WHOLE_NUMBER = re.compile(r"([+-]?\d+)(\.0+)?")


def refuse_repeated(names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"column {repeated[0]!r} occurs twice; allowed: different names")


def are_answers(names: Sequence[str]) -> bool:
    """Whether a file is what `surefoot predict` wrote, whose `label` is no truth."""
    others = ("logit", "labels", "label_")  # which it never writes
    return ANSWERS.issubset(names) and not any(name.startswith(others) for name in names)


def refuse_answers(names: Sequence[str]) -> None:
    """Where answers will not do."""
    if are_answers(names):
        raise InputError(
            "what 'surefoot predict' said, whose 'label' is its own answer; needed: the truth there, and no "
            "column 'confidence'"
        )


def scores_of_answers(table: pa.Table) -> pa.Table:
    """Of what `surefoot predict` wrote: probabilities and novelty of the images that could be read."""
    if not any(name.startswith("prob_") for name in table.column_names):
        raise InputError(
            "what 'surefoot predict' said, without probabilities; needed: 'surefoot predict --probabilities'"
        )
    read = table.filter(table["confidence"].is_valid())
    wanted = [name for name in read.column_names if name.startswith("prob_")]
    return read.select([*wanted, "novelty"]).append_column("ids", read["path"])


def scores_in(table: pa.Table) -> tuple[str, Any, list[str] | None, list[str]]:
    """Whether logits or probs, their array, class names where columns name them, and the columns used."""
    found = {
        scale: [name for name in table.column_names if re.fullmatch(f"{scale}(s|_.+)?", name, re.DOTALL)]
        for scale in ("logit", "prob")
    }
    given = [scale for scale, columns in found.items() if columns]
    if len(given) != 1:
        got = (
            " and ".join(found[scale][0] for scale in given) or ", ".join(table.column_names) or "no columns"
        )
        raise InputError(
            f"got {got}; needed: exactly one of 'logits', 'probs', 'logit_<class>' or 'prob_<class>' columns"
        )
    scale, columns = given[0], found[given[0]]
    if not table.num_rows:
        raise InputError("no rows; allowed: at least one row")
    if columns == [f"{scale}s"]:
        return scale, _lists(table, columns[0]), None, columns
    if columns == [scale]:
        return scale, numbers_in(table, scale), None, columns
    if f"{scale}s" in columns or scale in columns:
        raise InputError(
            f"both {columns[0]!r} and {columns[1]!r}; allowed: a list column or columns per class"
        )
    names = [name.removeprefix(f"{scale}_") for name in columns]
    if len(names) == 1:
        raise InputError(
            f"a single class {names[0]!r}; allowed: two or more, or one column {scale!r} for binary"
        )
    return scale, np.column_stack([numbers_in(table, name) for name in columns]), names, columns


def labels_in(table: pa.Table, names: list[str] | None) -> tuple[Any, list[str]]:
    wide = [name for name in table.column_names if name.startswith("label_")] if names else []
    wide = [name for name in wide if names and name.removeprefix("label_") in names]
    given = [name for name in ("label", "labels") if name in table.column_names] + wide[:1]
    if len(given) > 1:
        raise InputError(f"both {given[0]!r} and {given[1]!r}; allowed: one kind of label column")
    if not given:
        _refuse_nameless_labels(table, names)
        return None, []
    if given == ["label"]:
        return _class_indices(table["label"], names), given
    if given == ["labels"]:
        return _lists(table, "labels"), given
    missing = [name for name in names or [] if f"label_{name}" not in wide]
    if missing:
        raise InputError(f"no column 'label_{missing[0]}'; needed: a label column for every class")
    ordered = [f"label_{name}" for name in names or []]
    return np.column_stack([numbers_in(table, name) for name in ordered]), ordered


def _refuse_nameless_labels(table: pa.Table, names: list[str] | None) -> None:
    wide = [name for name in table.column_names if name.startswith("label_")]
    if names is None and wide:
        raise InputError(
            f"{wide[0]!r} without 'logit_<class>' columns; needed: classes by name in both, or in none"
        )


def _class_indices(column: pa.ChunkedArray, names: list[str] | None) -> Any:
    """Labels as class indices; names are looked up where the classes have names."""
    refuse_gaps(column, "label")
    values = column.to_numpy()
    if names is None and values.dtype.kind in "iufb":
        return values
    encoded = column.combine_chunks().dictionary_encode()  # few names, many rows: each name is looked up once
    place = {} if names is None else {name: index for index, name in enumerate(names)}
    numbered = any(WHOLE_NUMBER.fullmatch(name) for name in place)
    indices = encoded.indices.to_numpy()
    first = np.zeros(len(encoded.dictionary), dtype=np.int64)
    first[indices[::-1]] = np.arange(len(indices))[::-1]
    given = zip(encoded.dictionary.to_pylist(), first.tolist(), strict=True)
    return np.array([_class_index(_written(label), row, place, numbered) for label, row in given])[indices]


def _written(label: Any) -> str:
    return str(int(label)) if isinstance(label, bool) else str(label)


def _class_index(label: str, row: int, place: dict[str, int], numbered: bool) -> int:
    if label in place:
        return place[label]
    whole = WHOLE_NUMBER.fullmatch(label)
    if whole and (not numbered or int(whole[1]) == IGNORE):
        return int(whole[1])
    if whole and whole[1] in place:
        return place[whole[1]]
    allowed = _listed(list(place)) if place else "whole numbers, as the file names no classes"
    raise InputError(f"label {label!r} in row {row} is not a class; allowed: {allowed}")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")


def numbers_in(table: pa.Table, name: str) -> Any:
    column = table[name]
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise InputError(f"column {name!r} has type {kind}{_first_text(column)}; allowed: numbers")
    refuse_gaps(column, name)
    return column.to_numpy()


def _first_text(column: pa.ChunkedArray) -> str:
    if not pa.types.is_string(column.type):
        return ""
    for row, value in enumerate(column.to_pylist()):
        try:
            float(value)
        except (TypeError, ValueError):
            return f" with {value!r} in row {row}"
    return ""


def _lists(table: pa.Table, name: str) -> Any:
    """A list column as an array (n, classes), a list of lists as (members, n, classes)."""
    column = table[name].combine_chunks()
    shape = [len(column)]
    while (
        pa.types.is_list(column.type)
        or pa.types.is_large_list(column.type)
        or pa.types.is_fixed_size_list(column.type)
    ):
        refuse_gaps(column, name)
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        if len(lengths) and lengths.min() != lengths.max():
            other = int(np.flatnonzero(lengths != lengths[0])[0])
            row = other // (len(lengths) // shape[0])
            raise InputError(
                f"{name!r} has {lengths[0]} values in row 0 and {lengths[other]} in row {row}; "
                "the lengths must be equal"
            )
        if not lengths.any():
            raise InputError(f"column {name!r} holds empty lists; allowed: a number or more in each")
        shape.append(int(lengths[0]))
        column = column.flatten()
    if len(shape) == 1:
        raise InputError(f"column {name!r} has type {column.type}; allowed: lists of numbers")
    if len(shape) > 3:
        raise InputError(f"column {name!r} has type {table[name].type}; allowed: lists, or lists of lists")
    flat = numbers_in(pa.table({name: column}), name)
    return flat.reshape(shape) if len(shape) == 2 else flat.reshape(shape).transpose(1, 0, 2)


def refuse_gaps(column: pa.ChunkedArray | pa.Array, name: str) -> None:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise InputError(f"column {name!r} is empty in row {row}; allowed: a value in every row")


def stored_in(table: pa.Table) -> dict[str, Any]:
    """What `to_list_table` noted in the file."""
    stored = (table.schema.metadata or {}).get(METADATA)
    try:
        found = {} if stored is None else json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "the metadata 'surefoot' are not JSON; allowed: those that surefoot wrote"
        ) from error
    if not isinstance(found, dict):
        return {}
    names = found.get("class_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError("'class_names' in the metadata 'surefoot' are no names; allowed: a list of texts")
    return found


def csv_options() -> pyarrow.csv.ConvertOptions:
    """How a .csv is read: what names things (ids, groups, labels) stays text as it is written."""
    as_text = {"ids": pa.string(), "groups": pa.string(), "label": pa.string()}
    return pyarrow.csv.ConvertOptions(column_types=as_text, null_values=[""])
