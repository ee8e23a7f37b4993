"""`surefoot train` and `surefoot tune`."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli.complete import names_of
from surefoot.cli.inputs import (
    Device,
    Root,
    StoreFolder,
    Workers,
    refuse_missing,
    refuse_wrong_outputs,
    stoppable,
    task_files,
    value_of,
)
from surefoot.cli.terminal import echo, print_tables
from surefoot.errors import InputError, refuse_unknown
from surefoot.io import all_or_none, replacing, write_toml
from surefoot.predictions.labels import LabelKind
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.lab.recipes.recipe import Recipe
    from surefoot.lab.workers.jobs import Job, WorkOrder

TaskName = Annotated[
    str,
    typer.Argument(
        help="A task's name (see 'surefoot ls tasks') or its TOML file.",
        autocompletion=names_of("tasks", or_file=".toml"),
    ),
]
RecipeFile = Annotated[Path | None, typer.Option(help="A recipe file, such as 'surefoot tune' writes.")]
Values = Annotated[
    list[str] | None, typer.Option("--set", help="A value of the recipe, e.g. epochs=12; repeat for more.")
]
Weights = Annotated[Path | None, typer.Option(help="Pretrained weights: .safetensors, .pth or .pth.tar.")]


def train(
    task: TaskName,
    root: Root = None,
    recipe: RecipeFile = None,
    values: Values = None,
    weights: Weights = None,
    members: Annotated[int, typer.Option(min=1, help="How many networks, with seeds from 0.")] = 1,
    store: StoreFolder = Path("runs"),
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Train networks and save their weights and logits. The same command resumes where it was stopped."""
    _refuse_missing_files(task, recipe, weights)
    from surefoot.cli.progress import watch
    from surefoot.lab.recipes.own_code import with_code
    from surefoot.lab.workers.jobs import jobs_of
    from surefoot.lab.workers.local import default_workers, execute

    jobs = jobs_of(with_code(_recipe(recipe, values, weights)), range(members))
    order = _order(task, root, jobs, store, weights, device)
    with stoppable(), watch(order, title=task) as on_event:
        execute(order, workers=workers or default_workers(order.device), on_event=on_event)
    echo(f"{count_of(members, 'network')} of {task} in {store}")


def _order(
    task: str,
    root: Path | None,
    jobs: "tuple[Job, ...]",
    store: Path,
    weights: Path | None,
    device: str,
) -> "WorkOrder":
    from surefoot.lab.workers.jobs import WorkOrder
    from surefoot.lab.workers.local import device_named

    paths = {"root": root, "store": store, "weights": weights}
    texts: Any = {name: None if path is None else str(path) for name, path in paths.items()}
    return WorkOrder(task=task, jobs=jobs, device=device_named(device), **texts)


RATE, RECIPE = "rate", "recipe"  # what --search names, besides a file
RATE_ONLY = ("rate", "most_epochs")
RECIPE_ONLY = ("runs", "store", "workers")


def tune(
    context: typer.Context,
    task: TaskName,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the recipe (TOML).")],
    search: Annotated[
        str,
        typer.Option(
            help="rate: learning rate and epochs. recipe: the best of several candidate recipes; or a TOML "
            "file with a table per candidate."
        ),
    ] = RATE,
    root: Root = None,
    recipe: RecipeFile = None,
    values: Values = None,
    weights: Weights = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            help="A learning rate to try, repeat for more; by default 0.1 to 0.001, and beyond if needed."
        ),
    ] = None,
    most_epochs: Annotated[int, typer.Option(min=1, help="The maximum number of epochs.")] = 96,
    runs: Annotated[int, typer.Option(min=1, help="Networks per candidate in the last round.")] = 2,
    store: StoreFolder = Path("runs"),
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Search a recipe on the task's validation split; unfamiliar data is never used."""
    candidates = Path(search) if search.lower().endswith(".toml") else None
    if candidates is None:
        refuse_unknown("search", [search], (RATE, RECIPE, "a .toml file"))
    _refuse_wrong_options(search, context)
    _refuse_missing_files(task, recipe, weights)
    refuse_missing(candidates)
    trials = None if search == RATE else output.with_suffix(".csv")
    if trials == output:
        raise InputError(
            f"the output is {output}, where the trials are written; allowed: another suffix, such as .toml"
        )
    refuse_wrong_outputs([*task_files(task), recipe, weights, candidates], [output, trials])
    base = _recipe(recipe, values, weights)
    where = _order(task, root, (), store, weights, device)
    if search == RATE:
        _tune_rate(where, base, tuple(rate or ()), most_epochs, output)
    else:
        _tune_recipe(where, base, candidates, runs, workers, output)


