"""`surefoot train`, `surefoot tune` and `surefoot status`: the networks of a store."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.inputs import Cache, Device, StoreFolder, device_named, refuse_missing, stoppable, value_of
from surefoot.errors import InputError
from surefoot.io import refuse_unwritable
from surefoot.predictions.labels import LabelKind
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.recipes.recipe import Recipe

TaskName = Annotated[str, typer.Argument(help="A task's name (see 'surefoot ls tasks') or its TOML file.")]
Root = Annotated[Path | None, typer.Option(help="Folder with the task's published files.")]
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
    cache: Cache = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; a core each on a CPU.")] = None,
) -> None:
    """Train networks and save their weights and logits. The same command resumes where it was stopped."""
    _refuse_missing_files(task, recipe, weights)
    from surefoot.cli.progress import watch
    from surefoot.workers.jobs import WorkOrder, jobs_of
    from surefoot.workers.local import default_workers, execute

    chosen = device_named(device)
    order = WorkOrder(
        task=task,
        root=None if root is None else str(root),
        jobs=jobs_of(_recipe(recipe, values, weights), range(members)),
        store=str(store),
        cache=None if cache is None else str(cache),
        weights=None if weights is None else str(weights),
        device=chosen,
    )
    with stoppable(), watch(order, title=task) as on_event:
        execute(order, workers=workers or default_workers(chosen), on_event=on_event)
    typer.echo(f"{count_of(members, 'network')} of {task} in {store}")


def tune(
    task: TaskName,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the recipe (TOML).")],
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
    patience: Annotated[
        int, typer.Option(min=1, help="Stop after this many epochs without improvement.")
    ] = 5,
    cache: Cache = None,
    device: Device = "auto",
) -> None:
    """Search learning rate and epochs on the task's validation split; unfamiliar data are never used."""
    for each in rate or ():
        if not 0 < each < math.inf:
            raise InputError(f"--rate is {each!r}; allowed: a positive number")
    _refuse_missing_files(task, recipe, weights)
    import torch

    from surefoot.cli.progress import describe_equivalent, describe_trials, watch_trials
    from surefoot.images.cache import default_cache
    from surefoot.recipes.recipe import write_recipe
    from surefoot.tasks import task_named
    from surefoot.tasks.task import Split
    from surefoot.training.data import task_inputs
    from surefoot.training.tune import TuneContext
    from surefoot.training.tune import tune as search

    refuse_unwritable(output)
    base = _recipe(recipe, values, weights)
    loaded = task_named(task, root=root)
    inputs = task_inputs(loaded, base, cache=cache or default_cache())
    with watch_trials() as on_event:
        context = TuneContext(
            loaded, inputs, base, torch.device(device_named(device)), weights, patience, most_epochs, on_event
        )
        best, trials = search(context, tuple(rate or ()))
    comment = describe_trials(loaded.name, trials)
    typer.echo(comment)  # first, so that the result is not lost if the file cannot be written
    write_recipe(best, output, comment=comment)
    typer.echo(
        f"best: learning rate {best.learning_rate:g}, {count_of(best.epochs, 'epoch')}; recipe: {output}"
    )
    one_label = loaded.kind is LabelKind.ONE_LABEL  # with many labels the error is no share of samples
    if one_label and (equivalent := describe_equivalent(trials, len(loaded.splits[Split.VAL]))):
        typer.echo(equivalent)
    tried = [trial.learning_rate for trial in trials]
    if len(tried) > 1 and best.learning_rate in (min(tried), max(tried)):
        end, further = ("highest", 3) if best.learning_rate == max(tried) else ("lowest", 1 / 3)
        typer.echo(f"this is the {end} rate tried; --rate {best.learning_rate * further:.1g} may be better")


def status(
    store: StoreFolder = Path("runs"),
) -> None:
    """List the networks of a store: done, running, stopped or missing, with times."""
    if not store.is_dir():
        raise InputError(f"no store at {store}; allowed: a folder that 'surefoot train' created")
    from surefoot.cli.progress import status_line, status_table
    from surefoot.cli.terminal import print_tables
    from surefoot.store.store import Store

    networks = Store(store).networks()
    print_tables([status_table(store, networks)])
    typer.echo(status_line(networks))


def _recipe(file: Path | None, values: list[str] | None, weights: Path | None) -> "Recipe":
    from surefoot.recipes.recipe import Recipe
    from surefoot.training.initial import right_weights, weights_digest
    from surefoot.variants import read_recipe, recipe_from

    given = dict(value_of(text) for text in values or ())
    chosen = recipe_from(given, base=Recipe() if file is None else read_recipe(file))
    if weights is None:
        return chosen
    if chosen.pretrained is not None:
        right_weights(chosen.pretrained, weights)
    return recipe_from({"pretrained": weights_digest(weights)}, base=chosen)


def _refuse_missing_files(task: str, recipe: Path | None, weights: Path | None) -> None:
    refuse_missing(Path(task) if task.lower().endswith(".toml") else None, recipe, weights)
