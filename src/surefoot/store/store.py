"""A folder of trained networks.

    ROOT/networks/<task>/<recipe>/seed003-1f2a9c/   spec.json log.jsonl weights.safetensors val.npz done.json
    ROOT/networks/<task>/<recipe>/.seed003-1f2a9c/  the same while it is being made, with its checkpoint
    ROOT/wanted/<key>.json                          ordered, begun or not
    ROOT/locks/<key>                                held by the process that is making it
    ROOT/lessons/<digest>/7.npy                     what teachers said of random views; made again if removed

A folder is renamed to its place last, so one that is there is complete.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from surefoot.errors import InputError
from surefoot.files import make_folder
from surefoot.prediction_files import read_predictions
from surefoot.predictions import Predictions
from surefoot.recipes import Spec
from surefoot.store.beside import Arrays, checked_name, read_arrays, write_arrays
from surefoot.store.draft import Draft
from surefoot.store.found import Found, State, damaged, found_at, read_document
from surefoot.store.layout import DONE, SPEC, place, target_of
from surefoot.store.locks import held, is_held
from surefoot.store.wanted import read_wanted, write_wanted

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # kept with the weights, not learned


@dataclass(frozen=True)
class Store:
    """A folder of trained networks."""

    root: Path

    def folder(self, spec: Spec) -> Path:
        """Where a finished network lies."""
        recipe = spec.recipe
        return self._networks / place(spec.task, recipe.network, recipe.digest, spec.seed, spec.key)

    def experiment_folder(self, name: str) -> Path:
        """Where an experiment's values, tables and report lie."""
        return self.root / "experiments" / name

    @staticmethod
    def holding(folder: Path) -> "Store":
        """The store that an experiment's folder lies in."""
        return Store(folder.absolute().parent.parent)

    def lessons_folder(self, name: str) -> Path:
        """Where what teachers said is kept, under a name of that; it can be removed, and is made again."""
        return self.root / "lessons" / name

    def experiments(self) -> list[Path]:
        """The folders of all experiments that were run."""
        return sorted(folder for folder in (self.root / "experiments").glob("*") if folder.is_dir())

    def is_done(self, spec: Spec) -> bool:
        """Whether it is there, and so complete."""
        return (self.folder(spec) / DONE).is_file()

    def predictions(self, spec: Spec, split: str) -> Predictions:
        """What a finished network said of a split."""
        return read_predictions(self.folder(spec) / f"{split}.npz")

    def has_predictions(self, spec: Spec, split: str) -> bool:
        """Whether a finished network predicted a split."""
        return (self.folder(spec) / f"{split}.npz").is_file()

    def facts(self, spec: Spec) -> dict[str, Any]:
        """How a finished network was made: versions, device, seconds."""
        return read_document(self._finished(spec) / DONE)

    def weights_file(self, spec: Spec) -> Path:
        """A finished network's weights."""
        return self.folder(spec) / "weights.safetensors"

    def weights(self, spec: Spec, name: str = "weights") -> dict[str, Tensor]:
        """A finished network's weights, by the names that its state_dict has."""
        path = self._finished(spec) / f"{name}.safetensors"
        try:
            return load_file(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        except SafetensorError as error:
            raise damaged(path, error) from error

    def parameters(self, spec: Spec) -> int | None:
        """How many numbers a finished network learned; None where its weights were not kept."""
        path = self.weights_file(spec)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise damaged(path, error) from error
        return sum(int(math.prod(shape)) for name, shape in shapes.items() if not name.endswith(STATISTICS))

    def save_beside(self, spec: Spec, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep further arrays about a finished network, whole or not at all."""
        write_arrays(arrays, self._finished(spec) / f"{checked_name(name)}.npz")

    def beside(self, spec: Spec, name: str) -> Arrays | None:
        """Further arrays about a finished network; None if they were never saved."""
        path = self._finished(spec) / f"{checked_name(name)}.npz"
        return read_arrays(path) if path.exists() else None

    def has_beside(self, spec: Spec, name: str) -> bool:
        """Whether the network is done and such arrays were saved."""
        return self.is_done(spec) and (self.folder(spec) / f"{checked_name(name)}.npz").is_file()

    def want(self, specs: Sequence[Spec]) -> None:
        """Keep what was ordered, so that networks never begun are shown as missing."""
        for spec in specs:
            if not self.is_done(spec):
                write_wanted(spec, self._wanted)

    @contextmanager
    def claim(self, spec: Spec) -> Iterator[Draft]:
        """Be the one that makes this network; `ClaimedError` if another process is."""
        with held(self._lock(spec)):
            draft = Draft(self.folder(spec))
            make_folder(draft.folder)
            draft.sweep()
            draft.write(SPEC, json.dumps(spec.as_dict(), indent=2))
            try:
                yield draft
            except InputError:
                draft.discard_if_empty()  # a mistake seen before anything was made leaves nothing behind
                self._forget_recipe_if_empty(draft.target.parent)
                raise

    def state(self, spec: Spec) -> State:
        """Done, running, stopped or missing."""
        if self.is_done(spec):
            return State.DONE
        if not Draft(self.folder(spec)).folder.is_dir():
            return State.MISSING
        return State.RUNNING if is_held(self._lock(spec)) else State.STOPPED

    def found(self) -> list[Found]:
        """Every network ordered, begun or done, by task, recipe and seed."""
        wanted = {self._networks / each.place: each for each in read_wanted(self._wanted)}
        begun = {target_of(folder) for folder in self._networks.glob("*/*/*seed*")}
        found = []
        for target in sorted(begun | set(wanted)):
            each = found_at(target, self.root / "locks")
            if each is None and target in wanted:
                each = wanted[target].as_missing()
            if each is not None:
                found.append(each)
        return found

    def _forget_recipe_if_empty(self, folder: Path) -> None:
        """Where no network of a recipe was begun, a mistake was the recipe's: forget what was wanted."""
        if not any(folder.glob("*seed*")):
            for wanted in read_wanted(self._wanted):
                if self._networks / wanted.place.parent == folder:
                    wanted.file.unlink(missing_ok=True)

    def _finished(self, spec: Spec) -> Path:
        if not self.is_done(spec):
            raise InputError(
                f"network {spec.task} seed {spec.seed} is {self.state(spec)} in {self.root}; needed: done"
            )
        return self.folder(spec)

    @property
    def _networks(self) -> Path:
        return self.root / "networks"

    @property
    def _wanted(self) -> Path:
        return self.root / "wanted"

    def _lock(self, spec: Spec) -> Path:
        return self.root / "locks" / spec.key
