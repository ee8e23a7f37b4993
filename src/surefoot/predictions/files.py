"""Predictions on disk: .npz, .parquet and .csv. Never pickled; npz and parquet round trips are exact."""

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError, one_line
from surefoot.io import refuse_special, replacing
from surefoot.predictions.archive import read_arrays
from surefoot.predictions.arguments import checked
from surefoot.predictions.arrays import read_only
from surefoot.predictions.classes import class_names_of
from surefoot.predictions.columns import (
    METADATA,
    is_label,
    is_score,
    lists_in,
    numbers_in,
    read_rows,
    refuse_gaps,
    refuse_repeated,
    usable_rows,
)
from surefoot.predictions.labels import LabelKind, refuse_other_classifier
from surefoot.predictions.memory import refuse_larger_than_memory
from surefoot.predictions.paths import SUFFIXES, files_named
from surefoot.predictions.predictions import OPTIONAL, Predictions, concatenated, from_scores
from surefoot.predictions.tables import (
    arrow_file,
    decoding,
    fits_csv,
    most_rows,
    read_stream,
    tables_in,
    values_in,
    write_csv,
)
from surefoot.predictions.validate import as_floats, check_labels

KEYS = ("groups", "ids", "novelty")
ARRAYS = ("logits", "probs", "labels", "classes", "attributes", *OPTIONAL)


@checked
def read_predictions(
    path: str | Path | Sequence[str | Path], *, unlabelled: LabelKind | None = None
) -> Predictions:
    """Read .npz, .parquet or .csv files; those without labels only if `unlabelled` gives their kind.

    `path` is a file, a folder of them, a pattern such as 'val/*.parquet', or several; rows are in the order
    of the files' names. The output of `surefoot predict --probabilities` is read without the images that
    could not be read; its true labels are in a column `true_label`, or `label_<class>`.

    >>> val = read_predictions("val.parquet")  # doctest: +SKIP
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    files = [file for each in paths for file in files_named(each)]
    if not files:
        raise InputError("the list of prediction files is empty; needed: at least one")
    parts = [_read_file(file, unlabelled) for file in files]
    return parts[0] if len(parts) == 1 else _joined(dict(zip(map(str, files), parts, strict=True)))


def _joined(parts: dict[str, Predictions]) -> Predictions:
    """The rows of all files as one; a further column is empty in the rows of files without it."""
    refuse_other_columns(parts)
    given = list(parts.values())
    names = next((part.class_names for part in given if part.class_names is not None), None)
    return replace(concatenated(given), class_names=names, attributes=_joined_attributes(given))


def refuse_other_columns(parts: Mapping[str, Predictions]) -> None:
    """Raise if predictions, by the name of their file, cannot be parts of the same."""
    refuse_other_classifier(parts)
    facts = {file: (part.members, _width(part), part.groups is not None) for file, part in parts.items()}
    first, expected = next(iter(facts.items()))
    for file, got in facts.items():
        for what, one, other in zip(("members", "features", "groups"), expected, got, strict=True):
            if one != other:
                raise InputError(f"{what} differ: {first} {one}, {file} {other}; must be equal")


def _width(predictions: Predictions) -> int:
    return 0 if predictions.features is None else predictions.features.shape[1]


def _joined_attributes(parts: Sequence[Predictions]) -> pa.Table | None:
    name = next((part.attributes.column_names[0] for part in parts if part.attributes is not None), None)
    if name is None:
        return None
    tables = [
        pa.table({name: pa.nulls(part.n)}) if part.attributes is None else part.attributes for part in parts
    ]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(f"columns of the files differ ({one_line(error)}); must be equal") from error


def _read_file(file: Path, unlabelled: LabelKind | None) -> Predictions:
    with _reading(file):
        if file.suffix.lower() == ".npz":
            return _from_npz(file, unlabelled)
        return from_tables(tables_in(file), most_rows(file), unlabelled)


@checked
def write_predictions(predictions: Predictions, path: str | Path) -> None:
    """Write a predictions file, completely or not at all; the ending of its name gives the type.

    >>> write_predictions(val, "val.parquet")  # doctest: +SKIP
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: unknown file type {suffix!r}; have: {', '.join(SUFFIXES)}")
    if suffix == ".csv" and predictions.members > 1:
        raise InputError(
            f"{path}: a .csv holds one member, got {predictions.members}; allowed: .npz or .parquet"
        )
    if suffix == ".csv" and predictions.features is not None:
        raise InputError(f"{path}: a .csv holds no features; allowed: .npz or .parquet")
    with replacing(path) as temporary:
        if suffix == ".npz":
            _write_npz(predictions, temporary)
            return
        table = to_list_table(predictions) if suffix == ".parquet" else to_wide_table(predictions)
        _refuse_unwritable(predictions, table, suffix)
        try:
            if suffix == ".parquet":
                from pyarrow import parquet  # slow to import

                with arrow_file(temporary, "wb") as file:
                    parquet.write_table(table, file, write_page_checksum=True)
            else:
                write_csv(table, temporary)
        except pa.ArrowException as error:
            raise InputError(f"{path}: a {suffix} cannot hold this ({one_line(error)})") from error


