"""What a name stands for: a file, a folder of files, or all that match a pattern; and the parts of them."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from surefoot.errors import InputError

STREAMED = (".parquet", ".csv")
LARGE = 256 * 2**20  # bytes: a larger file is streamed unless told otherwise
PART_ROWS = 2**20  # row groups are dealt out together until they hold so many


@dataclass(frozen=True)
class Part:
    """Some row groups of a parquet file, or a whole csv file (no groups)."""

    path: str
    groups: tuple[int, ...] = ()
    first: int = 0  # row of the file
    rows: int | None = None  # not known of a csv file before it is read


def files_named(name: str | Path) -> list[Path]:
    """The files of a folder, those that match a pattern, or the one that is named."""
    path = Path(name)
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.suffix.lower() in STREAMED and each.is_file())
        if not found:
            raise InputError(f"{name}: no predictions in this folder; needed: {' or '.join(STREAMED)} files")
        return found
    if path.exists() or not glob.has_magic(str(name)):
        return [path]
    matches = glob.iglob(str(name), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
    found = sorted(path for path in map(Path, matches) if path.is_file())
    if not found:
        raise InputError(f"{name}: no file matches this pattern")
    return found


def is_large(files: Sequence[Path]) -> bool:
    """Whether files are streamed unless told otherwise: more than one of them, or one above 256 MiB."""
    if any(file.suffix.lower() not in STREAMED for file in files):
        return False
    return len(files) > 1 or (files[0].is_file() and files[0].stat().st_size > LARGE)


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
