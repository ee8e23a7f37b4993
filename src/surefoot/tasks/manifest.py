"""The user's own data: a TOML file and a table with a path per row become a task."""

import random
from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from surefoot.checks import IGNORE
from surefoot.errors import InputError
from surefoot.predictions import LabelKind
from surefoot.tasks.base import Samples, Split, Task, unlabelled_labels
from surefoot.tasks.conditions import holding
from surefoot.tasks.description import Description, Resolved, Unlabelled, read_description
from surefoot.tasks.draws import shuffled
from surefoot.tasks.images import ImageFiles, images_below
from surefoot.tasks.rules import assign


def load_task(file: str | Path) -> Task:
    """The task that a TOML file describes. Its paths are relative to where it lies."""
    description = read_description(Path(file))
    table = read_manifest(description.manifest, description.text_columns())
    try:
        return _build(description, table)
    except InputError as error:
        raise InputError(f"{description.manifest}: {error}") from error


def read_manifest(file: Path, text_columns: list[str]) -> pa.Table:
    """A csv or parquet table; an empty cell is a missing value, and names stay text as written."""
    try:
        if file.suffix.lower() == ".csv":
            convert = pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(text_columns, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            )
            parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
            table = pyarrow.csv.read_csv(file, convert_options=convert, parse_options=parse)
        elif file.suffix.lower() == ".parquet":
            table = pyarrow.parquet.read_table(file, partitioning=None)
        else:
            raise InputError(f"{file}: unknown file type {file.suffix!r}; have: .csv, .parquet")
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0]
        raise InputError(f"{file}: {reason}") from error
    if not table.num_rows:
        raise InputError(f"{file}: no rows; needed: a path per row")
    for name, count in Counter(table.column_names).items():
        if count > 1:
            raise InputError(f"{file}: column {name!r} occurs {count} times; allowed: different names")
    return table


def _build(description: Description, table: pa.Table) -> Task:
    for name in description.text_columns():
        if name not in table.column_names:
            raise InputError(f"no column {name!r}; have: {', '.join(table.column_names)}")
    paths = [PurePosixPath(path).as_posix() for path in text_of(table, description.path)]
    _refuse_repeated(paths)
    ids = paths if description.id is None else text_of(table, description.id)
    kind = LabelKind.ONE_LABEL if description.label else LabelKind.MANY_LABELS
    resolved = description.splits.column if isinstance(description.splits, Resolved) else None
    optional = None if resolved is None else np.asarray(table[resolved].to_pylist()) == Split.UNLABELLED
    names, labels, strata = _labels(description, table, optional)
    splits, remarks = assign(
        description.splits, table, holding(description.familiar, table), ids=ids, strata=strata
    )
    everything = Samples(
        ids=np.asarray(ids, dtype=np.str_),
        labels=labels,
        inputs=ImageFiles(description.images, tuple(paths)),
        groups=_groups(description, table),
        attributes=_attributes(description, table),
    )
    task = Task(
        name=description.name,
        kind=kind,
        class_names=names,
        splits=_sorted_splits(everything, splits) | _unlabelled(description.unlabelled, kind, len(names)),
        remarks=remarks,
    )
    if description.identity not in (None, task.identity):
        raise InputError(f"the split is {task.identity}, but task.identity is {description.identity}")
    return task


def text_of(table: pa.Table, column: str) -> list[str]:
    """A column as text, without gaps."""
    values = table[column].to_pylist()
    for row, value in enumerate(values):
        if value is None or value == "":
            raise InputError(f"column {column!r} is empty in row {row}; allowed: a value in every row")
    return [str(value) for value in values]


def _sorted_splits(everything: Samples, splits: list[Split | None]) -> dict[Split, Samples]:
    """The rows of each split by id, so that the order of the manifest decides nothing."""
    order = np.argsort(everything.ids, kind="stable")
    where = np.asarray([split or "" for split in splits], dtype=np.str_)[order]
    return {split: everything.take(order[where == split]) for split in Split if (where == split).any()}


def _labels(
    description: Description, table: pa.Table, optional: NDArray[np.bool_] | None
) -> tuple[tuple[str, ...], NDArray[np.int64], list[str]]:
    """Class names, labels, and what each row is stratified by. Rows that are `optional` may have none."""
    if description.label is not None:
        return _one_label(description, table, description.label, optional)
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
    if optional is not None:
        labels[optional] = IGNORE
    often = Counter(name for row in present for name in row)
    return names, labels, [min(row, key=lambda name: (often[name], name), default="") for row in present]


def _one_label(
    description: Description, table: pa.Table, column: str, optional: NDArray[np.bool_] | None
) -> tuple[tuple[str, ...], NDArray[np.int64], list[str]]:
    if optional is None:
        texts = text_of(table, column)
    else:
        needed = iter(text_of(table.filter(pa.array(~optional)), column))
        texts = ["" if free else next(needed) for free in optional]
    known = [[] if optional is not None and optional[row] else [text] for row, text in enumerate(texts)]
    names = description.classes or tuple(sorted({text for row in known for text in row}))
    _refuse_strangers(known, names)
    place = {name: index for index, name in enumerate(names)}
    labels = [place[row[0]] if row else IGNORE for row in known]
    return names, np.asarray(labels, dtype=np.int64), texts


def _lists(table: pa.Table, column: str) -> list[list[str]]:
    return [
        [name.strip() for name in str(text or "").split(";") if name.strip()]
        for text in table[column].to_pylist()
    ]


def _groups(description: Description, table: pa.Table) -> NDArray[np.str_] | None:
    if description.groups is None:
        return None
    return np.asarray([str(v) if v is not None else "" for v in table[description.groups].to_pylist()])


def _attributes(description: Description, table: pa.Table) -> pa.Table | None:
    used = (description.path, description.label, description.labels, description.ignored, description.id)
    rest = [name for name in table.column_names if name not in used]
    return table.select(rest) if rest else None


def _unlabelled(wanted: Unlabelled | None, kind: LabelKind, classes: int) -> dict[Split, Samples]:
    if wanted is None:
        return {}
    return {Split.UNLABELLED: unlabelled_samples(images_below(wanted.images), kind, classes, wanted)}


def unlabelled_samples(images: ImageFiles, kind: LabelKind, classes: int, wanted: Unlabelled) -> Samples:
    """Images without labels; where there is a limit, so many of them drawn by lot."""
    if wanted.limit is not None and wanted.limit < len(images):
        drawn = shuffled(range(len(images)), random.Random(f"surefoot unlabelled {wanted.seed}"))
        images = images.take(sorted(drawn[: wanted.limit]))
    ids = np.asarray([f"unlabelled/{path}" for path in images.paths], dtype=np.str_)
    return Samples(ids=ids, labels=unlabelled_labels(len(images), kind, classes), inputs=images)


def _refuse_repeated(paths: list[str]) -> None:
    seen: dict[str, int] = {}
    for row, path in enumerate(paths):
        if seen.setdefault(path, row) != row:
            raise InputError(f"path {path!r} is in rows {seen[path]} and {row}; allowed: one row per image")


def _refuse_strangers(labels: list[list[str]], names: tuple[str, ...]) -> None:
    known = set(names)
    for row, found in enumerate(labels):
        for name in found:
            if name not in known:
                raise InputError(f"label {name!r} in row {row} is no class; allowed: {', '.join(names)}")
