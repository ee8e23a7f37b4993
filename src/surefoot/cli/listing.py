"""`surefoot ls`: what there is to choose from."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.train import StoreFolder
from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.report.table import Table
    from surefoot.store import Store


class Shelf(StrEnum):
    """What can be listed."""

    METHODS = "methods"
    EXPERIMENTS = "experiments"
    RUNS = "runs"
    TASKS = "tasks"
    METRICS = "metrics"
    CALIBRATORS = "calibrators"


def ls(
    what: Annotated[Shelf, typer.Argument(help="What to list.")],
    store: StoreFolder = Path("runs"),
) -> None:
    """List methods, experiments, tasks, metrics or calibrators, or the runs in a store."""
    from surefoot.cli.terminal import print_tables

    if what is Shelf.RUNS:
        print_tables([_runs(store)])
        return
    tables = {
        Shelf.METHODS: _methods,
        Shelf.EXPERIMENTS: _experiments,
        Shelf.TASKS: _tasks,
        Shelf.METRICS: _metrics,
        Shelf.CALIBRATORS: _calibrators,
    }
    print_tables([tables[what]()])


def _methods() -> "Table":
    from surefoot.methods import METHODS
    from surefoot.report.table import Table

    header = ("name", "formula", "networks to train", "passes to run", "from")
    rows = tuple((m.name, m.formula, m.training, m.inference, m.origin) for m in METHODS)
    return Table("Methods (M: members of an ensemble)", header, rows)


def _experiments() -> "Table":
    from surefoot.experiments import EXPERIMENTS
    from surefoot.report.table import Table

    header = ("name", "tasks", "methods", "members", "runs", "about")
    rows = tuple(
        (
            each.name,
            ", ".join(dict.fromkeys(part.task for part in each.parts)),
            str(len(each.methods)),
            str(each.members),
            str(each.runs),
            each.about,
        )
        for each in EXPERIMENTS
    )
    return Table("Experiments", header, rows)


def _runs(root: Path) -> "Table":
    from surefoot.report.table import Table
    from surefoot.store import Store

    if not root.is_dir():
        raise InputError(f"no store at {root}; allowed: a folder that 'surefoot run' made")
    store = Store(root)
    rows = tuple(_run(folder, store) for folder in store.experiments())
    return Table(f"Runs in {root}", ("name", "tasks", "networks done", "missing", "report"), rows)


def _run(folder: Path, store: "Store") -> tuple[str, ...]:
    """A run's row; one that cannot be read says so, and the others are listed all the same."""
    from surefoot.runner import read_folder, undone

    try:
        _, plans = read_folder(folder)
    except InputError as error:
        return (folder.name, str(error), "", "", "")
    ordered = sum(len(plan.jobs()) for plan in plans)
    missing = sum(len(undone(plan, store)) for plan in plans)
    tasks = ", ".join(dict.fromkeys(plan.task for plan in plans))
    report = "yes" if (folder / "report.html").is_file() else "no"
    return (folder.name, tasks, str(ordered - missing), str(missing), report)


def _tasks() -> "Table":
    from surefoot.report.table import Table
    from surefoot.tasks import TASKS

    return Table(
        "Tasks", ("name", "title", "description"), tuple((t.name, t.title, t.description) for t in TASKS)
    )


def _metrics() -> "Table":
    from surefoot.metrics import METRICS
    from surefoot.report.table import Table

    rows = tuple((m.name, m.formula, m.better, m.reference) for m in METRICS)
    return Table("Metrics", ("name", "formula", "better", "reference"), rows)


def _calibrators() -> "Table":
    from surefoot.calibrators import CALIBRATORS
    from surefoot.report.table import Table

    rows = tuple((c.name, c.formula, c.reference) for c in CALIBRATORS)
    return Table("Calibrators", ("name", "formula", "reference"), rows)
