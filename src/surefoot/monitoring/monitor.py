"""Shift detection: predictions without labels compared with a reference from familiar data."""

import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa

from surefoot.calibrators import Calibration
from surefoot.decisions.chunks import Keys, first_rows
from surefoot.decisions.groups import Grouped, mean_of, normal_interval, number_of_groups, warn_of_repeated
from surefoot.decisions.thresholds import Thresholds
from surefoot.errors import InputError, require
from surefoot.io import all_or_none
from surefoot.metrics.intervals import NORMAL, Interval
from surefoot.monitoring.detectors import (
    LEAST_RANGE,
    MOST_ROWS,
    Detector,
    Ranked,
    Role,
    class_cosine,
    combine,
    higher,
    kernel_distance,
    label_uncertainty,
    mean_change,
)
from surefoot.monitoring.findings import (
    Finding,
    PartFinding,
    coverage_of,
    difference,
    holm,
    part_findings,
    shift_of,
    without_means,
)
from surefoot.monitoring.history import AlphaBudget, opened
from surefoot.monitoring.scores import Scores, scores_of
from surefoot.predictions.arguments import checked
from surefoot.predictions.classes import in_one_order
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.predictions.novelty import energy, neighbour_distances
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.scanned import ScannedPredictions
from surefoot.results import Result
from surefoot.text import count_of

# On unfamiliar data accuracy fell 2 to 10 times as much as the mean confidence; of the factors 1, 2 and 3,
# this one has the lowest error there (benchmarks/results/monitor.md).
FALL_FACTOR = 3.0
DIFFERENCE = "difference of confidences"  # Guillory et al., ICCV 2021
SCALED = f"{DIFFERENCE}, a fall counted three times"
FEW_ROWS = 50
POWER = 0.8  # of the smallest drop that a check would have detected
MOST_UNFAMILIAR = 20  # rows that are listed
NORMAL_CURVE = NormalDist()
TITLES = {  # of detectors, as they are listed
    "confidence": "confidence",
    "energy": "novelty (energy)",
    "energy tail": "novelty (energy), highest",
    "novelty": "novelty",
    "novelty tail": "novelty, highest",
    "coverage": "share accepted",
    "features": "features",
    "class cosine": "features, similarity to their class",
    "outputs": "outputs (any change)",
    "together": "all of these together",
}


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


