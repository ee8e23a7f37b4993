"""The tables and the JSON document of one task of a study."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from surefoot.calibrators import calibration_document, save_calibration
from surefoot.errors import InputError
from surefoot.evaluation.comparison import Cell, Comparison, Difference
from surefoot.evaluation.evaluate import evaluate
from surefoot.evaluation.scores import SIDES, Score, number
from surefoot.evaluation.scores_csv import comparison_from_scores, read_scores, scores_text
from surefoot.experiments.methods import METHODS
from surefoot.experiments.paper import PAPER_TASKS
from surefoot.experiments.results import TESTED, Result, by_size, described
from surefoot.experiments.run import PartStudy, Study
from surefoot.intervals import LEVEL
from surefoot.io import make_folder, replacing
from surefoot.metrics import METRICS
from surefoot.metrics.proper import CLIP
from surefoot.predictions.outcomes import Array, Index, Outcomes
from surefoot.predictions.predictions import Predictions
from surefoot.report.choice import Choice
from surefoot.report.comparison import TableContext, comparison_tables, headline_table, summary_csv
from surefoot.report.questions import question_tables
from surefoot.report.tables import Table, to_html, to_latex, to_markdown
from surefoot.tasks.task import Split
from surefoot.text import DASH, number_text

LONGEST_NAME = 60  # letters


def headline_grids(study: Study) -> list[Table]:
    """A table per part for a first look."""
    return [grid for part in study.parts for grid in headline_of(part)]


def headline_of(part: PartStudy) -> list[Table]:
    """The table for a first look; none where no network is there."""
    table = headline_table(part.comparison, setting_of(part))
    return [table] if part.comparison.sides and table.rows else []


def part_grids(part: PartStudy) -> list[Table]:
    """Every table of a part."""
    setting = setting_of(part)
    return [*question_tables(part.comparison, setting), *comparison_tables(part.comparison, setting)]


def setting_of(part: PartStudy) -> TableContext:
    """What a part was compared on, and where the paper's numbers are."""
    return TableContext(part.plan.task, part.plan.recipe.network, part.part.paper)


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


