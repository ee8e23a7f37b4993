"""Per-row decisions: accept, review or reject; familiar or unfamiliar."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.calibrators import calibration_from
from surefoot.errors import InputError, remark
from surefoot.io import read_json
from surefoot.metrics.intervals import Proportion
from surefoot.predictions.classes import class_names_from, class_order
from surefoot.predictions.labels import short

ACCEPT, REVIEW, REJECT = "accept", "review", "reject"
ABOVE_ONE = 1e-9  # that a threshold may be: to accept nothing it is a step above the highest confidence
SAME = 1e-6  # relative difference below which two fitted temperatures are the same


@dataclass(frozen=True)
class Rule:
    """Accepted at or above `accept`, rejected below `reject`, reviewed between."""

    accept: float
    reject: float

    def decide(self, confidence: float) -> str:
        """The decision for a prediction of that confidence.

        >>> [Rule(accept=0.9, reject=0.5).decide(p) for p in (0.9, 0.89, 0.5, 0.49)]
        ['accept', 'review', 'review', 'reject']
        """
        if confidence >= self.accept:
            return ACCEPT
        return REJECT if confidence < self.reject else REVIEW


def read_thresholds_file(path: Path, class_names: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object in a file of thresholds, which are valid and for these classes."""
    document = read_json(path, "a thresholds file")
    try:
        rule_from(document, classes=len(class_names), class_names=class_names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    assert isinstance(document, dict)
    if "kind" in document and document.get("class_names") is None:  # not one that was written by hand
        remark(f"no class names in {path}: its thresholds are taken to be for {short(class_names)}")
    return document


def rule_from(document: Any, *, classes: int, class_names: tuple[str, ...] | None = None) -> Rule:
    """From plain values; null means that nothing is accepted, or that nothing is rejected."""
    if not isinstance(document, Mapping):
        raise InputError("no thresholds; needed: an object with 'accept' and 'reject'")
    if document.get("for_class") is not None:
        raise InputError(
            f"thresholds for {document['for_class']!r} alone; needed: thresholds for all classes"
        )
    if document.get("per") is not None:
        raise InputError(f"thresholds per {document['per']!r}; needed: one pair of thresholds for all rows")
    if document.get("classes", classes) != classes:
        raise InputError(f"thresholds for {document['classes']} classes, and the bundle has {classes}")
    names = class_names_from(document)
    if None not in (names, class_names):
        class_order(names, class_names, "the thresholds")
    for name in (ACCEPT, REJECT):
        if name not in document:
            raise InputError(f"no threshold {name!r}; needed: a confidence from 0 to 1, or null for none")
        value = document[name]
        number = (
            isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1 + ABOVE_ONE
        )
        if value is not None and not number:
            raise InputError(f"{name} is {value!r}; allowed: a confidence from 0 to 1, or null for none")
    accept = math.inf if document[ACCEPT] is None else float(document[ACCEPT])
    reject = -math.inf if document[REJECT] is None else float(document[REJECT])
    if reject > accept:
        raise InputError(f"reject is {reject:g}, above accept, which is {accept:g}; allowed: at most as high")
    return Rule(accept, reject)


def remark_on(thresholds: Mapping[str, Any], calibration: Mapping[str, Any]) -> str | None:
    """A warning if thresholds were chosen with another calibration than the bundle's; else None."""
    document = thresholds.get("calibration")
    if not isinstance(document, Mapping):
        return None
    try:
        fitted = [
            None if each.get("kind") == "none" else calibration_from(dict(each))
            for each in (document, calibration)
        ]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        return f"the calibration in the thresholds file cannot be read: missing or wrong {error}"
    theirs, ours = (
        [] if each is None else [number for values in each.parameters().values() for number in values]
        for each in fitted
    )
    if len(theirs) == len(ours) and np.allclose(theirs, ours, rtol=SAME, atol=0):
        return None
    names = ["none" if each is None else f"{each.kind}: {each.summary()}" for each in fitted]
    return (
        f"the thresholds were chosen under another calibration ({names[0]}) than the bundle's ({names[1]}), "
        "so their guarantee does not hold here; choose them on this method's own predictions"
    )


FAMILIAR, UNFAMILIAR = "familiar", "unfamiliar"
SHARE = 0.95  # of familiar samples to be classified as familiar
USEFUL = 2.0  # times as often as familiar samples, unfamiliar ones must be classified as unfamiliar
TESTED, VALIDATED = "familiar test", "validation"  # the samples that a limit comes from


@dataclass(frozen=True)
class Familiar:
    """The novelty above which a sample is classified as unfamiliar, and how often it is on the test sets.

    The limit is the ceil(0.95 (n + 1))-th smallest novelty of n familiar samples that the networks were not
    trained on, so that one more familiar sample lies above it with a probability of at most 0.05 (Vovk et al.
    2005); with n below 19 it is the largest, without that guarantee. In older bundles these were validation
    samples, on which the paper's protocol trains further before networks are bundled.
    """

    limit: float
    n: int  # samples that it comes from
    alarms: Proportion  # other familiar test samples that are classified as unfamiliar, by mistake
    found: Proportion | None  # unfamiliar test samples that are
    source: str = TESTED  # or VALIDATED

    @property
    def is_useful(self) -> bool:
        """Whether unfamiliar samples are found at least twice as often as familiar ones are mistaken.

        By the ends of the two 95% intervals, so that few test samples are not enough. Unknown is not useful.
        """
        return self.found is not None and self.found.low >= USEFUL * self.alarms.high

    def verdict(self, novelty: float) -> str:
        """Whether a sample of that novelty is familiar or unfamiliar."""
        return UNFAMILIAR if novelty > self.limit else FAMILIAR

    def sentences(self) -> tuple[str, ...]:
        """The definition of the verdict and how often it is right, for people."""
        meaning = (
            f"A sample is classified as unfamiliar if its novelty is above {self.limit:.4g}: {SHARE:.0%} of "
            f"{self.n:,} {self._samples} are at or below it."
        )
        other = "other familiar" if self.source == TESTED else "familiar"
        wrong = f"{_rate(self.alarms)} {other} test samples were classified as unfamiliar"
        if self.found is None:
            return meaning, f"{wrong}; there were no unfamiliar test samples."
        return meaning, f"{wrong}, and {_rate(self.found)} unfamiliar ones."

    @property
    def _samples(self) -> str:
        if self.source == TESTED:
            return "familiar samples that the networks were not trained on"
        return "familiar validation samples"

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "share": SHARE}


