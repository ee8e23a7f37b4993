"""The initial network: from a seed, from pretrained weights, or as the average of others."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.errors import InputError
from surefoot.networks.backbones import BACKBONES, build_network
from surefoot.networks.external import UserNetwork
from surefoot.networks.network import Network
from surefoot.networks.weights import WeightsReport, load_weights
from surefoot.recipes.recipe import Recipe
from surefoot.recipes.variants import Bayesian
from surefoot.runtime import generator
from surefoot.tasks.task import Split, Task
from surefoot.training.data import Inputs, Points, fetched
from surefoot.training.predict import ROWS_AT_ONCE, evaluating


def initial_network(
    recipe: Recipe,
    task: Task,
    inputs: Mapping[Split, Inputs],
    *,
    seed: int,
    weights: Path | None,
    on_weights: Callable[[WeightsReport], None] = lambda _: None,
) -> Network:
    """Drawn from the seed; the backbone pretrained where the recipe says so, never the last layer.

    `on_weights` is told which of the pretrained weights were loaded.
    """
    network = drawn_network(recipe, task, inputs, seed=seed)
    if isinstance(network, UserNetwork):
        shape = (2, *_shape(recipe, task, inputs[Split.TRAIN]))
        _refuse_other_outputs(deepcopy(network), recipe.network, shape, len(task.class_names))
    if recipe.pretrained is not None:
        on_weights(load_weights(network, right_weights(recipe.pretrained, weights)))
    return network


def drawn_network(recipe: Recipe, task: Task, inputs: Mapping[Split, Inputs], *, seed: int) -> Network:
    """All of it drawn from the seed."""
    start = generator(task.training_identity, recipe.digest, seed, "initialisation")
    options = network_options(recipe, _shape(recipe, task, inputs[Split.TRAIN]))
    return build_network(recipe.network, len(task.class_names), generator=start, **options)


def _refuse_other_outputs(copy: UserNetwork, name: str, shape: tuple[int, ...], classes: int) -> None:
    """Asked before the hours of training, not after; a copy, for a network may keep what it was asked."""
    needed = f"needed: logits of shape (2, {classes})"
    try:
        with torch.no_grad(), evaluating([copy]):
            answer: Any = copy(torch.zeros(shape))
    except Exception as error:  # whatever the user's code raises
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise InputError(
            f"network {name!r} fails on samples of shape {shape} ({reason}); {needed}"
        ) from error
    if not isinstance(answer, torch.Tensor) or answer.shape != (2, classes):
        got = f"shape {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise InputError(f"network {name!r} gives {got} for samples of shape {shape}; {needed}")


def weights_digest(path: Path) -> str:
    """What a weights file is called in a recipe: the start of its sha256."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def network_options(recipe: Recipe, shape: tuple[int, ...]) -> dict[str, Any]:
    """What `build_network` takes beside name and classes, for samples of that shape."""
    if recipe.network == "mlp":
        hidden = (recipe.width,) * 3
        options = {"inputs": math.prod(shape), "hidden": hidden, "layer_dropout": recipe.dropout}
        return options | _bayesian_options(recipe)
    if ":" in recipe.network:
        return _bayesian_options(recipe)
    options = {"channels": shape[0], "small_stem": recipe.stem == "small"}
    return options | {"head_dropout": recipe.dropout} | _bayesian_options(recipe)


def _shape(recipe: Recipe, task: Task, samples: Inputs) -> tuple[int, ...]:
    """Of a sample as the network sees it."""
    if not isinstance(samples, Points):
        return (samples.pixels.shape[1], recipe.view, recipe.view)
    if recipe.network != "mlp":
        if ":" not in recipe.network:
            BACKBONES.named(recipe.network)  # an unknown one is said to be that
        raise InputError(
            f"network {recipe.network!r} takes images, and task {task.name!r} has points; allowed: mlp"
        )
    return tuple(samples.values.shape[1:])


def _bayesian_options(recipe: Recipe) -> dict[str, Any]:
    """A head with a variance; dropout before it, or in every layer where all of the network is sampled."""
    variant = recipe.variant
    if not isinstance(variant, Bayesian):
        return {}
    if variant.sampled == "head":
        return {"head": "gaussian", "head_dropout": variant.dropout}
    if recipe.network not in ("mlp", "densenet161"):
        raise InputError(
            f"network {recipe.network!r} has no dropout in its layers; allowed with sampled = 'network': "
            "densenet161, mlp"
        )
    before_head = 0.0 if recipe.network == "mlp" else variant.dropout  # the mlp's last layer has its own
    return {"head": "gaussian", "head_dropout": before_head, "layer_dropout": variant.dropout}


def right_weights(digest: str, path: Path | None) -> Path:
    """The path, if the file there is the one that the recipe was made with."""
    if path is None:
        raise InputError(
            f"the recipe begins with pretrained weights {digest}; say where they are: --weights FILE"
        )
    found = weights_digest(path)
    if found != digest:
        raise InputError(f"{path} holds weights {found}; the recipe was made with {digest}")
    return path


Weights = dict[str, Tensor]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def mixed(states: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """sum_m share_m * w_m for every tensor of floating point; others are the first's."""
    return {
        name: sum(
            (share * state[name].double() for share, state in zip(shares, states, strict=True)),
            torch.zeros((), dtype=torch.float64),
        ).to(first.dtype)
        if first.is_floating_point()
        else first
        for name, first in states[0].items()
    }


def averaged(states: Sequence[Weights]) -> Weights:
    """The mean of every tensor."""
    return mixed(states, [1 / len(states)] * len(states))


def refresh_statistics(network: nn.Module, inputs: Inputs, device: torch.device) -> None:
    """Take BatchNorm's means and variances anew over the samples: those of averaged weights are no average.

    Averaged over batches of one size, all else in evaluation mode.
    """
    norms = [module for module in network.modules() if isinstance(module, NORMS)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    inputs = inputs.on(device)
    batches = torch.split(torch.arange(len(inputs)), ROWS_AT_ONCE)
    whole = [rows for rows in batches if len(rows) == len(batches[0])]
    network.to(device)
    with torch.no_grad(), evaluating([network]):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
            norm.train()
        for rows, raw in fetched(inputs, whole, device):
            network(inputs.test_views(raw, rows.to(device)).float())
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
