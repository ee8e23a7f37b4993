"""Tables in .parquet and .csv files and in Arrow streams, validated in full before use. Does not need torch.

Arrow does not check the offsets and the text of what it reads, and with damaged ones it ends the process.
"""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from surefoot.errors import InputError, one_line
from surefoot.predictions.columns import (
    TRUE_LABEL,
    as_array,
    is_predict_output,
    is_score,
    numbers_in,
    refuse_repeated,
)
from surefoot.predictions.memory import limited_memory, most_addresses, refuse_larger_than_memory
from surefoot.predictions.paths import LARGE
from surefoot.text import FORMULA, PLAIN_NUMBER, from_spreadsheet, spreadsheet_text

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

AT_ONCE = 2**19  # bytes of a table in memory that are decoded at a time,
CSV_BLOCK = 2**20  # and of a csv file, of which Arrow reads 32 blocks ahead
COLUMN_BUFFER = 2**18  # bytes of a column of a parquet file that are read before they are decoded
TEXT_COLUMNS = ("ids", "groups", "label")  # of a csv file: they stay text as written,
PREDICTED_TEXT = ("path", "row", "error", TRUE_LABEL)  # and these of the output of `surefoot predict`
PREDICTED_NUMBERS = ("confidence", "entropy")
LONG_LINE = "straddling"  # in Arrow's message
BYTES_PER_VALUE = 8
LARGEST_BLOCK = 2**31 - 1
LONGEST_CELL = 2**24  # characters, in the first two lines of a csv file
CSV_PARSING = pyarrow.csv.ParseOptions(newlines_in_values=True)
Rows = Any  # a table or a record batch
Select = Callable[[Sequence[str]], Sequence[str]]  # of the names of columns, those that are read


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Turn whatever another library raises on damaged data into one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a damaged file can make a decoder raise nearly anything
        reason = getattr(error, "strerror", None)
        if reason is None:
            reason = f"{what} that cannot be read ({one_line(error) or type(error).__name__})"
        raise InputError(reason) from error


def validated(rows: Rows) -> Rows:
    """The same rows, if every offset, index, length and text in them is valid."""
    rows.validate(full=True)
    fields = list(rows.schema)
    while fields:
        field = fields.pop()
        field.name.encode()  # names are not validated
        if pa.types.is_nested(field.type):
            fields += [field.type.field(index) for index in range(field.type.num_fields)]
    return rows


def read_parquet(file: Path) -> pa.Table:
    """A parquet file, whose checksums are verified where it has any."""
    return pa.concat_tables(tables_in(file))


def tables_in(
    file: str | Path,
    rows: int | None = None,
    *,
    groups: Sequence[int] | None = None,
    select: Select = list,
) -> Iterator[pa.Table]:
    """The table in a parquet or csv file, some rows at a time, and one without rows if it has none.

    `rows` are how many, by default those in about half a megabyte; `groups` are row groups of a parquet file.
    `select` returns which of its columns are read.
    """
    is_parquet = Path(file).suffix.lower() == ".parquet"
    tables = _parquet_tables(file, rows, groups, select) if is_parquet else _csv_tables(file, rows, select)
    most = most_addresses()
    while True:
        with decoding(f"{Path(file).suffix} data"), limited_memory(most):
            table = next(tables, None)
        if table is None:
            return
        yield table


