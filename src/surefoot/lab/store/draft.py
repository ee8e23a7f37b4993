"""A network that is being trained: its files until it is finished."""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.errors import InputError
from surefoot.io import replacing, sync
from surefoot.lab.store.files import DIGESTS, DONE, LOG, SPEC, draft_path, read_log, weights_digests

if TYPE_CHECKING:  # torch is imported where tensors are read or written: listing a store must be fast
    from torch import Tensor

    from surefoot.predictions.predictions import Predictions


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that is needed to resume a training exactly."""

    epoch: int
    step: int  # the next one in that epoch
    weights: "dict[str, Tensor]"
    momentum: "list[Tensor]"
    loss: float  # summed over the steps of the epoch so far
    average: "dict[str, Tensor]" = field(default_factory=dict)  # of the weights, where the recipe has one


@dataclass(frozen=True)
class Draft:
    """The folder of an unfinished network, renamed to `target` when it is finished."""

    target: Path

    @property
    def folder(self) -> Path:
        """A hidden folder next to the final one."""
        return draft_path(self.target)

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        with replacing(self.folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def has(self, name: str) -> bool:
        """Whether this file was already written."""
        return (self.folder / name).is_file()

    def log(self, entry: dict[str, Any]) -> None:
        """Append an entry to the log; a last line cut short by a kill is ended first."""
        try:
            with (self.folder / LOG).open("ab+") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                cut_short = file.read(1) not in (b"", b"\n")
                file.write((b"\n" if cut_short else b"") + json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise InputError(f"cannot write {self.folder / LOG}: {error.strerror}") from error

    def logged(self, name: str) -> float:
        """The sum of a number over all entries of the log, also of earlier sessions."""
        return sum(float(entry.get(name, 0.0)) for entry in read_log(self.folder / LOG))

    def save_predictions(self, split: str, predictions: "Predictions") -> None:
        """Save the network's predictions on a split."""
        from surefoot.predictions.files import write_predictions

        write_predictions(predictions, self.folder / f"{split}.npz")

    def save_weights(self, name: str, weights: "dict[str, Tensor]") -> None:
        """Save weights atomically."""
        save_tensors(weights, self.folder / f"{name}.safetensors", {})

    def save_checkpoint(self, phase: str, checkpoint: Checkpoint) -> None:
        """Save the state of a training phase, to resume from."""
        tensors = {f"weights.{name}": value for name, value in checkpoint.weights.items()}
        tensors |= {f"momentum.{index:05d}": value for index, value in enumerate(checkpoint.momentum)}
        tensors |= {f"average.{name}": value for name, value in checkpoint.average.items()}
        facts = {"epoch": str(checkpoint.epoch), "step": str(checkpoint.step), "loss": repr(checkpoint.loss)}
        save_tensors(tensors, self.folder / f"checkpoint-{phase}.safetensors", facts)

    def checkpoint(self, phase: str) -> Checkpoint | None:
        """The last saved state of a training phase; None where there is none."""
        path = self.folder / f"checkpoint-{phase}.safetensors"
        if not path.is_file():
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                facts = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
            epoch, step, loss = int(facts["epoch"]), int(facts["step"]), float(facts["loss"])
        except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
            raise InputError(f"{path} is damaged ({error}); remove it to train this network again") from error
        weights, average = (
            {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            for prefix in ("weights.", "average.")
        )
        momentum = [tensors[name] for name in sorted(tensors) if name.startswith("momentum.")]
        return Checkpoint(epoch, step, weights, momentum, loss, average)

    def finish(self, facts: dict[str, Any]) -> None:
        """Write done.json, with a digest of each file of weights, and rename the folder to its final name.

        Files and folder are synced before the rename and the parent folders after it, so a finished network
        survives a power failure.
        """
        for checkpoint in self.folder.glob("checkpoint-*"):
            checkpoint.unlink()
        self.write(DONE, json.dumps(facts | {DIGESTS: weights_digests(self.folder)}, indent=2))
        try:
            for path in (*self.folder.iterdir(), self.folder):
                sync(path)
            self.folder.rename(self.target)
            for folder in self.target.parents[:4]:  # of the recipe, the task, all networks, the store
                sync(folder)
        except OSError as error:
            raise InputError(f"cannot write {self.target}: {error.strerror}") from error

    def sweep(self) -> None:
        """Remove temporary files of a process that was killed."""
        for leftover in self.folder.glob(".*"):
            leftover.unlink()

    def discard_if_empty(self) -> None:
        """Remove the folder if it contains only the spec."""
        if {path.name for path in self.folder.glob("*")} <= {SPEC}:
            self.discard()

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def save_tensors(tensors: "dict[str, Tensor]", path: Path, facts: dict[str, str]) -> None:
    """Write tensors and texts by name atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        mode = temporary.stat().st_mode
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, facts)
        except SafetensorError as error:  # which wraps the error of the operating system
            raise OSError(None, str(error)) from error
        temporary.chmod(mode)  # safetensors makes private files
