"""`surefoot ls` and `surefoot show`."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.train import StoreFolder
from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.report.tables import Table
    from surefoot.store.store import Store


class Shelf(StrEnum):
    """What can be listed."""

    METHODS = "methods"
    EXPERIMENTS = "experiments"
    RUNS = "runs"
    TASKS = "tasks"
    METRICS = "metrics"
    CALIBRATORS = "calibrators"


def ls(
    what: Annotated[Shelf, typer.Argument(help="What to list.")],
    store: StoreFolder = Path("runs"),
) -> None:
    """List methods, experiments, tasks, metrics or calibrators, or the runs in a store."""
    from surefoot.cli.terminal import print_tables

    if what is Shelf.RUNS:
        print_tables([_runs(store)])
        return
    tables = {
        Shelf.METHODS: _methods,
        Shelf.EXPERIMENTS: _experiments,
        Shelf.TASKS: _tasks,
        Shelf.METRICS: _metrics,
        Shelf.CALIBRATORS: _calibrators,
    }
    print_tables([tables[what]()])


def _methods() -> "Table":
    from surefoot.experiments.methods import METHODS
    from surefoot.report.tables import Table

    header = ("name", "formula", "networks to train", "passes to run", "from")
    rows = tuple((m.name, m.formula, m.training, m.inference, m.origin) for m in METHODS)
    return Table("Methods (M: members of an ensemble)", header, rows)


def _experiments() -> "Table":
    from surefoot.experiments.experiment import EXPERIMENTS
    from surefoot.report.tables import Table

    header = ("name", "tasks", "methods", "members", "runs", "about")
    rows = tuple(
        (
            each.name,
            ", ".join(dict.fromkeys(part.task for part in each.parts)),
            str(len(each.methods)),
            str(each.members),
            str(each.runs),
            each.about,
        )
        for each in EXPERIMENTS
    )
    return Table("Experiments", header, rows)


def _runs(root: Path) -> "Table":
    from surefoot.report.tables import Table
    from surefoot.store.store import Store

    if not root.is_dir():
        raise InputError(f"no store at {root}; allowed: a folder that 'surefoot run' made")
    store = Store(root)
    rows = tuple(_run(folder, store) for folder in store.experiments())
    return Table(f"Runs in {root}", ("name", "tasks", "networks done", "missing", "report"), rows)


def _run(folder: Path, store: "Store") -> tuple[str, ...]:
    """A run's row; one that cannot be read says so, and the others are listed all the same."""
    from surefoot.experiments.run import read_folder, undone

    try:
        _, plans = read_folder(folder)
    except InputError as error:
        return (folder.name, str(error), "", "", "")
    ordered = sum(len(plan.jobs()) for plan in plans)
    missing = sum(len(undone(plan, store)) for plan in plans)
    tasks = ", ".join(dict.fromkeys(plan.task for plan in plans))
    report = "yes" if (folder / "report.html").is_file() else "no"
    return (folder.name, tasks, str(ordered - missing), str(missing), report)


def _tasks() -> "Table":
    from surefoot.report.tables import Table
    from surefoot.tasks import TASKS

    return Table(
        "Tasks", ("name", "title", "description"), tuple((t.name, t.title, t.description) for t in TASKS)
    )


def _metrics() -> "Table":
    from surefoot.metrics import METRICS
    from surefoot.report.tables import Table

    rows = tuple((m.name, m.formula, m.better, m.reference) for m in METRICS)
    return Table("Metrics", ("name", "formula", "better", "reference"), rows)


def _calibrators() -> "Table":
    from surefoot.calibrators import CALIBRATORS
    from surefoot.report.tables import Table

    rows = tuple((c.name, c.formula, c.reference) for c in CALIBRATORS)
    return Table("Calibrators", ("name", "formula", "reference"), rows)


class Kind(StrEnum):
    """What can be shown."""

    EXPERIMENT = "experiment"
    METHOD = "method"
    TASK = "task"
    RUN = "run"


def show(
    name: Annotated[str, typer.Argument(help="An experiment (or its TOML file), a method, a task or a run.")],
    kind: Annotated[
        Kind | None, typer.Option("--as", help="Which, where several things have the name; otherwise all.")
    ] = None,
    store: StoreFolder = Path("runs"),
) -> None:
    """Show an experiment as it would run, a method, a task's needs, or what a run came to."""
    from surefoot.store.store import Store

    kept = Store(store)
    shelves = _shelves(kept)
    asked = list(Kind) if kind is None else [kind]
    found = [each for each in asked if _holds(each, name, shelves[each])]
    if not found:
        have = "; ".join(f"{each}s: {', '.join(shelves[each]) or 'none'}" for each in asked)
        raise InputError(f"nothing is called {name!r}; have {have}")
    shown: dict[Kind, Callable[[str, Store], None]] = {
        Kind.EXPERIMENT: _experiment,
        Kind.METHOD: _method,
        Kind.TASK: _task,
        Kind.RUN: _show_run,
    }
    for index, each in enumerate(found):
        typer.echo("\n" if index else "", nl=False)
        shown[each](name, kept)


