"""One contestant in its own process: reads a folder name per input line and prints a line of JSON for each.

A contestant takes the data and returns its job, so that untimed work (imports, the probabilities a fit
takes instead of logits) is done before the timer starts. Metrics start from the logits: the time of a
contestant that needs probabilities includes one float32 softmax by torch. Called by the other files here.
"""

import gc
import json
import os
import resource
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import contestant_calibrators as calibrators
import contestant_fits as fits
import contestant_metrics as metrics
import numpy as np

warnings.simplefilter("ignore")

PACKAGES = ("scikit-learn", "netcal", "probmetrics", "torchmetrics", "torch-uncertainty", "torch", "numpy")


@dataclass(frozen=True)
class Data:
    """The input of every contestant: logits or probabilities, and labels."""

    values: np.ndarray
    labels: np.ndarray
    are_logits: bool = True

    @staticmethod
    def load(folder):
        are_logits = (folder / "logits.npy").exists()
        values = np.load(folder / ("logits.npy" if are_logits else "probs.npy"))
        return Data(values, np.load(folder / "labels.npy"), are_logits)

    @property
    def classes(self):
        return self.values.shape[1]

    def probs(self):
        """Probabilities as a tensor."""
        import torch

        values = torch.from_numpy(self.values)
        return values.softmax(dim=1) if self.are_logits else values

    def targets(self):
        """Labels as a tensor."""
        import torch

        return torch.from_numpy(self.labels)

    def ignored(self):
        """The `ignore_index` for torchmetrics; it costs time, so it is set only if needed."""
        return -100 if (self.labels < 0).any() else None


class Memory:
    """Peak memory above that of the process before the data was loaded."""

    def __enter__(self):
        self.start = self.peak = _resident()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self):
        while not self.stop.wait(0.002):
            self.peak = max(self.peak, _resident())

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    @property
    def megabytes(self):
        return (self.peak - self.start) / 1e6


def _resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def one_turn(contestant, folder):
    """Load, run the job once, and report its time and value, or its error."""
    try:
        with Memory() as memory:
            job = contestant(Data.load(folder))
            wall, cpu = time.perf_counter(), time.process_time()
            value = job()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    except Exception as error:  # noqa: BLE001 - any exception of a peer is its result
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": value, "cpu": cpu, "wall": wall, "megabytes": memory.megabytes}


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep prints of libraries out of the results
    if sys.argv[1] == "versions":
        answers.write(json.dumps({package: version(package) for package in PACKAGES}) + "\n")
        return
    (contestant,) = (getattr(m, sys.argv[1]) for m in (fits, metrics, calibrators) if hasattr(m, sys.argv[1]))
    random = np.random.default_rng(0)
    contestant(Data(random.random((1000, 4), dtype=np.float32), random.integers(0, 4, 1000)))()  # imports
    gc.collect()
    for line in sys.stdin:
        answers.write(json.dumps(one_turn(contestant, Path(line.strip()))) + "\n")


if __name__ == "__main__":
    main()
