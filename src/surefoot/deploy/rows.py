"""The rows of tables as a bundle takes them: from files, from requests, from Python."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from surefoot.errors import InputError
from surefoot.io import parse_json, read_regular
from surefoot.lab.tasks.columns import read_array
from surefoot.lab.tasks.features import Category, Encoding, Number, RawColumns
from surefoot.lab.tasks.manifest import csv_table, read_table
from surefoot.predictions.tables import decoding

ENDINGS = (".csv", ".parquet", ".json", ".jsonl", ".npy")
CSV, JSON = "text/csv", "application/json"


def read_rows(encoding: Encoding, file: Path, *, allow_unseen: bool = False) -> RawColumns:
    """The rows of a file; values that training never had are refused unless `allow_unseen`."""
    try:
        rows = _read(encoding, file)
        if not allow_unseen:
            encoding.refuse_unseen(rows)
        return rows
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{file}: ") else f"{file}: {text}") from error


def _read(encoding: Encoding, file: Path) -> RawColumns:
    """A table, a JSON list of objects, an object per line, or an array of vectors."""
    ending = file.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"unknown file type {file.suffix!r}; have: {', '.join(ENDINGS)}")
    if ending == ".npy":
        return encoding.read_array(read_array(file))
    if ending in (".json", ".jsonl"):
        with decoding("JSON"):
            data = read_regular(file)
        return rows_of_json(encoding, data, lines=ending == ".jsonl")
    return encoding.read(read_table(file, *_types(encoding)))


def rows_of_json(encoding: Encoding, data: bytes, *, lines: bool = False) -> RawColumns:
    """The rows in a JSON text: a list of objects, also under "rows", or one object per line."""
    try:
        if lines:
            document = [parse_json(line) for line in data.splitlines() if line.strip()]
        else:
            document = parse_json(data)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"not JSON ({reason})") from error
    rows = document.get("rows") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not rows:
        raise InputError('no rows; needed: a list of objects, or {"rows": [...]}')
    return encoding.read_rows(rows)


def rows_of_csv(encoding: Encoding, data: bytes) -> RawColumns:
    """The rows in the bytes of a csv file."""
    with decoding("csv data"):
        table = csv_table(io.BytesIO(data), *_types(encoding))
    if not table.num_rows:
        raise InputError("no rows; needed: a row per sample")
    return encoding.read(table)


def rows_of_python(encoding: Encoding, rows: Any) -> RawColumns:
    """A list of mappings, a pyarrow Table, a mapping of columns, or a pandas DataFrame."""
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return encoding.read_rows(rows)
    is_frame = hasattr(rows, "columns") and hasattr(rows, "to_dict")
    if not isinstance(rows, pa.Table) and not isinstance(rows, Mapping) and not is_frame:
        raise InputError(
            f"the rows are of type {type(rows).__name__}; allowed: a list of mappings, a pyarrow Table, a "
            "pandas DataFrame, or a mapping of columns"
        )
    with decoding("rows"):
        table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    return encoding.read(table)


def _types(encoding: Encoding) -> tuple[list[str], list[str]]:
    """Which columns of a csv file are text, and which are numbers, whatever their values look like."""
    texts = [each.column for each in encoding.features if isinstance(each, Category)]
    return texts, [each.column for each in encoding.features if isinstance(each, Number)]
