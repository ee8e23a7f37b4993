"""`surefoot run`, `surefoot report` and `surefoot compare`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.inputs import (
    Cache,
    Device,
    StoreFolder,
    device_named,
    refuse_missing,
    run_folder,
    stoppable,
    value_of,
)
from surefoot.cli.terminal import echo
from surefoot.errors import InputError
from surefoot.evaluation import MOST_RESAMPLES, RESAMPLES
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.cli.progress import Log
    from surefoot.experiments.changes import ExperimentChange
    from surefoot.experiments.experiment import Experiment, Part
    from surefoot.experiments.plan import Plan
    from surefoot.recipes.recipe import Spec
    from surefoot.store.store import Store
    from surefoot.workers.jobs import Event, WorkOrder
    from surefoot.workers.ray import Cluster

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="A value of the experiment or of its recipes, e.g. runs=3; repeat for more."),
]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="A method ('surefoot ls methods'); repeat for more.")
]
Oracle = Annotated[bool, typer.Option("--oracle", help="Add the oracle methods, which use the test labels.")]
Calibrators = Annotated[
    str | None,
    typer.Option(
        "--calibrators",
        help="Add single networks and the ensemble with each of these ('surefoot ls calibrators'), "
        "e.g. temperature,vector,isotonic.",
    ),
]
ENGINES = ("local", "ray")
Engine = Annotated[str, typer.Option(help="What trains the networks: local, or ray (docs/ray.md).")]
Address = Annotated[
    str | None,
    typer.Option(help="Of a Ray cluster: HOST:PORT, ray://HOST:PORT or auto; otherwise one is started here."),
]
CpusPerNetwork = Annotated[
    float | None, typer.Option(help="With ray: CPUs that a network takes; 1 by default.")
]
GpusPerNetwork = Annotated[
    float | None,
    typer.Option(help="With ray: GPUs that a network takes, e.g. 0.25; half of one by default."),
]


def run(
    experiment: Annotated[str, typer.Argument(help="A name ('surefoot ls experiments') or a TOML file.")],
    values: Sets = None,
    method: Methods = None,
    oracle: Oracle = False,
    calibrators: Calibrators = None,
    root: Annotated[Path | None, typer.Option(help="Folder with the task's published files.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Pretrained weights for every part.")] = None,
    store: Annotated[
        str, typer.Option(help="The folder of trained networks, or a URL such as s3://bucket/runs.")
    ] = "runs",
    cache: Cache = None,
    device: Device = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Networks at a time; a process and a core each on a CPU.")
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    cpus_per_network: CpusPerNetwork = None,
    gpus_per_network: GpusPerNetwork = None,
    train_only: Annotated[
        bool, typer.Option("--train-only", help="Leave the report to 'surefoot report'.")
    ] = False,
) -> None:
    """Train what is missing, score every method on familiar and unfamiliar data, write a report.

    The same command resumes where it was stopped.
    """
    refuse_missing(weights)
    from surefoot.cli.progress import Log
    from surefoot.cli.terminal import busy
    from surefoot.experiments.run import open_folder, plans_for, resolved

    with stoppable():
        chosen = resolved(_chosen_experiment(experiment, values, method, oracle, calibrators, root, weights))
        training = _training_engine(engine, device, workers, address, cpus_per_network, gpus_per_network)
        plans = plans_for(chosen)
        opened = _open_store(store, cache)
        with busy("verifying the networks in the store"):
            opened.store.verify(plan.spec(job) for plan in plans for job in plan.jobs())
        folder = open_folder(chosen, plans, opened.store)
        _print_remarks(chosen, plans)
        log = Log()
        with training as trainer:
            for index, (part, plan) in enumerate(zip(chosen.parts, plans, strict=True), 1):
                of_all = f"task {index} of {len(plans)}, " if len(plans) > 1 else ""
                _train(part, plan, opened, cache, trainer, log, title=f"{of_all}{plan.task}")
        if train_only:
            command = f"'surefoot report {folder.name} --store {opened.store.root}'"
            echo(f"trained; {command} writes the report")
        else:
            _report(folder, opened.store)
        opened.send(folder)


def _chosen_experiment(
    name: str,
    values: list[str] | None,
    method: list[str] | None,
    oracle: bool,
    calibrators: str | None,
    root: Path | None,
    weights: Path | None,
) -> "Experiment":
    """The experiment of that name or file with values replaced."""
    from surefoot.experiments.experiment import experiment_named, overridden
    from surefoot.experiments.methods import METHODS, calibrated_rows

    given: dict[str, Any] = dict(value_of(text) for text in values or ())
    for key, value in (("root", root), ("weights", weights)):
        if value is not None:
            given[key] = str(value)
    if method:
        given["methods"] = list(method)
    chosen = overridden(experiment_named(name), given)
    added = [each.name for each in METHODS if oracle and each.oracle]
    for calibrator in (calibrators or "").split(",") if calibrators is not None else ():
        added += calibrated_rows(calibrator.strip())
    return replace(chosen, methods=tuple(dict.fromkeys((*chosen.methods, *added))))


@dataclass(frozen=True)
class _Trainer:
    """How networks are trained: the device, and the engine's function."""

    device: str
    execute: Callable[["WorkOrder", Callable[["Event"], None]], None]


