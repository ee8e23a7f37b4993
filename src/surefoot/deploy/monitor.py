"""Shift detection: predictions without labels compared with a reference from familiar data."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.calibrators import Calibration
from surefoot.deploy.accuracy import Reference, thresholded_confidence
from surefoot.deploy.detectors import (
    LEAST_RANGE,
    combine,
    higher,
    kernel_distance,
)
from surefoot.deploy.parts import PartFinding, holm, part_findings
from surefoot.deploy.thresholds import Thresholds, confidences
from surefoot.errors import InputError
from surefoot.intervals import (
    NAN,
    NORMAL,
    Interval,
    Proportion,
    difference_of_proportions,
    few_samples_factor,
)
from surefoot.novelty import average_ranks, energy, neighbour_distances
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import map_chunks
from surefoot.predictions.outcomes import Array
from surefoot.predictions.predictions import Predictions
from surefoot.results import Result

FEW_ROWS = 50
POWER = 0.8  # of the smallest drop that a check would have detected
MOST_UNFAMILIAR = 20  # rows that are listed
NO_INTERVAL = Interval(NAN)
NORMAL_CURVE = NormalDist()
ORDER = ("confidence", "confidence tail", "energy", "energy tail", "novelty", "novelty tail", "coverage",
         "outputs", "features")  # fmt: skip

AVERAGE, DIFFERENCE, THRESHOLDED = "average confidence", "difference of confidences", "thresholded confidence"


@dataclass(frozen=True, eq=False)
class Scores:
    """What is compared of predictions: numbers for each row, and which rows are accepted."""

    confidence: Array
    novelty: Mapping[str, Array]  # 'energy', and 'novelty' if the file has it
    accepted: Array | None  # 0 or 1 for each row, with thresholds
    surplus: Array | None  # correct (0 or 1) less confidence, for each labelled row; None without labels
    accuracy: Interval  # NaN without labels
    calibrated: bool
    vectors: Array  # (n, classes): average logits
    classes: NDArray[np.int64] | None  # the predicted class; None for many labels
    labelled: Reference | None  # one label: the labelled rows
    features: Array | None
    ids: NDArray[Any] | None
    groups: NDArray[Any] | None
    class_names: tuple[str, ...]

    @property
    def n(self) -> int:
        return len(self.confidence)


@dataclass(frozen=True)
class Finding:
    """One comparison: the means of both sides, their difference, and its p-value."""

    name: str
    reference: float
    current: float
    change: Interval  # current less reference; NaN where no single number is compared
    distance: float  # Kolmogorov-Smirnov; NaN for a share and for vectors
    more_novel: Interval  # P(a current row is more novel than one of the reference); NaN for a share
    p: float
    adjusted: float  # corrected for all comparisons of the check


@dataclass(frozen=True)
class AlphaBudget:
    """The probability of a false alarm at this check (`level`), of that over all checks (`alpha`)."""

    alpha: float
    number: int = 1
    level: float = NAN

    @staticmethod
    def only(alpha: float) -> "AlphaBudget":
        """For a single check, which may spend everything."""
        return AlphaBudget(alpha, 1, alpha)

    @staticmethod
    def of_check(number: int, alpha: float) -> "AlphaBudget":
        """alpha * 6 / (pi * number)^2: over any number of checks, these add up to at most alpha.

        >>> round(sum(AlphaBudget.of_check(k, 0.05).level for k in range(1, 100_000)), 5)
        0.05
        """
        return AlphaBudget(alpha, number, alpha * 6 / (np.pi * number) ** 2)


@dataclass(frozen=True, kw_only=True)
class Check(Result):
    """One comparison of current predictions with the reference."""

    n_reference: int
    n_current: int
    findings: tuple[Finding, ...]
    parts: tuple[PartFinding, ...]  # of predicted classes and of groups
    unfamiliar: tuple[tuple[str, float], ...]  # the most unfamiliar rows: id, or row number, and score
    unfamiliar_by: str  # the score that ranks them
    labelled: bool  # whether the reference's labels are used for the estimate
    reference_measured: bool  # whether its accuracy comes from labels
    estimator: str
    calibrated: bool
    reference_accuracy: Interval  # measured where there are labels, else estimated
    accuracy: Interval  # estimated
    drop: Interval  # of the estimate: reference less current
    smallest_drop: float  # of the estimate that would have been detected with probability POWER
    budget: AlphaBudget
    bound: float | None

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
        novelty["novelty"] = predictions.novelty.numpy()
    surplus, accuracy = _against_labels(calibrated)
    vectors = predictions.average().logits[0].double().numpy()
    one_label = predictions.kind is LabelKind.ONE_LABEL
    outcomes = calibrated.outcomes
    known = one_label and surplus is not None
    features = predictions.features
    return Scores(
        confidence=confidences(calibrated),
        novelty=novelty,
        accepted=None if thresholds is None else thresholds.accepted(predictions).astype(float),
        surplus=surplus,
        accuracy=accuracy,
        calibrated=calibration is not None,
        vectors=vectors,
        classes=vectors.argmax(axis=1) if one_label else None,
        labelled=Reference(outcomes.confidence, outcomes.correct.astype(float)) if known else None,
        features=None if features is None else features.double().numpy(),
        ids=predictions.ids,
        groups=predictions.groups,
        class_names=predictions.class_names or tuple(str(index) for index in range(predictions.classes)),
    )


def energies(predictions: Predictions) -> Array:
    """The energy of each row, the mean over members: averaged logits have another one."""
    total = torch.zeros(predictions.n, dtype=torch.float64)
    for member in predictions.logits:

        def add(part: slice, logits: torch.Tensor, _scratch: torch.Tensor) -> None:
            total[part] += energy(logits, predictions.kind).cpu()

        map_chunks(member.unsqueeze(0), lambda one: one[0], add)
    mean: Array = total.numpy() / predictions.members
    return mean


def check_shift(
    reference: Scores, current: Scores, *, budget: AlphaBudget, bound: float | None = None
) -> Check:
    """Compare the current rows with the reference's."""
    for which, side in (("reference", reference), ("current", current)):
        if side.n < 2:
            raise InputError(f"the {which} predictions have {side.n} row; allowed: two or more")
    accuracy, drop, estimator = _estimated(reference, current)
    unfamiliar_by, scores = _unfamiliarity(reference, current)
    most = np.argsort(-scores, kind="stable")[:MOST_UNFAMILIAR]
    ids = np.arange(current.n) if current.ids is None else current.ids
    own_accuracy = reference.accuracy
    if reference.surplus is None:
        own_accuracy = _mean(reference.confidence)
    error = (drop.high - drop.low) / 2 / NORMAL
    tail = max(budget.level / 2, sys.float_info.min)  # of a level so small that half of it may be 0
    return Check(
        n_reference=reference.n,
        n_current=current.n,
        findings=_findings(reference, current, budget.level),
        parts=_parts(reference, current),
        unfamiliar=tuple((str(ids[row]), float(scores[row])) for row in most),
        unfamiliar_by=unfamiliar_by,
        labelled=reference.surplus is not None and estimator != AVERAGE,
        reference_measured=reference.surplus is not None,
        estimator=estimator,
        calibrated=current.calibrated,
        reference_accuracy=own_accuracy,
        accuracy=accuracy,
        drop=drop,
        smallest_drop=(NORMAL_CURVE.inv_cdf(POWER) - NORMAL_CURVE.inv_cdf(tail)) * error,
        budget=budget,
        bound=bound,
    )


