"""Thresholds as JSON: written, and read again."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from surefoot import __version__
from surefoot.calibrators import calibration_document, calibration_from
from surefoot.decisions.groups import groups_document, plain
from surefoot.decisions.learn_then_test import CANDIDATES, FEW_PER_GROUP, STEPS
from surefoot.decisions.thresholds import Candidate, Guarantee, Part, Thresholds, Zone
from surefoot.errors import InputError
from surefoot.io import read_json, replacing
from surefoot.metrics.intervals import NAN, Proportion
from surefoot.predictions.arguments import checked
from surefoot.predictions.classes import class_names_from

FORMAT = 1
KIND = "thresholds"
DEFINITIONS = {
    "confidence": "the highest softmax probability, members averaged, after the calibration if there is one",
    "accept": "accept the prediction where confidence >= accept",
    "reject": "discard the prediction where confidence < reject; in between a person reviews it",
    "guarantee": "on data like those it was chosen on, and on no others: with probability 'level' over the "
    "draw of the n rows, the error among the accepted is at most target_error; and with the same probability "
    "the error among the rejected, where any are, is at least reject_error",
    "method": f"Learn then test, exact binomial tests: a fixed sequence of {STEPS} cuts from a start that a "
    f"tenth of the rows decides, and {CANDIDATES} candidates at fixed ranks (Bonferroni)",
    "parts": "if present: the thresholds of each predicted class or group, each with a guarantee of its own; "
    "accept null: nothing is accepted",
    "interval": "low and high: exact 95% (Clopper-Pearson)",
}
OF_GROUPS = {
    "groups": "of the n rows; the guarantee is for a random row of a new group (1: of this one)",
    "method": "Learn then test, with the cuts above; tests of groups by betting (Waudby-Smith & Ramdas), "
    f"or of a random row of each, where they have less than {FEW_PER_GROUP:g} rows on average",
    "interval": "low and high: 95%, for independent rows of the same variance (Korn & Graubard 1998)",
}


@checked
def save_thresholds(
    thresholds: Thresholds,
    path: str | Path,
    *,
    sources: Mapping[str, str] | None = None,
    elsewhere: Mapping[str, Mapping[str, Zone]] | None = None,
) -> None:
    """Write the thresholds; `elsewhere` has the zones of other data by name, each with its source.

    >>> save_thresholds(thresholds, "thresholds.json")  # doctest: +SKIP
    """
    measured = thresholds.measured if elsewhere is None else elsewhere
    document = thresholds_document(thresholds, sources=sources or {}, elsewhere=measured)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def thresholds_document(
    thresholds: Thresholds, *, sources: Mapping[str, str], elsewhere: Mapping[str, Mapping[str, Zone]]
) -> dict[str, Any]:
    """The thresholds as plain data."""
    calibration, documents = thresholds.calibration, {}
    for name, measured in {"val": thresholds.zones, **elsewhere}.items():
        zones_of = {
            zone: {"share": plain(values.share), "error": plain(values.error)}
            for zone, values in measured.items()
        }
        documents[name] = {
            "source": sources.get(name),
            "n": measured["accept"].share.n,
            "coverage": zones_of["accept"]["share"],
            "error": zones_of["accept"]["error"],
            "zones": zones_of,
        }
    return {
        "surefoot": __version__,
        "format": FORMAT,
        "kind": KIND,
        "accept": _finite(thresholds.accept),
        "reject": thresholds.reject,
        **_parts_document(thresholds),
        "target_error": thresholds.guarantee.target_error,
        "reject_error": thresholds.guarantee.reject_error,
        "level": thresholds.guarantee.level,
        "error_at_most": thresholds.bound,
        "n": thresholds.n,
        **groups_document(thresholds.groups, thresholds.repeated),
        "classes": thresholds.classes,
        "class_names": thresholds.class_names,
        "for_class": thresholds.for_class,
        "calibration": None if calibration is None else calibration_document(calibration),
        "measured": documents,
        "candidates": [asdict(each) for each in thresholds.candidates],
        "definitions": DEFINITIONS if thresholds.groups is None else DEFINITIONS | OF_GROUPS,
    }


@checked
def load_thresholds(path: str | Path) -> Thresholds:
    """Read what `save_thresholds` wrote; anything else is refused.

    >>> accepted = load_thresholds("thresholds.json").accepted(test)  # doctest: +SKIP
    """
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
    per, parts = document.get("per"), document.get("parts", {})
    accept, reject = _pair(document, may_be_null=per is not None)
    calibration, for_class = document["calibration"], document["for_class"]
    return Thresholds(
        accept=accept,
        reject=reject,
        guarantee=Guarantee(*(float(document[name]) for name in ("target_error", "reject_error", "level"))),
        bound=float(document["error_at_most"]),
        n=int(document["n"]),
        classes=int(document["classes"]),
        zones={
            name: Zone(_proportion(zone["share"]), _proportion(zone["error"]))
            for name, zone in document["measured"]["val"]["zones"].items()
        },
        candidates=tuple(Candidate(**each) for each in document["candidates"]),
        for_class=None if for_class is None else str(for_class),
        calibration=None if calibration is None else calibration_from(calibration),
        class_names=class_names_from(document),
        per=None if per is None else str(per),
        groups=None if document.get("groups") is None else int(document["groups"]),
        repeated=str(document.get("repeated", "")),
        parts={
            str(name): Part(*_pair(each, may_be_null=True), int(each["n"])) for name, each in parts.items()
        },
    )


def _pair(document: Mapping[str, Any], *, may_be_null: bool) -> tuple[float, float]:
    """`accept`, infinite for null, and `reject`."""
    given = document["accept"]
    accept = math.inf if given is None and may_be_null else float(given)
    reject = float(document["reject"])
    if not 0 <= reject <= accept or (given is not None and accept == math.inf):
        raise ValueError(f"accept is {accept} and reject is {reject}; allowed: 0 <= reject <= accept")
    return accept, reject


def _parts_document(thresholds: Thresholds) -> dict[str, Any]:
    if thresholds.per is None:
        return {}
    parts = {name: asdict(part) | {"accept": _finite(part.accept)} for name, part in thresholds.parts.items()}
    return {"per": thresholds.per, "parts": parts}


def _finite(value: float) -> float | None:
    return None if value == math.inf else value


def _proportion(document: dict[str, Any]) -> Proportion:
    ends = (NAN if document[name] is None else float(document[name]) for name in ("value", "low", "high"))
    return Proportion(int(document["k"]), int(document["n"]), *ends)
