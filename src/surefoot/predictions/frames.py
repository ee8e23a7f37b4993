"""Predictions from a table in memory: pandas, polars, pyarrow, Hugging Face datasets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from surefoot.errors import InputError, refuse_unknown
from surefoot.predictions.arrays import frozen_table
from surefoot.predictions.columns import METADATA
from surefoot.predictions.files import from_tables
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.tables import in_parts, with_plain_text

INDEX = "__index_level_"  # how pandas calls its index in Arrow
Name = str | int  # pandas counts columns that have no names
Columns = str | Sequence[str] | None


def read_frame(
    frame: Any,
    columns: Mapping[str, Name | Sequence[Name] | None],
    keys: Mapping[str, Name | None],
    class_names: Sequence[str | int] | None,
    kind: LabelKind | None,
) -> Predictions:
    """The columns under their names in a predictions file, then read as one.

    `columns` are those of the scores, on the scale `logit` or `prob`, and the label's.
    """
    table = as_table(frame)
    given = {name: _as_text(value) for name, value in columns.items() if value is not None}
    renamed = {str(name): key for key, name in keys.items() if name is not None}
    if "logit" in given and "prob" in given:
        raise InputError("both logits and probs; allowed: one of the two")
    scale = next((name for name in ("logit", "prob") if name in given), None)
    for what in ("label", "class_names") if scale is None else ():
        if what in given or (what == "class_names" and class_names is not None):
            raise InputError(f"{what} without logits or probs; needed: their columns")
    used = [*_names(given.values()), *(str(name) for name in keys.values() if name is not None)]
    refuse_unknown("column", used, table.column_names)
    repeated = next((name for name in used if used.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f"column {repeated!r} is given twice; allowed: once")
    scores, label = (
        (_scores_in_a_file(table), "label") if scale is None else (given[scale], given.get("label"))
    )
    table, class_names = _with_label_names(table, frame, scores, label, class_names)
    if scale is None:
        table = table.rename_columns([renamed.get(name, name) for name in table.column_names])
        return _read(table, class_names, kind)
    renamed |= _names_in_a_file(table, scale, scores, label, class_names)
    needed = table.select(used).rename_columns([renamed[name] for name in used])
    rest = [name for name in table.column_names if name not in used]
    found = _read(needed, class_names, kind)
    return replace(found, attributes=frozen_table(table.select(rest)) if rest else None)


def _read(table: pa.Table, class_names: Sequence[str | int] | None, kind: LabelKind | None) -> Predictions:
    if class_names is not None:
        stored = json.dumps({"class_names": [str(name) for name in class_names]})
        table = table.replace_schema_metadata({METADATA: stored})
    return from_tables(in_parts(table), table.num_rows, kind)


def _scores_in_a_file(table: pa.Table) -> Columns:
    """The columns of scores where none is named: one of lists, or one for each class."""
    lists = (name for name in ("logits", "probs") if name in table.column_names)
    return next(lists, [name for name in table.column_names if name.startswith(("logit_", "prob_"))])


def as_table(frame: Any) -> pa.Table:
    """Any table as an Arrow table, without the index of pandas."""
    kind = type(frame).__name__
    if hasattr(frame, "collect_schema") and hasattr(frame, "collect"):
        frame = frame.collect()  # polars, lazy
    if hasattr(frame, "set_axis") and hasattr(frame, "columns"):
        frame = frame.set_axis([str(name) for name in frame.columns], axis="columns")  # pandas, any names
    if hasattr(frame, "with_format") and not hasattr(frame, "features"):
        raise InputError(
            f"{kind} has several splits: {', '.join(frame)}; needed: one, such as dataset['test']"
        )
    if hasattr(frame, "with_format") and not hasattr(frame, "__len__"):
        raise InputError(f"{kind} is read row by row; needed: a Dataset, or Predictions.from_batches")
    try:
        if hasattr(frame, "with_format"):  # a Hugging Face dataset, whose rows may be a selection
            table = frame.with_format("arrow")[:]
        elif hasattr(frame, "__arrow_c_stream__") or isinstance(frame, Mapping):
            table = pa.table(frame)
        else:
            table = pa.Table.from_pandas(frame)
    except pa.ArrowException as error:
        reason = "; ".join(str(each) for each in error.args)
        raise InputError(f"{kind} has a column that cannot be read: {reason}; allowed: one type") from None
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"{kind} is not a table; allowed: a DataFrame of pandas or polars, a table of pyarrow, "
            "a Hugging Face dataset"
        ) from None
    columns = [name for name in table.column_names if not name.startswith(INDEX)]
    return with_plain_text(table.select(columns).replace_schema_metadata(None))


def _with_label_names(
    table: pa.Table, frame: Any, scores: Columns, label: Columns, class_names: Sequence[str | int] | None
) -> tuple[pa.Table, Sequence[str | int] | None]:
    """The labels of a Hugging Face `ClassLabel` as its names, unless the classes have other names.

    Its numbers count the names of the data set, whose order need not be that of the scores.
    """
    feature = getattr(frame, "features", {}).get(label) if isinstance(label, str) else None
    names = getattr(feature, "names", None)
    if not names:
        return table, class_names
    if class_names is None and isinstance(scores, str):
        return table, names
    classes = class_names or [name.removeprefix("logit_").removeprefix("prob_") for name in scores or ()]
    if not {str(name) for name in classes} & set(names):
        return table, class_names
    numbers = table[label].to_pylist()
    text = pa.array([None if number is None or number < 0 else names[number] for number in numbers])
    return table.set_column(table.column_names.index(label), label, text), class_names


def _names_in_a_file(
    table: pa.Table, scale: str, scores: Columns, label: Columns, class_names: Sequence[str | int] | None
) -> dict[str, str]:
    """The names that the columns of scores and labels have in a predictions file."""
    names = None if class_names is None else [str(name) for name in class_names]
    if isinstance(scores, str):
        renamed = {scores: f"{scale}s" if _has_lists(table, scores) else scale}
    else:
        columns = list(scores or ())
        for column in columns:
            if _has_lists(table, column):
                raise InputError(
                    f"column {column!r} holds lists; allowed: its name alone, {scale}s={column!r}"
                )
        names = names or [name.removeprefix(f"{scale}_") for name in columns]
        if len(names) != len(columns):
            raise InputError(
                f"{len(names)} class names for {len(columns)} columns; the numbers must be equal"
            )
        renamed = {column: f"{scale}_{name}" for column, name in zip(columns, names, strict=True)}
    if isinstance(label, str):
        renamed[label] = "labels" if _has_lists(table, label) else "label"
    elif label is not None:
        if isinstance(scores, str) or names is None or len(names) != len(label):
            got = "no column for each class" if isinstance(scores, str) else f"{len(names or ())} classes"
            raise InputError(f"{len(label)} label columns and {got}; the numbers must be equal")
        renamed |= {column: f"label_{name}" for column, name in zip(label, names, strict=True)}
    return renamed


def _has_lists(table: pa.Table, column: str) -> bool:
    return bool(pa.types.is_nested(table.schema.field(column).type))


def _as_text(columns: Name | Sequence[Name]) -> str | Sequence[str]:
    return str(columns) if isinstance(columns, str | int) else [str(name) for name in columns]


def _names(columns: Any) -> list[str]:
    return [name for each in columns for name in ([each] if isinstance(each, str) else each)]
