"""What a bundle has of familiar data, for `serve` to compare with: predictions of test rows, no samples."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.decisions.groups import group_numbers
from surefoot.deploy.bundle import Bundle
from surefoot.deploy.self_check import sample_of
from surefoot.errors import InputError
from surefoot.lab.tasks import Task
from surefoot.lab.tasks.task import Split
from surefoot.predictions.files import write_predictions
from surefoot.predictions.logits import Floats
from surefoot.predictions.predictions import Predictions

SEED = 23
MOST_ROWS, FEWEST_ROWS = 2000, 500  # of a reference, if the test set has them
NUMBERS = 2**20  # logits; with more classes there are fewer rows
AT_ONCE = 64  # rows in a pass


def write_reference(predictions: Predictions, path: Path) -> int:
    """Write calibrated predictions of familiar test rows; how many.

    Average logits, novelty, labels and groups, of a random part where there are many rows. No ids, and the
    groups are only numbered: their names may be those of persons.
    """
    rows = reference_rows(predictions)
    chosen = predictions.average().take(rows)
    group_of = group_numbers(chosen.groups)
    groups = None if group_of is None else np.char.add("group ", group_of.astype(str))
    write_predictions(replace(chosen, groups=groups, ids=None, attributes=None), path)
    return len(rows)


def reference_rows(predictions: Predictions) -> NDArray[np.int64]:
    """The rows that are in the reference."""
    most = max(FEWEST_ROWS, NUMBERS // predictions.classes)
    drawn = np.random.default_rng(SEED).permutation(predictions.n)
    return np.sort(drawn[: min(MOST_ROWS, most)])


def add_to_reference(bundle: Bundle, task: Task, stored: Predictions, path: Path) -> None:
    """Write the reference again, with the features of its rows, from the task's data."""
    if bundle.reference is None:
        raise InputError(f"no reference to add features to: {bundle.about['reference']['reason']}")
    features = row_features(bundle, task, Split.TEST_FAMILIAR, stored, reference_rows(stored))
    write_predictions(replace(bundle.reference, features=features), path)


def row_features(
    bundle: Bundle,
    task: Task,
    split: Split,
    stored: Predictions,
    rows: NDArray[np.int64],
    tick: Callable[[int], None] = lambda _: None,
) -> Floats:
    """Projected features (rows, at most 64) of a test set's rows, from the task's data."""
    parts = []
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        samples = [sample_of(task, split, stored, int(row), bundle.preprocessing) for row in some]
        features = bundle.predict(torch.stack(samples), features=True).features
        assert features is not None
        parts.append(features)
        tick(len(some))
    return np.concatenate(parts)
