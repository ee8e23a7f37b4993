"""What is reported of one task of a study: its tables and its JSON document."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from surefoot.calibrators import calibration_document
from surefoot.evaluation.comparison import TEST_SPLITS, Cell, Comparison, MethodRuns
from surefoot.evaluation.evaluate import evaluate
from surefoot.evaluation.scores import GroupScores, Score, number
from surefoot.experiments.methods import METHODS
from surefoot.experiments.run import PartStudy, Study
from surefoot.intervals import LEVEL, quantile_of
from surefoot.metrics import METRICS
from surefoot.predictions.outcomes import Array, Index, clipped_loss
from surefoot.predictions.predictions import Predictions
from surefoot.report.study_questions import question_tables
from surefoot.report.study_tables import TableContext, comparison_tables, headline_table, safe_name
from surefoot.report.study_verdict import Choice, choice_of, verdict_of
from surefoot.report.tables import (
    Column,
    Row,
    Section,
    Table,
    TableCell,
    distinguishing,
)
from surefoot.text import interval_text, number_text

GROUPS_SHOWN = 60
GROUP_METRICS = ("nll", "label_error", "e99")  # of the table of subgroups


def table_context(part: PartStudy) -> TableContext:
    """The task and backbone of a part, and the paper's task to compare with."""
    return TableContext(part.plan.task, part.plan.recipe.network, part.part.paper)


def part_names(study: Study) -> list[str]:
    """A name for each part that can be part of a file's name; all different."""
    tasks = [safe_name(part.plan.task) for part in study.parts]
    networks = [safe_name(part.plan.recipe.network) for part in study.parts]
    names: list[str] = []
    for task, network in zip(tasks, networks, strict=True):
        name = task if tasks.count(task) == 1 else f"{task}-{network}"
        same = sum(other == name or other.startswith(f"{name}--") for other in names)
        names.append(f"{name}--{same + 1}" if same else name)
    return names


@dataclass(frozen=True, eq=False)
class PartReport:
    """What is reported of one task: each is computed once, for terminal, page, JSON and files."""

    name: str  # of its files, and its anchor in the page
    study: PartStudy

    @cached_property
    def context(self) -> TableContext:
        """The task and backbone, and the paper's task to compare with."""
        return table_context(self.study)

    @cached_property
    def choice(self) -> Choice | None:
        """The method to use."""
        return choice_of(self.study)

    @property
    def recommended(self) -> str | None:
        """Its name."""
        return None if self.choice is None else self.choice.chosen.name

    @cached_property
    def verdict(self) -> list[str]:
        """Why it, in sentences."""
        return verdict_of(self.study, self.choice)

    @cached_property
    def headline(self) -> list[Table]:
        """The table of the most important metrics; none where no network is in the store."""
        comparison = self.study.comparison
        table = headline_table(comparison, self.context)
        return [distinguishing(table)] if comparison.sides and table.rows else []

    @cached_property
    def questions(self) -> list[Table]:
        """The paper's questions, answered."""
        return question_tables(self.study.comparison, self.context)

    @cached_property
    def tables(self) -> list[Table]:
        """The paper's tables, differences and costs."""
        return comparison_tables(self.study.comparison, self.context)

    @cached_property
    def groups(self) -> "Subgroups | None":
        """The scores of subgroups."""
        return subgroups(self.study, self.recommended)

    def document(self, groups: "Subgroups | None" = None) -> dict[str, Any]:
        """Plain data for JSON, null where undefined; with the subgroups if they are given."""
        part, choice = self.study, self.choice
        return {
            "name": self.name,
            "task": part.plan.task,
            "network": part.plan.recipe.network,
            "verdict": self.verdict,
            "recommended": self.recommended,
            "level_with_the_best": [] if choice is None else [method.name for method in choice.tied],
            "skipped": list(part.plan.skipped),
            "level": LEVEL,
            "methods": [_method_document(method, part.comparison) for method in part.comparison.methods],
            "groups": None if groups is None else _groups_document(groups),
        }


def part_reports(study: Study) -> tuple[PartReport, ...]:
    """A report of every part."""
    return tuple(map(PartReport, part_names(study), study.parts))


@dataclass(frozen=True)
class Subgroups:
    """The scores of every subgroup: a row has its side, and its scores under each method."""

    titles: tuple[str, ...]  # of the methods
    rows: tuple[tuple[str, tuple[GroupScores, ...]], ...]  # by side, the last method's highest NLL first


def subgroups(part: PartStudy, recommended: str | None) -> Subgroups | None:
    """Subgroups in the first run of the single network and of the recommended method; None without any."""
    with_runs = {method.name: method for method in part.comparison.methods if method.runs}
    methods = [with_runs[name] for name in dict.fromkeys(("single", recommended)) if name in with_runs]
    rows: list[tuple[str, tuple[GroupScores, ...]]] = []
    for side in TEST_SPLITS:
        outputs = [method.runs[0].sides.get(side) for method in methods]
        grouped = [p for p in outputs if p is not None and p.groups is not None and p.outcomes.total]
        if len(grouped) == len(methods) and methods:
            by_group = zip(*(_group_scores(predictions) for predictions in grouped), strict=True)
            rows += [
                (side, scores)
                for scores in sorted(by_group, key=lambda scores: -scores[-1].metrics["nll"].value)
            ]
    return Subgroups(tuple(method.title for method in methods), tuple(rows)) if rows else None


