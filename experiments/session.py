"""The study on real photographs, in sessions on a machine with a GPU.

    python experiments/session.py tune --packs DATA --store RUNS --out FOLDER gender animals objects cat-dog
    python experiments/session.py run --packs DATA --store RUNS --out FOLDER --minutes 20 gender objects
    python experiments/session.py collect --store RUNS --out FOLDER

DATA has the backbones and the Pets; the first lines of experiments/*.toml say where the other data sets are.
FOLDER must persist between the calls: `run` reads what `tune` writes there. Without it, `run` prints a note
and uses the values of experiments/NAME.toml.

`tune` searches learning rate and epochs on validation data, all tasks at once, and writes FOLDER/NAME.toml.
`run` trains the networks, one task after another, and stops when the time is over; the same command resumes.
`collect` packs all but weights, checkpoints and teachers' outputs into FOLDER/results.tar.xz.000, .001 and so
on, each below 15 MiB, which are one file together:

    cat FOLDER/results.tar.xz.* | tar -xJ -C RUNS
    surefoot report NAME --store RUNS
"""

import argparse
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def tune(names: list[str], chosen: argparse.Namespace) -> None:
    """Tune all tasks at once; a log and a recipe for each."""
    running = []
    for name in names:
        experiment = HERE / f"{name}.toml"
        task = tomllib.loads(experiment.read_text(encoding="utf-8"))["task"]
        words = [str(HERE / task) if task.endswith(".toml") else task, "-o", str(chosen.out / f"{name}.toml")]
        words += settings(recipe_values(experiment, "view", "resize")) + locations(name, chosen)
        with (chosen.out / f"tune-{name}.log").open("w") as log:
            running.append(subprocess.Popen(surefoot("tune", *words), stdout=log, stderr=log))
    codes = [process.wait() for process in running]
    print("tuned, exit codes:", dict(zip(names, codes, strict=True)), flush=True)
    if any(codes):
        sys.exit(1)


def run(names: list[str], chosen: argparse.Namespace) -> None:
    """Train one task after another, until the time is over."""
    end = time.monotonic() + 60 * chosen.minutes
    failed = False
    for name in names:
        words = [str(HERE / f"{name}.toml"), "--train-only", "--oracle", "--store", str(chosen.store)]
        words += settings(tuned(name, chosen.out)) + [w for value in chosen.set for w in ("--set", value)]
        start = time.monotonic()
        with (chosen.out / f"run-{name}.log").open("a") as log:
            process = subprocess.Popen(
                surefoot("run", *words, *locations(name, chosen)), stdout=log, stderr=log
            )
            code = exit_code(process, end)
        print(f"{name}: {time.monotonic() - start:.0f} s, exit {code}", flush=True)
        failed = failed or code != 0
        if time.monotonic() >= end:
            break
    if failed:
        sys.exit(1)


def tuned(name: str, folder: Path) -> dict[str, Any]:
    """The values that `tune` wrote; prints where they come from."""
    path = folder / f"{name}.toml"
    if not path.exists():
        print(f"{name}: there is no {path}; using experiments/{name}.toml", flush=True)
        return {}
    values = recipe_values(path, "learning_rate", "epochs")
    print(f"{name}: {values} from {path}", flush=True)
    return values


def exit_code(process: subprocess.Popen[bytes], end: float) -> int:
    """The exit code of a process, which is interrupted when the time is over."""
    try:
        return process.wait(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
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
    parser.add_argument("what", choices=["tune", "run", "collect"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WEIGHTS))
    parser.add_argument("--packs", type=Path, help="of backbones and Pets; for tune and run")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder of your own")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    chosen = parser.parse_intermixed_args(words)
    for name in chosen.names:
        if name not in WEIGHTS:
            parser.error(f"unknown task {name!r}; have: {', '.join(WEIGHTS)}")
    if chosen.what == "collect" and not chosen.store.is_dir():
        parser.error(f"there is no store {chosen.store}")
    if chosen.what != "collect" and not (chosen.names and chosen.packs):
        parser.error(f"{chosen.what} needs --packs and one task or more; have: {', '.join(WEIGHTS)}")
    return chosen


def main() -> None:
    """Tune, run or collect."""
    chosen = parsed()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.what == "tune":
        tune(chosen.names, chosen)
    elif chosen.what == "run":
        run(chosen.names, chosen)
    else:
        collect(chosen)


if __name__ == "__main__":
    main()
