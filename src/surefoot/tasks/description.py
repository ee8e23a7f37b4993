"""A user's task as a TOML file, read into values; every key is checked, none is guessed."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.errors import InputError
from surefoot.tasks.conditions import Condition, parse_conditions
from surefoot.tasks.unlabelled import Unlabelled

TEXT_KEYS = ("name", "manifest", "images", "label", "labels", "ignored", "path", "id", "groups", "identity")
TASK_KEYS = (*TEXT_KEYS, "classes")
SPLIT_KEYS = ("column", "resolved", "val", "test", "seed", "keep_together", "repeated_pictures")
UNLABELLED_KEYS = ("images", "limit", "seed")


@dataclass(frozen=True)
class ByShare:
    """Splits drawn by lot: these shares of the familiar rows."""

    val: float
    test: float
    seed: int
    keep_together: str | None


@dataclass(frozen=True)
class ByColumn:
    """Splits read from a column with train, val and test; or without val, which is then a share of train."""

    column: str
    val: float | None
    seed: int
    keep_together: str | None


@dataclass(frozen=True)
class Resolved:
    """Splits read from a file that `write_resolved` wrote: the column holds the very names of the splits."""

    column: str


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a task's TOML file says; paths are already relative to where it lies."""

    name: str
    manifest: Path
    images: Path
    label: str | None
    labels: str | None
    ignored: str | None
    path: str
    id: str | None
    groups: str | None
    classes: tuple[str, ...] | None
    identity: str | None
    familiar: tuple[Condition, ...]
    splits: ByShare | ByColumn | Resolved
    repeated_once: bool  # of files with the same content, one is used
    unlabelled: Unlabelled | None

    def columns(self) -> list[str]:
        """The columns that the manifest must have, but for those of the conditions."""
        named = [self.path, self.label, self.labels, self.ignored, self.id, self.groups]
        if isinstance(self.splits, Resolved):
            named.append(self.splits.column)
        else:
            named += [getattr(self.splits, "column", None), self.splits.keep_together]
        return [name for name in named if name is not None]

    def text_columns(self) -> list[str]:
        """Columns whose values are names and stay as written, unless a condition asks for numbers."""
        numeric = {each.column for each in self.familiar if not each.asks_for_text}
        return [name for name in self.columns() if name not in numeric]


def read_description(file: Path) -> Description:
    """Read a task's TOML file."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not TOML ({error})") from error
    try:
        return _describe(document, file.parent)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _describe(document: Mapping[str, Any], folder: Path) -> Description:
    _refuse_unknown("", document, ("task", "familiar", "splits", "unlabelled"))
    tables = {name: _table(document, name) for name in ("task", "familiar", "splits", "unlabelled")}
    task = tables["task"]
    _refuse_unknown("task.", task, TASK_KEYS)
    texts = {key: _text(task, key) for key in TEXT_KEYS}
    for needed in ("name", "manifest"):
        if texts[needed] is None:
            raise InputError(f'no task.{needed}; needed: {needed} = "..." in [task]')
    if (texts["label"] is None) == (texts["labels"] is None):
        raise InputError("task.label or task.labels, exactly one of the two, says where the labels are")
    if texts["ignored"] is not None and texts["labels"] is None:
        raise InputError("task.ignored goes with task.labels; with task.label every row has its one label")
    splits = _splits(tables["splits"])
    if isinstance(splits, Resolved) and tables["familiar"]:
        raise InputError("a [familiar] table beside splits.resolved; allowed: one of the two")
    if not isinstance(splits, Resolved) and not tables["familiar"]:
        raise InputError("no [familiar] table; needed: a condition, such as age = { at_least = 18 }")
    return Description(
        name=texts["name"] or "",
        manifest=folder / (texts["manifest"] or ""),
        images=folder / (texts["images"] or "."),
        label=texts["label"],
        labels=texts["labels"],
        ignored=texts["ignored"],
        path=texts["path"] or "path",
        id=texts["id"],
        groups=texts["groups"],
        classes=_classes(task),
        identity=texts["identity"],
        familiar=parse_conditions(tables["familiar"]),
        splits=splits,
        repeated_once=_repeated_once(tables["splits"]),
        unlabelled=_unlabelled(tables["unlabelled"], folder),
    )


def _splits(table: Mapping[str, Any]) -> ByShare | ByColumn | Resolved:
    _refuse_unknown("splits.", table, SPLIT_KEYS)
    column, resolved, together = (
        _text(table, key, "splits.") for key in ("column", "resolved", "keep_together")
    )
    if resolved is not None:
        _refuse_unknown("splits.", table, ("resolved",))
        return Resolved(resolved)
    seed, val, test = _whole(table, "seed", "splits.") or 0, _share(table, "val"), _share(table, "test")
    if column is not None:
        if test is not None:
            raise InputError("splits.test beside splits.column; the column says which rows are for testing")
        return ByColumn(column, val, seed, together)
    if val is None or test is None:
        raise InputError("splits need a column, or both val and test, such as val = 0.2 and test = 0.4")
    if val + test >= 1:
        raise InputError(
            f"splits.val + splits.test is {val + test:g}; allowed: below 1, the rest is for training"
        )
    return ByShare(val, test, seed, together)


def _repeated_once(table: Mapping[str, Any]) -> bool:
    value = table.get("repeated_pictures", "as_given")
    if value not in ("as_given", "once"):
        raise InputError(f"splits.repeated_pictures is {value!r}; allowed: as_given, once")
    return bool(value == "once")


def _unlabelled(table: Mapping[str, Any], folder: Path) -> Unlabelled | None:
    if not table:
        return None
    _refuse_unknown("unlabelled.", table, UNLABELLED_KEYS)
    images = _text(table, "images", "unlabelled.")
    if images is None:
        raise InputError("no unlabelled.images; needed: a folder")
    limit, seed = (_whole(table, key, "unlabelled.") for key in ("limit", "seed"))
    return Unlabelled(folder / images, limit, seed or 0)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {value!r}; allowed: a table [{name}]")
    return value


def _text(table: Mapping[str, Any], key: str, where: str = "task.") -> str | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or not value or "\0" in value):
        raise InputError(f"{where}{key} is {value!r}; allowed: text")
    return value


def _whole(table: Mapping[str, Any], key: str, where: str) -> int | None:
    value = table.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise InputError(f"{where}{key} is {value!r}; allowed: a whole number from 0")
    return value


def _share(table: Mapping[str, Any], key: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise InputError(f"splits.{key} is {value!r}; allowed: a share between 0 and 1")
    return float(value)


def _classes(task: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = task.get("classes")
    if value is None:
        return None
    names = value if isinstance(value, list) else []
    if len(names) < 2 or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InputError(f"task.classes is {value!r}; allowed: a list of two or more different names")
    return tuple(names)


def _refuse_unknown(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"unknown key {where}{key}; have: {', '.join(known)}")
