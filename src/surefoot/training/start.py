"""A network as training begins."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surefoot.errors import InputError
from surefoot.networks import Network, backbone_named, build_network, load_weights
from surefoot.recipes import Recipe
from surefoot.seeds import generator
from surefoot.tasks.base import Split, Task
from surefoot.training.batches import Inputs, Points


def initial_network(
    recipe: Recipe, task: Task, inputs: Mapping[Split, Inputs], *, seed: int, weights: Path | None
) -> Network:
    """Drawn from the seed; the backbone pretrained where the recipe says so, never the last layer."""
    start = generator(task.identity, recipe.digest, seed, "initialisation")
    options = _options(recipe, task, inputs[Split.TRAIN])
    network = build_network(recipe.network, len(task.class_names), generator=start, **options)
    if recipe.pretrained is not None:
        load_weights(network, right_weights(recipe.pretrained, weights))
    return network


def weights_digest(path: Path) -> str:
    """What a weights file is called in a recipe: the start of its sha256."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _options(recipe: Recipe, task: Task, samples: Inputs) -> dict[str, Any]:
    if recipe.network == "mlp":
        if isinstance(samples, Points):
            inputs = samples.values.shape[1]
        else:
            inputs = samples.pixels.shape[1] * recipe.view**2
        return {"inputs": inputs, "hidden": (recipe.width,) * 3, "layer_dropout": recipe.dropout}
    if isinstance(samples, Points):
        if ":" not in recipe.network:
            backbone_named(recipe.network)  # an unknown one is said to be that
        raise InputError(
            f"network {recipe.network!r} takes images, and task {task.name!r} has points; allowed: mlp"
        )
    if ":" in recipe.network:
        return {}
    options: dict[str, Any] = {"channels": samples.pixels.shape[1], "small_stem": recipe.stem == "small"}
    return {**options, "head_dropout": recipe.dropout}


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
