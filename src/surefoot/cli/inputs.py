"""Reading what a command was given."""

from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.predictions import Predictions


def read(path: Path, group_by: str | None) -> "Predictions":
    """Predictions from a file, grouped by one of its columns if asked for."""
    from surefoot.cli.terminal import busy, notes
    from surefoot.prediction_files import read_predictions

    with busy(f"reading {path}"):
        predictions = read_predictions(path)
    if predictions.always_one_label():
        notes().print(
            f"note: {path}: every row has exactly one label, and each class is scored by itself (sigmoid); "
            "if the classes exclude each other, give the labels as class indices (softmax)"
        )
    try:
        return predictions if group_by is None else predictions.grouped_by(group_by)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
