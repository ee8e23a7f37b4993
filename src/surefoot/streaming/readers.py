"""Prediction files read batch by batch, as arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.predictions.columns import (
    csv_options,
    labels_in,
    refuse_answers,
    refuse_repeated,
    scores_in,
    stored_in,
)
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.predictions.paths import STREAMED
from surefoot.streaming.accumulate import Shape
from surefoot.streaming.outcomes import Batch

PART_ROWS = 2**20  # row groups are dealt out together until they hold so many


@dataclass(frozen=True)
class Part:
    """Some row groups of a parquet file, or a whole csv file (no groups)."""

    path: str
    groups: tuple[int, ...] = ()
    first: int = 0  # row of the file
    rows: int | None = None  # not known of a csv file before it is read


def parts_of(files: Sequence[Path]) -> list[Part]:
    """What can be read apart, each in about a million rows."""
    parts: list[Part] = []
    for file in files:
        suffix = file.suffix.lower()
        if suffix not in STREAMED:
            have = ", ".join(STREAMED)
            raise InputError(f"{file}: a {suffix or 'nameless'} file cannot be streamed; have: {have}")
        try:
            file.open("rb").close()
            parts += _row_groups(file) if suffix == ".parquet" else [Part(str(file.absolute()))]
        except (OSError, ValueError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0]
            raise InputError(f"{file}: {reason}") from error
    return parts


def _row_groups(file: Path) -> list[Part]:
    with pyarrow.parquet.ParquetFile(file) as opened:
        sizes = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
    parts, chosen, first, rows = [], [], 0, 0
    for group, size in enumerate(sizes):
        chosen.append(group)
        rows += size
        if rows >= PART_ROWS or group == len(sizes) - 1:
            parts.append(Part(str(file.absolute()), tuple(chosen), first, rows))
            chosen, first, rows = [], first + rows, 0
    return parts


NUMBERS = 2**21  # logits in a batch
MOST_ROWS = 2**17
READ_AHEAD = 2**23  # bytes of a column, or of a csv file, that are held undecoded
SUM_TOLERANCE = 1e-3  # as in `checks`
LARGEST_LOGIT = 1e100

Floats = NDArray[np.floating]


def shape_of(parts: Sequence[Part]) -> Shape:
    """What the first rows say of all; class names are those of the first file that has any."""
    shapes: dict[str, Shape] = {}
    for part in parts:
        if part.path not in shapes:
            for table, start in _tables(part, 1024):
                shapes[part.path] = _read(part, table, start)[1]
                break
        if part.path in shapes and shapes[part.path].class_names is not None:
            break
    if not shapes:
        raise InputError("no rows in any of these files; allowed: at least one row")
    *_, last = shapes.values()
    return replace(next(iter(shapes.values())), class_names=last.class_names)


def batches(part: Part, shape: Shape) -> Iterator[Batch]:
    """A part's rows, a batch at a time; all must have this shape."""
    rows = max(1, min(MOST_ROWS, NUMBERS // (shape.classes * shape.members)))
    for table, start in _tables(part, rows):
        batch, found = _read(part, table, start)
        _refuse_other(part, found, shape)
        yield batch


def _tables(part: Part, rows: int) -> Iterator[tuple[pa.Table, int]]:
    """Pieces of a file, and the row at which each begins; empty ones are left out."""
    start = part.first
    try:
        for table in _parquet(part, rows) if part.groups else _csv(part):
            for offset in range(0, table.num_rows, rows):
                yield table.slice(offset, rows), start + offset
            start += table.num_rows
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        if isinstance(error, InputError):
            raise InputError(f"{part.path}: {error}") from error
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0]
        raise InputError(f"{part.path}: data that cannot be read ({reason})") from error


def _parquet(part: Part, rows: int) -> Iterator[pa.Table]:
    with pyarrow.parquet.ParquetFile(
        part.path, buffer_size=READ_AHEAD, pre_buffer=False, page_checksum_verification=True
    ) as file:
        schema = file.schema_arrow
        refuse_repeated(schema.names)
        refuse_answers(schema.names)
        wanted = [name for name in schema.names if _is_needed(name)]
        if not any(map(_is_score, wanted)):  # asked for no column, a file would say it has no rows
            scores_in(schema.empty_table())
        for batch in file.iter_batches(rows, row_groups=list(part.groups), columns=wanted, use_threads=False):
            yield pa.Table.from_batches([batch]).replace_schema_metadata(schema.metadata)


def _csv(part: Part) -> Iterator[pa.Table]:
    reading = pyarrow.csv.ReadOptions(block_size=READ_AHEAD, use_threads=False)
    with pyarrow.csv.open_csv(part.path, read_options=reading) as first:
        names = first.schema.names
    refuse_answers([name.strip() for name in names])
    options = csv_options()
    scores = {name: pa.float64() for name in names if _is_score(name.strip())}  # also if the first are whole
    options.column_types = {**options.column_types, **scores}
    with pyarrow.csv.open_csv(part.path, read_options=reading, convert_options=options) as file:
        for batch in file:
            yield pa.Table.from_batches([batch]).rename_columns([name.strip() for name in names])


def _is_needed(name: str) -> bool:
    return _is_score(name) or name in ("label", "labels") or name.startswith("label_")


def _is_score(name: str) -> bool:
    return name in ("logit", "logits", "prob", "probs") or name.startswith(("logit_", "prob_"))


def _read(part: Part, table: pa.Table, start: int) -> tuple[Batch, Shape]:
    try:
        return _from_table(table)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, pa.ArrowException) as error:
        where = f"{part.path}, rows counted from {start:,}" if start else part.path
        reason = str(error).strip().split("\n")[0]
        said = reason if isinstance(error, InputError) else f"data that cannot be read ({reason})"
        raise InputError(f"{where}: {said}") from error


