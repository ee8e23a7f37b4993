"""A fitted calibration as a JSON file that people and programs can read. Never pickle."""

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from surefoot import __version__
from surefoot.calibrators.novelty import NoveltyScaling
from surefoot.calibrators.temperature import BudgetTemperature, Evidence, MemberTemperatures, Temperature
from surefoot.errors import InputError
from surefoot.intervals import LEVEL
from surefoot.io import read_json, replacing
from surefoot.predictions.labels import LabelKind

Calibration = Temperature | MemberTemperatures | BudgetTemperature | NoveltyScaling

FORMAT = 1
DEFINITIONS = {
    "temperature": "calibrated logits = logits / temperature; several members are averaged first",
    "member-temperatures": "each member's logits are divided by its temperature, then probabilities averaged",
    "declined": "a fitted temperature below 1 that was not used; the interval is then its own",
    "budget": "the largest temperature whose nll is at most (1 + budget) times the least",
    "novelty": "calibrated logits = logits / (t0 + t1 * novelty), novelty in [0, 1]; members averaged first",
    "interval": "95%, from the sandwich variance of log T, clustered by group where groups were given",
    "nll": "mean of -log p_true, unclipped",
    "ece": "10 equal-mass bins by rank of confidence; tied rows count with their tie's mean accuracy",
}


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write the calibration as JSON."""
    text = json.dumps(calibration_document(calibration), indent=2, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def calibration_document(calibration: Calibration) -> dict[str, Any]:
    """The calibration as plain data."""
    return {"surefoot": __version__, "format": FORMAT, **_as_dict(calibration), "definitions": DEFINITIONS}


def load_calibration(path: str | Path) -> Calibration:
    """Read what `save_calibration` wrote; anything else is refused."""
    document = read_json(path, "a calibration file")
    try:
        return calibration_from(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a calibration file: missing or wrong {error}") from error
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path} is not a calibration file: {error}") from error


def _as_dict(calibration: Calibration) -> dict[str, Any]:
    evidence = None if calibration.evidence is None else _without_nan(asdict(calibration.evidence))
    if isinstance(calibration, MemberTemperatures):
        members = [_as_dict(member) for member in calibration.members]
        return {"kind": calibration.kind, "members": members, "evidence": evidence}
    if isinstance(calibration, BudgetTemperature | NoveltyScaling):
        values = {"kind": calibration.kind} | {
            field.name: getattr(calibration, field.name) for field in fields(calibration)
        }
        if isinstance(calibration, BudgetTemperature):
            values["best"] = _as_dict(calibration.best)
        return values | {"evidence": evidence, "remarks": calibration.remarks()}
    high = calibration.high if math.isfinite(calibration.high) else None
    return {
        "kind": calibration.kind,
        "temperature": calibration.temperature,
        "interval": {"low": calibration.low, "high": high, "level": LEVEL},
        "n": calibration.n,
        "label_kind": str(calibration.label_kind),
        "classes": calibration.classes,
        "at_bound": calibration.at_bound,
        "separable": calibration.separable,
        "flat": calibration.flat,
        "declined": calibration.declined,
        "evidence": evidence,
        "remarks": calibration.remarks(),
    }


def _without_nan(values: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def calibration_from(document: dict[str, Any]) -> Calibration:
    """From what `calibration_document` made; ValueError, KeyError, TypeError or AttributeError otherwise."""
    if document.get("format", FORMAT) != FORMAT:
        raise ValueError(f"format {document['format']!r} is not one this version reads; allowed: {FORMAT}")
    kind = document.get("kind")
    if kind == MemberTemperatures.kind:
        members = tuple(_temperature(member) for member in document["members"])
        if not members:
            raise ValueError("members are empty; allowed: one or more")
        return MemberTemperatures(members, _evidence(document))
    if kind == Temperature.kind:
        return _temperature(document)
    if kind == BudgetTemperature.kind:
        return _budget(document)
    if kind == NoveltyScaling.kind:
        return _novelty(document)
    kinds = ", ".join(
        each.kind for each in (Temperature, MemberTemperatures, BudgetTemperature, NoveltyScaling)
    )
    raise ValueError(f"kind is {kind!r}; allowed: {kinds}")


def _temperature(document: dict[str, Any]) -> Temperature:
    value = _positive(document, "temperature")
    declined = None if document.get("declined") is None else _positive(document, "declined")
    if declined is not None and (value != 1 or declined >= 1):
        raise ValueError(f"temperature is {value} and {declined} was declined; allowed: 1, and a T below 1")
    high = document["interval"]["high"]
    return Temperature(
        temperature=value,
        declined=declined,
        low=float(document["interval"]["low"]),
        high=math.inf if high is None else float(high),
        n=int(document["n"]),
        label_kind=LabelKind(document["label_kind"]),
        classes=int(document["classes"]),
        at_bound=bool(document["at_bound"]),
        separable=bool(document["separable"]),
        flat=bool(document["flat"]),
        evidence=_evidence(document),
    )


def _budget(document: dict[str, Any]) -> BudgetTemperature:
    return BudgetTemperature(
        temperature=_positive(document, "temperature"),
        best=_temperature(document["best"]),
        budget=_from_zero(document, "budget"),
        nll_best=_from_zero(document, "nll_best"),
        nll_used=_from_zero(document, "nll_used"),
        at_bound=bool(document["at_bound"]),
        evidence=_evidence(document),
    )


def _novelty(document: dict[str, Any]) -> NoveltyScaling:
    return NoveltyScaling(
        t0=_positive(document, "t0"),
        t1=_from_zero(document, "t1"),
        n=int(document["n"]),
        label_kind=LabelKind(document["label_kind"]),
        classes=int(document["classes"]),
        at_bound=bool(document["at_bound"]),
        separable=bool(document["separable"]),
        flat=bool(document["flat"]),
        evidence=_evidence(document),
    )


def _positive(document: dict[str, Any], name: str) -> float:
    value = float(document[name])
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}; allowed: a positive number")
    return value


def _from_zero(document: dict[str, Any], name: str) -> float:
    value = float(document[name])
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}; allowed: a number from 0")
    return value


def _evidence(document: dict[str, Any]) -> Evidence | None:
    found = document.get("evidence")
    if found is None:
        return None
    names = ("nll_before", "nll_after", "ece_before", "ece_after")
    return Evidence(*(math.nan if found[name] is None else float(found[name]) for name in names))
