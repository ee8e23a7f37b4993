"""Which prediction files a name stands for, and whether they are streamed. Does not need torch."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from surefoot.errors import InputError

STREAMED = (".parquet", ".csv")
SUFFIXES = (".npz", *STREAMED)
TEST_SETS = {"familiar", "unfamiliar"}  # files that `surefoot predictions` writes to a folder
LARGE = 256 * 2**20  # bytes: a larger file is streamed by default


def files_named(name: str | Path) -> list[Path]:
    """The prediction files in a folder, the files that match a pattern, or the one file of that name; sorted.

    Several files are of one type: the same rows in two types would count twice.
    """
    path = Path(name)
    if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        files = _files_in(path)
    elif os.path.exists(path) or not glob.has_magic(str(name)):  # noqa: PTH110
        return [path]
    else:
        matches = glob.iglob(str(name), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        files = sorted(path for path in map(Path, matches) if path.is_file())
        if not files:
            raise InputError(f"{name}: no file matches this pattern")
    types = sorted({file.suffix.lower() or file.name for file in files})
    if len(types) > 1:
        got = ", ".join(types[:5]) + (", ..." if len(types) > 5 else "")
        raise InputError(f"{name}: files of several types ({got}); allowed: one type, such as '*.parquet'")
    return files


def _files_in(folder: Path) -> list[Path]:
    """The prediction files in a folder, without hidden ones, which are temporary."""
    try:
        files = sorted(
            each
            for each in folder.iterdir()
            if each.suffix.lower() in SUFFIXES and not each.name.startswith(".") and each.is_file()
        )
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error.strerror}") from error
    if not files:
        raise InputError(f"{folder}: no predictions in this folder; needed: {', '.join(SUFFIXES)} files")
    if {file.stem for file in files} >= TEST_SETS:
        raise InputError(
            f"{folder}: familiar and unfamiliar predictions in one folder; allowed: one file of these two"
        )
    return files


def is_large(files: Sequence[Path]) -> bool:
    """Whether files are streamed by default: there is more than one, or it has more than 256 MiB."""
    if any(file.suffix.lower() not in STREAMED for file in files):
        return False
    return len(files) > 1 or (files[0].is_file() and files[0].stat().st_size > LARGE)
