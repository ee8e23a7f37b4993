"""Files: bounded reads of regular files, atomic writes, TOML, JSON, locks."""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import tomli_w

from surefoot.errors import InputError
from surefoot.text import bytes_text

MOST_TEXT = 64 * 2**20  # bytes of a TOML, JSON or CSV file that is read at once
MOST_KEY_PARTS = 100  # of a TOML key such as a.b.c: the parser's time grows with their square
LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MOST_KEY_PARTS}}}""")
HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")  # of one that JSON writes as two
SMALLEST_WHOLE, LARGEST_WHOLE = -(2**63), 2**63 - 1  # of a TOML or JSON file
SPECIAL = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def real_path(path: str | Path) -> Path:
    """The absolute path, with links followed; a link that leads back to itself is refused."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} is a link that leads back to itself; allowed: a file") from error


def refuse_special(path: str | Path) -> int:
    """OSError unless it is a regular file; its size. A pipe would be waited on, a device may be endless."""
    mode = os.stat(path)  # noqa: PTH116 (a path may be text)
    for is_kind, kind in SPECIAL:
        if is_kind(mode.st_mode):
            raise OSError(errno.EINVAL, f"{kind}; allowed: a regular file", str(path))
    return mode.st_size


def read_regular(path: str | Path, *, most: float = math.inf) -> bytes:
    """The bytes of a regular file with at most so many; OSError or InputError if it cannot be read."""
    size = refuse_special(path)
    if size > most:
        raise InputError(f"{path} has {bytes_text(size)}; allowed: at most {bytes_text(most)}")
    return Path(path).read_bytes()


def read_text(path: str | Path, *, most: float = MOST_TEXT) -> str:
    """The UTF-8 text of a regular file, with its line ends as they are."""
    try:
        return _utf8(path, most=most)
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _utf8(path: str | Path, *, most: float = MOST_TEXT) -> str:
    return read_bytes(path, most=most).decode("utf-8")


def read_bytes(path: str | Path, *, most: float = MOST_TEXT) -> bytes:
    """What `read_regular` gives, any error as an InputError."""
    try:
        return read_regular(path, most=most)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


SHORT = 20  # characters of a name that are in the name of its temporary file


@dataclass(frozen=True, eq=False)
class _Output:
    """A file that is written under a temporary name; `sink` is the pipe or device that gets its content."""

    path: str | Path  # as given
    target: Path
    temporary: Path
    sink: BinaryIO | None

    def discard(self) -> None:
        """Remove the temporary file."""
        self.temporary.unlink(missing_ok=True)
        if self.sink is not None:
            with suppress(OSError):  # reported already
                self.sink.close()


@dataclass(frozen=True, eq=False)
class _Waiting:
    """The outputs and the new folders of a block whose files take their places together."""

    outputs: list[_Output]
    folders: list[Path]


_WAITING: ContextVar[_Waiting | None] = ContextVar("_WAITING", default=None)


