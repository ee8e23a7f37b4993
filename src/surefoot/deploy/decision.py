"""Accept, review or reject: what an application does with a confidence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.errors import InputError
from surefoot.files import read_json

ACCEPT, REVIEW, REJECT = "accept", "review", "reject"
HAIR = 1e-9  # above 1 that a threshold may be: 'above all that were seen' is a step above the highest
ALIKE = 1e-6  # two fits of a temperature that differ by less, relatively, are one


@dataclass(frozen=True)
class Rule:
    """Accepted from `accept` on, rejected below `reject`, reviewed between."""

    accept: float
    reject: float

    def decide(self, confidence: float) -> str:
        """What to do with a prediction.

        >>> [Rule(accept=0.9, reject=0.5).decide(p) for p in (0.9, 0.89, 0.5, 0.49)]
        ['accept', 'review', 'review', 'reject']
        """
        if confidence >= self.accept:
            return ACCEPT
        return REJECT if confidence < self.reject else REVIEW


def read_thresholds_file(path: Path, *, classes: int) -> dict[str, Any]:
    """The JSON object in a file of thresholds, which are sound and for so many classes."""
    document = read_json(path, "a thresholds file")
    try:
        rule_from(document, classes=classes)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    assert isinstance(document, dict)
    return document


def rule_from(document: Any, *, classes: int) -> Rule:
    """From plain values; null is never reached, so nothing is accepted, or nothing rejected."""
    if not isinstance(document, Mapping):
        raise InputError("no thresholds; needed: an object with 'accept' and 'reject'")
    if document.get("for_class") is not None:
        raise InputError(f"thresholds for {document['for_class']!r} alone; needed: ones for whole answers")
    if document.get("classes", classes) != classes:
        raise InputError(f"thresholds for {document['classes']} classes, and the bundle has {classes}")
    accept, reject = (_confidence(document, name) for name in (ACCEPT, REJECT))
    accept = math.inf if accept is None else accept
    reject = -math.inf if reject is None else reject
    if reject > accept:
        raise InputError(f"reject is {reject:g}, above accept, which is {accept:g}; allowed: at most as high")
    return Rule(accept, reject)


def remark_on(thresholds: Mapping[str, Any], calibration: Mapping[str, Any]) -> str | None:
    """What to know where thresholds were chosen under another calibration than the bundle's; else None."""
    theirs = thresholds.get("calibration")
    if not isinstance(theirs, Mapping) or _alike(_numbers(theirs), _numbers(calibration)):
        return None
    return (
        f"the thresholds were chosen under another calibration ({_named(theirs)}) than the bundle's "
        f"({_named(calibration)}), so they promise nothing here; choose them on this method's own predictions"
    )


def _numbers(calibration: Mapping[str, Any]) -> list[float]:
    """The temperatures of a calibration, in order."""
    if "members" in calibration:
        return [number for member in calibration["members"] for number in _numbers(member)]
    return [float(calibration[name]) for name in ("temperature", "t0", "t1") if name in calibration]


def _alike(ours: list[float], theirs: list[float]) -> bool:
    return len(ours) == len(theirs) and all(
        math.isclose(a, b, rel_tol=ALIKE) for a, b in zip(ours, theirs, strict=True)
    )


def _named(calibration: Mapping[str, Any]) -> str:
    numbers = ", ".join(f"{number:.4g}" for number in _numbers(calibration))
    return f"{calibration.get('kind')}: {numbers}" if numbers else str(calibration.get("kind"))


def _confidence(document: Mapping[str, Any], name: str) -> float | None:
    if name not in document:
        raise InputError(f"no threshold {name!r}; needed: a confidence from 0 to 1, or null for none")
    value = document[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 + HAIR:
        raise InputError(f"{name} is {value!r}; allowed: a confidence from 0 to 1, or null for none")
    return float(value)
