"""Shift detection: predictions without labels compared with a reference from familiar data."""

import hashlib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.arguments import checked
from surefoot.calibrators import Calibration
from surefoot.deploy.accuracy import DIFFERENCE, FALL_FACTOR, SCALED, Reference, scaled_fall
from surefoot.deploy.detectors import (
    LEAST_RANGE,
    Detector,
    Role,
    class_cosine,
    combine,
    higher,
    kernel_distance,
    label_uncertainty,
    mean_change,
)
from surefoot.deploy.detectors import Result as CombinedResult
from surefoot.deploy.findings import NO_INTERVAL, Finding, coverage_of, difference, shift_of, without_means
from surefoot.deploy.groups import (
    Grouped,
    group_numbers,
    normal_interval,
    number_of_groups,
    proportion_of,
    some_of,
)
from surefoot.deploy.parts import PartFinding, holm, part_findings
from surefoot.deploy.thresholds import Thresholds, confidences
from surefoot.errors import InputError
from surefoot.intervals import (
    NAN,
    NORMAL,
    Interval,
)
from surefoot.predictions.classes import class_names_of
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.novelty import energy, neighbour_distances
from surefoot.predictions.outcomes import Array, Index
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.validate import Floats
from surefoot.results import Result
from surefoot.text import count_of

FEW_ROWS = 50
POWER = 0.8  # of the smallest drop that a check would have detected
MOST_UNFAMILIAR = 20  # rows that are listed
NORMAL_CURVE = NormalDist()
FIRST_SHARE = 6 / np.pi**2  # of alpha, for the first check of a history: 1 / k^2, normalised
ORDER = ("confidence", "energy", "energy tail", "novelty", "novelty tail", "coverage", "features",
         "class cosine", "outputs", "together")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scores:
    """What is compared of predictions: numbers for each row, and which rows are accepted."""

    confidence: Array
    novelty: Mapping[str, Array]  # 'energy', and 'novelty' if the file has it
    accepted: Array | None  # 0 or 1 for each row, with thresholds
    surplus: Array | None  # correct (0 or 1) less confidence, for each labelled row; None without labels
    known: NDArray[np.bool_]  # which rows have a label
    accuracy: Interval  # NaN without labels
    calibrated: bool
    vectors: Floats  # (n, classes): average logits
    probs: Array | None  # many labels: (n, classes), not calibrated
    classes: NDArray[np.int64] | None  # the predicted class; None for many labels
    labelled: Reference | None  # one label: the labelled rows
    features: Array | None
    ids: NDArray[Any] | None
    groups: NDArray[Any] | None
    class_names: tuple[str, ...]

    @property
    def n(self) -> int:
        return len(self.confidence)

    @cached_property
    def group_of(self) -> Index | None:
        """The group of each row as a number; None where rows are independent."""
        return group_numbers(self.groups)

    def grouped(self, values: Array) -> Grouped:
        """Values of all rows, or of the labelled ones, with their groups."""
        every = len(values) == self.n
        return values, self.group_of if every else some_of(self.group_of, self.known)


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


@checked
@dataclass(frozen=True, kw_only=True)
class Check(Result):
    """One comparison of current predictions with the reference."""

    n_reference: int
    n_current: int
    groups: tuple[int, int] | None  # of the reference and current, permuted as a whole; None: all are rows
    findings: tuple[Finding, ...]
    parts: tuple[PartFinding, ...]  # of predicted classes and of groups
    unfamiliar: tuple[tuple[str, float], ...]  # the most unfamiliar rows: id, or row number, and score
    unfamiliar_by: str  # the score that ranks them
    labelled: bool  # whether the reference's accuracy comes from labels
    estimator: str
    calibrated: bool
    reference_accuracy: Interval  # measured where there are labels, else estimated
    accuracy: Interval  # estimated
    drop: Interval  # of the estimate: reference less current
    smallest_drop: float  # of the estimate that would have been detected with probability POWER
    budget: AlphaBudget
    bound: float | None
    repeated: str = ""  # a column that repeats although there are no groups

    @property
    def smallest_p(self) -> float:
        """The smallest possible p-value: 1 / the number of ways to choose the current rows or groups."""
        before, now = self.groups or (self.n_reference, self.n_current)
        return math.exp(math.lgamma(before + 1) + math.lgamma(now + 1) - math.lgamma(before + now + 1))

    @property
    def significant(self) -> tuple[Finding, ...]:
        """The significant findings, at this check's level."""
        return tuple(each for each in self.findings if each.adjusted <= self.budget.level)

    @property
    def alarm(self) -> bool:
        """A significant change and, if a bound is given, an estimated drop of at least that much."""
        return bool(self.significant) and (self.bound is None or self.drop.value >= self.bound)

    @property
    def matters(self) -> bool:
        """Whether the data has shifted and the estimated accuracy has fallen with it."""
        return bool(self.significant) and self.drop.low > 0


