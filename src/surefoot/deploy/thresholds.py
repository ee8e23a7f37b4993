"""Thresholds on the confidence: accept, leave to a person, reject; with a guarantee on familiar data.

Twenty candidates are named before any label is looked at: accept all, or those more confident than the row
at rank n/20, 2n/20, ... Given the confidence t of the row at a fixed rank, the rows above it are independent
draws from all that are more confident than t, so the wrong ones among them are binomial, and an exact test
says whether the error there is above the target. All twenty are tested at once, each at a twentieth of
1 - level (Bonferroni): with probability `level`, every candidate that passes keeps its promise, so the
largest may be taken. Angelopoulos et al., "Learn then test", 2021; the tests are MAPIE's.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from surefoot.calibrators import Calibration
from surefoot.deploy.confidences import confidences
from surefoot.errors import InputError
from surefoot.outcomes import DECIMALS, Array
from surefoot.predictions import LabelKind, Predictions
from surefoot.statistics import Proportion

CANDIDATES = 20
TARGET_ERROR = 0.01
REJECT_ERROR = 0.5
LEVEL = 0.95
STEP = 10.0**-DECIMALS  # confidences have so many decimals: 'above t' is 'at or above t + STEP'

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Promise:
    """What is asked of the thresholds."""

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
    """One way to accept: at or above `accept`, such a share, with an error of at most `bound`.

    The bounds of all candidates hold together, with the promise's level.
    """

    accept: float
    share: float
    wrong: int
    n: int
    bound: float


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """At or above `accept`: take the answer; below `reject`: throw it away; between: a person looks."""

    accept: float
    reject: float  # 0 where nothing could be shown to be wrong often enough
    promise: Promise
    bound: float  # of the error among the accepted; at most the target
    n: int
    classes: int
    zones: dict[str, Zone]  # accept, review, reject, on the data they were chosen on
    candidates: tuple[Candidate, ...]
    for_class: str | None = None
    calibration: Calibration | None = None

    def seen(self, predictions: Predictions) -> Predictions:
        """The predictions as the thresholds want them: calibrated, of one class where they are for one."""
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
        return confidences(self.seen(predictions)) >= self.accept

    def zones_of(self, predictions: Predictions) -> dict[str, Zone]:
        """What the thresholds do to labelled predictions."""
        return zones(self.seen(predictions), self.accept, self.reject)


@dataclass(frozen=True)
class Unreachable:
    """No threshold keeps the promise: what every candidate could promise instead."""

    promise: Promise
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The candidate with the lowest bound."""
        return min(self.candidates, key=lambda each: each.bound)


def choose_thresholds(
    val: Predictions,
    promise: Promise = Promise(),  # noqa: B008 frozen
    *,
    calibration: Calibration | None = None,
    for_class: str | None = None,
) -> Thresholds | Unreachable:
    """The lowest confidence to accept and the highest to reject that keep the promise on data like `val`."""
    calibrated = val if calibration is None else calibration(val)
    seen = calibrated if for_class is None else calibrated.of_class(for_class)
    sure, right = _decisions(seen)
    candidates = _candidates(sure, ~right, promise.level)
    kept = _kept(sure, ~right, most=promise.target_error, level=promise.level)
    if not kept:
        return Unreachable(promise, candidates)
    accept = max(0.0, round(min(kept) + STEP, DECIMALS))
    # Turned round: the least sure first, and 'missed' is to be right.
    rejected = _kept(-sure, right, most=1 - promise.reject_error, level=promise.level)
    reject = max([-cut for cut in rejected if 0 <= -cut <= accept], default=0.0)
    return Thresholds(
        accept=accept,
        reject=reject,
        promise=promise,
        bound=next(each.bound for each in candidates if each.accept == accept),
        n=len(sure),
        classes=seen.classes,
        zones=zones(seen, accept, reject),
        candidates=candidates,
        for_class=for_class,
        calibration=calibration,
    )


def split_rows(predictions: Predictions, share: float, seed: int) -> tuple[Predictions, Predictions]:
    """Two parts by lot: such a share of the rows, and the rest."""
    first = round(share * predictions.n)
    if not 0 < first < predictions.n:
        raise InputError(f"a share of {share:g} of {predictions.n} rows leaves a part empty; allowed: 0 to 1")
    order = np.random.default_rng(seed).permutation(predictions.n)
    return predictions.take(np.sort(order[:first])), predictions.take(np.sort(order[first:]))


def zones(predictions: Predictions, accept: float, reject: float) -> dict[str, Zone]:
    """Shares and errors at or above `accept`, between, and below `reject`."""
    sure, right = _decisions(predictions)
    accepted, rejected = sure >= accept, sure < reject
    where = {"accept": accepted, "review": ~(accepted | rejected), "reject": rejected}
    return {
        name: Zone(
            Proportion.of(int(inside.sum()), len(sure)),
            Proportion.of(int((inside & ~right).sum()), int(inside.sum())),
        )
        for name, inside in where.items()
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
    """The score at every twentieth rank from the top; what is above a cut is the candidate. Last: all."""
    ranked = np.sort(score)[::-1]
    ranks = [min(-(-len(ranked) * part // CANDIDATES), len(ranked) - 1) for part in range(1, CANDIDATES)]
    return np.append(ranked[ranks], -np.inf)


def _kept(score: Array, missed: Bools, *, most: float, level: float) -> list[float]:
    """The cuts above which, with probability `level` for all of them at once, at most `most` are missed."""
    controller_of, risk_of = _mapie()
    risk = risk_of(lambda true, _: true == 1, lambda _, taken: taken == 1, higher_is_better=False)
    controller = controller_of(
        lambda scores, cut: (scores > cut).astype(int),
        risk,
        target_level=most,
        confidence_level=level,
        best_predict_param_choice=risk,
        list_predict_params=_cuts(score)[:, None],
        fwer_method="bonferroni",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no threshold is valid, which we say ourselves
        controller.calibrate(score, missed)
    return [float(cut) for cut in controller.valid_predict_params.ravel()]


def _mapie() -> tuple[Any, Any]:
    try:
        from mapie.risk_control import BinaryClassificationController, BinaryRisk
    except ImportError as error:
        raise InputError(
            "thresholds need MAPIE; install it with: pip install 'surefoot[thresholds]'"
        ) from error
    return BinaryClassificationController, BinaryRisk


def _candidates(sure: Array, wrong: Bools, level: float) -> tuple[Candidate, ...]:
    """Every candidate with the exact upper end of its error, all of them at once."""
    found = {}
    for cut in _cuts(sure):
        inside = sure > cut
        n, k = int(inside.sum()), int((inside & wrong).sum())
        tail = (1 - level) / CANDIDATES
        bound = float(beta.ppf(1 - tail, k + 1, n - k)) if k < n else 1.0
        accept = max(0.0, round(cut + STEP, DECIMALS))
        found[accept] = Candidate(accept, n / len(sure), k, n, bound)
    return tuple(found.values())
