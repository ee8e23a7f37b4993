"""`surefoot calibrate` and `surefoot apply`: mend the confidences."""

from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.inputs import read
from surefoot.errors import InputError
from surefoot.files import refuse_same_file


def calibrate(
    val: Annotated[
        Path, typer.Argument(help="Predictions on held-out familiar data: .npz, .parquet or .csv.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the calibration (JSON).")],
    method: Annotated[str, typer.Option(help="See 'surefoot ls calibrators'.")] = "temperature",
    group_by: Annotated[
        str | None, typer.Option(help="Column whose values are groups: the interval is clustered by them.")
    ] = None,
) -> None:
    """Fit a calibration on validation predictions. Never on the data it will be judged by."""
    from surefoot.calibrators import calibrator_named, fit_calibration, save_calibration
    from surefoot.cli.terminal import busy

    calibrator_named(method)
    if output.suffix.lower() in (".npz", ".parquet", ".csv"):
        raise InputError(f"the calibration is JSON, and {output} names predictions; allowed: another ending")
    refuse_same_file(val, output)
    predictions = read(val, group_by)
    with busy("fitting"):
        fitted = fit_calibration(method, predictions)
    save_calibration(fitted, output)
    for line in fitted.lines():
        typer.echo(line)
    if fitted.evidence is not None:
        typer.echo(f"NLL {fitted.evidence.nll_before:.4f} -> {fitted.evidence.nll_after:.4f} (unclipped)")
        typer.echo(f"ECE {fitted.evidence.ece_before:.4f} -> {fitted.evidence.ece_after:.4f}")
    for remark in fitted.remarks():
        typer.echo(f"note: {remark}", err=True)
    typer.echo(f"calibration: {output}", err=True)


def apply(
    calibration: Annotated[Path, typer.Argument(help="A file that 'surefoot calibrate' wrote.")],
    predictions: Annotated[Path, typer.Argument(help="Predictions, with or without labels.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write: .npz, .parquet or .csv.")],
) -> None:
    """Calibrate predictions: the same rows with calibrated logits."""
    from surefoot.calibrators import MemberTemperatures, load_calibration
    from surefoot.cli.terminal import busy
    from surefoot.prediction_files import read_predictions, write_predictions

    refuse_same_file(predictions, output)
    fitted = load_calibration(calibration)
    kind = (fitted.members[0] if isinstance(fitted, MemberTemperatures) else fitted).label_kind
    with busy(f"calibrating {predictions}"):
        calibrated = fitted(read_predictions(predictions, unlabelled=kind))
        write_predictions(calibrated, output)
    typer.echo(f"calibrated predictions: {output} ({calibrated.n:,} rows)", err=True)
