"""Prediction files read batch by batch, as arrays."""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from surefoot.errors import InputError, one_line
from surefoot.predictions.columns import (
    csv_options,
    is_label,
    is_score,
    read_columns,
    refuse_predict_output,
    refuse_repeated,
    scores_in,
)
from surefoot.predictions.labels import refuse_other_classifier
from surefoot.predictions.validate import as_floats, as_labels, as_predictions, check_predictions
from surefoot.streaming.accumulate import Shape
from surefoot.streaming.outcomes import Batch

STREAMED = (".parquet", ".csv")
LARGE = 256 * 2**20  # bytes: a larger file is streamed by default
PART_ROWS = 2**20  # row groups are joined into a part until it has this many rows
NUMBERS = 2**21  # logits in a batch
MOST_ROWS = 2**17  # rows in a batch
READ_AHEAD = 2**23  # bytes of a column, or of a csv file, that are read before they are decoded


@dataclass(frozen=True)
class Part:
    """Some row groups of a parquet file, or a whole csv file (no groups)."""

    path: str
    groups: tuple[int, ...] = ()
    first: int = 0  # row of the file
    rows: int | None = None  # of a csv file it is not known before it is read


def files_named(name: str | Path) -> list[Path]:
    """The prediction files in a folder, the files that match a pattern, or the one file of that name."""
    path = Path(name)
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix.lower() in STREAMED and each.is_file())
        if not files:
            raise InputError(f"{name}: no predictions in this folder; needed: {' or '.join(STREAMED)} files")
        return files
    if path.exists() or not glob.has_magic(str(name)):
        return [path]
    matches = glob.iglob(str(name), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
    files = sorted(path for path in map(Path, matches) if path.is_file())
    if not files:
        raise InputError(f"{name}: no file matches this pattern")
    return files


def is_large(files: Sequence[Path]) -> bool:
    """Whether files are streamed by default: there is more than one, or it has more than 256 MiB."""
    if any(file.suffix.lower() not in STREAMED for file in files):
        return False
    return len(files) > 1 or (files[0].is_file() and files[0].stat().st_size > LARGE)


def parts_of(files: Sequence[Path]) -> list[Part]:
    """Parts that can be read independently, of about a million rows each."""
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
            raise InputError(f"{file}: {one_line(error)}") from error
    return parts


def shape_of(parts: Sequence[Part]) -> Shape:
    """The shape of the first rows; class names are those of the first file that has any."""
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
    """The rows of a part in batches; each is validated and must have this shape."""
    rows = max(1, min(MOST_ROWS, NUMBERS // (shape.classes * shape.members)))
    for table, start in _tables(part, rows):
        batch, own = _read(part, table, start)
        refuse_other_classifier({"other files": shape, part.path: own})
        if own.members != shape.members:
            raise InputError(
                f"members differ: other files {shape.members}, {part.path} {own.members}; must be equal"
            )
        yield batch


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


def _tables(part: Part, rows: int) -> Iterator[tuple[pa.Table, int]]:
    """Tables of at most so many rows, and the row of the file at which each begins; none is empty."""
    start = part.first
    try:
        for table in _parquet(part, rows) if part.groups else _csv(part):
            for offset in range(0, table.num_rows, rows):
                yield table.slice(offset, rows), start + offset
            start += table.num_rows
    except InputError as error:
        raise InputError(f"{part.path}: {error}") from error
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise InputError(f"{part.path}: data that cannot be read ({one_line(error)})") from error


def _parquet(part: Part, rows: int) -> Iterator[pa.Table]:
    with pyarrow.parquet.ParquetFile(
        part.path, buffer_size=READ_AHEAD, pre_buffer=False, page_checksum_verification=True
    ) as file:
        schema = file.schema_arrow
        refuse_repeated(schema.names)
        refuse_predict_output(schema.names)
        columns = [name for name in schema.names if is_score(name) or is_label(name)]
        if not any(map(is_score, columns)):  # otherwise, with no columns selected, the file seems empty
            scores_in(schema.empty_table())
        for batch in file.iter_batches(
            rows, row_groups=list(part.groups), columns=columns, use_threads=False
        ):
            yield pa.Table.from_batches([batch]).replace_schema_metadata(schema.metadata)


def _csv(part: Part) -> Iterator[pa.Table]:
    reading = pyarrow.csv.ReadOptions(block_size=READ_AHEAD, use_threads=False)
    with pyarrow.csv.open_csv(part.path, read_options=reading) as first:
        names = first.schema.names
    refuse_predict_output([name.strip() for name in names])
    options = csv_options()
    # A column of scores is float64 even if its first values are whole numbers.
    scores = {name: pa.float64() for name in names if is_score(name.strip())}
    options.column_types = {**options.column_types, **scores}
    with pyarrow.csv.open_csv(part.path, read_options=reading, convert_options=options) as file:
        for batch in file:
            yield pa.Table.from_batches([batch]).rename_columns([name.strip() for name in names])


def _read(part: Part, table: pa.Table, start: int) -> tuple[Batch, Shape]:
    """Validated arrays of a table, and their shape."""
    where = f"{part.path}, rows counted from {start:,}" if start else part.path
    try:
        columns = read_columns(table)
        if columns.labels is None:
            raise InputError("no column 'label'; needed: 'label', 'labels' or 'label_<class>'")
        scores = as_floats("scores", columns.scores)
        logits, labels, kind = as_predictions(columns.scale, scores, as_labels(columns.labels))
        names = None if columns.class_names is None else tuple(columns.class_names)
        check_predictions(logits, labels, kind, names)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, pa.ArrowException) as error:
        raise InputError(f"{where}: data that cannot be read ({one_line(error)})") from error
    return Batch(logits, labels), Shape(kind, logits.shape[2], len(logits), names)