def scores_of(
    predictions: Predictions, *, calibration: Calibration | None = None, thresholds: Thresholds | None = None
) -> Scores:
    """The scores that a check compares; labels, if there are any, are used for the accuracy only."""
    calibrated = predictions if calibration is None else calibration(predictions)
    novelty = {"energy": energies(predictions)}
    if predictions.novelty is not None:
        novelty["novelty"] = predictions.novelty
    known, surplus, accuracy = _against_labels(calibrated)
    vectors = predictions.average().logits[0]
    one_label = predictions.kind is LabelKind.ONE_LABEL
    outcomes = calibrated.outcomes
    labelled = one_label and surplus is not None
    features = predictions.features
    return Scores(
        confidence=confidences(calibrated),
        novelty=novelty,
        accepted=None if thresholds is None else thresholds.accepted(predictions).astype(float),
        surplus=surplus,
        known=known,
        accuracy=accuracy,
        calibrated=calibration is not None,
        vectors=vectors,
        probs=None if one_label else predictions.probs(),
        classes=vectors.argmax(axis=1) if one_label else None,
        labelled=Reference(outcomes.confidence, outcomes.correct.astype(float)) if labelled else None,
        features=None if features is None else features.astype(np.float64),
        ids=predictions.ids,
        groups=predictions.groups,
        class_names=class_names_of(predictions),
    )


def energies(predictions: Predictions) -> Array:
    """The energy of each row, the mean over members: averaged logits have another one.

    0 for files with one logit, which is stored with a 0: their energy would rank the rows by class.
    """
    if predictions.kind is LabelKind.ONE_LABEL and not predictions.logits[:, :, 0].any():
        return np.zeros(predictions.n)
    return np.asarray(np.mean([energy(member, predictions.kind) for member in predictions.logits], axis=0))


def check_shift(
    reference: Scores, current: Scores, *, budget: AlphaBudget, bound: float | None = None, repeated: str = ""
) -> Check:
    """Compare the current rows with the reference's; `repeated` is a column that should be their groups."""
    for which, side in (("reference", reference), ("current", current)):
        if side.n < 2:
            raise InputError(f"the {which} predictions have {side.n} row; allowed: two or more")
    _refuse_other_features(reference, current)
    estimated = _estimated(reference, current)
    unfamiliar_by, scores = _unfamiliarity(reference, current)
    most = np.argsort(-scores, kind="stable")[:MOST_UNFAMILIAR]
    ids = np.arange(current.n) if current.ids is None else current.ids
    own_accuracy = reference.accuracy
    if reference.surplus is None:
        own_accuracy = _mean(reference.grouped(reference.confidence))
    tail = max(budget.level / 2, sys.float_info.min)  # of a level so small that half of it may be 0
    return Check(
        n_reference=reference.n,
        n_current=current.n,
        groups=_numbers_of_groups(reference, current),
        findings=_findings(reference, current, budget.level),
        parts=_parts(reference, current),
        unfamiliar=tuple((str(ids[row]), float(scores[row])) for row in most),
        unfamiliar_by=unfamiliar_by,
        labelled=reference.surplus is not None,
        estimator=estimated.estimator,
        calibrated=current.calibrated,
        reference_accuracy=own_accuracy,
        accuracy=estimated.accuracy,
        drop=estimated.drop,
        smallest_drop=(NORMAL_CURVE.inv_cdf(POWER) - NORMAL_CURVE.inv_cdf(tail)) * estimated.error,
        budget=budget,
        bound=bound,
        repeated=repeated,
    )


def _numbers_of_groups(reference: Scores, current: Scores) -> tuple[int, int] | None:
    if reference.group_of is None and current.group_of is None:
        return None
    before, now = (number_of_groups(side.n, side.group_of) for side in (reference, current))
    return before, now


