"""Ten networks of the cat-dog recipe: `surefoot train`, a plain PyTorch loop, Lightning; one run, one GPU.

    python benchmarks/members.py PETS_FOLDER --weights FILE [--members 10] [--epochs 128] [--out FILE]

Ours is the time of the whole command: start, decoding, compilation, evaluation and files. For the others,
eight epochs of one network are timed, and the total is the median epoch times epochs times members. Needs
torchvision; Lightning is skipped if it is not installed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import plain_loop
import torch

from surefoot.tasks import Split, task_named

TIMED_EPOCHS = 8


def ours(chosen: argparse.Namespace) -> float:
    """Seconds of the command."""
    values = {
        "view": 144,
        "resize": 160,
        "learning_rate": 0.06,
        "epochs": chosen.epochs,
        "protocol": "holdout",
    }
    with tempfile.TemporaryDirectory() as scratch:
        words = ["cat-dog", "--root", chosen.pets, "--members", chosen.members, "--device", "cuda"]
        words += ["--store", Path(scratch, "runs"), "--cache", Path(scratch, "cache")]
        words += ["--weights", chosen.weights] if chosen.weights else []
        words += [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        command = [sys.executable, "-c", "from surefoot.cli import main; main()", "train", *map(str, words)]
        start = time.perf_counter()
        subprocess.run(command, check=True)
        return time.perf_counter() - start


def table(found: dict[str, float], chosen: argparse.Namespace, images: int) -> str:
    """The table of seconds, rates and ratios."""
    whole = chosen.members * chosen.epochs * images
    lines = [
        f"# {chosen.members} networks, {chosen.epochs} epochs of {images:,} images, 144 px",
        "",
        f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores, torch {torch.__version__}. "
        "`python benchmarks/members.py`. Trained once each (`protocol=holdout`), on the training split. "
        "Ours is the whole command, including start and compilation; "
        f"the others are the median of {TIMED_EPOCHS - 2} epochs times {chosen.members * chosen.epochs}.",
        "",
        "| | seconds | images/s | times ours |",
        "|:--|--:|--:|--:|",
    ]
    for name, seconds in found.items():
        lines.append(f"| {name} | {seconds:,.0f} | {whole / seconds:,.0f} | {seconds / found['ours']:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all three and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pets", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=128)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = {"ours": ours(chosen)}
    print(found, flush=True)
    task = task_named("cat-dog", root=chosen.pets)
    loader = plain_loop.photographs(task, view=144)
    many = chosen.members * chosen.epochs
    found["a plain PyTorch loop"] = many * plain_loop.steady(plain_loop.loop_epochs(loader, TIMED_EPOCHS))
    print(found, flush=True)
    try:
        found["Lightning"] = many * plain_loop.steady(plain_loop.lightning_epochs(loader, TIMED_EPOCHS))
    except ImportError as error:
        print(f"Lightning skipped: {error}", flush=True)
    text = table(found, chosen, len(task.splits[Split.TRAIN]))
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
