"""The user's own data: a TOML file and a table with a path per row become a task."""

from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.tasks.base import Samples, Split, Task
from surefoot.tasks.conditions import holding
from surefoot.tasks.description import Description, read_description
from surefoot.tasks.images import ImageFiles
from surefoot.tasks.labels import read_labels, text_of
from surefoot.tasks.repeated import contents_of, once, without
from surefoot.tasks.rules import Places, assign
from surefoot.tasks.unlabelled import unlabelled_samples


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
    for name in description.columns():
        if name not in table.column_names:
            raise InputError(f"no column {name!r}; have: {', '.join(table.column_names)}")
    if not description.images.is_dir():
        raise InputError(f"the image root {description.images} is no folder; see task.images")
    paths = [PurePosixPath(path).as_posix() for path in text_of(table, description.path)]
    _refuse_repeated(paths)
    ids = paths if description.id is None else text_of(table, description.id)
    labels = read_labels(description, table)
    everything = Samples(
        ids=np.asarray(ids, dtype=np.str_),
        labels=labels.values,
        inputs=ImageFiles(description.images, tuple(paths)),
        groups=_groups(description, table),
        attributes=_attributes(description, table),
    )
    familiar = holding(description.familiar, table)
    places, remarks = assign(description.splits, table, familiar, ids=ids, strata=labels.strata)
    unlabelled = None
    if description.unlabelled is not None:
        unlabelled = unlabelled_samples(description.unlabelled, labels.kind, len(labels.names))
    if description.repeated_once:
        places, unlabelled, said = _once(everything, places, unlabelled)
        remarks += said
    splits = _sorted_splits(everything, places)
    task = Task(
        name=description.name,
        kind=labels.kind,
        class_names=labels.names,
        splits=splits if unlabelled is None else splits | {Split.UNLABELLED: unlabelled},
        remarks=remarks,
    )
    if description.identity not in (None, task.identity):
        raise InputError(f"the split is {task.identity}, but task.identity is {description.identity}")
    return task


def _once(
    everything: Samples, places: Places, unlabelled: Samples | None
) -> tuple[Places, Samples | None, tuple[str, ...]]:
    """Every picture in one row at most, and none of them among the unlabelled."""
    assert isinstance(everything.inputs, ImageFiles)
    contents = contents_of(everything.inputs)
    kept = once(contents, places, everything.ids.tolist(), [each.tobytes() for each in everything.labels])
    others = None if unlabelled is None else without(unlabelled, set(contents))
    left_out = kept.count(None) - places.count(None) + len(unlabelled or ()) - len(others or ())
    said = f"{left_out:,} files whose picture occurs elsewhere too are left out"
    return kept, others, (said,) if left_out else ()


def _sorted_splits(everything: Samples, splits: list[Split | None]) -> dict[Split, Samples]:
    """The rows of each split by id, so that the order of the manifest decides nothing."""
    order = np.argsort(everything.ids, kind="stable")
    where = np.asarray([split or "" for split in splits], dtype=np.str_)[order]
    return {split: everything.take(order[where == split]) for split in Split if (where == split).any()}


def _groups(description: Description, table: pa.Table) -> NDArray[np.str_] | None:
    if description.groups is None:
        return None
    return np.asarray([str(v) if v is not None else "" for v in table[description.groups].to_pylist()])


def _attributes(description: Description, table: pa.Table) -> pa.Table | None:
    used = (description.path, description.label, description.labels, description.ignored, description.id)
    rest = [name for name in table.column_names if name not in used]
    return table.select(rest) if rest else None


def _refuse_repeated(paths: list[str]) -> None:
    seen: dict[str, int] = {}
    for row, path in enumerate(paths):
        if seen.setdefault(path, row) != row:
            raise InputError(f"path {path!r} is in rows {seen[path]} and {row}; allowed: one row per image")
