"""Image files become one array: decoded once, in parallel, and memory-mapped from then on."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from surefoot.decoding.cache import (
    UNOPENED,
    Decoded,
    Unreadable,
    content_key,
    find,
    glance,
    is_stored,
    load,
    remember,
    storing,
)
from surefoot.decoding.parallel import in_parallel
from surefoot.decoding.pixels import UNREADABLE, Size, decode
from surefoot.errors import InputError
from surefoot.plurals import count_of

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
    glanced = glance(files, size)
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
