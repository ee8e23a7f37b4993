"""One image file to pixels: 8 bits, RGB, upright; many files in parallel."""

import io
import math
import os
import struct
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 8  # results per worker that may wait for the reader


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in order, from as many threads as there are processors, never far ahead of the reader.

    Threads are enough: Pillow and hashlib let go of Python's lock while they work.
    """
    with refusing_bombs(), ThreadPoolExecutor(processors()) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= AHEAD * processors():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def refusing_bombs() -> Iterator[None]:
    """Inside, in every thread, an image beyond Pillow's limit of pixels is an error and not a remark."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # never those that run another program
PAPER = (255, 255, 255, 255)  # what shows through where an image is transparent
SPARE = 2  # a JPEG is first decoded at no less than this many times the wanted size

# What Pillow raises on files that are damaged, or only look like images.
UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    MemoryError,
    struct.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


class TooManyPixelsError(ValueError):
    """An image that is larger than is allowed, by its header, or would be at the size that is asked for."""


class Fit(StrEnum):
    """How an image is brought to size."""

    SHORT_SIDE = "short"  # the shorter side has that many pixels, the shape is kept
    SQUARE = "square"  # both sides have, whatever the shape was; nothing is cut off
    AS_IT_IS = "as it is"  # at the file's own size


@dataclass(frozen=True)
class Size:
    """So many pixels, on the short side or on both; or the file's own."""

    pixels: int
    fit: Fit = Fit.SHORT_SIDE

    def of(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that an image gets.

        >>> Size(160).of(640, 480), Size(160, Fit.SQUARE).of(640, 480)
        ((213, 160), (160, 160))
        """
        if self.fit is Fit.AS_IT_IS:
            return width, height
        if self.fit is Fit.SQUARE:
            return self.pixels, self.pixels
        short = min(width, height)
        return tuple(max(1, round(side * self.pixels / short)) for side in (width, height))  # type: ignore[return-value]


def decode(
    data: bytes | bytearray,
    size: Size,
    *,
    most_pixels: float = math.inf,
    formats: tuple[str, ...] = FORMATS,
) -> NDArray[np.uint8]:
    """Pixels (height, width, 3) of an image, antialiased; raises one of UNREADABLE where it cannot be."""
    with Image.open(io.BytesIO(data), formats=formats) as image:
        if math.prod(image.size) > most_pixels:
            raise TooManyPixelsError(f"{image.width:,} x {image.height:,} pixels")
        if size.fit is not Fit.AS_IT_IS:
            image.draft(None, (SPARE * size.pixels, SPARE * size.pixels))
        return pixels_of(image, size, most_pixels=most_pixels)


def pixels_of(image: Image.Image, size: Size, *, most_pixels: float = math.inf) -> NDArray[np.uint8]:
    """The same of an image that is open, which is left as it is."""
    if not all(image.size):
        raise ValueError(f"{image.width} x {image.height} pixels")
    wanted = size.of(*image.size)  # perhaps nothing is decoded yet
    if math.prod(wanted) > min(most_pixels, Image.MAX_IMAGE_PIXELS or math.inf):
        raise TooManyPixelsError(f"{wanted[0]} x {wanted[1]} pixels at this size")
    plain = _plain(ImageOps.exif_transpose(image))
    wanted = size.of(*plain.size)  # upright: perhaps the other way round
    small = plain if plain.size == wanted else plain.resize(wanted, Image.Resampling.BICUBIC)
    return np.asarray(small)


def _plain(image: Image.Image) -> Image.Image:
    """Eight bits of red, green and blue."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        return _from_sixteen_bits(image)
    if image.mode == "F":
        raise ValueError("numbers with fractions have no known white")
    if image.has_transparency_data:
        shown = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", shown.size, PAPER), shown).convert("RGB")
    return image.convert("RGB")


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """0 to 65535 becomes 0 to 255."""
    values: NDArray[Any] = np.asarray(image)
    if image.mode == "I" and (image.format != "PNG" or values.max(initial=0) > 65535):
        raise ValueError("32-bit whole numbers have no known white")
    return Image.fromarray((values.astype(np.uint32) // 257).astype(np.uint8)).convert("RGB")
