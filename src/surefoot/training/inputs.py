"""A task's samples, ready for training."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from surefoot.decoding import Size
from surefoot.recipes import Recipe
from surefoot.tasks.base import Split, Task
from surefoot.tasks.decoded import decode_task
from surefoot.tasks.images import ImageFiles
from surefoot.training.batches import Inputs, Points, images_from


def task_inputs(
    task: Task, recipe: Recipe, *, cache: Path, tick: Callable[[int], None] | None = None
) -> Mapping[Split, Inputs]:
    """Every split's samples: images decoded to the recipe's size, arrays as they are."""
    decoded = decode_task(task, Size(recipe.resize), cache=cache, tick=tick)
    return {split: _inputs(task, split, decoded, recipe) for split in task.splits}


def _inputs(task: Task, split: Split, decoded: Mapping[Split, object], recipe: Recipe) -> Inputs:
    samples = task.splits[split].inputs
    if not isinstance(samples, ImageFiles) and samples.ndim == 2:
        return Points(torch.from_numpy(samples).float())
    images = decoded[split] if isinstance(samples, ImageFiles) else samples
    return images_from(images, view=recipe.view, resize=recipe.resize, augmentation=recipe.augmentation)  # type: ignore[arg-type]
