"""Tables in .parquet and .csv files and in Arrow streams, validated in full before use. Does not need torch.

Arrow does not check the offsets and the text of what it reads, and with damaged ones it ends the process.
"""

import csv
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from surefoot.errors import InputError, one_line
from surefoot.predictions.columns import is_score, numbers_in
from surefoot.predictions.memory import limited_memory, refuse_larger_than_memory
from surefoot.text import FORMULA, PLAIN_NUMBER, from_spreadsheet, spreadsheet_text

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

READ_AHEAD = 2**23  # bytes of a column, or of a csv file, that are read before they are decoded
TEXT_COLUMNS = ("ids", "groups", "label")  # of a csv file: they stay text as written
BYTES_PER_VALUE = 8
BLOCK = 2**20  # bytes of a csv file that are decoded at a time, by each thread
LARGEST_BLOCK = 2**31 - 1
LONGEST_CELL = 2**24  # characters, in the first two lines of a csv file
CSV_PARSING = pyarrow.csv.ParseOptions(newlines_in_values=True)
Rows = Any  # a table or a record batch


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
    from pyarrow import parquet  # slow to import

    with decoding(".parquet data"), limited_memory():
        with parquet.ParquetFile(arrow_file(file)) as opened:
            refuse_announced(opened.metadata, range(opened.metadata.num_row_groups))
        with arrow_file(file) as source:
            table = parquet.read_table(source, partitioning=None, page_checksum_verification=True)
        return with_plain_text(validated(table))


def arrow_file(path: str | Path, mode: str = "rb") -> pa.OSFile:
    """A file for Arrow to read or write, which takes a path only if it is UTF-8."""
    return pa.OSFile(os.fsencode(path), mode)


def refuse_announced(metadata: "FileMetaData", groups: Iterable[int]) -> None:
    """Raise if row groups would not fit into memory: a few bytes can stand for billions of equal values."""
    total = 0
    for group in map(metadata.row_group, groups):
        # The metadata of its columns are not read: where they are damaged, Arrow ends the process.
        total += max(group.total_byte_size, BYTES_PER_VALUE * group.num_rows * metadata.num_columns)
    refuse_larger_than_memory("the rows", total)


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
    return np.asarray(empty, dtype=np.bool_)


def read_stream(data: Any) -> pa.Table:
    """The table in the bytes of an Arrow stream."""
    with decoding("an Arrow stream"), limited_memory(), pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return with_plain_text(validated(stream.read_all()))


def read_csv(file: Path) -> pa.Table:
    """A csv file: names without the spaces around them, and text as `write_csv` was given it."""
    with decoding(".csv data"):
        header = csv_header(file)
        try:
            return from_csv(_read_csv(file, header, csv_options(header)))
        except pa.ArrowInvalid as error:
            table = from_csv(_read_csv(file, header, csv_options(header, infer=True)))
            for name, column in zip(header.names, table.columns, strict=True):
                if name in header.numbers:
                    numbers_in(column, csv_name(name))  # says which value is no number
            raise error


def _read_csv(file: Path, header: "CsvHeader", options: pyarrow.csv.ConvertOptions) -> pa.Table:
    whole = min(file.stat().st_size + 1, LARGEST_BLOCK)
    for block in (header.block(BLOCK), whole):
        reading = pyarrow.csv.ReadOptions(block_size=block)
        try:
            with arrow_file(file) as source:
                return pyarrow.csv.read_csv(source, reading, CSV_PARSING, options)
        except pa.ArrowInvalid as error:
            if block == whole or "straddling" not in str(error):  # a line is longer than a block
                raise
    raise AssertionError("not reached")


@dataclass(frozen=True)
class CsvHeader:
    """The column names of a csv file as written, those of columns that hold numbers, the longest line."""

    names: list[str]
    numbers: frozenset[str]
    longest: int  # bytes, at most, of the first two lines

    def block(self, usual: int) -> int:
        """Bytes to decode at a time; Arrow needs whole lines, and the first two in the first block."""
        return min(max(usual, 4 * self.longest), LARGEST_BLOCK)


def csv_header(file: str | Path) -> CsvHeader:
    """The columns of a csv file. With Arrow it takes seconds for ten thousand columns.

    Those of scores and novelty are numbers, and labels per class, unless the first is true or false. Left to
    Arrow, it would depend on the first rows, and 0xFFFFFFFFFFFFFF9C would be -100.
    """
    with Path(file).open(encoding="utf-8-sig", newline="") as opened, _long_cells():
        lines = filter(None, csv.reader(opened))
        names, first = next(lines, []), next(lines, [])
    plain = {name: csv_name(name) for name in names}
    labels = {f"label_{name.partition('_')[2]}" for name in plain.values() if is_score(name)}
    cells = zip(names, first, strict=False)
    booleans = {name for name, cell in cells if cell.strip().lower() in ("true", "false")}
    numbers = {name for name, key in plain.items() if is_score(key) or key == "novelty"}
    numbers |= {name for name, key in plain.items() if key in labels and name not in booleans}
    longest = max(sum(2 * len(cell.encode()) + 3 for cell in line) for line in (names, first))
    return CsvHeader(names, frozenset(numbers), longest)


@contextmanager
def _long_cells() -> Iterator[None]:
    """Python's own limit of a cell is 131,072 characters."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def csv_options(header: CsvHeader, *, infer: bool = False) -> pyarrow.csv.ConvertOptions:
    """How a csv file is read; `infer` leaves it to Arrow which columns hold numbers."""
    types = {name: pa.string() for name in header.names if csv_name(name) in TEXT_COLUMNS}
    types |= {} if infer else {name: pa.float64() for name in header.numbers}
    return pyarrow.csv.ConvertOptions(column_types=types, null_values=[""])


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
    """A csv file in which no cell is a formula for a spreadsheet; `read_csv` gives the text back exactly."""
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
