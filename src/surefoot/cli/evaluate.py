"""`surefoot evaluate`: how far to trust these predictions."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.conditions import Condition
from surefoot.cli.inputs import read
from surefoot.defaults import RESAMPLES

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration
    from surefoot.metrics import Metric
    from surefoot.predictions import Predictions
    from surefoot.scoring import Evaluation


class Format(StrEnum):
    """How the numbers are printed."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"


def evaluate(
    familiar: Annotated[Path, typer.Argument(help="Predictions on familiar data: .npz, .parquet or .csv.")],
    unfamiliar: Annotated[
        Path | None, typer.Argument(help="Predictions on unfamiliar data, same classes.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Calibrate first with this file, and show what changed.")
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(help="Column whose values are groups: clustered intervals, worst groups.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this metric; repeat for more. See 'surefoot ls metrics'.")
    ] = None,
    error_above: Annotated[
        list[float] | None, typer.Option(help="Also the error above this confidence; repeat for more.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help="Exit with 1 if true, e.g. 'unfamiliar.e99>0.02'; repeat for more."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write report.html and report.json to this folder.")
    ] = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="How to print the numbers.")
    ] = Format.TABLE,
    resamples: Annotated[
        int, typer.Option(min=0, help="Bootstrap resamples; 0 for no intervals.")
    ] = RESAMPLES,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
) -> None:
    """Every metric on familiar and unfamiliar predictions, with error bars and the gap between them."""
    conditions = [Condition.parse(text) for text in fail_if or ()]
    from surefoot import scoring
    from surefoot.calibrators import load_calibration
    from surefoot.cli.terminal import progress

    fitted = None if calibration is None else load_calibration(calibration)
    paths = {"familiar": familiar} | ({} if unfamiliar is None else {"unfamiliar": unfamiliar})
    for condition in conditions:
        condition.require(paths)
    chosen = _metrics(metric, error_above, conditions)
    predictions = {side: read(path, group_by) for side, path in paths.items()}
    with progress("resampling", resamples * len(predictions)) as tick:
        evaluation = scoring.evaluate(
            *predictions.values(),
            calibration=fitted,
            metrics=chosen,
            resamples=resamples,
            seed=seed,
            tick=tick,
        )
    failed = [condition for condition in conditions if condition.holds(evaluation)]
    _print(evaluation, output_format)
    if report is not None:
        _report(evaluation, predictions, fitted, {s: str(p) for s, p in paths.items()}, report)
    _explain(conditions, evaluation)
    if failed:
        raise typer.Exit(1)


def _metrics(
    names: list[str] | None, thresholds: list[float] | None, conditions: list[Condition]
) -> "list[Metric]":
    from surefoot.metrics import METRICS, metric_named
    from surefoot.scoring import error_above_metric

    chosen = [metric_named(name) for name in names] if names else list(METRICS)
    chosen += [error_above_metric(threshold) for threshold in thresholds or ()]
    have = [metric.name for metric in chosen]
    chosen += [metric_named(c.metric) for c in conditions if c.metric not in have]
    return list({metric.name: metric for metric in chosen}.values())


def _print(evaluation: "Evaluation", output_format: Format) -> None:
    import json

    from surefoot.cli.terminal import print_tables
    from surefoot.report.document import evaluation_document
    from surefoot.report.tables import evaluation_tables, to_csv, to_latex, to_markdown
    from surefoot.report.verdict import verdict

    tables = evaluation_tables(evaluation)
    if output_format is Format.TABLE:
        print_tables(tables)
        typer.echo("\n".join(verdict(evaluation)))
    elif output_format is Format.JSON:
        typer.echo(json.dumps(evaluation_document(evaluation), indent=2))
    elif output_format is Format.MARKDOWN:
        typer.echo(to_markdown(tables))
    elif output_format is Format.LATEX:
        typer.echo(to_latex(tables))
    else:
        typer.echo(to_csv(evaluation), nl=False)


def _report(
    evaluation: "Evaluation",
    predictions: "dict[str, Predictions]",
    calibration: "Calibration | None",
    sources: dict[str, str],
    directory: Path,
) -> None:
    from surefoot.cli.terminal import busy
    from surefoot.report.html import Subject, write_report

    with busy("drawing the report"):
        page = write_report(Subject(evaluation, predictions, calibration, sources), directory)
    typer.echo(f"report: {page}", err=True)


def _explain(conditions: list[Condition], evaluation: "Evaluation") -> None:
    for condition in conditions:
        value = condition.value(evaluation)
        if condition.holds(evaluation):
            typer.echo(f"failed: {condition.text} (it is {value:.6g})", err=True)
        elif value != value:
            typer.echo(f"note: {condition.text} cannot fail: the number is undefined here", err=True)
