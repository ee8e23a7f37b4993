"""Whole commands on prediction files: wall and CPU seconds and peak memory, of one or two checkouts in turn.

    python benchmarks/commands.py [--other ../older-checkout] [--repeats 3] [--out FILE]
    python benchmarks/commands.py --sizes 100000000x10 --commands evaluate calibrate    (4 GB of disk)

Each command is a process of its own with the default number of threads. User and system time and the peak of
its memory are reported by the kernel. The least seconds of the repeats count, in which the checkouts take
turns: a busy machine changes CPU seconds little, wall time more. Files are drawn once: labels from
softmax(z), saved is 2 z (3 z if unfamiliar). Above 1,000,000 rows they are a folder of parquet files, which
are streamed.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

HERE = Path(__file__).resolve().parent.parent
SIZES = ((10_000, 10), (1_000_000, 10), (100_000, 100), (20_000, 1000))
MOST_ROWS = 1_000_000  # of a file
TEMPERATURES = {"familiar": 2.0, "unfamiliar": 3.0}  # the logits are multiplied by it
MEBIBYTE = 2**20  # of float32 logits, to which the peaks compare

COMMANDS = {
    "evaluate": "evaluate {familiar}",
    "evaluate both with calibration and report": "evaluate {familiar} {unfamiliar} "
    "--calibration {calibration} --report {out}/report",
    "calibrate": "calibrate {familiar} -o {out}/calibration.json",
    "apply": "apply {calibration} {unfamiliar} -o {out}/applied.npz",
    "thresholds": "thresholds {familiar} --unfamiliar {unfamiliar} -o {out}/thresholds.json",
    "sets": "sets {familiar} --unfamiliar {unfamiliar} -o {out}/sets.json",
    "monitor": "monitor {familiar} {unfamiliar}",
}


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    wall: float  # seconds
    cpu: float
    peak: float  # MiB

    @staticmethod
    def best(of_repeats: Sequence["Cost"]) -> "Cost":
        """The least seconds, the highest peak."""
        walls, cpus, peaks = zip(*((cost.wall, cost.cpu, cost.peak) for cost in of_repeats), strict=True)
        return Cost(min(walls), min(cpus), max(peaks))


def write_files(folder: Path, rows: int, classes: int) -> dict[str, Path]:
    """The file of each side, or the folder of its files."""
    paths = {}
    for seed, (side, temperature) in enumerate(TEMPERATURES.items()):
        rng = np.random.default_rng(seed)
        if rows <= MOST_ROWS:
            paths[side] = folder / f"{side}-{rows}x{classes}.npz"
            logits, labels = drawn(rng, rows, classes)
            np.savez(paths[side], logits=np.float32(temperature) * logits, labels=labels)
            continue
        paths[side] = folder / f"{side}-{rows}x{classes}"
        paths[side].mkdir()
        for start in range(0, rows, MOST_ROWS):
            logits, labels = drawn(rng, min(MOST_ROWS, rows - start), classes)
            column = pa.FixedSizeListArray.from_arrays((np.float32(temperature) * logits).ravel(), classes)
            table = pa.table({"logits": column, "label": labels})
            pyarrow.parquet.write_table(table, paths[side] / f"part-{start // MOST_ROWS:04d}.parquet")
    return paths


def drawn(rng: np.random.Generator, rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from their softmax."""
    logits = 2 * rng.standard_normal((rows, classes), dtype=np.float32)
    race = rng.standard_exponential(logits.shape, dtype=np.float32) * np.exp(-logits)
    return logits, race.argmin(axis=1)


def run(checkout: Path, arguments: Sequence[str]) -> Cost:
    """A command of that checkout; an alarm (exit code 1) is no failure.

    The kernel counts the memory of this process, of which the command's is a fork at first: it must be small.
    """
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-m", "surefoot", *arguments]
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            output.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{output.read()}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def measured(checkouts: Sequence[Path], arguments: Sequence[str], repeats: int) -> list[Cost]:
    """Of each checkout."""
    turns = [[run(checkout, arguments) for checkout in checkouts] for _ in range(repeats)]
    return [Cost.best(of_checkout) for of_checkout in zip(*turns, strict=True)]


def cell(values: Sequence[float], digits: int) -> str:
    """What this checkout takes; with another one, also the ratio to that."""
    *before, now = values
    return f"{now:.{digits}f}" + "".join(f" = {now / other:.2f} x {other:.{digits}f}" for other in before)


def lines(
    folder: Path,
    checkouts: Sequence[Path],
    sizes: Sequence[tuple[int, int]],
    names: Sequence[str],
    repeats: int,
) -> Iterator[str]:
    """The table, line by line as it is measured; the calibration that it needs loads the modules before."""
    yield "| rows x classes | logits of a file, MiB | command | wall s | CPU s | peak MiB |"
    yield "|--:|--:|:--|--:|--:|--:|"
    for rows, classes in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            calibration = Path(inside) / "calibration-used.json"
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:  # see `run`
                paths = apart.submit(write_files, Path(inside), rows, classes).result()
            fill = {**paths, "out": inside, "calibration": calibration}
            for checkout in checkouts:
                run(checkout, ["calibrate", str(fill["familiar"]), "-o", str(calibration)])
            for name in names:
                costs = measured(checkouts, [a.format(**fill) for a in COMMANDS[name].split()], repeats)
                wall = cell([cost.wall for cost in costs], 2)
                cpu, peak = cell([cost.cpu for cost in costs], 2), cell([cost.peak for cost in costs], 0)
                size = rows * classes * 4 / MEBIBYTE
                yield f"| {rows:,} x {classes} | {size:.1f} | {name} | {wall} | {cpu} | {peak} |"


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Measure, print each line, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--other", type=Path, help="another checkout, to compare with")
    parser.add_argument("--sizes", nargs="+", default=[f"{rows}x{classes}" for rows, classes in SIZES])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    checkouts = [HERE] if chosen.other is None else [chosen.other.resolve(), HERE]
    sizes = [tuple(int(part) for part in size.split("x")) for size in chosen.sizes]
    page = ["# Whole commands", "", __doc__.split("\n\n")[2].replace("\n", " ").strip(), ""]
    if chosen.other is not None:
        page += [f"*a = r x b*: commit {commit_of(HERE)} takes a, commit {commit_of(checkouts[0])} b.", ""]
    commits = " and ".join(commit_of(checkout) for checkout in checkouts)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    page += [f"{date.today()}, {commits}, Python {platform.python_version()}, numpy {np.__version__}, "]
    page[-1] += f"{os.cpu_count()} cores, load {load}."
    page += [""]
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(Path(folder), checkouts, sizes, chosen.commands, chosen.repeats):
            print(line, flush=True)
            page.append(line)
    if chosen.out is not None:
        chosen.out.write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
