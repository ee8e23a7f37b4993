"""The study on real photographs, in sessions on a machine with a GPU.

    python experiments/session.py tune --packs DATA --store RUNS --out FOLDER gender animals objects cat-dog
    python experiments/session.py tune --search recipe --packs DATA --store RUNS --out FOLDER gender
    python experiments/session.py run --packs DATA --store RUNS --out FOLDER --minutes 20 gender objects
    python experiments/session.py rotations --packs DATA --store RUNS --out FOLDER gender objects
    python experiments/session.py collect --store RUNS --out FOLDER

DATA has the backbones and the Pets; the first lines of experiments/*.toml say where the other data sets are.
FOLDER must persist between the calls: the others read what `tune` writes there. Without it, they use the
values of experiments/NAME.toml, and print which.

`tune` searches learning rate and epochs on validation data and writes FOLDER/NAME.toml; with --search recipe
it chooses among the recipes of experiments/candidates/NAME.toml and writes FOLDER/search-NAME.toml.
`run` trains the networks; `rotations` and `ablation` those of experiments/sharpness.py. All of them stop when
the time is over, and the same command resumes. Several, as in `tune,rotations,run`, are executed one after
another for each task. So many tasks as --at-once says are processed in parallel, sharing the GPU through
one MPS daemon, the rest after them. Next to the store are the caches of decoded images and compiled kernels.
`collect` packs all but weights, checkpoints and teachers' outputs into FOLDER/results.tar.xz.000, .001 and so
on, each below 15 MiB, which are one file together:

    cat FOLDER/results.tar.xz.* | tar -xJ -C RUNS
    surefoot report NAME --store RUNS
"""

import argparse
import json
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from surefoot.runtime import usable_cores
from surefoot.workers.local import shared_gpu

HERE = Path(__file__).resolve().parent
WEIGHTS = {
    "gender": "resnet18_animalfree.safetensors",
    "cat-dog": "resnet18_animalfree.safetensors",
    "animals": "resnet18_animalfree.safetensors",
    "objects": "resnet18_tiny.safetensors",
}
ROOTS = {"cat-dog": "Oxford_IIIT_Pets"}
RESULTS = "results.tar.xz"
LARGEST_PIECE = 15 * 2**20 - 1
SECONDS_TO_END = 25.0  # after an interrupt, for checkpoints
EXCLUDED_SUFFIXES = (".safetensors", ".lock", ".partial")
EXCLUDED_FOLDERS = ("lessons", "locks", "cache")


def surefoot(*words: str) -> list[str]:
    """A surefoot command as a subprocess takes it."""
    return [sys.executable, "-c", "from surefoot.cli import main; main()", *words]


def settings(values: dict[str, Any]) -> list[str]:
    """Values as options."""
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def locations(name: str, chosen: argparse.Namespace) -> list[str]:
    """The options for a task's files and the device."""
    options = ["--weights", str(chosen.packs / WEIGHTS[name]), "--cache", str(chosen.store.parent / "cache")]
    root = ["--root", str(chosen.packs / ROOTS[name])] if name in ROOTS else []
    return [*options, *root, "--device", chosen.device]


def recipe_values(path: Path, *keys: str) -> dict[str, Any]:
    """Values of the recipe in a file."""
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))["recipe"]
    return {key: recipe[key] for key in keys}


def tune_command(name: str, chosen: argparse.Namespace) -> list[str]:
    """The search of one task; of recipes from the learning rate and epochs of its experiment."""
    experiment = HERE / f"{name}.toml"
    task = tomllib.loads(experiment.read_text(encoding="utf-8"))["task"]
    words = ["tune", str(HERE / task) if task.endswith(".toml") else task, *locations(name, chosen)]
    if chosen.search == "rate":
        values = recipe_values(experiment, "view", "resize")
        return surefoot(
            *words, *settings(values), *given_settings(chosen), "-o", str(chosen.out / f"{name}.toml")
        )
    values = recipe_values(experiment, "view", "resize", "learning_rate", "epochs")
    words += ["--search", "recipe", "--runs", "1", "--candidates", str(HERE / "candidates" / f"{name}.toml")]
    words += ["--store", str(chosen.store), *workers(chosen)]
    return surefoot(
        *words, *settings(values), *given_settings(chosen), "-o", str(chosen.out / f"search-{name}.toml")
    )


