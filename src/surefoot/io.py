"""Files: atomic writes, TOML, JSON, locks."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from surefoot.errors import InputError

SHORT = 20  # characters of a name that are in the name of its temporary file


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path in the folder of `path`; renamed to it at the end, removed on an error.

    The content is on the disk before the file is renamed, so that a loss of power leaves no partial file. A
    link is followed. A device or a pipe is written to, never replaced.
    """
    target = Path(path).resolve()
    ending = target.suffix if len(target.suffix) <= SHORT else ""  # names have 255 bytes at most
    try:
        regular = target.is_file() or not target.exists()
        if target.is_dir():
            raise InputError(f"cannot write {path}: it is a folder; allowed: a file")
        folder = target.parent if regular else None
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{target.stem[:SHORT]}.", suffix=ending)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if regular:
            sync(temporary)
            temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; this one is the user's
            temporary.replace(target)
        else:
            with temporary.open("rb") as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder in the folder of `path`; renamed to it at the end, removed on an error.

    A folder that exists and is not empty is refused, so that nothing is lost. Parents that are missing are
    made, and removed on an error.
    """
    target = Path(path).resolve()
    missing = [parent for parent in target.parents if not parent.exists()]
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{path} exists already; allowed: a new folder, so that nothing is lost")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.stem[:SHORT]}."))
    except OSError as error:
        _remove_empty(missing)
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield temporary
        for file in temporary.iterdir():
            file.chmod(0o666 & ~_umask())
            sync(file)
        temporary.chmod(0o777 & ~_umask())
        temporary.rename(target)
        sync(target.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not target.exists():
            _remove_empty(missing)


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove these folders, the innermost first, as far as they are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, if they do not exist."""
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
        if error.errno != errno.EINVAL:  # a file system that cannot sync
            raise
    finally:
        os.close(handle)


def refuse_unwritable(output: str | Path) -> None:
    """Raise if `replacing` could not write there: to be checked before the work, not after it."""
    target, folder = Path(output).resolve(), Path(output).parent
    try:
        target.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:  # a name too long, a folder without permission
        raise InputError(f"cannot write {output}: {error.strerror}") from error
    if target.is_dir():
        raise InputError(f"cannot write {output}: it is a folder; allowed: a file")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {output}: no folder {folder}; allowed: a file in an existing folder")
    replaced = target.is_file() or not target.exists()
    if not os.access(target.parent if replaced else target, os.W_OK):
        raise InputError(
            f"cannot write {output}: no permission in {folder}; allowed: a file in another folder"
        )


def refuse_same_file(given: str | Path, output: str | Path) -> None:
    """Raise if writing the output would lose the input."""
    if Path(given).resolve() == Path(output).resolve():
        raise InputError(f"the output {output} is the input; allowed: another file, so that nothing is lost")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain values."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}") from error


def read_json(path: str | Path, what: str) -> Any:
    """The values in a JSON file; `what` names the expected content in the error."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not {what}: not JSON ({error})") from error


def write_toml(document: dict[str, Any], path: Path, *, comment: str = "") -> None:
    """Write what `toml_text` gives, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(toml_text(document, comment=comment), encoding="utf-8")


def toml_text(document: dict[str, Any], *, comment: str = "") -> str:
    """Plain values, lists of them and tables as TOML; None is left out, at any depth."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + tomli_w.dumps(_without_none(document))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


ATTEMPTS = 5


class ClaimedError(Exception):
    """Another process holds this lock."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file; `ClaimedError` if another process does."""
    make_folder(path.parent)
    with ExitStack() as stack:
        for _ in range(ATTEMPTS):  # `is_locked` in another process holds a lock for a moment
            try:
                file = stack.enter_context(path.open("a"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.02)
                continue
            except OSError as error:
                raise InputError(f"cannot write {path}: {error.strerror}") from error
            if _is_file_at(path, file.fileno()):  # else another process has removed it meanwhile
                break
        else:
            raise ClaimedError(str(path))
        yield


def _is_file_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; writes nothing."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # refused only where a process has LOCK_EX
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False  # there is no such file, so no process holds its lock


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def digest_of(value: Any) -> str:
    """Twelve hexadecimal digits of the sha256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
