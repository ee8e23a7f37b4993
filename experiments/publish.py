"""The pages of docs/results from reports that were made: scores, tables and a few figures of each task.

    python experiments/publish.py STORE/experiments/NAME ... [--out docs/results]

Each folder is an experiment's, as `surefoot report` leaves it. No photograph is copied: the data sets' terms
do not allow all of them to be passed on.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

IN_THE_PLANE = {"toy": "Where in the plane each method goes wrong, first run"}
FIGURES = {
    "temperature-curves": "Familiar against unfamiliar NLL while T varies",
    "e99": "Wrong answers among those above 99% confidence, first run",
    "reliability-methods": "Reliability, first run",
    "risk-coverage-methods": "Risk and coverage, first run",
}


def publish(folder: Path, part: dict[str, Any], out: Path) -> Path:
    """A task's page and its files."""
    name = part["name"]
    shutil.copy(folder / "tables" / f"{name}-scores.csv", out / f"{name}-scores.csv")
    lines = [f"# {part['task']}", "", *(f"{sentence}\n" for sentence in part["verdict"])]
    lines += [
        f"Made by `experiments/publish.py` from `surefoot report {folder.name}`; the tables without",
        f"intervals are made again by `surefoot report docs/results/{name}-scores.csv -o tables`.",
        "",
    ]
    in_the_plane = (folder / "figures" / f"{name}-toy.svg").exists()
    for figure, title in (IN_THE_PLANE if in_the_plane else FIGURES).items():
        svg = folder / "figures" / f"{name}-{figure}.svg"
        if svg.exists():
            shutil.copy(svg, out / svg.name)
            lines += [f"![{title}]({svg.name})", ""]
    tables = (folder / "tables" / f"{name}-tables.md").read_text()
    page = out / f"{name}.md"
    page.write_text("\n".join(lines) + "\n" + tables)
    return page


def main() -> None:
    """Every folder that was named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    chosen = parser.parse_args()
    for folder in chosen.folders:
        for part in json.loads((folder / "report.json").read_text())["parts"]:
            print(publish(folder, part, chosen.out))


if __name__ == "__main__":
    main()
