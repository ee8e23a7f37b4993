"""Whole commands on prediction files: CPU seconds and peak memory, of one or two checkouts in turn.

    python benchmarks/commands.py [--other ../older-checkout] [--repeats 3] [--out FILE]

Each command is a process of its own with the default number of threads; user and system time and the peak of
its memory are reported by the kernel. CPU seconds are the least of the repeats, in which the checkouts take
turns: a busy machine changes them little. Files are drawn once: labels from softmax(z), saved is 2 z.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent.parent
SIZES = ((10_000, 10), (1_000_000, 10), (100_000, 100), (20_000, 1000))
TEMPERATURES = {"familiar": 2.0, "unfamiliar": 3.0}  # the logits are multiplied by it
MEBIBYTE = 2**20  # of float32 logits, to which the peaks compare

COMMANDS = {
    "evaluate": "evaluate {familiar}",
    "calibrate": "calibrate {familiar} -o {out}/calibration.json",
    "evaluate both with calibration and report": "evaluate {familiar} {unfamiliar} "
    "--calibration {calibration} --report {out}/report",
    "apply": "apply {calibration} {unfamiliar} -o {out}/applied.npz",
    "thresholds": "thresholds {familiar} --unfamiliar {unfamiliar} -o {out}/thresholds.json",
    "sets": "sets {familiar} --unfamiliar {unfamiliar} -o {out}/sets.json",
    "monitor": "monitor {familiar} {unfamiliar}",
}


def write_files(folder: Path, rows: int, classes: int) -> dict[str, Path]:
    """The path of each side."""
    paths = {}
    for seed, (side, temperature) in enumerate(TEMPERATURES.items()):
        rng = np.random.default_rng(seed)
        drawn = 2 * rng.standard_normal((rows, classes), dtype=np.float32)
        labels = (rng.standard_exponential(drawn.shape, dtype=np.float32) * np.exp(-drawn)).argmin(axis=1)
        paths[side] = folder / f"{side}-{rows}x{classes}.npz"
        np.savez(paths[side], logits=np.float32(temperature) * drawn, labels=labels)
    return paths


def run(checkout: Path, arguments: Sequence[str]) -> tuple[float, float]:
    """CPU seconds and peak MiB of a command of that checkout; an alarm (exit code 1) is no failure."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "surefoot", *arguments]
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read()}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measured(
    checkouts: Sequence[Path], arguments: Sequence[str], repeats: int
) -> Iterator[tuple[float, float]]:
    """Of each checkout, the least CPU seconds and the highest peak."""
    turns = [[run(checkout, arguments) for checkout in checkouts] for _ in range(repeats)]
    for of_checkout in zip(*turns, strict=True):
        seconds, peaks = zip(*of_checkout, strict=True)
        yield min(seconds), max(peaks)


def lines(
    folder: Path,
    checkouts: Sequence[Path],
    sizes: Sequence[tuple[int, int]],
    names: Sequence[str],
    repeats: int,
) -> Iterator[str]:
    """The table, line by line as it is measured; one file of the smallest size loads the modules before."""
    seconds, peaks = (
        ("CPU s", "peak MiB") if len(checkouts) == 1 else ("CPU s before, now", "peak MiB before, now")
    )
    yield f"| rows x classes | logits of a file, MiB | command | {seconds} | {peaks} |"
    yield "|--:|--:|:--|--:|--:|"
    for rows, classes in sizes:
        paths = write_files(folder, rows, classes)
        calibration = folder / "calibration-used.json"
        run(checkouts[0], ["calibrate", str(paths["familiar"]), "-o", str(calibration)])
        for name in names:
            fill = {**paths, "out": folder, "calibration": calibration}
            results = list(measured(checkouts, [a.format(**fill) for a in COMMANDS[name].split()], repeats))
            cpu = ", ".join(f"{seconds:.2f}" for seconds, _ in results)
            memory = ", ".join(f"{peak:.0f}" for _, peak in results)
            size = rows * classes * 4 / MEBIBYTE
            yield f"| {rows:,} x {classes} | {size:.1f} | {name} | {cpu} | {memory} |"
        for path in paths.values():
            path.unlink()


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Measure, print each line, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--other", type=Path, help="a second checkout, to compare with")
    parser.add_argument("--sizes", nargs="+", default=[f"{rows}x{classes}" for rows, classes in SIZES])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    checkouts = [HERE] if chosen.other is None else [chosen.other.resolve(), HERE]
    sizes = [tuple(int(part) for part in size.split("x")) for size in chosen.sizes]
    page = ["# Whole commands", "", __doc__.split("\n\n")[2].replace("\n", " ").strip(), ""]
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
