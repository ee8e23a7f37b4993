"""`surefoot show`: one thing in full."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.train import StoreFolder
from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.report.table import Table
    from surefoot.store import Store


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
    from surefoot.store import Store

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
        Kind.RUN: _run,
    }
    for index, each in enumerate(found):
        typer.echo("\n" if index else "", nl=False)
        shown[each](name, kept)


def _shelves(store: "Store") -> dict[Kind, list[str]]:
    """The names of everything, by what it is."""
    from surefoot.experiments import EXPERIMENTS
    from surefoot.methods import METHODS
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
    from surefoot.experiments import experiment_named
    from surefoot.files import toml_text
    from surefoot.runner import resolved

    experiment = resolved(experiment_named(name))
    comment = f"experiment {experiment.name}, as it would run"
    typer.echo(toml_text(experiment.as_dict(), comment=comment), nl=False)


def _method(name: str, _store: "Store") -> None:
    from surefoot.methods import method_named

    method = method_named(name)
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
    import surefoot.version as ours

    page = Path("docs", "methods", f"{name}.md")
    checkout = Path(ours.__file__).parents[2]
    return page.as_posix() if (checkout / page).is_file() else None


def _task(name: str, _store: "Store") -> None:
    from surefoot.cli.data import show as show_task

    show_task(name.partition("/")[0])


def _run(name: str, store: "Store") -> None:
    from surefoot.cli.run import run_folder
    from surefoot.cli.terminal import print_tables
    from surefoot.files import toml_text
    from surefoot.runner import read_folder, undone
    from surefoot.store import Store

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
    from surefoot.report.study_fitted import values_of
    from surefoot.report.table import Table

    values: dict[tuple[str, str], list[float]] = {}
    for file in sorted((folder / "calibrations").glob("*.json")):
        of = file.stem.rpartition("-run")[0]
        for name, numbers in values_of(load_calibration(file)).items():
            values.setdefault((of, name), []).extend(numbers)
    rows = tuple((of, name, ", ".join(f"{n:.4g}" for n in all_)) for (of, name), all_ in values.items())
    return Table("Fitted, a value for each run", ("task and method", "what", "values"), rows)
