"""Confidence thresholds: accept, review, reject; with a guarantee on familiar data."""

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot import __version__
from surefoot.calibrators import Calibration, calibration_document, calibration_from
from surefoot.errors import InputError
from surefoot.intervals import NAN, Proportion
from surefoot.io import read_json, replacing
from surefoot.novelty import max_probability
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import average_sigmoid, average_softmax, map_chunks
from surefoot.predictions.outcomes import DECIMALS, Array
from surefoot.predictions.predictions import Predictions
from surefoot.results import Result

CANDIDATES = 20
TARGET_ERROR = 0.01
REJECT_ERROR = 0.5
LEVEL = 0.95
STEP = 10.0**-DECIMALS  # confidences have so many decimals: 'above t' is 'at or above t + STEP'

Bools = NDArray[np.bool_]


def confidences(predictions: Predictions) -> Array:
    """The highest probability of each row; for many labels the mean over classes of max(p, 1 - p).

    >>> confidences(Predictions.from_probs([[0.9, 0.1]], labels=[1]))
    array([0.9])
    """
    average = average_softmax if predictions.kind is LabelKind.ONE_LABEL else average_sigmoid
    uncertainty = torch.empty(predictions.n, dtype=torch.float64)

    def score(part: slice, logits: torch.Tensor, _scratch: torch.Tensor) -> None:
        uncertainty[part] = max_probability(logits, predictions.kind)

    map_chunks(predictions.logits, average, score)
    confidence: Array = (1 - uncertainty.numpy()).round(DECIMALS)
    return confidence


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


@dataclass(frozen=True, kw_only=True)
class Thresholds(Result):
    """At or above `accept`: use the prediction; below `reject`: discard it; between: a person reviews it."""

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
    measured: Mapping[str, Mapping[str, Zone]] = field(default_factory=dict)  # the zones of further data

    def prepare(self, predictions: Predictions) -> Predictions:
        """The predictions that the thresholds apply to: calibrated, and of one class if they are for one."""
        if self.calibration is not None:
            predictions = self.calibration(predictions)
        if self.for_class is not None:
            predictions = predictions.of_class(self.for_class)
        if predictions.kind is LabelKind.MANY_LABELS or predictions.classes != self.classes:
            raise InputError(
                f"the thresholds are for one label of {self.classes} classes, "
                f"but the predictions are {predictions.kind} with {predictions.classes} classes"
            )
        return predictions

    def accepted(self, predictions: Predictions) -> Bools:
        """Which rows are accepted; needs no labels."""
        return confidences(self.prepare(predictions)) >= self.accept

    def zones_of(self, predictions: Predictions) -> dict[str, Zone]:
        """The zones of labelled predictions."""
        return zones(self.prepare(predictions), self.accept, self.reject)


