"""How long whole commands take, from the start of the process to its end, as a user runs them.

    python benchmarks/latency.py [--store RUNS] [--times 3] [--write]

Each command runs several times, alternating with `python -c 'import torch'`, which we cannot make faster. On
a busy machine wall time says little, and processor time depends on the load, too: so the processor time of a
command, with that of the processes it starts, is divided by that of torch's import just before it, and the
median of these ratios counts. A goal is in seconds on two idle cores, where torch's import takes 1.3 s: it is
met if the ratio is at most the goal over 1.3.

Python keeps compiled code, as for an installed package, also where PYTHONDONTWRITEBYTECODE is set here:
without it every command would compile the package again.

`report` and `compare` need a store with a run of quickstart; without --store they are left out. --write
replaces benchmarks/results/latency.md.
"""

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SUREFOOT = "from surefoot.cli import main; main()"
TORCH = "import torch"
TORCH_SECONDS = 1.3  # on two idle cores
RESULTS = Path(__file__).parent / "results" / "latency.md"
ROWS, CLASSES = 4000, 10

QUICK = {
    "--help": 0.5,
    "ls metrics": 0.5,
    "ls methods": 0.5,
    "ls tasks": 0.5,
    "show ensemble --as method": 0.5,
    "show quickstart --as experiment": 0.5,
    "evaluate gone.npz": 0.5,
    "run quickstart --set epochs=0": 0.5,
    "calibrate val.npz -o c.json": 2.5,
    "evaluate familiar.npz unfamiliar.npz": 2.5,
}
OF_A_RUN = {
    "ls runs --store {store}": 0.5,
    "show quickstart --store {store}": 0.5,
    "report quickstart --store {store}": 8.0,
    "compare quickstart quickstart --store {store}": 8.0,
}


@dataclass
class Cost:
    """Seconds of a process and of those that it started."""

    wall: float
    cpu: float


def cost(code: str, words: list[str], folder: Path) -> Cost:
    """Run a program once. Its exit code may be 2: a refusal is a command, too."""
    start, before = time.perf_counter(), os.times()
    command = [sys.executable, "-c", code, *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    if done.returncode not in (0, 2):
        sys.exit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.decode()}")
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(time.perf_counter() - start, used)


def best(costs: list[Cost]) -> Cost:
    return Cost(min(each.wall for each in costs), min(each.cpu for each in costs))


def write_predictions(folder: Path) -> None:
    """Logits whose labels follow their softmax, made too confident; more so on unfamiliar data."""
    for seed, (name, sharpness) in enumerate({"val": 2, "familiar": 2, "unfamiliar": 4}.items()):
        rng = np.random.default_rng(seed)
        logits = 2 * rng.standard_normal((ROWS, CLASSES))
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        np.savez(folder / f"{name}.npz", logits=sharpness * logits, labels=labels)


def table(costs: dict[str, list[Cost]], torch: dict[str, list[Cost]], goals: dict[str, float]) -> list[str]:
    """A row for each command; `torch` has the cost of torch's import before each of its runs."""
    imported = best([each for of_command in torch.values() for each in of_command])
    lines = [
        f"| command | CPU s | wall s | CPU / torch's import | goal, idle | goal / {TORCH_SECONDS} s | met |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
        f"| `python -c 'import torch'` | {imported.cpu:.2f} | {imported.wall:.2f} | 1.00 |  |  |  |",
    ]
    for name, goal in goals.items():
        found = best(costs[name])
        pairs = zip(costs[name], torch[name], strict=True)
        ratio, allowed = (
            statistics.median(cost.cpu / before.cpu for cost, before in pairs),
            goal / TORCH_SECONDS,
        )
        met = "yes" if ratio <= allowed else "NO"
        shown = name.replace(" --store {store}", "")
        lines.append(
            f"| `surefoot {shown}` | {found.cpu:.2f} | {found.wall:.2f} | {ratio:.2f} | {goal:g} s | "
            f"{allowed:.2f} | {met} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--store", type=Path, help="a store with a run of quickstart")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    goals = QUICK | (OF_A_RUN if options.store else {})
    costs: dict[str, list[Cost]] = {name: [] for name in goals}
    torch: dict[str, list[Cost]] = {name: [] for name in goals}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_predictions(folder)
        for _ in range(options.times):
            for name in goals:
                torch[name].append(cost(TORCH, [], folder))
                place = options.store.resolve() if options.store else ""
                words = [word.format(store=place) for word in name.split()]
                costs[name].append(cost(SUREFOOT, words, folder))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    today = datetime.datetime.now(tz=datetime.UTC).date()
    lines = [
        "# Latency of whole commands",
        "",
        f"{today}, `python benchmarks/latency.py --store RUNS`; {platform.machine()}, {os.cpu_count()} cores",
        f"shared with others (load {load} at the end), {ROWS:,} x {CLASSES} logits. The best of",
        f"{options.times} runs, and the median ratio of the processor time of a command, with that of the",
        "processes that it starts, to that of torch's import just before it.",
        "",
        *table(costs, torch, goals),
    ]
    print("\n".join(lines))
    if options.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
