"""The columns of a table of predictions, as arrays. Does not need torch."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError, did_you_mean, is_numeric
from surefoot.io import parse_json
from surefoot.predictions.labels import IGNORE, LabelKind, short
from surefoot.predictions.validate import Floats, Whole, as_floats, as_labels, as_predictions

METADATA = b"surefoot"
PREDICT_COLUMNS = frozenset({"label", "confidence", "entropy", "novelty", "error"})
TRUE_LABEL = "true_label"  # the true class in the output of `surefoot predict`, whose `label` is predicted
WHOLE_NUMBER = re.compile(r"([+-]?[0-9]+)(\.0+)?")
MOST_DIGITS = 15  # of a label: a float64 holds every whole number of so many digits
NAMES_IN_ERRORS = 12  # class names that an error lists


@dataclass(frozen=True, eq=False)
class Rows:
    """The logits and labels in some rows of a table, and which of its columns hold them."""

    logits: Floats  # (members, rows, classes)
    labels: Whole
    kind: LabelKind
    class_names: list[str] | None
    used: list[str]


def read_rows(table: pa.Table, unlabelled: LabelKind | None = None) -> Rows:
    """The logits, labels and class names in a table; without labels if `unlabelled` gives their kind."""
    refuse_repeated(table.column_names)
    scale, scores, in_columns, score_columns = scores_in(table)
    stored = stored_in(table)
    names: list[str] | None = stored.get("class_names") or in_columns
    if names and in_columns and names != in_columns:
        raise InputError(
            f"the classes are {short(tuple(names))} in the metadata 'surefoot', and "
            f"{short(tuple(in_columns))} in the names of the columns; must be equal"
        )
    given, label_columns = labels_in(table, None if stored.get("label") == "index" else names)
    if given is None and unlabelled is None:
        raise _no_labels(table.column_names)
    labels = None if given is None else as_labels(given)
    floats = as_floats("logits" if scale == "logit" else "probs", scores)
    logits, labels, kind = as_predictions(scale, floats, labels, unlabelled if given is None else None)
    return Rows(logits, labels, kind, names, [*score_columns, *label_columns])


def refuse_repeated(names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(f"column {repeated[0]!r} occurs twice; allowed: different names")


def is_predict_output(names: Sequence[str]) -> bool:
    """Whether a file with these columns is the output of `surefoot predict`, whose `label` is predicted."""
    is_output = PREDICT_COLUMNS.issubset(names) and ("path" in names or "row" in names)
    return is_output and not any(name.startswith("logit") for name in names)  # which it never writes


def usable_rows(table: pa.Table, *, labelled: bool) -> pa.Table:
    """The table itself; of the output of `surefoot predict`, the readable rows as other files have them."""
    names = table.column_names
    if not is_predict_output(names):
        return table
    refuse_repeated(names)
    if not any(name.startswith("prob_") for name in names):
        raise InputError(
            "output of 'surefoot predict' without probabilities; needed: 'surefoot predict --probabilities'"
        )
    if labelled and not any(name in (TRUE_LABEL, "labels") or name.startswith("label_") for name in names):
        raise InputError(
            "this is the output of 'surefoot predict', whose 'label' is the predicted class; needed: the "
            f"true class in a column {TRUE_LABEL!r}, or 'label_<class>' for many labels"
        )
    readable = table.filter(table["confidence"].is_valid())
    key = "path" if "path" in names else "row"
    dropped = {*PREDICT_COLUMNS - {"novelty"}, "decision", TRUE_LABEL}
    if "ids" not in names:
        dropped.add(key)
    usable = readable.select([name for name in names if name not in dropped])
    if "ids" not in names:
        usable = usable.append_column("ids", readable[key].cast(pa.string()))
    return usable.append_column("label", readable[TRUE_LABEL]) if TRUE_LABEL in names else usable


def needed_columns(names: Sequence[str]) -> list[str]:
    """The columns of scores and labels, and those that `usable_rows` reads."""
    others = {*PREDICT_COLUMNS, TRUE_LABEL, "path", "row"} if is_predict_output(names) else set()
    if not any(map(is_score, names)):
        scores_in(usable_rows(pa.table({name: [] for name in names}), labelled=True))  # says what is missing
    return [name for name in names if is_score(name) or is_label(name) or name in others]


def is_score(name: str) -> bool:
    """Whether a column of that name holds logits or probabilities."""
    return name in ("logit", "logits", "prob", "probs") or name.startswith(("logit_", "prob_"))


def is_label(name: str) -> bool:
    """Whether a column of that name holds true labels."""
    return name in ("label", "labels") or name.startswith("label_")


def scores_in(table: pa.Table) -> tuple[str, Any, list[str] | None, list[str]]:
    """Whether logits or probs, their array, class names where columns name them, and the columns used."""
    by_scale = {
        scale: [
            name
            for name in table.column_names
            if name in (scale, f"{scale}s") or name.startswith(f"{scale}_")
        ]
        for scale in ("logit", "prob")
    }
    given = [scale for scale, columns in by_scale.items() if columns]
    if len(given) != 1:
        got = " and ".join(by_scale[scale][0] for scale in given)
        near = "" if got else _other_spelling(table.column_names)
        raise InputError(
            f"got {got or ', '.join(table.column_names) or 'no columns'}{near}; "
            "needed: exactly one of 'logits', 'probs', 'logit_<class>' or 'prob_<class>' columns"
        )
    scale, columns = given[0], by_scale[given[0]]
    if not table.num_rows:
        raise InputError("no rows; allowed: at least one row")
    if columns == [f"{scale}s"]:
        return scale, lists_in(table, columns[0]), None, columns
    if columns == [scale]:
        return scale, numbers_in(table[scale], scale), None, columns
    if f"{scale}s" in columns or scale in columns:
        raise InputError(
            f"both {columns[0]!r} and {columns[1]!r}; allowed: a list column or columns per class"
        )
    if f"{scale}_" in columns:
        raise InputError(f"column '{scale}_' names no class; allowed: '{scale}_<class>'")
    names = [name.removeprefix(f"{scale}_") for name in columns]
    if len(names) == 1:
        raise InputError(
            f"a single class {names[0]!r}; allowed: two or more, or one column {scale!r} for binary"
        )
    return scale, _numbers_per_class(table, columns), names, columns


def _other_spelling(names: Sequence[str]) -> str:
    """A question where columns have a name such as `proba_cat`, `probability_cat` or `logits_cat`."""
    for name in names:
        written, underscore, rest = name.partition("_")
        for scale in ("logit", "prob"):
            if written.casefold().startswith(scale) and not is_score(name):
                meant = f"{scale}_{rest}" if underscore else f"{scale}s"
                return f" (did you mean {meant!r} instead of {name!r}?)"
    return ""


def _no_labels(names: Sequence[str]) -> InputError:
    """The error for a table without labels; it asks whether a column with a similar name has them."""
    near = next(
        (name for name in names if did_you_mean(name, ("label", "labels")) and not is_score(name)), None
    )
    meant = "" if near is None else f" (did you mean 'label' instead of {near!r}?)"
    return InputError(f"no column 'label'{meant}; needed: 'label', 'labels' or 'label_<class>'")


def labels_in(table: pa.Table, names: list[str] | None) -> tuple[Any, list[str]]:
    """The array of labels, or None, and the columns used; names are looked up among the class names."""
    wide = [name for name in table.column_names if name.startswith("label_")]
    known = set(names or ())
    per_class = [name for name in wide if name.removeprefix("label_") in known]
    given = [name for name in ("label", "labels") if name in table.column_names] + per_class[:1]
    if len(given) > 1:
        raise InputError(f"both {given[0]!r} and {given[1]!r}; allowed: one kind of label column")
    if not given:
        if names is None and wide:
            raise InputError(
                f"{wide[0]!r} without 'logit_<class>' columns; needed: classes by name in both, or in none"
            )
        return None, []
    if given == ["label"]:
        return class_indices(table["label"], names), given
    if given == ["labels"]:
        return lists_in(table, "labels"), given
    ordered = [f"label_{name}" for name in names or []]
    present = set(per_class)
    missing = [name for name in ordered if name not in present]
    if missing:
        raise InputError(f"no column {missing[0]!r}; needed: a label column for every class")
    return _numbers_per_class(table, ordered), ordered


def class_indices(column: pa.ChunkedArray, names: list[str] | None) -> Any:
    """Labels as class indices; names are looked up where the classes have names."""
    refuse_gaps(column, "label")
    if pa.types.is_nested(column.type):
        raise InputError(f"column 'label' has type {column.type}; allowed: names or whole numbers")
    if names is None and _is_number(column.type):
        return as_array(column)
    encoded = column.combine_chunks().dictionary_encode()  # few names, many rows: each name is looked up once
    index_of = {} if names is None else {name: index for index, name in enumerate(names)}
    indices = as_array(encoded.indices)
    first_rows = np.zeros(len(encoded.dictionary), dtype=np.int64)
    first_rows[indices[::-1]] = np.arange(len(indices))[::-1]
    labels = [_label_text(label, index_of) for label in encoded.dictionary.to_pylist()]
    has_number_names = any(WHOLE_NUMBER.fullmatch(name) for name in index_of)
    rows = zip(labels, first_rows.tolist(), strict=True)
    return np.array([_class_index(label, row, index_of, has_number_names) for label, row in rows])[indices]


def _label_text(label: Any, index_of: dict[str, int]) -> str:
    """A label as text; true and false are names where a class has such a name, else 1 and 0."""
    if not isinstance(label, bool):
        return str(label)
    if names_true_or_false(index_of):
        return next((name for name in _spellings(label) if name in index_of), str(label))
    return str(int(label))


def names_true_or_false(names: Collection[str]) -> bool:
    """Whether a class is called true or false: then a boolean is the name of a class, not its index."""
    return any(name in names for value in (True, False) for name in _spellings(value))


def _spellings(value: bool) -> tuple[str, str, str]:
    """How Python, JSON and spreadsheets write a boolean."""
    return str(value), str(value).lower(), str(value).upper()


def _class_index(label: str, row: int, index_of: dict[str, int], has_number_names: bool) -> int:
    if label in index_of:
        return index_of[label]
    whole = WHOLE_NUMBER.fullmatch(label)
    if whole and len(whole[1].lstrip("+-0")) > MOST_DIGITS:
        raise InputError(f"the label in row {row} has {len(whole[1])} digits; allowed: {MOST_DIGITS}")
    if whole and (not has_number_names or int(whole[1]) == IGNORE):
        return int(whole[1])
    if whole and whole[1] in index_of:
        return index_of[whole[1]]
    allowed = ", ".join(list(index_of)[:NAMES_IN_ERRORS]) or "whole numbers, as the file names no classes"
    if len(index_of) > NAMES_IN_ERRORS:
        allowed += f", ... ({len(index_of)} in all)"
    raise InputError(f"label {label!r} in row {row} is not a class; allowed: {allowed}")


def _numbers_per_class(table: pa.Table, names: Sequence[str]) -> Any:
    """Columns of numbers as an array (n, classes); Arrow looks for a name among all of them each time."""
    place = {name: index for index, name in enumerate(table.column_names)}
    return np.column_stack([numbers_in(table.column(place[name]), name) for name in names])


def numbers_in(column: pa.ChunkedArray | pa.Array, name: str) -> Any:
    """A column of numbers without gaps."""
    kind = column.type
    if not _is_number(kind):
        example = ""
        if pa.types.is_string(kind):
            texts = ((row, value) for row, value in enumerate(column.to_pylist()) if not is_numeric(value))
            example = next((f" with {value!r} in row {row}" for row, value in texts), "")
        raise InputError(f"column {name!r} has type {kind}{example}; allowed: numbers")
    refuse_gaps(column, name)
    return as_array(column)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def as_array(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """Numbers or booleans without gaps. `to_numpy` would import pandas where that is installed."""
    if pa.types.is_boolean(column.type):
        return as_array(column.cast(pa.uint8())).astype(np.bool_)
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.from_dlpack(whole)


def lists_in(table: pa.Table, name: str) -> Any:
    """A list column as an array (n, classes), a list of lists as (members, n, classes)."""
    import pyarrow.compute as pc  # slow to import

    column = table[name].combine_chunks()
    shape = [len(column)]
    while (
        pa.types.is_list(column.type)
        or pa.types.is_large_list(column.type)
        or pa.types.is_fixed_size_list(column.type)
    ):
        refuse_gaps(column, name)
        lengths = as_array(pc.list_value_length(column))
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
    flat = numbers_in(pa.chunked_array([column]), name)
    return flat.reshape(shape) if len(shape) == 2 else flat.reshape(shape).transpose(1, 0, 2)


def refuse_gaps(column: pa.ChunkedArray | pa.Array, name: str) -> None:
    import pyarrow.compute as pc  # slow to import

    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise InputError(f"column {name!r} is empty in row {row}; allowed: a value in every row")


def stored_in(table: pa.Table) -> dict[str, Any]:
    """The metadata that `to_list_table` wrote: class names, and how labels are written."""
    stored = (table.schema.metadata or {}).get(METADATA)
    try:
        values = {} if stored is None else parse_json(stored)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "the metadata 'surefoot' are not JSON; allowed: those that surefoot wrote"
        ) from error
    if not isinstance(values, dict):
        return {}
    names = values.get("class_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError("'class_names' in the metadata 'surefoot' are not names; allowed: a list of texts")
    return values
