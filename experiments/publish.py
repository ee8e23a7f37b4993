"""Write the pages of docs/results from reports: scores, fitted values, tables and figures.

    python experiments/publish.py STORE/experiments/NAME ... [--out docs/results]
    python experiments/publish.py --other-recipes STORE/experiments/NAME ...

Each folder is that of an experiment after `surefoot report`. `--other-recipes` writes one page, recipes.md,
with the answers to the paper's questions and the methods not in the paper. `python experiments/answers.py`
then updates the pages that show these numbers. No photograph is copied: the terms of some data sets do not
allow it.
"""

import argparse
import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PLANE_FIGURES = {"toy": "Error regions of each method in the plane, first run"}
FIGURES = {
    "overview": "Familiar and unfamiliar NLL of every method, mean of the runs",
    "temperature-curves": "Familiar and unfamiliar NLL as T varies",
    "e99": "Errors among predictions above 99% confidence, all runs",
    "reliability-methods": "Reliability, all runs",
    "risk-coverage-methods": "Risk and coverage, mean of the runs",
}
FITTED = ("temperature", "t0", "t1")
AFTER_THE_QUESTIONS = "**Table 1."
FROM_SCORES = tuple(f"**Table {number}." for number in (1, 2, 3))  # `surefoot report SCORES` makes them again
DIFFERENCES = re.compile(r"\*\*Difference from (the best|.+?)(?: of each column)?, paired bootstrap")
DIFFERENCE = re.compile(r"\**([+-][\d.]+)\** \\?\[([+-][\d.]+), ([+-][\d.]+)\\?\]")


def parts(folder: Path) -> list[dict[str, Any]]:
    """The document of each task of a report."""
    return json.loads((folder / "report.json").read_text())["parts"]


def publish(folder: Path, part: dict[str, Any], out: Path) -> Path:
    """A task's page and its files."""
    name = part["name"]
    shutil.copy(folder / "tables" / f"{name}-scores.csv", out / f"{name}-scores.csv")
    with (out / f"{name}-fitted.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("method", "run", "value", "number"), *fitted(part)])
    lines = [f"# {part['task']}", "", *(f"{sentence}\n" for sentence in part["verdict"])]
    lines += [*about(name), ""]
    is_plane = (folder / "figures" / f"{name}-toy.svg").exists()
    for figure, title in (PLANE_FIGURES if is_plane else FIGURES).items():
        svg = folder / "figures" / f"{name}-{figure}.svg"
        if svg.exists():
            shutil.copy(svg, out / svg.name)
            lines += [f"![{title}]({svg.name})", ""]
    tables, rows = shortened((folder / "tables" / f"{name}-tables.md").read_text())
    write_differences(rows, out / f"{name}-differences.csv")
    page = out / f"{name}.md"
    page.write_text("\n".join(lines) + "\n" + tables)
    return page


def about(name: str) -> list[str]:
    """Where the numbers are that the page does not show."""
    return [
        f"Also here: `{name}-differences.csv` (each method less the baseline and the best, with intervals)",
        f"and `{name}-fitted.csv` (temperatures, and the AUROC of novelty scores). The paper's other tables:",
        f"`surefoot report docs/results/{name}-scores.csv -o tables`. Written by `experiments/publish.py`.",
    ]


def shortened(tables: str) -> tuple[str, list[tuple[str, ...]]]:
    """The tables without those that the scores give again, and the rows of the tables of differences."""
    kept, rows = [], []
    for table in re.split(r"^(?=\*\*)", tables, flags=re.MULTILINE):
        if title := DIFFERENCES.match(table):
            rows += differences(title[1], table)
        elif not table.startswith(FROM_SCORES):
            kept.append(table)
    return "".join(kept), rows


def differences(other: str, table: str) -> Iterator[tuple[str, ...]]:
    """Method, what it is compared with, runs, side, metric, difference, and the interval of it."""
    header, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| ")
    ]
    for method, runs, *cells in lines:
        for column, cell in zip(header[2:], cells, strict=True):
            metric, _, side = column.rpartition(" ")
            if number := DIFFERENCE.fullmatch(cell):
                yield method, other, runs, side, metric, *number.groups()


def write_differences(rows: list[tuple[str, ...]], path: Path) -> None:
    """The rows of `differences` as a .csv file."""
    header = ("method", "less", "runs", "side", "metric", "difference", "low", "high")
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def fitted(part: dict[str, Any]) -> Iterator[tuple[str, int, str, float]]:
    """Method, run, name, number: all fitted values, and the AUROC of the novelty scores."""
    for method in part["methods"]:
        for run in method["fitted"]:
            calibration = run["calibration"] or {}
            for value in FITTED:
                if value in calibration:
                    yield method["name"], run["run"], value, calibration[value]
            members = calibration.get("members", [])  # of a Bayesian network: their number
            for place, member in enumerate(members if isinstance(members, list) else []):
                yield method["name"], run["run"], f"temperature of member {place}", member["temperature"]
            if run["novelty_auroc"] is not None:
                yield method["name"], run["run"], "novelty_auroc", run["novelty_auroc"]


def other_recipes(folders: list[Path], out: Path) -> Path:
    """The answers to the paper's questions under each recipe, on one page; the scores as files."""
    lines = [
        "# Other recipes",
        "",
        "The same tasks, trained with other recipes than for the pages of this folder. The conclusions:",
        "[How much the recipe matters](details.md#how-much-the-recipe-matters).",
        "Written by `experiments/publish.py --other-recipes`.",
        "",
    ]
    (out / "recipes").mkdir(exist_ok=True)
    for folder in folders:
        experiment = json.loads((folder / "report.json").read_text())["experiment"]
        for part, values in zip(parts(folder), experiment["parts"], strict=True):
            recipe = values["recipe"]
            name, rate, epochs = part["name"], recipe["learning_rate"], recipe["epochs"]
            scores = f"recipes/{name}-{rate}x{epochs}-scores.csv"
            shutil.copy(folder / "tables" / f"{name}-scores.csv", out / scores)
            tables = (folder / "tables" / f"{name}-tables.md").read_text()
            lines += [f"## {name}: learning rate {rate}, {epochs} epochs", ""]
            lines += [f"{experiment['runs']} runs, {experiment['members']} members; [scores]({scores})", ""]
            lines += [tables[: tables.index(AFTER_THE_QUESTIONS)].rstrip(), ""]
    page = out / "recipes.md"
    page.write_text("\n".join(lines))
    return page


def main() -> None:
    """Publish every folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--other-recipes", action="store_true")
    chosen = parser.parse_args()
    if chosen.other_recipes:
        print(other_recipes(chosen.folders, chosen.out))
        return
    for folder in chosen.folders:
        for part in parts(folder):
            print(publish(folder, part, chosen.out))


if __name__ == "__main__":
    main()
