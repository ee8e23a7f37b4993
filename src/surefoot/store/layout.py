"""The names of files and folders in the store."""

import re
from pathlib import Path

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
