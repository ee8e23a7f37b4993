"""How many samples there are: per split and label, and per split and value of every attribute."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from surefoot.kinds import LabelKind
from surefoot.tasks.base import Samples, Split, Task

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
