"""Total training throughput in images per second for several numbers of processes on one GPU.

    python benchmarks/at_once.py [--view 128] [--processes 1 2 4] [--turns]

ResNet-18 on random pixels, which do not affect the speed. Processes run concurrently if NVIDIA's MPS is
available, and time-sliced with --turns. The rate covers the epochs in which all processes were active.
"""

import argparse
import json
import subprocess
import sys
import time

import torch

from surefoot.networks.backbones import build_network
from surefoot.predictions.labels import LabelKind
from surefoot.recipes.recipe import Recipe
from surefoot.training.data import Images
from surefoot.training.loop import Hooks, StoppedError, train
from surefoot.training.losses import Classification
from surefoot.workers.local import shared_gpu

ROWS, SIDE = 11_520, 160


def work(view: int, seconds: float) -> None:
    """Train until stopped, and print the end time of each epoch."""
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (ROWS, 3, SIDE, SIDE), generator=random, dtype=torch.uint8)
    sides = torch.full((ROWS,), SIDE)
    images = Images(pixels, sides, sides, view, 0.9, "inception")
    network = build_network("resnet18", 2, generator=random)
    ends: list[float] = []
    hooks = Hooks(
        progress=lambda _: ends.append(time.time()),
        must_stop=lambda: bool(ends) and time.time() - ends[0] > seconds,
    )
    recipe = Recipe(view=view, epochs=10_000, learning_rate=0.001)
    try:
        labels = torch.randint(0, 2, (ROWS,), generator=random)
        loss = Classification(LabelKind.ONE_LABEL)
        train(network, images, labels, loss, recipe, seed=0, device=torch.device("cuda"), hooks=hooks)
    except StoppedError:
        print(json.dumps(ends), flush=True)


def rate(ends: list[list[float]]) -> float:
    """Images per second of all processes, from the start of the last until the end of the first."""
    start, stop = max(each[0] for each in ends), min(each[-1] for each in ends)
    total = 0.0
    for each in ends:
        inside = [end for end in each if start <= end <= stop]
        total += ROWS * (len(inside) - 1) / (inside[-1] - inside[0])
    return total


def main() -> None:
    """Each number of processes in turn."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--view", type=int, default=128)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(chosen.view, chosen.seconds)
        return
    options = ["--view", str(chosen.view), "--seconds", str(chosen.seconds)]
    command = [sys.executable, __file__, "--work", *options]
    for count in chosen.processes:
        with shared_gpu("cpu" if chosen.turns else "cuda", count) as environment:
            shared = "CUDA_MPS_PIPE_DIRECTORY" in environment
            environment = {**environment, "OMP_NUM_THREADS": "1"}
            running = [
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
                for _ in range(count)
            ]
            ends = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
        how = "concurrent (MPS)" if shared else "time-sliced"
        print(f"{chosen.view} px, {count} processes, {how}: {rate(ends):,.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
