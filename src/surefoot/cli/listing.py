"""`surefoot ls`: what there is to choose from."""

from enum import StrEnum
from typing import Annotated

import typer


class Shelf(StrEnum):
    """What can be listed."""

    METRICS = "metrics"
    CALIBRATORS = "calibrators"
    TASKS = "tasks"


def ls(what: Annotated[Shelf, typer.Argument(help="What to list.")]) -> None:
    """List the metrics and calibrators, with formula and reference, or the tasks."""
    from surefoot.cli.terminal import print_tables
    from surefoot.report.table import Table

    if what is Shelf.METRICS:
        from surefoot.metrics import METRICS

        header: tuple[str, ...] = ("name", "formula", "better", "reference")
        rows: tuple[tuple[str, ...], ...] = tuple((m.name, m.formula, m.better, m.reference) for m in METRICS)
    elif what is Shelf.TASKS:
        from surefoot.tasks import TASKS

        header = ("name", "title", "description")
        rows = tuple((t.name, t.title, t.description) for t in TASKS)
    else:
        from surefoot.calibrators import CALIBRATORS

        header = ("name", "formula", "reference")
        rows = tuple((c.name, c.formula, c.reference) for c in CALIBRATORS)
    print_tables([Table(what.value.capitalize(), header, rows)])
