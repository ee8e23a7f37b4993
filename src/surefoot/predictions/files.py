"""Predictions on disk: .npz, .parquet and .csv. Never pickled; npz and parquet round trips are exact."""

import io
import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from surefoot.errors import InputError
from surefoot.io import replacing
from surefoot.predictions.columns import (
    METADATA,
    are_answers,
    csv_options,
    labels_in,
    numbers_in,
    refuse_answers,
    refuse_gaps,
    refuse_repeated,
    scores_in,
    scores_of_answers,
    stored_in,
)
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions


def read_parquet(path: Path) -> pa.Table:
    """A parquet file as a table; where pages carry checksums, they are verified."""
    return pyarrow.parquet.read_table(path, partitioning=None, page_checksum_verification=True)


def read_csv(path: Path) -> pa.Table:
    """A csv file as a table; what names things (ids, groups, labels) stays text as it is written."""
    table = pyarrow.csv.read_csv(path, convert_options=csv_options())
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


def from_table(table: pa.Table, unlabelled: LabelKind | None = None, *, answers: bool = False) -> Predictions:
    """Predictions from a table; without labels only if `unlabelled` says of which kind they are.

    What `surefoot predict` wrote has none, and is read only where `answers` will do.
    """
    refuse_repeated(table.column_names)
    if not answers:
        refuse_answers(table.column_names)
    elif are_answers(table.column_names):
        table = scores_of_answers(table)
    scale, scores, names, used = scores_in(table)
    stored = stored_in(table)
    names = stored.get("class_names") or names
    labels, label_columns = labels_in(table, None if stored.get("label") == "index" else names)
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
        novelty=numbers_in(table, "novelty") if "novelty" in table.column_names else None,
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


def _list_column(values: Any) -> pa.Array:
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, int(size))
    return column


def _keys(table: pa.Table, name: str) -> Any:
    if name not in table.column_names:
        return None
    refuse_gaps(table[name], name)
    return np.asarray(table[name].to_pylist())


ARRAYS = ("logits", "probs", "labels", "groups", "ids", "classes", "novelty", "attributes")


def read_predictions(
    path: str | Path, *, unlabelled: LabelKind | None = None, answers: bool = False
) -> Predictions:
    """Read a predictions file; without labels only if `unlabelled` says of which kind it is.

    `answers`: what `surefoot predict` wrote will do, too; then without the images that it could not read.
    """
    file = Path(path)
    read = {
        ".npz": _read_npz,
        ".parquet": _from(read_parquet, answers=answers),
        ".csv": _from(read_csv, answers=answers),
    }.get(file.suffix.lower())
    if read is None:
        raise InputError(f"{path}: unknown file type {file.suffix!r}; have: .npz, .parquet, .csv")
    try:
        file.open("rb").close()  # one wording, whatever the type, for what is missing or may not be read
        return read(file, unlabelled)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        zipfile.BadZipFile,
        zlib.error,
        pa.ArrowException,
    ) as error:
        reason = (
            getattr(error, "strerror", None)
            or f"{file.suffix} data that cannot be read ({_first_line(error)})"
        )
        raise InputError(f"{path}: {reason}") from error


def write_predictions(predictions: Predictions, path: str | Path) -> None:
    """Write a predictions file, all of it or nothing; the ending of its name says which type."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".npz", ".parquet", ".csv"):
        raise InputError(f"{path}: unknown file type {suffix!r}; have: .npz, .parquet, .csv")
    if suffix == ".csv" and predictions.members > 1:
        raise InputError(
            f"{path}: a .csv holds one member, got {predictions.members}; allowed: .npz or .parquet"
        )
    with replacing(path) as temporary:
        if suffix == ".npz":
            _write_npz(predictions, temporary)
        elif suffix == ".parquet":
            write_parquet(to_list_table(predictions), temporary)
        else:
            write_csv(to_wide_table(predictions), temporary)


def _from(
    read_table: Callable[[Path], pa.Table], *, answers: bool
) -> Callable[[Path, LabelKind | None], Predictions]:
    return lambda path, unlabelled: from_table(read_table(path), unlabelled, answers=answers)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _read_npz(path: Path, unlabelled: LabelKind | None) -> Predictions:
    if not zipfile.is_zipfile(path):
        raise ValueError("not a zip archive, or a truncated one")
    with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
        unknown = sorted(set(file.files) - set(ARRAYS))
        if unknown:
            raise InputError(f"unknown array {unknown[0]!r}; allowed: {', '.join(ARRAYS)}")
        arrays = {name: _array(file, name) for name in file.files}
    return _from_arrays(arrays, unlabelled)


def _array(file: Any, name: str) -> Any:
    try:
        return file[name]
    except ValueError as error:
        if "Object arrays" in str(error):
            raise InputError(f"array {name!r} holds Python objects; allowed: numbers and text") from error
        raise


def _from_arrays(arrays: dict[str, Any], unlabelled: LabelKind | None) -> Predictions:
    given = [name for name in ("logits", "probs") if name in arrays]
    if len(given) != 1:
        raise InputError(
            f"{' and '.join(given) or 'neither logits nor probs'}; allowed: exactly one of the two"
        )
    labels = arrays.get("labels")
    if labels is None and unlabelled is None:
        raise InputError("no array 'labels'; needed: labels of shape (n,) or (n, classes)")
    build = Predictions.from_logits if given == ["logits"] else Predictions.from_probs
    attributes = arrays.get("attributes")
    return build(
        arrays[given[0]],
        labels,
        kind=unlabelled if labels is None else None,
        class_names=None if "classes" not in arrays else [str(name) for name in arrays["classes"]],
        groups=arrays.get("groups"),
        ids=arrays.get("ids"),
        novelty=arrays.get("novelty"),
        attributes=None if attributes is None else _attributes(attributes),
    )


def _attributes(stored: Any) -> pa.Table:
    """Attributes travel in an npz as the bytes of an Arrow stream, so that types and gaps survive."""
    if stored.dtype != np.uint8:
        raise InputError(f"array 'attributes' has type {stored.dtype}; allowed: the bytes of an Arrow stream")
    with pa.ipc.open_stream(pa.py_buffer(stored.tobytes())) as stream:
        return stream.read_all()


def _write_npz(predictions: Predictions, path: Path) -> None:
    arrays: dict[str, Any] = {
        "logits": predictions.logits.numpy(),
        "labels": predictions.labels.numpy(),
        "groups": predictions.groups,
        "ids": predictions.ids,
        "classes": None if predictions.class_names is None else np.array(predictions.class_names),
        "novelty": None if predictions.novelty is None else predictions.novelty.numpy(),
    }
    if predictions.attributes is not None:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, predictions.attributes.schema) as stream:
            stream.write_table(predictions.attributes)
        arrays["attributes"] = np.frombuffer(sink.getvalue(), dtype=np.uint8)
    given = {name: array for name, array in arrays.items() if array is not None}
    assert not any(array.dtype.hasobject for array in given.values()), "numpy would pickle these"
    with path.open("wb") as file:  # given a name, numpy would add an ending of its own
        np.savez(file, **given)
