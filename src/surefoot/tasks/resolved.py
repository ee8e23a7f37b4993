"""The resolved split on disk: a manifest of every sample, and beside it the TOML that reads it again."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from surefoot.errors import InputError
from surefoot.files import replacing
from surefoot.kinds import LabelKind
from surefoot.tasks.base import Samples, Split, Task
from surefoot.tasks.images import ImageFiles

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
