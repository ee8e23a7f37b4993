"""The commands, in the order that `surefoot --help` shows them."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from surefoot import __version__
from surefoot.cli.calibrate import CalibrateCommand, apply, calibrate
from surefoot.cli.data import data
from surefoot.cli.deploy import bundle, export, predict, predictions, serve
from surefoot.cli.doctor import doctor
from surefoot.cli.embed import embed
from surefoot.cli.ending import EXIT_CODES, QUIET, Commands
from surefoot.cli.evaluate import evaluate
from surefoot.cli.listing import ls
from surefoot.cli.monitor import monitor
from surefoot.cli.run import compare, report, run
from surefoot.cli.sets import sets
from surefoot.cli.terminal import all_written_or_none, echo, show_progress
from surefoot.cli.thresholds import thresholds
from surefoot.cli.train import train, tune
from surefoot.registry import load_plugins, plugin_path, search_in

app = typer.Typer(
    name="surefoot",
    cls=Commands,
    epilog=EXIT_CODES,
    help="Measure how reliable a classifier's confidence is on unfamiliar data, and calibrate it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, report, compare, evaluate, calibrate, apply, thresholds, sets, monitor),
    *(predictions, bundle, predict, serve, export, embed, train, tune, ls, doctor),
)
AT_ONCE = (evaluate, calibrate, apply, thresholds, sets)  # the others record as they go, or write a folder
for command in COMMANDS:
    whole = all_written_or_none(command) if command in AT_ONCE else command
    kind = CalibrateCommand if command is calibrate else None
    app.command(cls=kind)(whole)
app.add_typer(data, name="data")


def _print_version(requested: bool) -> None:
    if requested:
        echo(f"surefoot {__version__}")
        raise typer.Exit


@app.callback()
def top(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SUREFOOT_PLUGINS",
            help="A module or .py file that registers metrics, methods, tasks, ...; can be repeated.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option(*QUIET, envvar="SUREFOOT_QUIET", help="Show no progress.")] = False,
) -> None:
    """Measure how reliable a classifier's confidence is on unfamiliar data, and calibrate it."""
    show_progress(quiet=quiet)
    with suppress(OSError):  # a current folder that was removed
        search_in(Path.cwd())
    load_plugins(plugin_path(name, Path.cwd()) for name in plugin or ())