def in_parts(table: pa.Table) -> Iterator[pa.Table]:
    """A table in memory, some rows at a time."""
    rows = max(1, AT_ONCE * table.num_rows // max(1, table.nbytes))
    for start in range(0, max(1, table.num_rows), rows):
        yield table.slice(start, rows)


def most_rows(file: Path) -> int:
    """How many rows a parquet or csv file has; of a csv file, how many it can have at most."""
    if file.suffix.lower() == ".parquet":
        from pyarrow import parquet  # slow to import

        with parquet.ParquetFile(arrow_file(file)) as opened:
            return int(opened.metadata.num_rows)
    lines = 1
    with file.open("rb") as source:
        while part := source.read(AT_ONCE):
            lines += part.count(b"\n") + part.count(b"\r") - part.count(b"\r\n")
    return lines


def _parquet_tables(
    file: str | Path, rows: int | None, groups: Sequence[int] | None, select: Select
) -> Iterator[pa.Table]:
    from pyarrow import parquet  # slow to import

    with parquet.ParquetFile(
        arrow_file(file), buffer_size=COLUMN_BUFFER, pre_buffer=False, page_checksum_verification=True
    ) as opened:
        metadata, schema = opened.metadata, opened.schema_arrow
        groups = list(range(metadata.num_row_groups)) if groups is None else list(groups)
        size = refuse_announced(metadata, groups)
        refuse_repeated(schema.names)
        rows = rows or max(1, AT_ONCE * metadata.num_rows // max(1, size))
        columns, empty = list(select(schema.names)), True
        for batch in opened.iter_batches(rows, row_groups=groups, columns=columns, use_threads=False):
            empty = False
            table = pa.Table.from_batches([validated(batch)]).replace_schema_metadata(schema.metadata)
            yield with_plain_text(table)
        if empty:
            yield with_plain_text(schema.empty_table())


def arrow_file(path: str | Path, mode: str = "rb") -> pa.OSFile:
    """A file for Arrow to read or write, which takes a path only if it is UTF-8."""
    return pa.OSFile(os.fsencode(path), mode)


def refuse_announced(metadata: "FileMetaData", groups: Iterable[int]) -> int:
    """The bytes of row groups. Raise if they would not fit into memory: a few can stand for billions."""
    total = 0
    for group in map(metadata.row_group, groups):
        # The metadata of its columns are not read: where they are damaged, Arrow ends the process.
        total += max(group.total_byte_size, BYTES_PER_VALUE * group.num_rows * metadata.num_columns)
    refuse_larger_than_memory("the rows", total)
    return total


def is_text(kind: pa.DataType) -> bool:
    """Whether a column's values are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def values_in(column: pa.ChunkedArray) -> list[Any]:
    """The values as Python's; times that Python has not, such as the year 12,000, as text."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = column.cast(pa.string()).to_pylist()
    return values


def with_plain_text(table: pa.Table) -> pa.Table:
    """With text of Arrow's newer types, for which it lacks functions, in the older ones."""
    older = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    types = [older.get(kind, kind) for kind in table.schema.types]
    if types == table.schema.types:
        return table
    fields = [field.with_type(kind) for field, kind in zip(table.schema, types, strict=True)]
    return table.cast(pa.schema(fields, table.schema.metadata))


def empty_cells(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """(n,): where a value is missing, NaN, or text that is blank."""
    import pyarrow.compute as pc  # slow to import

    empty = pc.is_null(column, nan_is_null=True)
    if is_text(column.type):
        empty = pc.equal(pc.utf8_trim_whitespace(pc.fill_null(column, "")), "")
    return as_array(empty).astype(np.bool_, copy=False)


def read_stream(data: Any) -> pa.Table:
    """The table in the bytes of an Arrow stream."""
    with decoding("an Arrow stream"), limited_memory(), pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return with_plain_text(validated(stream.read_all()))


def _csv_tables(file: str | Path, rows: int | None, select: Select) -> Iterator[pa.Table]:
    """Columns whose type is known are decoded part by part; for the others Arrow looks at all values."""
    header = CsvHeader.of(file)
    refuse_repeated([csv_name(name) for name in header.names])
    selected = set(select([csv_name(name) for name in header.names]))
    names = [name for name in header.names if csv_name(name) in selected]
    known = [name for name in names if name in header.types]
    others = [name for name in names if name not in header.types]
    rest = _read_csv(file, header, others) if others else pa.table({})
    start = 0
    for table in _joined(_csv_batches(file, header, known), rows or 0) if known else ():
        for name in others:
            table = table.append_column(name, rest[name].slice(start, table.num_rows))
        start += table.num_rows
        yield from_csv(table.select(names))
    if not start:  # no rows, or no column of scores
        yield from_csv(_read_csv(file, header, names))


def _joined(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """As many batches at a time as have at most so many rows: some work is done once for all of them."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if held and sum(map(len, held)) + len(batch) > rows:
            yield pa.Table.from_batches(held)
            held = []
        held.append(batch)
    if held:
        yield pa.Table.from_batches(held)


def _csv_batches(file: str | Path, header: "CsvHeader", known: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Columns whose type is known; all that is left at once from where a line is longer than a block."""
    reading = pyarrow.csv.ReadOptions(block_size=header.blocks[0], use_threads=False)
    given = 0
    try:
        with pyarrow.csv.open_csv(arrow_file(file), reading, CSV_PARSING, header.options(known)) as opened:
            for batch in opened:
                yield batch
                given += batch.num_rows
    except pa.ArrowInvalid as error:
        if LONG_LINE not in str(error):
            _refuse_text(file, header)
            raise
        yield from _read_csv(file, header, known).slice(given).to_batches()


def _refuse_text(file: str | Path, header: "CsvHeader") -> None:
    """Say which value is no number, where Arrow says only that one is none; not of streamed files."""
    if header.blocks[-1] > LARGE:
        return
    numbers = [name for name, kind in header.types.items() if kind == pa.float64()]
    with suppress(pa.ArrowInvalid):  # something else is wrong, of which the first error says more
        table = _read_csv(file, replace(header, types={}), numbers)
        for name, column in zip(numbers, table.columns, strict=True):
            numbers_in(column, csv_name(name))


def _read_csv(file: str | Path, header: "CsvHeader", names: Sequence[str]) -> pa.Table:
    """Some columns in memory."""
    for block in header.blocks:
        reading = pyarrow.csv.ReadOptions(block_size=block)
        try:
            with arrow_file(file) as source:
                return pyarrow.csv.read_csv(source, reading, CSV_PARSING, header.options(names))
        except pa.ArrowInvalid as error:
            if block == header.blocks[-1] or LONG_LINE not in str(error):
                raise
    raise AssertionError("not reached")


@dataclass(frozen=True)
class CsvHeader:
    """The columns of a csv file by their names as written, and the types that are not left to Arrow.

    Scores and novelty are numbers, and labels per class, unless the first is true or false. Left to Arrow,
    it would depend on the first rows, and 0xFFFFFFFFFFFFFF9C would be -100.
    """

    names: list[str]
    types: dict[str, pa.DataType]
    blocks: tuple[int, int]  # bytes to decode at a time; and, where a line is longer, all

    @staticmethod
    def of(file: str | Path) -> "CsvHeader":
        """With Arrow it takes seconds for ten thousand columns."""
        with Path(file).open(encoding="utf-8-sig", newline="") as opened, _long_cells():
            lines = filter(None, csv.reader(opened))
            names, first = next(lines, []), next(lines, [])
        keys = {name: csv_name(name) for name in names}
        scores = {key for key in keys.values() if is_score(key)}
        labels = {f"label_{key.partition('_')[2]}" for key in scores}
        cells = zip(names, first, strict=False)
        booleans = {keys[name] for name, cell in cells if cell.strip().lower() in ("true", "false")}
        is_output = is_predict_output(list(keys.values()))
        numbers = {*scores, *(labels - booleans), "novelty", *(PREDICTED_NUMBERS if is_output else ())}
        text = {*TEXT_COLUMNS, *(PREDICTED_TEXT if is_output else ())}
        types = {name: pa.float64() for name, key in keys.items() if key in numbers}
        types |= {name: pa.string() for name, key in keys.items() if key in text}
        longest = max(sum(2 * len(cell.encode()) + 3 for cell in line) for line in (names, first))
        # Arrow needs whole lines, and the first two in the first block.
        usual = min(max(CSV_BLOCK, 4 * longest), LARGEST_BLOCK)
        return CsvHeader(names, types, (usual, min(Path(file).stat().st_size + 1, LARGEST_BLOCK)))

    def options(self, names: Sequence[str]) -> pyarrow.csv.ConvertOptions:
        """How some of the columns are read."""
        return pyarrow.csv.ConvertOptions(column_types=self.types, null_values=[""], include_columns=names)


@contextmanager
def _long_cells() -> Iterator[None]:
    """Python's own limit of a cell is 131,072 characters."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def csv_name(name: str) -> str:
    """A column name as written in a csv file, without spaces around it and the apostrophe of a formula."""
    return from_spreadsheet(name.strip())


def from_csv(table: pa.Table) -> pa.Table:
    """The table that `write_csv` was given, from what Arrow read."""
    import pyarrow.compute as pc  # slow to import

    columns = [
        pc.replace_substring_regex(column, f"^'({FORMULA})", r"\1")
        if pa.types.is_string(column.type)
        else column
        for column in table.columns
    ]
    return validated(pa.table(columns, names=[csv_name(name) for name in table.column_names]))


def write_csv(table: pa.Table, path: Path) -> None:
    """A csv file in which no cell is a formula for a spreadsheet; `from_csv` gives the text back exactly."""
    with arrow_file(path, "wb") as file:
        pyarrow.csv.write_csv(spreadsheet_table(table), file)


def fits_csv(kind: pa.DataType) -> bool:
    """Whether a column's values are one cell of text each."""
    if pa.types.is_dictionary(kind):
        return fits_csv(kind.value_type)
    is_bytes = (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )
    return not (pa.types.is_nested(kind) or is_bytes)


def spreadsheet_table(table: pa.Table) -> pa.Table:
    """The table with every name and text as `spreadsheet_text` writes it."""
    import pyarrow.compute as pc  # slow to import

    columns = []
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            escaped = pc.replace_substring_regex(column, f"^({FORMULA})", r"'\1")
            is_number = pc.match_substring_regex(column, f"^({PLAIN_NUMBER})$")
            column = pc.if_else(is_number, column, escaped)
        columns.append(column)
    return pa.table(columns, names=[spreadsheet_text(name) for name in table.column_names])