@dataclass(frozen=True)
class Unreachable(Result):
    """No threshold has the guarantee; the candidates have the bounds that hold instead."""

    guarantee: Guarantee
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The candidate with the lowest bound."""
        return min(self.candidates, key=lambda each: each.bound)


def choose_thresholds(
    val: Predictions,
    guarantee: Guarantee = Guarantee(),  # noqa: B008 frozen
    *,
    calibration: Calibration | None = None,
    for_class: str | None = None,
) -> Thresholds | Unreachable:
    """The lowest confidence to accept and the highest to reject with that guarantee on data like `val`."""
    calibrated = val if calibration is None else calibration(val)
    prepared = calibrated if for_class is None else calibrated.of_class(for_class)
    confidence, correct = _decisions(prepared)
    candidates = _candidates(confidence, ~correct, guarantee.level)
    valid = _valid_cuts(confidence, ~correct, most=guarantee.target_error, level=guarantee.level)
    if not valid:
        return Unreachable(guarantee, candidates)
    accept = max(0.0, round(min(valid) + STEP, DECIMALS))
    # Reversed: the least confident first, and a correct prediction counts as an error.
    rejected = _valid_cuts(-confidence, correct, most=1 - guarantee.reject_error, level=guarantee.level)
    reject = max([-cut for cut in rejected if 0 <= -cut <= accept], default=0.0)
    return Thresholds(
        accept=accept,
        reject=reject,
        guarantee=guarantee,
        bound=next(each.bound for each in candidates if each.accept == accept),
        n=len(confidence),
        classes=prepared.classes,
        zones=zones(prepared, accept, reject),
        candidates=candidates,
        for_class=for_class,
        calibration=calibration,
    )


def split_rows(predictions: Predictions, share: float, seed: int) -> tuple[Predictions, Predictions]:
    """Two random parts: that share of the rows, and the rest."""
    first = round(share * predictions.n)
    if not 0 < first < predictions.n:
        raise InputError(f"a share of {share:g} of {predictions.n} rows leaves a part empty; allowed: 0 to 1")
    order = np.random.default_rng(seed).permutation(predictions.n)
    return predictions.take(np.sort(order[:first])), predictions.take(np.sort(order[first:]))


def zones(predictions: Predictions, accept: float, reject: float) -> dict[str, Zone]:
    """Shares and errors at or above `accept`, between, and below `reject`."""
    confidence, correct = _decisions(predictions)
    accepted, rejected = confidence >= accept, confidence < reject
    rows = {"accept": accepted, "review": ~(accepted | rejected), "reject": rejected}
    return {
        name: Zone(
            Proportion.of(int(inside.sum()), len(confidence)),
            Proportion.of(int((inside & ~correct).sum()), int(inside.sum())),
        )
        for name, inside in rows.items()
    }


def _decisions(predictions: Predictions) -> tuple[Array, Bools]:
    if predictions.kind is LabelKind.MANY_LABELS:
        raise InputError(
            "thresholds on many labels at once: the decisions of a row depend on one another, so no exact "
            "guarantee holds for them together; allowed: one class at a time, with --for-class"
        )
    outcomes = predictions.outcomes
    if not len(outcomes.row):
        raise InputError("no labels to choose thresholds on; allowed: predictions with at least one label")
    return outcomes.confidence, outcomes.correct


def _cuts(score: Array) -> Array:
    """The score at every twentieth rank from the top; a candidate is all rows above a cut. Last: all rows."""
    ranked = np.sort(score)[::-1]
    ranks = [min(-(-len(ranked) * part // CANDIDATES), len(ranked) - 1) for part in range(1, CANDIDATES)]
    return np.append(ranked[ranks], -np.inf)


def _valid_cuts(score: Array, wrong: Bools, *, most: float, level: float) -> list[float]:
    """The cuts above which, with probability `level` for all of them at once, at most `most` are wrong."""
    try:
        from mapie.risk_control import BinaryClassificationController, BinaryRisk
    except ImportError as error:
        raise InputError(
            "thresholds need MAPIE; install it with: pip install 'surefoot[thresholds]'"
        ) from error
    risk = BinaryRisk(lambda true, _: true == 1, lambda _, above: above == 1, higher_is_better=False)
    controller = BinaryClassificationController(
        lambda scores, cut: (scores > cut).astype(int),
        risk,
        target_level=most,
        confidence_level=level,
        best_predict_param_choice=risk,
        list_predict_params=_cuts(score)[:, None],
        fwer_method="bonferroni",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no threshold is valid: we report it ourselves
        controller.calibrate(score, wrong)
    return [float(cut) for cut in controller.valid_predict_params.ravel()]


def _candidates(confidence: Array, wrong: Bools, level: float) -> tuple[Candidate, ...]:
    """Every candidate with the exact upper bound of its error; all bounds hold together."""
    from scipy.special import betaincinv

    candidates = {}
    for cut in _cuts(confidence):
        above = confidence > cut
        n, k = int(above.sum()), int((above & wrong).sum())
        tail = (1 - level) / CANDIDATES
        bound = float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
        accept = max(0.0, round(cut + STEP, DECIMALS))
        candidates[accept] = Candidate(accept, n / len(confidence), k, n, bound)
    return tuple(candidates.values())


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
    sources: Mapping[str, str] | None = None,
    elsewhere: Mapping[str, Mapping[str, Zone]] | None = None,
) -> None:
    """Write the thresholds; `elsewhere` has the zones of other data by name, each with its source."""
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
        "accept": thresholds.accept,
        "reject": thresholds.reject,
        "target_error": thresholds.guarantee.target_error,
        "reject_error": thresholds.guarantee.reject_error,
        "level": thresholds.guarantee.level,
        "error_at_most": thresholds.bound,
        "n": thresholds.n,
        "classes": thresholds.classes,
        "for_class": thresholds.for_class,
        "calibration": None if calibration is None else calibration_document(calibration),
        "measured": documents,
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
    )


def _proportion_document(proportion: Proportion) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(proportion).items()
    }


def _proportion(document: dict[str, Any]) -> Proportion:
    ends = (NAN if document[name] is None else float(document[name]) for name in ("value", "low", "high"))
    return Proportion(int(document["k"]), int(document["n"]), *ends)
