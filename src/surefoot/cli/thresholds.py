"""`surefoot thresholds`: which confidence is high enough to accept a prediction."""

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.inputs import (
    IN_MEMORY,
    GroupBy,
    HeldOut,
    input_files,
    note_one_hot,
    read_or_chunk,
    refuse_missing,
    refuse_predictions_name,
    refuse_wrong_outputs,
)
from surefoot.cli.terminal import echo, echo_written
from surefoot.errors import InputError, require
from surefoot.io import all_or_none
from surefoot.text import path_text

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration
    from surefoot.decisions.thresholds import Thresholds
    from surefoot.predictions.predictions import Predictions
    from surefoot.report.tables import Table

FamiliarTest = Annotated[
    Path | None, typer.Option(help="More familiar predictions, to verify the guarantee.")
]
Unfamiliar = Annotated[Path | None, typer.Option(help="Unfamiliar predictions, to measure the error there.")]
CalibrationFile = Annotated[
    Path | None, typer.Option(help="Calibrate first with this file; it is saved in the thresholds file.")
]
Share = Annotated[
    float | None,
    typer.Option(help="Fit a temperature on this fraction of VAL and the thresholds on the rest."),
]
ClassName = Annotated[str | None, typer.Option(help="Multi-label: the class that the thresholds are for.")]
Per = Annotated[
    str | None,
    typer.Option(
        help="Thresholds for each predicted class ('class') or group of a column ('groups', or its name)."
    ),
]
Page = Annotated[Path | None, typer.Option(help="Also write a page (HTML) with the risk-coverage curve.")]


def thresholds(
    val: HeldOut,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the thresholds (JSON).")
    ] = Path("thresholds.json"),
    target_error: Annotated[
        float, typer.Option(help="The highest error among accepted predictions, on familiar data.")
    ] = 0.01,
    min_coverage: Annotated[
        float,
        typer.Option(min=0, max=1, help="Exit with 1 if a smaller share of the predictions can be accepted."),
    ] = 0.0,
    reject_error: Annotated[
        float, typer.Option(help="Reject where at least this fraction of the predictions is wrong.")
    ] = 0.5,
    level: Annotated[float, typer.Option(help="The confidence level of each guarantee.")] = 0.95,
    familiar_test: FamiliarTest = None,
    unfamiliar: Unfamiliar = None,
    calibration: CalibrationFile = None,
    split: Share = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random split of VAL.")] = 0,
    for_class: ClassName = None,
    per: Per = None,
    group_by: GroupBy = None,
    html: Page = None,
) -> None:
    """Choose confidence thresholds to accept, review or reject, with a guarantee on familiar data."""
    others = {"familiar test": familiar_test, "unfamiliar": unfamiliar}
    paths = {"val": val} | {name: path for name, path in others.items() if path is not None}
    _check_options(output, calibration, split)
    refuse_wrong_outputs([*input_files(*paths.values()), calibration], [output, html])
    refuse_missing(calibration)
    from surefoot.calibrators import load_calibration
    from surefoot.cli.terminal import busy
    from surefoot.decisions.chunks import first_rows
    from surefoot.decisions.groups import RepeatedRows, repeated_sentences, split_rows
    from surefoot.decisions.thresholds import Thresholds, choose_thresholds
    from surefoot.decisions.thresholds_file import save_thresholds
    from surefoot.predictions.predictions import Predictions

    most = IN_MEMORY if split is None else math.inf  # a split needs all rows
    predictions = {name: read_or_chunk(path, group_by, most=most) for name, path in paths.items()}
    for name, path in paths.items():
        note_one_hot(first_rows(predictions[name]), path)
    fitted = None if calibration is None else load_calibration(calibration)
    _note_rows(first_rows(predictions["val"]), fitted)
    # Warnings are in the verdict.
    with busy("choosing"), warnings.catch_warnings(action="ignore", category=RepeatedRows):
        chosen = choose_thresholds(
            predictions["val"],
            target_error=target_error,
            reject_error=reject_error,
            level=level,
            familiar_test=predictions.get("familiar test"),
            unfamiliar=predictions.get("unfamiliar"),
            calibration=fitted,
            split=split,
            seed=seed,
            for_class=for_class,
            per=per,
        )
    if not isinstance(chosen, Thresholds):
        echo(f"{chosen.sentence}: {chosen.advice('--target-error')}; nothing was written", err=True)
        for warning in repeated_sentences(chosen.repeated):
            echo(warning, err=True)
        raise typer.Exit(1)
    sources = {name: path_text(path) for name, path in paths.items()}
    from surefoot.report.thresholds import thresholds_table, thresholds_verdict

    verdict = thresholds_verdict(chosen, chosen.measured)
    table = thresholds_table(chosen, chosen.measured)
    with all_or_none():
        if html is not None:
            from surefoot.report.thresholds import write_thresholds_page

            rows = predictions["val"]
            if split is not None and isinstance(rows, Predictions):
                _, predictions["val"] = split_rows(rows, split, seed)
            with busy("drawing the page"):
                write_thresholds_page(chosen, verdict, table, predictions, sources, html)
        save_thresholds(chosen, output, sources=sources, elsewhere=chosen.measured)
    if split is not None and chosen.calibration is not None:
        echo(*(f"calibration: {line}" for line in chosen.calibration.lines()))
    covers_enough = _print(chosen, verdict, table, min_coverage)
    echo_written(f"thresholds: {output}")
    if html is not None:
        echo_written(f"page: {html}")
    if not covers_enough:
        raise typer.Exit(1)


def _check_options(output: Path, calibration: Path | None, split: float | None) -> None:
    refuse_predictions_name(output, "the thresholds")
    if calibration is not None and split is not None:
        raise InputError("both --calibration and --split; allowed: one of the two")
    require(split is None or 0 < split < 1, "--split", split, "above 0 and below 1")


def _note_rows(val: "Predictions", calibration: "Calibration | None") -> None:
    """The same rows are accepted whatever the temperature of two classes; otherwise they must be others."""
    if calibration is not None and (val.classes > 2 or calibration.single_temperature is None):
        echo(
            "note: the guarantee holds only if the calibration was fitted on other rows than these; "
            "--split fits a temperature on a part of them",
            err=True,
        )


def _print(chosen: "Thresholds", verdict: list[str], table: "Table", min_coverage: float) -> bool:
    from surefoot.cli.terminal import print_sentences, print_tables
    from surefoot.report.thresholds import coverage_conflict, parts_table

    print_sentences(verdict)
    print_tables([table] if chosen.per is None else [parts_table(chosen), table])
    conflict = coverage_conflict(chosen, min_coverage)
    if conflict is not None:
        echo(conflict, err=True)
    return conflict is None
