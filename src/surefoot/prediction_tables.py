"""Predictions as a table: a row per sample.

`logits` or `probs` as a list column, or wide as `logit_<class>` / `prob_<class>` (a lone `logit` or `prob`
is one-logit binary); `label`, or for many labels the list column `labels` or wide `label_<class>`;
optionally `groups`, `ids`, `novelty`. Any further column is kept as an attribute.

A `label` is a class name or an index. Where any class name is itself a whole number, it is always a name.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from surefoot.checks import IGNORE
from surefoot.errors import InputError
from surefoot.predictions import LabelKind, Predictions

METADATA = b"surefoot"
WHOLE_NUMBER = re.compile(r"([+-]?\d+)(\.0+)?")


def read_parquet(path: Path) -> pa.Table:
    """A parquet file as a table; where pages carry checksums, they are verified."""
    return pyarrow.parquet.read_table(path, partitioning=None, page_checksum_verification=True)


def read_csv(path: Path) -> pa.Table:
    """A csv file as a table; what names things (ids, groups, labels) stays text as it is written."""
    as_text = {"ids": pa.string(), "groups": pa.string(), "label": pa.string()}
    options = pyarrow.csv.ConvertOptions(column_types=as_text, null_values=[""])
    table = pyarrow.csv.read_csv(path, convert_options=options)
    return table.rename_columns([name.strip() for name in table.column_names])


def write_parquet(table: pa.Table, path: Path) -> None:
    """A table as a parquet file, with checksums."""
    pyarrow.parquet.write_table(table, path, write_page_checksum=True)


def write_csv(table: pa.Table, path: Path) -> None:
    """A table as a csv file."""
    for field in table.schema:
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            raise InputError(f"column {field.name!r} has type {field.type}; a .csv holds numbers and text")
    pyarrow.csv.write_csv(table, path)


def from_table(table: pa.Table, unlabelled: LabelKind | None = None) -> Predictions:
    """Predictions from a table; without labels only if `unlabelled` says of which kind they are."""
    _refuse_repeated(table.column_names)
    scale, scores, names, used = _scores(table)
    stored = _stored(table)
    names = stored.get("class_names") or names
    labels, label_columns = _labels(table, None if stored.get("label") == "index" else names)
    if labels is None and unlabelled is None:
        raise InputError("no column 'label'; needed: 'label', 'labels' or 'label_<class>'")
    build = Predictions.from_logits if scale == "logit" else Predictions.from_probs
    known = {*used, *label_columns, "groups", "ids", "novelty"}
    rest = [name for name in table.column_names if name not in known]
    return build(
        scores,
        labels,
        kind=unlabelled if labels is None else None,
        class_names=names,
        groups=_keys(table, "groups"),
        ids=_keys(table, "ids"),
        novelty=_numbers(table, "novelty") if "novelty" in table.column_names else None,
        attributes=table.select(rest).replace_schema_metadata(None) if rest else None,
    )


def to_list_table(predictions: Predictions) -> pa.Table:
    """The predictions with list columns, exact to the bit."""
    logits, labels = predictions.logits.numpy(), predictions.labels.numpy()
    columns = {"logits": _list_column(logits[0] if len(logits) == 1 else logits.transpose(1, 0, 2))}
    if predictions.kind is LabelKind.ONE_LABEL:
        columns["label"] = pa.array(labels)
    else:
        columns["labels"] = _list_column(labels)
    stored = json.dumps({"class_names": predictions.class_names, "label": "index"})
    return _with_the_rest(columns, predictions).replace_schema_metadata({METADATA: stored})


def to_wide_table(predictions: Predictions) -> pa.Table:
    """The predictions of one member with a column per class; labels by class name."""
    names = predictions.class_names or tuple(str(index) for index in range(predictions.classes))
    logits, labels = predictions.logits.numpy(), predictions.labels.numpy()
    columns: dict[str, Any] = {f"logit_{name}": logits[0, :, i] for i, name in enumerate(names)}
    if predictions.kind is LabelKind.ONE_LABEL:
        columns["label"] = [names[label] if label >= 0 else str(label) for label in labels.tolist()]
    else:
        columns |= {f"label_{name}": labels[:, i] for i, name in enumerate(names)}
    return _with_the_rest(columns, predictions)


def _with_the_rest(columns: dict[str, Any], predictions: Predictions) -> pa.Table:
    keys = ("groups", "ids")
    columns |= {key: getattr(predictions, key) for key in keys if getattr(predictions, key) is not None}
    if predictions.novelty is not None:
        columns["novelty"] = predictions.novelty.numpy()
    table = pa.table(columns)
    attributes = predictions.attributes
    for name in [] if attributes is None else attributes.column_names:
        assert attributes is not None
        table = table.append_column(attributes.schema.field(name), attributes[name])
    return table


def _refuse_repeated(names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"column {repeated[0]!r} occurs twice; allowed: different names")


def _scores(table: pa.Table) -> tuple[str, Any, list[str] | None, list[str]]:
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
        return scale, _numbers(table, scale), None, columns
    if f"{scale}s" in columns or scale in columns:
        raise InputError(
            f"both {columns[0]!r} and {columns[1]!r}; allowed: a list column or columns per class"
        )
    names = [name.removeprefix(f"{scale}_") for name in columns]
    if len(names) == 1:
        raise InputError(
            f"a single class {names[0]!r}; allowed: two or more, or one column {scale!r} for binary"
        )
    return scale, np.column_stack([_numbers(table, name) for name in columns]), names, columns


def _labels(table: pa.Table, names: list[str] | None) -> tuple[Any, list[str]]:
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
    return np.column_stack([_numbers(table, name) for name in ordered]), ordered


def _refuse_nameless_labels(table: pa.Table, names: list[str] | None) -> None:
    wide = [name for name in table.column_names if name.startswith("label_")]
    if names is None and wide:
        raise InputError(
            f"{wide[0]!r} without 'logit_<class>' columns; needed: classes by name in both, or in none"
        )


def _class_indices(column: pa.ChunkedArray, names: list[str] | None) -> Any:
    """Labels as class indices; names are looked up where the classes have names."""
    _refuse_gaps(column, "label")
    values = column.to_numpy()
    if names is None and values.dtype.kind in "iufb":
        return values
    text = [str(int(value)) if isinstance(value, bool) else str(value) for value in values.tolist()]
    place = {} if names is None else {name: index for index, name in enumerate(names)}
    numbered = any(WHOLE_NUMBER.fullmatch(name) for name in place)
    return np.array([_class_index(label, row, place, numbered) for row, label in enumerate(text)])


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


def _numbers(table: pa.Table, name: str) -> Any:
    column = table[name]
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise InputError(f"column {name!r} has type {kind}{_first_text(column)}; allowed: numbers")
    _refuse_gaps(column, name)
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
        _refuse_gaps(column, name)
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        if len(lengths) and lengths.min() != lengths.max():
            other = int(np.flatnonzero(lengths != lengths[0])[0])
            row = other // (len(lengths) // shape[0])
            raise InputError(
                f"{name!r} has {lengths[0]} values in row 0 and {lengths[other]} in row {row}; "
                "the lengths must be equal"
            )
        shape.append(int(lengths[0]))
        column = column.flatten()
    if len(shape) == 1:
        raise InputError(f"column {name!r} has type {column.type}; allowed: lists of numbers")
    flat = _numbers(pa.table({name: column}), name)
    return flat.reshape(shape) if len(shape) == 2 else flat.reshape(shape).transpose(1, 0, 2)


def _list_column(values: Any) -> pa.Array:
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, int(size))
    return column


def _keys(table: pa.Table, name: str) -> Any:
    if name not in table.column_names:
        return None
    _refuse_gaps(table[name], name)
    return np.asarray(table[name].to_pylist())


def _refuse_gaps(column: pa.ChunkedArray | pa.Array, name: str) -> None:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise InputError(f"column {name!r} is empty in row {row}; allowed: a value in every row")


def _stored(table: pa.Table) -> dict[str, Any]:
    """What `to_list_table` noted in the file."""
    stored = (table.schema.metadata or {}).get(METADATA)
    found = {} if stored is None else json.loads(stored)
    return found if isinstance(found, dict) else {}
