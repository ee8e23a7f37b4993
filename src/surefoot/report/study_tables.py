"""The tables of an experiment: what the terminal shows, and files in every format."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from surefoot.comparison import scores_text
from surefoot.files import make_folder, replacing
from surefoot.report.comparison_csv import summary_csv
from surefoot.report.comparison_tables import Setting, comparison_grids, headline_grid
from surefoot.report.grid import Grid
from surefoot.report.grid_formats import grids_html, grids_markdown
from surefoot.report.grid_latex import grids_latex
from surefoot.report.question_tables import question_grids
from surefoot.runner import PartStudy, Study

LONGEST_NAME = 60  # letters


def headline_grids(study: Study) -> list[Grid]:
    """A table per part for a first look."""
    return [grid for part in study.parts for grid in headline_of(part)]


def headline_of(part: PartStudy) -> list[Grid]:
    """The table for a first look; none where no network is there."""
    grid = headline_grid(part.comparison, setting_of(part))
    return [grid] if grid.headings and any(section.rows for section in grid.sections) else []


def part_grids(part: PartStudy) -> list[Grid]:
    """Every table of a part."""
    setting = setting_of(part)
    return [*question_grids(part.comparison, setting), *comparison_grids(part.comparison, setting)]


def setting_of(part: PartStudy) -> Setting:
    """What a part was compared on, and where the paper's numbers are."""
    return Setting(part.plan.task, part.plan.recipe.network, part.part.paper)


def part_names(study: Study) -> list[str]:
    """A name for each part that can be part of a file's name; no two alike."""
    tasks = [safe_name(part.plan.task) for part in study.parts]
    networks = [safe_name(part.plan.recipe.network) for part in study.parts]
    names: list[str] = []
    for task, network in zip(tasks, networks, strict=True):
        name = task if tasks.count(task) == 1 else f"{task}-{network}"
        same = sum(other == name or other.startswith(f"{name}--") for other in names)
        names.append(f"{name}--{same + 1}" if same else name)
    return names


def safe_name(text: str) -> str:
    """Anybody's text as part of a file's name.

    >>> safe_name("toy/wave"), safe_name("../<b>"), safe_name("??")
    ('toy-wave', 'b', 'unnamed')
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:LONGEST_NAME].strip("-") or "unnamed"


def write_tables(study: Study, folder: Path) -> list[Path]:
    """Each part's tables as Markdown, LaTeX, HTML and CSV below `folder/tables`; their paths."""
    written = []
    for name, part in zip(part_names(study), study.parts, strict=True):
        written += write_grids(part_grids(part), folder / "tables", name)
        texts = {
            "scores.csv": scores_text(part.comparison),
            "summary.csv": summary_csv(part.comparison, setting_of(part)),
        }
        written += _write(texts, folder / "tables", name)
    return written


def write_grids(grids: Sequence[Grid], folder: Path, name: str) -> list[Path]:
    """Tables as Markdown, LaTeX and HTML; their paths."""
    texts = {
        "tables.md": grids_markdown(grids),
        "tables.tex": grids_latex(grids),
        "tables.html": grids_html(grids),
    }
    return _write(texts, folder, name)


def _write(texts: Mapping[str, str], folder: Path, name: str) -> list[Path]:
    make_folder(folder)
    written = []
    for ending, text in texts.items():
        path = folder / f"{name}-{ending}"
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(path)
    return written