def _findings(reference: Scores, current: Scores, level: float) -> tuple[Finding, ...]:
    """Every detector that both sides have the numbers for, with its p-value and the corrected one."""
    before, now = reference.confidence, current.confidence
    described = {"confidence": _shift("confidence", before, now, sign=-1)}
    detectors = higher("confidence", -before, -now)
    name = novelty_name(reference, current)
    if name is not None:
        before, now = reference.novelty[name], current.novelty[name]
        described[name] = _shift(name, before, now, sign=1)
        detectors += higher(name, before, now)
    if reference.accepted is not None and current.accepted is not None:
        described["coverage"] = _coverage(reference.accepted, current.accepted)
        detectors += higher("coverage", -reference.accepted, -current.accepted)[:1]
    detectors += kernel_distance("outputs", *_outputs(reference, current))
    if reference.features is not None and current.features is not None:
        detectors += kernel_distance("features", reference.features, current.features)
    results = {each.name: each for each in combine(detectors, current.n, level=level)} if detectors else {}
    found = {name: described.get(name, _nothing(name)) for name in (*described, *results)}
    for name, each in results.items():
        found[name] = replace(found[name], p=each.p, adjusted=each.adjusted)
    return tuple(found[name] for name in sorted(found, key=ORDER.index))


def _outputs(reference: Scores, current: Scores) -> list[Array]:
    """Both sides' average logits; the logs of their probabilities, if one side has only these."""
    vectors = [reference.vectors, current.vectors]
    if reference.classes is None or _have_energy(reference, current):
        return vectors
    return [torch.from_numpy(each).log_softmax(dim=1).numpy() for each in vectors]


