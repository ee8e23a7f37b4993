"""Writing a file so that it is either the old one or the new one, never half of each."""

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

    A link is followed. What is no regular file (a device, a pipe) is written to, never replaced.
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


def refuse_same_file(given: str | Path, output: str | Path) -> None:
    """Raise if writing the output would lose the input."""
    if Path(given).resolve() == Path(output).resolve():
        raise InputError(f"the output {output} is the input; allowed: another file, so that nothing is lost")


def _move(temporary: Path, target: Path) -> None:
    temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; this one is the user's
    temporary.replace(target)


def _pour(temporary: Path, target: Path) -> None:
    with temporary.open("rb") as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
