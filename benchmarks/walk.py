"""Which modules of ours a command enters, in the order in which it first does.

    python benchmarks/walk.py [COMMAND ...]

A module is entered when one of its functions is called. Each command runs twice, and the second time counts:
then everything is imported, and nothing that only an import calls is counted. `run` has its networks by
then; what its worker processes enter is not counted either.
"""

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from inspect import CO_OPTIMIZED
from io import StringIO
from pathlib import Path
from types import FrameType

import numpy as np

import surefoot
from surefoot.cli import main as surefoot_main

SOURCE = str(Path(surefoot.__file__).parent)
EXAMPLE = Path(__file__).parent.parent / "examples" / "penguins" / "experiment.toml"
COMMANDS = {  # and the most modules that it should enter
    "evaluate --report": ("evaluate familiar.npz unfamiliar.npz --report report", 20),
    "calibrate": ("calibrate familiar.npz -o calibration.json", 15),
    "monitor": ("monitor familiar.npz unfamiliar.npz", 15),
    "run": (f"run {EXAMPLE} --store store --set runs=2 --set members=2 --set epochs=2 --method single-t", 45),
}


@contextmanager
def entered() -> Iterator[dict[str, str]]:
    """The modules that are entered, and the function by which they first are."""
    seen: dict[str, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(SOURCE) and code.co_filename.endswith(".py")  # not a template
        if event == "call" and is_ours and code.co_flags & CO_OPTIMIZED:
            seen.setdefault(code.co_filename.removeprefix(SOURCE)[1:], code.co_qualname)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk(words: str) -> dict[str, str]:
    """The modules that a command enters, with all its output discarded."""
    before, sys.argv = sys.argv, ["surefoot", *words.split()]
    try:
        with entered() as seen, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            try:
                surefoot_main()
            except SystemExit as ended:
                if ended.code not in (None, 0, 1):
                    raise
    finally:
        sys.argv = before
    return seen


def write_predictions(folder: Path) -> None:
    """Two sides of 2,000 rows."""
    for seed, side in enumerate(("familiar", "unfamiliar")):
        rng = np.random.default_rng(seed)
        logits = (2 + seed) * rng.standard_normal((2000, 5))
        labels = (logits / (2 + seed) + rng.gumbel(size=logits.shape)).argmax(axis=1)
        np.savez(folder / f"{side}.npz", logits=logits, labels=labels)


def main() -> None:
    """Print each path and how long it is."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("commands", nargs="*", choices=[[], *COMMANDS], default=[])
    chosen = parser.parse_args().commands or list(COMMANDS)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_predictions(Path(folder))
        for name in chosen:
            words, most = COMMANDS[name]
            walk(words)
            seen = walk(words)
            print(f"{name}: {len(seen)} modules (goal: {most})")
            for number, (module, function) in enumerate(seen.items(), 1):
                print(f"  {number:3} {module}: {function}")
        os.chdir("/")


if __name__ == "__main__":
    main()
