"""Printing: results to standard output, progress and remarks to standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from surefoot.report.tables import MethodTable, Table

WIDE = 120  # columns; narrower terminals get tables of methods without lines
PLAIN_WIDTH = 150  # without a terminal


def notes() -> Console:
    """The console on standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """A spinner during something of unknown duration."""
    console = notes()
    if not console.is_terminal:
        yield
        return
    with console.status(doing):
        yield


@contextmanager
def progress(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with the time left, removed when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    console = notes()
    quiet = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def reading(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar with the rate per second, removed when done."""
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
    """Print tables."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for table in tables:
        console.print(_rich(table))


def print_long_tables(tables: "list[Table]") -> None:
    """Print tables whose numbers are never cut: only the first column wraps."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for table in tables:
        _print_long(_rich(table), console)


def _rich(table: "Table") -> RichTable:
    rich_table = RichTable(title=table.title, title_justify="left")
    for index, name in enumerate(table.header):
        numeric = index and all(row[index][:1] in "+-0123456789u" for row in table.rows)
        rich_table.add_column(name, justify="right" if numeric else "left")
    for row in table.rows:
        rich_table.add_row(*(cell.replace("[", r"\[") for cell in row))
    return rich_table


def _print_long(table: RichTable, console: Console) -> None:
    for column in table.columns[1:]:
        column.no_wrap = True
    if console.width < WIDE:  # without lines there is space for the numbers
        table.box, table.padding = None, (0, 1, 0, 0)
    console.print(table)


def print_grids(grids: "list[MethodTable]") -> None:
    """Print tables of methods; without a terminal, which shows bold numbers, as Markdown."""
    from surefoot.report.tables import grid_rich, grids_markdown

    if not sys.stdout.isatty():
        sys.stdout.write(grids_markdown(grids))
        return
    console = Console(highlight=False)
    for grid in grids:
        _print_long(grid_rich(grid), console)
