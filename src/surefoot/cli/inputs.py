"""Reading what a command was given."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.predictions import Predictions

ONE_HOT = (
    "note: {}: every row has exactly one label, and each class is scored by itself (sigmoid); "
    "if the classes exclude each other, give the labels as class indices (softmax)"
)


def refuse_missing(*paths: Path | None) -> None:
    """Predictions that are not there, before seconds go by with loading; patterns are looked at later."""
    for path in paths:
        if path is None or glob.has_magic(str(path)):
            continue
        try:
            path.stat()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error


def read(path: Path, group_by: str | None) -> "Predictions":
    """Predictions from a file, grouped by one of its columns if asked for."""
    from surefoot.cli.terminal import busy, notes
    from surefoot.prediction_files import read_predictions

    with busy(f"reading {path}"):
        predictions = read_predictions(path)
    if predictions.always_one_label():
        notes().print(ONE_HOT.format(path))
    try:
        return predictions if group_by is None else predictions.grouped_by(group_by)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_all(paths: Sequence[Path], group_by: str | None) -> "Predictions":
    """The rows of one or more files, all of them in memory."""
    from surefoot.predictions import concatenated

    parts = [read(path, group_by) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        for what in ("kind", "classes", "members", "class_names"):
            ours, first = getattr(part, what), getattr(parts[0], what)
            if ours != first:
                name = what.replace("_", " ")
                raise InputError(f"{path}: {name} are {ours}, in {paths[0]} {first}; must be equal")
    return parts[0] if len(parts) == 1 else concatenated(parts)
