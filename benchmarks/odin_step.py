"""How much the unit of ODIN's step matters: novelty scaling with steps from none to a large one.

    python benchmarks/odin_step.py letters [--epochs 8] [--seeds 2] [--rows 1000]
    python benchmarks/odin_step.py cat-dog --root Oxford_IIIT_Pets --weights resnet18_animalfree.safetensors

Trains a ResNet-18 on the CPU for a few epochs, computes the scores with each step, and fits T0 and T1
on validation data. Unfamiliar data are used for the tasks that the package draws itself, and only for the
report. Prints a Markdown table, a row for each step: the mean over seeds.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from surefoot.calibrators import fit_calibration
from surefoot.metrics import nll, nll_unclipped
from surefoot.novelty import STEP, odin
from surefoot.predictions.novelty import auroc, fit_scale
from surefoot.recipes.recipe import Protocol, Recipe, Spec
from surefoot.store.store import Store
from surefoot.tasks import task_named
from surefoot.tasks.task import Split
from surefoot.training.augment import SPREAD
from surefoot.training.data import task_inputs
from surefoot.training.initial import weights_digest
from surefoot.variants.build import TaskContext, phases
from surefoot.workers.produce import produce

BEFORE = STEP * sum(SPREAD) / len(SPREAD)  # 0.0014 in units of the normalised input
STEPS = {"none": 0.0, "0.0014, normalised": BEFORE, "0.0014, pixel": STEP, "0.0056, pixel": 4 * STEP}
DRAWN = ("letters", "toy")  # tasks of which unfamiliar data may be looked at
RECIPES = {
    "letters": Recipe(view=32, resize=32, augmentation="none", learning_rate=0.05, epochs=8),
    "cat-dog": Recipe(view=64, resize=72, learning_rate=0.03, epochs=3, protocol=Protocol.HOLDOUT),
}


def chosen_rows(split: Split, size: int, most: int) -> Tensor:
    """At most so many rows of a split, drawn with a fixed seed, in order."""
    rows = np.random.default_rng([0, len(split)]).permutation(size)[:most]
    return torch.from_numpy(np.sort(rows))


def results(
    spec: Spec, context: TaskContext, store: Store, tested: tuple[Split, ...], most: int
) -> Iterator[list[float]]:
    """For each step: rank correlation with no step, T0, T1, NLL by split, AUROC."""
    rows = {split: chosen_rows(split, len(each), most) for split, each in context.inputs.items()}
    inputs = {split: each.take(rows[split]) for split, each in context.inputs.items()}
    scores: dict[str, dict[Split, np.ndarray]] = {name: {} for name in STEPS}
    scaled: dict[str, dict[Split, np.ndarray]] = {name: {} for name in STEPS}
    for phase in phases(spec.recipe.protocol, context.task):
        network = context.restored(spec, store.weights(spec, phase.weights))
        predicted = [split for split in phase.predicted if split in (Split.VAL, *tested)]
        for name, eps in STEPS.items():
            of_split = {
                split: odin(
                    network, inputs[split], kind=context.task.kind, device=context.device, eps=eps
                ).numpy()
                for split in (*phase.trained, *predicted)
            }
            scale = fit_scale(np.concatenate([of_split[split] for split in phase.trained]))
            for split in predicted:
                scores[name][split] = of_split[split]
                scaled[name][split] = scale(of_split[split])
    predictions = {
        split: store.predictions(spec, split).take(rows[split].numpy()) for split in (Split.VAL, *tested)
    }
    for name in STEPS:
        by_split = {split: replace(each, novelty=scaled[name][split]) for split, each in predictions.items()}
        fitted = fit_calibration("novelty", by_split[Split.VAL])
        values = [spearmanr(scores[name][Split.VAL], scores["none"][Split.VAL]).statistic]
        values += [fitted.parameters()["T0"][0], fitted.parameters()["T1"][0]]
        values += [
            (nll_unclipped if split is Split.VAL else nll)(fitted(each)) for split, each in by_split.items()
        ]
        if Split.TEST_UNFAMILIAR in tested:
            values.append(auroc(*(scores[name][split] for split in tested)))
        yield values


def main() -> None:
    """Train, score, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=RECIPES)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1000, help="of each split, at most")
    parser.add_argument("--store", type=Path, help="keeps the networks, to resume from")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    task = task_named(chosen.task, root=chosen.root)
    recipe = RECIPES[chosen.task]
    recipe = replace(recipe, epochs=chosen.epochs or recipe.epochs)
    if chosen.weights is not None:
        recipe = replace(recipe, pretrained=weights_digest(chosen.weights))
    tested = (Split.TEST_FAMILIAR,)
    if chosen.task in DRAWN:
        tested = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.store or Path(temporary)
        store = Store(folder / "store")
        inputs = task_inputs(task, recipe, cache=folder / "cache")
        context = TaskContext(task, inputs, torch.device("cpu"), chosen.weights)
        found = []
        for seed in range(chosen.seeds):
            spec = Spec(task.name, task.identity, recipe, seed)
            produce(spec, context, store)
            found.append(list(results(spec, context, store, tested, chosen.rows)))
    sides = ["NLL val", "familiar", *(["unfamiliar", "AUROC"] if len(tested) > 1 else [])]
    print("| step | pixel values | rank correlation with no step | T0 | T1 |", " | ".join(sides), "|")
    print(f"|---|---|---|---|---|{'---|' * len(sides)}")
    for name, values in zip(STEPS, np.mean(found, axis=0), strict=True):
        numbers = " | ".join(f"{value:.4f}" for value in values)
        print(f"| {name} | {STEPS[name]:.5f} | {numbers} |")


if __name__ == "__main__":
    main()
