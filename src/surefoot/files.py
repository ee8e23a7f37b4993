"""Writing a file so that it is either the old one or the new one, never half of each."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surefoot.errors import InputError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`; renamed over it at the end, removed if anything goes wrong.

    It is on the disk before it is renamed, so that a loss of power leaves no half file either. A link is
    followed. What is no regular file (a device, a pipe) is written to, never replaced.
    """
    target = Path(path).resolve()
    regular = target.is_file() or not target.exists()
    try:
        folder = target.parent if regular else None
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name}.", suffix=target.suffix)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _move(temporary, target) if regular else _pour(temporary, target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(handle)


def refuse_same_file(given: str | Path, output: str | Path) -> None:
    """Raise if writing the output would lose the input."""
    if Path(given).resolve() == Path(output).resolve():
        raise InputError(f"the output {output} is the input; allowed: another file, so that nothing is lost")


def _move(temporary: Path, target: Path) -> None:
    sync(temporary)
    temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; this one is the user's
    temporary.replace(target)


def _pour(temporary: Path, target: Path) -> None:
    with temporary.open("rb") as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
