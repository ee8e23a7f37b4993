"""The checks of `surefoot monitor` over time: a file of JSON lines, one per check."""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot import __version__
from surefoot.decisions.groups import groups_document
from surefoot.errors import InputError
from surefoot.io import ClaimedError, locked, parse_json, refuse_special, replacing
from surefoot.metrics.intervals import NAN

if TYPE_CHECKING:
    from surefoot.monitoring.monitor import Check

FIRST_SHARE = 6 / math.pi**2  # of alpha, for the first check of a history: 1 / k^2, normalised
RECENT = 2**20  # bytes at the end of the file that are read: some thousand checks, however long it is


@dataclass(frozen=True)
class AlphaBudget:
    """The probability of a false alarm at this check (`level`), of that over all checks (`alpha`)."""

    alpha: float
    number: int = 1
    level: float = NAN
    first_share: float = FIRST_SHARE

    @staticmethod
    def only(alpha: float) -> "AlphaBudget":
        """For a single check, which may spend everything."""
        return AlphaBudget(alpha, 1, alpha)

    @staticmethod
    def of_check(number: int, alpha: float, first_share: float = FIRST_SHARE) -> "AlphaBudget":
        """A share of alpha for the first check; the others divide the rest in proportion to 1 / number^2.

        Over any number of checks, the levels add up to at most alpha. With the default share, that of check
        k is alpha * 6 / (pi * k)^2.

        >>> round(sum(AlphaBudget.of_check(k, 0.05).level for k in range(1, 100_000)), 5)
        0.05
        >>> round(sum(AlphaBudget.of_check(k, 0.05, 0.9).level for k in range(1, 100_000)), 5)
        0.05
        """
        share = first_share
        if number > 1:
            share = (1 - first_share) / (1 - FIRST_SHARE) * FIRST_SHARE / number**2
        return AlphaBudget(alpha, number, alpha * share, first_share)


@dataclass(frozen=True)
class History:
    """The most recent checks, oldest first, how many there are in all, and the file they are in."""

    path: Path
    count: int
    checks: tuple[dict[str, Any], ...]
    new: str = ""  # what `write` appends to the file
    first_share: float = FIRST_SHARE  # of alpha, for the first check

    def added(self, check: "Check", *, reference: str, source: str) -> "History":
        """With this check at its end; nothing is written yet."""
        entry = {
            "look": check.budget.number,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "surefoot": __version__,
            "source": source,
            "reference": reference,
            "n": check.n_current,
            **groups_document(None if check.groups is None else check.groups[1], check.repeated),
            "alpha": check.budget.alpha,
            "level": check.budget.level,
            "first_share": check.budget.first_share,
            "p": {each.name: each.p for each in check.findings},
            "adjusted": {each.name: each.adjusted for each in check.findings},
            "accuracy": asdict(check.accuracy),
            "drop": asdict(check.drop),
            "alarm": check.alarm,
        }
        line = json.dumps(entry, allow_nan=False) + "\n"
        return replace(self, count=self.count + 1, checks=(*self.checks, entry), new=self.new + line)

    def write(self) -> None:
        """Write the file, which spends the budget of its last check."""
        with replacing(self.path) as temporary:
            if self.path.exists():
                shutil.copyfile(self.path, temporary)
            with temporary.open("a", encoding="utf-8") as file:
                file.write(self.new)


LOCK_NAME = 50  # characters of the history's name in the name of its lock, which has 255 bytes at most


@contextmanager
def opened(
    path: Path, *, alpha: float, reference: str, first_share: float | None = None
) -> Iterator[History]:
    """The history, locked until the check is written: two at once would spend the same budget twice.

    Without a share of alpha for the first check, that of the history.
    """
    if not path.name:
        raise InputError(f"the history {path} is not a file; allowed: the path of a file, new or existing")
    try:
        lock = path.with_name(f".{path.name[:LOCK_NAME]}.lock")
        with locked(lock):
            try:
                yield _read(path, alpha, reference, first_share)
            finally:
                lock.unlink(missing_ok=True)
    except ClaimedError as error:
        raise InputError(f"another check with the history {path} is running; try again") from error


def _read(path: Path, alpha: float, reference: str, first_share: float | None) -> History:
    lines, is_whole, is_ended = _recent_lines(path) if path.exists() else ([], True, True)
    first = 1 if is_whole else _number_of(path, lines)
    checks = tuple(_check_from(path, number, line) for number, line in enumerate(lines, start=first))
    for check in checks:
        if check["alpha"] != alpha:
            raise InputError(
                f"{path} was started with an alpha of {check['alpha']:g}, got {alpha:g}; allowed: the same"
            )
        if check["reference"] != reference:
            raise InputError(
                f"{path} has checks against another reference (or with another calibration); allowed: a new "
                "history for a new reference"
            )
        if first_share not in (None, check["first_share"]):
            raise InputError(
                f"{path} was started with a first share of {check['first_share']:.3g}, got {first_share:g}; "
                "allowed: the same, or none"
            )
    share = FIRST_SHARE if first_share is None else first_share
    return History(
        path,
        first + len(checks) - 1,
        checks,
        "" if is_ended else "\n",
        checks[-1]["first_share"] if checks else share,
    )


def _recent_lines(path: Path) -> tuple[list[str], bool, bool]:
    """The lines at the end of the file, whether they are all of it, and whether the last one is ended."""
    try:
        size = refuse_special(path)
        with path.open("rb") as file:
            file.seek(max(0, size - RECENT))
            data = file.read(RECENT)
        text = (data if size <= RECENT else data.partition(b"\n")[2]).decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: {error}") from error
    is_ended = text.endswith("\n") or not text
    return text.removesuffix("\n").split("\n") if text else [], size <= RECENT, is_ended


def _number_of(path: Path, lines: Sequence[str]) -> int:
    """The number of the first of the recent checks, as it says itself."""
    try:
        number = int(parse_json(lines[0])["look"])
        if number < 1:
            raise ValueError(f"look {number}")
        return number
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _not_a_history(path, f"the last {RECENT:,} bytes are wrong ({error})") from error


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
            "first_share": float(entry.get("first_share", FIRST_SHARE)),
            "alarm": bool(entry["alarm"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _not_a_history(path, f"line {number} is wrong ({error})") from error


def _not_a_history(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} is not a history of checks: {what}; allowed: a file that 'surefoot monitor --history' wrote"
    )
