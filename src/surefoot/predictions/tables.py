"""Tables in .parquet and .csv files and in Arrow streams, validated in full before use. Does not need torch.

Arrow does not check the offsets and the text of what it reads, and with damaged ones it ends the process.
"""

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv

from surefoot.errors import InputError, one_line
from surefoot.predictions.memory import limited_memory, refuse_larger_than_memory
from surefoot.text import FORMULA, PLAIN_NUMBER, from_spreadsheet, spreadsheet_text

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

READ_AHEAD = 2**23  # bytes of a column, or of a csv file, that are read before they are decoded
TEXT_COLUMNS = ("ids", "groups", "label")  # of a csv file: they stay text as written
BYTES_PER_VALUE = 8
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
        return validated(table)


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


def read_stream(data: Any) -> pa.Table:
    """The table in the bytes of an Arrow stream."""
    with decoding("an Arrow stream"), limited_memory(), pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return validated(stream.read_all())


def read_csv(file: Path) -> pa.Table:
    """A csv file: names without the spaces around them, and text as `write_csv` was given it."""
    with decoding(".csv data"):
        names = csv_names(file)
        with arrow_file(file) as source:
            table = pyarrow.csv.read_csv(
                source, parse_options=CSV_PARSING, convert_options=csv_options(names)
            )
        return from_csv(table)


def csv_names(file: str | Path) -> list[str]:
    """The column names of a csv file as written. With Arrow it takes seconds for ten thousand columns."""
    with Path(file).open(encoding="utf-8-sig", newline="") as opened:
        return next(filter(None, csv.reader(opened)), [])


def csv_options(names: Sequence[str], numbers: Sequence[str] = ()) -> pyarrow.csv.ConvertOptions:
    """How a csv file with these names is read; the columns `numbers` are float64 whatever they begin with."""
    types = {name: pa.string() for name in names if csv_name(name) in TEXT_COLUMNS}
    types |= {name: pa.float64() for name in numbers}
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
