"""The result of an evaluation as plain values and as a JSON document."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot import __version__
from surefoot.errors import require_whole
from surefoot.evaluation import MOST_RESAMPLES
from surefoot.metrics import Metric
from surefoot.metrics.intervals import (
    LEVEL,
    NAN,
    Interval,
    Proportion,
    difference_of_proportions,
    needs_exact,
)
from surefoot.predictions.arguments import checked
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import Array
from surefoot.results import Result

if TYPE_CHECKING:
    from surefoot.calibrators import Calibration
    from surefoot.predictions.predictions import Predictions

GROUP_METRICS = ("nll", "brier", "label_error", "ece", "e99")
SIDES = ("familiar", "unfamiliar")


def require_resampling(resamples: int, seed: int) -> None:
    """Refuse numbers that cannot be used."""
    require_whole("resamples", resamples, 0, MOST_RESAMPLES)
    require_whole("seed", seed, 0)


@dataclass(frozen=True)
class Score:
    """A metric's value with its 95% interval; k of n where it is a proportion."""

    value: float
    low: float = NAN
    high: float = NAN
    k: int | None = None
    n: int | None = None
    bound: float | None = (
        None  # how far a streamed value may be from the exact one, NaN if unknown; None: it is exact
    )


@dataclass(frozen=True)
class GroupScores:
    """One group's scores; those that are proportions have exact intervals."""

    group: str
    n: int  # rows with a label
    metrics: Mapping[str, Score]


@dataclass(frozen=True)
class SetScores:
    """All scores of one set of predictions."""

    n: int
    members: int
    classes: int
    kind: LabelKind
    independent: int  # rows, or groups where there are groups: how many the intervals are from
    metrics: Mapping[str, Score]
    groups: tuple[GroupScores, ...] = ()
    zeros: int = 0  # labels whose probability is exactly 0

    def worst(self, name: str) -> GroupScores | None:
        """The group with the highest value of a metric for which lower is better; None if all are equal."""
        defined = [group for group in self.groups if np.isfinite(group.metrics[name].value)]
        if len({group.metrics[name].value for group in defined}) < 2:
            return None
        return max(defined, key=lambda group: group.metrics[name].value)


@dataclass(frozen=True, eq=False)
class Scored:
    """One side of an evaluation."""

    scores: Sequence[SetScores]  # if there is a calibration: with it, then without
    change: Mapping[str, Score] = field(default_factory=dict)  # the first less the second
    drawn: Array | None = None  # the first one's metrics in each resample (metrics, resamples), if in memory


def counted(count: Proportion, low: float, high: float, *, independent: bool) -> Score:
    """k of n with its exact interval.

    Decisions of one row or group are not independent: of their interval and the exact one the wider ends.
    """
    if independent or not np.isfinite(low):
        return Score(count.value, count.low, count.high, count.k, count.n)
    return Score(count.value, min(count.low, low), max(count.high, high), count.k, count.n)


def change(ours: Score, theirs: Score, low: float, high: float) -> Score:
    """The first less the second of the same samples, with that interval unless it must be exact."""
    if needs_exact((ours.k, ours.n), (theirs.k, theirs.n)):
        return independent_difference(ours, theirs)
    return Score(ours.value - theirs.value, low, high, bound=_added(ours.bound, theirs.bound))


def independent_difference(ours: Score, theirs: Score) -> Score:
    """The difference of scores of independent samples, from their own intervals."""
    interval = difference_of_proportions(*(Interval(s.value, s.low, s.high) for s in (ours, theirs)))
    return Score(interval.value, interval.low, interval.high, bound=_added(ours.bound, theirs.bound))


def _added(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None else ours + (theirs or 0.0)


@checked
@dataclass(frozen=True)
class Evaluation(Result):
    """Scores per side, their gap, and with a calibration the scores before it and the change."""

    metrics: tuple[Metric, ...]
    resamples: int
    sides: Mapping[str, SetScores]
    gap: Mapping[str, Score] = field(default_factory=dict)
    uncalibrated: Mapping[str, SetScores] = field(default_factory=dict)
    change: Mapping[str, Mapping[str, Score]] = field(default_factory=dict)  # calibrated less uncalibrated
    # What was evaluated, before calibration, by side; empty where it was streamed
    predictions: "Mapping[str, Predictions]" = field(default_factory=dict, compare=False)
    calibration: "Calibration | None" = field(default=None, compare=False)


def evaluation_document(evaluation: Evaluation) -> dict[str, Any]:
    """{"familiar": {"n": .., "metrics": {"nll": {"value": .., "low": .., "high": ..}, ..}}, ..}."""
    document: dict[str, Any] = {"surefoot": __version__, "level": LEVEL, "resamples": evaluation.resamples}
    document |= {side: _set_document(scores) for side, scores in evaluation.sides.items()}
    if evaluation.gap:
        document["gap"] = _scores_document(evaluation.gap)
    if evaluation.change:
        document["uncalibrated"] = {s: _set_document(scores) for s, scores in evaluation.uncalibrated.items()}
        document["change"] = {side: _scores_document(scores) for side, scores in evaluation.change.items()}
    return document


def number(value: float) -> float | None:
    """The number, or None where it is undefined or infinite."""
    return value if math.isfinite(value) else None


def _set_document(scores: SetScores) -> dict[str, Any]:
    document: dict[str, Any] = {
        "n": scores.n,
        "members": scores.members,
        "classes": scores.classes,
        "kind": str(scores.kind),
        "independent": scores.independent,
        "metrics": _scores_document(scores.metrics),
    }
    if scores.zeros:
        document["zeros"] = scores.zeros
    if scores.groups:
        document["worst_group"] = {
            name: {"group": worst.group, "group_n": worst.n, **_score_document(worst.metrics[name])}
            for name in GROUP_METRICS
            if name in scores.metrics and (worst := scores.worst(name)) is not None
        }
        document["groups"] = [
            {"group": g.group, "n": g.n, "metrics": _scores_document(g.metrics)} for g in scores.groups
        ]
    return document


def _scores_document(scores: Any) -> dict[str, Any]:
    return {name: _score_document(score) for name, score in scores.items()}


def _score_document(score: Score) -> dict[str, Any]:
    document: dict[str, Any] = {
        "value": number(score.value),
        "low": number(score.low),
        "high": number(score.high),
    }
    if score.n is not None:
        document |= {"k": score.k, "n": score.n}
    if score.bound is not None:
        document["bound"] = number(score.bound)
    return document
