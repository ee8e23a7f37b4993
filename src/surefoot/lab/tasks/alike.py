"""Images that look alike although their files differ: saved again, resized, brighter."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from surefoot.io import read_regular
from surefoot.lab.images.cache import decode_readable_images, default_cache, reason_of
from surefoot.lab.images.decode import UNREADABLE, Fit, Size, decode

DECODED = Size(48, Fit.SQUARE)
THUMBNAIL = 16  # pixels
SIMILAR = 0.95  # correlation of two thumbnails; different faces that look the same way stay below
FLAT = 10  # grey values: an image that varies less cannot be compared
BANDS = 4
NEAR = BANDS - 1  # bits: two hashes that differ in no more agree in at least one of BANDS bands


@dataclass(frozen=True)
class Fingerprint:
    """The sha256 of a file, a 64-bit hash of the image (None if it is flat), or why it cannot be read."""

    content: str
    image_hash: int | None
    thumbnail: bytes = (
        b""  # THUMBNAIL x THUMBNAIL grey values, to verify that near hashes mean similar images
    )
    unreadable: str = ""


def difference_hash(pixels: NDArray[np.uint8]) -> int | None:
    """64 bits: whether each of 8 x 9 grey values is brighter than its neighbour on the right.

    N. Krawetz, "Kind of like that", 2013. None for an image of one shade.
    """
    values = _grey(pixels, (9, 8)).astype(np.int16)
    if int(values.max() - values.min()) < FLAT:
        return None
    bits = (values[:, :-1] > values[:, 1:]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def are_similar(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether two thumbnails correlate, whatever their brightness and contrast."""
    a, b = (np.frombuffer(each.thumbnail, dtype=np.uint8).astype(np.float64) for each in (one, other))
    a, b = a - a.mean(), b - b.mean()
    return bool(a @ b >= SIMILAR * np.linalg.norm(a) * np.linalg.norm(b))


def near_pairs(hashes: NDArray[np.uint64], sides: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs from different sides whose hashes differ in at most NEAR bits.

    Only hashes that agree in one of four bands of 16 bits are compared: not all five thousand million pairs
    of a hundred thousand images.
    """
    count = len(hashes)
    codes = [np.empty(0, dtype=np.int64)]
    for band in range(BANDS):
        keys = (hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        order = np.argsort(keys, kind="stable")
        for left, right in _pairs_of_equals(keys[order]):
            one, other = order[left], order[right]
            differing = (
                np.unpackbits((hashes[one] ^ hashes[other]).view(np.uint8)).reshape(-1, 64).sum(axis=1)
            )
            near = (sides[one] != sides[other]) & (differing <= NEAR)
            one, other = one[near], other[near]
            codes.append(np.where(sides[one] < sides[other], one * count + other, other * count + one))
    pairs = np.unique(np.concatenate(codes))
    return list(zip((pairs // max(count, 1)).tolist(), (pairs % max(count, 1)).tolist(), strict=True))


def _pairs_of_equals(ordered: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Every pair of positions with the same key, those one apart first, then those two apart, and so on."""
    positions = np.arange(len(ordered))
    ends = np.searchsorted(ordered, ordered, side="right")
    step = 1
    while len(positions := positions[positions + step < ends[positions]]):
        yield positions, positions + step
        step += 1


def _grey(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(pixels).convert("L").resize(size, Image.Resampling.BOX))


def fingerprint(file: str) -> Fingerprint:
    """Of a file, which is read and decoded completely."""
    try:
        data = read_regular(file)
    except OSError as error:
        return Fingerprint("", None, unreadable=reason_of(error))
    content = hashlib.sha256(data).hexdigest()
    try:
        pixels = decode(data, DECODED)
    except UNREADABLE as error:
        return Fingerprint(content, None, unreadable=reason_of(error))
    return _of_pixels(content, pixels)


def _of_pixels(content: str, pixels: NDArray[np.uint8]) -> Fingerprint:
    return Fingerprint(content, difference_hash(pixels), _grey(pixels, (THUMBNAIL, THUMBNAIL)).tobytes())


def cached_fingerprints(files: Sequence[str]) -> list[Fingerprint]:
    """Of many files, from the cache of decoded images; a file that cannot be read looks like no other."""
    decoded = decode_readable_images(list(files), DECODED, cache=default_cache())
    prints = [Fingerprint(content, None) for content in decoded.contents]
    for index, row in enumerate(decoded.rows.tolist()):
        prints[row] = _of_pixels(decoded.contents[row], decoded[index])
    return prints


def similar_pairs(prints: Sequence[Fingerprint], sides: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs from different sides that look alike and have different bytes; the lower side first."""
    rows = [row for row, each in enumerate(prints) if each.image_hash is not None]
    hashes = np.asarray([prints[row].image_hash for row in rows], dtype=np.uint64)
    pairs = [(rows[left], rows[right]) for left, right in near_pairs(hashes, sides[rows])]
    return [
        (one, other)
        for one, other in pairs
        if prints[one].content != prints[other].content and are_similar(prints[one], prints[other])
    ]


def look_alikes(prints: Sequence[Fingerprint]) -> list[int]:
    """A number for every image: the first row of those that look like it, directly or through others."""
    first: dict[str, int] = {}
    equal = [(first.setdefault(each.content, row), row) for row, each in enumerate(prints) if each.content]
    return linked(len(prints), [*equal, *similar_pairs(prints, np.arange(len(prints)))])


def linked(count: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """The first of the numbers that each of 0 to count - 1 is linked with, directly or through others.

    >>> linked(5, [(3, 1), (4, 3)])
    [0, 1, 2, 1, 1]
    """
    before = list(range(count))

    def first(number: int) -> int:
        while before[number] != number:
            before[number] = before[before[number]]  # so that long chains become short
            number = before[number]
        return number

    for one, other in links:
        low, high = sorted((first(one), first(other)))
        before[high] = low
    return [first(number) for number in range(count)]
