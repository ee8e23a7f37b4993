"""Confidence thresholds: accept, review, reject; with a guarantee on familiar data."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from surefoot import __version__
from surefoot.arguments import checked
from surefoot.calibrators import Calibration, calibration_document, calibration_from
from surefoot.deploy.groups import (
    PREDICTED_CLASS,
    groups_document,
    groups_of_decisions,
    number_of_groups,
    of_groups,
    parts_of,
    proportion_of,
    some_of,
    within_one_group,
    within_parts,
)
from surefoot.deploy.learn_then_test import (
    CANDIDATES,
    FEW_PER_GROUP,
    STEPS,
    Bools,
    ErrorTest,
    candidate_bounds,
    valid_cuts,
)
from surefoot.errors import InputError
from surefoot.intervals import NAN, Proportion
from surefoot.io import read_json, replacing
from surefoot.predictions.classes import class_names_from, class_names_of, unnamed, with_classes
from surefoot.predictions.labels import LabelKind, short
from surefoot.predictions.logits import averaged_columns, map_rows
from surefoot.predictions.outcomes import DECIMALS, Array
from surefoot.predictions.predictions import Predictions
from surefoot.results import Result
from surefoot.text import rounded_up

TARGET_ERROR = 0.01
REJECT_ERROR = 0.5
LEVEL = 0.95
STEP = 10.0**-DECIMALS  # confidences have so many decimals: 'above t' is 'at or above t + STEP'


def confidences(predictions: Predictions) -> Array:
    """The highest probability of each row; for many labels the mean over classes of max(p, 1 - p).

    >>> confidences(Predictions.from_probs([[0.9, 0.1]], labels=[1]))
    array([0.9])
    """
    confidence = np.empty(predictions.n)

    def write(part: slice) -> None:
        averaged = averaged_columns(predictions.logits[:, part], predictions.kind)
        if predictions.kind is LabelKind.MANY_LABELS:
            confidence[part] = (1 / (1 + np.exp(-np.abs(averaged)))).mean(axis=0)
        else:
            averaged -= averaged.max(axis=0)
            confidence[part] = 1 / np.exp(averaged, out=averaged).sum(axis=0)

    map_rows(predictions.n, predictions.logits, write)
    return confidence.round(DECIMALS)


@dataclass(frozen=True)
class Guarantee:
    """The guarantee that thresholds are chosen for."""

    target_error: float = TARGET_ERROR
    reject_error: float = REJECT_ERROR
    level: float = LEVEL

    def __post_init__(self) -> None:
        for name in ("target_error", "reject_error", "level"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise InputError(f"{name.replace('_', ' ')} is {value:g}; allowed: above 0 and below 1")


@dataclass(frozen=True)
class Zone:
    """The rows between two confidences: their share of all, and how many of them are wrong."""

    share: Proportion
    error: Proportion


@dataclass(frozen=True)
class Candidate:
    """A possible threshold: a `share` of the rows is at or above `accept`, with an error of at most `bound`.

    The bounds of all candidates hold together, at the level of the guarantee.
    """

    accept: float
    share: float
    wrong: int
    n: int
    bound: float


@dataclass(frozen=True)
class Part:
    """The thresholds of one class or group, chosen on n rows; with an infinite `accept`, none is accepted."""

    accept: float
    reject: float
    n: int


@checked
@dataclass(frozen=True, kw_only=True)
class Thresholds(Result):
    """At or above `accept`: use the prediction; below `reject`: discard it; between: a person reviews it.

    With `per`, each class or group has its own pair in `parts`; rows of any other are reviewed.
    """

    accept: float
    reject: float  # 0 if no rows are known to be wrong often enough
    guarantee: Guarantee
    bound: float  # of the error among the accepted; at most the target
    n: int
    classes: int
    zones: dict[str, Zone]  # accept, review, reject, on the data they were chosen on
    candidates: tuple[Candidate, ...]
    for_class: str | None = None
    calibration: Calibration | None = None
    class_names: tuple[str, ...] | None = None  # of the predictions that they are for, before `for_class`
    measured: Mapping[str, Mapping[str, Zone]] = field(default_factory=dict)  # the zones of further data
    per: str | None = None  # PREDICTED_CLASS, or the column of the groups
    parts: Mapping[str, Part] = field(default_factory=dict)
    groups: int | None = None  # of n rows: the guarantee is for new ones, each of the same weight
    repeated: str = ""  # a column that repeats although there are no groups

    @checked
    def prepare(self, predictions: Predictions) -> Predictions:
        """The predictions that the thresholds apply to: calibrated, and of one class if they are for one."""
        predictions = with_classes(predictions, self.class_names, "the thresholds")
        if self.calibration is not None:
            predictions = self.calibration(predictions)
        if self.for_class is not None:
            predictions = predictions.of_class(self.for_class)
        if predictions.kind is LabelKind.MANY_LABELS or predictions.classes != self.classes:
            raise InputError(
                f"the thresholds are for one label of {self.classes} classes, "
                f"but the predictions are {predictions.kind} with {predictions.classes} classes"
            )
        return self._named_as_parts(predictions)

    @checked
    def accepted(self, predictions: Predictions) -> Bools:
        """Which rows are accepted; needs no labels."""
        prepared = self.prepare(predictions)
        return confidences(prepared) >= self._limits(prepared)[0]

    @checked
    def zones_of(self, predictions: Predictions) -> dict[str, Zone]:
        """The zones of labelled predictions."""
        prepared = self.prepare(predictions)
        rows = prepared if self.per is None else within_parts(prepared, self.per)
        return zones(rows, *self._limits(prepared))

    def _named_as_parts(self, prepared: Predictions) -> Predictions:
        """With the classes called as the parts are; without class names, only the parts say what that is."""
        have, places = class_names_of(prepared), {str(index) for index in range(self.classes)}
        if self.per != PREDICTED_CLASS or self.parts.keys() <= set(have):
            return prepared
        if self.parts.keys() <= places:
            return unnamed(prepared)
        raise InputError(
            f"the thresholds are for the classes {short(tuple(self.parts))}, and the predictions have "
            f"{short(have)}; needed: the same names"
        )

    def _limits(self, prepared: Predictions) -> tuple[Array, Array]:
        """`accept` and `reject` for each row."""
        pairs = np.full((prepared.n, 2), (self.accept, self.reject))
        if self.per is not None:
            names = parts_of(prepared, self.per)
            for name, part in self.parts.items():
                pairs[names == name] = part.accept, part.reject
        return pairs[:, 0], pairs[:, 1]


@checked
@dataclass(frozen=True)
class Unreachable(Result):
    """No threshold has the guarantee; the candidates have the bounds that hold instead."""

    guarantee: Guarantee
    candidates: tuple[Candidate, ...]
    n: int = 0  # rows with a label
    groups: int | None = None  # that they are in, if there are any
    repeated: str = ""  # a column that repeats although there are no groups

    @property
    def best(self) -> Candidate:
        """The candidate with the lowest bound."""
        return min(self.candidates, key=lambda each: each.bound)

    @property
    def sentence(self) -> str:
        """Which error can be guaranteed instead."""
        best = self.best
        if best.bound >= 1:
            return f"no threshold can guarantee any error below 1 with n = {self.n:,} rows"
        some = "for all of them" if best.share == 1 else f"for the {best.share:.0%} most confident"
        return (
            f"no threshold can guarantee an error of at most {self.guarantee.target_error:g} with "
            f"n = {self.n:,} rows{of_groups(self.groups)}; {rounded_up(best.bound)} can be guaranteed, "
            f"{some} ({best.wrong} wrong of {best.n})"
        )

    def advice(self, option: str = "target_error") -> str:
        """What to do, where that is the name of the target."""
        return "use more rows" if self.best.bound >= 1 else f"use that as {option}, or more rows"

    def __getattr__(self, name: str) -> Any:
        """What only thresholds have, such as `accepted`, is refused with the reason."""
        if name.startswith("_") or not (name in Thresholds.__dataclass_fields__ or hasattr(Thresholds, name)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise InputError(f"{self.sentence}; there is no {name!r}: {self.advice()}")


def choose_thresholds(
    val: Predictions,
    guarantee: Guarantee = Guarantee(),  # noqa: B008 frozen
    *,
    calibration: Calibration | None = None,
    for_class: str | None = None,
    per: str | None = None,
    seed: int = 0,
) -> Thresholds | Unreachable:
    """The lowest confidence to accept and the highest to reject with that guarantee on data like `val`.

    With `per`, for each predicted class (PREDICTED_CLASS) or each group of a column: each guarantee is about
    the rows of its own part, and holds at the stated level on its own. Where rows have groups, it is for a
    random row of a new group; of each part, or all, if that is a single group, for its new rows.
    """
    calibrated = val if calibration is None else calibration(val)
    prepared = calibrated if for_class is None else calibrated.of_class(for_class)
    if per is None:
        within = within_one_group(prepared)
        chosen = _choose(within, guarantee, seed)
        chosen = chosen if within is prepared else replace(chosen, groups=1)
    else:
        chosen = _choose_per(prepared, per, guarantee, seed)
    if isinstance(chosen, Unreachable):
        return chosen
    names = calibrated.class_names
    return replace(chosen, for_class=for_class, calibration=calibration, class_names=names)


def _choose(prepared: Predictions, guarantee: Guarantee, seed: int) -> Thresholds | Unreachable:
    confidence, correct = _decisions(prepared)
    group_of = groups_of_decisions(prepared)
    groups = None if group_of is None else number_of_groups(len(confidence), group_of)
    level = guarantee.level
    tested = ErrorTest(confidence, ~correct, guarantee.target_error, level, group_of).in_random_order(seed)
    candidates = _candidates(tested)
    cuts = valid_cuts(tested, seed=seed)
    if not cuts:
        return Unreachable(guarantee, candidates, len(confidence), groups)
    accept = _above(min(cuts))
    reversed_rows = tested.reversed(1 - guarantee.reject_error)
    below = [-cut for cut in valid_cuts(reversed_rows, seed=seed)]
    reject = max([cut for cut in below if 0 <= cut <= accept], default=0.0)
    bounds = {each.accept: each.bound for each in candidates}
    return Thresholds(
        accept=accept,
        reject=reject,
        guarantee=guarantee,
        bound=min(guarantee.target_error, bounds.get(accept, 1.0)),
        n=len(confidence),
        classes=prepared.classes,
        zones=zones(prepared, accept, reject),
        candidates=candidates,
        groups=groups,
    )


def _choose_per(prepared: Predictions, per: str, guarantee: Guarantee, seed: int) -> Thresholds | Unreachable:
    _decisions(prepared)
    names, labelled = parts_of(prepared, per), np.isin(np.arange(prepared.n), prepared.outcomes.row)
    within = within_parts(prepared, per)
    group_of = groups_of_decisions(within)
    parts, failures = {}, []
    for name in sorted(set(names[labelled].tolist())):
        rows = within.take(np.flatnonzero((names == name) & labelled))
        chosen = _choose(rows, guarantee, seed)
        if isinstance(chosen, Thresholds):
            parts[name] = Part(chosen.accept, chosen.reject, chosen.n)
        else:
            failures.append(chosen)
            parts[name] = Part(math.inf, 0.0, rows.n)
    if len(failures) == len(parts):
        return min(failures, key=lambda each: each.best.bound)
    empty = Thresholds(
        accept=math.inf,
        reject=0.0,
        guarantee=guarantee,
        bound=guarantee.target_error,
        n=int(labelled.sum()),
        classes=prepared.classes,
        groups=None if group_of is None else number_of_groups(len(group_of), group_of),
        zones={},
        candidates=(),
        per=per,
        parts=parts,
    )
    return replace(empty, zones=zones(prepared, *empty._limits(prepared)))


def zones(predictions: Predictions, accept: float | Array, reject: float | Array) -> dict[str, Zone]:
    """Shares and errors at or above `accept`, between, and below `reject`: numbers, or one for each row."""
    confidence, correct = _decisions(predictions)
    row, group_of = predictions.outcomes.row, groups_of_decisions(predictions)
    upper, lower = (np.broadcast_to(limit, predictions.n)[row] for limit in (accept, reject))
    accepted = confidence >= upper
    rejected = (confidence < lower) & ~accepted
    rows = {"accept": accepted, "review": ~(accepted | rejected), "reject": rejected}
    return {
        name: Zone(
            proportion_of(inside, group_of),
            proportion_of(~correct[inside], some_of(group_of, inside)),
        )
        for name, inside in rows.items()
    }


def _decisions(predictions: Predictions) -> tuple[Array, Bools]:
    if predictions.kind is LabelKind.MANY_LABELS:
        raise InputError(
            "thresholds on many labels at once: the decisions of a row depend on one another, so no exact "
            "guarantee holds for them together; allowed: one class at a time (--for-class, "
            "in Python for_class)"
        )
    outcomes = predictions.outcomes
    if not len(outcomes.row):
        raise InputError("no labels to choose thresholds on; allowed: predictions with at least one label")
    return outcomes.confidence, outcomes.correct


def _candidates(tested: ErrorTest) -> tuple[Candidate, ...]:
    """Every candidate with the upper bound of its error; all bounds hold together."""
    cuts = tested.candidate_cuts()
    rows, errors = tested.above(cuts)
    candidates, every = {}, len(tested.score)
    for cut, n, k, bound in zip(cuts, rows, errors, candidate_bounds(tested, cuts), strict=True):
        accept = _above(cut)
        candidates[accept] = Candidate(accept, int(n) / every, int(k), int(n), float(bound))
    return tuple(candidates.values())


def _above(cut: float) -> float:
    """The lowest confidence above a cut."""
    return max(0.0, round(float(cut) + STEP, DECIMALS))


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
            zone: {"share": _proportion_document(values.share), "error": _proportion_document(values.error)}
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


def _proportion_document(proportion: Proportion) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(proportion).items()
    }


def _proportion(document: dict[str, Any]) -> Proportion:
    ends = (NAN if document[name] is None else float(document[name]) for name in ("value", "low", "high"))
    return Proportion(int(document["k"]), int(document["n"]), *ends)
