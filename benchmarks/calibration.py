"""Temperature fit and metrics on 1,000,000 x 100 float32 logits, against the peers, in one run.

    make benchmark        (or: python benchmarks/calibration.py --rows 200000)

Every contestant gets a fresh process and the same files; the best of a few turns counts, because this is
about the code and not about what else the machine was doing. Peers run in an environment of their own.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
PEERS_PYTHON = HERE.parent / ".venv-peers" / "bin" / "python"
RIGHT = 2.5  # the logits are multiplied by this, so it is the right temperature

CONTESTANTS = (
    # name, python, what runs, may Surefoot take this share of its time
    ("surefoot fit", sys.executable, "surefoot_fit", None),
    ("scikit-learn temperature", PEERS_PYTHON, "sklearn_fit", 1 / 10),
    ("netcal TemperatureScaling, float32", PEERS_PYTHON, "netcal_fit", 1 / 5),
    ("netcal TemperatureScaling, float64", PEERS_PYTHON, "netcal_fit_double", 1 / 5),
    ("probmetrics temp-scaling", PEERS_PYTHON, "probmetrics_fit", 1 / 5),
    ("numpy log-softmax", sys.executable, "numpy_log_softmax", None),
    ("surefoot, the paper's metrics", sys.executable, "surefoot_metrics", None),
)


def make_data(folder: Path, rows: int, classes: int) -> None:
    """Labels drawn from softmax(z); what is saved is 2.5 z."""
    rng = np.random.default_rng(0)
    logits = np.lib.format.open_memmap(folder / "logits.npy", "w+", np.float32, (rows, classes))
    labels = np.empty(rows, dtype=np.int64)
    for start in range(0, rows, 50_000):
        part = slice(start, min(start + 50_000, rows))
        drawn = 3 * rng.standard_normal((part.stop - start, classes), dtype=np.float32)
        labels[part] = (drawn + rng.gumbel(size=drawn.shape).astype(np.float32)).argmax(axis=1)
        logits[part] = RIGHT * drawn
    logits.flush()
    np.save(folder / "labels.npy", labels)


def run(python: str | Path, what: str, folder: Path, turns: int) -> dict[str, float]:
    """One contestant in a fresh process."""
    command = [str(python), str(HERE / "contestants.py"), what, str(folder), str(turns)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{what} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def nll(folder: Path, temperature: float) -> float:
    """Mean NLL in float64 at a temperature: the judge of every fit."""
    logits, labels = np.load(folder / "logits.npy", mmap_mode="r"), np.load(folder / "labels.npy")
    total = 0.0
    for start in range(0, len(labels), 50_000):
        scaled = logits[start : start + 50_000].astype(np.float64) / temperature
        scaled -= scaled.max(axis=1, keepdims=True)
        true = scaled[np.arange(len(scaled)), labels[start : start + 50_000]]
        total += float((np.log(np.exp(scaled).sum(axis=1)) - true).sum())
    return total / len(labels)


def table(found: dict[str, dict[str, float]], nlls: dict[str, float]) -> list[str]:
    """A line per contestant, with ratios to ours and whether the goal is met."""
    ours = found["surefoot fit"]["seconds"]
    lines = [
        "| what | seconds | times ours | T | NLL less ours | goal | met |",
        "|:--|--:|--:|--:|--:|:--|:--|",
    ]
    for name, _, _, share in CONTESTANTS[:5]:
        result = found[name]
        excess = nlls[name] - nlls["surefoot fit"]
        met = "" if share is None else _met(ours <= share * result["seconds"] and excess >= -1e-6)
        if excess > 1e-3:
            met += ", but it returns its input unchanged"
        goal = "" if share is None else f"ours <= {share:.2g} of it"
        cells = (
            name,
            f"{result['seconds']:.2f}",
            f"{result['seconds'] / ours:.1f}",
            f"{result['temperature']:.6f}",
        )
        lines.append("| " + " | ".join((*cells, f"{excess:+.2e}", goal, met)) + " |")
    return lines


def metric_lines(found: dict[str, dict[str, float]], megabytes: float) -> list[str]:
    """The metrics against one log-softmax, and memory against the input."""
    ours, softmax = found["surefoot, the paper's metrics"], found["numpy log-softmax"]
    ratio = ours["seconds"] / softmax["seconds"]
    lines = ["", "| what | found | goal | met |", "|:--|--:|:--|:--|"]
    lines.append(f"| one numpy log-softmax | {softmax['seconds']:.2f} s | | |")
    together = f"{ours['seconds']:.2f} s = {ratio:.2f} x"
    lines.append(f"| the paper's metrics together | {together} | <= 3 x | {_met(ratio <= 3)} |")
    for name in ("surefoot, the paper's metrics", "surefoot fit"):
        peak = found[name]["peak_megabytes"] / megabytes
        lines.append(
            f"| peak memory, {name}, with the input | {peak:.2f} x input | < 2.5 x | {_met(peak < 2.5)} |"
        )
    return lines


def _met(condition: bool) -> str:
    return "yes" if condition else "NO"


def main() -> None:
    """Make the data, run everybody, print and keep the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3, help="turns per contestant; the best counts")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, chosen.rows, chosen.classes)
        found = {}
        for title, python, what, _ in CONTESTANTS:
            found[title] = run(python, what, folder, chosen.turns)
            print(f"{title}: {found[title]}", flush=True)
        nlls = {title: nll(folder, found[title]["temperature"]) for title, *_ in CONTESTANTS[:5]}
    versions = run(PEERS_PYTHON, "versions", folder, 1)
    head = [
        f"# {chosen.rows:,} x {chosen.classes} float32 logits",
        "",
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores; best of {chosen.turns} turns.",
        f"The logits were made with T = {RIGHT}; each fit's own optimum may differ in the third decimal.",
        ", ".join(f"{package} {version}" for package, version in versions.items()) + ".",
        "",
    ]
    megabytes = chosen.rows * chosen.classes * 4 / 1e6
    text = "\n".join([*head, *table(found, nlls), *metric_lines(found, megabytes), ""])
    print(text)
    if chosen.rows == 1_000_000:
        (HERE / "results" / "calibration.md").write_text(text)


if __name__ == "__main__":
    main()