def _have_energy(reference: Scores, current: Scores) -> bool:
    """Whether both sides are logits: the energy of probabilities is constant, and has no meaning."""
    return all(np.ptp(side.novelty["energy"]) > LEAST_RANGE for side in (reference, current))


def _nothing(name: str) -> Finding:
    """A comparison of vectors, which have no single mean."""
    return Finding(name, NAN, NAN, NO_INTERVAL, NAN, NO_INTERVAL, 1.0, 1.0)


def _parts(reference: Scores, current: Scores) -> tuple[PartFinding, ...]:
    """Predicted classes, and groups where both sides have them, corrected for their number."""
    confidence = reference.confidence, current.confidence
    found: list[PartFinding] = []
    if reference.classes is not None and current.classes is not None:
        names = np.array(reference.class_names)
        found += part_findings("class", (names[reference.classes], names[current.classes]), confidence)
    if reference.groups is not None and current.groups is not None:
        found += part_findings("group", (reference.groups, current.groups), confidence)
    corrected = holm([each.p for each in found])
    return tuple(replace(each, adjusted=p) for each, p in zip(found, corrected, strict=True))


def _unfamiliarity(reference: Scores, current: Scores) -> tuple[str, Array]:
    """The score that ranks current rows by how unfamiliar they are, and its name."""
    if reference.features is not None and current.features is not None:
        known, rows = (torch.from_numpy(side) for side in (reference.features, current.features))
        return "distance of features", neighbour_distances(rows, known, device=torch.device("cpu")).numpy()
    name = novelty_name(reference, current)
    return ("1 - confidence", 1 - current.confidence) if name is None else (name, current.novelty[name])


def _estimated(reference: Scores, current: Scores) -> tuple[Interval, Interval, str]:
    """The accuracy and its drop, by the estimator with the lowest error in benchmarks/results/accuracy.md.

    With a calibration the mean confidence. Without one, ATC if the reference has labels; for many labels
    the difference of confidences.
    """
    confidence = current.confidence
    if current.calibrated or reference.surplus is None:
        return _mean(confidence), _difference(reference.confidence, confidence), AVERAGE
    if reference.labelled is None:
        value = float(np.clip(confidence.mean() + reference.surplus.mean(), 0, 1))
        accuracy = _normal_interval(value, [confidence, reference.surplus], (0.0, 1.0))
        return accuracy, _difference(reference.confidence, confidence), DIFFERENCE
    labelled = reference.labelled
    value = thresholded_confidence(labelled, confidence)
    # Two counts: current rows above the threshold, and wrong reference rows, which place it.
    now, before = (Proportion.of(round(share * n), n) for share, n in (
        (value, current.n), (float(labelled.correct.mean()), len(labelled.correct))
    ))  # fmt: skip
    sides = [Interval(each.value, each.low, each.high) for each in (now, before)]
    drop = difference_of_proportions(sides[1], sides[0])
    low, high = (float(np.clip(before.value - end, 0, 1)) for end in (drop.high, drop.low))
    return Interval(value, low, high), drop, THRESHOLDED


