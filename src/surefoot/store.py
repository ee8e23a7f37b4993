"""What has been trained, on disk. The only module that knows where things lie.

    ROOT/networks/<task>/<recipe>/seed003-1f2a9c/   spec.json log.jsonl weights.safetensors val.npz done.json
    ROOT/networks/<task>/<recipe>/.seed003-1f2a9c/  the same while it is being made, with its checkpoint
    ROOT/locks/<key>                                held by the process that is making it

A folder is renamed to its place last, so one that is there is complete. A lock is the kernel's: it goes with
the process that held it, however that ended.
"""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from surefoot.errors import InputError
from surefoot.files import replacing
from surefoot.prediction_files import read_predictions, write_predictions
from surefoot.predictions import Predictions
from surefoot.recipes import Spec
from surefoot.tasks.base import Split
from surefoot.training.loop import Checkpoint

DONE = "done.json"
SPEC = "spec.json"
LOG = "log.jsonl"
LOCK_ATTEMPTS = 5


class State(StrEnum):
    """How far a network is."""

    DONE = "done"
    RUNNING = "running"
    STOPPED = "stopped"  # begun, and nobody is at it
    MISSING = "missing"


@dataclass(frozen=True)
class Found:
    """A network as the store has it."""

    task: str
    recipe: str
    seed: int
    state: State
    seconds: float | None  # of training, where done
    log: tuple[dict[str, Any], ...]  # an entry per epoch


class ClaimedError(Exception):
    """Another process is making this network."""


@dataclass(frozen=True)
class Store:
    """A folder of trained networks."""

    root: Path

    def folder(self, spec: Spec) -> Path:
        """Where a finished network lies."""
        recipe = f"{_plain(spec.recipe.network)}-{spec.recipe.digest}"
        return self.root / "networks" / _plain(spec.task) / recipe / f"seed{spec.seed:03d}-{spec.key[:6]}"

    def is_done(self, spec: Spec) -> bool:
        """Whether it is there, and so complete."""
        return (self.folder(spec) / DONE).is_file()

    def predictions(self, spec: Spec, split: Split) -> Predictions:
        """What a finished network said of a split."""
        return read_predictions(self.folder(spec) / f"{split}.npz")

    def weights_file(self, spec: Spec) -> Path:
        """A finished network's weights."""
        return self.folder(spec) / "weights.safetensors"

    @contextmanager
    def claim(self, spec: Spec) -> Iterator["Draft"]:
        """Be the one that makes this network; `ClaimedError` if another process is."""
        with _held(self._lock(spec)):
            draft = Draft(self.folder(spec))
            _make(draft.folder)
            draft.sweep()
            draft.write(SPEC, json.dumps(spec.as_dict(), indent=2))
            try:
                yield draft
            except InputError:
                draft.discard_if_empty()  # a mistake seen before anything was made leaves nothing behind
                raise

    def state(self, spec: Spec) -> State:
        """Done, running, stopped or missing."""
        if self.is_done(spec):
            return State.DONE
        if not Draft(self.folder(spec)).folder.is_dir():
            return State.MISSING
        return State.RUNNING if _is_held(self._lock(spec)) else State.STOPPED

    def found(self) -> list[Found]:
        """Every network begun or done, by task, recipe and seed."""
        folders = sorted(
            (self.root / "networks").glob("*/*/*seed*"), key=lambda p: (p.parent, p.name.lstrip("."))
        )
        found = {folder.with_name(folder.name.lstrip(".")): self._found(folder) for folder in folders}
        return [each for each in found.values() if each is not None]

    def _found(self, folder: Path) -> Found | None:
        """None where it has no spec yet. Its finished folder goes before a draft, also one just renamed."""
        finished = folder.with_name(folder.name.lstrip("."))
        try:
            if (finished / DONE).is_file():
                facts = _document(finished / DONE)
                return _described(finished, State.DONE, facts.get("seconds"))
            lock = self.root / "locks" / str(_document(folder / SPEC)["key"])
            return _described(folder, State.RUNNING if _is_held(lock) else State.STOPPED, None)
        except FileNotFoundError:
            return self._found(finished) if finished.is_dir() and folder != finished else None

    def _lock(self, spec: Spec) -> Path:
        return self.root / "locks" / spec.key


