"""`surefoot ls` and `surefoot show`."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.complete import names_of
from surefoot.cli.inputs import StoreFolder, run_folder
from surefoot.cli.terminal import echo
from surefoot.errors import InputError, did_you_mean, refuse_unknown

if TYPE_CHECKING:
    from surefoot.lab.store.store import Store
    from surefoot.report.tables import Table


LISTS = ("methods", "experiments", "runs", "tasks", "metrics", "calibrators")


def ls(
    what: Annotated[
        str,
        typer.Argument(
            help=f"One of: {', '.join(LISTS)}.",
            autocompletion=lambda incomplete: [each for each in LISTS if each.startswith(incomplete)],
        ),
    ],
    store: StoreFolder = Path("runs"),
) -> None:
    """List methods, experiments, tasks, metrics or calibrators, or the runs in a store."""
    from surefoot.cli.terminal import print_tables
    from surefoot.report.tables import Table

    refuse_unknown("list", [what], LISTS)
    match what:
        case "methods":
            table = _methods()
        case "experiments":
            table = _experiments()
        case "runs":
            table = _runs(store)
        case "tasks":
            from surefoot.lab.tasks import TASKS

            tasks = tuple((t.name, t.title, t.description) for t in TASKS)
            table = Table.of_text("Tasks", ("name", "title", "description"), tasks)
        case "metrics":
            from surefoot.metrics import METRICS

            metrics = tuple((m.name, m.formula, m.better, m.reference) for m in METRICS)
            table = Table.of_text("Metrics", ("name", "formula", "better", "reference"), metrics)
        case _:
            from surefoot.calibrators import CALIBRATORS

            calibrators = tuple((c.name, c.formula, c.reference) for c in CALIBRATORS)
            table = Table.of_text("Calibrators", ("name", "formula", "reference"), calibrators)
    print_tables([table])


def _methods() -> "Table":
    from surefoot.lab.experiments.methods import METHODS
    from surefoot.report.tables import Column, Section, Table

    header = ("name", "formula", "train", "run")
    sections = tuple(
        Section.of_text(
            origin,
            [(m.name, m.formula, m.training, m.inference) for m in METHODS if m.origin == origin],
        )
        for origin in dict.fromkeys(method.origin for method in METHODS)
    )
    columns = tuple(Column(name, align="left") for name in header)
    title = "Methods: networks to train, passes to run (M: members of an ensemble)"
    return Table(title, columns, sections)


def _experiments() -> "Table":
    from surefoot.lab.experiments.experiment import EXPERIMENTS
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
    return Table.of_text("Experiments", header, rows)


def _runs(root: Path) -> "Table":
    from surefoot.lab.store.store import Store
    from surefoot.report.tables import Table

    if not root.is_dir():
        raise InputError(f"no store at {root}; allowed: a folder that 'surefoot run' created")
    store = Store(root)
    rows = tuple(_run(folder, store) for folder in store.experiments())
    return Table.of_text(f"Runs in {root}", ("name", "tasks", "networks done", "missing", "report"), rows)


def _run(folder: Path, store: "Store") -> tuple[str, ...]:
    """A run's row; an unreadable run is listed with its error."""
    from surefoot.lab.experiments.run import read_folder, undone

    try:
        _, plans = read_folder(folder)
    except InputError as error:
        return (folder.name, str(error), "", "", "")
    planned = sum(len(plan.jobs()) for plan in plans)
    missing = sum(len(undone(plan, store)) for plan in plans)
    tasks = ", ".join(dict.fromkeys(plan.task for plan in plans))
    report = "yes" if (folder / "report.html").is_file() else "no"
    return (folder.name, tasks, str(planned - missing), str(missing), report)


