"""The labels of a manifest: one per row, or any number separated by semicolons."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.kinds import IGNORE, LabelKind
from surefoot.tasks.base import Split
from surefoot.tasks.description import Description, Resolved


@dataclass(frozen=True)
class Labels:
    """Class names, a label or labels per row, and what each row is stratified by: its (rarest) label."""

    kind: LabelKind
    names: tuple[str, ...]
    values: NDArray[np.int64]
    strata: list[str]


def read_labels(description: Description, table: pa.Table) -> Labels:
    """The labels that the description points to. Only unlabelled rows of a resolved split have none."""
    resolved = description.splits.column if isinstance(description.splits, Resolved) else None
    free = np.zeros(table.num_rows, dtype=np.bool_)
    if resolved is not None:
        free = np.asarray(table[resolved].to_pylist()) == Split.UNLABELLED
    if description.label is not None:
        return _one_label(description.label, description.classes, table, free)
    return _many_labels(description, table, free)


def text_of(table: pa.Table, column: str) -> list[str]:
    """A column as text, without gaps."""
    values = table[column].to_pylist()
    for row, value in enumerate(values):
        _refuse_gap(value, column, row)
    return [str(value) for value in values]


def _many_labels(description: Description, table: pa.Table, free: NDArray[np.bool_]) -> Labels:
    assert description.labels is not None
    present = _lists(table, description.labels)
    ignored = [[] for _ in present] if description.ignored is None else _lists(table, description.ignored)
    found = sorted({name for row in (*present, *ignored) for name in row})
    names = description.classes or tuple(found)
    place = {name: index for index, name in enumerate(names)}
    _refuse_strangers([[*a, *b] for a, b in zip(present, ignored, strict=True)], names)
    labels = np.zeros((len(present), len(names)), dtype=np.int64)
    for row in range(len(present)):
        labels[row, [place[name] for name in ignored[row]]] = IGNORE
        labels[row, [place[name] for name in present[row]]] = 1  # seen beside an ignored one: it is there
    labels[free] = IGNORE
    often = Counter(name for row in present for name in row)
    strata = [min(row, key=lambda name: (often[name], name), default="") for row in present]
    return Labels(LabelKind.MANY_LABELS, names, labels, strata)


def _one_label(
    column: str, classes: tuple[str, ...] | None, table: pa.Table, free: NDArray[np.bool_]
) -> Labels:
    values = table[column].to_pylist()
    for row in np.flatnonzero(~free).tolist():
        _refuse_gap(values[row], column, row)
    texts = ["" if free[row] else str(value) for row, value in enumerate(values)]
    names = classes or tuple(sorted({text for text, none in zip(texts, free, strict=True) if not none}))
    _refuse_strangers([[] if free[row] else [text] for row, text in enumerate(texts)], names)
    place = {name: index for index, name in enumerate(names)}
    labels = [IGNORE if free[row] else place[text] for row, text in enumerate(texts)]
    return Labels(LabelKind.ONE_LABEL, names, np.asarray(labels, dtype=np.int64), texts)


def _lists(table: pa.Table, column: str) -> list[list[str]]:
    return [
        [name.strip() for name in str(text or "").split(";") if name.strip()]
        for text in table[column].to_pylist()
    ]


def _refuse_gap(value: Any, column: str, row: int) -> None:
    if value is None or value == "":
        raise InputError(f"column {column!r} is empty in row {row}; allowed: a value in every row")


def _refuse_strangers(labels: list[list[str]], names: tuple[str, ...]) -> None:
    known = set(names)
    for row, found in enumerate(labels):
        for name in found:
            if name not in known:
                raise InputError(f"label {name!r} in row {row} is no class; allowed: {', '.join(names)}")
