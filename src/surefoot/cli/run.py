"""`surefoot run`, `surefoot report` and `surefoot compare`."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.inputs import Address, CpusPerNetwork, GpusPerNetwork, Made, TrainingEngine, chosen_engine
from surefoot.cli.train import Cache, Device, StoreFolder, value_of
from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES

if TYPE_CHECKING:
    from surefoot.cli.progress import Log
    from surefoot.cli.store import OpenedStore
    from surefoot.experiments.changes import ExperimentChange
    from surefoot.experiments.experiment import Experiment, Part
    from surefoot.experiments.plan import Plan
    from surefoot.store.store import Store
    from surefoot.workers.jobs import WorkOrder

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="A value of the experiment or of its recipes, e.g. runs=3; repeat for more."),
]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="A method ('surefoot ls methods'); repeat for more.")
]
Oracle = Annotated[bool, typer.Option("--oracle", help="Add the rows that cheat: tuned on the test sets.")]


def run(
    experiment: Annotated[str, typer.Argument(help="A name ('surefoot ls experiments') or a TOML file.")],
    values: Sets = None,
    method: Methods = None,
    oracle: Oracle = False,
    root: Annotated[Path | None, typer.Option(help="Where the task's published files lie.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Pretrained weights for every part.")] = None,
    store: Annotated[
        str, typer.Option(help="The folder of trained networks, or a URL such as s3://bucket/runs.")
    ] = "runs",
    cache: Cache = None,
    device: Device = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Networks at a time; a process and a core each on a CPU.")
    ] = None,
    engine: TrainingEngine = "local",
    address: Address = None,
    cpus_per_network: CpusPerNetwork = None,
    gpus_per_network: GpusPerNetwork = None,
    train_only: Annotated[
        bool, typer.Option("--train-only", help="Leave the report to 'surefoot report'.")
    ] = False,
) -> None:
    """Train what is missing, score every method on familiar and unfamiliar data, write a report.

    The same command goes on where it was stopped.
    """
    from surefoot.cli.progress import Log
    from surefoot.cli.store import opened_store
    from surefoot.experiments.run import open_folder, plans_for, resolved

    with stoppable():
        chosen = resolved(chosen_experiment(experiment, values, method, oracle, root, weights))
        asked = chosen_engine(engine, device, workers, address, cpus_per_network, gpus_per_network)
        plans = plans_for(chosen)
        kept = opened_store(store, cache)
        folder = open_folder(chosen, plans, kept.store)
        _remark(chosen, plans)
        log = Log()
        with asked as made:
            for index, (part, plan) in enumerate(zip(chosen.parts, plans, strict=True), 1):
                of_all = f"task {index} of {len(plans)}, " if len(plans) > 1 else ""
                _make(part, plan, kept, cache, made, log, title=f"{of_all}{plan.task}")
        if train_only:
            where = f"'surefoot report {folder.name} --store {kept.store.root}'"
            typer.echo(f"trained; {where} makes the report")
        else:
            _report(folder, kept.store)
        kept.send(folder)


@contextmanager
def stoppable(sentence: str = "stopped; the same command goes on from here") -> Iterator[None]:
    """Ctrl-C at any moment is one sentence and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(sentence, err=True)
        raise typer.Exit(130) from None


def _remark(experiment: "Experiment", plans: "tuple[Plan, ...]") -> None:
    """What a person should know before the hours of training, not after."""
    for part, plan in zip(experiment.parts, plans, strict=True):
        for reason in dict.fromkeys(plan.skipped):
            typer.echo(f"{plan.task}: {reason}", err=True)
        if part.paper is not None and part.recipe.pretrained is None:
            typer.echo(
                f"{plan.task}: without --weights the networks begin at random, unlike the paper's", err=True
            )


def _make(
    part: "Part", plan: "Plan", kept: "OpenedStore", cache: Path | None, made: Made, log: "Log", *, title: str
) -> None:
    from surefoot.cli.progress import watch
    from surefoot.experiments.run import order_for

    specs = [plan.spec(job) for job in plan.jobs()]
    kept.sync(specs)
    order: WorkOrder = order_for(
        part, plan, store=kept.store, cache=cache, device=made.device, remote=kept.url
    )
    with watch(order, title=title, done_before=len(specs) - len(order.jobs), log=log) as on_event:
        made.execute(order, on_event)
    if order.jobs:
        kept.sync(specs)


def report(
    experiment: Annotated[
        str, typer.Argument(help="An experiment that was run ('surefoot ls runs'), or its scores.csv.")
    ],
    values: Sets = None,
    method: Methods = None,
    store: StoreFolder = Path("runs"),
    paper: Annotated[
        str | None, typer.Option(help="With scores: the paper's task to set beside them, e.g. animals.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With scores: a folder for the tables as files.")
    ] = None,
) -> None:
    """Make an experiment's tables, figures and page again from what the store has; no training, no data.

    From scores alone: the tables, without intervals, which take the predictions.
    """
    from surefoot.store.store import Store

    if experiment.lower().endswith(".csv"):
        if values:
            raise InputError("--set is for an experiment; from scores the tables have what the file has")
        _report_scores(Path(experiment), method, paper, output)
        return
    if paper is not None or output is not None:
        raise InputError(
            f"--paper and --output are for scores, a .csv file; got the experiment {experiment!r}"
        )
    folder = run_folder(Store(store), experiment)
    _report(folder, Store.holding(folder), values, method)


