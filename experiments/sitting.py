"""The study on real photographs, in sittings on a machine with a GPU and little else.

    python experiments/sitting.py tune --packs DATA --store RUNS --out FOLDER gender animals objects cat-dog
    python experiments/sitting.py run --packs DATA --store RUNS --out FOLDER --minutes 20 gender objects
    python experiments/sitting.py collect --store RUNS --out FOLDER

DATA holds the backbones and the Pets; the other data sets lie where the heads of experiments/*.toml say.
FOLDER should be one of your own that stays as it is between the calls: what `tune` writes there `run` reads.
Where it was emptied, `run` says so and takes the values of experiments/NAME.toml.

`tune` searches learning rate and epochs on validation, all tasks at once, and writes FOLDER/NAME.toml. `run`
makes the networks of the tasks, one task after another, and stops in time; the same command goes on.
`collect` packs all but weights, checkpoints and lessons into FOLDER/results.tar.xz.000, .001 and so on, each
below 15 MiB, which are one file together:

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
LEFT_BEHIND = (".safetensors", ".lock", ".partial")
NOT_RESULTS = ("lessons", "locks", "cache")


def surefoot(*words: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-c", "from surefoot.cli import main; main()", *words]


def settings(values: dict[str, Any]) -> list[str]:
    """Values as options."""
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def places(name: str, chosen: argparse.Namespace) -> list[str]:
    """Where a task's files lie, and where it is computed."""
    found = ["--weights", str(chosen.packs / WEIGHTS[name]), "--cache", str(chosen.store.parent / "cache")]
    root = ["--root", str(chosen.packs / ROOTS[name])] if name in ROOTS else []
    return [*found, *root, "--device", chosen.device]


def of_file(path: Path, *keys: str) -> dict[str, Any]:
    """Those values of a file's recipe."""
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))["recipe"]
    return {key: recipe[key] for key in keys}


def tune(names: list[str], chosen: argparse.Namespace) -> None:
    """All tasks at once; a log and a recipe for each."""
    running = []
    for name in names:
        experiment = HERE / f"{name}.toml"
        task = tomllib.loads(experiment.read_text(encoding="utf-8"))["task"]
        words = [str(HERE / task) if task.endswith(".toml") else task, "-o", str(chosen.out / f"{name}.toml")]
        words += settings(of_file(experiment, "view", "resize")) + places(name, chosen)
        with (chosen.out / f"tune-{name}.log").open("w") as log:
            running.append(subprocess.Popen(surefoot("tune", *words), stdout=log, stderr=log))
    codes = [process.wait() for process in running]
    print("tuned, exit codes:", dict(zip(names, codes, strict=True)), flush=True)
    if any(codes):
        sys.exit(1)


def run(names: list[str], chosen: argparse.Namespace) -> None:
    """One task after another, until the time is over."""
    end = time.monotonic() + 60 * chosen.minutes
    failed = False
    for name in names:
        words = [str(HERE / f"{name}.toml"), "--train-only", "--oracle", "--store", str(chosen.store)]
        words += settings(tuned(name, chosen.out)) + [w for value in chosen.set for w in ("--set", value)]
        start = time.monotonic()
        with (chosen.out / f"run-{name}.log").open("a") as log:
            process = subprocess.Popen(surefoot("run", *words, *places(name, chosen)), stdout=log, stderr=log)
            code = waited_for(process, end)
        print(f"{name}: {time.monotonic() - start:.0f} s, exit {code}", flush=True)
        failed = failed or code != 0
        if time.monotonic() >= end:
            break
    if failed:
        sys.exit(1)


def tuned(name: str, folder: Path) -> dict[str, Any]:
    """What `tune` found, and says where it was found."""
    path = folder / f"{name}.toml"
    if not path.exists():
        print(f"{name}: there is no {path}, so as in experiments/{name}.toml", flush=True)
        return {}
    found = of_file(path, "learning_rate", "epochs")
    print(f"{name}: {found} from {path}", flush=True)
    return found


def waited_for(process: subprocess.Popen[bytes], end: float) -> int:
    """How it ended; asked to, when the time is over."""
    try:
        return process.wait(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return process.wait()


class Pieces:
    """A stream to write to, cut into numbered files of at most `largest` bytes; older ones are removed."""

    def __init__(self, path: Path, largest: int) -> None:
        self.path, self.largest = path, largest
        self.files: list[Path] = []
        self.room = 0
        for old in path.parent.glob(f"{path.name}.[0-9]*"):
            old.unlink()

    def write(self, data: bytes) -> int:
        """To the last file while it has room, then to the next."""
        rest = memoryview(data)
        while rest:
            if not self.room:
                self.files.append(self.path.with_name(f"{self.path.name}.{len(self.files):03}"))
                self.room = self.largest
            with self.files[-1].open("ab") as file:
                done = file.write(rest[: self.room])
            self.room -= done
            rest = rest[done:]
        return len(data)


def results(store: Path) -> Iterator[Path]:
    """What is worth keeping of a store, and small."""
    for path in sorted(store.rglob("*")):
        inside = path.relative_to(store)
        unwanted = path.suffix in LEFT_BEHIND or inside.parts[0] in NOT_RESULTS
        hidden = any(part.startswith(".") for part in inside.parts)
        if path.is_file() and not unwanted and not hidden:
            yield path


def collect(chosen: argparse.Namespace) -> None:
    """The results as one compressed stream, in pieces."""
    pieces, count = Pieces(chosen.out / RESULTS, LARGEST_PIECE), 0
    with tarfile.open(mode="w|xz", fileobj=pieces) as archive:
        for path in results(chosen.store):
            archive.add(path, str(path.relative_to(chosen.store)))
            count += 1
    size = sum(file.stat().st_size for file in pieces.files)
    print(f"{count} files in {len(pieces.files)} pieces, {size / 2**20:.1f} MiB", flush=True)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The command line; names may stand before, between and after the options."""
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
