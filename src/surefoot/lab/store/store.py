"""A folder of trained networks."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.io import MOST_TEXT, digest_of, is_locked, locked, make_folder, read_regular, replacing
from surefoot.lab.recipes.recipe import Recipe, Spec, non_default_values
from surefoot.lab.store.draft import Draft
from surefoot.lab.store.files import (
    DONE,
    SCALED_SAMPLES,
    SPEC,
    Arrays,
    State,
    StoredNetwork,
    damaged,
    final_path,
    network_path,
    novelty_file,
    read_arrays,
    read_document,
    recovery,
    stored_network,
    verify_folder,
    verify_weights,
    write_arrays,
)
from surefoot.runtime import usable_cores

if TYPE_CHECKING:  # torch is imported where tensors are read: listing a store must be fast
    from torch import Tensor

    from surefoot.predictions.predictions import Predictions

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # saved with the weights, not learned


@dataclass(frozen=True)
class RequestedNetwork:
    """A network that was requested, and its folder relative to the folder of all networks."""

    file: Path
    task: str
    seed: int
    path: Path

    def as_missing(self) -> StoredNetwork:
        """Its entry while nothing of it exists."""
        return StoredNetwork(self.task, self.path.parent.name, self.seed, State.MISSING, None, ())


def write_request(spec: Spec, folder: Path) -> None:
    """Record that a network was requested; a valid earlier record is left unchanged."""
    path = folder / f"{spec.key}.json"
    if read_request(path) is None:
        make_folder(folder)
        document = spec.as_dict() | {"recipe": non_default_values(spec.recipe)}  # what the key is a hash of
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(document, indent=2), encoding="utf-8")


def read_request(path: Path) -> RequestedNetwork | None:
    """A recorded request; None where the file is missing, damaged, or not of the network that its name says.

    The key, which is the file's name, is the hash of the content.
    """
    try:
        document = json.loads(read_regular(path, most=MOST_TEXT).decode("utf-8"))
        task, identity, recipe, seed = (
            document[name] for name in ("task", "task_identity", "recipe", "seed")
        )
        key = digest_of({"task": identity, "recipe": recipe, "seed": seed})
        if not isinstance(task, str) or key != path.stem:
            return None
        folder = network_path(task, recipe.get("network", Recipe.network), digest_of(recipe), seed, key)
        return RequestedNetwork(path, task, seed, folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


@dataclass(frozen=True)
class Store:
    """A folder of trained networks."""

    root: Path

    @staticmethod
    def containing(folder: Path) -> "Store":
        """The store that an experiment's folder belongs to."""
        return Store(folder.absolute().parent.parent)

    def folder(self, spec: Spec) -> Path:
        """The folder of a finished network."""
        recipe = spec.recipe
        return self._networks / network_path(spec.task, recipe.network, recipe.digest, spec.seed, spec.key)

    def experiment_folder(self, name: str) -> Path:
        """The folder of an experiment's values, tables and report."""
        return self.root / "experiments" / name

    def experiments(self) -> list[Path]:
        """The folders of all experiments that were run."""
        return sorted(folder for folder in (self.root / "experiments").glob("*") if folder.is_dir())

    def teacher_folder(self, name: str) -> Path:
        """A cache of teachers' outputs; it can be removed and is computed again."""
        return self.root / "lessons" / name

    def is_done(self, spec: Spec) -> bool:
        """Whether the network is finished: its folder is then complete."""
        return (self.folder(spec) / DONE).is_file()

    def predictions(self, spec: Spec, split: str) -> "Predictions":
        """A finished network's predictions on a split."""
        from surefoot.predictions.files import read_predictions

        path = self.folder(spec) / f"{split}.npz"
        try:
            return read_predictions(path)
        except InputError as error:
            raise InputError(f"{error}; {recovery(path)}") from error

    def other_code(self, spec: Spec) -> tuple[str, ...] | None:
        """The source of a finished network that differs from this one only in that; None: there is none."""
        ours = spec.recipe.as_dict() | {"code": None}
        for done in sorted(self.folder(spec).parent.parent.glob(f"*/seed{spec.seed:03d}-*/{DONE}")):
            with suppress(InputError, KeyError, TypeError):  # damaged
                stored = read_document(done.with_name(SPEC))
                recipe = stored["recipe"]
                if stored["task_identity"] == spec.task_identity and ours == recipe | {"code": None}:
                    return tuple(recipe.get("code", ()))
        return None

    def has_predictions(self, spec: Spec, split: str) -> bool:
        """Whether a finished network predicted a split."""
        return (self.folder(spec) / f"{split}.npz").is_file()

    def facts(self, spec: Spec) -> dict[str, Any]:
        """How a finished network was trained: versions, device, seconds."""
        path = self._finished(spec) / DONE
        facts = read_document(path)
        for name in ("seconds", "seconds_per_sample"):
            if not isinstance(facts.get(name, 0.0), int | float):
                raise damaged(path, f"{name} is not a number")
        return facts

    def weights_file(self, spec: Spec) -> Path:
        """The file of a finished network's weights."""
        return self.folder(spec) / "weights.safetensors"

    def weights(self, spec: Spec, name: str = "weights") -> "dict[str, Tensor]":
        """A finished network's weights, by their names in its state_dict."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._finished(spec) / f"{name}.safetensors"
        try:
            verify_weights(path.parent, path.name)
            return load_file(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}; {recovery(path)}") from error
        except SafetensorError as error:
            raise damaged(path, error) from error

    def verify(self, specs: Iterable[Spec]) -> None:
        """Raise if weights of one of these networks, where it is finished, are not those that were written.

        Some 0.1 s per network, mostly reading: hashlib releases the global interpreter lock.
        """
        folders = [self.folder(spec) for spec in dict.fromkeys(specs) if self.is_done(spec)]
        with ThreadPoolExecutor(usable_cores()) as pool:
            for _ in pool.map(verify_folder, folders):
                pass

    def parameters(self, spec: Spec) -> int | None:
        """How many parameters a finished network has; None where its weights were not saved."""
        path = self.weights_file(spec)
        if not path.is_file():
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise damaged(path, error) from error
        return sum(int(math.prod(shape)) for name, shape in shapes.items() if not name.endswith(STATISTICS))

    def save_novelty(self, spec: Spec, score: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save a novelty score of a finished network atomically."""
        write_arrays(arrays, self._finished(spec) / novelty_file(score))

    def novelty(self, spec: Spec, score: str) -> Arrays | None:
        """A novelty score of a finished network; None if it was never saved."""
        path = self._finished(spec) / novelty_file(score)
        return read_arrays(path) if path.exists() else None

    def has_novelty(self, spec: Spec, score: str) -> bool:
        """Whether the network is done and this novelty score of it was saved."""
        return self.is_done(spec) and (self.folder(spec) / novelty_file(score)).is_file()

    def save_scaled_samples(self, spec: Spec, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save the T inside the samples of a finished Bayesian network, and its predictions at that T."""
        write_arrays(arrays, self._finished(spec) / SCALED_SAMPLES)

    def scaled_samples(self, spec: Spec) -> Arrays:
        """What `save_scaled_samples` saved."""
        return read_arrays(self._finished(spec) / SCALED_SAMPLES)

    def has_scaled_samples(self, spec: Spec) -> bool:
        """Whether the network is done and has these."""
        return self.is_done(spec) and (self.folder(spec) / SCALED_SAMPLES).is_file()

    def request(self, specs: Sequence[Spec]) -> None:
        """Record requested networks, so that those not started are listed as missing."""
        for spec in specs:
            if not self.is_done(spec):
                write_request(spec, self._requests)

    @contextmanager
    def claim(self, spec: Spec) -> Iterator[Draft]:
        """Lock a network to train it; `ClaimedError` if another process has the lock."""
        with locked(self._lock(spec)):
            draft = Draft(self.folder(spec))
            make_folder(draft.folder)
            draft.sweep()
            draft.write(SPEC, json.dumps(spec.as_dict(), indent=2))
            try:
                yield draft
            except InputError:
                draft.discard_if_empty()  # an error found before training leaves nothing behind
                folder = draft.target.parent
                if not any(folder.glob("*seed*")):  # no network of the recipe was started: drop its requests
                    for request in self._read_requests():
                        if self._networks / request.path.parent == folder:
                            request.file.unlink(missing_ok=True)
                raise

    def state(self, spec: Spec) -> State:
        """Done, running, stopped or missing."""
        if self.is_done(spec):
            return State.DONE
        if not Draft(self.folder(spec)).folder.is_dir():
            return State.MISSING
        return State.RUNNING if is_locked(self._lock(spec)) else State.STOPPED

    def networks(self) -> list[StoredNetwork]:
        """Every network requested, started or done, by task, recipe and seed."""
        requested = {self._networks / request.path: request for request in self._read_requests()}
        started = {final_path(folder) for folder in self._networks.glob("*/*/*seed*")}
        entries = []
        for target in sorted(started | set(requested)):
            entry = stored_network(target, self.root / "locks")
            if entry is None and target in requested:
                entry = requested[target].as_missing()
            if entry is not None:
                entries.append(entry)
        return entries

    def _read_requests(self) -> list[RequestedNetwork]:
        """Every recorded request; damaged files are skipped."""
        requests = (read_request(path) for path in sorted(self._requests.glob("*.json")))
        return [request for request in requests if request is not None]

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
    def _requests(self) -> Path:
        return self.root / "wanted"

    def _lock(self, spec: Spec) -> Path:
        return self.root / "locks" / spec.key