def _mean(confidence: Array) -> Interval:
    return _normal_interval(float(confidence.mean()), [confidence], (0.0, 1.0))


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


def _against_labels(calibrated: Predictions) -> tuple[Array | None, Interval]:
    """Correct less confidence per labelled row (many labels: the mean over its classes); and the accuracy."""
    outcomes = calibrated.outcomes
    decisions = np.bincount(outcomes.row, minlength=calibrated.n)
    known = decisions > 0
    if known.sum() < 2:
        return None, NO_INTERVAL
    surplus = (
        np.bincount(outcomes.row, outcomes.correct - outcomes.confidence, calibrated.n)[known]
        / decisions[known]
    )
    if len(outcomes.blocks) == 1:
        k = Proportion.of(int(outcomes.correct.sum()), len(outcomes.row))
        return surplus, Interval(k.value, k.low, k.high)
    correct = np.bincount(outcomes.row, outcomes.correct, calibrated.n)[known] / decisions[known]
    return surplus, _mean(correct)


def _shift(name: str, reference: Array, current: Array, *, sign: int) -> Finding:
    return Finding(
        name=name,
        reference=float(reference.mean()),
        current=float(current.mean()),
        change=_difference(current, reference),
        distance=_distance(reference, current),
        more_novel=_probability_above(sign * reference, sign * current),
        p=1.0,
        adjusted=1.0,
    )


def _distance(reference: Array, current: Array) -> float:
    """Kolmogorov-Smirnov: the largest difference of the shares at or below a value."""
    both = np.concatenate([reference, current])
    shares = [np.searchsorted(np.sort(side), both, "right") / len(side) for side in (reference, current)]
    return float(np.abs(shares[0] - shares[1]).max())


def _coverage(reference: Array, current: Array) -> Finding:

    sides = [Proportion.of(int(side.sum()), len(side)) for side in (reference, current)]
    before, now = (Interval(side.value, side.low, side.high) for side in sides)
    return Finding(
        name="coverage",
        reference=before.value,
        current=now.value,
        change=difference_of_proportions(now, before),
        distance=NAN,
        more_novel=NO_INTERVAL,
        p=1.0,
        adjusted=1.0,
    )


def _probability_above(reference: Array, current: Array) -> Interval:
    """P(current > reference), ties half, with DeLong's interval (Biometrics 1988)."""
    n, m = len(reference), len(current)
    ranks = average_ranks(np.concatenate([reference, current]))
    # The share of the other side's rows that are below each row.
    below_current = (ranks[n:] - average_ranks(current)) / n
    below_reference = (ranks[:n] - average_ranks(reference)) / m
    value = float(below_current.mean())
    return _normal_interval(value, [below_current, below_reference], (0.0, 1.0))


def _difference(a: Array, b: Array) -> Interval:
    """The mean of a less the mean of b."""
    return _normal_interval(float(a.mean() - b.mean()), [a, b], (-np.inf, np.inf))


def _normal_interval(value: float, samples: list[Array], limits: tuple[float, float]) -> Interval:
    """A 95% interval from the variances of the independent samples behind the value."""
    fewest = min(len(each) for each in samples)
    if fewest < 2:
        return Interval(value)
    error = float(np.sqrt(sum(each.var(ddof=1) / len(each) for each in samples)))
    reach = NORMAL * few_samples_factor(fewest) * error
    return Interval(value, max(limits[0], value - reach), min(limits[1], value + reach))