def _from_table(table: pa.Table) -> tuple[Batch, Shape]:
    refuse_repeated(table.column_names)
    scale, scores, names, _ = scores_in(table)
    stored = stored_in(table)
    names = stored.get("class_names") or names
    labels, _ = labels_in(table, None if stored.get("label") == "index" else names)
    if labels is None:
        raise InputError("no column 'label'; needed: 'label', 'labels' or 'label_<class>'")
    if labels.ndim > 2:
        raise InputError(f"labels have shape {labels.shape}; allowed: (n,) or (n, classes)")
    scores = _with_members(_as_float(np.asarray(scores)))
    if scores.shape[2] == 1 and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    kind = LabelKind.MANY_LABELS if labels.ndim == 2 else LabelKind.ONE_LABEL
    logits = _checked(scores) if scale == "logit" else _from_probs(scores, kind)
    if logits.shape[2] == 1 and kind is LabelKind.ONE_LABEL:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=2)
    classes = logits.shape[2]
    if names is not None and len(names) != classes:
        raise InputError(f"{len(names)} class names for {classes} classes; the numbers must be equal")
    shape = Shape(kind, classes, len(logits), None if names is None else tuple(map(str, names)))
    return Batch(logits, _labels(labels, kind, classes)), shape


def _as_float(scores: NDArray[Any]) -> Floats:
    if scores.dtype in (np.float32, np.float64):
        return scores
    return scores.astype(np.float32 if scores.dtype.kind == "f" else np.float64)


def _with_members(scores: Floats) -> Floats:
    if scores.ndim == 1:
        return scores.reshape(1, -1, 1)
    return scores[None] if scores.ndim == 2 else scores


def _checked(logits: Floats) -> Floats:
    low, high = float(logits.min()), float(logits.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        _, row, column = np.argwhere(~np.isfinite(logits))[0]
        what = "NaN" if np.isnan(logits[:, row, column]).any() else "infinity"
        raise InputError(f"logits hold {what} in row {row}, column {column}; allowed: finite numbers")
    if max(abs(low), abs(high)) > LARGEST_LOGIT:
        raise InputError(f"logits from {low:g} to {high:g}; allowed: up to {LARGEST_LOGIT:g} in size")
    return logits


def _from_probs(probs: Floats, kind: LabelKind) -> Floats:
    if not (probs.min() >= 0 and probs.max() <= 1):
        member, row, column = np.argwhere(~((probs >= 0) & (probs <= 1)))[0]
        value = f"probability {probs[member, row, column]:g} in row {row}"
        raise InputError(f"{value} is outside [0, 1]; allowed: probabilities, not logits")
    tiny = np.finfo(probs.dtype).tiny
    if probs.shape[2] == 1 or kind is LabelKind.MANY_LABELS:
        return np.asarray(np.log(np.maximum(probs, tiny)) - np.log(np.maximum(1 - probs, tiny)))
    off = np.abs(probs.sum(axis=2, dtype=np.float64) - 1)
    if off.max() > SUM_TOLERANCE:
        member, row = np.argwhere(off > SUM_TOLERANCE)[0]
        total = f"probabilities in row {row} sum to {probs[member, row].sum():.6g}"
        raise InputError(f"{total}; allowed: 1 within {SUM_TOLERANCE:g}")
    return np.asarray(np.log(np.maximum(probs, tiny)))


def _labels(labels: NDArray[Any], kind: LabelKind, classes: int) -> NDArray[np.integer]:
    whole = np.isfinite(labels) & (np.rint(labels) == labels) if labels.dtype.kind == "f" else np.True_
    if not whole.all():
        row = int(np.argwhere(~whole)[0][0])
        raise InputError(f"labels in row {row} are {labels[row].tolist()}; allowed: whole numbers")
    if kind is LabelKind.MANY_LABELS and labels.shape[1] != classes:
        raise InputError(
            f"labels have shape {labels.shape} and logits ({len(labels)}, {classes}); "
            "for many labels the shapes must be equal"
        )
    most = classes - 1 if kind is LabelKind.ONE_LABEL else 1
    wrong = (labels != IGNORE) & ((labels < 0) | (labels > most))
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        found = f"label {int(labels[place])} in row {place[0]} is out of range"
        raise InputError(f"{found}; allowed: 0 to {most}, or {IGNORE} for unknown")
    return labels.astype(np.int64 if kind is LabelKind.ONE_LABEL else np.int8)


def _refuse_other(part: Part, found: Shape, shape: Shape) -> None:
    for what in ("kind", "classes", "members", "class_names"):
        ours, theirs = getattr(found, what), getattr(shape, what)
        if ours != theirs and not (what == "class_names" and None in (ours, theirs)):
            name = what.replace("_", " ")
            first = "the first file that has any" if what == "class_names" else "the first file"
            raise InputError(f"{part.path}: {name} are {ours}, in {first} {theirs}; must be equal")
