"""Temperature fits over optima and class counts, and metrics: ours and other libraries'.

    make benchmark        (or: python benchmarks/peers.py --quick; with fits or metrics, that part)

Results go to benchmarks/results/peers.md, every single fit to benchmarks/results/peers.csv. With
--quick, or for some parts only, they go to a new temporary folder, whose path is printed at the end.
"""

import argparse
import csv
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from metric_tables import HEAD as METRICS_HEAD
from metric_tables import metric_tables
from scipy.optimize import minimize_scalar
from turns import (
    BUSY,
    GOAL,
    HERE,
    ONE_THREAD,
    Start,
    Turn,
    Turns,
    circumstances,
    contestants,
    draw,
    in_both,
    nll,
    own_best,
    table,
)

OPTIMA = (0.05, 0.5, 1.0, 5.0, 50.0)
SHAPES = ((20_000, 2), (20_000, 10), (20_000, 100), (2_000, 1000))

FITS = (
    ("scikit-learn", "sklearn_fit"),
    ("netcal, float64", "netcal_fit"),
    ("probmetrics", "probmetrics_fit"),
    ("torch-uncertainty", "torch_uncertainty_fit"),
    ("gpleiss's, re-stated", "gpleiss_fit"),
)

QUICK = 10  # times fewer rows


def optimum(folder: Path, made: float) -> float:
    """T by bounded minimisation in float64, within a factor of 3 of the true T."""
    around = (math.log(made / 3), math.log(made * 3))
    found = minimize_scalar(
        lambda log_t: nll(folder, math.exp(log_t)), bounds=around, method="bounded", options={"xatol": 1e-9}
    )
    return math.exp(found.x)