def _refuse_other_features(reference: Scores, current: Scores) -> None:
    if reference.features is None or current.features is None:
        return
    before, now = reference.features.shape[1], current.features.shape[1]
    if before != now:
        raise InputError(
            f"the reference has {count_of(before, 'feature')} per row, the current predictions {now:,}; must "
            "be equal: both of the same network"
        )


def _findings(reference: Scores, current: Scores, level: float) -> tuple[Finding, ...]:
    """Every detector that both sides have the numbers for, with its p-value, then all of them together.

    For many labels, confidence is tested label by label, together with the energy.
    """
    before, now = reference.confidence, current.confidence
    described = {
        "confidence": shift_of("confidence", reference.grouped(before), current.grouped(now), sign=-1)
    }
    many_labels = reference.classes is None
    if many_labels:
        detectors = _scores_of_many_labels(reference, current)
    else:
        detectors = higher("confidence", -before, -now)[:1]
    name = novelty_name(reference, current)
    if name is not None and not (many_labels and name == "energy"):
        before, now = reference.novelty[name], current.novelty[name]
        described[name] = shift_of(name, reference.grouped(before), current.grouped(now), sign=1)
        detectors += higher(name, before, now)
    if reference.accepted is not None and current.accepted is not None:
        described["coverage"] = coverage_of(
            reference.grouped(reference.accepted), current.grouped(current.accepted)
        )
        accepted = higher("coverage", -reference.accepted, -current.accepted)[:1]
        detectors += [replace(each, role=Role.SHOWN) for each in accepted]
    of_features = _of_features(reference, current)
    detectors += of_features or kernel_distance("outputs", *_outputs(reference, current))
    results = {each.name: each for each in _combined(detectors, reference, current, level)}
    found = {name: described.get(name, without_means(name)) for name in (*described, *results)}
    for name, each in results.items():
        found[name] = replace(found[name], p=each.p, adjusted=each.adjusted)
    return tuple(found[name] for name in sorted(found, key=ORDER.index))


def _combined(
    detectors: list[Detector], reference: Scores, current: Scores, level: float
) -> tuple[CombinedResult, ...]:
    """By permutation of the rows; of whole groups, those of each side being its own, where there are any."""
    if not detectors:
        return ()
    groups = _numbers_of_groups(reference, current)
    if groups is None:
        return combine(detectors, current.n, level=level)
    before, now = (
        np.arange(side.n) if side.group_of is None else side.group_of for side in (reference, current)
    )
    of_row = np.concatenate([before, groups[0] + now])
    return combine([each.of_groups(of_row) for each in detectors], groups[1], level=level)


def _scores_of_many_labels(reference: Scores, current: Scores) -> list[Detector]:
    """One score: the mean rank of the labels' uncertainty and of the energy, where there is one."""
    assert reference.probs is not None
    assert current.probs is not None
    detectors = higher("confidence", *label_uncertainty(reference.probs, current.probs))[:1]
    if detectors and _have_energy(reference, current):
        detectors += higher("energy", reference.novelty["energy"], current.novelty["energy"])[:1]
        added = np.sum([each.columns / each.columns.std() for each in detectors], axis=0)
        detectors = [replace(detectors[0], columns=added)]
    return detectors


def _of_features(reference: Scores, current: Scores) -> list[Detector]:
    """Their means and, for many labels, how similar rows are to those of the same most probable label."""
    if reference.features is None or current.features is None:
        return []
    features = reference.features, current.features
    detectors = mean_change("features", *features)
    if reference.probs is not None and current.probs is not None and detectors:
        most = reference.probs.argmax(axis=1), current.probs.argmax(axis=1)
        groups = None
        if reference.groups is not None and current.groups is not None:
            groups = group_numbers(np.concatenate([reference.groups, current.groups]))
        detectors += class_cosine("class cosine", features, most, groups)
    return detectors


def _outputs(reference: Scores, current: Scores) -> list[Floats]:
    """Both sides' average logits; the logs of their probabilities, if one side has only these."""
    vectors = [reference.vectors, current.vectors]
    if reference.classes is None or _have_energy(reference, current):
        return vectors
    return [each + energy(each, LabelKind.ONE_LABEL)[:, None] for each in vectors]  # log softmax


def _have_energy(reference: Scores, current: Scores) -> bool:
    """Whether both sides are logits of all classes: other energies are constant, and have no meaning."""
    return all(np.ptp(side.novelty["energy"]) > LEAST_RANGE for side in (reference, current))