@dataclass(frozen=True)
class Draft:
    """A network in the making."""

    target: Path

    @property
    def folder(self) -> Path:
        """Beside its final place, hidden."""
        return self.target.parent / f".{self.target.name}"

    def write(self, name: str, text: str) -> None:
        """A text file, whole or not at all."""
        with replacing(self.folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def has(self, name: str) -> bool:
        """Whether a part is there already."""
        return (self.folder / name).is_file()

    def log(self, entry: dict[str, Any]) -> None:
        """One more line of the log."""
        try:
            with (self.folder / LOG).open("ab+") as file:
                file.write((b"" if _ends_a_line(file) else b"\n") + json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise InputError(f"cannot write {self.folder / LOG}: {error.strerror}") from error

    def seconds(self) -> float:
        """What the epochs took, in however many sittings."""
        return sum(float(entry.get("seconds", 0.0)) for entry in _log_of(self.folder / LOG))

    def save_predictions(self, split: Split, predictions: Predictions) -> None:
        """What the network says of a split."""
        write_predictions(predictions, self.folder / f"{split}.npz")

    def save_weights(self, name: str, weights: dict[str, Tensor]) -> None:
        """Weights, whole or not at all."""
        _save_tensors(weights, self.folder / f"{name}.safetensors", {})

    def save_checkpoint(self, phase: str, checkpoint: Checkpoint) -> None:
        """Where to go on from."""
        tensors = {f"weights.{name}": value for name, value in checkpoint.weights.items()}
        tensors |= {f"momentum.{index:05d}": value for index, value in enumerate(checkpoint.momentum)}
        facts = {"epoch": str(checkpoint.epoch), "step": str(checkpoint.step), "loss": repr(checkpoint.loss)}
        _save_tensors(tensors, self.folder / f"checkpoint-{phase}.safetensors", facts)

    def checkpoint(self, phase: str) -> Checkpoint | None:
        """Where this phase was left, if it was begun."""
        path = self.folder / f"checkpoint-{phase}.safetensors"
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                facts = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
            epoch, step, loss = int(facts["epoch"]), int(facts["step"]), float(facts["loss"])
        except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
            raise InputError(f"{path} is damaged ({error}); remove it to train this network anew") from error
        weights = {n.removeprefix("weights."): t for n, t in tensors.items() if n.startswith("weights.")}
        momentum = [tensors[name] for name in sorted(tensors) if name.startswith("momentum.")]
        return Checkpoint(epoch, step, weights, momentum, loss)

    def finish(self, facts: dict[str, Any]) -> None:
        """Put the folder in its place: from now on the network is there."""
        for checkpoint in self.folder.glob("checkpoint-*"):
            checkpoint.unlink()
        self.write(DONE, json.dumps(facts, indent=2))
        try:
            self.folder.rename(self.target)
        except OSError as error:
            raise InputError(f"cannot write {self.target}: {error.strerror}") from error

    def sweep(self) -> None:
        """Remove files half written when a process was killed."""
        for leftover in self.folder.glob(".*"):
            leftover.unlink()

    def discard_if_empty(self) -> None:
        """Remove it if it holds nothing but its spec."""
        if {path.name for path in self.folder.glob("*")} <= {SPEC}:
            self.discard()

    def discard(self) -> None:
        """Remove what was begun."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _save_tensors(tensors: dict[str, Tensor], path: Path, facts: dict[str, str]) -> None:
    with replacing(path) as temporary:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, facts)
        except SafetensorError as error:  # it wraps the operating system's word
            raise OSError(None, str(error)) from error


def _log_of(path: Path) -> Iterator[dict[str, Any]]:
    """The log's entries; a line cut short by a kill is passed over."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _ends_a_line(file: IO[bytes]) -> bool:
    """Whether the next entry would begin a line: not where the last was cut short."""
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _document(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _described(folder: Path, state: State, seconds: float | None) -> Found:
    spec = _document(folder / SPEC)
    log = tuple(_log_of(folder / LOG))
    return Found(spec["task"], folder.parent.name, int(spec["seed"]), state, seconds, log)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "unnamed"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error


@contextmanager
def _held(path: Path) -> Iterator[None]:
    _make(path.parent)
    try:
        file = path.open("a")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    with file:
        _lock_soon(file)
        yield


def _lock_soon(file: IO[str]) -> None:
    """Lock a file, trying for a moment: somebody may just be looking whether it is locked."""
    for attempt in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if attempt == LOCK_ATTEMPTS - 1:
                raise ClaimedError(file.name) from error
            time.sleep(0.02)
        else:
            return


def _is_held(path: Path) -> bool:
    """Looks, and writes nothing: a shared lock can be had unless somebody holds it alone."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False  # no such lock, so nobody holds it
