"""Prediction files read batch by batch, as arrays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from surefoot.errors import InputError
from surefoot.io import refuse_special
from surefoot.predictions.columns import (
    PREDICT_COLUMNS,
    TRUE_LABEL,
    is_label,
    is_predict_output,
    is_score,
    no_labels,
    read_columns,
    refuse_repeated,
    scores_in,
    usable_rows,
)
from surefoot.predictions.files import from_table
from surefoot.predictions.labels import LabelKind, refuse_other_classifier
from surefoot.predictions.memory import limited_memory, most_addresses
from surefoot.predictions.paths import STREAMED
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.tables import (
    CSV_PARSING,
    READ_AHEAD,
    arrow_file,
    csv_header,
    csv_options,
    decoding,
    from_csv,
    refuse_announced,
    validated,
    with_plain_text,
)
from surefoot.predictions.validate import as_floats, as_labels, as_predictions, check_predictions
from surefoot.streaming.outcomes import Batch, Shape

PART_BYTES = 2**22  # row groups are joined into a part until it has this many,
MOST_PARTS = 256  # or a share of the file, whose list of row groups is read for each part
NUMBERS = 2**20  # logits in a batch, which stays in the cache while it is decoded and read
MOST_ROWS = 2**17  # rows in a batch
FIRST_ROWS = 1024  # of a file, that show its shape
NOT_OUTPUTS = {*PREDICT_COLUMNS, TRUE_LABEL, "path", "row"}  # of `surefoot predict`, besides probabilities


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


def shape_of(parts: Sequence[Part]) -> Shape:
    """The shape of the first rows; class names are those of the first file that has any."""
    shapes: dict[str, Shape] = {}
    for part in parts:
        if part.path not in shapes:
            for table, start in _tables(part, FIRST_ROWS):
                shapes[part.path] = _read(part, table, start)[1]
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
    part: Part, unlabelled: LabelKind | None = None, *, rows: int = FIRST_ROWS
) -> Iterator[Predictions]:
    """The rows of a part with all their columns, so many at a time; without labels only of a given kind."""
    for table, start in _tables(part, rows, labelled=unlabelled is None, is_needed=lambda _: True):
        with _naming(f"{part.path}, rows counted from {start:,}" if start else part.path), decoding("data"):
            predictions = from_table(table, unlabelled)
        yield predictions


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


def _is_output_or_label(name: str) -> bool:
    return is_score(name) or is_label(name)


def _tables(
    part: Part, rows: int, *, labelled: bool = True, is_needed: Callable[[str], bool] = _is_output_or_label
) -> Iterator[tuple[pa.Table, int]]:
    """Tables of at most so many rows, and the row of the file at which each begins; none is empty."""
    start, most = part.first, most_addresses()
    tables = _parquet(part, rows, is_needed) if part.groups else _csv(part)
    while True:
        with _naming(part.path), decoding("data"), limited_memory(most):
            table = next(tables, None)
        if table is None:
            return
        for offset in range(0, table.num_rows, rows):
            with _naming(part.path):
                usable = usable_rows(table.slice(offset, rows), labelled=labelled)
            if usable.num_rows:
                yield usable, start + offset
        start += table.num_rows


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the file in an error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _parquet(part: Part, rows: int, is_needed: Callable[[str], bool]) -> Iterator[pa.Table]:
    from pyarrow import parquet  # slow to import

    with parquet.ParquetFile(
        arrow_file(part.path), buffer_size=READ_AHEAD, pre_buffer=False, page_checksum_verification=True
    ) as file:
        schema = file.schema_arrow
        refuse_repeated(schema.names)
        more = NOT_OUTPUTS if is_predict_output(schema.names) else set()
        columns = [name for name in schema.names if is_needed(name) or name in more]
        if not any(map(is_score, columns)):  # otherwise, with no columns selected, the file seems empty
            scores_in(usable_rows(schema.empty_table(), labelled=True))
        for batch in file.iter_batches(
            rows, row_groups=list(part.groups), columns=columns, use_threads=False
        ):
            table = pa.Table.from_batches([validated(batch)]).replace_schema_metadata(schema.metadata)
            yield with_plain_text(table)


def _csv(part: Part) -> Iterator[pa.Table]:
    header = csv_header(part.path)
    reading = pyarrow.csv.ReadOptions(block_size=header.block(READ_AHEAD), use_threads=False)
    with pyarrow.csv.open_csv(
        arrow_file(part.path),
        read_options=reading,
        parse_options=CSV_PARSING,
        convert_options=csv_options(header),
    ) as file:
        for batch in file:
            yield from_csv(pa.Table.from_batches([batch]))


def _read(part: Part, table: pa.Table, start: int) -> tuple[Batch, Shape]:
    """Validated arrays of a table, and their shape."""
    where = f"{part.path}, rows counted from {start:,}" if start else part.path
    with _naming(where), decoding("data"):
        columns = read_columns(table)
        if columns.labels is None:
            raise no_labels(table.column_names)
        scores = as_floats("scores", columns.scores)
        logits, labels, kind = as_predictions(columns.scale, scores, as_labels(columns.labels))
        names = None if columns.class_names is None else tuple(columns.class_names)
        check_predictions(logits, labels, kind, names)
    return Batch(logits, labels), Shape(kind, logits.shape[2], len(logits), names)
