"""Decoded images on disk: one flat array per list of files and size, keyed by content, written atomically."""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from surefoot.errors import InputError, one_line
from surefoot.io import (
    MOST_TEXT,
    make_folder,
    read_json,
    read_regular,
    refuse_special,
    replacing,
    sha256_of,
    sync,
)
from surefoot.lab.images.decode import UNREADABLE, Size, decode, in_parallel
from surefoot.text import count_of

UNOPENED = "unopened: "  # begins the content hash of a file that cannot be opened
VERSION = 1  # of the decoder; increase it when the same bytes give other pixels: every cache then misses
NAMED = 5  # unreadable files that a message names
FILES = ("pixels.npy", "rows.npz", "unreadable.json")
VERIFIED = "verified.json"  # the digests of these, and their state when they had them
KEY = re.compile("[0-9a-f]{64}")
HEADER = 128  # bytes of a .npy header whose array has one axis


@dataclass(frozen=True)
class Unreadable:
    """A file that cannot be read as an image, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Decoded:
    """Images of any shapes in one flat buffer, memory-mapped: `decoded[i]` is (height, width, 3) uint8.

    `rows` are the indices of their files: all of them, unless some could not be read.
    """

    buffer: NDArray[np.uint8]
    heights: NDArray[np.int64]
    widths: NDArray[np.int64]
    rows: NDArray[np.int64]
    contents: tuple[str, ...]  # sha256 of each file; empty where it cannot be opened
    unreadable: tuple[Unreadable, ...]

    def __len__(self) -> int:
        return len(self.heights)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        row = range(len(self))[index]
        height, width = int(self.heights[row]), int(self.widths[row])
        start = int(self.offsets[row])
        return self.buffer[start : start + height * width * 3].reshape(height, width, 3)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where each image begins, and finally where the buffer ends."""
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


Tick = Callable[[int], None]


def decode_images(files: list[str], size: Size, *, cache: Path, tick: Tick | None = None) -> Decoded:
    """The images of these files; an error if any cannot be read."""
    decoded = decode_readable_images(files, size, cache=cache, tick=tick)
    if decoded.unreadable:
        raise InputError(unreadable_text(decoded.unreadable))
    return decoded


def decode_readable_images(files: list[str], size: Size, *, cache: Path, tick: Tick | None = None) -> Decoded:
    """The images of these files, without those that cannot be read; `unreadable` names them."""
    tick = tick or (lambda _: None)
    by_stat = cache / "glances" / stat_key(files, size)  # holds the content key of an earlier call
    try:
        key = read_regular(by_stat, most=MOST_TEXT).decode("ascii")
    except (OSError, ValueError):
        key = ""
    if KEY.fullmatch(key) and (stored := _stored(cache, key, files)) is not None:
        tick(len(files))
        return stored
    contents = list(in_parallel(content_of, files))
    key = content_key(contents, size)
    if (stored := _stored(cache, key, files)) is not None:
        tick(len(files))
    else:
        _store(files, contents, size, cache=cache, key=key, tick=tick)
        stored = _stored(cache, key, files)
    if stored is None:
        raise InputError(
            f"{cache / 'images' / key} cannot be read back; needed: a working disk for the cache"
        )
    if not any(content.startswith(UNOPENED) for content in contents):  # a permission may change unseen
        make_folder(by_stat.parent)
        if not by_stat.is_file():
            _discard(by_stat)
        with replacing(by_stat) as temporary:
            temporary.write_text(key, encoding="ascii")
    return stored


def stat_key(files: list[str], size: Size) -> str:
    """A key from path, length and time of change: enough to know that no file has changed."""
    digest = hashlib.sha256(_key_prefix(size))
    for file in files:
        try:
            state = os.stat(file)  # noqa: PTH116
            digest.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{file}\0missing\n".encode())
    return digest.hexdigest()


def content_key(contents: list[str], size: Size) -> str:
    """The key of an array: the content of the files, in order, and the size they are decoded to."""
    return hashlib.sha256(_key_prefix(size) + "\n".join(contents).encode()).hexdigest()


def _key_prefix(size: Size) -> bytes:
    return f"surefoot {VERSION} {size.pixels} {size.fit}\n".encode()