def fit_familiar(
    held_out: NDArray[np.float64], familiar: NDArray[np.float64], unfamiliar: NDArray[np.float64] | None
) -> Familiar:
    """The limit from the held-out novelty alone; the others only measure it."""
    n = len(held_out)
    rank = min(n, math.ceil(SHARE * (n + 1)))
    limit = float(np.sort(held_out)[rank - 1])
    rates = [
        None if novelty is None else Proportion.of(int((novelty > limit).sum()), len(novelty))
        for novelty in (familiar, unfamiliar)
    ]
    assert rates[0] is not None
    return Familiar(limit, n, rates[0], rates[1])


def familiar_from(document: Mapping[str, Any]) -> Familiar:
    """From plain values; of the rates only the counts are read."""
    limit, found = float(document["limit"]), document["found"]
    if not math.isfinite(limit):
        raise InputError(f"the limit of what is familiar is {limit}; allowed: a number")
    return Familiar(
        limit=limit,
        n=int(document["n"]),
        alarms=_rate_from(document["alarms"]),
        found=None if found is None else _rate_from(found),
        source=str(document.get("source", VALIDATED)),
    )


def _rate_from(document: Mapping[str, Any]) -> Proportion:
    k, n = int(document["k"]), int(document["n"])
    if not 0 <= k <= n:
        raise InputError(f"{k} of {n} samples were classified as unfamiliar; allowed: 0 to all of them")
    return Proportion.of(k, n)


def _rate(rate: Proportion) -> str:
    ends = f"{rate.low:.1%} to {rate.high:.1%}"
    return f"{rate.value:.1%} ({ends}) of {rate.n:,}"
