"""`surefoot run`, `surefoot report` and `surefoot compare`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.complete import names_of
from surefoot.cli.inputs import (
    Device,
    Engine,
    EngineName,
    Resamples,
    Root,
    StoreFolder,
    Workers,
    refuse_missing,
    stoppable,
    value_of,
)
from surefoot.cli.notebook import progress_shown
from surefoot.cli.terminal import Format, busy, echo, print_as, print_sentences, print_tables
from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.runtime import may_fork

if TYPE_CHECKING:
    from surefoot.lab.experiments.changes import ExperimentChange

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="A value of the experiment or of its recipes, e.g. runs=3; repeat for more."),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="A method ('surefoot ls methods'); repeat for more.",
        autocompletion=names_of("methods"),
    ),
]
Oracle = Annotated[bool, typer.Option("--oracle", help="Add the oracle methods, which use the test labels.")]
Calibrators = Annotated[
    str | None,
    typer.Option(
        help="Add the single network and the ensemble with each of these calibrators, e.g. "
        "temperature,vector,isotonic ('surefoot ls calibrators')."
    ),
]
QUICKSTART = "quickstart"  # for people who see Surefoot for the first time: it ends with a short summary
GpusPerNetwork = Annotated[
    float | None,
    typer.Option(help="With ray: GPUs that a network takes, e.g. 0.25; half of one by default."),
]


def run(
    experiment: Annotated[
        str,
        typer.Argument(
            help="A name ('surefoot ls experiments') or a TOML file.",
            autocompletion=names_of("experiments", or_file=".toml"),
        ),
    ],
    values: Sets = None,
    method: Methods = None,
    oracle: Oracle = False,
    calibrators: Calibrators = None,
    root: Root = None,
    weights: Annotated[Path | None, typer.Option(help="Pretrained weights for every part.")] = None,
    store: Annotated[
        str, typer.Option(help="The folder of trained networks, or a URL such as s3://bucket/runs.")
    ] = "runs",
    device: Device = "auto",
    workers: Workers = None,
    engine: Engine = EngineName.LOCAL,
    gpus_per_network: GpusPerNetwork = None,
    train_only: Annotated[
        bool, typer.Option("--train-only", help="Leave the report to 'surefoot report'.")
    ] = False,
) -> None:
    """Train what is missing, score every method on familiar and unfamiliar data, write a report.

    The same command resumes where it was stopped.
    """
    refuse_missing(weights)
    from surefoot.lab.experiments.workflow import Training, chosen_experiment, train

    with stoppable():
        given = dict(value_of(text) for text in values or ())
        added = [] if calibrators is None else [name.strip() for name in calibrators.split(",")]
        chosen = chosen_experiment(experiment, given, method, oracle, added, root, weights)
        where = Training(store, None, device, workers, engine, None, None, gpus_per_network)
        progress = progress_shown()
        trained = train(chosen, where, progress)
        if train_only:
            command = f"'surefoot report {trained.folder.name} --store {trained.opened.store.root}'"
            echo(f"trained; {command} writes the report")
        else:
            _report(trained.folder, first_time=experiment == QUICKSTART)
        trained.opened.send(trained.folder, replace(progress, note=echo))


def report(
    experiment: Annotated[
        str, typer.Argument(help="An experiment that was run ('surefoot ls runs'), or its scores.csv.")
    ],
    values: Sets = None,
    method: Methods = None,
    store: StoreFolder = Path("runs"),
    paper: Annotated[
        str | None, typer.Option(help="With scores: the paper's task to compare with, e.g. animals.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With scores: a folder for the tables as files.")
    ] = None,
) -> None:
    """Rebuild an experiment's tables, figures and page from the store, without training.

    From a scores.csv: only the tables, without intervals.
    """
    if experiment.lower().endswith(".csv"):
        if values:
            raise InputError("--set is for an experiment; tables from scores show what the file has")
        refuse_missing(Path(experiment))
        _report_scores(Path(experiment), method, paper, output)
        return
    if paper is not None or output is not None:
        raise InputError(
            f"--paper and --output are for scores, a .csv file; got the experiment {experiment!r}"
        )
    _report(experiment, store, values, method)


def _report_scores(path: Path, method: list[str] | None, paper: str | None, output: Path | None) -> None:
    from surefoot.report.study_tables import (
        headline_table,
        scores_compared,
        scores_context,
        write_score_tables,
    )
    from surefoot.report.tables import distinguishing

    context, comparison = scores_context(path, paper), scores_compared(path, method)
    print_tables([distinguishing(headline_table(comparison, context))])
    if output is not None:
        for written in write_score_tables(comparison, context, output):
            echo(f"written: {written}")


def _report(
    experiment: str | Path,
    store: Path = Path("runs"),
    values: list[str] | None = None,
    method: list[str] | None = None,
    *,
    first_time: bool = False,
) -> None:
    """Write the report; print each task's verdict and short table, then the report's path."""
    from surefoot.lab.experiments.workflow import load_study

    given = dict(value_of(text) for text in values or ())
    with may_fork(), busy("scoring, resampling and drawing"):
        study = load_study(experiment, store=store, values=given, methods=method)
        assert study.folder is not None
        from surefoot.report.study import report_folder, write_study  # so that a refusal does not wait for it
        from surefoot.report.study_verdict import brief_tables, brief_verdict, next_steps

        written = write_study(study, report_folder(study))
    for part in written.parts:
        print_sentences(brief_verdict(part) if first_time else part.verdict)
        print_tables(brief_tables(part))
    echo(f"report: {written.page}")
    if first_time:
        echo("", *next_steps(written.parts[0], study.folder))


Run = Annotated[
    str, typer.Argument(help="A name of 'surefoot ls runs', or an experiment's folder in any store.")
]


def compare(
    before: Run,
    after: Run,
    store: StoreFolder = Path("runs"),
    resamples: Resamples = RESAMPLES,
    output_format: Annotated[
        Format, typer.Option("--format", help="How to print the numbers.")
    ] = Format.TABLE,
) -> None:
    """Show what changed between two runs: the configuration, and each method's metrics with intervals."""
    from surefoot.lab.experiments.workflow import compare as compared

    with busy("scoring and resampling"):
        change = compared(before, after, store=store, resamples=resamples)
    _print_change(change, output_format)


def _print_change(change: "ExperimentChange", output_format: Format) -> None:
    from surefoot.report.change import change_csv, change_document, change_notes, task_tables, value_tables

    document, csv = partial(change_document, change), partial(change_csv, change)
    print_as(output_format, [*value_tables(change), *task_tables(change)], document, csv)
    if output_format is Format.TABLE:
        echo(*change_notes(change))
    elif output_format is Format.MARKDOWN:
        echo(*(f"- {note}" for note in change_notes(change)))
