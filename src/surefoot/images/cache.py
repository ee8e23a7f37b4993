"""Decoded images on disk: one flat array per split and size, found by content, written atomically."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from surefoot.errors import InputError
from surefoot.images.decode import UNREADABLE, Size, decode, in_parallel
from surefoot.text import count_of

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


def stat_key(files: list[str], size: Size) -> str:
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


SHOWN = 5  # unreadable files that a message names
HEADER = 128  # bytes of a .npy header whose array has one axis
Tick = Callable[[int], None]


def decode_images(files: list[str], size: Size, *, cache: Path, tick: Tick | None = None) -> Decoded:
    """The images of these files; an error if any cannot be read."""
    decoded = decode_readable_images(files, size, cache=cache, tick=tick)
    if decoded.unreadable:
        raise InputError(unreadable_text(decoded.unreadable))
    return decoded


def decode_readable_images(files: list[str], size: Size, *, cache: Path, tick: Tick | None = None) -> Decoded:
    """The images of these files, less those that cannot be read; `unreadable` names them."""
    step = tick or (lambda _: None)
    glanced = stat_key(files, size)
    key = find(cache, glanced)
    if key is not None:
        step(len(files))
        return load(cache, key, files)
    contents = list(in_parallel(content_of, files))
    key = content_key(contents, size)
    if is_stored(cache, key):
        step(len(files))
    else:
        _store(files, contents, size, cache=cache, key=key, tick=step)
    if not any(content.startswith(UNOPENED) for content in contents):  # that may change without a trace
        remember(cache, glanced, key)
    return load(cache, key, files)


def unreadable_text(unreadable: tuple[Unreadable, ...]) -> str:
    """How many, which, and why."""
    named = "; ".join(f"{each.path} ({each.reason})" for each in unreadable[:SHOWN])
    more = f"; and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
    count = count_of(len(unreadable), "image")
    return f"{count} cannot be read: {named}{more}; needed: whole images, or --skip-unreadable"


def read_pixels(file: str, size: Size) -> NDArray[np.uint8] | str:
    """Pixels of a file, or in words why there are none."""
    try:
        return decode(Path(file).read_bytes(), size)
    except UNREADABLE as error:
        return reason_of(error)


def reason_of(error: BaseException) -> str:
    """Why an image cannot be read, in a few words."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {Image.MAX_IMAGE_PIXELS:,} pixels"
    return getattr(error, "strerror", None) or str(error).split("\n")[0] or type(error).__name__


def content_of(file: str) -> str:
    """The sha256 of a file; of one that cannot be opened, why."""
    try:
        with Path(file).open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        return f"{UNOPENED}{reason_of(error)}"


def _store(files: list[str], contents: list[str], size: Size, *, cache: Path, key: str, tick: Tick) -> None:
    shapes: list[tuple[int, int, int]] = []  # row, height, width
    reasons: dict[int, str] = {}
    with storing(cache, key) as folder:
        with (folder / "pixels.npy").open("wb") as out:
            out.seek(HEADER)
            for row, pixels in enumerate(in_parallel(lambda file: read_pixels(file, size), files)):
                if isinstance(pixels, str):
                    reasons[row] = pixels
                else:
                    out.write(np.ascontiguousarray(pixels).data)
                    shapes.append((row, pixels.shape[0], pixels.shape[1]))
                tick(1)
            length = out.tell() - HEADER
            out.seek(0)
            header = {"descr": "|u1", "fortran_order": False, "shape": (length,)}
            np.lib.format.write_array_header_1_0(out, header)
            assert out.tell() == HEADER
        _store_rows(folder, shapes, contents, reasons)


def _store_rows(
    folder: Path, shapes: list[tuple[int, int, int]], contents: list[str], reasons: dict[int, str]
) -> None:
    table = np.asarray(shapes, dtype=np.int64).reshape(-1, 3)
    (folder / "unreadable.json").write_text(json.dumps(reasons), encoding="utf-8")
    np.savez(
        folder / "rows.npz",
        allow_pickle=False,
        rows=table[:, 0],
        heights=table[:, 1],
        widths=table[:, 2],
        contents=np.asarray(contents, dtype=np.str_),
    )
