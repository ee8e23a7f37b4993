"""Decoded images on disk: one flat array per split and size, found again by content, never half written."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.decoding.pixels import Size
from surefoot.errors import InputError

UNOPENED = "unopened: "  # stands for the content of a file that cannot even be opened
VERSION = 1  # of what the decoder makes of the same bytes; a new number makes every cache miss


@dataclass(frozen=True)
class Unreadable:
    """A file that is no image, and why."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Decoded:
    """Images of any shapes in one flat buffer, memory-mapped: `decoded[i]` is (height, width, 3) uint8.

    `rows` says which of the samples they are: all of them, unless some could not be read.
    """

    buffer: NDArray[np.uint8]
    heights: NDArray[np.int64]
    widths: NDArray[np.int64]
    rows: NDArray[np.int64]
    contents: tuple[str, ...]  # sha256 of each sample's file; empty where it cannot be opened
    unreadable: tuple[Unreadable, ...]

    def __len__(self) -> int:
        return len(self.heights)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        place = range(len(self))[index]
        height, width = int(self.heights[place]), int(self.widths[place])
        start = int(self.offsets[place])
        return self.buffer[start : start + height * width * 3].reshape(height, width, 3)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where each image begins, and at last where the buffer ends."""
        sizes = self.heights * self.widths * 3
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def as_array(self) -> NDArray[np.uint8]:
        """All images as (n, height, width, 3), still memory-mapped; they must have one shape."""
        shapes = set(zip(self.heights.tolist(), self.widths.tolist(), strict=True))
        assert len(shapes) == 1, shapes
        return self.buffer.reshape(len(self), *shapes.pop(), 3)


def default_cache() -> Path:
    """$SUREFOOT_CACHE, or the user's cache folder."""
    given = os.environ.get("SUREFOOT_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "surefoot"


def glance(files: list[str], size: Size) -> str:
    """A key from path, length and time of change alone: enough to know that nothing has changed."""
    digest = _start(size)
    for file in files:
        try:
            state = os.stat(file)  # noqa: PTH116
            digest.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{file}\0missing\n".encode())
    return digest.hexdigest()


def content_key(contents: list[str], size: Size) -> str:
    """The key of an array: what the files hold, in order, and what is made of them."""
    digest = _start(size)
    digest.update("\n".join(contents).encode())
    return digest.hexdigest()


def find(cache: Path, glanced: str) -> str | None:
    """The content key that a glance led to before, if its array is there."""
    try:
        key = (cache / "glances" / glanced).read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return key if is_stored(cache, key) else None


def is_stored(cache: Path, key: str) -> bool:
    """Whether the array is there; what is there is complete."""
    return (cache / "images" / key / "rows.npz").is_file()


def remember(cache: Path, glanced: str, key: str) -> None:
    """Note where a glance led to."""
    folder = make(cache / "glances")
    handle, name = tempfile.mkstemp(dir=folder, prefix=".")
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(key)
    Path(name).replace(folder / glanced)


def load(cache: Path, key: str, files: list[str]) -> Decoded:
    """Open an array; its pixels are read from disk when they are looked at."""
    folder = cache / "images" / key
    with np.load(folder / "rows.npz", allow_pickle=False) as stored:
        heights, widths, rows = (stored[name] for name in ("heights", "widths", "rows"))
        contents = tuple("" if c.startswith(UNOPENED) else c for c in stored["contents"].tolist())
    reasons: dict[str, str] = json.loads((folder / "unreadable.json").read_text(encoding="utf-8"))
    buffer: Any = np.load(folder / "pixels.npy", mmap_mode="r", allow_pickle=False)
    unreadable = tuple(Unreadable(files[int(row)], reason) for row, reason in reasons.items())
    return Decoded(buffer, heights, widths, rows, contents, unreadable)


@contextmanager
def storing(cache: Path, key: str) -> Iterator[Path]:
    """A temporary folder, renamed to its place at the end. If another process was first, its copy stays."""
    target = make(cache / "images") / key
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{key[:12]}-"))
    try:
        yield temporary
        temporary.rename(target)
    except OSError as error:
        if not is_stored(cache, key):
            raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make(folder: Path) -> Path:
    """The folder, made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error
    return folder


def _start(size: Size) -> "hashlib._Hash":
    return hashlib.sha256(f"surefoot {VERSION} {size.pixels} {size.fit}\n".encode())
