"""What is wrong with a task, said plainly: the checks behind `surefoot data check`."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from surefoot.plurals import count_of
from surefoot.tasks.base import Split, Task
from surefoot.tasks.fingerprints import Fingerprint, alike, fingerprints, near_pairs

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
