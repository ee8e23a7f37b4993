"""Prediction files read batch by batch, as arrays."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.io import refuse_special
from surefoot.predictions.columns import needed_columns, read_rows, usable_rows
from surefoot.predictions.files import from_tables
from surefoot.predictions.labels import LabelKind, refuse_other_classifier
from surefoot.predictions.logits import Whole
from surefoot.predictions.paths import STREAMED
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.tables import Select, arrow_file, decoding, refuse_announced, tables_in
from surefoot.predictions.validate import check_predictions

PART_BYTES = 2**22  # row groups are joined into a part until it has this many,
MOST_PARTS = 256  # or a share of the file, whose list of row groups is read for each part
NUMBERS = 2**20  # logits in a batch, which stays in the cache while it is decoded and read
MOST_ROWS = 2**17  # rows in a batch
FIRST_ROWS = 1024  # of a file, that show its shape
IN_MEMORY = "all rows in memory (read_predictions in Python, --no-stream)"


@dataclass(frozen=True)
class Shape:
    """What all batches must have in common."""

    kind: LabelKind
    classes: int
    members: int
    class_names: tuple[str, ...] | None = None

    @property
    def blocks(self) -> int:
        """Parts of the decisions that are ranked apart: one, or for many labels the classes."""
        return 1 if self.kind is LabelKind.ONE_LABEL else self.classes


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a file: logits (members, rows, classes), labels (rows,) or (rows, classes)."""

    logits: NDArray[np.floating]
    labels: Whole


def labelled(batch: Batch) -> Batch:
    """The rows that have a known label."""
    known = batch.labels >= 0 if batch.labels.ndim == 1 else (batch.labels >= 0).any(axis=1)
    return batch if known.all() else Batch(batch.logits[:, known], batch.labels[known])


@dataclass(frozen=True)
class Part:
    """Some row groups of a parquet file, or a whole csv file (no groups)."""

    path: str
    groups: tuple[int, ...] = ()
    first: int = 0  # row of the file
    rows: int | None = None  # of a csv file it is not known before it is read


def parts_of(files: Sequence[Path]) -> list[Part]:
    """Parts that can be read independently, so small that several threads have work."""
    parts: list[Part] = []
    for file in files:
        suffix = file.suffix.lower()
        if suffix not in STREAMED:
            have = ", ".join(STREAMED)
            raise InputError(f"{file}: a {suffix or 'nameless'} file cannot be streamed; have: {have}")
        try:
            with decoding("data"):
                refuse_special(file)
                file.open("rb").close()
                parts += _row_groups(file) if suffix == ".parquet" else [Part(str(file.absolute()))]
        except InputError as error:
            raise InputError(f"{file}: {error}") from error
    return parts


def shape_of(parts: Sequence[Part], unlabelled: LabelKind | None = None) -> Shape:
    """The shape of the first rows; class names are those of the first file that has any."""
    shapes: dict[str, Shape] = {}
    for part in parts:
        if part.path not in shapes:
            for table, start in _tables(part, FIRST_ROWS, labelled=unlabelled is None):
                shapes[part.path] = _read(part, table, start, unlabelled)[1]
                break
        if part.path in shapes and shapes[part.path].class_names is not None:
            break
    if not shapes:
        raise InputError("no rows in any of these files; allowed: at least one row")
    *_, last = shapes.values()
    return replace(next(iter(shapes.values())), class_names=last.class_names)


def batches(part: Part, shape: Shape, *, numbers: int = NUMBERS) -> Iterator[Batch]:
    """The rows of a part in batches of so many logits; each is validated and must have this shape."""
    for table, start in _tables(part, batch_rows(shape, numbers)):
        batch, own = _read(part, table, start)
        refuse_other_classifier({"other files": shape, part.path: own})
        if own.members != shape.members:
            raise InputError(
                f"members differ: other files {shape.members}, {part.path} {own.members}; must be equal"
            )
        yield batch


def predictions_in(
    part: Part,
    unlabelled: LabelKind | None = None,
    group_by: str | None = None,
    *,
    rows: int = FIRST_ROWS,
) -> Iterator[Predictions]:
    """The rows of a part with all their columns, so many at a time; without labels only of a given kind."""
    for table, start in _tables(part, rows, labelled=unlabelled is None, select=list):
        with naming(part.path, start), decoding("data"):
            predictions = from_tables([table], table.num_rows, unlabelled)
            grouped = predictions if group_by is None else predictions.grouped_by(group_by)
        yield grouped


def batch_rows(shape: Shape | Predictions, numbers: int = NUMBERS) -> int:
    """The rows of a batch of so many logits."""
    return max(1, min(MOST_ROWS, numbers // (shape.classes * shape.members)))


def _row_groups(file: Path) -> list[Part]:
    from pyarrow import parquet  # slow to import

    with parquet.ParquetFile(arrow_file(file)) as opened:
        for group in range(opened.num_row_groups):
            refuse_announced(opened.metadata, [group])
        groups = [opened.metadata.row_group(number) for number in range(opened.num_row_groups)]
    enough = max(PART_BYTES, sum(group.total_byte_size for group in groups) // MOST_PARTS)
    parts, chosen, first, rows, size = [], [], 0, 0, 0
    for number, group in enumerate(groups):
        chosen.append(number)
        rows, size = rows + group.num_rows, size + group.total_byte_size
        if size >= enough or number == len(groups) - 1:
            parts.append(Part(str(file.absolute()), tuple(chosen), first, rows))
            chosen, first, rows, size = [], first + rows, 0, 0
    return parts


def _tables(
    part: Part, rows: int, *, labelled: bool = True, select: Select = needed_columns
) -> Iterator[tuple[pa.Table, int]]:
    """Tables of at most so many rows, and the row of the file at which each begins; none is empty."""
    start = part.first
    tables = tables_in(part.path, rows, groups=part.groups or None, select=select)
    while True:
        with naming(part.path):
            table = next(tables, None)
        if table is None:
            return
        for offset in range(0, table.num_rows, rows):
            with naming(part.path):
                usable = usable_rows(table.slice(offset, rows), labelled=labelled)
            if usable.num_rows:
                yield usable, start + offset
        start += table.num_rows


@contextmanager
def naming(path: str, start: int = 0) -> Iterator[None]:
    """Name the file in an error, and the row that is row 0 in it."""
    try:
        yield
    except InputError as error:
        where = f"{path}, rows counted from {start:,}" if start else path
        raise InputError(f"{where}: {error}") from error


def _read(
    part: Part, table: pa.Table, start: int, unlabelled: LabelKind | None = None
) -> tuple[Batch, Shape]:
    """Validated arrays of a table, and their shape."""
    with naming(part.path, start), decoding("data"):
        found = read_rows(table, unlabelled)
        names = None if found.class_names is None else tuple(found.class_names)
        check_predictions(found.logits, found.labels, found.kind, names)
    members, _, classes = found.logits.shape
    return Batch(found.logits, found.labels), Shape(found.kind, classes, members, names)
