"""`surefoot monitor`: has the data shifted?"""

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.inputs import refuse_missing
from surefoot.errors import InputError
from surefoot.io import refuse_same_file, refuse_unwritable
from surefoot.predictions.labels import LabelKind

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration
    from surefoot.deploy.monitor import AlphaBudget, Check, History, Scores
    from surefoot.deploy.thresholds import Thresholds
    from surefoot.predictions.predictions import Predictions
    from surefoot.report.tables import Table


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
            help="A file of 'surefoot thresholds': check the fraction accepted, use its calibration."
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="The probability of any false alarm, over all checks of the history.")
    ] = 0.05,
    bound: Annotated[
        float | None,
        typer.Option(help="Alarm only if the estimated accuracy has also dropped by at least this much."),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="JSON lines, one per check; needed if you check more than once.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a page (HTML).")] = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="How to print the result.")
    ] = Format.TABLE,
    kind: Annotated[
        LabelKind, typer.Option(help="The kind of labels, if the reference has none.")
    ] = LabelKind.ONE_LABEL,
) -> None:
    """Compare unlabelled predictions with a familiar reference; exit with 1 if the data has shifted."""
    _check_options(alpha, bound, [reference, current, calibration, thresholds], [history, output])
    refuse_missing(reference, current, calibration, thresholds)
    from surefoot.cli.terminal import busy
    from surefoot.deploy.monitor import check_shift, fingerprint, scores_of
    from surefoot.predictions.files import read_outputs
    from surefoot.predictions.labels import refuse_other_classifier

    chosen, fitted = _loaded(thresholds, calibration)
    with busy(f"reading {reference} and {current}"):
        known = read_outputs(reference, unlabelled=kind)
        seen = _without_labels(read_outputs(current, unlabelled=known.kind))
        refuse_other_classifier({"reference": known, "current": seen})
        then, now = (scores_of(each, calibration=fitted, thresholds=chosen) for each in (known, seen))
    name = fingerprint(then)
    with _opened(history, alpha, name) as past:
        check = check_shift(then, now, budget=_budget(past, alpha), bound=bound)
        past = None if past is None else past.added(check, reference=name, source=str(current))
    _note_novelty(then, now)
    from surefoot.report.monitor import monitor_table, monitor_verdict

    verdict, table = monitor_verdict(check), monitor_table(check)
    _print(check, verdict, table, output_format)
    if output is not None:
        sources = {"reference": str(reference), "current": str(current)}
        _page(check, verdict, table, then, now, past, sources, output)
    if check.alarm:
        raise typer.Exit(1)


def _check_options(
    alpha: float, bound: float | None, inputs: list[Path | None], outputs: list[Path | None]
) -> None:
    if not 0 < alpha < 1:
        raise InputError(f"--alpha is {alpha:g}; allowed: above 0 and below 1")
    if bound is not None and not 0 <= bound <= 1:
        raise InputError(f"--bound is {bound:g}; allowed: 0 to 1")
    written = [each for each in outputs if each is not None]
    for output in written:
        refuse_unwritable(output)
        for given in inputs:
            if given is not None:
                refuse_same_file(given, output)
    if len(written) == 2:
        refuse_same_file(*written)


def _loaded(
    thresholds: Path | None, calibration: Path | None
) -> "tuple[Thresholds | None, Calibration | None]":
    from surefoot.calibrators import load_calibration
    from surefoot.deploy.thresholds import load_thresholds

    chosen = None if thresholds is None else load_thresholds(thresholds)
    if chosen is None or chosen.calibration is None:
        return chosen, None if calibration is None else load_calibration(calibration)
    if calibration is not None:
        raise InputError(f"{thresholds} already contains a calibration; allowed: no --calibration")
    return chosen, chosen.calibration


def _note_novelty(reference: "Scores", current: "Scores") -> None:
    from surefoot.deploy.monitor import novelty_name

    name = novelty_name(reference, current)
    if name is None:
        typer.echo(
            "note: novelty is not compared: not both files have it, and the energy is constant, "
            "as for probabilities",
            err=True,
        )
    elif name == "energy" and ("novelty" in reference.novelty or "novelty" in current.novelty):
        typer.echo("note: only one file has novelty: the energy of the logits is compared instead", err=True)


def _without_labels(predictions: "Predictions") -> "Predictions":
    from dataclasses import replace

    from surefoot.predictions.labels import IGNORE

    return replace(predictions, labels=predictions.labels.new_full(predictions.labels.shape, IGNORE))


def _opened(history: Path | None, alpha: float, reference: str) -> "AbstractContextManager[History | None]":
    from surefoot.deploy.monitor import opened

    return nullcontext() if history is None else opened(history, alpha=alpha, reference=reference)


def _budget(past: "History | None", alpha: float) -> "AlphaBudget":
    from surefoot.deploy.monitor import AlphaBudget

    return AlphaBudget.only(alpha) if past is None else AlphaBudget.of_check(len(past.checks) + 1, alpha)


def _print(check: "Check", verdict: list[str], table: "Table", output_format: Format) -> None:
    import json

    from surefoot.cli.terminal import print_tables
    from surefoot.report.monitor import monitor_document

    if output_format is Format.JSON:
        typer.echo(json.dumps(monitor_document(check, verdict), indent=2, allow_nan=False))
        return
    print_tables([table])
    typer.echo("\n".join(verdict))


def _page(
    check: "Check",
    verdict: list[str],
    table: "Table",
    reference: "Scores",
    current: "Scores",
    past: "History | None",
    sources: dict[str, str],
    path: Path,
) -> None:
    from surefoot.cli.terminal import busy
    from surefoot.report.monitor import write_monitor_page

    with busy("drawing the page"):
        history = past.checks if past else ()
        write_monitor_page(check, verdict, table, reference, current, history, sources, path)
    typer.echo(f"page: {path}", err=True)