def _parts(reference: Scores, current: Scores) -> tuple[PartFinding, ...]:
    """Predicted classes, and groups where both sides have them, corrected for their number."""
    confidence = reference.confidence, current.confidence
    found: list[PartFinding] = []
    if reference.classes is not None and current.classes is not None:
        names = np.array(reference.class_names)
        predicted = names[reference.classes], names[current.classes]
        found += part_findings("class", predicted, confidence, (reference.group_of, current.group_of))
    if reference.groups is not None and current.groups is not None:
        found += part_findings("group", (reference.groups, current.groups), confidence)
    corrected = holm([each.p for each in found])
    return tuple(replace(each, adjusted=p) for each, p in zip(found, corrected, strict=True))


def _unfamiliarity(reference: Scores, current: Scores) -> tuple[str, Array]:
    """The score that ranks current rows by how unfamiliar they are, and its name."""
    if reference.features is not None and current.features is not None:
        return "distance of features", neighbour_distances(current.features, reference.features)
    name = novelty_name(reference, current)
    return ("1 - confidence", 1 - current.confidence) if name is None else (name, current.novelty[name])


@dataclass(frozen=True)
class Estimated:
    """The accuracy, its drop, how they are estimated, and the standard error of the drop if there is none."""

    accuracy: Interval
    drop: Interval
    estimator: str
    error: float


def _estimated(reference: Scores, current: Scores) -> Estimated:
    """By the estimator with the lowest error in benchmarks/results/monitor.md.

    The reference's accuracy (without labels, its mean confidence) less the fall of the mean confidence, which
    counts FALL_FACTOR times for one label: on unfamiliar data, accuracy falls more than confidence.
    """
    factor, name = (1.0, DIFFERENCE) if reference.classes is None else (FALL_FACTOR, SCALED)
    now = current.grouped(current.confidence)
    fall = difference(reference.grouped(reference.confidence), now)
    if np.isnan(fall.low):  # from one group: whatever is possible
        fall = Interval(fall.value, -1.0, 1.0)
    drop = Interval(*(scaled_fall(each, factor) for each in (fall.value, fall.low, fall.high)))
    known = reference.labelled
    if reference.surplus is None:
        base, of_reference = float(reference.confidence.mean()), (1 - factor) * reference.confidence
    elif known is None:
        base, of_reference = reference.accuracy.value, reference.surplus
    else:
        base, of_reference = float(known.correct.mean()), known.correct - factor * known.confidence
    value = float(np.clip(base - drop.value, 0, 1))
    samples = [reference.grouped(of_reference), (factor * now[0], now[1])]
    accuracy = normal_interval(value, samples, (0.0, 1.0))
    return Estimated(accuracy, drop, name, factor * (fall.high - fall.low) / 2 / NORMAL)


def _mean(values: Grouped) -> Interval:
    return normal_interval(float(values[0].mean()), [values], (0.0, 1.0))


def novelty_name(reference: Scores, current: Scores) -> str | None:
    """The novelty that both sides have and that varies: the files' own if possible, else the energy.

    The files' own may be constant on one side, at its maximum.
    """
    sides = reference.novelty, current.novelty
    if all("novelty" in side for side in sides):
        both = np.concatenate([side["novelty"] for side in sides])
        if np.ptp(both) > LEAST_RANGE:
            return "novelty"
    return "energy" if _have_energy(reference, current) else None


def fingerprint(reference: Scores) -> str:
    """A digest of the reference: another model, file or calibration has another."""
    digest = hashlib.sha256()
    for values in (reference.confidence, *reference.novelty.values()):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def _against_labels(calibrated: Predictions) -> tuple[NDArray[np.bool_], Array | None, Interval]:
    """Which rows have a label; correct less confidence (many labels: their mean); accuracy."""
    outcomes = calibrated.outcomes
    decisions = np.bincount(outcomes.row, minlength=calibrated.n)
    known = decisions > 0
    if known.sum() < 2:
        return known, None, NO_INTERVAL
    group_of = some_of(group_numbers(calibrated.groups), known)
    surplus = (
        np.bincount(outcomes.row, outcomes.correct - outcomes.confidence, calibrated.n)[known]
        / decisions[known]
    )
    if len(outcomes.blocks) == 1:
        k = proportion_of(outcomes.correct, group_of)
        return known, surplus, Interval(k.value, k.low, k.high)
    correct = np.bincount(outcomes.row, outcomes.correct, calibrated.n)[known] / decisions[known]
    return known, surplus, _mean((correct, group_of))
