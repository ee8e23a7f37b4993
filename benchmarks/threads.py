"""Fits, metrics, bootstrap and streaming with one thread and with the default number, alternating in one run.

    python benchmarks/threads.py [--write]          (on an idle machine: seconds are by the clock)

Goals: the default is never slower, and with two cores at least 1.6 times as fast from 1,000,000 x 10 on;
beside a process that keeps one core busy, it takes at most 1.2 times as long.
"""

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import torch
from operations import pool
from turns import HERE, busy_process, machine, table

from surefoot import Predictions, evaluate, fit_calibration, metrics, scan_predictions
from surefoot.calibrators.temperature import fit_temperature

RESULT = HERE / "results" / "threads.md"
SHAPES = ((1_000, 10), (10_000, 10), (100_000, 10), (1_000_000, 10), (100_000, 1000))
LARGE = 10_000_000  # logits from which two cores should be this much faster:
GOAL = 1.6
NOISE = 0.95  # a ratio that counts as not slower
BUSY_GOAL = 1 / 1.2
PAPER = ("nll", "brier", "label_error", "ece", "e99", "entropy")
RESAMPLES = 100
GROUP_ROWS = 50_000
SECONDS, TURNS = 3.0, 5  # runs alternate for so long, and at least so often

ARROW = "streaming: Arrow alone reads the file"  # a limit, not a goal

Work = Callable[[int | None], object]  # of the number of threads; None is the default


def works(rows: int, classes: int, folder: Path) -> dict[str, Work]:
    """The operations on logits of this shape; predictions are made anew, so that nothing is known of them."""
    logits, labels, _ = pool(rows, classes, 1)
    lists = pa.FixedSizeListArray.from_arrays(logits.reshape(-1), classes)
    pyarrow.parquet.write_table(
        pa.table({"logits": lists, "label": labels}), folder / "logits.parquet", row_group_size=GROUP_ROWS
    )

    def new() -> Predictions:
        return Predictions.from_logits(logits, labels)

    def paper(_: int | None) -> None:
        predictions = new()
        for name in PAPER:
            getattr(metrics, name)(predictions)

    def scanned(threads: int | None) -> object:
        return scan_predictions(folder / "logits.parquet", workers=threads)

    def read_groups(groups: Sequence[int]) -> None:
        with pyarrow.parquet.ParquetFile(folder / "logits.parquet", pre_buffer=False) as file:
            deque(file.iter_batches(row_groups=groups, use_threads=False), maxlen=0)

    def read(threads: int | None) -> None:
        threads = threads or torch.get_num_threads()
        groups = range(-(-rows // GROUP_ROWS))
        with ThreadPoolExecutor(threads) as pool:
            list(
                pool.map(read_groups, [groups[first::threads] for first in range(min(threads, len(groups)))])
            )

    return {
        "fit_temperature": lambda _: fit_temperature(new()),
        "the paper's metrics": paper,
        f"bootstrap, {RESAMPLES} resamples": lambda _: evaluate(new(), metrics=PAPER, resamples=RESAMPLES),
        "streaming: metrics": lambda threads: evaluate(scanned(threads), metrics=PAPER, resamples=0),
        "streaming: fit": lambda threads: fit_calibration("temperature", scanned(threads)),
        ARROW: read,
    }


def alternating(work: Work) -> tuple[float, float]:
    """The least seconds with one thread and with the default; the first run of each does not count."""
    default = torch.get_num_threads()
    found: dict[int | None, list[float]] = {1: [], None: []}
    start = time.perf_counter()
    while time.perf_counter() - start < SECONDS or len(found[None]) <= TURNS:
        for threads, seconds in found.items():
            torch.set_num_threads(threads or default)
            before = time.perf_counter()
            work(threads)
            seconds.append(time.perf_counter() - before)
    torch.set_num_threads(default)
    return min(found[1][1:]), min(found[None][1:])


def main() -> None:
    """Measure, print; with --write, save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT}")
    chosen = parser.parse_args()
    rows = []
    for n, classes in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            for name, work in works(n, classes, Path(folder)).items():
                one, default = alternating(work)
                with busy_process():
                    busy_one, busy_default = alternating(work)
                ratio, busy = one / default, busy_one / busy_default
                goal = GOAL if n * classes >= LARGE else NOISE
                met = ["yes" if ratio >= goal else "NO", "yes" if busy >= BUSY_GOAL else "NO"]
                cells = [f"{1000 * one:.1f}", f"{1000 * default:.1f}", f"{ratio:.2f}", f"{goal}", met[0]]
                if name == ARROW:
                    cells[3:], met = ["", "limit"], ["", ""]
                rows.append([name, f"{n:,} x {classes}", *cells, f"{busy:.2f}", met[1]])
                print(*rows[-1], sep=" | ", flush=True)
    header = ["operation", "logits", "one thread, ms", "default, ms", "times as fast", "goal", "met"]
    header += ["busy: times as fast", "busy: met"]
    default = torch.get_num_threads()
    about = (
        f"`python benchmarks/threads.py`, the best of alternating runs. The default is {default} threads. "
        f"Busy: beside a process that keeps one core busy; goal {BUSY_GOAL:.2f}."
    )
    text = "\n".join(
        ["# One thread and the default number", "", about, *machine(), "", *table(header, rows, left=2), ""]
    )
    print(text)
    if chosen.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
