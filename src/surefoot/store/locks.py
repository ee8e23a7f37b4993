"""Locks between processes: the kernel's, so one goes with the process that held it, however that ended."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from surefoot.errors import InputError
from surefoot.files import make_folder

ATTEMPTS = 5


class ClaimedError(Exception):
    """Another process is making this network."""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock; `ClaimedError` if another process does."""
    make_folder(path.parent)
    try:
        file = path.open("a")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    with file:
        _lock_soon(file)
        yield


def is_held(path: Path) -> bool:
    """Looks, and writes nothing: a shared lock can be had unless somebody holds it alone."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False  # no such lock, so nobody holds it


def _lock_soon(file: IO[str]) -> None:
    """Lock a file, trying for a moment: somebody may just be looking whether it is locked."""
    for attempt in range(ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if attempt == ATTEMPTS - 1:
                raise ClaimedError(file.name) from error
            time.sleep(0.02)
        else:
            return