def _training_engine(
    name: str,
    device: str,
    workers: int | None,
    address: str | None,
    cpus: float | None,
    gpus: float | None,
) -> AbstractContextManager[_Trainer]:
    """The engine of that name; a cluster is connected to when there is something to train."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; have: {', '.join(ENGINES)}")
    if name == "ray":
        if device not in ("auto", "cpu", "cuda"):  # whether there is a GPU depends on the nodes
            raise InputError(f"device is {device!r}; allowed: auto, cpu, cuda")
        from surefoot.ray_cluster import load_ray
        from surefoot.workers.ray import Cluster

        given = {} if cpus is None else {"cpus": cpus}
        cluster = Cluster(address=address, gpus=gpus, most=workers, **given)
        load_ray(address)  # a missing installation is reported before anything is planned
        return _on_ray(cluster, device)
    options = {"--address": address, "--cpus-per-network": cpus, "--gpus-per-network": gpus}
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} is {value!r} and the engine is 'local'; needed: --engine ray")
    from surefoot.workers.local import default_workers, execute

    chosen = device_named(device)
    count = workers or default_workers(chosen)
    return nullcontext(
        _Trainer(chosen, lambda order, on_event: execute(order, workers=count, on_event=on_event))
    )


@contextmanager
def _on_ray(cluster: "Cluster", device: str) -> Iterator[_Trainer]:
    from surefoot.workers.ray import engine

    with engine(cluster) as execute:
        yield _Trainer(device, execute)


@dataclass(frozen=True)
class _OpenedStore:
    """A store, and the URL that it is a copy of, if it is one."""

    store: "Store"
    url: str | None = None

    def sync(self, specs: "Sequence[Spec]") -> None:
        """Copy these networks both ways between the copy and the URL."""
        if self.url is not None:
            from surefoot.cli.terminal import busy
            from surefoot.store.remote import Remote

            with busy(f"comparing {count_of(len(specs), 'network')} with {self.url}"):
                Remote(self.url).sync(specs, self.store)

    def send(self, folder: Path) -> None:
        """Upload an experiment's folder."""
        if self.url is not None:
            from surefoot.store.remote import Remote

            Remote(self.url).send_folder(folder, self.store)
            echo(f"all results are in {self.url}; the copy on this machine: {self.store.root}")


def _open_store(location: str, cache: Path | None) -> _OpenedStore:
    """A store in a folder, or this machine's copy of a store at a URL."""
    from surefoot.images.cache import default_cache
    from surefoot.store.remote import Remote, is_url
    from surefoot.store.store import Store

    if not is_url(location):
        return _OpenedStore(Store(Path(location)))
    remote = Remote(location)
    with remote.marked():  # fails before the hours of training where it cannot be written to
        return _OpenedStore(remote.local_copy(cache or default_cache()), location)


def _print_remarks(experiment: "Experiment", plans: "tuple[Plan, ...]") -> None:
    """Print what a user should know before the hours of training."""
    for part, plan in zip(experiment.parts, plans, strict=True):
        for reason in dict.fromkeys(plan.skipped):
            echo(f"{plan.task}: {reason}", err=True)
        if part.paper is not None and part.recipe.pretrained is None:
            echo(
                f"{plan.task}: without --weights the networks start from random weights, unlike the paper's",
                err=True,
            )


