"""Distillation with views that students share, with the student's own views, or with centre crops.

    python benchmarks/fixed_views.py [--teachers 5] [--students 3] [--epochs 16]

On letters with random crops, with a small MLP. Prints the mean error and NLL for each setting, and the CPU
seconds of the first student and of a later one: with shared views, the first computes the teachers'
predictions for all.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

from surefoot.metrics import label_error, nll
from surefoot.recipes.recipe import Recipe, Spec, Teachers
from surefoot.recipes.variants import VIEWS, Distilled
from surefoot.store.store import Store
from surefoot.tasks import Split, task_named
from surefoot.training.data import task_inputs
from surefoot.workers.build import TaskContext
from surefoot.workers.produce import produce


def main() -> None:
    """Teachers first, then the students of each setting."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--teachers", type=int, default=5)
    parser.add_argument("--students", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    task = task_named("letters")
    recipe = Recipe(
        network="mlp",
        width=128,
        learning_rate=0.05,
        epochs=chosen.epochs,
        view=16,
        resize=16,
        protocol="holdout",
    )
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        context = TaskContext(task, task_inputs(task, recipe, cache=store.root), torch.device("cpu"))
        for seed in range(chosen.teachers):
            produce(Spec(task.name, task.identity, recipe, seed), context, store)
        teachers = Teachers(recipe, tuple(range(chosen.teachers)))
        found: dict[str, list[tuple[float, ...]]] = {views: [] for views in VIEWS}
        for seed in range(chosen.students):
            for views, rows in found.items():
                student = replace(recipe, variant=Distilled(teachers=teachers, views=views))
                spec, start = Spec(task.name, task.identity, student, seed), time.process_time()
                produce(spec, context, store)
                seconds = time.process_time() - start
                said = [store.predictions(spec, s) for s in (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)]
                rows.append((seconds, *(f(each) for f in (label_error, nll) for each in said)))
    print("| views | CPU s, first | CPU s, later | error F | error U | NLL F | NLL U |")
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for views, rows in found.items():
        seconds, *scores = zip(*rows, strict=True)
        later = mean(seconds[1:]) if len(rows) > 1 else float("nan")
        values = " | ".join(f"{mean(column):.3f}" for column in scores)
        print(f"| {views} | {seconds[0]:.1f} | {later:.1f} | {values} |")


if __name__ == "__main__":
    main()
