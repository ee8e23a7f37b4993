"""Write the pages of docs/results from reports: scores, fitted values, tables and figures.

    python experiments/publish.py STORE/experiments/NAME ... [--out docs/results]
    python experiments/publish.py STORE/experiments/cat-dog --methods docs/methods
    python experiments/publish.py --other-recipes STORE/experiments/NAME ...

Each folder is that of an experiment after `surefoot report`. `--methods` writes the scores of one task, and
the changes on all published ones, into the tables of the methods' pages. `--other-recipes` writes one page,
recipes.md, with the answers to the paper's questions and the methods not in the paper. No photograph is
copied: the terms of some data sets do not allow it.
"""

import argparse
import csv
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from surefoot.evaluation.comparison import mean_scores

PLANE_FIGURES = {"toy": "Error regions of each method in the plane, first run"}
FIGURES = {
    "overview": "Familiar and unfamiliar NLL of every method, mean of the runs",
    "temperature-curves": "Familiar and unfamiliar NLL as T varies",
    "e99": "Errors among predictions above 99% confidence, all runs",
    "reliability-methods": "Reliability, all runs",
    "risk-coverage-methods": "Risk and coverage, mean of the runs",
}
FITTED = ("temperature", "t0", "t1")
PAGE_METRICS = ("nll", "label_error", "ece", "e99")  # on a method's page
SIDES = ("familiar", "unfamiliar")
FROM_SINGLE = ("from_baseline", "from_baseline_low", "from_baseline_high")
MINUS = "\N{MINUS SIGN}"
HEAD = "| method | runs | NLL | error | ECE | E99 | from single |"
CHANGES_HEAD = "| unfamiliar NLL, change from `single-t` to | gender | cat-dog | animals | objects |"
CHANGES_OF = ("gender-utkface", "cat-dog", "animals64", "objects96")
AFTER_THE_QUESTIONS = "**Table 1."


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
    lines += [
        f"Written by `experiments/publish.py` from `surefoot report {folder.name}`. To recompute the tables",
        f"without intervals: `surefoot report docs/results/{name}-scores.csv -o tables`.",
        f"The temperatures and the AUROC of novelty scores of each run are in `{name}-fitted.csv`.",
        "",
    ]
    is_plane = (folder / "figures" / f"{name}-toy.svg").exists()
    for figure, title in (PLANE_FIGURES if is_plane else FIGURES).items():
        svg = folder / "figures" / f"{name}-{figure}.svg"
        if svg.exists():
            shutil.copy(svg, out / svg.name)
            lines += [f"![{title}]({svg.name})", ""]
    tables = (folder / "tables" / f"{name}-tables.md").read_text()
    page = out / f"{name}.md"
    page.write_text("\n".join(lines) + "\n" + tables)
    return page


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


def fill_methods(summary: Path, folder: Path) -> list[Path]:
    """Update the scores on the methods' pages; the pages that have some."""
    with summary.open(newline="") as file:
        cells = {(row["method"], row["metric"], row["side"]): row for row in csv.DictReader(file)}
    return fill(folder, HEAD, lambda method: method_row(method, cells))


def fill_changes(results: Path, folder: Path) -> list[Path]:
    """Update the changes on the methods' pages from the published scores; the pages that have some."""
    means = [mean_scores(results / f"{task}-scores.csv") for task in CHANGES_OF]
    return fill(folder, CHANGES_HEAD, lambda method: changes_row(method, means))


def fill(folder: Path, head: str, row_of: Callable[[str], str]) -> list[Path]:
    """Write each method's row again in the tables with this header; the pages that have such a table."""
    filled = []
    for page in sorted(folder.glob("*.md")):
        lines, inside = page.read_text().split("\n"), False
        for place, line in enumerate(lines):
            inside = line == head or (inside and line.startswith("|"))
            if inside and line.startswith("| `"):
                lines[place] = row_of(line.split("`")[1])
        if head in lines:
            page.write_text("\n".join(lines))
            filled.append(page)
    return filled


def method_row(method: str, cells: dict[tuple[str, str, str], dict[str, str]]) -> str:
    """A method's scores, familiar / unfamiliar, and its unfamiliar NLL less the single network's."""
    means = [[float(cells[method, metric, side]["mean"]) for side in SIDES] for metric in PAGE_METRICS]
    scores = " | ".join(" / ".join(f"{mean:.4f}" for mean in pair) for pair in means)
    unfamiliar = cells[method, "nll", "unfamiliar"]
    change = [float(unfamiliar[name]) for name in FROM_SINGLE if unfamiliar[name]]
    difference = "{:+.4f} [{:+.4f}, {:+.4f}]".format(*change).replace("-", MINUS) if change else ""
    return f"| `{method}` | {unfamiliar['runs']} | {scores} | {difference} |"


def changes_row(method: str, means: list[dict[tuple[str, str, str], float]]) -> str:
    """By how much a method's unfamiliar NLL differs from that of `single-t`, on each task."""
    of, base = (method, "unfamiliar", "nll"), ("single-t", "unfamiliar", "nll")
    changes = [round(100 * (each[of] / each[base] - 1)) for each in means]
    return f"| `{method}` | {' | '.join(f'{change:+d}%' if change else '0%' for change in changes)} |"


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
    parser.add_argument("--methods", type=Path, help="the methods' pages, to be updated")
    parser.add_argument("--other-recipes", action="store_true")
    chosen = parser.parse_args()
    if chosen.other_recipes:
        print(other_recipes(chosen.folders, chosen.out))
        return
    if chosen.methods and [len(parts(folder)) for folder in chosen.folders] != [1]:
        parser.error("--methods takes the scores of one task; allowed: one folder of one task")
    for folder in chosen.folders:
        for part in parts(folder):
            print(publish(folder, part, chosen.out))
            if chosen.methods:
                summary = folder / "tables" / f"{part['name']}-summary.csv"
                print(*fill_methods(summary, chosen.methods), sep="\n")
                print(*fill_changes(chosen.out, chosen.methods), sep="\n")


if __name__ == "__main__":
    main()