def _report_scores(path: Path, method: list[str] | None, paper: str | None, output: Path | None) -> None:
    from surefoot.cli.terminal import print_grids
    from surefoot.report.comparison import headline_grid
    from surefoot.report.study_tables import scores_compared, scores_context, write_score_tables

    setting, comparison = scores_context(path, paper), scores_compared(path, method)
    print_grids([headline_grid(comparison, setting)])
    if output is not None:
        for written in write_score_tables(comparison, setting, output):
            typer.echo(f"written: {written}")


def run_folder(store: "Store", name: str) -> Path:
    """The folder of an experiment that was run, by its name in a store or by its path."""
    folders = {folder.name: folder for folder in store.experiments()}
    if name in folders:
        return folders[name]
    if (Path(name) / "plans.json").is_file():
        return Path(name)
    have = ", ".join(folders) or "none yet"
    raise InputError(f"no experiment {name!r} was run in {store.root}; have: {have}")


def _report(
    folder: Path, store: "Store", values: list[str] | None = None, method: list[str] | None = None
) -> None:
    from surefoot.cli.terminal import busy, print_grids
    from surefoot.experiments.run import read_folder, study
    from surefoot.report.study import write_study

    experiment, plans = _narrowed(*read_folder(folder), values, method)
    with busy("scoring, resampling and drawing"):
        written = write_study(study(experiment, plans, store), folder)
    print_grids([table for part in written.parts for table in part.headline])
    for sentence in (sentence for part in written.parts for sentence in part.verdict):
        typer.echo(sentence)
    typer.echo(f"report: {written.page}")


def _narrowed(
    experiment: "Experiment", plans: "tuple[Plan, ...]", values: list[str] | None, method: list[str] | None
) -> tuple["Experiment", "tuple[Plan, ...]"]:
    """Other metrics, resamples or methods than it was run with; the networks stay what they are."""
    from surefoot.experiments.experiment import overridden
    from surefoot.experiments.run import with_methods

    given = dict(value_of(text) for text in values or ())
    allowed = ("methods", "metrics", "resamples")
    for name in given:
        if name not in allowed:
            raise InputError(f"a report cannot change {name!r}; it can change: {', '.join(allowed)}")
    asked = overridden(experiment, given | ({"methods": method} if method else {}))
    return (
        (asked, plans) if asked.methods == experiment.methods else with_methods(asked, plans, asked.methods)
    )


def chosen_experiment(
    name: str,
    values: list[str] | None,
    method: list[str] | None,
    oracle: bool,
    root: Path | None,
    weights: Path | None,
) -> "Experiment":
    """The experiment of that name or file with values replaced."""
    from dataclasses import replace

    from surefoot.experiments.experiment import experiment_named, overridden
    from surefoot.experiments.methods import METHODS

    given: dict[str, Any] = dict(value_of(text) for text in values or ())
    for key, value in (("root", root), ("weights", weights)):
        if value is not None:
            given[key] = str(value)
    if method:
        given["methods"] = list(method)
    chosen = overridden(experiment_named(name), given)
    if oracle:
        cheats = tuple(each.name for each in METHODS if each.oracle and each.name not in chosen.methods)
        chosen = replace(chosen, methods=(*chosen.methods, *cheats))
    return chosen


class Format(StrEnum):
    """How the numbers are printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


Run = Annotated[
    str, typer.Argument(help="A name of 'surefoot ls runs', or an experiment's folder in any store.")
]


def compare(
    before: Run,
    after: Run,
    store: StoreFolder = Path("runs"),
    resamples: Annotated[
        int, typer.Option(min=0, help="Bootstrap resamples; 0 for no intervals.")
    ] = RESAMPLES,
    output_format: Annotated[
        Format, typer.Option("--format", help="How to print the numbers.")
    ] = Format.TABLE,
) -> None:
    """What changed between two runs: their values, and each method's numbers with intervals."""
    from surefoot.cli.terminal import busy
    from surefoot.experiments.changes import experiment_change, open_run
    from surefoot.store.store import Store

    opened = [open_run(run_folder(Store(store), name)) for name in (before, after)]
    with busy("scoring and resampling"):
        found = experiment_change(*opened, resamples=resamples)
    _print(found, output_format)


def _print(experiment_change: "ExperimentChange", output_format: Format) -> None:
    import json

    from surefoot.cli.terminal import print_long_tables, print_tables
    from surefoot.report.changes import (
        revision_csv,
        revision_document,
        revision_notes,
        task_tables,
        value_tables,
    )
    from surefoot.report.tables import to_markdown

    notes = revision_notes(experiment_change)
    if output_format is Format.TABLE:
        print_tables(value_tables(experiment_change))
        print_long_tables(task_tables(experiment_change))
        typer.echo("\n".join(notes))
    elif output_format is Format.MARKDOWN:
        typer.echo(to_markdown([*value_tables(experiment_change), *task_tables(experiment_change)]))
        typer.echo("\n".join(f"- {note}" for note in notes))
    elif output_format is Format.CSV:
        typer.echo(revision_csv(experiment_change), nl=False)
    else:
        typer.echo(json.dumps(revision_document(experiment_change), indent=2))
