"""The checks of `surefoot monitor` over time: a file of JSON lines, one per check."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from surefoot import __version__
from surefoot.deploy.monitor import Check
from surefoot.errors import InputError
from surefoot.io import ClaimedError, locked, parse_json, read_text, replacing


@dataclass(frozen=True)
class History:
    """The checks so far, oldest first, and the file they are in."""

    path: Path
    text: str
    checks: tuple[dict[str, Any], ...]

    def added(self, check: Check, *, reference: str, source: str) -> "History":
        """With this check at its end; nothing is written yet."""
        entry = {
            "look": check.budget.number,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "surefoot": __version__,
            "source": source,
            "reference": reference,
            "n": check.n_current,
            "alpha": check.budget.alpha,
            "level": check.budget.level,
            "p": {each.name: each.p for each in check.findings},
            "adjusted": {each.name: each.adjusted for each in check.findings},
            "accuracy": asdict(check.accuracy),
            "drop": asdict(check.drop),
            "alarm": check.alarm,
        }
        text = self.text + json.dumps(entry, allow_nan=False) + "\n"
        return History(self.path, text, (*self.checks, entry))

    def write(self) -> None:
        """Write the file, which spends the budget of its last check."""
        with replacing(self.path) as temporary:
            temporary.write_text(self.text, encoding="utf-8")


LOCK_NAME = 50  # characters of the history's name in the name of its lock, which has 255 bytes at most


@contextmanager
def opened(path: Path, *, alpha: float, reference: str) -> Iterator[History]:
    """The history, locked until the check is written: two at once would spend the same budget twice."""
    if not path.name:
        raise InputError(f"the history {path} is not a file; allowed: the path of a file, new or existing")
    try:
        lock = path.with_name(f".{path.name[:LOCK_NAME]}.lock")
        with locked(lock):
            try:
                yield _read(path, alpha=alpha, reference=reference)
            finally:
                lock.unlink(missing_ok=True)
    except ClaimedError as error:
        raise InputError(f"another check with the history {path} is running; try again") from error


def _read(path: Path, *, alpha: float, reference: str) -> History:
    text = read_text(path) if path.exists() else ""
    text += "" if text.endswith("\n") or not text else "\n"
    lines = enumerate(text.split("\n")[:-1], start=1)
    checks = tuple(_check_from(path, number, line) for number, line in lines)
    for check in checks:
        if check["alpha"] != alpha:
            raise InputError(
                f"{path} was started with --alpha {check['alpha']:g}, got {alpha:g}; allowed: the same"
            )
        if check["reference"] != reference:
            raise InputError(
                f"{path} has checks against another reference (or with another calibration); allowed: a new "
                "history for a new reference"
            )
    return History(path, text, checks)


def _check_from(path: Path, number: int, line: str) -> dict[str, Any]:
    """The keys of a check that are used again; anything else on its line stays in the file."""
    try:
        entry = parse_json(line)
        if entry["look"] != number:
            raise ValueError(f"look {entry['look']!r}")
        return {
            "look": number,
            "at": str(entry["at"]),
            "n": int(entry["n"]),
            "alpha": float(entry["alpha"]),
            "reference": str(entry["reference"]),
            "accuracy": {name: float(entry["accuracy"][name]) for name in ("value", "low", "high")},
            "adjusted": {str(name): float(p) for name, p in entry.get("adjusted", {}).items()},
            "level": float(entry["level"]),
            "alarm": bool(entry["alarm"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} is not a history of checks: line {number} is wrong ({error}); allowed: a file that "
            "'surefoot monitor --history' wrote"
        ) from error
