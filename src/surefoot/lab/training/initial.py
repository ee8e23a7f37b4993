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
from surefoot.io import refuse_special
from surefoot.lab.networks.backbones import BACKBONES, build_network
from surefoot.lab.networks.external import UserNetwork
from surefoot.lab.networks.network import Network
from surefoot.lab.networks.weights import WeightsReport, load_weights
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks.task import Split, Task
from surefoot.lab.training.data import Inputs, Points, fetched, generator
from surefoot.lab.training.predict import ROWS_AT_ONCE, evaluating


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

    `on_weights` receives a report on which of the pretrained weights were loaded.
    """
    network = drawn_network(recipe, task, inputs, seed=seed)
    if isinstance(network, UserNetwork):
        shape = (2, *_shape(recipe, task, inputs[Split.TRAIN]))
        _refuse_other_outputs(deepcopy(network), recipe.network, shape, len(task.class_names))
    if recipe.pretrained is not None:
        on_weights(load_weights(network, right_weights(recipe.pretrained, weights)))
    return network


def drawn_network(recipe: Recipe, task: Task, inputs: Mapping[Split, Inputs], *, seed: int) -> Network:
    """A network with all weights drawn from the seed."""
    start = generator(task.training_identity, recipe.digest, seed, "initialisation")
    options = network_options(recipe, _shape(recipe, task, inputs[Split.TRAIN]))
    return build_network(recipe.network, len(task.class_names), generator=start, **options)


def _refuse_other_outputs(copy: UserNetwork, name: str, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a network with wrong outputs before the hours of training.

    On a copy, because a user's network may store something in its first call.
    """
    needed = f"needed: logits of shape (2, {classes})"
    try:
        with torch.no_grad(), evaluating([copy]):
            outputs: Any = copy(torch.zeros(shape))
    except Exception as error:  # whatever the user's code raises
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise InputError(
            f"network {name!r} fails on samples of shape {shape} ({reason}); {needed}"
        ) from error
    if not isinstance(outputs, torch.Tensor) or outputs.shape != (2, classes):
        got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise InputError(f"network {name!r} gives {got} for samples of shape {shape}; {needed}")


def weights_digest(path: Path) -> str:
    """The name of a weights file in a recipe: the start of its sha256."""
    try:
        refuse_special(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def network_options(recipe: Recipe, shape: tuple[int, ...]) -> dict[str, Any]:
    """The arguments of `build_network` besides name and classes, for samples of that shape."""
    options: dict[str, Any] = {}
    inputs = math.prod(shape)
    if recipe.network == "mlp":
        hidden = (recipe.width,) * 3
        options = {"inputs": inputs, "hidden": hidden, "layer_dropout": recipe.dropout}
    elif recipe.network == "residual-mlp":
        options = {"inputs": inputs, "width": recipe.width, "layer_dropout": recipe.dropout}
    elif recipe.network == "linear":
        options = {"inputs": inputs, "head_dropout": recipe.dropout}
    elif ":" not in recipe.network:
        small_stem = recipe.stem == "small"
        options = {"channels": shape[0], "small_stem": small_stem, "head_dropout": recipe.dropout}
    return options if recipe.variant is None else options | recipe.variant.network_options(recipe.network)


def _shape(recipe: Recipe, task: Task, samples: Inputs) -> tuple[int, ...]:
    """The shape of a sample as the network gets it."""
    if not isinstance(samples, Points):
        for name in ("feature_noise", "feature_dropout"):
            if value := getattr(recipe, name):
                raise InputError(f"{name} is {value:g}, and task {task.name!r} has images; allowed: 0")
        return (samples.pixels.shape[1], recipe.view, recipe.view)
    source, colon, _ = recipe.network.partition(":")
    takes_images = source in ("timm", "torchvision") if colon else not _takes_vectors(recipe.network)
    if takes_images:
        allowed = ", ".join(each.name for each in BACKBONES if each.takes_vectors)
        raise InputError(
            f"network {recipe.network!r} takes images, and task {task.name!r} has vectors; allowed: "
            f"{allowed}, package.module:function"
        )
    return tuple(samples.values.shape[1:])


def _takes_vectors(network: str) -> bool:
    return BACKBONES.named(network).takes_vectors  # refuses an unknown one by name


def right_weights(digest: str, path: Path | None) -> Path:
    """The path, if the file there is the one that the recipe was made with."""
    if path is None:
        raise InputError(f"the recipe begins with pretrained weights {digest}; needed: --weights FILE")
    actual = weights_digest(path)
    if actual != digest:
        raise InputError(f"{path} contains weights {actual}; the recipe was made with {digest}")
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


def refresh_statistics(network: nn.Module, inputs: Inputs, device: torch.device) -> None:
    """Compute BatchNorm's means and variances again over the samples: averaged weights have other ones.

    Averaged over batches of one size, all other modules in evaluation mode.
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
