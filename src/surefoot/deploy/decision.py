"""Accept, review or reject: what an application does with a confidence."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.errors import InputError

ACCEPT, REVIEW, REJECT = "accept", "review", "reject"


@dataclass(frozen=True)
class Thresholds:
    """Accepted from `accept` on, rejected below `reject`, reviewed between."""

    accept: float
    reject: float

    def decide(self, confidence: float) -> str:
        """What to do with a prediction.

        >>> [Thresholds(accept=0.9, reject=0.5).decide(p) for p in (0.9, 0.89, 0.5, 0.49)]
        ['accept', 'review', 'review', 'reject']
        """
        if confidence >= self.accept:
            return ACCEPT
        return REJECT if confidence < self.reject else REVIEW


def read_thresholds_file(path: Path) -> dict[str, Any]:
    """The JSON object in a file of thresholds, whose two thresholds are sound."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        thresholds_from(document)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    assert isinstance(document, dict)
    return document


def thresholds_from(document: Any) -> Thresholds:
    """From plain values; null is never reached, so nothing is accepted, or nothing rejected."""
    if not isinstance(document, Mapping):
        raise InputError("no thresholds; needed: an object with 'accept' and 'reject'")
    accept, reject = (_confidence(document, name) for name in (ACCEPT, REJECT))
    accept = math.inf if accept is None else accept
    reject = -math.inf if reject is None else reject
    if reject > accept:
        raise InputError(f"reject is {reject:g}, above accept, which is {accept:g}; allowed: at most as high")
    return Thresholds(accept, reject)


def _confidence(document: Mapping[str, Any], name: str) -> float | None:
    if name not in document:
        raise InputError(f"no threshold {name!r}; needed: a confidence from 0 to 1, or null for none")
    value = document[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} is {value!r}; allowed: a confidence from 0 to 1, or null for none")
    return float(value)
