"""`surefoot train`, `surefoot tune` and `surefoot status`: networks into the store."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.errors import InputError
from surefoot.io import refuse_unwritable
from surefoot.predictions.labels import LabelKind
from surefoot.text import count_of

if TYPE_CHECKING:
    from surefoot.recipes.recipe import Recipe

TaskName = Annotated[str, typer.Argument(help="A task's name (see 'surefoot ls tasks') or its TOML file.")]
Root = Annotated[Path | None, typer.Option(help="Where the task's published files lie.")]
RecipeFile = Annotated[Path | None, typer.Option(help="A recipe, such as 'surefoot tune' writes.")]
Values = Annotated[
    list[str] | None, typer.Option("--set", help="A value of the recipe, e.g. epochs=12; repeat for more.")
]
Weights = Annotated[Path | None, typer.Option(help="Pretrained weights: .safetensors, .pth or .pth.tar.")]
StoreFolder = Annotated[Path, typer.Option(help="The folder of trained networks.")]
Cache = Annotated[Path | None, typer.Option(help="Where decoded images are kept.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]


def train(
    task: TaskName,
    root: Root = None,
    recipe: RecipeFile = None,
    values: Values = None,
    weights: Weights = None,
    members: Annotated[int, typer.Option(min=1, help="How many networks, by seed from 0.")] = 1,
    store: StoreFolder = Path("runs"),
    cache: Cache = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; a core each on a CPU.")] = None,
) -> None:
    """Train networks and keep their weights and logits. The same command goes on where it was stopped."""
    from surefoot.cli.progress import watch
    from surefoot.workers.jobs import WorkOrder, jobs_of
    from surefoot.workers.local import execute, sensible_workers

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
    with watch(order, title=task) as on_event:
        try:
            execute(order, workers=workers or sensible_workers(chosen), on_event=on_event)
        except KeyboardInterrupt:
            typer.echo("stopped; the same command goes on from here", err=True)
            raise typer.Exit(130) from None
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
            help="A learning rate to try, repeat for more; else 0.1 to 0.001, and further if need be."
        ),
    ] = None,
    most_epochs: Annotated[
        int, typer.Option(min=1, help="The most epochs before a plateau is declared.")
    ] = 96,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without improvement that are a plateau.")] = 5,
    cache: Cache = None,
    device: Device = "auto",
) -> None:
    """Search learning rate and epochs on the task's validation split; never looks at unfamiliar data."""
    _refuse_bad_rates(rate or [])
    import torch

    from surefoot.cli.progress import describe_rivals, describe_trials, watch_trials
    from surefoot.images.cache import default_cache
    from surefoot.recipes.recipe import write_recipe
    from surefoot.tasks import task_named
    from surefoot.tasks.task import Split
    from surefoot.training.data import task_inputs
    from surefoot.training.tune import Bench
    from surefoot.training.tune import tune as search

    refuse_unwritable(output)
    base = _recipe(recipe, values, weights)
    found = task_named(task, root=root)
    inputs = task_inputs(found, base, cache=cache or default_cache())
    rates = tuple(rate or ())
    with watch_trials() as on_event:
        bench = Bench(
            found, inputs, base, torch.device(device_named(device)), weights, patience, most_epochs, on_event
        )
        best, trials = search(bench, rates)
    comment = describe_trials(found.name, trials)
    typer.echo(comment)  # first: whatever becomes of the file, the search was not for nothing
    write_recipe(best, output, comment=comment)
    typer.echo(
        f"best: learning rate {best.learning_rate:g}, {count_of(best.epochs, 'epoch')}; recipe: {output}"
    )
    one_label = found.kind is LabelKind.ONE_LABEL  # of many labels the error is no share of samples
    if one_label and (rivals := describe_rivals(trials, len(found.splits[Split.VAL]))):
        typer.echo(rivals)
    tried = [trial.learning_rate for trial in trials]
    if len(tried) > 1 and best.learning_rate in (min(tried), max(tried)):
        end, further = ("highest", 3) if best.learning_rate == max(tried) else ("lowest", 1 / 3)
        beyond = f"--rate {best.learning_rate * further:.1g}"
        typer.echo(f"that is the {end} rate tried; {beyond} may be better still")


def status(
    store: StoreFolder = Path("runs"),
) -> None:
    """What is done, running, stopped or ordered and missing, with times."""
    if not store.is_dir():
        raise InputError(f"no store at {store}; allowed: a folder that 'surefoot train' made")
    from surefoot.cli.progress import status_line, status_table
    from surefoot.cli.terminal import print_tables
    from surefoot.store.store import Store

    networks = Store(store).networks()
    print_tables([status_table(store, networks)])
    typer.echo(status_line(networks))


def _recipe(file: Path | None, values: list[str] | None, weights: Path | None) -> "Recipe":
    from surefoot.recipes.recipe import Recipe, read_recipe, recipe_from
    from surefoot.training.initial import right_weights, weights_digest

    given = dict(value_of(text) for text in values or ())
    chosen = recipe_from(given, base=Recipe() if file is None else read_recipe(file))
    if weights is None:
        return chosen
    if chosen.pretrained is not None:
        right_weights(chosen.pretrained, weights)
    return recipe_from({"pretrained": weights_digest(weights)}, base=chosen)


def _refuse_bad_rates(rates: list[float]) -> None:
    for rate in rates:
        if not 0 < rate < math.inf:
            raise InputError(f"--rate is {rate!r}; allowed: a positive number")


def value_of(text: str) -> tuple[str, Any]:
    """`epochs=12` as a name and a value, read as TOML would."""
    import tomllib

    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text!r} has no '='; allowed: NAME=VALUE, such as epochs=12")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()  # a word without quotes


def device_named(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}; allowed: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', and torch finds none here; allowed: auto, cpu")
    return name
