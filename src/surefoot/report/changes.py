"""What changed between two experiments, as tables, CSV, plain data and sentences."""

from typing import Any

from surefoot.evaluation.scores import SIDES, number
from surefoot.experiments.changes import Change, ExperimentChange, TaskChange
from surefoot.report.tables import Table
from surefoot.text import count_of, csv_text, exact_text, number_text, signed_interval_text, signed_text

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


def change_csv(change: ExperimentChange) -> str:
    """A line per task, method, metric and side, in full precision; empty where undefined."""
    lines = []
    for task in change.tasks:
        for method in task.methods:
            for each in method.changes:
                numbers = (exact_text(value) for value in _numbers(each).values())
                names = (task.task, method.name, each.metric.name, each.side)
                lines.append((*names, *numbers, each.runs, "yes" if each.paired else "no"))
    return csv_text(HEADER, lines)


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
                {
                    "metric": each.metric.name,
                    "side": each.side,
                    **{name: number(value) for name, value in _numbers(each).items()},
                    "runs": each.runs,
                    "paired": each.paired,
                }
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


def _numbers(change: Change) -> dict[str, float]:
    gap = change.difference
    return {
        "before": change.before,
        "after": change.after,
        "difference": gap.value,
        "low": gap.low,
        "high": gap.high,
    }
