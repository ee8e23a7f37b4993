"""Writing a file so that it is either the old one or the new one, never half of each."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surefoot.errors import InputError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`; renamed over it at the end, removed if anything goes wrong."""
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; this one is the user's
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
