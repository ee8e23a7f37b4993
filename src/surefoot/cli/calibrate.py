"""`surefoot calibrate` and `surefoot apply`: fit a calibration, and apply it."""

from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.inputs import (
    ADDRESS,
    ENGINE,
    STREAM,
    WORKERS,
    EngineName,
    is_streamed,
    read_all,
    refuse_missing,
    streaming_engine,
)
from surefoot.errors import InputError
from surefoot.io import refuse_same_file
from surefoot.text import count_of


def calibrate(
    val: Annotated[
        Path,
        typer.Argument(
            help="Predictions on held-out familiar data: .npz, .parquet or .csv; a folder or 'p/*.parquet'."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the calibration (JSON).")],
    method: Annotated[str, typer.Option(help="See 'surefoot ls calibrators'.")] = "temperature",
    group_by: Annotated[
        str | None, typer.Option(help="Column whose values are groups: the interval is clustered by them.")
    ] = None,
    stream: Annotated[bool | None, STREAM] = None,
    engine: Annotated[EngineName, ENGINE] = EngineName.LOCAL,
    address: Annotated[str | None, ADDRESS] = None,
    workers: Annotated[int | None, WORKERS] = None,
) -> None:
    """Fit a calibration on validation predictions, never on the data that it is evaluated on."""
    refuse_missing(val)
    from surefoot.calibrators import CALIBRATORS, Calibration, fit_calibration, save_calibration
    from surefoot.predictions.paths import files_named

    CALIBRATORS.named(method)
    if output.suffix.lower() in (".npz", ".parquet", ".csv"):
        raise InputError(
            f"the calibration is JSON, and {output} is a file name for predictions; allowed: another ending"
        )
    files = files_named(val)
    for file in files:
        refuse_same_file(file, output)
    if is_streamed({"val": files}, stream, engine, {"--group-by": group_by}):
        from surefoot.cli.terminal import reading
        from surefoot.streaming.evaluate import Source
        from surefoot.streaming.temperature import fit_files

        with streaming_engine(engine, address, workers) as running:
            fitted: Calibration = fit_files(method, Source.of(files), engine=running, watch=reading)
    else:
        from surefoot.cli.terminal import busy

        predictions = read_all(files, group_by)
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
    refuse_missing(calibration, predictions)
    from surefoot.calibrators import load_calibration
    from surefoot.cli.terminal import busy
    from surefoot.predictions.files import read_predictions, write_predictions

    refuse_same_file(predictions, output)
    fitted = load_calibration(calibration)
    with busy(f"calibrating {predictions}"):
        calibrated = fitted(read_predictions(predictions, unlabelled=fitted.label_kind))
        write_predictions(calibrated, output)
    typer.echo(f"calibrated predictions: {output} ({count_of(calibrated.n, 'row')})", err=True)
