"""A user's task: a TOML file and a table with one path per row; and the resolved split written back."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.io import replacing
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.tasks.description import Description, Resolved, holding, read_description, unlabelled_samples
from surefoot.tasks.split import Places, assign, contents_of, once, without
from surefoot.tasks.task import ImageFiles, Samples, Split, Task


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


COLUMNS = ("split", "id", "path", "label", "ignored", "group")


def write_resolved(task: Task, path: str | Path) -> Path:
    """Write the split as a csv, and beside it a TOML with its hash; returns the TOML.

    The TOML is a task: reading it gives the same samples, and an error if their hash is another. Samples
    made in memory have no path, so the csv of a built-in task is for reading only.
    """
    target = Path(path)
    if target.suffix.lower() != ".csv":
        raise InputError(f"{path}: unknown file type {target.suffix!r}; have: .csv")
    root = _common_root(task)
    tables = [_table(task, split, samples, root) for split, samples in task.splits.items()]
    table = pa.concat_tables(tables, promote_options="permissive")
    description = target.with_suffix(".toml")
    with replacing(target) as temporary:
        pyarrow.csv.write_csv(table, temporary)
    with replacing(description) as temporary:
        temporary.write_text(_description(task, target, root), encoding="utf-8")
    return description


def _table(task: Task, split: Split, samples: Samples, root: Path | None) -> pa.Table:
    texts = [task.label_text(split, row) for row in range(len(samples))]
    groups = np.full(len(samples), "") if samples.groups is None else samples.groups
    values = {
        "split": [split.value] * len(samples),
        "id": samples.ids.tolist(),
        "path": _paths(samples, root),
        "label": [label for label, _ in texts],
        "ignored": [ignored for _, ignored in texts],
        "group": groups.tolist(),
    }
    table = pa.table({name: pa.array(values[name], pa.string()) for name in COLUMNS})
    for field in [] if samples.attributes is None else samples.attributes.schema:
        assert samples.attributes is not None
        if field.name not in COLUMNS:
            table = table.append_column(field, samples.attributes[field.name])
    return table


def _paths(samples: Samples, root: Path | None) -> list[str]:
    if root is None or not isinstance(samples.inputs, ImageFiles):
        return [""] * len(samples)
    start = samples.inputs.root.relative_to(root)
    return [(start / path).as_posix() for path in samples.inputs.paths]


def _common_root(task: Task) -> Path | None:
    roots = [s.inputs.root for s in task.splits.values() if isinstance(s.inputs, ImageFiles)]
    return Path(os.path.commonpath(roots)) if roots else None


def _description(task: Task, manifest: Path, root: Path | None) -> str:
    label = "label" if task.kind is LabelKind.ONE_LABEL else "labels"
    lines = ["# The resolved split; reading it checks the hash.", "[task]", f"name = {_quoted(task.name)}"]
    lines.append(f"manifest = {_quoted(manifest.name)}")
    if root is not None:
        images = Path(os.path.relpath(root, manifest.parent.resolve())).as_posix()
        lines.append(f"images = {_quoted(images)}")
    lines.append(f'{label} = "label"')
    if task.kind is LabelKind.MANY_LABELS:
        lines.append('ignored = "ignored"')
    lines.append(f"classes = [{', '.join(_quoted(name) for name in task.class_names)}]")
    lines += ['id = "id"', 'groups = "group"', f"identity = {_quoted(task.identity)}"]
    return "\n".join([*lines, "[splits]", 'resolved = "split"', ""])


def _quoted(text: str) -> str:
    """A TOML string; JSON's escapes are among TOML's, but for the delete character."""
    return json.dumps(text).replace("\x7f", "\\u007f")
