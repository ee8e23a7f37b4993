"""`surefoot evaluate`, and the conditions of --fail-if."""

import math
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.complete import names_of
from surefoot.cli.inputs import (
    Engine,
    EngineName,
    GroupBy,
    Resamples,
    Stream,
    input_files,
    is_streamed,
    read_or_scan,
    refuse_missing,
    refuse_wrong_outputs,
)
from surefoot.cli.notebook import progress_shown
from surefoot.cli.terminal import Format, busy, echo, echo_written, print_as, print_sentences, print_tables
from surefoot.errors import InputError, did_you_mean
from surefoot.evaluation import RESAMPLES
from surefoot.text import path_text

if TYPE_CHECKING:
    from surefoot.evaluation.scores import Evaluation
    from surefoot.metrics import Metric
    from surefoot.report.evaluation_tables import Summary

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
PARTS = ("familiar", "unfamiliar", "gap")
ENDS = ("value", "low", "high")
FORM = re.compile(r"\s*(?P<part>\w+)\.(?P<name>[^<>=\s]+)\s*(?P<comparison>>=|<=|>|<)\s*(?P<limit>\S+)\s*")


@dataclass(frozen=True)
class Condition:
    """A side (or the gap), a metric, optionally the low or high end of its interval, and a limit."""

    text: str
    part: str
    metric: str
    end: str
    comparison: str
    limit: float

    @staticmethod
    def parse(text: str) -> "Condition":
        """Read a condition.

        >>> Condition.parse("unfamiliar.error_above_0.9.low > 0.02").metric
        'error_above_0.9'
        """
        match = FORM.fullmatch(text)
        if match is None:
            allowed = "SIDE.METRIC>NUMBER, such as 'unfamiliar.e99>0.02'"
            raise InputError(f"condition {text!r} cannot be read; allowed: {allowed}")
        if match["part"] not in PARTS:
            unknown = f"unknown side {match['part']!r}{did_you_mean(match['part'], PARTS)}"
            raise InputError(f"condition {text!r}: {unknown}; have: {', '.join(PARTS)}")
        metric, _, end = match["name"].rpartition(".")
        if end not in ENDS:
            metric, end = match["name"], "value"
        try:
            limit = float(match["limit"])
        except ValueError as error:
            raise InputError(f"condition {text!r}: {match['limit']!r} is not a number") from error
        if math.isnan(limit):
            above = f"nothing is above or below {match['limit']!r}"
            raise InputError(f"condition {text!r}: {above}; allowed: a number")
        return Condition(text, match["part"], metric, end, match["comparison"], limit)

    def require(self, sides: Collection[str]) -> None:
        """Refuse a condition on a side that was not given."""
        if self.part != "familiar" and "unfamiliar" not in sides:
            raise InputError(f"condition {self.text!r} needs an UNFAMILIAR file, and none was given")

    def value(self, evaluation: "Evaluation") -> float:
        """The value in the evaluation."""
        scores = evaluation.gap if self.part == "gap" else evaluation.sides[self.part].metrics
        return float(getattr(scores[self.metric], self.end))

    def holds(self, evaluation: "Evaluation") -> bool:
        """Whether it is true; an undefined number is neither above nor below any limit."""
        return COMPARISONS[self.comparison](self.value(evaluation), self.limit)


Familiar = Annotated[
    Path,
    typer.Argument(help="Predictions on familiar data: .npz, .parquet or .csv; a folder or 'p/*.parquet'."),
]
Unfamiliar = Annotated[Path | None, typer.Argument(help="Predictions on unfamiliar data, same classes.")]
CalibrationFile = Annotated[
    Path | None, typer.Option(help="Calibrate first with this file and show the change.")
]
MetricNames = Annotated[
    list[str] | None,
    typer.Option(
        help="Only this metric; repeat for more. See 'surefoot ls metrics'.",
        autocompletion=names_of("metrics"),
    ),
]
Confidences = Annotated[
    list[float] | None, typer.Option(help="Also report the error above this confidence; repeat for more.")
]
Conditions = Annotated[
    list[str] | None,
    typer.Option(help="Exit with 1 if true, e.g. 'unfamiliar.e99>0.02'; repeat for more."),
]
All = Annotated[bool, typer.Option("--all", help="Print every metric, with four decimals and all intervals.")]
ReportFolder = Annotated[Path | None, typer.Option(help="Write report.html and report.json to this folder.")]


