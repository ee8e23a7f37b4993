"""`surefoot run`: compare methods on tasks, from nothing to a report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.train import Cache, Device, StoreFolder, device_named, value_of
from surefoot.errors import InputError

if TYPE_CHECKING:
    from surefoot.experiments import Experiment
    from surefoot.runner import Study

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
    store: StoreFolder = Path("runs"),
    cache: Cache = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; a core each on a CPU.")] = None,
    train_only: Annotated[
        bool, typer.Option("--train-only", help="Leave the report to 'surefoot report'.")
    ] = False,
) -> None:
    """Train what is missing, score every method on familiar and unfamiliar data, write a report.

    The same command goes on where it was stopped.
    """
    from surefoot.decoding import default_cache
    from surefoot.runner import open_folder, plans_for, resolved
    from surefoot.store import Store

    chosen = resolved(_experiment(experiment, values, method, oracle, root, weights))
    plans = plans_for(chosen)
    kept = Store(store)
    folder = open_folder(chosen, plans, kept)
    for plan in plans:
        for reason in dict.fromkeys(plan.skipped):
            typer.echo(f"{plan.task}: {reason}", err=True)
    target = device_named(device)
    for part, plan in zip(chosen.parts, plans, strict=True):
        _make(part, plan, kept, cache or default_cache(), target, workers)
    if not train_only:
        _report(folder, kept)


def _make(part: Any, plan: Any, store: Any, cache: Path, device: str, workers: int | None) -> None:
    from surefoot.cli.training_view import watch
    from surefoot.engines.local import carry_out, sensible_workers
    from surefoot.runner import order_for

    order = order_for(part, plan, store=store, cache=cache, device=device)
    with watch(order) as tell:
        try:
            carry_out(order, workers=workers or sensible_workers(device), tell=tell)
        except KeyboardInterrupt:
            typer.echo("stopped; the same command goes on from here", err=True)
            raise typer.Exit(130) from None


def report(
    experiment: Annotated[str, typer.Argument(help="An experiment that was run ('surefoot ls runs').")],
    values: Sets = None,
    method: Methods = None,
    store: StoreFolder = Path("runs"),
) -> None:
    """Make an experiment's tables, figures and page again from what the store has; no training, no data."""
    from surefoot.store import Store

    kept = Store(store)
    _report(run_folder(kept, experiment), kept, values, method)


def run_folder(store: Any, name: str) -> Path:
    """The folder of an experiment that was run, by its name or path."""
    folders = {folder.name: folder for folder in store.experiments()}
    if name in folders:
        return Path(folders[name])
    if (Path(name) / "plans.json").is_file():
        return Path(name)
    have = ", ".join(folders) or "none yet"
    raise InputError(f"no experiment {name!r} was run in {store.root}; have: {have}")


def _report(
    folder: Path, store: Any, values: list[str] | None = None, method: list[str] | None = None
) -> None:
    from surefoot.cli.terminal import busy, print_grids
    from surefoot.report.study_page import write_study
    from surefoot.report.study_tables import headline_grids
    from surefoot.runner import read_folder, study

    experiment, plans = read_folder(folder)
    experiment, plans = _narrowed(experiment, plans, values, method)
    with busy("scoring, resampling and drawing"):
        found: Study = study(experiment, plans, store)
        page = write_study(found, folder)
    print_grids(headline_grids(found))
    for sentence in study_verdict(found):
        typer.echo(sentence)
    typer.echo(f"report: {page}")


def study_verdict(found: "Study") -> list[str]:
    """What to make of it, in words."""
    from surefoot.report.study_verdict import verdict_of

    return [sentence for part in found.parts for sentence in verdict_of(part)]


def _narrowed(
    experiment: "Experiment", plans: Any, values: list[str] | None, method: list[str] | None
) -> tuple["Experiment", Any]:
    """Other metrics, resamples or methods than it was run with; the networks stay what they are."""
    from dataclasses import replace

    from surefoot.experiments import overridden

    given = dict(value_of(text) for text in values or ())
    allowed = {"metrics", "resamples", "methods"}
    for name in given:
        if name not in allowed:
            raise InputError(
                f"{name!r} decides what is trained; a report can change: {', '.join(sorted(allowed))}"
            )
    experiment = overridden(experiment, given | ({"methods": method} if method else {}))
    wanted = set(experiment.methods)
    kept = tuple(
        replace(plan, methods=tuple(planned for planned in plan.methods if planned.method.name in wanted))
        for plan in plans
    )
    return experiment, kept


def _experiment(
    name: str,
    values: list[str] | None,
    method: list[str] | None,
    oracle: bool,
    root: Path | None,
    weights: Path | None,
) -> "Experiment":
    from dataclasses import replace

    from surefoot.experiments import experiment_named, overridden
    from surefoot.methods import METHODS

    given: dict[str, Any] = dict(value_of(text) for text in values or ())
    for key, value in (("root", root), ("weights", weights)):
        if value is not None:
            given[key] = str(value)
    if method:
        given["methods"] = list(method)
    chosen = overridden(experiment_named(name), given)
    if oracle:
        cheats = tuple(each.name for each in METHODS if each.cheating and each.name not in chosen.methods)
        chosen = replace(chosen, methods=(*chosen.methods, *cheats))
    return chosen
