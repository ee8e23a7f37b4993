"""Thresholds as a JSON file that an application can read."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from surefoot.calibrators import calibration_document
from surefoot.calibrators.files import calibration_from
from surefoot.deploy.thresholds import CANDIDATES, Candidate, Promise, Thresholds, Zone
from surefoot.errors import InputError
from surefoot.files import read_json, replacing
from surefoot.statistics import NAN, Proportion
from surefoot.version import VERSION

FORMAT = 1
KIND = "thresholds"
DEFINITIONS = {
    "confidence": "the highest softmax probability, members averaged, after the calibration if there is one",
    "accept": "take the answer where confidence >= accept",
    "reject": "throw the answer away where confidence < reject; between the two a person looks",
    "guarantee": "on data like those it was chosen on, and on no others: with probability 'level' over the "
    "draw of the n rows, the error among the accepted is at most target_error; and with the same probability "
    "the error among the rejected, where any are, is at least reject_error",
    "method": f"exact binomial tests of {CANDIDATES} candidates at fixed ranks of confidence, Bonferroni",
    "interval": "low and high: exact 95% (Clopper-Pearson)",
}


def save_thresholds(
    thresholds: Thresholds,
    path: str | Path,
    *,
    sources: Mapping[str, str],
    elsewhere: Mapping[str, Mapping[str, Zone]],
) -> None:
    """Write the thresholds; `elsewhere` is what they do to other data, by name, each with its source."""
    document = thresholds_document(thresholds, sources=sources, elsewhere=elsewhere)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def thresholds_document(
    thresholds: Thresholds, *, sources: Mapping[str, str], elsewhere: Mapping[str, Mapping[str, Zone]]
) -> dict[str, Any]:
    """The thresholds as plain data."""
    calibration = thresholds.calibration
    return {
        "surefoot": VERSION,
        "format": FORMAT,
        "kind": KIND,
        "accept": thresholds.accept,
        "reject": thresholds.reject,
        "target_error": thresholds.promise.target_error,
        "reject_error": thresholds.promise.reject_error,
        "level": thresholds.promise.level,
        "error_at_most": thresholds.bound,
        "n": thresholds.n,
        "classes": thresholds.classes,
        "for_class": thresholds.for_class,
        "calibration": None if calibration is None else calibration_document(calibration),
        "measured": {
            name: {"source": sources.get(name), **_zones_document(found)}
            for name, found in {"val": thresholds.zones, **elsewhere}.items()
        },
        "candidates": [asdict(each) for each in thresholds.candidates],
        "definitions": DEFINITIONS,
    }


def load_thresholds(path: str | Path) -> Thresholds:
    """Read what `save_thresholds` wrote; anything else is refused."""
    document = read_json(path, "a thresholds file")
    try:
        return _from_document(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a thresholds file: missing or wrong {error}") from error
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path} is not a thresholds file: {error}") from error


def _from_document(document: dict[str, Any]) -> Thresholds:
    for name, known in (("kind", KIND), ("format", FORMAT)):
        if document.get(name) != known:
            raise ValueError(f"{name} is {document.get(name)!r}; allowed: {known!r}")
    accept, reject = float(document["accept"]), float(document["reject"])
    if not 0 <= reject <= accept < math.inf:
        raise ValueError(f"accept is {accept} and reject is {reject}; allowed: 0 <= reject <= accept")
    calibration, for_class = document["calibration"], document["for_class"]
    return Thresholds(
        accept=accept,
        reject=reject,
        promise=Promise(*(float(document[name]) for name in ("target_error", "reject_error", "level"))),
        bound=float(document["error_at_most"]),
        n=int(document["n"]),
        classes=int(document["classes"]),
        zones={name: _zone(found) for name, found in document["measured"]["val"]["zones"].items()},
        candidates=tuple(Candidate(**each) for each in document["candidates"]),
        for_class=None if for_class is None else str(for_class),
        calibration=None if calibration is None else calibration_from(calibration),
    )


def _zones_document(zones: Mapping[str, Zone]) -> dict[str, Any]:
    shown = {
        name: {"share": _proportion_document(zone.share), "error": _proportion_document(zone.error)}
        for name, zone in zones.items()
    }
    return {"n": zones["accept"].share.n, "coverage": shown["accept"]["share"],
            "error": shown["accept"]["error"], "zones": shown}  # fmt: skip


def _proportion_document(proportion: Proportion) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(proportion).items()
    }


def _zone(document: dict[str, Any]) -> Zone:
    return Zone(*(_proportion(document[name]) for name in ("share", "error")))


def _proportion(document: dict[str, Any]) -> Proportion:
    ends = (NAN if document[name] is None else float(document[name]) for name in ("value", "low", "high"))
    return Proportion(int(document["k"]), int(document["n"]), *ends)