def write_grids(grids: Sequence[Table], folder: Path, name: str) -> list[Path]:
    """Tables as Markdown, LaTeX and HTML; their paths."""
    texts = {
        "tables.md": to_markdown(grids),
        "tables.tex": to_latex(grids),
        "tables.html": to_html(grids),
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


COUNTED = tuple(METRICS.named(name) for name in ("label_error", "e99"))


@dataclass(frozen=True)
class GroupRow:
    """One subgroup of one side: each method's scores by metric, in the order of the methods."""

    side: str
    group: str
    n: int
    scores: tuple[dict[str, Score], ...]


@dataclass(frozen=True)
class GroupTable:
    """The methods' titles and a row per subgroup, the highest NLL of the last method first."""

    titles: tuple[str, ...]
    rows: tuple[GroupRow, ...]


def group_table(part: PartStudy, recommended: str | None) -> GroupTable | None:
    """Subgroups under the first run of the single network and of the recommended method; None without any."""
    wanted = dict.fromkeys(("single", recommended))
    results = {result.method.name: result for result in part.results if result.runs}
    shown = [results[name] for name in wanted if name in results]
    if not shown:
        return None
    rows = [row for side in zip(SIDES, TESTED, strict=True) for row in _rows(*side, shown)]
    return GroupTable(tuple(result.method.title for result in shown), tuple(rows)) if rows else None


def _rows(side: str, split: Split, shown: Sequence[Result]) -> Iterator[GroupRow]:
    said = [result.runs[0].after.get(split) for result in shown]
    there = [predictions for predictions in said if predictions is not None]
    if len(there) < len(shown) or any(p.groups is None or not p.outcomes.total for p in there):
        return
    found = [_by_group(predictions) for predictions in there]
    groups = sorted(found[0], key=lambda group: -found[-1][group][1]["nll"].value)
    for group in groups:
        yield GroupRow(side, group, found[0][group][0], tuple(each[group][1] for each in found))


def _by_group(predictions: Predictions) -> dict[str, tuple[int, dict[str, Score]]]:
    """Rows and scores of each subgroup; proportions have exact intervals, the NLL has Student's."""
    assert predictions.groups is not None
    member_of = np.unique(predictions.groups, return_inverse=True)[1]
    parts = [part for part in predictions.outcomes.split_by(member_of) if part.total]
    scored = evaluate(predictions, metrics=COUNTED, resamples=0).sides["familiar"].groups
    return {
        group.group: (group.n, {"nll": nll_score(part), **group.metrics})
        for group, part in zip(scored, parts, strict=True)
    }


def nll_score(outcomes: Outcomes) -> Score:
    """The clipped NLL with Student's 95% interval over rows; a row's many labels count together."""
    losses = -np.clip(outcomes.log_p_true, *np.log(CLIP))
    return mean_score(losses, outcomes.row)


def mean_score(values: Array, row: Index) -> Score:
    """The mean of values that belong to rows, with an interval from the spread of the rows' sums."""
    _, place = np.unique(row, return_inverse=True)
    rows, mean = int(place.max()) + 1, float(values.mean())
    if rows < 2:
        return Score(mean)
    excess = np.bincount(place, values - mean)
    error = math.sqrt(rows / (rows - 1) * float(excess @ excess)) / len(values)
    reach = float(student.ppf((1 + LEVEL) / 2, rows - 1)) * error
    return Score(mean, max(0.0, mean - reach), mean + reach)


def value_text(score: Score) -> str:
    """The value, with k of n where it is a proportion; a dash where undefined."""
    if math.isnan(score.value):
        return DASH
    return f"{score.value:.3f}" if score.n is None else f"{score.k}/{score.n} = {score.value:.3f}"


SHOWN = ("nll", "label_error", "ece", "e99")
ENSEMBLES = ("ensemble", "ensemble-of-t")


def size_tables(part: PartStudy) -> list[Table]:
    """For ensembles as they are and of T-scaled members: each metric by the number of members, first run."""
    metrics = [metric for metric in METRICS if metric.name in SHOWN]
    found = []
    for result in part.results:
        if result.method.name in ENSEMBLES and result.runs:
            sizes = by_size(result.runs[0], metrics)
            sides = [side for side in ("familiar", "unfamiliar") if (side, "nll") in sizes[0].values]
            header = ("members", *(f"{m.title} {side[0].upper()}" for m in metrics for side in sides))
            rows = tuple(
                (
                    str(each.members),
                    *(number_text(each.values[side, metric.name]) for metric in metrics for side in sides),
                )
                for each in sizes
            )
            found.append(Table.of_text(result.method.title, header, rows))
    return found


@dataclass(frozen=True)
class Fitted:
    """A method's fitted values over its runs, in words."""

    title: str
    values: str
    novelty: str  # the score, and how well it tells familiar from unfamiliar
    remarks: tuple[str, ...]  # on the first run


def fitted_rows(part: PartStudy) -> list[Fitted]:
    """A row for each method that fits something."""
    return [_row(result) for result in part.results if any(run.calibration for run in result.runs)]


def write_calibrations(study: Study, folder: Path) -> list[Path]:
    """Every fitted calibration as `folder/calibrations/<part>-<method>-run<k>.json`; their paths."""
    make_folder(folder / "calibrations")
    written = []
    for name, part in zip(part_names(study), study.parts, strict=True):
        for result in part.results:
            for run in result.runs:
                if run.calibration is not None:
                    file = f"{name}-{safe_name(result.method.name)}-run{run.run}.json"
                    save_calibration(run.calibration, folder / "calibrations" / file)
                    written.append(folder / "calibrations" / file)
    return written


def _row(result: Result) -> Fitted:
    calibrations = [run.calibration for run in result.runs if run.calibration is not None]
    parts = []
    for name in calibrations[0].parameters():
        parts.append(f"{name} = {_list([value for c in calibrations for value in c.parameters()[name]])}")
    details = [c.details() for c in calibrations]
    for label in dict.fromkeys(label for each in details for label in each):
        parts.append(f"{label} {_list([each[label] for each in details if label in each])}")
    if result.interpolation is not None:
        parts.append(_barrier(result.interpolation))
    remarks = tuple(calibrations[0].remarks())
    return Fitted(_title(result), "; ".join(parts), _novelty(result), remarks)


def _barrier(found: dict[str, Any]) -> str:
    """How the loss changes between two of the networks that were averaged."""
    return (
        f"validation NLL on the line between the first two networks: {_list(found['val_nll'])}; "
        f"barrier {found['barrier']:.3g}"
    )


def _title(result: Result) -> str:
    return f"{result.method.title} (cheating)" if result.method.oracle else result.method.title


def _novelty(result: Result) -> str:
    found = [run.novelty_auroc for run in result.runs if run.novelty_auroc is not None]
    defined = [value for value in found if math.isfinite(value)]
    return f"{result.method.novelty}: {_list(defined)}" if defined else ""


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def part_document(
    part: PartStudy, name: str, verdict: list[str], choice: Choice | None, groups: GroupTable | None
) -> dict[str, Any]:
    """One task."""
    return {
        "name": name,
        "task": part.plan.task,
        "network": part.plan.recipe.network,
        "verdict": verdict,
        "recommended": None if choice is None else choice.chosen.about.name,
        "level_with_the_best": [] if choice is None else [m.about.name for m in choice.level],
        "skipped": list(part.plan.skipped),
        "level": LEVEL,
        "methods": _methods(part.comparison, {result.method.name: result for result in part.results}),
        "groups": None if groups is None else _groups(groups),
    }


def _methods(comparison: Comparison, results: dict[str, Result]) -> list[dict[str, Any]]:
    return [
        {
            "name": method.about.name,
            "title": method.about.title,
            "cheating": method.about.oracle,
            "beyond_the_paper": method.about.not_in_paper,
            "runs": list(method.runs),
            "missing": list(method.about.missing),
            "seconds_training": method.about.seconds_training,
            "seconds_per_sample": method.about.seconds_per_sample,
            "parameters": method.about.parameters,
            "scores": {
                side: {metric.name: _cell(method.cells[side, metric.name]) for metric in comparison.metrics}
                for side in comparison.sides
            },
            "fitted": _fitted(results[method.about.name]),
        }
        for method in comparison.methods
    ]


def _fitted(result: Result) -> list[dict[str, Any]]:
    return [
        {
            "run": run.run,
            "calibration": None if run.calibration is None else calibration_document(run.calibration),
            "novelty_auroc": None if run.novelty_auroc is None else number(run.novelty_auroc),
        }
        for run in result.runs
    ]


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "mean": number(cell.mean),
        "deviation": number(cell.deviation),
        "runs": [{"run": s.run, "value": number(s.value), "k": s.k, "n": s.n} for s in cell.runs],
        "mark": cell.mark.value,
        "p": number(cell.p),
        "from_baseline": _difference(cell.from_baseline),
        "from_best": _difference(cell.from_best),
    }


