"""Training speed of ResNet-18 on real photographs, compared with a plain PyTorch loop, in one run on one GPU.

    python benchmarks/training.py PETS_FOLDER [--weights FILE] [--members 10] [--out FILE]

PETS_FOLDER is Oxford_IIIT_Pets in its official layout. The plain loop is a standard one: a DataLoader
with 16 workers, torchvision's transforms, float32 with TF32. Needs a GPU; the plain loop needs torchvision.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import plain_loop
import torch

from surefoot.lab.images.decode import Size
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.networks.weights import load_weights
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks import Split, task_named
from surefoot.lab.tasks.task import decode_task
from surefoot.lab.training import data as batches
from surefoot.lab.training.data import images_from, joined
from surefoot.lab.training.loop import Hooks, train
from surefoot.lab.training.losses import Classification
from surefoot.predictions.labels import LabelKind

GPU = torch.device("cuda")
# Multiply-adds of a forward pass of ResNet-18 at 224 pixels; training takes about three of them.
FORWARD_FLOPS_224 = 2 * 1.814e9


def matrix_rate() -> float:
    """Floating-point operations per second of a large bf16 product: the upper limit of the GPU."""
    a, b = (torch.randn(8192, 8192, device=GPU, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
    return 20 * 2 * 8192**3 / (time.perf_counter() - start)


def ours(images, labels, view: int, epochs: int) -> float:
    """Images per second in the steady state: the median epoch, without the first two."""
    recipe = Recipe(view=view, resize=view, epochs=epochs, learning_rate=0.01)
    seconds = []
    network = build_network("resnet18", 2, generator=torch.Generator().manual_seed(0))
    loss = Classification(LabelKind.ONE_LABEL)
    hooks = Hooks(progress=lambda progress: seconds.append(progress.seconds))
    train(network, images, labels, loss, recipe, seed=0, device=GPU, hooks=hooks)
    steady = sorted(seconds[2:])
    return len(labels) / steady[len(steady) // 2]


def plain(task, view: int) -> float:
    """Images per second of the plain loop."""
    loader = plain_loop.photographs(task, view)
    return len(loader) * loader.batch_size / plain_loop.steady(plain_loop.loop_epochs(loader, epochs=8))


def members(images, labels, weights: Path | None, count: int) -> float:
    """Seconds to train the networks of the paper's cat-dog recipe, including compilation."""
    recipe = Recipe(view=144, resize=160, epochs=128, learning_rate=0.06)
    loss = Classification(LabelKind.ONE_LABEL)
    start = time.perf_counter()
    for seed in range(count):
        network = build_network("resnet18", 2, generator=torch.Generator().manual_seed(seed))
        if weights is not None:
            load_weights(network, weights)
        train(network, images, labels, loss, recipe, seed=seed, device=GPU)
        print(f"member {seed}: {time.perf_counter() - start:.1f} s", flush=True)
    return time.perf_counter() - start


def main() -> None:
    """Run everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pets", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rates-only", action="store_true", help="ours at 224 and 128 pixels, nothing else")
    parser.add_argument("--repeat", type=int, default=8, help="how often the training set is repeated")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    task = task_named("cat-dog", root=chosen.pets)
    found: dict[str, float | str] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        decoded = decode_task(task, Size(160), cache=Path(cache))
        found["decode, seconds"] = time.perf_counter() - start
        both = [
            images_from(decoded[s], view=144, resize=160, augmentation="inception")
            for s in (Split.TRAIN, Split.VAL)
        ]
    images = joined(both * chosen.repeat)
    small = joined(both)
    labels = torch.cat([torch.from_numpy(task.splits[s].labels) for s in (Split.TRAIN, Split.VAL)])
    repeated = labels.repeat(chosen.repeat)
    found["bf16 matrix rate, TFLOP/s"] = matrix_rate() / 1e12
    for view in (224, 128):
        rate = ours(replace(images, view=view), repeated, view, chosen.epochs)
        found[f"ours at {view}, images/s"] = rate
        flops = 3 * FORWARD_FLOPS_224 * (view / 224) ** 2 * rate
        found[f"ours at {view}, share of the matrix rate"] = (
            flops / 1e12 / float(found["bf16 matrix rate, TFLOP/s"])
        )
        print(json.dumps(found), flush=True)
    if chosen.rates_only:
        return
    torch.backends.cudnn.benchmark = True  # not reproducible, so measured but not used
    found["ours at 128, cudnn searching, images/s"] = ours(
        replace(images, view=128), repeated, 128, chosen.epochs
    )
    torch.backends.cudnn.benchmark = False
    batches.SHARE_OF_MEMORY = 0.0  # as if the pixels did not fit: they are streamed from the host
    for view in (224, 128):
        found[f"ours at {view}, pixels streamed, images/s"] = ours(
            replace(images, view=view), repeated, view, chosen.epochs
        )
    batches.SHARE_OF_MEMORY = 0.4
    print(json.dumps(found), flush=True)
    if chosen.members:
        found[f"{chosen.members} members, 128 epochs, 144 px, seconds"] = members(
            small, labels, chosen.weights, chosen.members
        )
        print(json.dumps(found), flush=True)
    for view in (224, 128):
        found[f"plain loop at {view}, images/s"] = plain(task, view)
        found[f"ours / plain at {view}"] = float(found[f"ours at {view}, images/s"]) / float(
            found[f"plain loop at {view}, images/s"]
        )
    found["cpu cores"] = str(os.cpu_count())
    text = "\n".join(
        ["| what | found |", "|:--|--:|"]
        + [
            f"| {k} | {v if isinstance(v, str) else f'{v:,.3g}' if v < 100 else f'{v:,.0f}'} |"
            for k, v in found.items()
        ]
    )
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