def run_command(name: str, chosen: argparse.Namespace) -> list[str]:
    """The training of one task: all rows with the oracles, or those of --method."""
    words = ["run", str(experiment_file(name, chosen)), "--train-only", "--store", str(chosen.store)]
    words += [word for method in chosen.method for word in ("--method", method)] or ["--oracle"]
    words += settings(tuned(name, chosen.out)) + given_settings(chosen)
    return surefoot(*words, *workers(chosen), *locations(name, chosen))


def study_command(what: str, name: str, chosen: argparse.Namespace) -> list[str]:
    """The rotations or the ablation of one task."""
    words = [str(HERE / "sharpness.py"), what, str(experiment_file(name, chosen))]
    words += ["--store", str(chosen.store), "--cache", str(chosen.store.parent / "cache")]
    files = {"weights": chosen.packs / WEIGHTS[name]}
    files |= {"root": chosen.packs / ROOTS[name]} if name in ROOTS else {}
    words += ["--device", chosen.device, *workers(chosen), *settings(files), *given_settings(chosen)]
    return [sys.executable, *words]


COMMANDS: dict[str, Callable[[str, argparse.Namespace], list[str]]] = {
    "tune": tune_command,
    "run": run_command,
    "rotations": partial(study_command, "rotations"),
    "ablation": partial(study_command, "ablation"),
}


def experiment_file(name: str, chosen: argparse.Namespace) -> Path:
    """The experiment of a task; with the sharpness-aware recipe that `tune --search recipe` chose, if it did.

    A table [sharpness_aware] in experiments/NAME.toml itself comes first.
    """
    path, search = HERE / f"{name}.toml", chosen.out / f"search-{name}.toml"
    text = path.read_text(encoding="utf-8")
    if "sharpness_aware" in tomllib.loads(text) or not search.exists():
        print(f"{name}: {path.name}", flush=True)
        return path
    changes = tomllib.loads(search.read_text(encoding="utf-8"))["sharpness_aware"]
    lines = [f"{key} = {json.dumps(value)}" for key, value in changes.items()]
    extended = HERE / f"chosen-{name}.toml"  # next to the original: paths in it are relative
    extended.write_text("\n".join([text.rstrip(), "[sharpness_aware]", *lines, ""]), encoding="utf-8")
    print(f"{name}: {extended.name}, with {changes} from {search}", flush=True)
    return extended


def workers(chosen: argparse.Namespace) -> list[str]:
    """The number of workers of one task as an option."""
    return [] if chosen.workers is None else ["--workers", str(chosen.workers)]


def given_settings(chosen: argparse.Namespace) -> list[str]:
    """The values of this command line as options."""
    return [word for value in chosen.set for word in ("--set", value)]


def tuned(name: str, folder: Path) -> dict[str, Any]:
    """The values that `tune` wrote; prints where they come from."""
    path = folder / f"{name}.toml"
    if not path.exists():
        print(f"{name}: there is no {path}; using experiments/{name}.toml", flush=True)
        return {}
    values = recipe_values(path, "learning_rate", "epochs")
    print(f"{name}: {values} from {path}", flush=True)
    return values


def execute(chosen: argparse.Namespace) -> None:
    """The commands of each task, at most `at_once` tasks at the same time, until the time is over."""
    end = time.monotonic() + 60 * chosen.minutes
    at_once = min(chosen.at_once, len(chosen.names))
    processes = at_once * (chosen.workers or 1)
    with shared_gpu(chosen.device, processes) as environment, ThreadPoolExecutor(at_once) as pool:
        compiled = {
            "TORCHINDUCTOR_CACHE_DIR": str(chosen.store.parent.resolve() / "compiled"),
            "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, usable_cores() // processes)),
        }
        environment = {**compiled, **environment}

        def execute_one(name: str) -> int:
            for what in chosen.what:
                start = time.monotonic()
                if start >= end:
                    print(f"{name}, {what}: not started, the time is over", flush=True)
                    return 0
                with (chosen.out / f"{what}-{name}.log").open("a") as log:
                    command = COMMANDS[what](name, chosen)
                    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
                    code = exit_code(process, end)
                print(f"{name}, {what}: {time.monotonic() - start:.0f} s, exit {code}", flush=True)
                if code:
                    return code
            return 0

        codes = list(pool.map(execute_one, chosen.names))
    if any(codes):
        sys.exit(1)