def _shelves(store: "Store") -> dict[Kind, list[str]]:
    """The names of everything, by what it is."""
    from surefoot.experiments.experiment import EXPERIMENTS
    from surefoot.experiments.methods import METHODS
    from surefoot.tasks import TASKS

    return {
        Kind.EXPERIMENT: [each.name for each in EXPERIMENTS],
        Kind.METHOD: [each.name for each in METHODS],
        Kind.TASK: [each.name for each in TASKS],
        Kind.RUN: [folder.name for folder in store.experiments()],
    }


def _holds(kind: Kind, name: str, shelf: list[str]) -> bool:
    if kind is Kind.EXPERIMENT and name.lower().endswith(".toml"):
        return True
    if kind is Kind.RUN and (Path(name) / "plans.json").is_file():
        return True
    return (name.partition("/")[0] if kind is Kind.TASK else name) in shelf


def _experiment(name: str, _store: "Store") -> None:
    """TOML that `surefoot run` takes."""
    from surefoot.experiments.experiment import experiment_named
    from surefoot.experiments.run import resolved
    from surefoot.io import toml_text

    experiment = resolved(experiment_named(name))
    comment = f"experiment {experiment.name}, as it would run"
    typer.echo(toml_text(experiment.as_dict(), comment=comment), nl=False)


def _method(name: str, _store: "Store") -> None:
    from surefoot.experiments.methods import METHODS

    method = METHODS.named(name)
    page = _page(method.page)
    lines = {
        "formula": method.formula,
        "reference": method.reference,
        "from": method.origin,
        "networks to train": method.training,
        "passes to run": method.inference,
        "fitted on": method.fitted_on,
        "novelty score": method.novelty,
        "more": page,
    }
    typer.echo(f"method {method.name}: {method.title}")
    for what, text in lines.items():
        if text is not None:
            typer.echo(f"  {what + ':':<19}{text}")


def _page(name: str) -> str | None:
    """The method's page, where this is a checkout that has it."""
    page = Path("docs", "methods", f"{name}.md")
    checkout = Path(__file__).parents[3]
    return page.as_posix() if (checkout / page).is_file() else None


def _task(name: str, _store: "Store") -> None:
    from surefoot.cli.data import show as show_task

    show_task(name.partition("/")[0])


def _show_run(name: str, store: "Store") -> None:
    from surefoot.cli.run import run_folder
    from surefoot.cli.terminal import print_tables
    from surefoot.experiments.run import read_folder, undone
    from surefoot.io import toml_text
    from surefoot.store.store import Store

    folder = run_folder(store, name)
    experiment, plans = read_folder(folder)
    typer.echo(toml_text(experiment.as_dict(), comment=f"run {folder.name}, as it was run"), nl=False)
    fitted = _fitted(folder)
    if fitted.rows:
        print_tables([fitted])
    holding = Store.holding(folder)
    missing = [plan.spec(job) for plan in plans for job in undone(plan, holding)]
    ordered = sum(len(plan.jobs()) for plan in plans)
    typer.echo(f"networks: {ordered - len(missing)} done, {len(missing)} missing")
    page = folder / "report.html"
    remedy = f"none; 'surefoot report {folder.name} --store {holding.root}' makes one"
    typer.echo(f"report: {page if page.is_file() else remedy}")


def _fitted(folder: Path) -> "Table":
    """What the last report fitted: a row per task and method, a value per run."""
    from surefoot.calibrators import load_calibration
    from surefoot.report.tables import Table

    values: dict[tuple[str, str], list[float]] = {}
    for file in sorted((folder / "calibrations").glob("*.json")):
        of = file.stem.rpartition("-run")[0]
        for name, numbers in load_calibration(file).parameters().items():
            values.setdefault((of, name), []).extend(numbers)
    rows = tuple((of, name, ", ".join(f"{n:.4g}" for n in all_)) for (of, name), all_ in values.items())
    return Table("Fitted, a value for each run", ("task and method", "what", "values"), rows)
