"""The study on real photographs, in sittings on a machine with a GPU and little else.

    python experiments/sitting.py tune    --packs DATA --store RUNS --out FOLDER gender animals objects cat-dog
    python experiments/sitting.py run     --packs DATA --store RUNS --out FOLDER --minutes 20 gender objects ...
    python experiments/sitting.py collect --store RUNS --out FOLDER

DATA holds the unpacked data sets and the backbones (see the heads of experiments/*.toml). `tune` searches learning rate and
epochs on validation, all tasks at once, and writes FOLDER/NAME.toml. `run` makes the networks of the tasks, one
task after another, and stops in time; the same command goes on. `collect` packs all but weights into
FOLDER/results-*.tar, in parts that unpack over each other into one store:

    surefoot report NAME --store RUNS
"""

import argparse
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
WEIGHTS = {
    "gender": "resnet18_animalfree.safetensors",
    "cat-dog": "resnet18_animalfree.safetensors",
    "animals": "resnet18_animalfree.safetensors",
    "objects": "resnet18_tiny.safetensors",
}
ROOTS = {"cat-dog": "Oxford_IIIT_Pets"}
LARGEST_PART = 15 * 2**20
LEFT_BEHIND = (".safetensors", ".lock", ".partial")


def surefoot(*words: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-c", "from surefoot.cli import main; main()", *words]


def places(name: str, packs: Path, store: Path) -> list[str]:
    """Where a task's files lie."""
    found = [
        "--weights",
        str(packs / WEIGHTS[name]),
        "--cache",
        str(store.parent / "cache"),
        "--device",
        "cuda",
    ]
    return found + (["--root", str(packs / ROOTS[name])] if name in ROOTS else [])


def recipe(name: str) -> dict:
    """What an experiment says of training."""
    return tomllib.loads((HERE / f"{name}.toml").read_text())["recipe"]


def tune(names: list[str], chosen: argparse.Namespace) -> None:
    """All tasks at once; a log and a recipe for each."""
    running = []
    for name in names:
        task = tomllib.loads((HERE / f"{name}.toml").read_text())["task"]
        words = [str(HERE / task) if task.endswith(".toml") else task, "-o", str(chosen.out / f"{name}.toml")]
        words += [f for key in ("view", "resize") for f in ("--set", f"{key}={recipe(name)[key]}")]
        words += places(name, chosen.packs, chosen.store)
        log = (chosen.out / f"tune-{name}.log").open("w")
        running.append(subprocess.Popen(surefoot("tune", *words), stdout=log, stderr=log))
    codes = [process.wait() for process in running]
    print("tuned:", dict(zip(names, codes, strict=True)), flush=True)


def run(names: list[str], chosen: argparse.Namespace) -> None:
    """One task after another, until the time is over."""
    end = time.monotonic() + 60 * chosen.minutes
    for name in names:
        tuned = chosen.out / f"{name}.toml"
        values = tomllib.loads(tuned.read_text())["recipe"] if tuned.exists() else {}
        words = [str(HERE / f"{name}.toml"), "--train-only", "--oracle", "--store", str(chosen.store)]
        words += [
            f
            for key in ("learning_rate", "epochs")
            if key in values
            for f in ("--set", f"{key}={values[key]}")
        ]
        words += [f for value in chosen.set for f in ("--set", value)] + places(
            name, chosen.packs, chosen.store
        )
        start = time.monotonic()
        with (chosen.out / f"run-{name}.log").open("a") as log:
            process = subprocess.Popen(surefoot("run", *words), stdout=log, stderr=log)
            try:
                code = process.wait(timeout=max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                code = process.wait()
        print(f"{name}: {time.monotonic() - start:.0f} s, exit {code}", flush=True)
        if time.monotonic() >= end:
            return


def collect(chosen: argparse.Namespace) -> None:
    """Everything but weights, checkpoints and lessons, in parts."""
    parts: list[tarfile.TarFile] = []
    for path in sorted(chosen.store.rglob("*")):
        inside = path.relative_to(chosen.store)
        hidden = any(piece.startswith(".") for piece in inside.parts)
        if (
            hidden
            or not path.is_file()
            or path.suffix in LEFT_BEHIND
            or inside.parts[0] in ("lessons", "locks")
        ):
            continue
        if not parts or parts[-1].fileobj.tell() + path.stat().st_size > LARGEST_PART:
            if parts:
                parts[-1].close()
            parts.append(tarfile.open(chosen.out / f"results-{len(parts)}.tar", "w"))
        parts[-1].add(path, str(inside))
    for part in parts[-1:]:
        part.close()
    print(f"{len(parts)} parts", flush=True)


def main() -> None:
    """Tune, run or collect."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["tune", "run", "collect"])
    parser.add_argument("names", nargs="*", choices=[*WEIGHTS, []], metavar="NAME")
    parser.add_argument("--packs", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--set", action="append", default=[])
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.what == "tune":
        tune(chosen.names, chosen)
    elif chosen.what == "run":
        run(chosen.names, chosen)
    else:
        collect(chosen)


if __name__ == "__main__":
    main()
