"""Do richer calibrators than one temperature help on unfamiliar data? docs/results/calibrators-protocol.md.

python experiments/calibrators_study.py --out FOLDER STORE/experiments/NAME ...
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sharpness_evaluation import write

from surefoot.experiments.methods import METHODS, calibrated_rows
from surefoot.experiments.plan import Plan, replanned
from surefoot.experiments.run import read_folder
from surefoot.metrics import METRICS
from surefoot.runtime import one_thread
from surefoot.store.store import Store
from surefoot.text import csv_text, number_text, signed_interval_text, signed_text

if TYPE_CHECKING:
    from surefoot.evaluation.comparison import Comparison, MethodRuns

RICHER = ("vector", "matrix", "dirichlet", "platt", "beta", "isotonic", "histogram")
REFERENCES = {"single": "single-t", "ensemble": "t-of-ensemble"}  # one temperature
PLACES = tuple((side, metric) for side in ("familiar", "unfamiliar") for metric in ("nll", "ece", "aurc"))
UNCLIPPED = tuple((side, "nll_unclipped") for side in ("familiar", "unfamiliar"))
PRIMARY = ("unfamiliar", "nll")
RESAMPLES = 2000


@dataclass(frozen=True)
class Line:
    """A calibrator on single networks or on the ensemble, by one metric on one side."""

    task: str
    networks: str
    calibrator: str
    side: str
    metric: str
    runs: int
    value: float  # the mean over runs
    difference: float  # from one temperature
    low: float  # 95%, for other groups of images and other networks
    high: float
    verdict: str


def compared(plan: Plan, store: Store, *, resamples: int) -> "tuple[Comparison, list[MethodRuns]]":
    """Every row on a task, with its differences from one temperature."""
    from surefoot.evaluation.compare import compare
    from surefoot.experiments.results import results_of, without_absent_lenders

    names = [*REFERENCES, *REFERENCES.values(), *(row for name in RICHER for row in calibrated_rows(name))]
    wanted, without = replanned(plan, [METHODS.named(name) for name in names])
    assert not without, f"{plan.task} has no networks for {without}"
    methods = without_absent_lenders(results_of(wanted, store))
    metrics = [METRICS.named(name) for name in dict.fromkeys(metric for _, metric in (*PLACES, *UNCLIPPED))]
    pairs = [(row, REFERENCES[row.partition("-")[0]]) for row in names if row not in REFERENCES.values()]
    return compare(methods, metrics, resamples=resamples, pairs=pairs), methods


def lines_of(task: str, comparison: "Comparison") -> list[Line]:
    """Every number of a task."""
    found = []
    for method in comparison.methods:
        networks = "ensemble" if method.is_ensemble else "single"
        name = (
            "temperature" if method.name in REFERENCES.values() else method.name.partition("-")[2] or "none"
        )
        differences = comparison.pairs.get((method.name, REFERENCES[networks]), {})
        for side, metric in (*PLACES, *UNCLIPPED):
            gap = differences.get((side, metric))
            low, high = (math.nan, math.nan) if gap is None else gap.ends
            value = 0.0 if gap is None else gap.value
            mean = method.cells[side, metric].mean
            runs = len(method.runs)
            found.append(
                Line(task, networks, name, side, metric, runs, mean, value, low, high, verdict(low, high))
            )
    return found


def verdict(low: float, high: float) -> str:
    """Whether the interval of the difference from one temperature excludes 0."""
    if math.isnan(low):
        return ""
    return "better" if high < 0 else "worse" if low > 0 else "not significant"


def task_table(task: str, lines: Sequence[Line]) -> str:
    """The means over runs; below, the differences of the NLLs with their intervals."""
    from surefoot.report.tables import Column, Section, Table, TableCell, to_markdown

    by = {(line.networks, line.calibrator, line.side, line.metric): line for line in lines}
    sections = []
    for networks in REFERENCES:
        rows = []
        for name in ("none", "temperature", *RICHER):
            cells = [TableCell(name)]
            for side, metric in PLACES:
                line = by[networks, name, side, metric]
                cells.append(TableCell(number_text(line.value, 3)))
            for side in ("familiar", "unfamiliar"):
                line = by[networks, name, side, "nll"]
                is_reference = name == "temperature"
                text = f"{signed_text(line.difference)} {signed_interval_text(line.low, line.high)}"
                cells.append(TableCell("" if is_reference else text))
            cells.append(TableCell(by[networks, name, *PRIMARY].verdict))
            rows.append(tuple(cells))
        count = by[networks, "none", *PRIMARY].runs
        sections.append(Section(f"{networks}, {count} runs" if count > 1 else networks, tuple(rows)))
    columns = [Column("calibrator", align="left")]
    columns += [Column(f"{side} {METRICS.named(metric).title}") for side, metric in PLACES]
    columns += [Column(f"{side} NLL from one T") for side in ("familiar", "unfamiliar")]
    columns += [Column("unfamiliar NLL", align="left")]
    return to_markdown([Table(task, tuple(columns), tuple(sections), ())])


def chosen_table(task: str, methods: "Sequence[MethodRuns]") -> str:
    """The regularisation that cross-validation chose, over runs."""
    lines = []
    for method in methods:
        values = [getattr(run.calibration, "regularisation", None) for run in method.runs]
        known = [value for value in values if value is not None]
        if known:
            counts = {value: known.count(value) for value in sorted(set(known))}
            text = ", ".join(f"{value:g}" + (f" ({n} times)" if n > 1 else "") for value, n in counts.items())
            lines.append(f"- {task}, `{method.name}`: {text}")
    return "\n".join(lines) + "\n"


def overview(lines: Sequence[Line]) -> str:
    """On how many tasks each calibrator is better or worse than one temperature, and by how much."""
    from surefoot.report.tables import Table, to_markdown

    primary = [line for line in lines if (line.side, line.metric) == PRIMARY]
    tasks = list(dict.fromkeys(line.task for line in primary))
    rows = []
    for networks in REFERENCES:
        for name in ("none", *RICHER):
            own = {
                line.task: line for line in primary if (line.networks, line.calibrator) == (networks, name)
            }
            one = {
                line.task: line
                for line in primary
                if (line.networks, line.calibrator) == (networks, "temperature")
            }
            changes = [own[task].difference / one[task].value for task in tasks]
            texts = [f"{100 * c:+.1f}% ({own[t].verdict})" for t, c in zip(tasks, changes, strict=True)]
            verdicts = [own[task].verdict for task in tasks]
            better, worse = verdicts.count("better"), verdicts.count("worse")
            result = (
                "helps" if better >= 2 and not worse else "hurts" if worse >= 2 and not better else "mixed"
            )
            rows.append((networks, name, *texts, f"{100 * float(np.mean(changes)):+.1f}%", result))
    header = ("networks", "calibrator", *tasks, "mean", "result")
    return to_markdown([Table.of_text("Unfamiliar NLL relative to one temperature", header, rows)])


def main() -> None:
    """Write every number as CSV, and the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", help="experiments that were run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    chosen = parser.parse_args()
    lines: list[Line] = []
    tables: dict[str, str] = {}
    regularisations = ""
    with one_thread():
        for folder in chosen.folders:
            for plan in read_folder(folder)[1]:
                comparison, methods = compared(plan, Store.containing(folder), resamples=chosen.resamples)
                of_task = lines_of(plan.task, comparison)
                lines += of_task
                tables[plan.task] = task_table(plan.task, of_task)
                regularisations += chosen_table(plan.task, methods)
                print(tables[plan.task], flush=True)
    header = list(Line.__dataclass_fields__)
    write(
        chosen.out / "calibrators.csv",
        csv_text(header, [[getattr(line, n) for n in header] for line in lines]),
    )
    page = "\n".join(
        [overview(lines), *tables.values(), "Regularisation chosen by cross-validation:\n", regularisations]
    )
    write(chosen.out / "calibrators-tables.md", page)
    print(overview(lines))


if __name__ == "__main__":
    main()
