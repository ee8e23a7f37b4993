"""`surefoot sets`: prediction sets that contain the true class with a stated probability."""

from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.inputs import read, refuse_missing, refuse_wrong_outputs
from surefoot.cli.terminal import echo
from surefoot.errors import InputError


def sets(
    val: Annotated[
        Path, typer.Argument(help="Predictions on held-out familiar data: .npz, .parquet or .csv.")
    ],
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
        Path | None, typer.Option(help="Unfamiliar predictions, to see how far the coverage falls there.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Calibrate first with this file, fitted on other rows.")
    ] = None,
) -> None:
    """Choose conformal prediction sets: classes that contain the true one with a stated probability."""
    others = {"familiar test": familiar_test, "unfamiliar": unfamiliar}
    paths = {"val": val} | {name: path for name, path in others.items() if path is not None}
    if output is not None and output.suffix.lower() in (".npz", ".parquet", ".csv"):
        raise InputError(
            f"the sets are JSON, and {output} is a file name for predictions; allowed: another ending"
        )
    refuse_wrong_outputs([*paths.values(), calibration], [output])
    refuse_missing(*paths.values(), calibration)
    from surefoot.calibrators import load_calibration
    from surefoot.cli.terminal import print_tables
    from surefoot.deploy.sets import choose_sets, measure_sets, save_sets
    from surefoot.predictions.labels import refuse_other_classifier
    from surefoot.report.sets import sets_table, sets_verdict

    fitted = None if calibration is None else load_calibration(calibration)
    predictions = {name: read(path, None) for name, path in paths.items()}
    refuse_other_classifier(predictions)
    chosen = choose_sets(predictions["val"], coverage=coverage, calibration=fitted)
    measured = {name: measure_sets(chosen, each) for name, each in predictions.items()}
    if output is not None:
        save_sets(chosen, output, measured=measured)
    print_tables([sets_table(chosen, measured)])
    echo(*sets_verdict(chosen, measured))
    if output is not None:
        echo(f"sets: {output}", err=True)
