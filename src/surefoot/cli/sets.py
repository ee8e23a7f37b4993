"""`surefoot sets`: prediction sets that contain the true class with a stated probability."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.inputs import (
    GroupBy,
    HeldOut,
    input_files,
    read,
    refuse_missing,
    refuse_predictions_name,
    refuse_wrong_outputs,
)
from surefoot.cli.terminal import echo_written, print_sentences, print_tables


def sets(
    val: HeldOut,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the limit and results (JSON).")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="The probability that a set contains the true class, on familiar data.")
    ] = 0.9,
    familiar_test: Annotated[
        Path | None, typer.Option(help="More familiar predictions, to verify the coverage.")
    ] = None,
    unfamiliar: Annotated[
        Path | None, typer.Option(help="Unfamiliar predictions, to measure the coverage there.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Calibrate first with this file, fitted on other rows.")
    ] = None,
    group_by: GroupBy = None,
) -> None:
    """Choose conformal prediction sets, which contain the true class with a stated probability."""
    refuse_predictions_name(output, "the sets")
    refuse_missing(calibration)
    refuse_wrong_outputs([*input_files(val, familiar_test, unfamiliar), calibration], [output])
    from surefoot.calibrators import load_calibration
    from surefoot.decisions.groups import RepeatedRows
    from surefoot.decisions.sets import choose_sets, save_sets
    from surefoot.report.sets import sets_table, sets_verdict

    with warnings.catch_warnings(action="ignore", category=RepeatedRows):  # they are in the verdict
        chosen = choose_sets(
            read(val, group_by),
            coverage=coverage,
            familiar_test=None if familiar_test is None else read(familiar_test, group_by),
            unfamiliar=None if unfamiliar is None else read(unfamiliar, group_by),
            calibration=None if calibration is None else load_calibration(calibration),
        )
    if output is not None:
        save_sets(chosen, output)
    print_sentences(sets_verdict(chosen))
    print_tables([sets_table(chosen)])
    if output is not None:
        echo_written(f"sets: {output}")