def grid(fewer: int) -> tuple[list[str], list[dict[str, object]]]:
    """Every fit at every optimum and number of classes; the tables, and a record of each fit."""
    records: list[dict[str, object]] = []
    with contestants() as start:
        for rows, classes in SHAPES:
            for made in OPTIMA:
                with tempfile.TemporaryDirectory() as folder:
                    draw(Path(folder), rows // fewer, classes, made)
                    records += cell(Path(folder), (rows // fewer, classes, made), start)
    return [*summary(records), "", *every_cell(records)], records


def cell(folder: Path, where: tuple[int, int, float], start: Start) -> list[dict[str, object]]:
    """All fits of the same logits; a peer's ratio is relative to our alternating runs."""
    best = optimum(folder, where[2])
    least = nll(folder, best)
    found, mine = [], []
    for name, what in FITS:
        turns = in_both(start, "surefoot_fit", what, folder)
        mine.append(turns)
        found.append(_record(name, where, turns, best, _nll(folder, turns[ONE_THREAD][1]) - least))
    own = own_best(mine)
    excess = _nll(folder, own[ONE_THREAD][1]) - least
    found.insert(0, _record("surefoot", where, own, best, excess))
    print(*(tuple(record.values()) for record in found), sep="\n", flush=True)
    return found


def _nll(folder: Path, turn: Turn) -> float:
    with np.errstate(all="ignore"):
        return nll(folder, turn.value) if turn.value > 0 else math.nan


def _record(
    name: str, where: tuple[int, int, float], turns: Turns, best: float, excess: float
) -> dict[str, object]:
    (mine, turn), (busy_mine, busy) = turns[ONE_THREAD], turns[BUSY]
    return {
        "fit": name,
        "rows": where[0],
        "classes": where[1],
        "made with T": where[2],
        "optimum": best,
        "T": turn.value,
        "excess NLL": excess,
        "found": abs(turn.value / best - 1) < 1e-3 and excess < 1e-6,
        "seconds": turn.seconds,
        "times ours": turn.seconds / mine.seconds,
        "busy seconds": busy.seconds,
        "busy times ours": busy.seconds / busy_mine.seconds,
        "error": turn.error,
    }


def summary(records: list[dict[str, object]]) -> list[str]:
    """How often each found the optimum, and how much slower it was then, in both settings."""
    rows = []
    for name in ("surefoot", *(name for name, _ in FITS)):
        its = [record for record in records if record["fit"] == name]
        cells = [f"{sum(record['found'] for record in its)} of {len(its)}"]
        for key in ("times ours", "busy times ours"):
            ratios = [record[key] for record in its]
            found = [record[key] for record in its if record["found"]]
            cells += [
                f"{min(ratios):.1f} to {max(ratios):.1f}, median {np.median(ratios):.1f}",
                "" if name == "surefoot" else f"{sum(ratio >= GOAL for ratio in ratios)} of {len(its)}",
                "" if name == "surefoot" or not found else f"{min(found):.1f}",
            ]
        rows.append([name, *cells])
    header = ["times our seconds", f"at least {GOAL}", "least where it found it"]
    return table(["fit", "optimum found", *header, *(f"busy: {title}" for title in header)], rows)


def every_cell(records: list[dict[str, object]]) -> list[str]:
    """A row per optimum and number of classes."""
    names = [name for name, _ in FITS]
    rows = []
    for where in dict.fromkeys((r["rows"], r["classes"], r["made with T"]) for r in records):
        its = {r["fit"]: r for r in records if (r["rows"], r["classes"], r["made with T"]) == where}
        own = its["surefoot"]
        ours = f"{1000 * own['seconds']:.1f} ms" + (
            "" if own["found"] else f", NOT FOUND: T = {own['T']:.4g}"
        )
        rows.append([f"{where[0]:,} x {where[1]}", f"{own['optimum']:.5g}", ours])
        rows[-1] += [_cell_text(its[name]) for name in names]
    return table(["logits", "optimum T", "surefoot", *names], rows)


def _cell_text(record: dict[str, object]) -> str:
    if record["error"]:
        return str(record["error"]).split(":")[0]
    missed = "" if record["found"] else f"; T = {record['T']:.4g}, NLL {record['excess NLL']:+.1e}"
    return f"{record['times ours']:.1f} x, {record['busy times ours']:.1f} x{missed}"


HEAD = """# Comparison with other libraries

`make benchmark`.
{circumstances}

torch-uncertainty's fit and metrics run from its own, unchanged modules, without its `__init__`, which imports
lightning and torchvision. gpleiss's temperature_scaling is a file, not a package: its published algorithm
(LBFGS, a learning rate of 0.01, 50 iterations, from T = 1.5) is reimplemented in
`benchmarks/contestants.py`.
"""

FITS_HEAD = """## Temperature fits

Labels are drawn from softmax(z), with z normal with standard deviation 3; the fit gets T z. The optimum is
from scipy's bounded minimisation of the NLL in float64. Found: T within 1e-3 of it and the mean NLL within
1e-6. netcal takes probabilities; they are computed in float64, outside its time. In the second table "7.0 x,
9.0 x" is seven times our CPU seconds with one thread and nine times our seconds with default threads beside
a busy process, and T and NLL are shown if the optimum was not found. All numbers:
[peers.csv](peers.csv).

"""


def fits_part(into: Path, fewer: int) -> str:
    """The fits, as text; each one is also written to the CSV."""
    lines, records = grid(fewer)
    with (into / "peers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return FITS_HEAD + "\n".join(lines)


PARTS: dict[str, Callable[[Path, int], str]] = {
    "fits": fits_part,
    "metrics": lambda _, fewer: METRICS_HEAD + "\n".join(metric_tables(fewer)),
}


def main() -> None:
    """Run all parts, or the given ones, and write the page after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help=f"a quick run with {QUICK} times fewer rows")
    chosen = parser.parse_args()
    if wrong := set(chosen.parts) - set(PARTS):
        parser.error(f"unknown part {wrong.pop()!r}; have: {', '.join(PARTS)}")
    whole = not chosen.parts and not chosen.quick
    into = HERE / "results" if whole else Path(tempfile.mkdtemp(prefix="surefoot-peers-"))
    done: list[str] = []
    start = time.monotonic()
    for name in chosen.parts or PARTS:
        done.append(PARTS[name](into, QUICK if chosen.quick else 1).strip("\n"))
        print(f"{name}: done after {time.monotonic() - start:.0f} s", flush=True)
        head = HEAD.format(circumstances="\n".join(circumstances())).strip("\n")
        (into / "peers.md").write_text("\n\n".join([head, *done]) + "\n")
    print(f"wrote {into / 'peers.md'}")


if __name__ == "__main__":
    main()
