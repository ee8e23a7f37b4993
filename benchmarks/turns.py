"""Contestants in separate processes that alternate: ours, a peer, ours, the same peer.

In two settings: with one thread, where the least CPU seconds of a few runs count, to reduce the influence of
other load on the machine; and as people run it, with the default number of threads beside a busy process,
where the least seconds count. Peers run in a separate environment.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
PEERS_PYTHON = HERE.parent / ".venv-peers" / "bin" / "python"
GOAL = 3  # times as fast as a peer
TURNS = 2
QUICK_TURNS, QUICK_SECONDS = 40, 0.3  # fast contestants run more often: up to this many runs or seconds
ENOUGH_SECONDS = 5.0  # no further run after this many seconds in total


@dataclass(frozen=True)
class Turn:
    """The best of a contestant's runs; `error` if it failed."""

    value: float = float("nan")
    seconds: float = float("nan")
    megabytes: float = float("nan")
    error: str = ""


@dataclass(frozen=True)
class Setting:
    """How all contestants run, and which seconds count."""

    name: str
    environment: tuple[tuple[str, str], ...]
    clock: str  # cpu or wall


ONE_THREAD = Setting("one thread", (("OMP_NUM_THREADS", "1"),), "cpu")
BUSY = Setting("default threads, beside a busy process", (), "wall")


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Contestant:
    """A process that repeats one job on request."""

    def __init__(self, what: str, setting: Setting = ONE_THREAD) -> None:
        python = sys.executable if what.startswith(("surefoot", "numpy")) else PEERS_PYTHON
        self.what, self.setting = what, setting
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self.process = subprocess.Popen(
            [str(python), str(HERE / "contestants.py"), what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=inherited | {"PYTHONWARNINGS": "ignore"} | dict(setting.environment),
        )

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def turn(self, folder: Path) -> Turn:
        """Run once."""
        if self.process.poll() is None:
            self.process.stdin.write(f"{folder}\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.what} did not start; try: {PEERS_PYTHON} {HERE}/contestants.py {self.what}"
            )
        answer = json.loads(line)
        if "error" in answer:
            return Turn(error=answer["error"])
        return Turn(answer["value"], answer[self.setting.clock], answer["megabytes"])


def against(ours: Contestant, peer: Contestant, folder: Path) -> tuple[Turn, Turn]:
    """Our best and the peer's best of alternating runs; memory is that of the first run."""
    pairs: list[tuple[Turn, Turn]] = []
    while not pairs or _again(len(pairs), sum(pair[1].seconds for pair in pairs)):
        pairs.append((ours.turn(folder), peer.turn(folder)))
        if pairs[-1][1].error:
            break
    return best([pair[0] for pair in pairs]), best([pair[1] for pair in pairs])


def _again(turns: int, spent: float) -> bool:
    if turns < TURNS:
        return spent < ENOUGH_SECONDS
    return turns < QUICK_TURNS and spent < QUICK_SECONDS


Start = Callable[[str, Setting], Contestant]
Turns = dict[Setting, tuple[Turn, Turn]]  # ours and the peer's


@contextmanager
def contestants() -> Iterator[Start]:
    """A function that starts a contestant when it is first asked for; all end with the block."""
    with ExitStack() as stack:
        yield cache(lambda what, setting: stack.enter_context(Contestant(what, setting)))


def in_both(start: Start, ours: str, peer: str, folder: Path) -> Turns:
    """Our best and the peer's best in both settings."""
    result = {ONE_THREAD: against(start(ours, ONE_THREAD), start(peer, ONE_THREAD), folder)}
    pair = start(ours, BUSY), start(peer, BUSY)
    with busy_process():
        result[BUSY] = against(*pair, folder)
    return result


def own_best(every: list[Turns]) -> Turns:
    """Our own best turns, as if they were a peer's."""
    return {
        setting: (min((turns[setting][0] for turns in every), key=lambda turn: turn.seconds),) * 2
        for setting in (ONE_THREAD, BUSY)
    }


def best(turns: list[Turn]) -> Turn:
    """The fastest run, with the memory of the first."""
    quickest = min(turns, key=lambda turn: turn.seconds)
    return Turn(quickest.value, quickest.seconds, turns[0].megabytes, quickest.error)


def draw(folder: Path, rows: int, classes: int, temperature: float) -> None:
    """Labels drawn from softmax(z); saved is T z, so that T is the true temperature."""
    rng = np.random.default_rng(0)
    logits = np.lib.format.open_memmap(folder / "logits.npy", "w+", np.float32, (rows, classes))
    labels = np.empty(rows, dtype=np.int64)
    for start in range(0, rows, 50_000):
        part = slice(start, min(start + 50_000, rows))
        drawn = 3 * rng.standard_normal((part.stop - start, classes), dtype=np.float32)
        labels[part] = (drawn + rng.gumbel(size=drawn.shape).astype(np.float32)).argmax(axis=1)
        logits[part] = temperature * drawn
    logits.flush()
    np.save(folder / "labels.npy", labels)


def nll(folder: Path, temperature: float) -> float:
    """Mean NLL in float64 at a temperature: the criterion for every fit."""
    logits, labels = np.load(folder / "logits.npy", mmap_mode="r"), np.load(folder / "labels.npy")
    total = 0.0
    for start in range(0, len(labels), 50_000):
        scaled = logits[start : start + 50_000].astype(np.float64) / temperature
        scaled -= scaled.max(axis=1, keepdims=True)
        true = scaled[np.arange(len(scaled)), labels[start : start + 50_000]]
        total += float((np.log(np.exp(scaled).sum(axis=1)) - true).sum())
    return total / len(labels)


def circumstances() -> list[str]:
    """Date, machine, load and versions, and how the two settings differ."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    command = [str(PEERS_PYTHON), str(HERE / "contestants.py"), "versions"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores shared with others (load {load} at",
        "the end).",
        "Two settings: one thread, in CPU seconds, equal to wall time on an idle machine; and",
        '"busy", the default number of threads beside a process that keeps one core busy, in seconds. Our',
        f"runs and the peer's alternate, and the best counts: of two runs, of up to {QUICK_TURNS} for fast",
        f"ones, of one above {ENOUGH_SECONDS:g} s.",
        ", ".join(f"{package} {version}" for package, version in json.loads(done.stdout).items()) + ".",
    ]


def table(header: list[str], rows: list[list[str]], *, left: int = 1) -> list[str]:
    """A Markdown table; the first `left` columns are left-aligned."""
    ruler = [":--" if column < left else "--:" for column in range(len(header))]
    return ["| " + " | ".join(cells) + " |" for cells in (header, ruler, *rows)]
