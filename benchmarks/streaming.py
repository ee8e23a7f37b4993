"""100 million rows of 10 classes: `surefoot evaluate` and `calibrate` over files larger than memory.

    python benchmarks/streaming.py                    (about 4.5 GB of disk, freed at the end)
    python benchmarks/streaming.py --rows 2000000

Each command is a separate process; peak memory and seconds are reported by the system. The results are
compared with those of the same command with all rows in memory, on the first few files.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

HERE = Path(__file__).parent
FILE_ROWS = 1_000_000
GROUP_ROWS = 250_000
SUBSET_FILES = 4
RIGHT = 2.5  # the logits are multiplied by this, so it is the true temperature
GIBIBYTE = 2**30
RANKED = ("ece", "aurc", "augrc", "risk_at_80", "risk_at_90", "coverage_at_1", "coverage_at_5")
DRAWN = ("ece_floor", "ece_floor_95")  # from their own random draws
UNBOUNDED = ("debiased_l2",)


def write_files(folder: Path, rows: int, classes: int) -> None:
    """Labels drawn from softmax(z); saved is 2.5 z as float32, a quarter of a million rows at a time."""
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        rng = np.random.default_rng(number)
        writer = None
        for _ in range(start, min(rows, start + FILE_ROWS), GROUP_ROWS):
            drawn = 2 * rng.standard_normal((GROUP_ROWS, classes), dtype=np.float32)
            race = rng.standard_exponential(drawn.shape, dtype=np.float32) * np.exp(-drawn)
            logits = pa.FixedSizeListArray.from_arrays((RIGHT * drawn).reshape(-1), classes)
            table = pa.table({"logits": logits, "label": race.argmin(axis=1)})
            if writer is None:
                name = folder / f"part-{number:04d}.parquet"
                writer = pyarrow.parquet.ParquetWriter(name, table.schema, use_dictionary=["label"])
            writer.write_table(table)
        writer.close()
        print(f"\rwritten {min(rows, start + FILE_ROWS):,} rows", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def run(*arguments: str) -> tuple[str, float, float, float]:
    """A command in a separate process: its output, seconds, CPU seconds and peak MiB."""
    command = [sys.executable, "-c", "from surefoot.cli import main; main()", *arguments]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        if status:
            raise SystemExit(f"{' '.join(arguments)} failed")
        out.seek(0)
        return out.read(), seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def differences(streamed: dict, whole: dict) -> list[str]:
    """The largest difference in each group of metrics, from the two JSON documents."""
    ours, theirs = streamed["familiar"]["metrics"], whole["familiar"]["metrics"]
    counts = [name for name in ours if "k" in ours[name] and "k" in theirs[name]]
    equal = all((ours[n]["k"], ours[n]["n"]) == (theirs[n]["k"], theirs[n]["n"]) for n in counts)
    means = [name for name in ours if name not in (*RANKED, *DRAWN, *UNBOUNDED)]
    lines = ["| metric | largest difference, streamed and in memory | stated |", "|:--|--:|:--|"]
    lines.append(f"| k of n of {', '.join(counts)} | {'equal' if equal else 'NOT EQUAL'} | equal |")
    for names, stated in ((means, "1e-12"), (RANKED, "1e-4"), (DRAWN, "drawn apart"), (UNBOUNDED, "none")):
        worst = max(abs(ours[name]["value"] - theirs[name]["value"]) for name in names)
        lines.append(f"| {', '.join(names)} | {worst:.1e} | {stated} |")
    bound = max(ours[name]["bound"] for name in RANKED)
    return [
        *lines,
        "",
        f"The largest bound proved by the streamed evaluation there: {bound:.1e}.",
    ]


def main() -> None:
    """Write the files, run the commands, print and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="for the files; default: a temporary one")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        write_files(folder, chosen.rows, chosen.classes)
        size = sum(file.stat().st_size for file in folder.iterdir()) / GIBIBYTE
        text = "\n".join([*head(chosen.rows, chosen.classes, size), *measured(folder, chosen.rows), ""])
    print(text)
    if chosen.rows == 100_000_000:
        (HERE / "results" / "streaming.md").write_text(text)


def head(rows: int, classes: int, size: float) -> list[str]:
    """Data, machine and versions."""
    return [
        f"# {rows:,} x {classes} float32 logits, in {-(-rows // FILE_ROWS)} parquet files ({size:.1f} GiB)",
        "",
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores; numpy {np.__version__}, "
        f"pyarrow {pa.__version__}.",
        f"`python benchmarks/streaming.py`. The logits were generated with T = {RIGHT}.",
        "",
    ]


def measured(folder: Path, rows: int) -> list[str]:
    """The tables."""
    everything = str(folder / "*.parquet")
    subset = folder / "subset"
    subset.mkdir()
    for file in sorted(folder.glob("*.parquet"))[:SUBSET_FILES]:
        (subset / file.name).symlink_to(file)
    fitted, again = str(folder / "streamed.json"), str(folder / "whole.json")
    small = str(subset)
    json_out = ("--format", "json", "--resamples", "0")
    some = min(rows, SUBSET_FILES * FILE_ROWS)
    steps = (
        ("evaluate", rows, ("evaluate", everything)),
        ("evaluate --workers 1", rows, ("evaluate", everything, "--workers", "1")),
        ("calibrate", rows, ("calibrate", everything, "-o", fitted)),
        ("evaluate --stream", some, ("evaluate", small, "--stream", *json_out)),
        ("evaluate --no-stream", some, ("evaluate", small, "--no-stream", *json_out)),
        ("calibrate --stream", some, ("calibrate", small, "--stream", "-o", fitted)),
        ("calibrate --no-stream", some, ("calibrate", small, "--no-stream", "-o", again)),
    )
    lines = ["| command | rows | seconds | million rows/s | CPU seconds | peak memory, MiB | load |"]
    lines.append("|:--|--:|--:|--:|--:|--:|--:|")
    outputs = {}
    for title, count, arguments in steps:
        load = os.getloadavg()[0]
        outputs[title], seconds, cores, peak = run(*arguments)
        speed = count / seconds / 1e6
        lines.append(
            f"| {title} | {count:,} | {seconds:.1f} | {speed:.2f} | {cores:.0f} | {peak:.0f} | {load:.1f} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    temperatures = [json.loads(Path(path).read_text())["temperature"] for path in (fitted, again)]
    off = abs(temperatures[0] / temperatures[1] - 1)
    lines += [
        "",
        "Seconds are for the whole process, from start to exit, with 1000 resamples (none with `--stream`",
        "and `--no-stream`) or the fit; CPU seconds are for all its threads. The load is that of the machine",
        "just before the start.",
    ]
    lines += ["", f"**Streamed compared with in memory**, on {some:,} rows:", ""]
    lines += differences(*(json.loads(outputs[f"evaluate --{how}"]) for how in ("stream", "no-stream")))
    return [*lines, "", f"T: {temperatures[0]:.9f} and {temperatures[1]:.9f}, {off:.1e} apart; stated: 1e-6."]


if __name__ == "__main__":
    main()
