"""A study as plain data for JSON: every number of the page, NaN as null."""

from typing import Any

from surefoot.calibrators import calibration_document
from surefoot.comparison import Cell, Comparison, Difference
from surefoot.documents import number
from surefoot.report.study_choice import Choice
from surefoot.report.study_groups import GroupTable
from surefoot.results import Result
from surefoot.runner import PartStudy
from surefoot.scoring import Score
from surefoot.statistics import LEVEL


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
            "cheating": method.about.cheating,
            "beyond_the_paper": method.about.beyond,
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