def _group_scores(predictions: Predictions) -> list[GroupScores]:
    """The scores of each subgroup; proportions have exact intervals, the clipped NLL has Student's."""
    assert predictions.groups is not None
    row, losses = predictions.outcomes.row, clipped_loss(predictions.outcomes)
    group_of = np.unique(predictions.groups[row], return_inverse=True)[1]
    parts = np.split(np.argsort(group_of, kind="stable"), np.cumsum(np.bincount(group_of))[:-1])
    counted = [METRICS.named(name) for name in GROUP_METRICS[1:]]
    groups = evaluate(predictions, metrics=counted, resamples=0).sides["familiar"].groups
    result = []
    for group, part in zip(groups, parts, strict=True):
        nll = mean_score(losses[part], row[part])
        result.append(GroupScores(group.group, group.n, {"nll": nll, **group.metrics}))
    return result


def mean_score(values: Array, row: Index) -> Score:
    """The mean of values that belong to rows, with Student's interval over the rows' sums."""
    _, place = np.unique(row, return_inverse=True)
    rows, mean = int(place.max()) + 1, float(values.mean())
    if rows < 2:
        return Score(mean)
    excess = np.bincount(place, values - mean)
    error = math.sqrt(rows / (rows - 1) * float(excess @ excess)) / len(values)
    reach = quantile_of(rows - 1) * error
    return Score(mean, max(0.0, mean - reach), mean + reach)


def subgroup_table(groups: Subgroups) -> Table:
    """The first subgroups of each side, with k of n for proportions."""

    def cell(score: Score) -> TableCell:
        count = "" if score.n is None or math.isnan(score.value) else f"{score.k}/{score.n} = "
        interval = interval_text(score.low, score.high, 3) or None
        return TableCell(f"{count}{number_text(score.value, 3)}", detail=interval)

    rows: dict[str, list[Row]] = {}
    for side, scores in groups.rows[:GROUPS_SHOWN]:
        cells = (cell(each.metrics[name]) for name in GROUP_METRICS for each in scores)
        names = (TableCell(scores[0].group), TableCell(f"{scores[0].n:,}"))
        rows.setdefault(side, []).append((*names, *cells))
    metrics = [METRICS.named(name).title for name in GROUP_METRICS]
    columns = (Column(title, metric) for metric in metrics for title in groups.titles)
    notes = ["95% intervals: exact for proportions, Student's over samples for the NLL."]
    if len(groups.rows) > GROUPS_SHOWN:
        notes.append(f"The first {GROUPS_SHOWN} are listed; all are in report.json.")
    return Table(
        "By subgroup, first run",
        (Column("subgroup", align="left"), Column("n"), *columns),
        tuple(Section(side, tuple(of_side)) for side, of_side in rows.items()),
        tuple(notes),
    )


def fitted_table(comparison: Comparison) -> Table:
    """The fitted values of each method that fits something, over its runs."""
    header = ("method", "values, a number for each run", "novelty AUROC", "remarks on the first run")
    rows = []
    for method in comparison.methods:
        calibrations = [run.calibration for run in method.runs if run.calibration is not None]
        if not calibrations:
            continue
        aurocs = [run.novelty_auroc for run in method.runs if run.novelty_auroc is not None]
        defined = _list([value for value in aurocs if math.isfinite(value)])
        novelty = f"{METHODS.named(method.name).novelty}: {defined}" if defined else ""
        values = [
            f"{name} = {_list([value for c in calibrations for value in c.parameters()[name]])}"
            for name in calibrations[0].parameters()
        ]
        details = [calibration.details() for calibration in calibrations]
        values += [
            f"{label} {_list([each[label] for each in details if label in each])}"
            for label in dict.fromkeys(label for each in details for label in each)
        ]
        rows.append((method.label, "; ".join(values), novelty, "; ".join(calibrations[0].remarks())))
    return Table.of_text("", header, rows)


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def _method_document(method: MethodRuns, comparison: Comparison) -> dict[str, Any]:
    return {
        "name": method.name,
        "title": method.title,
        "cheating": method.oracle,
        "beyond_the_paper": method.not_in_paper,
        "runs": [run.run for run in method.runs],
        "missing": list(method.missing),
        "seconds_training": method.seconds_training,
        "seconds_per_sample": method.seconds_per_sample,
        "parameters": method.parameters,
        "scores": {
            side: {m.name: _cell_document(method.cells[side, m.name]) for m in comparison.metrics}
            for side in comparison.sides
        },
        "fitted": [
            {
                "run": run.run,
                "calibration": None if run.calibration is None else calibration_document(run.calibration),
                "parameters": None if run.calibration is None else run.calibration.parameters(),
                "novelty_auroc": None if run.novelty_auroc is None else number(run.novelty_auroc),
            }
            for run in method.runs
        ],
    }


def _cell_document(cell: Cell) -> dict[str, Any]:
    gaps = {"from_baseline": cell.from_baseline, "from_best": cell.from_best}
    return {
        **_numbers(cell, "mean", "deviation"),
        "runs": [{"run": s.run, "value": number(s.value), "k": s.k, "n": s.n} for s in cell.runs],
        "mark": cell.mark.value,
        "p": number(cell.p),
    } | {
        name: None if gap is None else {**_numbers(gap, "value", "low", "high"), "pairs": gap.pairs}
        for name, gap in gaps.items()
    }


def _numbers(of: object, *names: str) -> dict[str, float | None]:
    """Some of its numbers; null where undefined."""
    return {name: number(getattr(of, name)) for name in names}


def _groups_document(groups: Subgroups) -> dict[str, Any]:
    def score_document(score: Score) -> dict[str, Any]:
        return {**_numbers(score, "value", "low", "high"), "k": score.k, "n": score.n}

    rows = [
        {
            "side": side,
            "group": scores[0].group,
            "n": scores[0].n,
            "scores": [
                {name: score_document(score) for name, score in each.metrics.items()} for each in scores
            ],
        }
        for side, scores in groups.rows
    ]
    return {"methods": list(groups.titles), "rows": rows}
