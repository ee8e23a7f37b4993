"""A folder of trained networks."""

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
from surefoot.io import digest_of, is_locked, locked, make_folder, replacing
from surefoot.predictions.files import read_predictions
from surefoot.predictions.predictions import Predictions
from surefoot.recipes.recipe import Spec
from surefoot.store.draft import Draft
from surefoot.store.files import (
    DONE,
    SPEC,
    Arrays,
    State,
    StoredNetwork,
    checked_name,
    damaged,
    place,
    read_arrays,
    read_document,
    stored_network,
    target_of,
    write_arrays,
)


@dataclass(frozen=True)
class RequestedNetwork:
    """A network that was ordered, and where it will lie among the networks."""

    file: Path
    task: str
    seed: int
    place: Path

    def as_missing(self) -> StoredNetwork:
        """How it is shown while nothing of it is there."""
        return StoredNetwork(self.task, self.place.parent.name, self.seed, State.MISSING, None, ())


def write_requested(spec: Spec, folder: Path) -> None:
    """Keep that a network was ordered; one kept before is left as it is."""
    path = folder / f"{spec.key}.json"
    if _read(path) is None:
        make_folder(folder)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(spec.as_dict(), indent=2), encoding="utf-8")


def read_requested(folder: Path) -> list[RequestedNetwork]:
    """Everything ordered; a damaged file is passed over."""
    return [wanted for path in sorted(folder.glob("*.json")) if (wanted := _read(path)) is not None]


def _read(path: Path) -> RequestedNetwork | None:
    try:
        return _from_document(path, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _from_document(path: Path, document: Any) -> RequestedNetwork | None:
    """None unless the file is of the network that its name says: the key is the hash of the rest."""
    task, identity, recipe, seed = (document[name] for name in ("task", "task_identity", "recipe", "seed"))
    key = digest_of({"task": identity, "recipe": recipe, "seed": seed})
    if not isinstance(task, str) or key != path.stem:
        return None
    return RequestedNetwork(path, task, seed, place(task, recipe["network"], digest_of(recipe), seed, key))


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
                write_requested(spec, self._wanted)

    @contextmanager
    def claim(self, spec: Spec) -> Iterator[Draft]:
        """Be the one that makes this network; `ClaimedError` if another process is."""
        with locked(self._lock(spec)):
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
        return State.RUNNING if is_locked(self._lock(spec)) else State.STOPPED

    def found(self) -> list[StoredNetwork]:
        """Every network ordered, begun or done, by task, recipe and seed."""
        wanted = {self._networks / each.place: each for each in read_requested(self._wanted)}
        begun = {target_of(folder) for folder in self._networks.glob("*/*/*seed*")}
        found = []
        for target in sorted(begun | set(wanted)):
            each = stored_network(target, self.root / "locks")
            if each is None and target in wanted:
                each = wanted[target].as_missing()
            if each is not None:
                found.append(each)
        return found

    def _forget_recipe_if_empty(self, folder: Path) -> None:
        """Where no network of a recipe was begun, a mistake was the recipe's: forget what was wanted."""
        if not any(folder.glob("*seed*")):
            for wanted in read_requested(self._wanted):
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
