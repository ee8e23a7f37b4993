"""What was ordered: a small JSON file per network, so that one never begun is known to be missing."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.files import make_folder, replacing
from surefoot.recipes import Spec, digest_of
from surefoot.store.found import Found, State
from surefoot.store.layout import place


@dataclass(frozen=True)
class Wanted:
    """A network that was ordered, and where it will lie among the networks."""

    file: Path
    task: str
    seed: int
    place: Path

    def as_missing(self) -> Found:
        """How it is shown while nothing of it is there."""
        return Found(self.task, self.place.parent.name, self.seed, State.MISSING, None, ())


def write_wanted(spec: Spec, folder: Path) -> None:
    """Keep that a network was ordered; one kept before is left as it is."""
    path = folder / f"{spec.key}.json"
    if _read(path) is None:
        make_folder(folder)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(spec.as_dict(), indent=2), encoding="utf-8")


def read_wanted(folder: Path) -> list[Wanted]:
    """Everything ordered; a damaged file is passed over."""
    return [wanted for path in sorted(folder.glob("*.json")) if (wanted := _read(path)) is not None]


def _read(path: Path) -> Wanted | None:
    try:
        return _from_document(path, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _from_document(path: Path, document: Any) -> Wanted | None:
    """None unless the file is of the network that its name says: the key is the hash of the rest."""
    task, identity, recipe, seed = (document[name] for name in ("task", "task_identity", "recipe", "seed"))
    key = digest_of({"task": identity, "recipe": recipe, "seed": seed})
    if not isinstance(task, str) or key != path.stem:
        return None
    return Wanted(path, task, seed, place(task, recipe["network"], digest_of(recipe), seed, key))
