"""Which prediction files a name stands for, and whether they are streamed. Does not need torch."""

import glob
from collections.abc import Sequence
from pathlib import Path

from surefoot.errors import InputError

STREAMED = (".parquet", ".csv")
LARGE = 256 * 2**20  # bytes: a larger file is streamed by default


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