@contextmanager
def all_or_none() -> Iterator[None]:
    """What is written inside with `replacing` takes its place at the end, or nothing does on an error inside.

    Folders that `make_folder` made inside are removed on an error.
    """
    if _WAITING.get() is not None:  # a part of a larger block
        yield
        return
    waiting = _Waiting([], [])
    token = _WAITING.set(waiting)
    try:
        yield
        _put_in_place(waiting.outputs)
    except BaseException:
        for output in waiting.outputs:
            output.discard()
        _remove_empty(waiting.folders)
        raise
    finally:
        _WAITING.reset(token)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path in the folder of `path`; renamed to it at the end, removed on an error.

    The content is on the disk before the file is renamed, so that a loss of power leaves no partial file. A
    link is followed. A device or a pipe is written to, never replaced; a pipe that nobody reads is refused.
    """
    output, waiting = _output(path), _WAITING.get()
    try:
        yield output.temporary
        if waiting is None:
            _put_in_place([output])
        else:
            waiting.outputs.append(output)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if waiting is None or output not in waiting.outputs:
            output.discard()


def _output(path: str | Path) -> _Output:
    target = real_path(path)
    ending = target.suffix if len(target.suffix) <= SHORT else ""  # names have 255 bytes at most
    try:
        regular = target.is_file() or not target.exists()
        if target.is_dir():
            raise InputError(f"cannot write {path}: it is a folder; allowed: a file")
        sink = None if regular else _opened_pipe(target)  # first, so that nothing is done in vain
        name = _unused_name(target if regular else Path(tempfile.gettempdir()) / target.name, ending)
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if regular else 0o600))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    return _Output(path, target, name, sink)


def _unused_name(target: Path, ending: str = "") -> Path:
    """A name for a temporary file or folder, next to its target. Not `tempfile`, whose files are private."""
    return target.with_name(f".{target.stem[:SHORT]}.{secrets.token_hex(6)}{ending}")


def _put_in_place(outputs: Sequence[_Output]) -> None:
    """Give every file its name, after everything that may fail: a full disk, a pipe without a reader."""
    path: str | Path = ""
    files = [output for output in outputs if output.sink is None]
    try:
        for output in files:
            path = output.path
            sync(output.temporary)
        for output in outputs:
            path = output.path
            if output.sink is not None:
                with output.temporary.open("rb") as source, output.sink:
                    shutil.copyfileobj(source, output.sink)
                output.temporary.unlink()
        for output in files:
            path = output.path
            output.temporary.replace(output.target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def _opened_pipe(target: Path) -> BinaryIO:
    """A pipe or a device to write to; fails at once where a pipe has no reader, rather than wait for one."""
    try:
        handle = os.open(target, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise InputError(f"cannot write {target}: nothing reads this pipe; allowed: a file") from error
        raise
    os.set_blocking(handle, True)
    return os.fdopen(handle, "wb")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder in the folder of `path`; renamed to it at the end, removed on an error.

    A folder that exists and is not empty is refused, so that nothing is lost. Parents that are missing are
    made, and removed on an error.
    """
    target = real_path(path)
    missing = [parent for parent in target.parents if not parent.exists()]
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{path} exists already; allowed: a new folder, so that nothing is lost")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _unused_name(target)
        temporary.mkdir()
    except OSError as error:
        _remove_empty(missing)
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield temporary
        for path_inside in (*temporary.rglob("*"), temporary):
            sync(path_inside)
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
    missing = []
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove_empty(missing)
        raise InputError(f"cannot write {folder}: {error.strerror}") from error
    if (waiting := _WAITING.get()) is not None:
        waiting.folders[:0] = missing  # the innermost first


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
    target, folder = real_path(output), Path(output).parent
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
    if real_path(given) == real_path(output):
        raise InputError(f"the output {output} is the input; allowed: another file, so that nothing is lost")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain values."""
    try:
        return parse_toml(_utf8(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {_reason(error)}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML text; whole numbers have 64 bits, and other numbers are not too large."""
    if LONG_KEY.search(text):
        raise ValueError(f"a key has more than {MOST_KEY_PARTS} parts; allowed: at most {MOST_KEY_PARTS}")
    document = tomllib.loads(text, parse_float=_float)
    _refuse_large_numbers(document)
    return document


def read_json(path: str | Path, what: str) -> Any:
    """The values in a JSON file; `what` names the expected content in the error."""
    try:
        return parse_json(_utf8(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not {what}: not JSON ({_reason(error)})") from error


def parse_json(text: str | bytes) -> Any:
    """The values of JSON: whole numbers have 64 bits, none is too large, text is Unicode, names differ."""
    document = json.loads(text, **_PARSERS)
    if HALF_CHARACTER.search(text if isinstance(text, str) else text.decode("utf-8", "replace")):
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # which fails unless it has the other half
    return document


def _no_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(result := dict(pairs)) < len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {_short(repeated)!r} occurs twice in an object")
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _reason(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _float(text: str) -> float:
    if math.isinf(number := float(text)) and "inf" not in text:
        raise ValueError(f"the number {_short(text)} is too large")
    return number


def _whole(text: str) -> int:
    if len(text) > 20 or not SMALLEST_WHOLE <= int(text) <= LARGEST_WHOLE:
        raise ValueError(f"the number {_short(text)} is too large; allowed: 64 bits")
    return int(text)


_PARSERS: Any = {"parse_int": _whole, "parse_float": _float, "parse_constant": _no_constant}
_PARSERS |= {"object_pairs_hook": _no_repeated}


def _refuse_large_numbers(document: dict[str, Any]) -> None:
    pending: list[Any] = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, int) and not SMALLEST_WHOLE <= value <= LARGEST_WHOLE:
            digits = math.ceil(value.bit_length() * math.log10(2))
            raise ValueError(f"a whole number of {digits} digits is too large; allowed: 64 bits")


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:20]}... ({len(text)} characters)"


def write_toml(document: dict[str, Any], path: Path, *, comment: str = "") -> None:
    """Write what `toml_text` gives, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(toml_text(document, comment=comment), encoding="utf-8")


def toml_text(document: dict[str, Any], *, comment: str = "") -> str:
    """Plain values, lists of them and tables as TOML; None is left out, at any depth."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    text = lines + tomli_w.dumps(_without_none(document))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 60) : error.end]
        raise InputError(f"TOML cannot hold {around!r}; allowed: text and paths in UTF-8") from error
    return text


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


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
        refuse_special(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def digest_of(value: Any) -> str:
    """Twelve hexadecimal digits of the sha256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
