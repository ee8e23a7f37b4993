"""One image file to pixels: 8 bits, RGB, upright; many files in parallel."""

import io
import math
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

from surefoot.runtime import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 8  # results per thread that are computed before they are needed


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in order, from one thread per core, computed at most AHEAD results per thread in advance.

    Threads are enough: Pillow and hashlib release the global interpreter lock.
    """
    threads = usable_cores()
    with refusing_bombs(), ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= AHEAD * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def refusing_bombs() -> Iterator[None]:
    """Inside, in every thread, an image beyond Pillow's limit of pixels is an error and not a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's warnings about odd metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # none that runs another program
BACKGROUND = (255, 255, 255, 255)  # of transparent images
DRAFT_SCALE = 2  # a JPEG is first decoded at no less than this many times the requested size

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


PYTHON_DECODERS = ("ppm", "ppm_plain", "bmp_rle")  # of Pillow: all others are written in C


class TooManyPixelsError(ValueError):
    """An image that is larger than allowed, by its header or at the requested size."""


class CountedReads(io.BytesIO):
    """A file in memory that can be read so many times: Pillow reads each part of a header in Python."""

    def __init__(self, data: bytes | bytearray, most: float) -> None:
        super().__init__(data)
        self.most, self.count = most, 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Read; OSError where it was read too often."""
        self.count += 1
        if self.count > self.most:
            raise OSError(f"it has more than {self.most:,} parts")
        return super().read(size)


class Fit(StrEnum):
    """How an image is brought to size."""

    SHORT_SIDE = "short"  # the shorter side has that many pixels; the aspect ratio stays
    SQUARE = "square"  # both sides have that many pixels; nothing is cropped
    AS_IT_IS = "as it is"  # at the file's own size


@dataclass(frozen=True)
class Size:
    """The size in pixels, and which sides have it."""

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
    most_steps: float = math.inf,
    formats: tuple[str, ...] = FORMATS,
) -> NDArray[np.uint8]:
    """Pixels (height, width, 3) of an image, antialiased; raises one of UNREADABLE if it cannot be read.

    `most_steps` limits what Pillow does in Python, which stops all other threads: parts of the headers, and
    pixels or bytes of the kinds of images that it decodes so.
    """
    with Image.open(CountedReads(data, most_steps), formats=formats) as image:
        if math.prod(image.size) > most_pixels:
            raise TooManyPixelsError(f"{image.width:,} x {image.height:,} pixels")
        is_slow = any(tile[0] in PYTHON_DECODERS for tile in getattr(image, "tile", ()))
        if is_slow and max(math.prod(image.size), len(data)) > most_steps:
            raise ValueError(f"a slow kind of {image.format}, of more than {most_steps:,} pixels or bytes")
        if size.fit is not Fit.AS_IT_IS:
            image.draft(None, (DRAFT_SCALE * size.pixels, DRAFT_SCALE * size.pixels))
        return pixels_of(image, size, most_pixels=most_pixels)


def pixels_of(image: Image.Image, size: Size, *, most_pixels: float = math.inf) -> NDArray[np.uint8]:
    """Pixels (height, width, 3) of an open image, which is not changed."""
    if not all(image.size):
        raise ValueError(f"{image.width} x {image.height} pixels")
    width, height = size.of(*image.size)  # checked before anything is decoded
    if width * height > min(most_pixels, Image.MAX_IMAGE_PIXELS or math.inf):
        raise TooManyPixelsError(f"{width} x {height} pixels at this size")
    upright = _as_rgb(ImageOps.exif_transpose(image))
    target = size.of(*upright.size)  # width and height may have changed places
    resized = upright if upright.size == target else upright.resize(target, Image.Resampling.BICUBIC)
    return np.asarray(resized)


def _as_rgb(image: Image.Image) -> Image.Image:
    """Eight bits each of red, green and blue; 16-bit grey values 0 to 65535 become 0 to 255."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        values: NDArray[Any] = np.asarray(image)
        if image.mode == "I" and (image.format != "PNG" or values.max(initial=0) > 65535):
            raise ValueError("the white level of 32-bit integers is unknown")
        return Image.fromarray((values.astype(np.uint32) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("the white level of floating-point pixels is unknown")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, BACKGROUND), rgba).convert("RGB")
    return image.convert("RGB")
