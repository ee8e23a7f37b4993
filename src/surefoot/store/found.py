"""What the store has of a network, read from its folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from surefoot.errors import InputError
from surefoot.store.layout import DONE, LOG, SPEC, draft_of
from surefoot.store.locks import is_held


class State(StrEnum):
    """How far a network is."""

    DONE = "done"
    RUNNING = "running"
    STOPPED = "stopped"  # begun, and nobody is at it
    MISSING = "missing"  # ordered, and never begun


@dataclass(frozen=True)
class Found:
    """A network as the store has it."""

    task: str
    recipe: str
    seed: int
    state: State
    seconds: float | None  # of training, where done
    log: tuple[dict[str, Any], ...]  # an entry per epoch


def found_at(target: Path, locks: Path) -> Found | None:
    """A network done or begun; None where there is neither, or a draft that has no sound spec yet."""
    for _ in range(2):  # a draft may be renamed while we look
        if (target / DONE).is_file():
            return _described(target, State.DONE, read_document(target / DONE).get("seconds"))
        folder = draft_of(target) if draft_of(target).is_dir() else target
        try:
            lock = locks / str(read_document(folder / SPEC)["key"])
            return _described(folder, State.RUNNING if is_held(lock) else State.STOPPED, None)
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


def _described(folder: Path, state: State, seconds: float | None) -> Found:
    spec = read_document(folder / SPEC)
    log = tuple(read_log(folder / LOG))
    try:
        return Found(str(spec["task"]), folder.parent.name, int(spec["seed"]), state, seconds, log)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(folder / SPEC, error) from error