def _stored(cache: Path, key: str, files: list[str]) -> Decoded | None:
    """Open an array, whose pixels are read from disk on access; None where it is missing or damaged."""
    folder = cache / "images" / key
    try:
        _verify(folder)
        with np.load(folder / "rows.npz", allow_pickle=False) as stored:
            heights, widths, rows = (stored[name] for name in ("heights", "widths", "rows"))
            contents = tuple("" if c.startswith(UNOPENED) else c for c in stored["contents"].tolist())
        reasons: dict[str, str] = json.loads((folder / "unreadable.json").read_text(encoding="utf-8"))
        buffer: Any = np.load(folder / "pixels.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, InputError):  # no such file, or other content
        return None
    unreadable = tuple(Unreadable(files[int(row)], reason) for row, reason in reasons.items())
    return Decoded(buffer, heights, widths, rows, contents, unreadable)


def _verify(folder: Path) -> None:
    """ValueError if a file is not the one that was written; not read if unchanged since the last time."""
    document = read_json(folder / VERIFIED, "the digests of an array")
    if not isinstance(document, dict):
        raise ValueError(document)
    files = _state(folder)
    if document.get("files") == files:
        return
    digests = {name: sha256_of(folder / name) for name in FILES}
    if document.get("sha256") != digests:
        raise ValueError(folder)
    with suppress(InputError), replacing(folder / VERIFIED) as temporary:  # a cache that is only read
        temporary.write_text(json.dumps({"sha256": digests, "files": files}), encoding="utf-8")


def _state(folder: Path) -> list[list[int]]:
    """Numbers of the file system that are others once a file was written to; OSError if it is no file."""
    for name in FILES:
        refuse_special(folder / name)
    stats = [(folder / name).stat() for name in FILES]
    return [[stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino] for stat in stats]


def _store(files: list[str], contents: list[str], size: Size, *, cache: Path, key: str, tick: Tick) -> None:
    """Decode the files into a new array. If another process stores the same first, its copy stays."""
    target = cache / "images" / key
    make_folder(target.parent)
    temporary = target.with_name(f".{key[:12]}-{secrets.token_hex(6)}")
    try:
        temporary.mkdir()
        _write_array(temporary, files, contents, size, tick)
        if _stored(cache, key, files) is None:
            _discard(target)
        temporary.rename(target)
        sync(target.parent)
    except OSError as error:
        if _stored(cache, key, files) is None:
            raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _discard(damaged: Path) -> None:
    """Remove a file or folder of the cache, whatever it is, if it is there."""
    aside = damaged.with_name(f".{damaged.name[:12]}-{secrets.token_hex(6)}")
    with suppress(FileNotFoundError):
        damaged.rename(aside)
        if aside.is_dir() and not aside.is_symlink():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink()


def _write_array(folder: Path, files: list[str], contents: list[str], size: Size, tick: Tick) -> None:
    shapes: list[tuple[int, int, int]] = []  # row, height, width
    reasons: dict[int, str] = {}
    with (folder / "pixels.npy").open("wb") as out:
        out.seek(HEADER)  # the header holds the length, which is known only at the end
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
    for name in FILES:
        sync(folder / name)
    digests = {name: sha256_of(folder / name) for name in FILES}
    with replacing(folder / VERIFIED) as out_verified:
        out_verified.write_text(json.dumps({"sha256": digests, "files": _state(folder)}), encoding="utf-8")


def unreadable_text(unreadable: tuple[Unreadable, ...]) -> str:
    """How many images cannot be read, which, and why."""
    named = "; ".join(f"{each.path} ({each.reason})" for each in unreadable[:NAMED])
    more = f"; and {len(unreadable) - NAMED} more" if len(unreadable) > NAMED else ""
    count = count_of(len(unreadable), "image")
    return f"{count} cannot be read: {named}{more}; needed: whole images, or --skip-unreadable"


def read_pixels(file: str, size: Size) -> NDArray[np.uint8] | str:
    """Pixels of a file, or the reason why it cannot be read."""
    try:
        return decode(read_regular(file), size)
    except UNREADABLE as error:
        return reason_of(error)


def reason_of(error: BaseException) -> str:
    """The reason why an image cannot be read, in a few words."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {Image.MAX_IMAGE_PIXELS:,} pixels"
    return one_line(error) or type(error).__name__


def content_of(file: str) -> str:
    """The sha256 of a file; UNOPENED and the reason if it cannot be opened."""
    try:
        refuse_special(file)
        with Path(file).open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        return f"{UNOPENED}{reason_of(error)}"
