"""`surefoot compare`: what changed between two experiments that were run."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.run import run_folder
from surefoot.cli.train import StoreFolder
from surefoot.defaults import RESAMPLES

if TYPE_CHECKING:
    from surefoot.revisions import Revision


class Format(StrEnum):
    """How the numbers are printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


Run = Annotated[
    str, typer.Argument(help="A name of 'surefoot ls runs', or an experiment's folder in any store.")
]


def compare(
    before: Run,
    after: Run,
    store: StoreFolder = Path("runs"),
    resamples: Annotated[
        int, typer.Option(min=0, help="Bootstrap resamples; 0 for no intervals.")
    ] = RESAMPLES,
    output_format: Annotated[
        Format, typer.Option("--format", help="How to print the numbers.")
    ] = Format.TABLE,
) -> None:
    """What changed between two runs: their values, and each method's numbers with intervals."""
    from surefoot.cli.terminal import busy
    from surefoot.revisions import open_run, revision
    from surefoot.store import Store

    opened = [open_run(run_folder(Store(store), name)) for name in (before, after)]
    with busy("scoring and resampling"):
        found = revision(*opened, resamples=resamples)
    _print(found, output_format)


def _print(revision: "Revision", output_format: Format) -> None:
    import json

    from surefoot.cli.terminal import print_long_tables, print_tables
    from surefoot.report.revision_tables import (
        revision_csv,
        revision_document,
        revision_notes,
        task_tables,
        value_tables,
    )
    from surefoot.report.tables import to_markdown

    notes = revision_notes(revision)
    if output_format is Format.TABLE:
        print_tables(value_tables(revision))
        print_long_tables(task_tables(revision))
        typer.echo("\n".join(notes))
    elif output_format is Format.MARKDOWN:
        typer.echo(to_markdown([*value_tables(revision), *task_tables(revision)]))
        typer.echo("\n".join(f"- {note}" for note in notes))
    elif output_format is Format.CSV:
        typer.echo(revision_csv(revision), nl=False)
    else:
        typer.echo(json.dumps(revision_document(revision), indent=2))