def _refuse_wrong_options(search: str, context: typer.Context) -> None:
    """Refuse options that this search does not use, and rates that are no rates."""
    names, other = (RECIPE_ONLY, RECIPE) if search == RATE else (RATE_ONLY, RATE)
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is not used by --search {search}; allowed: with --search {other}")
    for rate in context.params["rate"] or ():
        if not 0 < rate < math.inf:
            raise InputError(f"--rate is {rate!r}; allowed: a positive number")


def _tune_rate(
    order: "WorkOrder", base: "Recipe", rates: tuple[float, ...], most_epochs: int, output: Path
) -> None:
    import torch

    from surefoot.cli.progress import describe_equivalent, describe_trials, watch_trials
    from surefoot.lab.recipes.recipe import write_recipe
    from surefoot.lab.tasks import task_named
    from surefoot.lab.tasks.task import Split
    from surefoot.lab.training.data import task_inputs
    from surefoot.lab.training.tune import TuneContext
    from surefoot.lab.training.tune import tune as search

    task = task_named(order.task, root=order.root_path)
    inputs = task_inputs(task, base, cache=order.cache_path)
    device = torch.device(order.device)
    with watch_trials() as on_event:
        context = TuneContext(
            task, inputs, base, device, order.weights_path, most_epochs=most_epochs, on_event=on_event
        )
        best, trials = search(context, rates)
    comment = describe_trials(task.name, trials)
    echo(*comment.split("\n"))  # first, so that the result is not lost if the file cannot be written
    write_recipe(best, output, comment=comment)
    echo(f"best: learning rate {best.learning_rate:g}, {count_of(best.epochs, 'epoch')}; recipe: {output}")
    one_label = task.kind is LabelKind.ONE_LABEL  # with many labels the error is no share of samples
    if one_label and (equivalent := describe_equivalent(trials, len(task.splits[Split.VAL]))):
        echo(equivalent)
    tried = [trial.learning_rate for trial in trials]
    if len(tried) > 1 and best.learning_rate in (min(tried), max(tried)):
        end, further = ("highest", 3) if best.learning_rate == max(tried) else ("lowest", 1 / 3)
        echo(f"this is the {end} rate tried; --rate {best.learning_rate * further:.1g} may be better")


def _tune_recipe(
    order: "WorkOrder", base: "Recipe", file: Path | None, runs: int, workers: int | None, output: Path
) -> None:
    """Search among the candidates of a file, or of the grid."""
    from surefoot.cli.notebook import Log
    from surefoot.cli.progress import describe_not_worse, search_table, watch
    from surefoot.lab.experiments.search import (
        RecipeSearch,
        candidates,
        read_candidates,
        recipe_document,
        trials_csv,
    )
    from surefoot.lab.recipes.own_code import with_code
    from surefoot.lab.tasks import task_named
    from surefoot.lab.workers.local import default_workers
    from surefoot.report.tables import to_markdown

    task, base = task_named(order.task, root=order.root_path), with_code(base)
    recipes = candidates(base, task) if file is None else read_candidates(file, base)
    trials = output.with_suffix(".csv")
    log = Log()
    with stoppable():
        rungs = RecipeSearch(task, recipes, order, runs).run(
            workers=workers or default_workers(order.device),
            watch=lambda order, title, done: watch(order, title=title, done_before=done, log=log),
        )
    table, remarks = search_table(task.name, rungs), describe_not_worse(rungs)
    print_tables([table])  # first, so that the result is not lost if the file cannot be written
    winner = rungs[-1][0].candidate
    comment = "\n".join([to_markdown([table]).rstrip(), "", f"best: {winner.name}", *remarks])
    with all_or_none():
        with replacing(trials) as temporary:
            temporary.write_text(trials_csv(rungs), encoding="utf-8")
        write_toml(recipe_document(winner, base), output, comment=comment)
    echo(f"best: {winner.name}; recipe: {output}; trials: {trials}")
    for line in remarks:
        echo(line)


def _recipe(file: Path | None, values: list[str] | None, weights: Path | None) -> "Recipe":
    from surefoot.lab.recipes.recipe import Recipe
    from surefoot.lab.training.initial import right_weights, weights_digest
    from surefoot.lab.variants import read_recipe, recipe_from
    from surefoot.registry import search_in

    if file is not None:
        search_in(file.parent)  # for a network of the user's own
    given = dict(value_of(text) for text in values or ())
    chosen = recipe_from(given, base=Recipe() if file is None else read_recipe(file))
    if weights is None:
        return chosen
    if chosen.pretrained is not None:
        right_weights(chosen.pretrained, weights)
    return recipe_from({"pretrained": weights_digest(weights)}, base=chosen)


def _refuse_missing_files(task: str, recipe: Path | None, weights: Path | None) -> None:
    refuse_missing(Path(task) if task.lower().endswith(".toml") else None, recipe, weights)
    task_files(task)  # refuses what is no task
