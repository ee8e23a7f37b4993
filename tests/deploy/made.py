"""Small experiments that were run, on image files of many shapes and on points, to make bundles from."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from surefoot.lab.experiments.changes import open_run
from surefoot.lab.experiments.experiment import Experiment, Part
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.experiments.plan import replanned
from surefoot.lab.experiments.results import Reader
from surefoot.lab.experiments.run import open_folder, plans_for, resolved
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import task_named
from surefoot.lab.training.data import task_inputs
from surefoot.lab.variants.build import TaskContext
from surefoot.lab.workers.produce import complete, produce

ROWS = 192
COLOURS = ("red", "green", "<b>blue|s</b>")
RECIPE = Recipe(network="mlp", width=8, epochs=8, learning_rate=0.1, view=12, resize=16, dropout=0.1)
NAMES = tuple(method.name for method in METHODS if not method.oracle)
ONE = 'label = "colour"\nclasses = ["red", "green", "<b>blue|s</b>"]'
MANY = 'labels = "colours"'
TASK = """
[task]
name = "{name}"
manifest = "manifest.csv"
images = "images"
{labels}
[familiar]
side = {{ below = 40 }}
[splits]
val = 0.25
test = 0.4
[unlabelled]
images = "unlabelled"
"""


def pictures(folder):
    """Files of many shapes and types whose strongest colours are their labels; large ones are unfamiliar.

    A sixth of the labels are wrong, so that temperatures are about 1 and no search ends at its bound.
    """
    rng = np.random.default_rng(0)
    lines = ["path,colour,colours,side"]
    for row in range(ROWS):
        label, side = row % 3, (20, 30, 36, 44)[row % 4]
        pixels = rng.integers(0, 160, (side, side + row % 23, 3), dtype=np.uint8)
        pixels[..., label] += rng.integers(0, 95, dtype=np.uint8)
        label = (label + (rng.random() < 1 / 6)) % 3
        name = f"{row:03d}{('.png', '.jpg', '.webp')[row % 3]}"
        _save(pixels, folder / "images" / f"part{row % 2}" / name)
        strong = [COLOURS[i] for i in range(3) if (i == label) != (rng.random() < 0.1)] or ["red"]
        lines.append(f"part{row % 2}/{name},{COLOURS[label]},{';'.join(strong)},{side}")
    for row in range(8):
        pixels = rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)
        _save(pixels, folder / "unlabelled" / f"{row}.png")
    (folder / "manifest.csv").write_text("\n".join(lines))


def _save(pixels, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@dataclass(frozen=True)
class Ran:
    """An experiment that was run."""

    folder: Path
    images: Path
    store: Store

    @property
    def opened(self):
        return open_run(self.folder)

    def stored(self, method, run=0):
        """What a method's run said, by split: fitted from what is in the store."""
        plan, _ = replanned(self.opened.plans[0], [method])
        return Reader(self.store).result(plan.methods[0]).runs[run]


def ran(folder, *, many=False, task=None, recipe=RECIPE, methods=NAMES, members=2, runs=1):
    """Every method on the pictures, or on a built-in task, here and now."""
    if task is None:
        pictures(folder)
        task = folder / "task.toml"
        task.write_text(TASK.format(name="colours", labels=MANY if many else ONE))
    part = Part(task=str(task), recipe=recipe)
    experiment = resolved(
        Experiment(name="tiny", parts=(part,), methods=methods, members=members, runs=runs, folds=2)
    )
    plans = plans_for(experiment)
    store = Store(folder / "store")
    place = open_folder(experiment, plans, store)
    loaded = task_named(str(task))
    context = TaskContext(
        loaded, task_inputs(loaded, recipe, cache=folder / "cache"), torch.device("cpu"), None
    )
    for job in plans[0].jobs():
        produce(plans[0].spec(job), context, store)
        complete(plans[0].spec(job), job, context, store)
    return Ran(place, folder / "images", store)