def _refuse_unwritable(predictions: Predictions, table: pa.Table, suffix: str) -> None:
    """Raise for further columns that would be read back as something else, or not at all."""
    for field in [] if predictions.attributes is None else predictions.attributes.schema:
        name = field.name
        taken = is_score(name) or is_label(name) or name in ("groups", "ids", "novelty")
        taken = taken or (name == "features" and pa.types.is_nested(field.type))
        if taken or (suffix == ".csv" and (not name or name != name.strip())):
            raise InputError(
                f"a column {name!r} in a {suffix} would be read as something else; allowed: .npz, or another "
                "name"
            )
    refuse_repeated(table.column_names)
    for field in table.schema if suffix == ".csv" else ():
        if not fits_csv(field.type):
            raise InputError(f"column {field.name!r} has type {field.type}; a .csv holds numbers and text")


def to_list_table(predictions: Predictions) -> pa.Table:
    """The predictions with list columns, exact to the bit."""
    logits, labels = predictions.logits, predictions.labels
    columns = {"logits": _list_column(logits[0] if len(logits) == 1 else logits.transpose(1, 0, 2))}
    if predictions.kind is LabelKind.ONE_LABEL:
        columns["label"] = pa.array(labels)
    else:
        columns["labels"] = _list_column(labels)
    stored = json.dumps({"class_names": predictions.class_names, "label": "index"})
    return _with_the_rest(columns, predictions).replace_schema_metadata({METADATA: stored})


def to_wide_table(predictions: Predictions) -> pa.Table:
    """The predictions of one member with a column per class; labels by class name.

    In double precision: a .csv is read so, and fewer digits of a float32 would be another number.
    """
    names = class_names_of(predictions)
    logits, labels = predictions.logits.astype(np.float64), predictions.labels
    columns: dict[str, Any] = {f"logit_{name}": logits[0, :, i] for i, name in enumerate(names)}
    if predictions.kind is LabelKind.ONE_LABEL:
        columns["label"] = [names[label] if label >= 0 else str(label) for label in labels.tolist()]
    else:
        columns |= {f"label_{name}": labels[:, i] for i, name in enumerate(names)}
    return _with_the_rest(columns, predictions)


def _with_the_rest(columns: dict[str, Any], predictions: Predictions) -> pa.Table:
    for key in KEYS:
        if getattr(predictions, key) is not None:
            columns[key] = getattr(predictions, key)
    if predictions.features is not None:
        columns["features"] = _list_column(predictions.features)
    table = pa.table(columns)
    others = pa.table({}) if predictions.attributes is None else predictions.attributes
    for field, column in zip(others.schema, others.columns, strict=True):
        table = table.append_column(field, column)
    return table


