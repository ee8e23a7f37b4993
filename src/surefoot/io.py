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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from surefoot.errors import InputError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`; renamed over it at the end, removed if anything goes wrong.

    It is on the disk before it is renamed, so that a loss of power leaves no half file either. A link is
    followed. What is no regular file (a device, a pipe) is written to, never replaced.
    """
    target = Path(path).resolve()
    try:
        regular = target.is_file() or not target.exists()
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


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder beside `path`; renamed to it at the end, removed if anything goes wrong.

    One that is there already and holds something is refused, so that nothing is lost.
    """
    target = Path(path).resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{path} is there already; allowed: a new folder, so that nothing is lost")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    except OSError as error:
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


def refuse_unwritable(output: str | Path) -> None:
    """Raise where `replacing` could not write: to be said before the work, not after it."""
    target, folder = Path(output).resolve(), Path(output).parent
    try:
        target.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:  # a name too long, a folder that may not be looked into
        raise InputError(f"cannot write {output}: {error.strerror}") from error
    if target.is_dir():
        raise InputError(f"cannot write {output}: it is a folder; allowed: a file, there or not")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {output}: no folder {folder}; allowed: a file in one that is there")
    replaced = target.is_file() or not target.exists()
    if not os.access(target.parent if replaced else target, os.W_OK):
        raise InputError(f"cannot write {output}: no permission in {folder}; allowed: a file in another")


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
    """The values in a JSON file; `what` it ought to be is said where it is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not {what}: not JSON ({error})") from error


def write_toml(document: dict[str, Any], path: Path, *, comment: str = "") -> None:
    """Plain values, lists of them and tables as a TOML file; None is left out."""
    with replacing(path) as temporary:
        temporary.write_text(toml_text(document, comment=comment), encoding="utf-8")


def toml_text(document: dict[str, Any], *, comment: str = "") -> str:
    """What `write_toml` writes."""
    return "\n".join([*(f"# {line}" for line in comment.splitlines()), *_toml_lines(document, ()), ""])


def _toml_lines(table: dict[str, Any], name: tuple[str, ...], *, titled: bool = False) -> list[str]:
    several = {key: value for key, value in table.items() if _is_tables(value)}
    inner = {key: value for key, value in table.items() if isinstance(value, dict)} | several
    plain = {key: value for key, value in table.items() if key not in inner and value is not None}
    lines = [f"[{'.'.join(name)}]"] if name and not titled and (plain or not inner) else []
    lines += [f"{key} = {_toml_value(value)}" for key, value in plain.items()]
    for key, value in inner.items():
        if key in several:
            for each in value:
                lines += [f"[[{'.'.join((*name, key))}]]", *_toml_lines(each, (*name, key), titled=True)]
        else:
            lines += _toml_lines(value, (*name, key))
    return lines


def _toml_value(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written.replace("\x7f", "\\u007f")  # the one control character that JSON allows and TOML does not


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


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


def digest_of(value: Any) -> str:
    """Twelve hexadecimal digits of the sha256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
