"""Distillation: teachers that see the student's own view, against teachers that saw each centre crop once.

    python benchmarks/fixed_views.py [--teachers 5] [--students 3] [--epochs 16]

On the letters with random crops, a small perceptron. Prints the error and NLL of both, and the seconds taken.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from surefoot.engines.making import Workshop
from surefoot.engines.produce import produce
from surefoot.metrics import label_error, nll
from surefoot.recipes import Distilled, Recipe, Spec, Teachers
from surefoot.store import Store
from surefoot.tasks import Split, task_named
from surefoot.training.inputs import task_inputs


def main() -> None:
    """Teachers first, then both kinds of students in turn."""
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
        workshop = Workshop(task, task_inputs(task, recipe, cache=store.root), torch.device("cpu"))
        for seed in range(chosen.teachers):
            produce(Spec(task.name, task.identity, recipe, seed), workshop, store)
        teachers = Teachers(recipe, tuple(range(chosen.teachers)))
        found: dict[str, list[tuple[float, ...]]] = {"same": [], "fixed": []}
        for seed in range(chosen.students):
            for views, rows in found.items():
                student = replace(recipe, variant=Distilled(teachers=teachers, views=views))
                spec, start = Spec(task.name, task.identity, student, seed), time.perf_counter()
                produce(spec, workshop, store)
                seconds = time.perf_counter() - start
                said = [store.predictions(spec, s) for s in (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)]
                rows.append((seconds, *(f(each) for f in (label_error, nll) for each in said)))
    print("| views | seconds | error F | error U | NLL F | NLL U |")
    print("|:--|--:|--:|--:|--:|--:|")
    for views, rows in found.items():
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        print(f"| {views} | {means[0]:.1f} | " + " | ".join(f"{value:.3f}" for value in means[1:]) + " |")


if __name__ == "__main__":
    main()
