"""Printing: results to standard output, progress and remarks to standard error."""

import json
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any

import typer

from surefoot.errors import Remark
from surefoot.io import all_or_none
from surefoot.text import visible

if TYPE_CHECKING:
    from rich.console import Console

    from surefoot.report.tables import Table

LINE = 80  # characters of a sentence
_settings = {"quiet": False}
_written: list[str] = []


def echo(*lines: str, err: bool = False) -> None:
    """Print lines of text, to standard error if `err`: what is in names is shown, never run by a terminal."""
    typer.echo("\n".join(map(visible, lines)), err=err)


def show_progress(*, quiet: bool) -> None:
    """Whether this command shows bars and spinners."""
    _settings["quiet"] = quiet


@contextmanager
def remarks_as_notes() -> Iterator[None]:
    """A block whose remarks are printed as notes, each once."""
    said, shown = set(), warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, Remark):
            shown(message, category, *where, **more)
        elif str(message) not in said:
            said.add(str(message))
            echo(f"note: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Remark)
        warnings.showwarning = show
        yield


def echo_written(line: str) -> None:
    """Print a line to standard error once the files of this command are in place."""
    _written.append(line)


def all_written_or_none(command: Callable[..., None]) -> Callable[..., None]:
    """The command with all its files put in place at the end, after what it prints could be written."""

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        failed: typer.Exit | None = None
        _written.clear()
        with all_or_none():
            try:
                command(*arguments, **options)
            except typer.Exit as exit_code:  # a target that is missed: the files say so
                failed = exit_code
            sys.stdout.flush()
        for line in _written:
            echo(line, err=True)
        if failed is not None:
            raise failed

    return wrapped


def notes() -> "Console":
    """The console on standard error, which prints nothing with --quiet; text is never read as markup."""
    from rich.console import Console  # here, so that a refusal does not wait for it

    quiet = _settings["quiet"]
    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False, quiet=quiet)


def is_animated(console: "Console") -> bool:
    """Whether bars and spinners can be drawn."""
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """A spinner during something of unknown duration."""
    from rich.text import Text

    console = notes()
    if not is_animated(console):
        yield
        return
    with console.status(Text(visible(doing))):
        yield


@contextmanager
def progress(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar with the rate per second and the time left, removed when done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    description, rate = (
        TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[rate]}")
    )
    columns, console = (description, BarColumn(), rate, TimeRemainingColumn()), notes()
    with Progress(*columns, console=console, transient=True, disable=not is_animated(console)) as bar:
        task = bar.add_task(visible(doing), total=total, rate="")

        def tick(steps: int) -> None:
            bar.advance(task, steps)
            speed = bar.tasks[0].speed or 0.0
            bar.update(task, rate=f"{speed / 1e6:.2f} M/s" if speed >= 1e5 else f"{speed:,.0f}/s")

        yield tick


def print_sentences(sentences: Iterable[str]) -> None:
    """Print sentences, each on lines of at most 80 characters, and an empty line after them."""
    lines = [
        line for each in sentences for line in textwrap.wrap(visible(each), LINE, break_long_words=False)
    ]
    if lines:
        echo(*lines, "")


def print_tables(tables: Sequence["Table"]) -> None:
    """Print tables: plain text, or in a terminal with bold numbers; only text wraps, no number is cut."""
    from surefoot.report.table_text import notes_text, to_terminal, to_text

    if not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        for table in tables:
            typer.echo("\n".join([*to_text(table), *notes_text(table), ""]))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for table in tables:
        console.print(to_terminal(table, console.width), soft_wrap=True)
        for note in table.notes:
            console.print(Text(visible(note)), width=min(LINE, console.width))
        console.print()


class Format(StrEnum):
    """How numbers are printed."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"


def print_as(
    output_format: Format,
    tables: Sequence["Table"],
    document: Callable[[], object],
    csv: Callable[[], str],
) -> None:
    """Print a result as tables, or as the whole of its numbers."""
    from surefoot.report.tables import to_latex, to_markdown

    match output_format:
        case Format.TABLE:
            print_tables(tables)
        case Format.JSON:
            typer.echo(json.dumps(document(), indent=2))
        case Format.MARKDOWN:
            typer.echo(to_markdown(tables))
        case Format.LATEX:
            typer.echo(to_latex(tables))
        case Format.CSV:
            typer.echo(csv(), nl=False)
