"""The files of one network in the store: names, states, arrays."""

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.io import (
    MOST_TEXT,
    digest_of,
    is_locked,
    parse_json,
    read_regular,
    refuse_special,
    replacing,
    sha256_of,
)

DONE = "done.json"
SPEC = "spec.json"
LOG = "log.jsonl"
EPOCH = ("epoch", "epochs", "loss", "seconds")  # the numbers of a log's entries
PREDICTION = ("predicted", "prediction_seconds")
DIGESTS = "sha256"  # in done.json: of each file of weights, by name


def network_path(task: str, network: str, digest: str, seed: int, key: str) -> Path:
    """The folder of a finished network, relative to the folder of all networks."""
    return Path(_plain(task), f"{_plain(network)}-{digest}", f"seed{seed:03d}-{key[:6]}")


def draft_path(target: Path) -> Path:
    """The hidden folder, next to the final one, of a network that is being trained."""
    return target.with_name(f".{target.name}")


def final_path(folder: Path) -> Path:
    """The final folder of a network, from its final folder or its draft folder."""
    return folder.with_name(folder.name.lstrip("."))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "unnamed"


class State(StrEnum):
    """The state of a network in the store."""

    DONE = "done"
    RUNNING = "running"
    STOPPED = "stopped"  # unfinished, and no process is training it
    MISSING = "missing"  # requested, not started


@dataclass(frozen=True)
class StoredNetwork:
    """What the store knows about a network."""

    task: str
    recipe: str
    seed: int
    state: State
    seconds: float | None  # of training; None unless done
    log: tuple[dict[str, Any], ...]  # one entry per epoch


def stored_network(target: Path, locks: Path) -> StoredNetwork | None:
    """A finished or unfinished network; None where there is neither, or a draft without a readable spec."""
    for _ in range(2):  # a draft may be renamed between the two checks
        if (target / DONE).is_file():
            return _described(target, State.DONE, read_document(target / DONE).get("seconds"))
        folder = draft_path(target) if draft_path(target).is_dir() else target
        try:
            lock = locks / str(read_document(folder / SPEC)["key"])
            return _described(folder, State.RUNNING if is_locked(lock) else State.STOPPED, None)
        except (InputError, KeyError):
            continue
    return None


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON object that describes a network."""
    try:
        document = parse_json(read_regular(path, most=MOST_TEXT).decode("utf-8"))
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {recovery(path)}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    return document


def damaged(path: Path, reason: object) -> InputError:
    """The error for an unreadable file of a finished network."""
    return InputError(f"{path} is damaged ({reason}); {recovery(path)}")


def recovery(path: Path) -> str:
    """What to do about a damaged file of a finished network."""
    return (
        f"remove its folder ({path.parent}) and repeat 'surefoot run' or 'surefoot train', which trains this "
        "network again"
    )


def weights_digests(folder: Path) -> dict[str, str]:
    """The sha256 of each file of weights in a folder, by name."""
    return {path.name: sha256_of(path) for path in sorted(folder.glob("*.safetensors"))}


def verify_weights(folder: Path, name: str) -> None:
    """Raise if a finished network's file of weights is not the one that was written."""
    digest = _digests(folder).get(name)
    if digest is not None:
        _verify(folder / name, digest)


def verify_folder(folder: Path) -> None:
    """Raise if any file of weights of a finished network is not the one that was written."""
    for name, digest in _digests(folder).items():
        _verify(folder / name, digest)


def _digests(folder: Path) -> dict[str, str]:
    """From done.json; none for a network of an older version, of which nothing can be verified."""
    digests = read_document(folder / DONE).get(DIGESTS, {})
    if not isinstance(digests, dict) or not all(PLAIN_WITH_DOTS.fullmatch(name) for name in digests):
        raise damaged(folder / DONE, f"{DIGESTS} holds no digests by file name")
    return digests


def _verify(path: Path, digest: str) -> None:
    try:
        refuse_special(path)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {recovery(path)}") from error
    if found != digest:
        raise damaged(path, f"its sha256 is not the one in {DONE}")


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The log's entries; a line cut short by a kill, or damaged, is skipped."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            if _is_entry(entry := parse_json(line)):
                yield entry


def _is_entry(entry: Any) -> bool:
    """Whether it has values by name, and numbers where they are needed."""
    if not isinstance(entry, dict):
        return False
    return all(isinstance(entry[name], int | float) for name in (*EPOCH, *PREDICTION) if name in entry)


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


SCALED_SAMPLES = "scaled-samples.npz"  # of a Bayesian network: T inside its samples, and predictions at it

# Of scores whose definition has changed: a file of another version is not read, but computed again.
NOVELTY_VERSIONS = {"odin": 2}  # 1: its step was in units of the normalised input


def novelty_file(score: str) -> str:
    """The name of the file of a novelty score, of its present version."""
    if not PLAIN.fullmatch(score):
        raise InputError(f"the novelty score's name is {score!r}; allowed: letters, digits, - and _")
    version = f"-v{NOVELTY_VERSIONS[score]}" if score in NOVELTY_VERSIONS else ""
    return f"novelty-{score}{version}.npz"


def write_arrays(arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write named arrays atomically."""
    for name, array in arrays.items():
        if not PLAIN_WITH_DOTS.fullmatch(name):
            raise InputError(f"array name is {name!r}; allowed: letters, digits, '.', - and _")
        if array.dtype.hasobject:
            raise InputError(f"array {name!r} contains Python objects; allowed: numbers and text")
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():  # not np.savez, which reserves names such as 'file'
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array(file, array, allow_pickle=False)
        archive.comment = _names_hash(arrays)


def read_arrays(path: Path) -> Arrays:
    """Read named arrays and verify their checksums; a damaged file is an error."""
    try:
        refuse_special(path)
        with zipfile.ZipFile(path) as archive:
            arrays = {
                name.removesuffix(".npy"): npy.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in archive.namelist()
            }
            if archive.comment != _names_hash(arrays):  # zipfile does not notice a truncated directory
                raise ValueError("some arrays are missing")
            return arrays
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; remove it to compute it again"
        ) from error
    except Exception as error:  # arbitrary bytes make zipfile raise many types
        raise InputError(f"{path} is damaged ({error}); remove it to compute it again") from error


def _names_hash(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return digest_of(list(arrays)).encode()
