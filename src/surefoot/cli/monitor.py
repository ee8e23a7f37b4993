"""`surefoot monitor`: has the data shifted?"""

import json
import sys
import warnings
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.inputs import GroupBy, input_files, read_or_chunk, refuse_missing, refuse_wrong_outputs
from surefoot.cli.terminal import echo
from surefoot.errors import InputError, require
from surefoot.predictions.labels import LabelKind
from surefoot.text import path_text

if TYPE_CHECKING:
    from surefoot.monitoring.scores import Scores


class Format(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    JSON = "json"


def monitor(
    reference: Annotated[
        Path, typer.Argument(help="Predictions on familiar data that the network was not trained on.")
    ],
    current: Annotated[Path, typer.Argument(help="Predictions to check; their labels are never used.")],
    calibration: Annotated[Path | None, typer.Option(help="Calibrate both first with this file.")] = None,
    thresholds: Annotated[
        Path | None,
        typer.Option(
            help="A file from 'surefoot thresholds': compare the share accepted; use its calibration."
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="The probability of any false alarm, over all checks of the history.")
    ] = 0.05,
    bound: Annotated[
        float | None,
        typer.Option(
            help="Raise an alarm only if the estimated accuracy also dropped by at least this much."
        ),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="JSON lines, one per check; needed if you check more than once.")
    ] = None,
    first_share: Annotated[
        float | None,
        typer.Option(
            help="The first check's share of alpha, 0.61 by default. A larger share makes all later "
            "checks stricter."
        ),
    ] = None,
    group_by: GroupBy = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a page (HTML).")] = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="How to print the result.")
    ] = Format.TABLE,
    kind: Annotated[
        LabelKind, typer.Option(help="The kind of labels, if the reference has none.")
    ] = LabelKind.ONE_LABEL,
) -> None:
    """Compare unlabelled predictions with a familiar reference; exit with 1 if the data has shifted."""
    require(0 < alpha < 1, "--alpha", alpha, "above 0 and below 1")
    require(bound is None or 0 <= bound <= 1, "--bound", bound, "0 to 1")
    require(first_share is None or 0 < first_share < 1, "--first-share", first_share, "above 0 and below 1")
    if first_share is not None and history is None:
        raise InputError("--first-share needs --history; a single check has all of alpha")
    inputs = [*input_files(reference, current), calibration, thresholds]
    refuse_wrong_outputs(inputs, [history, output])
    refuse_missing(calibration, thresholds)
    from surefoot.calibrators import load_calibration
    from surefoot.cli.terminal import busy, print_sentences, print_tables
    from surefoot.decisions.chunks import first_rows
    from surefoot.decisions.groups import RepeatedRows
    from surefoot.decisions.thresholds_file import load_thresholds
    from surefoot.monitoring.monitor import Checked
    from surefoot.monitoring.monitor import monitor as check_predictions
    from surefoot.monitoring.monitor_text import monitor_document, monitor_verdict

    chosen = None if thresholds is None else load_thresholds(thresholds)
    fitted = None if calibration is None else load_calibration(calibration)
    familiar = read_or_chunk(reference, group_by, kind)
    unlabelled = read_or_chunk(current, group_by, first_rows(familiar).kind)
    from surefoot.report.monitor import monitor_table, write_monitor_page

    def show(checked: Checked) -> None:
        """Draw the page and print the result: if this fails, no check is recorded."""
        comparing.close()
        _note_novelty(checked.reference, checked.current)
        if output is not None:
            sources = {"reference": path_text(reference), "current": path_text(current)}
            with busy("drawing the page"):
                write_monitor_page(checked, sources, output)
        verdict = monitor_verdict(checked.check)
        if output_format is Format.JSON:
            document = monitor_document(checked.check, verdict)
            typer.echo(json.dumps(document, indent=2, allow_nan=False))
        else:
            print_sentences(verdict)
            print_tables([monitor_table(checked.check)])
        sys.stdout.flush()

    # Warnings are in the verdict.
    with ExitStack() as comparing, warnings.catch_warnings(action="ignore", category=RepeatedRows):
        comparing.enter_context(busy(f"comparing {current} with {reference}"))
        check = check_predictions(
            familiar,
            unlabelled,
            calibration=fitted,
            thresholds=chosen,
            alpha=alpha,
            bound=bound,
            history=history,
            first_share=first_share,
            source=path_text(current),
            on_check=show,
        )
    if output is not None:
        echo(f"page: {output}", err=True)
    if check.alarm:
        raise typer.Exit(1)


def _note_novelty(reference: "Scores", current: "Scores") -> None:
    from surefoot.monitoring.monitor import novelty_name

    name = novelty_name(reference, current)
    if name is None:
        echo(
            "note: novelty is not compared: the files do not both have it, and the energy is constant, "
            "as for probabilities",
            err=True,
        )
    elif name == "energy" and ("novelty" in reference.novelty or "novelty" in current.novelty):
        echo("note: only one file has novelty: the energy of the logits is compared instead", err=True)
