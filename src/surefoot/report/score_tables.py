"""The tables again from a `scores.csv` alone: means, deviations and tests over runs, no bootstrap."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from surefoot.comparison import Comparison, comparison_from_scores, read_scores
from surefoot.errors import InputError
from surefoot.methods import METHODS
from surefoot.report.comparison_tables import Setting, comparison_grids
from surefoot.report.paper_numbers import PAPER_TASKS
from surefoot.report.study_tables import safe_name, write_grids
from surefoot.results import described

ENDING = "-scores"


def scores_compared(path: Path, names: Sequence[str] | None = None) -> Comparison:
    """The methods of a file, or those of them that are named, in the order of the paper's table."""
    values = read_scores(path)
    wanted = list(values) if names is None else list(names)
    for name in wanted:
        if name not in values:
            raise InputError(f"{path} has no method {name!r}; have: {', '.join(values)}")
    about = [described(method) for method in METHODS if method.name in wanted]
    about = [replace(m, spread_of=m.spread_of if m.spread_of in wanted else None) for m in about]
    return comparison_from_scores({name: values[name] for name in wanted}, about)


def scores_setting(path: Path, paper: str | None) -> Setting:
    """What a file is of, by its name; and the paper's task beside it."""
    if paper is not None and paper not in PAPER_TASKS:
        raise InputError(f"the paper has no task {paper!r}; have: {', '.join(PAPER_TASKS)}")
    backbone = "" if paper is None else "resnet18"  # of which scores say nothing
    return Setting(path.stem.removesuffix(ENDING), backbone, paper)


def write_score_tables(comparison: Comparison, setting: Setting, folder: Path) -> list[Path]:
    """Every table that scores are enough for; their paths."""
    return write_grids(comparison_grids(comparison, setting), folder, safe_name(setting.task))
