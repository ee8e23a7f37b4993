"""What changed between two experiments, as tables, CSV, plain data, sentences and a plot."""

from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes

import surefoot.plots as plots
from surefoot.errors import InputError
from surefoot.evaluation.scores import SIDES, number
from surefoot.experiments.changes import Change, ExperimentChange, TaskChange
from surefoot.intervals import Interval
from surefoot.report.tables import Table, rows_csv
from surefoot.report.views import View
from surefoot.text import count_of, number_text, signed_interval_text, signed_text

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


def value_tables(change: ExperimentChange) -> list[Table]:
    """The values that differ, if any do."""
    rows = [(each.name, each.before or "", each.after or "") for each in change.settings]
    return [Table.of_text("Values that differ", ("value", "before", "after"), rows)] if rows else []


def task_tables(change: ExperimentChange) -> list[Table]:
    """A table for each task that both have: a row per method, metric and side."""
    return [_task_table(task) for task in change.tasks if any(method.changes for method in task.methods)]


def _task_table(task: TaskChange) -> Table:
    header = ["method", "metric", "side", "before", "after", "difference", "95% interval", "runs"]
    heading = f"{task.task}: F familiar, U unfamiliar"
    runs = {each.runs for method in task.methods for each in method.changes}
    if len(runs) == 1:  # a column of the same number would not fit 80 columns
        header, heading = header[:-1], f"{heading}; {count_of(min(runs), 'run')}"
    rows = []
    for method in task.methods:
        order = list(dict.fromkeys(each.metric.name for each in method.changes))
        # Familiar and unfamiliar next to each other.
        for each in sorted(method.changes, key=lambda each: order.index(each.metric.name)):
            gap = each.difference
            texts = (
                number_text(each.before, undefined="undefined"),
                number_text(each.after, undefined="undefined"),
                signed_text(gap.value, undefined="undefined") + "*" * each.clear,
                signed_interval_text(gap.low, gap.high),
            )
            row = (method.title, each.metric.title, SHORT[each.side], *texts, str(each.runs))
            rows.append(row[: len(header)])
    return Table.of_text(heading, header, rows)


def change_notes(change: ExperimentChange) -> list[str]:
    """What the tables do not show."""
    notes = [] if change.settings else ["The values of both experiments are the same."]
    for which, tasks in (("before", change.only_before), ("after", change.only_after)):
        if tasks:
            notes.append(f"Tasks only {which}: {', '.join(tasks)}.")
    for task in change.tasks:
        for which, methods in (("before", task.only_before), ("after", task.only_after)):
            if methods:
                notes.append(f"{task.task}, methods only {which}: {', '.join(methods)}.")
        if task.missing:
            notes.append(f"{task.task}, missing and not averaged in: {', '.join(task.missing)}.")
        notes += _interval_notes(task)
    if not change.tasks:
        notes.append("No task is in both, so there are no numbers to compare.")
    return notes


def _interval_notes(task: TaskChange) -> list[str]:
    changes = [change for method in task.methods for change in method.changes]
    if not changes:
        return [f"{task.task}: no method has runs in both."]
    notes = [
        f"{task.task}: the {side} samples before and after are not the same, so the differences are "
        "unpaired: each side was resampled on its own."
        for side in SIDES
        if any(change.side == side and not change.paired for change in changes)
    ]
    clear = sum(change.clear for change in changes)
    counted = f"{clear} of {len(changes)} differences (*) have a 95% interval over rows that excludes 0."
    one_run = max(change.runs for change in changes) < 2
    caution = " There is one run, so variation between training runs is unknown." if one_run else ""
    return [*notes, f"{task.task}: {counted}{caution}"]


def change_rows(change: ExperimentChange) -> Iterator[dict[str, Any]]:
    """A row per task, method, metric and side."""
    for task in change.tasks:
        for method in task.methods:
            for each in method.changes:
                yield {"task": task.task, "method": method.name, **_change_row(each)}


def _change_row(change: Change) -> dict[str, Any]:
    gap = change.difference
    return {
        "metric": change.metric.name,
        "side": change.side,
        "before": change.before,
        "after": change.after,
        "difference": gap.value,
        "low": gap.low,
        "high": gap.high,
        "runs": change.runs,
        "paired": change.paired,
    }


def change_csv(change: ExperimentChange) -> str:
    """The rows in full precision, empty where undefined."""
    return rows_csv(HEADER, change_rows(change))


def change_document(change: ExperimentChange) -> dict[str, Any]:
    """Plain data for JSON; null where undefined."""
    experiments = {
        which: {"folder": str(run.folder), "experiment": run.experiment.as_dict()}
        for which, run in (("before", change.before), ("after", change.after))
    }
    tasks = []
    for task in change.tasks:
        methods = {
            method.name: [
                {name: number(v) if isinstance(v, float) else v for name, v in _change_row(each).items()}
                for each in method.changes
            ]
            for method in task.methods
        }
        only = {"only_before": task.only_before, "only_after": task.only_after}
        tasks.append({"task": task.task, "methods": methods, **only, "missing": task.missing})
    return {
        **experiments,
        "values": [vars(each) for each in change.settings],
        "tasks": tasks,
        "only_before": change.only_before,
        "only_after": change.only_after,
    }


def change_view(change: ExperimentChange) -> View:
    """How the difference of two experiments looks."""
    many = len(change.tasks) > 1

    def draw(ax: Axes | None) -> Axes:
        metric = next((each.metric for t in change.tasks for m in t.methods for each in m.changes), None)
        if metric is None:
            raise InputError("no number is in both experiments; needed: a method that both have")
        intervals = {
            f"{task.task}: {method.title}" if many else method.title: {
                each.side: Interval(each.difference.value, each.difference.low, each.difference.high)
                for each in method.changes
                if each.metric == metric
            }
            for task in change.tasks
            for method in task.methods
        }
        axes = plots.draw_intervals(plots.given_or_new(ax), intervals, f"{metric.title}: after less before")
        axes.axvline(0, color=plots.GREY, linewidth=1)
        return axes

    return View(
        f"Comparison of {change.before.folder.name} and {change.after.folder.name}",
        tuple(change_notes(change)),
        (*task_tables(change), *value_tables(change)),
        lambda: change_rows(change),
        lambda: change_document(change),
        draw,
    )
