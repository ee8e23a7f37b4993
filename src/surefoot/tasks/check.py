"""The checks behind `surefoot data check`: counts, unreadable images, leaks between splits."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from surefoot.images.cache import reason_of
from surefoot.images.decode import UNREADABLE, Fit, Size, decode, in_parallel
from surefoot.predictions.labels import LabelKind
from surefoot.tasks.task import ImageFiles, Samples, Split, Task
from surefoot.text import count_of

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


MOST_VALUES = 12  # of an attribute that are counted one by one
Counted = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]  # a header, and rows of text


def label_counts(task: Task) -> Counted:
    """A row per label, a column per split; the last row counts samples (with many labels not the sum)."""
    header = ("label", *(split.value for split in task.splits))
    counts = {split: task.class_counts(split) for split in task.splits}
    rows = [
        (name, *(f"{counts[split][index]:,}" for split in task.splits))
        for index, name in enumerate(task.class_names)
    ]
    if task.kind is LabelKind.MANY_LABELS:
        none = [int((each.labels != 1).all(axis=1).sum()) for each in task.splits.values()]
        rows.append(("(no label)", *(f"{count:,}" for count in none)))
    rows.append(("samples", *(f"{len(each):,}" for each in task.splits.values())))
    return header, tuple(rows)


def attribute_counts(task: Task) -> dict[str, Counted]:
    """A table per attribute: its values, or where a number has many of them, what they range over."""
    columns: dict[str, None] = {}
    for samples in task.splits.values():
        columns |= dict.fromkeys(_names(samples))
    return {name: _count(task, name) for name in columns}


def _names(samples: Samples) -> Iterator[str]:
    if samples.attributes is not None:
        yield from samples.attributes.column_names
    elif samples.groups is not None:
        yield "group"


def _count(task: Task, name: str) -> Counted:
    splits = {split: each for split, each in task.splits.items() if name in list(_names(each))}
    values = {split: _values(each, name) for split, each in splits.items()}
    everything = [value for found in values.values() for value in found]
    if len(set(everything)) > MOST_VALUES and _numeric(everything):
        return (name, *(split.value for split in splits)), _ranges(values)
    often = Counter(everything)
    shown = sorted(often, key=lambda value: (-often[value], str(value)))[:MOST_VALUES]
    counts = {split: Counter(found) for split, found in values.items()}
    rows = [
        (_text(value), *(f"{counts[split][value]:,}" for split in splits))
        for value in sorted(shown, key=lambda value: (value is None, str(value)))
    ]
    if len(often) > len(shown):
        rest = [sum(c for value, c in counts[split].items() if value not in shown) for split in splits]
        rows.append((f"({len(often) - len(shown):,} others)", *(f"{count:,}" for count in rest)))
    return (name, *(split.value for split in splits)), tuple(rows)


def _values(samples: Samples, name: str) -> list[object]:
    if samples.attributes is None:
        assert samples.groups is not None
        return list(samples.groups.tolist())
    return list(samples.attributes[name].to_pylist())


def _numeric(values: list[object]) -> bool:
    return all(value is None or (isinstance(value, int | float) and value is not True) for value in values)


def _ranges(values: dict[Split, list[object]]) -> tuple[tuple[str, ...], ...]:
    numbers = {
        split: np.asarray([v for v in found if v is not None], float) for split, found in values.items()
    }
    rows = []
    for title, share in (("lowest", 0.0), ("median", 0.5), ("highest", 1.0)):
        cells = (f"{np.quantile(each, share):g}" if len(each) else "" for each in numbers.values())
        rows.append((title, *cells))
    gaps = [sum(value is None for value in found) for found in values.values()]
    if any(gaps):
        rows.append(("(missing)", *(f"{gap:,}" for gap in gaps)))
    return tuple(rows)


def _text(value: object) -> str:
    return "(missing)" if value is None else str(value)


TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
Prints = Mapping[Split, list[Fingerprint]]
Pairs = dict[tuple[Split, Split], list[str]]


@dataclass(frozen=True)
class Finding:
    """A sentence, the samples it is about, and whether the task should not be used like this."""

    name: str
    sentence: str
    samples: tuple[str, ...] = ()
    serious: bool = False


def inspect(task: Task, *, tick: Callable[[int], None] | None = None) -> list[Finding]:
    """Open every file of a task and look for what spoils it; serious findings first."""
    prints = {split: fingerprints(each, tick or (lambda _: None)) for split, each in task.splits.items()}
    found = [
        *_unreadable(task, prints),
        *_shared(task, prints),
        *_missing_splits(task),
        *_one_sided_labels(task),
        *_repeated(task, prints),
        *_alike(task, prints),
    ]
    return sorted(found, key=lambda finding: not finding.serious)


def _unreadable(task: Task, prints: Prints) -> Iterator[Finding]:
    named = [
        f"{_name(task, split, row)} ({each.unreadable})"
        for split, found in prints.items()
        for row, each in enumerate(found)
        if each.unreadable
    ]
    if named:
        yield Finding("unreadable", f"{count_of(len(named), 'image')} cannot be read", tuple(named), True)


def _shared(task: Task, prints: Prints) -> Iterator[Finding]:
    """The same bytes in two splits."""
    pairs: Pairs = defaultdict(list)
    for places in _by_content(prints).values():
        first: dict[Split, int] = {}
        for split, row in places:
            first.setdefault(split, row)
        splits = sorted(first, key=list(Split).index)
        for index, one in enumerate(splits):
            for other in splits[index + 1 :]:
                text = f"{_name(task, one, first[one])} = {_name(task, other, first[other])}"
                pairs[one, other].append(text)
    for (one, other), named in _in_order(pairs):
        sentence = f"{count_of(len(named), 'picture')} in both {one} and {other}: a leak"
        yield Finding("leak", sentence, tuple(named), True)


def _missing_splits(task: Task) -> Iterator[Finding]:
    if Split.TEST_UNFAMILIAR not in task.splits:
        sentence = "no unfamiliar sample to test on: the familiar conditions hold for all of them"
        yield Finding("no_unfamiliar", sentence, serious=True)
    for split in (Split.VAL, Split.TEST_FAMILIAR):
        if split not in task.splits:
            yield Finding("empty_split", f"no samples in {split}", serious=True)
    if Split.UNLABELLED not in task.splits:
        yield Finding("no_unlabelled", "no unlabelled images: G-distillation needs some, nothing else does")


def _one_sided_labels(task: Task) -> Iterator[Finding]:
    for split in (Split.VAL, *TESTED):
        if split in task.splits:
            counts = task.class_counts(split)
            empty = [name for name, count in zip(task.class_names, counts, strict=True) if not count]
            if empty:
                sentence = f"{count_of(len(empty), 'label')} never seen in {split}"
                yield Finding("one_sided_label", sentence, tuple(empty))


def _repeated(task: Task, prints: Prints) -> Iterator[Finding]:
    """The same bytes twice in one split: no leak, but one picture counts double."""
    for split in task.splits:
        named = []
        for places in _by_content({split: prints[split]}).values():
            if len(places) > 1:
                named.append(" = ".join(str(task.splits[split].ids[row]) for _, row in places))
        if named:
            sentence = f"{count_of(len(named), 'picture')} more than once in {split}"
            yield Finding("repeated", sentence, tuple(named))


def _alike(task: Task, prints: Prints) -> Iterator[Finding]:
    """Different bytes, but the same to a perceptual hash, in two splits: for a person to look at."""
    rows = [
        (s, row) for s, found in prints.items() for row, each in enumerate(found) if each.look is not None
    ]
    looks = np.asarray([prints[split][row].look for split, row in rows], dtype=np.uint64)
    sides = np.asarray([list(Split).index(split) for split, _ in rows], dtype=np.int64)
    pairs: Pairs = defaultdict(list)
    for left, right in near_pairs(looks, sides):
        (one, row), (other, twin) = rows[left], rows[right]
        ours, theirs = prints[one][row], prints[other][twin]
        if ours.content != theirs.content and alike(ours, theirs):
            pairs[one, other].append(f"{_name(task, one, row)} ~ {_name(task, other, twin)}")
    for (one, other), named in _in_order(pairs):
        sentence = f"{count_of(len(named), 'pair')} of pictures that look alike in {one} and {other}"
        yield Finding("look_alike", sentence, tuple(named))


def _by_content(prints: Prints) -> dict[str, list[tuple[Split, int]]]:
    places: dict[str, list[tuple[Split, int]]] = defaultdict(list)
    for split, found in prints.items():
        for row, each in enumerate(found):
            if each.content:
                places[each.content].append((split, row))
    return places


def _in_order(pairs: Pairs) -> list[tuple[tuple[Split, Split], list[str]]]:
    return sorted(pairs.items(), key=lambda item: [list(Split).index(split) for split in item[0]])


def _name(task: Task, split: Split, row: int) -> str:
    return f"{split} {task.splits[split].ids[row]}"