class Kind(StrEnum):
    """What can be shown."""

    EXPERIMENT = "experiment"
    METHOD = "method"
    TASK = "task"
    RUN = "run"


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="An experiment (or its TOML file), a method, a task or a run.",
            autocompletion=names_of("experiments", "methods", "tasks"),
        ),
    ],
    kind: Annotated[
        Kind | None, typer.Option("--as", help="Show only this kind, if several have the name.")
    ] = None,
    store: StoreFolder = Path("runs"),
) -> None:
    """Show an experiment as it would run, a method, the files that a task needs, or a run's results."""
    from surefoot.cli.data import show as show_task
    from surefoot.lab.experiments.experiment import EXPERIMENTS
    from surefoot.lab.experiments.methods import METHODS
    from surefoot.lab.store.store import Store
    from surefoot.lab.tasks import TASKS

    opened, task = Store(store), name.partition("/")[0]
    names = {
        Kind.EXPERIMENT: [each.name for each in EXPERIMENTS],
        Kind.METHOD: [each.name for each in METHODS],
        Kind.TASK: [each.name for each in TASKS],
        Kind.RUN: [folder.name for folder in opened.experiments()],
    }
    matches = {
        Kind.EXPERIMENT: name in names[Kind.EXPERIMENT] or name.lower().endswith(".toml"),
        Kind.METHOD: name in names[Kind.METHOD],
        Kind.TASK: task in names[Kind.TASK],
        Kind.RUN: name in names[Kind.RUN] or (Path(name) / "plans.json").is_file(),
    }
    kinds = list(Kind) if kind is None else [kind]
    if not any(matches[each] for each in kinds):
        have = "; ".join(f"{each}s: {', '.join(names[each]) or 'none'}" for each in kinds)
        near = did_you_mean(name, [each for kind in kinds for each in names[kind]])
        listed = (
            ""
            if kind is not None
            else "; 'surefoot ls metrics' and 'surefoot ls calibrators' list the others"
        )
        raise InputError(f"nothing is called {name!r}{near}; have {have}{listed}")
    show_one: dict[Kind, Callable[[], None]] = {
        Kind.EXPERIMENT: lambda: _show_experiment(name),
        Kind.METHOD: lambda: _show_method(name),
        Kind.TASK: lambda: show_task(task),
        Kind.RUN: lambda: _show_run(name, opened),
    }
    for index, each in enumerate(each for each in kinds if matches[each]):
        typer.echo("\n" if index else "", nl=False)
        show_one[each]()


def _show_experiment(name: str) -> None:
    """Print TOML that `surefoot run` accepts."""
    from surefoot.io import toml_text
    from surefoot.lab.experiments.experiment import experiment_named
    from surefoot.lab.experiments.run import resolved

    experiment = resolved(experiment_named(name))
    comment = f"experiment {experiment.name}, as it would run"
    echo(*toml_text(experiment.as_dict(), comment=comment).rstrip("\n").split("\n"))


def _show_method(name: str) -> None:
    from surefoot.lab.experiments.methods import METHODS

    method = METHODS.named(name)
    page = Path("docs", "methods", f"{method.page}.md")
    in_checkout = (Path(__file__).parents[3] / page).is_file()
    lines = {
        "formula": method.formula,
        "reference": method.reference,
        "from": method.origin,
        "networks to train": method.training,
        "passes to run": method.inference,
        "fitted on": method.fitted_on,
        "novelty score": method.novelty,
        "more": page.as_posix() if in_checkout else None,
    }
    echo(f"method {method.name}: {method.title}")
    for what, text in lines.items():
        if text is not None:
            echo(f"  {what + ':':<19}{text}")


def _show_run(name: str, store: "Store") -> None:
    from surefoot.cli.terminal import print_tables
    from surefoot.io import toml_text
    from surefoot.lab.experiments.run import read_folder, undone
    from surefoot.lab.store.store import Store

    folder = run_folder(store, name)
    experiment, plans = read_folder(folder)
    text = toml_text(experiment.as_dict(), comment=f"run {folder.name}, as it was run")
    echo(*text.rstrip("\n").split("\n"))
    report = folder / "report.json"
    if report.is_file() and (fitted := _fitted(report)) is not None:
        print_tables([fitted])
    own_store = Store.containing(folder)  # not `store` where the run was given by its path
    missing = sum(len(undone(plan, own_store)) for plan in plans)
    planned = sum(len(plan.jobs()) for plan in plans)
    echo(f"networks: {planned - missing} done, {missing} missing")
    page = folder / "report.html"
    none = f"none; 'surefoot report {folder.name} --store {own_store.root}' writes one"
    echo(f"report: {page if page.is_file() else none}")


def _fitted(report: Path) -> "Table | None":
    """The parameters fitted by the last report: a row per task and method, a value per run."""
    from surefoot.io import read_json
    from surefoot.report.tables import Table

    document = read_json(report, "a report")
    values: dict[tuple[str, str], list[str]] = {}
    try:
        for part in document["parts"]:
            for method in part["methods"]:
                for run in method["fitted"]:
                    for name, numbers in (run.get("parameters") or {}).items():  # older reports have none
                        of = (f"{part['name']}-{method['name']}", name)
                        values.setdefault(of, []).extend(f"{number:.4g}" for number in numbers)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{report} is not a report: missing or wrong {error}") from error
    rows = tuple((*of, ", ".join(numbers)) for of, numbers in values.items())
    header = ("task and method", "parameter", "values")
    return Table.of_text("Fitted parameters, a value per run", header, rows) if rows else None
