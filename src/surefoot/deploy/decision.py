"""Per-row decisions: accept, review or reject; familiar or unfamiliar."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.intervals import Proportion
from surefoot.io import read_json

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


FAMILIAR, UNFAMILIAR = "familiar", "unfamiliar"
SHARE = 0.95  # of familiar samples that are to be called familiar


@dataclass(frozen=True)
class Familiar:
    """The novelty from above which a sample is called unfamiliar, and how often that is so on the test sets.

    The limit is the ceil(0.95 (n + 1))-th smallest novelty of n validation samples, so that one more familiar
    sample lies above it with a probability of at most 0.05 (Vovk et al. 2005); with n below 19 it is the
    largest, without that promise. Under the paper's protocol the networks that saw the validation samples
    were trained further on them before they were bundled: `alarms` says what became of the promise.
    """

    limit: float
    n: int  # validation samples
    alarms: Proportion  # familiar test samples that are called unfamiliar, by mistake
    found: Proportion | None  # unfamiliar test samples that are

    def verdict(self, novelty: float) -> str:
        """What a sample of that novelty is called."""
        return UNFAMILIAR if novelty > self.limit else FAMILIAR

    def sentences(self) -> tuple[str, ...]:
        """What the verdict is worth, for people."""
        meaning = (
            f"A sample is called unfamiliar if its novelty is above {self.limit:.4g}: that of "
            f"{SHARE:.0%} of {self.n:,} familiar validation samples lies below."
        )
        wrong = f"{_rate(self.alarms)} familiar test samples were called unfamiliar by mistake"
        if self.found is None:
            return meaning, f"{wrong}; there were no unfamiliar ones to try."
        return meaning, f"{wrong}, {_rate(self.found)} unfamiliar ones rightly."

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "share": SHARE}


def fit_familiar(
    validation: NDArray[np.float64], familiar: NDArray[np.float64], unfamiliar: NDArray[np.float64] | None
) -> Familiar:
    """The limit from validation novelty alone; the test sets' only say how good it is."""
    n = len(validation)
    rank = min(n, math.ceil(SHARE * (n + 1)))
    limit = float(np.sort(validation)[rank - 1])
    rates = [
        None if novelty is None else Proportion.of(int((novelty > limit).sum()), len(novelty))
        for novelty in (familiar, unfamiliar)
    ]
    assert rates[0] is not None
    return Familiar(limit, n, rates[0], rates[1])


def familiar_from(document: Mapping[str, Any]) -> Familiar:
    """From plain values; of the rates the counts are read, and the rest follows from them."""
    limit, found = float(document["limit"]), document["found"]
    if not math.isfinite(limit):
        raise InputError(f"the limit of what is familiar is {limit}; allowed: a number")
    return Familiar(
        limit=limit,
        n=int(document["n"]),
        alarms=_rate_from(document["alarms"]),
        found=None if found is None else _rate_from(found),
    )


def _rate_from(document: Mapping[str, Any]) -> Proportion:
    k, n = int(document["k"]), int(document["n"])
    if not 0 <= k <= n:
        raise InputError(f"{k} of {n} samples were called unfamiliar; allowed: 0 to all of them")
    return Proportion.of(k, n)


def _rate(rate: Proportion) -> str:
    ends = f"{rate.low:.1%} to {rate.high:.1%}"
    return f"{rate.value:.1%} ({ends}) of {rate.n:,}"
