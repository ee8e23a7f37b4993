"""What the commands print with: results to standard output, progress and remarks to standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from surefoot.report.tables import MethodTable, Table

WIDE = 120  # from here on a table of methods has room for its lines
PLAIN_WIDTH = 150  # where there is no terminal to ask


def notes() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """A spinner while something of unknown length goes on."""
    console = notes()
    if not console.is_terminal:
        yield
        return
    with console.status(doing):
        yield


@contextmanager
def progress(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with the time left; gone when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    console = notes()
    quiet = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def reading(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar with how many a second; gone when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"))
    console = notes()
    quiet = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(doing, total=total, rate="")

        def tick(rows: int) -> None:
            bar.advance(task, rows)
            speed = bar.tasks[0].speed or 0.0
            bar.update(task, rate=f"{speed / 1e6:.2f} M/s" if speed >= 1e5 else f"{speed:,.0f}/s")

        yield tick


def print_tables(tables: "list[Table]") -> None:
    """Tables for people to read."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for table in tables:
        console.print(_rich(table))


def print_long_tables(tables: "list[Table]") -> None:
    """Tables whose numbers are never cut: only the first column may wrap; no lines in a narrow terminal."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for table in tables:
        shown = _rich(table)
        for column in shown.columns[1:]:
            column.no_wrap = True
        if console.width < WIDE:
            shown.box, shown.padding = None, (0, 1, 0, 0)
        console.print(shown)


def _rich(table: "Table") -> RichTable:
    shown = RichTable(title=table.title, title_justify="left")
    for index, name in enumerate(table.header):
        numeric = index and all(row[index][:1] in "+-0123456789u" for row in table.rows)
        shown.add_column(name, justify="right" if numeric else "left")
    for row in table.rows:
        shown.add_row(*(cell.replace("[", r"\[") for cell in row))
    return shown


def print_grids(grids: "list[MethodTable]") -> None:
    """Tables of methods; where there is no terminal to show bold numbers, as Markdown."""
    from surefoot.report.tables import grid_rich, grids_markdown

    if not sys.stdout.isatty():
        sys.stdout.write(grids_markdown(grids))
        return
    console = Console(highlight=False)
    for grid in grids:
        shown = grid_rich(grid)
        for column in shown.columns[1:]:
            column.no_wrap = True
        if console.width < WIDE:  # no lines, so that the numbers have room
            shown.box, shown.padding = None, (0, 1, 0, 0)
        console.print(shown)
