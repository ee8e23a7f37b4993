"""What a picture is, byte by byte and at a glance: for finding it again in another split."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from surefoot.decoding.images import reason_of
from surefoot.decoding.parallel import in_parallel
from surefoot.decoding.pixels import UNREADABLE, Fit, Size, decode
from surefoot.tasks.base import Samples
from surefoot.tasks.images import ImageFiles

SMALL = Size(48, Fit.SQUARE)
SKETCH = 16
ALIKE = 0.95  # correlation of two sketches; faces that only look the same way stay below
FLAT = 10  # grey values: a sketch that varies less shows nothing to compare
BANDS = 4
NEAR = BANDS - 1  # bits: two hashes no further apart agree in at least one of BANDS bands


@dataclass(frozen=True)
class Fingerprint:
    """The sha256 of the file, a 64-bit hash of what it shows (None if that is flat), or why it has none."""

    content: str
    look: int | None
    sketch: bytes = b""  # SKETCH x SKETCH grey values, to see whether two of one hash are alike indeed
    unreadable: str = ""


def fingerprints(samples: Samples, tick: Callable[[int], None]) -> list[Fingerprint]:
    """Every sample's; every file is opened and decoded to its end."""
    if not isinstance(samples.inputs, ImageFiles):
        tick(len(samples))
        return [Fingerprint(hashlib.sha256(each.tobytes()).hexdigest(), None) for each in samples.inputs]
    return list(_ticking(in_parallel(_fingerprint, samples.inputs.files()), tick))


def difference_hash(pixels: NDArray[np.uint8]) -> int | None:
    """64 bits: whether each of 8 x 9 grey values is brighter than its neighbour on the right.

    N. Krawetz, "Kind of like that", 2013. None for a picture of one shade.
    """
    values = _grey(pixels, (9, 8)).astype(np.int16)
    if int(values.max() - values.min()) < FLAT:
        return None
    bits = (values[:, :-1] > values[:, 1:]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def alike(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether two sketches show the same, whatever their brightness and contrast."""
    ours, theirs = (np.frombuffer(each.sketch, dtype=np.uint8).astype(np.float64) for each in (one, other))
    ours, theirs = ours - ours.mean(), theirs - theirs.mean()
    return bool(ours @ theirs >= ALIKE * np.linalg.norm(ours) * np.linalg.norm(theirs))


def near_pairs(looks: NDArray[np.uint64], sides: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs from different sides whose hashes differ in at most NEAR bits.

    Compared are only those that agree in one of four bands of 16 bits, so that a hundred thousand
    pictures do not make five thousand million pairs.
    """
    count = len(looks)
    found = [np.empty(0, dtype=np.int64)]
    for band in range(BANDS):
        keys = (looks >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        order = np.argsort(keys, kind="stable")
        for left, right in _pairs_of_equals(keys[order]):
            one, other = order[left], order[right]
            near = (sides[one] != sides[other]) & (_bits(looks[one] ^ looks[other]) <= NEAR)
            one, other = one[near], other[near]
            found.append(np.where(sides[one] < sides[other], one * count + other, other * count + one))
    pairs = np.unique(np.concatenate(found))
    return list(zip((pairs // max(count, 1)).tolist(), (pairs % max(count, 1)).tolist(), strict=True))


def _pairs_of_equals(ordered: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Every pair of places that hold the same key, those one apart first, then those two apart, and so on."""
    places = np.arange(len(ordered))
    ends = np.searchsorted(ordered, ordered, side="right")
    step = 1
    while len(places := places[places + step < ends[places]]):
        yield places, places + step
        step += 1


def _bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """How many bits are set: neighbours are summed in pairs, fours, bytes, and so on."""
    values = values - ((values >> np.uint64(1)) & np.uint64(0x5555555555555555))
    fours = np.uint64(0x3333333333333333)
    values = (values & fours) + ((values >> np.uint64(2)) & fours)
    values = (values + (values >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (values * np.uint64(0x0101010101010101)) >> np.uint64(56)


def _grey(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(pixels).convert("L").resize(size, Image.Resampling.BOX))


def _fingerprint(file: str) -> Fingerprint:
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        return Fingerprint("", None, unreadable=reason_of(error))
    content = hashlib.sha256(data).hexdigest()
    try:
        pixels = decode(data, SMALL)
    except UNREADABLE as error:
        return Fingerprint(content, None, unreadable=reason_of(error))
    return Fingerprint(content, difference_hash(pixels), _grey(pixels, (SKETCH, SKETCH)).tobytes())


def _ticking(results: Iterator[Fingerprint], tick: Callable[[int], None]) -> Iterator[Fingerprint]:
    for result in results:
        yield result
        tick(1)