def _difference(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    value, low, high = number(found.value), number(found.low), number(found.high)
    return {"value": value, "low": low, "high": high, "pairs": found.pairs}


def _groups(table: GroupTable) -> dict[str, Any]:
    rows = [
        {
            "side": row.side,
            "group": row.group,
            "n": row.n,
            "scores": [{name: _score(score) for name, score in scores.items()} for scores in row.scores],
        }
        for row in table.rows
    ]
    return {"methods": list(table.titles), "rows": rows}


def _score(score: Score) -> dict[str, Any]:
    return {
        "value": number(score.value),
        "low": number(score.low),
        "high": number(score.high),
        "k": score.k,
        "n": score.n,
    }


ENDING = "-scores"


def scores_compared(path: Path, names: Sequence[str] | None = None) -> Comparison:
    """The methods of a file, or those of them that are named, in the order of the paper's table."""
    values = read_scores(path)
    wanted = list(values) if names is None else list(names)
    for name in wanted:
        if name not in values:
            raise InputError(f"{path} has no method {name!r}; have: {', '.join(values)}")
    about = [described(method) for method in METHODS if method.name in wanted]
    about = [replace(m, variance_from=m.variance_from if m.variance_from in wanted else None) for m in about]
    return comparison_from_scores({name: values[name] for name in wanted}, about)


def scores_setting(path: Path, paper: str | None) -> TableContext:
    """What a file is of, by its name; and the paper's task beside it."""
    if paper is not None and paper not in PAPER_TASKS:
        raise InputError(f"the paper has no task {paper!r}; have: {', '.join(PAPER_TASKS)}")
    backbone = "" if paper is None else "resnet18"  # of which scores say nothing
    return TableContext(path.stem.removesuffix(ENDING), backbone, paper)


def write_score_tables(comparison: Comparison, setting: TableContext, folder: Path) -> list[Path]:
    """Every table that scores are enough for; their paths."""
    return write_grids(comparison_tables(comparison, setting), folder, safe_name(setting.task))
