"""The files of one network in the store: names, states, extra arrays."""

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.io import digest_of, is_locked, replacing
from surefoot.tasks.task import Split

DONE = "done.json"
SPEC = "spec.json"
LOG = "log.jsonl"


def place(task: str, network: str, digest: str, seed: int, key: str) -> Path:
    """Where a finished network lies, seen from the folder of all networks."""
    return Path(_plain(task), f"{_plain(network)}-{digest}", f"seed{seed:03d}-{key[:6]}")


def draft_of(target: Path) -> Path:
    """Where a network is while it is made: beside its final place, hidden."""
    return target.with_name(f".{target.name}")


def target_of(folder: Path) -> Path:
    """The final place of a network, from that or from its draft's."""
    return folder.with_name(folder.name.lstrip("."))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "unnamed"


class State(StrEnum):
    """How far a network is."""

    DONE = "done"
    RUNNING = "running"
    STOPPED = "stopped"  # begun, and nobody is at it
    MISSING = "missing"  # ordered, and never begun


@dataclass(frozen=True)
class StoredNetwork:
    """A network as the store has it."""

    task: str
    recipe: str
    seed: int
    state: State
    seconds: float | None  # of training, where done
    log: tuple[dict[str, Any], ...]  # an entry per epoch


def stored_network(target: Path, locks: Path) -> StoredNetwork | None:
    """A network done or begun; None where there is neither, or a draft that has no sound spec yet."""
    for _ in range(2):  # a draft may be renamed while we look
        if (target / DONE).is_file():
            return _described(target, State.DONE, read_document(target / DONE).get("seconds"))
        folder = draft_of(target) if draft_of(target).is_dir() else target
        try:
            lock = locks / str(read_document(folder / SPEC)["key"])
            return _described(folder, State.RUNNING if is_locked(lock) else State.STOPPED, None)
        except (InputError, KeyError):
            continue
    return None


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object about a network."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError("no JSON object")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    return document


def damaged(path: Path, error: Exception) -> InputError:
    """What is said of a finished network's file that cannot be read."""
    return InputError(f"{path} is damaged ({error}); remove its folder to train this network anew")


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The log's entries; a line cut short by a kill is passed over."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _described(folder: Path, state: State, seconds: float | None) -> StoredNetwork:
    spec = read_document(folder / SPEC)
    log = tuple(read_log(folder / LOG))
    try:
        return StoredNetwork(str(spec["task"]), folder.parent.name, int(spec["seed"]), state, seconds, log)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(folder / SPEC, error) from error


Arrays = dict[str, NDArray[Any]]
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
PLAIN_WITH_DOTS = re.compile(r"[A-Za-z0-9_.-]+")


def checked_name(name: str) -> str:
    """A name for a file of arrays: a plain word, and none that a split's predictions have."""
    if not PLAIN.fullmatch(name) or name in set(Split):
        raise InputError(f"name is {name!r}; allowed: letters, digits, - and _, but no split's name")
    return name


def write_arrays(arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write arrays by name, whole or not at all."""
    for name, array in arrays.items():
        if not PLAIN_WITH_DOTS.fullmatch(name):
            raise InputError(f"array name is {name!r}; allowed: letters, digits, '.', - and _")
        if array.dtype.hasobject:
            raise InputError(f"array {name!r} holds Python objects; allowed: numbers and text")
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():  # not numpy's savez, which keeps names such as 'file' for itself
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array(file, array, allow_pickle=False)
        archive.comment = _names_hash(arrays)


def read_arrays(path: Path) -> Arrays:
    """Read arrays by name, each checked against its checksum first; a damaged file is named."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {name.removesuffix(".npy"): _array(archive.read(name)) for name in archive.namelist()}
            if archive.comment != _names_hash(arrays):  # zipfile does not see that its list was cut short
                raise ValueError("not the arrays that were saved")
            return arrays
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # the bytes may be anything, and so may be what zipfile makes of them
        raise InputError(f"{path} is damaged ({error}); remove it to have it made anew") from error


def _names_hash(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return digest_of(list(arrays)).encode()


def _array(content: bytes) -> NDArray[Any]:
    return npy.read_array(io.BytesIO(content), allow_pickle=False)
