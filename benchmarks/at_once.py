"""Total training throughput in images per second for several numbers of processes on one GPU.

    python benchmarks/at_once.py [--view 128] [--processes 1 2 4] [--turns]
    python benchmarks/at_once.py --processes 4 --sharpness 0.1 --augmentation strong --weight-average 0.99

ResNet-18 on random pixels, which do not affect the speed. Processes run concurrently if NVIDIA's MPS is
available, and time-sliced with --turns. The rate covers the epochs in which all processes were active: whole
training steps, the computation of views included. With values of the recipe, as in the second line, the plain
recipe is measured first, then the recipe with each value added to those before it, with its ratio to plain.
"""

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch

from surefoot.networks.backbones import build_network
from surefoot.predictions.labels import LabelKind
from surefoot.recipes.recipe import AUGMENTATIONS, Recipe
from surefoot.training.data import Images
from surefoot.training.loop import Hooks, StoppedError, train
from surefoot.training.losses import Classification
from surefoot.workers.local import shared_gpu

ROWS, SIDE = 11_520, 160
VALUES = ("sharpness", "weight_average", "augmentation")  # of the recipe, in the order they are added


def work(recipe: Recipe, seconds: float, device: torch.device) -> None:
    """Train until stopped, and print the end time of each epoch."""
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (ROWS, 3, SIDE, SIDE), generator=random, dtype=torch.uint8)
    sides = torch.full((ROWS,), SIDE)
    images = Images(pixels, sides, sides, recipe.view, 0.9, recipe.augmentation)
    network = build_network("resnet18", 2, generator=random)
    ends: list[float] = []
    hooks = Hooks(
        progress=lambda _: ends.append(time.time()),
        must_stop=lambda: bool(ends) and time.time() - ends[0] > seconds,
    )
    try:
        labels = torch.randint(0, 2, (ROWS,), generator=random)
        loss = Classification(LabelKind.ONE_LABEL)
        train(network, images, labels, loss, recipe, seed=0, device=device, hooks=hooks)
    except StoppedError:
        print(json.dumps(ends), flush=True)


def rate(ends: list[list[float]]) -> float:
    """Images per second of all processes, from the start of the last until the end of the first."""
    start, stop = max(each[0] for each in ends), min(each[-1] for each in ends)
    total = 0.0
    for each in ends:
        inside = [end for end in each if start <= end <= stop]
        if len(inside) < 2:
            sys.exit("no whole epoch in which all processes were active; needed: more --seconds")
        total += ROWS * (len(inside) - 1) / (inside[-1] - inside[0])
    return total


def measure(count: int, values: dict[str, Any], chosen: argparse.Namespace) -> tuple[float, str]:
    """The rate of so many processes with these values of the recipe, and how they shared the GPU."""
    recipe = json.dumps({"view": chosen.view, **values})
    command = [sys.executable, __file__, "--work", recipe, "--seconds", str(chosen.seconds)]
    command += ["--device", chosen.device]
    with shared_gpu("cpu" if chosen.turns else chosen.device, count) as environment:
        how = "concurrent (MPS)" if "CUDA_MPS_PIPE_DIRECTORY" in environment else "time-sliced"
        environment = {**environment, "OMP_NUM_THREADS": "1"}
        running = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        ends = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    return rate(ends), how


def main() -> None:
    """Each number of processes in turn."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--view", type=int, default=128)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--sharpness", type=float, metavar="RHO", help="sharpness-aware minimisation")
    parser.add_argument("--weight-average", type=float, metavar="DECAY")
    parser.add_argument("--augmentation", choices=AUGMENTATIONS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=json.loads, metavar="VALUES", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        recipe = Recipe(epochs=10_000, learning_rate=0.001, **chosen.work)
        work(recipe, chosen.seconds, torch.device(chosen.device))
        return
    given = {name: getattr(chosen, name) for name in VALUES if getattr(chosen, name) is not None}
    for count in chosen.processes:
        plain, how = measure(count, {}, chosen)
        title = f"{chosen.view} px, {count} processes, {how}"
        print(f"{title}: {plain:,.0f} images/s", flush=True)
        values: dict[str, Any] = {}
        for name, value in given.items():
            values[name] = value
            found, _ = measure(count, values, chosen)
            text = ", ".join(f"{name} {value}" for name, value in values.items())
            print(f"{title}, {text}: {found:,.0f} images/s, {found / plain:.2f} of plain", flush=True)


if __name__ == "__main__":
    main()
