"""The looks that were taken, one JSON line each: what they may still spend depends on how many there were."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from surefoot.deploy.monitor import Look
from surefoot.errors import InputError
from surefoot.files import replacing
from surefoot.store.locks import ClaimedError, held
from surefoot.version import VERSION


@dataclass(frozen=True)
class History:
    """The looks so far, oldest first, and the file they are in."""

    path: Path
    text: str
    looks: tuple[dict[str, Any], ...]

    def added(self, look: Look, *, reference: str, source: str) -> "History":
        """Write the file with this look at its end."""
        entry = _entry(look, reference=reference, source=source)
        text = self.text + json.dumps(entry, allow_nan=False) + "\n"
        with replacing(self.path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        return History(self.path, text, (*self.looks, entry))


@contextmanager
def opened(path: Path, *, alpha: float, reference: str) -> Iterator[History]:
    """The history, ours alone until the look is written: two at once would spend the same share twice."""
    if not path.name:
        raise InputError(f"the history {path} is no file; allowed: the path of one, there or not")
    try:
        with held(path.with_name(f".{path.name}.lock")):
            yield _read(path, alpha=alpha, reference=reference)
    except ClaimedError as error:
        raise InputError(f"another look with the history {path} is being taken; try again") from error


def _read(path: Path, *, alpha: float, reference: str) -> History:
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    text += "" if text.endswith("\n") or not text else "\n"
    looks = tuple(_look(path, number, line) for number, line in enumerate(text.splitlines(), start=1))
    for look in looks:
        if look["alpha"] != alpha:
            raise InputError(
                f"{path} was begun with --alpha {look['alpha']:g}, got {alpha:g}; allowed: the same"
            )
        if look["reference"] != reference:
            raise InputError(
                f"{path} holds looks at another reference (or under another calibration); allowed: a new "
                "history for a new reference"
            )
    return History(path, text, looks)


def _look(path: Path, number: int, line: str) -> dict[str, Any]:
    """What is read of a look again; whatever else its line holds stays in the file."""
    try:
        found = json.loads(line)
        if found["look"] != number:
            raise ValueError(f"look {found['look']!r}")
        return {
            "look": number,
            "at": str(found["at"]),
            "n": int(found["n"]),
            "alpha": float(found["alpha"]),
            "reference": str(found["reference"]),
            "accuracy": {name: float(found["accuracy"][name]) for name in ("value", "low", "high")},
            "alarm": bool(found["alarm"]),
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} is not a history of looks: line {number} is wrong ({error}); allowed: what "
            "'surefoot monitor --history' wrote"
        ) from error


def _entry(look: Look, *, reference: str, source: str) -> dict[str, Any]:
    return {
        "look": look.share.number,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "surefoot": VERSION,
        "source": source,
        "reference": reference,
        "n": look.n_current,
        "alpha": look.share.alpha,
        "level": look.share.level,
        "p": {each.name: each.p for each in look.findings},
        "accuracy": asdict(look.accuracy),
        "drop": asdict(look.drop),
        "alarm": look.alarm,
    }
