"""Printing: results to standard output, progress and remarks to standard error."""

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from surefoot.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from surefoot.report.tables import Table

LINE = 80  # characters of a sentence


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


def print_sentences(sentences: Iterable[str]) -> None:
    """Print sentences, each on lines of at most 80 characters, and an empty line after them."""
    lines = [
        line for each in sentences for line in textwrap.wrap(visible(each), LINE, break_long_words=False)
    ]
    if lines:
        echo(*lines, "")


def print_tables(tables: Sequence["Table"]) -> None:
    """Print tables: plain text, or in a terminal with bold numbers; only text wraps, no number is cut."""
    from surefoot.report.tables import notes_text, to_rich, to_text

    if not sys.stdout.isatty():
        for table in tables:
            typer.echo("\n".join([*to_text(table), *notes_text(table), ""]))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for table in tables:
        console.print(to_rich(table))
        for note in table.notes:
            console.print(Text(visible(note)), width=min(LINE, console.width))
        console.print()
