"""What changed between two experiments, as tables, CSV, plain data and sentences."""

import math
from typing import Any

from surefoot.evaluation.scores import SIDES
from surefoot.evaluation.scores_csv import csv_text, number_text
from surefoot.experiments.changes import Change, ExperimentChange, MethodChange, Opened, TaskChange
from surefoot.report.tables import Table

HEADER = (
    "task",
    "method",
    "metric",
    "side",
    "before",
    "after",
    "difference",
    "low",
    "high",
    "runs",
    "paired",
)
SHORT = dict(zip(SIDES, "FU", strict=True))


def value_tables(revision: ExperimentChange) -> list[Table]:
    """The values that differ, if any do."""
    rows = tuple((each.name, each.before or "", each.after or "") for each in revision.settings)
    return [Table("Values that differ", ("value", "before", "after"), rows)] if rows else []


def task_tables(revision: ExperimentChange) -> list[Table]:
    """A table for each task that both have: a row per method, metric and side."""
    return [_task_table(task) for task in revision.tasks if any(method.changes for method in task.methods)]


def revision_notes(revision: ExperimentChange) -> list[str]:
    """What the tables do not say."""
    found = [] if revision.settings else ["The values of both experiments are the same."]
    for which, tasks in (("before", revision.only_before), ("after", revision.only_after)):
        if tasks:
            found.append(f"Tasks only {which}: {', '.join(tasks)}.")
    for task in revision.tasks:
        for which, methods in (("before", task.only_before), ("after", task.only_after)):
            if methods:
                found.append(f"{task.task}, methods only {which}: {', '.join(methods)}.")
        if task.missing:
            found.append(f"{task.task}, missing and not averaged in: {', '.join(task.missing)}.")
        found += _about_intervals(task)
    if not revision.tasks:
        found.append("No task is in both, so there are no numbers to compare.")
    return found


def _about_intervals(task: TaskChange) -> list[str]:
    every = [change for method in task.methods for change in method.changes]
    if not every:
        return [f"{task.task}: no method has runs in both."]
    found = []
    for side in SIDES:
        if any(change.side == side and not change.paired for change in every):
            found.append(
                f"{task.task}: the {side} samples are not the same before and after, so the differences are "
                "unpaired: each side of them was resampled by itself."
            )
    clear = sum(change.clear for change in every)
    one_run = " There is one run, so nothing is said of other trainings." if _one_run(every) else ""
    counted = f"{clear} of {len(every)} differences (*) have a 95% interval over images without 0."
    return [*found, f"{task.task}: {counted}{one_run}"]


def _one_run(every: list[Change]) -> bool:
    return max(change.runs for change in every) < 2


def _task_table(task: TaskChange) -> Table:
    header = ("method", "metric", "side", "before", "after", "difference", "95% interval", "runs")
    rows = tuple((method.title, *_texts(change)) for method in task.methods for change in _by_metric(method))
    return Table(f"{task.task}: F familiar, U unfamiliar", header, rows)


def _by_metric(method: MethodChange) -> list[Change]:
    """Familiar and unfamiliar side by side."""
    order = list(dict.fromkeys(change.metric.name for change in method.changes))
    return sorted(method.changes, key=lambda change: order.index(change.metric.name))


def _texts(change: Change) -> tuple[str, ...]:
    gap = change.difference
    ends = "" if math.isnan(gap.low) else f"[{_signed(gap.low)}, {_signed(gap.high)}]"
    difference = "undefined" if math.isnan(gap.value) else f"{_signed(gap.value)}{'*' * change.clear}"
    numbers = (_number(change.before), _number(change.after), difference, ends)
    return (change.metric.title, SHORT[change.side], *numbers, str(change.runs))


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.4f}"


def _signed(value: float) -> str:
    return f"{round(value, 4) + 0.0:+.4f}"  # adding 0 turns a rounded -0.0 into +0.0


def revision_csv(revision: ExperimentChange) -> str:
    """A line per task, method, metric and side, in full precision; empty where undefined."""
    lines = []
    for task in revision.tasks:
        for method in task.methods:
            for change in method.changes:
                gap = change.difference
                values = (change.before, change.after, gap.value, gap.low, gap.high)
                numbers = (number_text(value) for value in values)
                names = (task.task, method.name, change.metric.name, change.side)
                lines.append((*names, *numbers, change.runs, "yes" if change.paired else "no"))
    return csv_text(HEADER, lines)


def revision_document(revision: ExperimentChange) -> dict[str, Any]:
    """Plain data for JSON; null where undefined."""
    return {
        "before": _opened(revision.before),
        "after": _opened(revision.after),
        "values": [vars(each) for each in revision.settings],
        "tasks": [
            {
                "task": task.task,
                "methods": {m.name: [_change(change) for change in m.changes] for m in task.methods},
                "only_before": task.only_before,
                "only_after": task.only_after,
                "missing": task.missing,
            }
            for task in revision.tasks
        ],
        "only_before": revision.only_before,
        "only_after": revision.only_after,
    }


def _opened(run: Opened) -> dict[str, Any]:
    return {"folder": str(run.folder), "experiment": run.experiment.as_dict()}


def _change(change: Change) -> dict[str, Any]:
    gap = change.difference
    numbers = {
        "before": change.before,
        "after": change.after,
        "difference": gap.value,
        "low": gap.low,
        "high": gap.high,
    }
    plain = {name: None if math.isnan(value) else value for name, value in numbers.items()}
    return {
        "metric": change.metric.name,
        "side": change.side,
        **plain,
        "runs": change.runs,
        "paired": change.paired,
    }
