"""Whether a bundle's networks give the predictions that its metrics were computed from, and still do.

Two checks. When a bundle is written, and the task's data is on this machine: a few rows of the test sets
are predicted by the bundle's weights and preprocessing, and compared with the stored predictions. Whenever
a bundle is read (`load_bundle`): fixed numbers, which are no data of anybody, are predicted and compared with
what the networks gave when they were bundled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.deploy.bundle import Bundle, Preprocessing
from surefoot.errors import InputError
from surefoot.lab.comparison.comparison import MethodRun
from surefoot.lab.store.files import recovery
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import ImageFiles, Task
from surefoot.lab.tasks.task import Split
from surefoot.predictions.predictions import Predictions

STORED_ROWS = 4  # of each test set
LIMIT = 0.05  # of a probability; networks that predicted on a GPU did so with fewer bits


@dataclass(frozen=True, eq=False)
class TestRows:
    """Some rows of a test set, as the bundle's users would give them."""

    rows: NDArray[np.int64]
    samples: Tensor


def rows_of(task: Task, selected: MethodRun, preprocessing: Preprocessing | None) -> dict[Split, TestRows]:
    """A few rows of each test set, from the task's data; raises where they are not there any more."""
    chosen = {}
    for split, stored in selected.before.items():
        rows = np.unique(np.linspace(0, stored.n - 1, STORED_ROWS).astype(np.int64))
        samples = [sample_of(task, split, stored, int(row), preprocessing) for row in rows]
        chosen[split] = TestRows(rows, torch.stack(samples))
    return chosen


def differences(
    bundle: Bundle, chosen: Mapping[Split, TestRows], selected: MethodRun, store: Store
) -> dict[str, Any]:
    """Compare each network with its stored predictions; raises where one differs by more than `LIMIT`."""
    largest = 0.0
    for split, test in chosen.items():
        for index, network in enumerate(bundle.networks):
            with torch.inference_mode():
                logits = network(test.samples).float()
            gap = _largest_gap(selected.before[split], index, test.rows, logits)
            if not gap <= LIMIT:
                path = store.weights_file(selected.specs[index])
                raise InputError(
                    f"{path} does not give the stored predictions: a probability differs by {gap:.2g} in "
                    f"{len(test.rows)} rows of {split}; allowed: {LIMIT:g}; {recovery(path)}"
                )
            largest = max(largest, gap)
    return {"rows": sum(len(test.rows) for test in chosen.values()), "largest_difference": largest}


def _largest_gap(stored: Predictions, member: int, rows: NDArray[np.int64], logits: Tensor) -> float:
    expected = stored.with_logits(stored.logits[member : member + 1]).probs()[rows]
    given = Predictions.from_logits(logits[None], None, kind=stored.kind).probs()
    return float(np.abs(expected - given).max())


def sample_of(
    task: Task, split: Split, stored: Predictions, row: int, preprocessing: Preprocessing | None
) -> Tensor:
    """A row of a split, as the bundle's users would give it."""
    samples = task.splits[split]
    if len(samples) != stored.n or (stored.ids is not None and stored.ids[row] != samples.ids[row]):
        raise InputError(f"the samples of {split} are not those that were predicted")
    inputs = samples.inputs
    if preprocessing is None:
        return torch.from_numpy(np.asarray(inputs[row])).float()  # type: ignore[index]
    if not isinstance(inputs, ImageFiles):
        return preprocessing.of_pixels(inputs[row])
    sample = preprocessing.of_file(Path(inputs.file(row)))
    if isinstance(sample, str):
        raise InputError(f"{inputs.file(row)} cannot be read: {sample}")
    return sample


def remark_on_check(report: Mapping[str, Any]) -> str | None:
    """What to know where the metrics could not be compared with the weights; else None."""
    if report.get("rows"):
        return None
    return f"the metrics were not compared with the weights on test rows: {report.get('reason')}"
