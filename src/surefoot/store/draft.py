"""A network in the making."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from surefoot.errors import InputError
from surefoot.io import replacing, sync
from surefoot.predictions.files import write_predictions
from surefoot.predictions.predictions import Predictions
from surefoot.store.files import DONE, LOG, SPEC, draft_of, read_log
from surefoot.training.loop import Checkpoint


@dataclass(frozen=True)
class Draft:
    """A network in the making."""

    target: Path

    @property
    def folder(self) -> Path:
        """Beside its final place, hidden."""
        return draft_of(self.target)

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

    def logged(self, name: str) -> float:
        """The sum of a number over the log, in however many sittings it was written."""
        return sum(float(entry.get(name, 0.0)) for entry in read_log(self.folder / LOG))

    def save_predictions(self, split: str, predictions: Predictions) -> None:
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
        """Put the folder in its place: from now on the network is there, also after a loss of power.

        Its files and the folder go to the disk before the rename, and the rename itself after it.
        """
        for checkpoint in self.folder.glob("checkpoint-*"):
            checkpoint.unlink()
        self.write(DONE, json.dumps(facts, indent=2))
        try:
            for path in (*self.folder.iterdir(), self.folder):
                sync(path)
            self.folder.rename(self.target)
            for folder in self.target.parents[:4]:  # of the recipe, the task, all networks, the store
                sync(folder)
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


def _ends_a_line(file: IO[bytes]) -> bool:
    """Whether the next entry would begin a line: not where the last was cut short."""
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