def evaluate(
    familiar: Familiar,
    unfamiliar: Unfamiliar = None,
    calibration: CalibrationFile = None,
    group_by: GroupBy = None,
    metric: MetricNames = None,
    error_above: Confidences = None,
    fail_if: Conditions = None,
    all_metrics: All = False,
    report: ReportFolder = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="How to print the numbers.")
    ] = Format.TABLE,
    resamples: Resamples = RESAMPLES,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    stream: Stream = None,
    engine: Engine = EngineName.LOCAL,
) -> None:
    """Measure how reliable the confidence is on familiar and unfamiliar predictions, with intervals.

    Prints the verdict and eight metrics; --all, --report and the formats json, csv, markdown and latex have
    every metric.
    """
    conditions = [Condition.parse(text) for text in fail_if or ()]
    paths = {"familiar": familiar} | ({} if unfamiliar is None else {"unfamiliar": unfamiliar})
    for condition in conditions:
        condition.require(paths)
    refuse_missing(familiar, unfamiliar, calibration)
    files = {side: input_files(path) for side, path in paths.items()}
    chosen = _metrics(metric, error_above, conditions)
    if report is not None:
        _refuse_report(report, [*(file for of_side in files.values() for file in of_side), calibration])
    from surefoot.calibrators import load_calibration
    from surefoot.evaluation.evaluate import evaluate as evaluated

    streamed = is_streamed(files, stream, engine, {"--group-by": group_by, "--report": report})
    if streamed:
        chosen = _streamable(chosen, {*(metric or ()), *(condition.metric for condition in conditions)})
    predictions = [read_or_scan(path, group_by, streamed, engine) for path in paths.values()]
    fitted = None if calibration is None else load_calibration(calibration)
    evaluation = evaluated(
        *predictions,
        calibration=fitted,
        metrics=chosen,
        resamples=resamples,
        seed=seed,
        progress=progress_shown(),
    )
    from surefoot.evaluation.scores import evaluation_document
    from surefoot.report.evaluation_tables import Summary, evaluation_csv

    summary = Summary(evaluation)
    if output_format is Format.TABLE and not all_metrics:
        _print_headline(summary, {m.name for m in chosen} if metric else _added(error_above, conditions))
    else:
        if output_format is Format.TABLE:
            print_sentences(summary.verdict)
        document = partial(evaluation_document, evaluation)
        print_as(output_format, summary.tables, document, partial(evaluation_csv, evaluation))
    if report is not None:
        _write_report(summary, paths, report)
    _fail_if(conditions, evaluation)


def _write_report(summary: "Summary", paths: dict[str, Path], folder: Path) -> None:
    from surefoot.report.evaluation import write_report

    sources = {side: path_text(path) for side, path in paths.items()}
    with busy("drawing the report"):
        page = write_report(summary, folder, sources=sources)
    echo_written(f"report: {page}")


def _fail_if(conditions: list[Condition], evaluation: "Evaluation") -> None:
    """Say which conditions are true, and exit with 1 if any is."""
    failed = [condition for condition in conditions if condition.holds(evaluation)]
    for condition in conditions:
        value = condition.value(evaluation)
        if condition in failed:
            echo(f"failed: {condition.text} (it is {value:.6g})", err=True)
        elif math.isnan(value):
            echo(f"note: {condition.text} cannot fail: the number is undefined here", err=True)
    if failed:
        raise typer.Exit(1)


def _refuse_report(report: Path, inputs: list[Path | None]) -> None:
    """Fail before the work where the report cannot be written, or would replace an input."""
    if report.is_file():
        raise InputError(f"--report is {report}, a file; allowed: a folder, new or existing")
    if report.is_dir():
        refuse_wrong_outputs(inputs, [report / "report.json", report / "report.html"])


def _metrics(
    names: list[str] | None, thresholds: list[float] | None, conditions: list[Condition]
) -> "list[Metric]":
    from surefoot.metrics import METRICS, error_above_metric

    chosen = [METRICS.named(name) for name in names] if names else list(METRICS)
    chosen += [error_above_metric(threshold) for threshold in thresholds or ()]
    have = [metric.name for metric in chosen]
    chosen += [METRICS.named(c.metric) for c in conditions if c.metric not in have]
    return list({metric.name: metric for metric in chosen}.values())


def _streamable(metrics: "list[Metric]", requested: Collection[str]) -> "list[Metric]":
    """Leave out metrics that cannot be streamed; those that are requested stay, and will be refused."""

    left_out = [m.name for m in metrics if not m.can_be_streamed and m.name not in requested]
    for name in left_out:
        echo(f"note: metric {name!r} cannot be streamed and is left out; --no-stream computes it", err=True)
    return [metric for metric in metrics if metric.name not in left_out]


def _added(thresholds: list[float] | None, conditions: list[Condition]) -> set[str]:
    """The names of the headline metrics, and of those that other options ask for."""
    from surefoot.metrics import error_above_metric
    from surefoot.report.evaluation_tables import HEADLINES

    above = (error_above_metric(threshold).name for threshold in thresholds or ())
    return {*HEADLINES, *above, *(condition.metric for condition in conditions)}


def _print_headline(summary: "Summary", metrics: set[str]) -> None:
    from surefoot.report.evaluation_tables import headline_tables

    print_sentences(summary.verdict)
    print_tables(headline_tables(summary.evaluation, metrics, more="--all shows every metric."))