def check_shift(
    reference: Scores, current: Scores, *, budget: AlphaBudget, bound: float | None = None, repeated: str = ""
) -> Check:
    """Compare the current rows with the reference's; `repeated` is a column that should be their groups."""
    for which, side in (("reference", reference), ("current", current)):
        if side.n < 2:
            raise InputError(f"the {which} predictions have {side.n} row; allowed: two or more")
    _refuse_other_features(reference, current)
    estimated = _estimated(reference, current)
    unfamiliar_by, unfamiliar = _unfamiliar(reference, current)
    own_accuracy = reference.accuracy
    if reference.surplus is None:
        own_accuracy = mean_of(reference.grouped(reference.confidence))
    tail = max(budget.level / 2, sys.float_info.min)  # of a level so small that half of it may be 0
    return Check(
        n_reference=reference.n,
        n_current=current.n,
        groups=_numbers_of_groups(reference, current),
        findings=_findings(reference, current, budget.level),
        parts=_parts(reference, current),
        unfamiliar=unfamiliar,
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
    in_groups = _grouping(reference, current)  # at once: rows need far more memory than groups
    sides = reference.grouped(reference.confidence), current.grouped(current.confidence)
    finding, of_confidence = _compared("confidence", *sides, sign=-1)
    described = {"confidence": finding}
    many_labels = reference.classes is None
    detectors = in_groups(_scores_of_many_labels(reference, current) if many_labels else of_confidence)
    name = novelty_name(reference, current)
    if name is not None and not (many_labels and name == "energy"):
        sides = reference.grouped(reference.novelty[name]), current.grouped(current.novelty[name])
        described[name], of_novelty = _compared(name, *sides, sign=1)
        detectors += in_groups(of_novelty)
    if reference.accepted is not None and current.accepted is not None:
        sides = reference.grouped(reference.accepted), current.grouped(current.accepted)
        described["coverage"] = coverage_of(*sides)
        accepted = higher("coverage", Ranked.of(reference.accepted, current.accepted), -1)
        detectors += in_groups([replace(each, role=Role.SHOWN) for each in accepted])
    of_features = _of_features(reference, current)
    detectors += in_groups(of_features or _of_outputs(reference, current))
    _, now = _numbers_of_groups(reference, current) or (reference.n, current.n)
    results = {each.name: each for each in combine(detectors, now, level=level)} if detectors else {}
    found = {name: described.get(name, without_means(name)) for name in (*described, *results)}
    for name, each in results.items():
        found[name] = replace(found[name], p=each.p, adjusted=each.adjusted)
    return tuple(found[name] for name in sorted(found, key=list(TITLES).index))


def _compared(name: str, before: Grouped, now: Grouped, *, sign: int) -> tuple[Finding, list[Detector]]:
    ranked = Ranked.of(before[0], now[0])
    return shift_of(name, before, now, ranked, sign=sign), higher(name, ranked, sign)


def _grouping(reference: Scores, current: Scores) -> Callable[[list[Detector]], list[Detector]]:
    """What makes detectors of rows those of whole groups, each of one side, where there are any."""
    groups = _numbers_of_groups(reference, current)
    if groups is None:
        return lambda detectors: detectors
    before, now = (
        np.arange(side.n, dtype=np.int32) if side.group_of is None else side.group_of
        for side in (reference, current)
    )
    of_row = np.concatenate([before, groups[0] + now])
    return lambda detectors: [each.of_groups(of_row) for each in detectors]


def _scores_of_many_labels(reference: Scores, current: Scores) -> list[Detector]:
    """One score: the mean rank of the labels' uncertainty and of the energy, where there is one.

    Of many rows that of their mean confidence, instead of each label's.
    """
    if reference.probs is None or current.probs is None:
        detectors = higher("confidence", Ranked.of(reference.confidence, current.confidence), -1)
    else:
        uncertainty = label_uncertainty(reference.probs, current.probs)
        detectors = higher("confidence", Ranked.of(*uncertainty))[:1]
    if detectors and _have_energy(reference, current):
        detectors += higher("energy", Ranked.of(reference.novelty["energy"], current.novelty["energy"]))[:1]
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
            groups = Keys.joined([reference.groups, current.groups]).group_of
        detectors += class_cosine("class cosine", features, most, groups)
    return detectors


def _of_outputs(reference: Scores, current: Scores) -> list[Detector]:
    """Average logits; the logs of their probabilities, if one side has only these. Not of many rows."""
    before, now = reference.vectors, current.vectors
    if before is None or now is None:
        return []
    if reference.classes is not None and not _have_energy(reference, current):
        before, now = (each + energy(each, LabelKind.ONE_LABEL)[:, None] for each in (before, now))
    return kernel_distance("outputs", before, now)


def _have_energy(reference: Scores, current: Scores) -> bool:
    """Whether both sides are logits of all classes: other energies are constant, and have no meaning."""
    return all(np.ptp(side.novelty["energy"]) > LEAST_RANGE for side in (reference, current))


def _parts(reference: Scores, current: Scores) -> tuple[PartFinding, ...]:
    """Predicted classes, and groups where both sides have them, corrected for their number."""
    confidence = reference.confidence, current.confidence
    found: list[PartFinding] = []
    if reference.classes is not None and current.classes is not None:
        names = pa.array(reference.class_names)  # of both: they are in one order, and one may have no names
        predicted = Keys(names, reference.classes), Keys(names, current.classes)
        found += part_findings("class", predicted, confidence, (reference.group_of, current.group_of))
    if reference.groups is not None and current.groups is not None:
        found += part_findings("group", (reference.groups, current.groups), confidence)
    corrected = holm([each.p for each in found])
    return tuple(replace(each, adjusted=p) for each, p in zip(found, corrected, strict=True))


def _unfamiliar(reference: Scores, current: Scores) -> tuple[str, tuple[tuple[str, float], ...]]:
    """The score that ranks current rows by how unfamiliar they are, and the rows where it is highest.

    Distances of features take the time of all pairs: they are for as many rows as their tests.
    """
    name = novelty_name(reference, current)
    few = reference.n + current.n <= MOST_ROWS
    if few and reference.features is not None and current.features is not None:
        name, scores = "distance of features", neighbour_distances(current.features, reference.features)
    elif name is None:
        name, scores = "1 - confidence", 1 - current.confidence
    else:
        scores = current.novelty[name]
    count = min(MOST_UNFAMILIAR, len(scores))
    rows = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
    most = rows[np.argsort(-scores[rows], kind="stable")][:count].tolist()
    ids = most if current.ids is None else current.ids.take(most).to_pylist()
    return name, tuple((str(each), float(scores[row])) for each, row in zip(ids, most, strict=True))


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
    ends = (fall.value, fall.low, fall.high)
    drop = Interval(*(factor * each if each > 0 else each for each in ends))  # a rise counts once
    surplus = reference.surplus
    if surplus is None:
        base, of_reference = float(reference.confidence.mean()), (1 - factor) * reference.confidence
    else:
        base = float(reference.correct.mean())
        of_reference = factor * surplus + (1 - factor) * reference.correct
    value = float(np.clip(base - drop.value, 0, 1))
    samples = [reference.grouped(of_reference), (factor * now[0], now[1])]
    accuracy = normal_interval(value, samples, (0.0, 1.0))
    return Estimated(accuracy, drop, name, factor * (fall.high - fall.low) / 2 / NORMAL)


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


@checked
def monitor(
    reference: Predictions | ScannedPredictions,
    current: Predictions | ScannedPredictions,
    *,
    calibration: Calibration | None = None,
    thresholds: Thresholds | None = None,
    alpha: float = 0.05,
    bound: float | None = None,
    history: str | Path | None = None,
    first_share: float | None = None,
    source: str = "",
    on_check: Callable[["Checked"], object] = lambda _: None,
) -> Check:
    """Compare predictions with a familiar reference: has the data shifted? Labels of `current` are not used.

    `alpha` is the probability of any false alarm, over all checks of the `history`, a file that is needed if
    you check more than once; `source` names the current data there. `first_share` of it goes to the first
    check of a history (0.61 unless given), the rest to all others. `bound`: alarm only if the estimated
    accuracy has also dropped by at least this much. With `thresholds`, the share accepted is compared too,
    and their calibration is used. Where rows have groups, whole groups are compared. `on_check` is called
    before the check is recorded: if it fails, or a file that it writes, the history is as it was.

    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
    >>> sure = val.with_logits(3 * val.logits)
    >>> monitor(val, val).alarm, monitor(val, sure).alarm
    (False, True)
    """
    require(0 < alpha < 1, "alpha", alpha, "above 0 and below 1")
    require(bound is None or 0 <= bound <= 1, "bound", bound, "0 to 1")
    require(first_share is None or 0 < first_share < 1, "first_share", first_share, "above 0 and below 1")
    if first_share is not None and history is None:
        raise InputError("first_share without a history; allowed: both (a single check has all of alpha)")
    if thresholds is not None and thresholds.calibration is not None:
        if calibration is not None:
            raise InputError("the thresholds already contain a calibration; allowed: no other calibration")
        calibration = thresholds.calibration
    first = first_rows(reference)
    if isinstance(current, ScannedPredictions):
        current = replace(current, unlabelled=first.kind)

    def as_reference(rows: Predictions) -> Predictions:
        unlabelled = replace(rows, labels=np.full_like(rows.labels, IGNORE))
        return in_one_order({"reference": first, "current": unlabelled})["current"]

    as_reference(first_rows(current))  # which refuses another classifier before everything is read
    accepted = None if thresholds is None else thresholds.accepted
    before = scores_of(reference, calibration=calibration, accepted=accepted)
    after = scores_of(current, calibration=calibration, accepted=accepted, arranged=as_reference)
    with recorded_check(
        before,
        after,
        alpha=alpha,
        bound=bound,
        history=history,
        source=source,
        first_share=first_share,
        repeated=warn_of_repeated(before.identities, after.identities),
    ) as checked:
        on_check(checked)
    return checked.check


@dataclass(frozen=True, eq=False)
class Checked:
    """A check with the scores that it compared, and the history with this check at its end."""

    check: Check
    reference: Scores
    current: Scores
    checks: tuple[dict[str, Any], ...]


@contextmanager
def recorded_check(
    reference: Scores,
    current: Scores,
    *,
    alpha: float,
    bound: float | None,
    history: str | Path | None,
    source: str,
    first_share: float | None = None,
    repeated: str = "",
) -> Iterator[Checked]:
    """A check, recorded in the history when everything has succeeded that is done with it.

    Without a history, a single check that may spend all of alpha.
    """
    if history is None:
        budget = AlphaBudget.only(alpha)
        check = check_shift(reference, current, budget=budget, bound=bound, repeated=repeated)
        with all_or_none():
            yield Checked(check, reference, current, ())
        return
    name = fingerprint(reference)
    # Locked until it is written: two checks at once would spend the same budget.
    given = opened(Path(history), alpha=alpha, reference=name, first_share=first_share)
    with given as past, all_or_none():
        budget = AlphaBudget.of_check(past.count + 1, alpha, past.first_share)
        check = check_shift(reference, current, budget=budget, bound=bound, repeated=repeated)
        recorded = past.added(check, reference=name, source=source)
        recorded.write()  # under a temporary name, until everything else has succeeded
        yield Checked(check, reference, current, recorded.checks)