def _list_column(values: Any) -> pa.Array:
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, int(size))
    return column


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn whatever is wrong with a predictions file into one sentence that names it."""
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file}: unknown file type {file.suffix!r}; have: {', '.join(SUFFIXES)}")
    try:
        with decoding(f"{file.suffix} data"):
            refuse_special(file)
            file.open("rb").close()  # not readable: the same message for every type
            yield
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def from_tables(tables: Iterable[pa.Table], most: int, unlabelled: LabelKind | None) -> Predictions:
    """Predictions from a table that comes some rows at a time, and has at most so many.

    Logits, labels and features are written into arrays that are allocated once, so that no number is in
    memory twice; other columns stay with Arrow until the end.
    """
    arrays: dict[str, NDArray[Any]] = {}
    others: list[pa.Table] = []
    seen = filled = 0
    for table in tables:
        where, seen = f"rows counted from {seen:,}: " if seen else "", seen + table.num_rows
        try:
            usable = usable_rows(table, labelled=unlabelled is None)
            if not usable.num_rows and table.num_rows:
                continue
            rows = read_rows(usable, unlabelled)
            check_labels(rows.labels, rows.kind, *rows.logits.shape[1:])
            given = {"logits": rows.logits, "labels": rows.labels}
            if "features" in usable.column_names and pa.types.is_nested(usable["features"].type):
                given["features"] = as_floats("features", lists_in(usable, "features"))
                rows.used.append("features")
        except InputError as error:
            raise InputError(f"{where}{error}") from error
        filled = _fill(arrays, given, filled, most)
        others.append(usable.drop_columns(rows.used))
    if not others:
        raise InputError("no rows; allowed: at least one row")
    for array in arrays.values():
        read_only(array)
    rest = pa.concat_tables(others).replace_schema_metadata(None)
    attributes = rest.drop_columns([name for name in KEYS if name in rest.column_names])
    keys: dict[str, Any] = {}
    for name in ("groups", "ids"):
        if name in rest.column_names:
            refuse_gaps(rest[name], name)
            keys[name] = values_in(rest[name])
    return Predictions.from_logits(
        arrays["logits"][:, :filled],
        arrays["labels"][:filled],
        kind=rows.kind,
        class_names=rows.class_names,
        novelty=numbers_in(rest["novelty"], "novelty") if "novelty" in rest.column_names else None,
        attributes=attributes if attributes.num_columns else None,
        features=arrays["features"][:filled] if "features" in arrays else None,
        **keys,
    )


def _fill(arrays: dict[str, NDArray[Any]], given: Mapping[str, NDArray[Any]], start: int, most: int) -> int:
    """Write some rows behind those that are there; memory that is never written to is never used."""
    end = start
    for name, values in given.items():
        axis = 1 if name == "logits" else 0
        if name not in arrays:
            shape = (*values.shape[:axis], most, *values.shape[axis + 1 :])
            refuse_larger_than_memory(f"the {name}", math.prod(shape) * values.itemsize)
            arrays[name] = np.empty(shape, values.dtype)
        array, new = arrays[name].swapaxes(0, axis), values.swapaxes(0, axis)
        if array.shape[1:] != new.shape[1:]:
            raise InputError(
                f"a row of {name} has shape {array.shape[1:]} in row 0 and {new.shape[1:]} in row {start:,}; "
                "the lengths must be equal"
            )
        end = start + len(new)
        array[start:end] = new
    return end


def _from_npz(path: Path, unlabelled: LabelKind | None) -> Predictions:
    arrays = read_arrays(path, ARRAYS)
    given = [name for name in ("logits", "probs") if name in arrays]
    if len(given) != 1:
        raise InputError(
            f"{' and '.join(given) or 'neither logits nor probs'}; allowed: exactly one of the two"
        )
    labels = arrays.get("labels")
    if labels is None and unlabelled is None:
        raise InputError("no array 'labels'; needed: labels of shape (n,) or (n, classes)")
    attributes = arrays.get("attributes")  # the bytes of an Arrow stream, which keeps types and gaps
    if attributes is not None:
        if attributes.dtype != np.uint8:
            raise InputError(
                f"array 'attributes' has type {attributes.dtype}; allowed: the bytes of an Arrow stream"
            )
        attributes = read_stream(attributes.tobytes())
        refuse_repeated(attributes.column_names)
    names = arrays.get("classes")
    if names is not None and (names.ndim != 1 or names.dtype.kind not in "Uiu"):
        raise InputError(f"array 'classes' has type {names.dtype} and shape {names.shape}; allowed: names")
    scores, out = as_floats(given[0], arrays[given[0]]), None
    if given == ["probs"] and scores.dtype == np.float64:
        scores.flags.writeable = True  # nobody else has it: the logarithms take its place
        out = scores
    return from_scores(
        given[0].removesuffix("s"),
        scores,
        labels,
        unlabelled if labels is None else None,
        None if names is None else names.tolist(),
        attributes=attributes,
        out=out,
        **{name: arrays.get(name) for name in OPTIONAL},
    )


def _write_npz(predictions: Predictions, path: Path) -> None:
    names = predictions.class_names
    given = {name: getattr(predictions, name) for name in ("logits", "labels", *OPTIONAL)}
    given["classes"] = None if names is None else np.array(names)
    if predictions.attributes is not None:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, predictions.attributes.schema) as stream:
            stream.write_table(predictions.attributes)
        given["attributes"] = np.frombuffer(sink.getvalue(), dtype=np.uint8)
    arrays = {name: array for name, array in given.items() if array is not None}
    assert not any(array.dtype.hasobject for array in arrays.values()), "numpy would pickle these"
    with path.open("wb") as file:  # given a path, numpy would add .npz to it
        np.savez(file, **arrays)
