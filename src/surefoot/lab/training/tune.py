"""Learning rate and number of epochs, searched on validation with the paper's plateau rule.

At each learning rate: train until the validation error has not improved for some epochs, then a third as
many epochs again at a tenth of the rate. The recipe with the lowest final error is chosen; of equals, the one
with the lower NLL. If that is the highest or the lowest rate tried, the next one is tried too.
Unfamiliar data are not used.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from surefoot.errors import InputError
from surefoot.lab.networks.network import Network
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks.task import Split, Task
from surefoot.lab.training.data import Inputs
from surefoot.lab.training.initial import initial_network
from surefoot.lab.training.loop import Hooks, Progress, train
from surefoot.lab.training.losses import Classification
from surefoot.lab.training.predict import predict
from surefoot.metrics import label_error, nll
from surefoot.predictions.predictions import Predictions
from surefoot.runtime import derive_seed

LADDER = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
RATES = LADDER[3:8]  # tried first; the others where the best is at an end
MOST_EPOCHS = 96
PATIENCE = 5


@dataclass(frozen=True)
class Trial:
    """The result of one learning rate."""

    learning_rate: float
    epochs: int  # all of them, the last quarter at a tenth of the rate
    error: float  # on validation, at the end
    nll: float
    diverged: bool = False


@dataclass(frozen=True)
class EpochResult:
    """A trial after an epoch."""

    learning_rate: float
    epoch: int
    error: float
    nll: float


class _Plateau(Exception):  # noqa: N818  a signal, not an error
    """The validation error has stopped falling."""


@dataclass(frozen=True, eq=False)
class TuneContext:
    """The task, base recipe and limits of a search."""

    task: Task
    inputs: Mapping[Split, Inputs]
    recipe: Recipe
    device: torch.device
    weights: Path | None = None
    patience: int = PATIENCE
    most_epochs: int = MOST_EPOCHS
    on_event: Callable[[EpochResult], None] = lambda _: None


def tune(context: TuneContext, rates: Sequence[float] = ()) -> tuple[Recipe, list[Trial]]:
    """The best recipe, and every trial: of `rates` alone, else along LADDER while the best is at an end."""
    if Split.VAL not in context.task.splits:
        raise InputError(f"task {context.task.name!r} has no val split; needed: one, to search on")
    trials = [try_rate(context, rate) for rate in rates or RATES]
    while not rates and (following := next_rate(trials)) is not None:
        trials.append(try_rate(context, following))
    if all(trial.diverged for trial in trials):
        tried = ", ".join(f"{trial.learning_rate:g}" for trial in trials)
        raise InputError(f"training diverged at every learning rate of {tried}; try lower ones")
    best = best_of(trials)
    return replace(context.recipe, learning_rate=best.learning_rate, epochs=best.epochs), trials


def best_of(trials: Sequence[Trial]) -> Trial:
    """The lowest error, then the lowest NLL; where all diverged, the lowest rate."""
    return min(trials, key=lambda t: (t.diverged, t.learning_rate) if t.diverged else (False, t.error, t.nll))


def within_one_standard_error(trials: Sequence[Trial], samples: int) -> tuple[float, list[Trial]]:
    """The standard error of the best trial's error on so many samples, and the other trials within it.

    At least 1 / samples, also where no prediction is wrong.
    """
    best = best_of(trials)
    error = max(math.sqrt(best.error * (1 - best.error) / samples), 1 / samples)
    return error, [trial for trial in trials if trial is not best and trial.error <= best.error + error]


def next_rate(trials: Sequence[Trial]) -> float | None:
    """The next rate of LADDER where the best so far is the highest or the lowest tried."""
    tried = [trial.learning_rate for trial in trials]
    place = LADDER.index(best_of(trials).learning_rate)
    neighbours = LADDER[max(place - 1, 0) : place + 2]
    return next((rate for rate in neighbours if rate not in tried), None)


def try_rate(context: TuneContext, rate: float) -> Trial:
    """Train to the plateau, then a third as many epochs at a tenth of the rate."""
    recipe = replace(context.recipe, learning_rate=rate, epochs=context.most_epochs)
    network = initial_network(recipe, context.task, context.inputs, seed=0, weights=context.weights)
    try:
        reached = _to_the_plateau(context, network, recipe)
        last = max(1, math.ceil(reached / 3))
        _run(context, network, replace(recipe, epochs=last), "last", lambda _: rate / 10, lambda _: None)
        error, loss = _validate(context, network)
    except InputError:
        return Trial(rate, context.most_epochs, math.nan, math.nan, diverged=True)
    context.on_event(EpochResult(rate, reached + last, error, loss))
    return Trial(rate, reached + last, error, loss)


def _to_the_plateau(context: TuneContext, network: Network, recipe: Recipe) -> int:
    """Train until the error has not fallen for `patience` epochs; restore and return the best epoch."""
    best, best_epoch = (math.inf, math.inf), 0
    weights: dict[str, Tensor] = {}

    def check(progress: Progress) -> None:
        nonlocal best, best_epoch, weights
        result = _validate(context, network)
        context.on_event(EpochResult(recipe.learning_rate, progress.epoch, *result))
        if result < best:
            best, best_epoch = result, progress.epoch
            weights = {name: value.clone() for name, value in network.state_dict().items()}
        if progress.epoch - best_epoch >= context.patience:
            raise _Plateau

    with suppress(_Plateau):
        _run(context, network, recipe, "plateau", lambda _: recipe.learning_rate, check)
    network.load_state_dict(weights)  # without the epochs after it, as the recipe will train
    return best_epoch


def _run(
    context: TuneContext,
    network: Network,
    recipe: Recipe,
    purpose: str,
    rate: Callable[[float], float],
    on_progress: Callable[[Progress], None],
) -> None:
    train(
        network,
        context.inputs[Split.TRAIN],
        torch.from_numpy(context.task.splits[Split.TRAIN].labels),
        Classification(context.task.kind, recipe.label_smoothing),
        recipe,
        seed=derive_seed(context.task.training_identity, recipe.learning_rate, "tune", purpose),
        device=context.device,
        hooks=Hooks(on_progress),
        rate=rate,
    )


def _validate(context: TuneContext, network: Network) -> tuple[float, float]:
    logits = predict([network], context.inputs[Split.VAL], context.device)
    if not torch.isfinite(logits).all():
        raise InputError("the logits are not finite")
    predictions = Predictions.from_logits(logits, context.task.splits[Split.VAL].labels)
    return label_error(predictions), nll(predictions)