def exit_code(process: subprocess.Popen[bytes], end: float) -> int:
    """The exit code of a process, which is interrupted when the time is over, and later killed."""
    try:
        return process.wait(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()  # its workers notice, save and end
        return process.wait()


class Pieces:
    """A stream written to numbered files of at most `largest` bytes; files of an earlier call are removed."""

    def __init__(self, path: Path, largest: int) -> None:
        self.path, self.largest = path, largest
        self.files: list[Path] = []
        self.space = 0
        for old in path.parent.glob(f"{path.name}.[0-9]*"):
            old.unlink()

    def write(self, data: bytes) -> int:
        """Write to the last file while it has space, then to the next."""
        rest = memoryview(data)
        while rest:
            if not self.space:
                self.files.append(self.path.with_name(f"{self.path.name}.{len(self.files):03}"))
                self.space = self.largest
            with self.files[-1].open("ab") as file:
                done = file.write(rest[: self.space])
            self.space -= done
            rest = rest[done:]
        return len(data)


def results(store: Path) -> Iterator[Path]:
    """The small files of a store that a report needs."""
    for path in sorted(store.rglob("*")):
        inside = path.relative_to(store)
        excluded = path.suffix in EXCLUDED_SUFFIXES or inside.parts[0] in EXCLUDED_FOLDERS
        hidden = any(part.startswith(".") for part in inside.parts)
        if path.is_file() and not excluded and not hidden:
            yield path


def collect(chosen: argparse.Namespace) -> None:
    """Write the results as one compressed stream, in pieces."""
    pieces, count = Pieces(chosen.out / RESULTS, LARGEST_PIECE), 0
    with tarfile.open(mode="w|xz", fileobj=pieces) as archive:
        for path in results(chosen.store):
            archive.add(path, str(path.relative_to(chosen.store)))
            count += 1
    size = sum(file.stat().st_size for file in pieces.files)
    print(f"{count} files in {len(pieces.files)} pieces, {size / 2**20:.1f} MiB", flush=True)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The command line; names may come before, between and after the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    known = [*COMMANDS, "collect"]
    parser.add_argument("what", help=f"{', '.join(known)}, or several, separated by commas")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WEIGHTS))
    parser.add_argument("--packs", type=Path, help="of backbones and Pets; for all but collect")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder of your own")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--at-once", type=int, metavar="N", help="tasks in parallel; for tune all, else 1")
    parser.add_argument("--workers", type=int, metavar="N", help="networks in parallel, for each task")
    parser.add_argument("--search", choices=["rate", "recipe"], default="rate", help="for tune")
    parser.add_argument(
        "--method", action="append", default=[], metavar="NAME", help="for run; repeat for more"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    chosen = parser.parse_intermixed_args(words)
    chosen.what = chosen.what.split(",")
    for what in chosen.what:
        if what not in known or (what == "collect" and len(chosen.what) > 1):
            parser.error(f"unknown command {what!r}; have: {', '.join(known)} (collect: alone)")
    for name in chosen.names:
        if name not in WEIGHTS:
            parser.error(f"unknown task {name!r}; have: {', '.join(WEIGHTS)}")
    if chosen.what == ["collect"] and not chosen.store.is_dir():
        parser.error(f"there is no store {chosen.store}")
    if chosen.what != ["collect"] and not (chosen.names and chosen.packs):
        parser.error(
            f"{','.join(chosen.what)} needs --packs and one task or more; have: {', '.join(WEIGHTS)}"
        )
    for option in ("at_once", "workers"):
        if getattr(chosen, option) is not None and getattr(chosen, option) < 1:
            parser.error(f"--{option.replace('_', '-')} is {getattr(chosen, option)}; allowed: at least 1")
    if chosen.at_once is None:
        chosen.at_once = len(chosen.names) if chosen.what == ["tune"] else 1
    return chosen


def main() -> None:
    """Train or collect."""
    # A shell starts background processes with interrupts ignored, and their children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = parsed()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.what == ["collect"]:
        collect(chosen)
        return
    try:
        execute(chosen)
    except KeyboardInterrupt:
        sys.exit("stopped; the same command resumes")


if __name__ == "__main__":
    main()
