"""Predictions on disk: .npz, .parquet and .csv. Never pickled; round trips of npz and parquet are exact."""

import io
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surefoot.errors import InputError
from surefoot.files import replacing
from surefoot.prediction_tables import (
    from_table,
    read_csv,
    read_parquet,
    to_list_table,
    to_wide_table,
    write_csv,
    write_parquet,
)
from surefoot.predictions import LabelKind, Predictions

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
