"""`surefoot ls`: lists of what there is, and one entry of a list in detail."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.complete import names_of
from surefoot.cli.inputs import StoreFolder
from surefoot.cli.terminal import echo, print_tables
from surefoot.errors import InputError, refuse_unknown
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.lab.store.store import Store
    from surefoot.report.tables import Table


LISTS = ("methods", "experiments", "runs", "networks", "tasks", "metrics", "calibrators")


def ls(
    what: Annotated[
        str,
        typer.Argument(
            metavar="LIST",
            help=f"One of: {', '.join(LISTS)}.",
            autocompletion=lambda incomplete: [each for each in LISTS if each.startswith(incomplete)],
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show this one in detail; for an experiment also a TOML file.",
            autocompletion=names_of("experiments", "methods", "tasks", "metrics"),
        ),
    ] = None,
    store: StoreFolder = Path("runs"),
) -> None:
    """List methods, experiments, tasks, metrics or calibrators, or the runs or networks in a store."""
    refuse_unknown("list", [what], LISTS)
    if name is not None:
        _show(what, name, store)
    elif what == "networks":
        _list_networks(_store(store))
    else:
        print_tables([_listed(what, store)])


def _listed(what: str, store: Path) -> "Table":
    from surefoot.report.tables import Table

    match what:
        case "methods":
            return _methods()
        case "experiments":
            return _experiments()
        case "runs":
            return _runs(_store(store))
        case "tasks":
            from surefoot.lab.tasks import TASKS

            tasks = tuple((t.name, t.title, t.description) for t in TASKS)
            return Table.of_text("Tasks", ("name", "title", "description"), tasks)
        case "metrics":
            from surefoot.metrics import METRICS

            metrics = tuple((m.name, m.formula, m.better, m.reference) for m in METRICS)
            return Table.of_text("Metrics", ("name", "formula", "better", "reference"), metrics)
        case _:
            from surefoot.calibrators import CALIBRATORS

            calibrators = tuple((c.name, c.formula, c.reference) for c in CALIBRATORS)
            return Table.of_text("Calibrators", ("name", "formula", "reference"), calibrators)


def _show(what: str, name: str, store: Path) -> None:
    """One entry in detail."""
    from surefoot.cli.data import show as show_task

    match what:
        case "methods":
            _show_method(name)
        case "experiments":
            _show_experiment(name)
        case "runs":
            _show_run(name, store)
        case "tasks":
            show_task(name)
        case "metrics":
            _show_metric(name)
        case "calibrators":
            _show_calibrator(name)
        case _:
            raise InputError(f"networks have no names, got {name!r}; allowed: 'surefoot ls networks'")


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


def _store(root: Path) -> "Store":
    from surefoot.lab.store.store import Store

    if not root.is_dir():
        raise InputError(f"no store at {root}; allowed: a folder that 'surefoot run' created")
    return Store(root)


def _runs(store: "Store") -> "Table":
    from surefoot.report.tables import Table

    rows = tuple(_run(folder, store) for folder in store.experiments())
    return Table.of_text(
        f"Runs in {store.root}", ("name", "tasks", "networks done", "missing", "report"), rows
    )


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


def _list_networks(store: "Store") -> None:
    """A row per network, and the number in each state, such as '3 networks: 2 done, 1 running'."""
    from surefoot.lab.store.files import EPOCH, State
    from surefoot.report.tables import Table

    networks = store.networks()
    rows = []
    for network in networks:
        epochs = [entry for entry in network.log if {"phase", *EPOCH} <= entry.keys()]
        last = epochs[-1] if epochs else {}
        at = f"{last['phase']} {last['epoch']}/{last['epochs']}" if last else ""
        loss = f"{last['loss']:.4f}" if last else ""
        spent = sum(float(entry["seconds"]) for entry in epochs)
        seconds = "" if network.state is State.MISSING else f"{spent:.1f}"
        row = (network.task, network.recipe, str(network.seed), str(network.state), at, loss, seconds)
        rows.append(row)
    header = ("task", "recipe", "seed", "state", "epoch", "loss", "seconds")
    print_tables([Table.of_text(f"Networks in {store.root}", header, tuple(rows))])
    states = [network.state for network in networks]
    counts = [f"{states.count(state)} {state}" for state in State if state in states]
    echo(f"{count_of(len(states), 'network')}{': ' if counts else ''}{', '.join(counts)}")


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
    _show_lines(f"method {method.name}: {method.title}", lines)


def _show_metric(name: str) -> None:
    from surefoot.metrics import METRICS

    metric = METRICS.named(name)
    lines = {"formula": metric.formula, "better": metric.better, "reference": metric.reference}
    _show_lines(f"metric {metric.name}: {metric.title}", lines)


def _show_calibrator(name: str) -> None:
    from surefoot.calibrators import CALIBRATORS

    calibrator = CALIBRATORS.named(name)
    options = ", ".join(calibrator.option_names) or None
    lines = {"formula": calibrator.formula, "reference": calibrator.reference, "options": options}
    _show_lines(f"calibrator {calibrator.name}", lines)


def _show_lines(title: str, lines: Mapping[str, str | None]) -> None:
    echo(title)
    for what, text in lines.items():
        if text:
            echo(f"  {what + ':':<19}{text}")


def _show_run(name: str, root: Path) -> None:
    from surefoot.io import toml_text
    from surefoot.lab.experiments.run import read_folder, undone
    from surefoot.lab.experiments.workflow import run_folder
    from surefoot.lab.store.store import Store

    folder = run_folder(Store(root), name)
    experiment, plans = read_folder(folder)
    text = toml_text(experiment.as_dict(), comment=f"run {folder.name}, as it was run")
    echo(*text.rstrip("\n").split("\n"))
    report = folder / "report.json"
    if report.is_file() and (fitted := _fitted(report)) is not None:
        print_tables([fitted])
    own_store = Store.containing(folder)  # not `root` where the run was given by its path
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