def _train(
    part: "Part",
    plan: "Plan",
    opened: _OpenedStore,
    cache: Path | None,
    trainer: _Trainer,
    log: "Log",
    *,
    title: str,
) -> None:
    from surefoot.cli.progress import watch
    from surefoot.experiments.run import order_for

    specs = [plan.spec(job) for job in plan.jobs()]
    opened.sync(specs)
    order = order_for(part, plan, store=opened.store, cache=cache, device=trainer.device, remote=opened.url)
    with watch(order, title=title, done_before=len(specs) - len(order.jobs), log=log) as on_event:
        trainer.execute(order, on_event)
    if order.jobs:
        opened.sync(specs)


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
    """Write an experiment's tables, figures and page again from the store, without training or data.

    From scores alone: the tables, without intervals, which need the predictions.
    """
    if experiment.lower().endswith(".csv"):
        if values:
            raise InputError("--set is for an experiment; from scores the tables have what the file has")
        refuse_missing(Path(experiment))
        _report_scores(Path(experiment), method, paper, output)
        return
    if paper is not None or output is not None:
        raise InputError(
            f"--paper and --output are for scores, a .csv file; got the experiment {experiment!r}"
        )
    from surefoot.store.store import Store

    folder = run_folder(Store(store), experiment)
    _report(folder, Store.containing(folder), values, method)


def _report_scores(path: Path, method: list[str] | None, paper: str | None, output: Path | None) -> None:
    from surefoot.cli.terminal import print_method_tables
    from surefoot.report.comparison import headline_table
    from surefoot.report.study_tables import scores_compared, scores_context, write_score_tables

    context, comparison = scores_context(path, paper), scores_compared(path, method)
    print_method_tables([headline_table(comparison, context)])
    if output is not None:
        for written in write_score_tables(comparison, context, output):
            echo(f"written: {written}")


def _report(
    folder: Path, store: "Store", values: list[str] | None = None, method: list[str] | None = None
) -> None:
    from surefoot.cli.terminal import busy, print_method_tables
    from surefoot.experiments.run import read_folder, study
    from surefoot.report.study import write_study

    experiment, plans = _narrowed(*read_folder(folder), values, method)
    with busy("scoring, resampling and drawing"):
        written = write_study(study(experiment, plans, store), folder)
    print_method_tables([table for part in written.parts for table in part.headline])
    for sentence in (sentence for part in written.parts for sentence in part.verdict):
        echo(sentence)
    echo(f"report: {written.page}")


def _narrowed(
    experiment: "Experiment", plans: "tuple[Plan, ...]", values: list[str] | None, method: list[str] | None
) -> tuple["Experiment", "tuple[Plan, ...]"]:
    """With other metrics, resamples, methods or budget than it was run with; the networks stay the same."""
    from surefoot.experiments.experiment import overridden
    from surefoot.experiments.run import with_methods

    given = dict(value_of(text) for text in values or ())
    allowed = ("methods", "metrics", "resamples", "budget")
    for name in given:
        if name not in allowed:
            raise InputError(f"a report cannot change {name!r}; it can change: {', '.join(allowed)}")
    changed = overridden(experiment, given | ({"methods": method} if method else {}))
    if "budget" in given:
        plans = tuple(plan.with_budget(given["budget"]) for plan in plans)
    if changed.methods == experiment.methods:
        return changed, plans
    return with_methods(changed, plans, changed.methods)


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
        int, typer.Option(min=0, max=MOST_RESAMPLES, help="Bootstrap resamples; 0 for no intervals.")
    ] = RESAMPLES,
    output_format: Annotated[
        Format, typer.Option("--format", help="How to print the numbers.")
    ] = Format.TABLE,
) -> None:
    """What changed between two runs: their values, and each method's numbers with intervals."""
    from surefoot.store.store import Store

    folders = [run_folder(Store(store), name) for name in (before, after)]
    from surefoot.cli.terminal import busy
    from surefoot.experiments.changes import experiment_change, open_run

    runs = [open_run(folder) for folder in folders]
    with busy("scoring and resampling"):
        change = experiment_change(*runs, resamples=resamples)
    _print_change(change, output_format)


def _print_change(change: "ExperimentChange", output_format: Format) -> None:
    import json

    from surefoot.cli.terminal import print_long_tables, print_tables
    from surefoot.report.changes import (
        change_csv,
        change_document,
        change_notes,
        task_tables,
        value_tables,
    )
    from surefoot.report.tables import to_markdown

    notes = change_notes(change)
    if output_format is Format.TABLE:
        print_tables(value_tables(change))
        print_long_tables(task_tables(change))
        echo(*notes)
    elif output_format is Format.MARKDOWN:
        typer.echo(to_markdown([*value_tables(change), *task_tables(change)]))
        echo(*(f"- {note}" for note in notes))
    elif output_format is Format.CSV:
        typer.echo(change_csv(change), nl=False)
    else:
        typer.echo(json.dumps(change_document(change), indent=2))
