"""Confidence thresholds: accept, review, reject; with a guarantee on familiar data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from surefoot.calibrators import Calibration, fit_calibration
from surefoot.decisions.chunks import Decisions, Source, facts_of, first_rows, joined
from surefoot.decisions.groups import (
    PREDICTED_CLASS,
    of_groups,
    proportion_of,
    some_of,
    split_rows,
    warn_of_repeated,
)
from surefoot.decisions.learn_then_test import ErrorTest, candidate_bounds, valid_cuts
from surefoot.errors import InputError, require, require_whole
from surefoot.metrics.intervals import Proportion
from surefoot.predictions.arguments import checked
from surefoot.predictions.classes import class_names_of, in_one_order, unnamed, with_classes
from surefoot.predictions.labels import LabelKind, short
from surefoot.predictions.outcomes import DECIMALS, Array, Bools
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.scanned import ScannedPredictions
from surefoot.results import Result
from surefoot.text import rounded_up

TARGET_ERROR = 0.01
REJECT_ERROR = 0.5
LEVEL = 0.95
STEP = 10.0**-DECIMALS  # confidences have so many decimals: 'above t' is 'at or above t + STEP'


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
        decisions = Decisions.of(self.prepare(predictions), self.per)
        return decisions.confidence >= self._limits(decisions)[0]

    @checked
    def zones_of(self, predictions: Predictions | ScannedPredictions) -> dict[str, Zone]:
        """The zones of labelled predictions."""
        return self.zones_in(self.decisions_of(predictions))

    def decisions_of(self, source: Source) -> Decisions:
        """The decisions of predictions with a label."""
        decisions = joined(facts_of(source, lambda rows: Decisions.of(self.prepare(rows), self.per)))
        if not decisions.known.any():
            raise InputError(
                "no labels to choose thresholds on; allowed: predictions with at least one label"
            )
        return decisions

    def zones_in(self, decisions: Decisions) -> dict[str, Zone]:
        """The zones of decisions."""
        within = decisions if self.per is None else decisions.ungrouped(decisions.parts)
        return zones(within, *self._limits(decisions))

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

    def _limits(self, decisions: Decisions) -> tuple[Array, Array]:
        """`accept` and `reject` for each row."""
        if decisions.parts is None:
            return np.array(self.accept), np.array(self.reject)
        others = Part(self.accept, self.reject, 0)
        pairs = [self.parts.get(name, others) for name in decisions.parts.names]
        accept, reject = (np.array([getattr(pair, end) for pair in pairs]) for end in ("accept", "reject"))
        return accept[decisions.parts.codes], reject[decisions.parts.codes]


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


@checked
def choose_thresholds(
    val: Predictions | ScannedPredictions,
    *,
    target_error: float = TARGET_ERROR,
    reject_error: float = REJECT_ERROR,
    level: float = LEVEL,
    familiar_test: Predictions | ScannedPredictions | None = None,
    unfamiliar: Predictions | ScannedPredictions | None = None,
    calibration: Calibration | None = None,
    split: float | None = None,
    seed: int = 0,
    for_class: str | None = None,
    per: str | None = None,
) -> Thresholds | Unreachable:
    """The lowest confidence to accept and the highest to reject, with a guarantee on data like `val`.

    With probability `level` over the draw of `val`, at most `target_error` of the accepted predictions are
    wrong, on familiar data. `familiar_test` and `unfamiliar` show what the thresholds do elsewhere.
    `calibration` should be fitted on other rows than `val`; `split` fits a temperature on that share of
    `val`, and chooses on the rest. `per` chooses for each predicted class ('class') or each group of a column
    ('groups', or its name), each with a guarantee about the rows of its own part; `seed` is that of the
    random parts of `val`. Where rows have groups, the guarantee is for a random row of a new group.
    `Unreachable` says which error can be guaranteed instead.

    >>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
    >>> thresholds = choose_thresholds(val, target_error=0.4)
    >>> bool(thresholds.accepted(val).all())  # 25% are wrong, at most 31% with probability 0.95
    True
    >>> choose_thresholds(val, target_error=0.1)
    Confidence thresholds: none
    No threshold can guarantee an error of at most 0.1 ...
    """
    if calibration is not None and split is not None:
        raise InputError("both calibration and split; allowed: one of the two")
    require_whole("seed", seed, 0)
    if split is not None:
        require(0 < split < 1, "split", split, "above 0 and below 1")
        if not isinstance(val, Predictions):
            raise InputError("a split needs all rows of val in memory; allowed: read_predictions")
        for_fit, val = split_rows(val, split, seed)
        calibration = fit_calibration("temperature", for_fit)
    others = {"familiar test": familiar_test, "unfamiliar": unfamiliar}
    given = {name: source for name, source in others.items() if source is not None}
    first = first_rows(val)
    if calibration is not None:
        first = with_classes(first, calibration.class_names, "the calibration")
        val = first if isinstance(val, Predictions) else val
    sides = in_one_order({"val": first, **{name: first_rows(source) for name, source in given.items()}})
    given = {name: sides[name] if isinstance(each, Predictions) else each for name, each in given.items()}
    guarantee = Guarantee(target_error, reject_error, level)
    nothing = _nothing_accepted(first, guarantee, calibration, for_class, per)
    decisions = nothing.decisions_of(val)
    chosen = (_chosen if per is None else _chosen_of_parts)(nothing, decisions, seed)
    chosen = replace(chosen, repeated=warn_of_repeated(decisions.identities, per=per))
    if isinstance(chosen, Unreachable):
        return chosen
    return replace(chosen, measured={name: chosen.zones_of(source) for name, source in given.items()})


def _nothing_accepted(
    val: Predictions,
    guarantee: Guarantee,
    calibration: Calibration | None,
    for_class: str | None,
    per: str | None,
) -> Thresholds:
    """What is known of thresholds before they are chosen."""
    if val.kind is LabelKind.MANY_LABELS and for_class is None:
        raise InputError(
            "thresholds on many labels at once: the decisions of a row depend on one another, so no exact "
            "guarantee holds for them together; allowed: one class at a time (--for-class, "
            "in Python for_class)"
        )
    return Thresholds(
        accept=math.inf,
        reject=0.0,
        guarantee=guarantee,
        bound=guarantee.target_error,
        n=0,
        classes=val.classes if for_class is None else 2,
        zones={},
        candidates=(),
        for_class=for_class,
        calibration=calibration,
        class_names=val.class_names,
        per=per,
    )


def _chosen(nothing: Thresholds, decisions: Decisions, seed: int) -> Thresholds | Unreachable:
    within = decisions.ungrouped(None)
    chosen = _chosen_of_rows(nothing, within, seed)
    return chosen if within is decisions else replace(chosen, groups=1)


def _chosen_of_rows(nothing: Thresholds, decisions: Decisions, seed: int) -> Thresholds | Unreachable:
    confidence, correct = decisions.confidence[decisions.known], decisions.correct[decisions.known]
    n, groups, group_of, guarantee = len(confidence), decisions.number, decisions.group_of, nothing.guarantee
    target, level = guarantee.target_error, guarantee.level
    tested = ErrorTest(confidence, ~correct, target, level, group_of).in_random_order(seed)
    candidates = _candidates(tested)
    cuts = valid_cuts(tested, seed=seed)
    if not cuts:
        return Unreachable(guarantee, candidates, n, groups)
    accept = _above(min(cuts))
    reversed_rows = tested.reversed(1 - guarantee.reject_error)
    below = [-cut for cut in valid_cuts(reversed_rows, seed=seed)]
    reject = max([cut for cut in below if 0 <= cut <= accept], default=0.0)
    bounds = {each.accept: each.bound for each in candidates}
    return replace(
        nothing,
        accept=accept,
        reject=reject,
        bound=min(target, bounds.get(accept, 1.0)),
        n=n,
        zones=zones(decisions, np.array(accept), np.array(reject)),
        candidates=candidates,
        groups=groups,
    )


def _chosen_of_parts(nothing: Thresholds, decisions: Decisions, seed: int) -> Thresholds | Unreachable:
    assert decisions.parts is not None
    within = decisions.ungrouped(decisions.parts)
    rows_of = decisions.parts.rows_of(np.flatnonzero(decisions.known))
    parts, failures = {}, []
    for name, rows in sorted(zip(decisions.parts.names, rows_of, strict=True)):
        if not len(rows):
            continue
        chosen = _chosen_of_rows(nothing, within.take(rows), seed)
        if isinstance(chosen, Thresholds):
            parts[name] = Part(chosen.accept, chosen.reject, chosen.n)
        else:
            failures.append(chosen)
            parts[name] = Part(math.inf, 0.0, len(rows))
    if len(failures) == len(parts):
        return min(failures, key=lambda each: each.best.bound)
    chosen = replace(nothing, n=int(decisions.known.sum()), groups=within.number, parts=parts)
    return replace(chosen, zones=zones(decisions, *chosen._limits(decisions)))


def zones(decisions: Decisions, accept: Array, reject: Array) -> dict[str, Zone]:
    """Shares and errors at or above `accept`, between, and below `reject`: numbers, or one for each row."""
    known, group_of = decisions.known, decisions.group_of
    confidence, wrong = decisions.confidence[known], ~decisions.correct[known]
    upper, lower = (limit[known] if limit.ndim else limit for limit in (accept, reject))
    accepted = confidence >= upper
    rejected = (confidence < lower) & ~accepted
    rows = {"accept": accepted, "review": ~(accepted | rejected), "reject": rejected}
    return {
        name: Zone(proportion_of(inside, group_of), proportion_of(wrong[inside], some_of(group_of, inside)))
        for name, inside in rows.items()
    }


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
