"""Printing: results to standard output, progress and remarks to standard error."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from surefoot.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from surefoot.report.tables import Table

WIDE = 120  # columns; narrower terminals get tables of methods without lines
PLAIN_WIDTH = 150  # without a terminal


def echo(*lines: str, err: bool = False) -> None:
    """Print lines of text, to standard error if `err`: what is in names is shown, never run by a terminal."""
    typer.echo("\n".join(map(visible, lines)), err=err)


def notes() -> "Console":
    """The console on standard error; text is never read as markup."""
    from rich.console import Console  # here, so that a refusal does not wait for it

    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """A spinner during something of unknown duration."""
    from rich.text import Text

    console = notes()
    if not console.is_terminal:
        yield
        return
    with console.status(Text(visible(doing))):
        yield


@contextmanager
def progress(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with the time left, removed when done."""
    with _bar("{task.percentage:>3.0f}%") as bar:
        task = bar.add_task(visible(doing), total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def reading(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar with the rate per second, removed when done."""
    with _bar("{task.fields[rate]}") as bar:
        task = bar.add_task(visible(doing), total=total, rate="")

        def tick(rows: int) -> None:
            bar.advance(task, rows)
            speed = bar.tasks[0].speed or 0.0
            bar.update(task, rate=f"{speed / 1e6:.2f} M/s" if speed >= 1e5 else f"{speed:,.0f}/s")

        yield tick


def _bar(measure: str) -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn(measure))
    console = notes()
    quiet = not console.is_terminal
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet)


def print_tables(tables: Sequence["Table"]) -> None:
    """Print tables."""
    from rich.console import Console

    from surefoot.report.tables import to_rich

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for table in tables:
        console.print(to_rich(table))


def print_long_tables(tables: Sequence["Table"]) -> None:
    """Print tables whose numbers are never cut: only the first column wraps."""
    from rich.console import Console

    from surefoot.report.tables import to_rich

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for table in tables:
        rich = to_rich(table)
        rich.columns[0].overflow = "fold"
        for column in rich.columns[1:]:
            column.no_wrap = True
        if console.width < WIDE:  # without lines there is space for the numbers
            rich.box, rich.padding = None, (0, 1, 0, 0)
        console.print(rich)


def print_method_tables(tables: Sequence["Table"]) -> None:
    """Print tables of methods; as Markdown where there is no terminal to show bold numbers."""
    from surefoot.report.tables import to_markdown

    if sys.stdout.isatty():
        print_long_tables(tables)
    else:
        sys.stdout.write(to_markdown(tables))
