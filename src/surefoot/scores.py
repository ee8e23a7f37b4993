"""What an evaluation found, as plain values: numbers with error bars, per side, their gap, what changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from surefoot.kinds import LabelKind
from surefoot.metrics import Metric
from surefoot.statistics import NAN

GROUP_METRICS = ("nll", "brier", "label_error", "ece", "e99")
SIDES = ("familiar", "unfamiliar")


@dataclass(frozen=True)
class Score:
    """A metric's value with its 95% interval; k of n where it is a proportion."""

    value: float
    low: float = NAN
    high: float = NAN
    k: int | None = None
    n: int | None = None
    bound: float | None = None  # how far a streamed value may be off, NaN if unknown; None: it is exact


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
    independent: int  # rows, or groups where there are groups: what the intervals rest on
    metrics: Mapping[str, Score]
    groups: tuple[GroupScores, ...] = ()

    def worst(self, name: str) -> GroupScores | None:
        """The group with the highest value of a metric for which lower is better; None if all are equal."""
        defined = [group for group in self.groups if np.isfinite(group.metrics[name].value)]
        if len({group.metrics[name].value for group in defined}) < 2:
            return None
        return max(defined, key=lambda group: group.metrics[name].value)


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found: scores per side, their gap, and where calibrated the scores before it."""

    metrics: tuple[Metric, ...]
    resamples: int
    sides: Mapping[str, SetScores]
    gap: Mapping[str, Score] = field(default_factory=dict)
    uncalibrated: Mapping[str, SetScores] = field(default_factory=dict)
    change: Mapping[str, Mapping[str, Score]] = field(default_factory=dict)  # calibrated less uncalibrated
