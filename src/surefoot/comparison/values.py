"""What is compared, and what a comparison found."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from surefoot.metrics import Metric
from surefoot.predictions import Predictions
from surefoot.scoring import SIDES
from surefoot.statistics import NAN

Place = tuple[str, str]  # the side and the metric's name
Pair = tuple[str, str]  # two methods' names


@dataclass(frozen=True, eq=False)
class Said:
    """What one run of one method said, after calibration."""

    run: int
    familiar: Predictions
    unfamiliar: Predictions | None = None

    def side(self, name: str) -> Predictions | None:
        """The predictions of one side."""
        return dict(zip(SIDES, (self.familiar, self.unfamiliar), strict=True))[name]


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """A method with its runs, and what a table says of it."""

    name: str
    title: str
    runs: tuple[Said, ...] = ()
    paper: str | None = None  # the row's name in the paper's complete table
    spread_of: str | None = None  # for a method run once: the method whose runs' variance stands for its own
    cheating: bool = False  # tuned on unfamiliar data: shown, never competing
    beyond: bool = False  # a method that the paper does not have
    together: bool = False  # its runs join networks, so a run's number means none of another method's
    seconds_training: float | None = None
    seconds_per_sample: float | None = None
    parameters: float | None = None
    missing: tuple[str, ...] = ()  # networks not there: counted and named, never averaged in


class Mark(StrEnum):
    """How a method stands against the best in one column."""

    BEST = "best"
    LEVEL = "level"  # not significantly worse than the best
    WORSE = "worse"  # significantly worse than the best
    BEST_UNTESTED = "best, untested"  # the best number, but too few runs for a test
    UNTESTED = "untested"


@dataclass(frozen=True)
class RunScore:
    """A metric's value in one run; k of n where it is a proportion."""

    run: int
    value: float
    k: int | None = None
    n: int | None = None


@dataclass(frozen=True)
class Difference:
    """One method less another, averaged over paired runs, with the interval of the paired bootstrap."""

    value: float
    low: float = NAN
    high: float = NAN
    pairs: int = 0  # runs that the value is averaged over
    resampled: int = 0  # those of them that the interval was made from
    margin: float = NAN  # half the interval over runs; NaN where neither method was run twice

    @property
    def ends(self) -> tuple[float, float]:
        """Of an interval for other images and other runs: both that are known, as independent ones add."""
        margin = 0.0 if math.isnan(self.margin) else self.margin
        below, above = self.value - self.low, self.high - self.value
        return self.value - math.hypot(below, margin), self.value + math.hypot(above, margin)


@dataclass(frozen=True)
class Cell:
    """One method, side and metric."""

    runs: tuple[RunScore, ...]
    mean: float  # over the runs in which it is defined
    deviation: float  # sample standard deviation over the same; NaN below two
    mark: Mark = Mark.UNTESTED
    p: float = NAN  # of the two-tailed t-test against the best
    borrowed: str | None = None  # the method whose variance was used for the test
    from_baseline: Difference | None = None
    from_best: Difference | None = None

    @property
    def defined(self) -> int:
        """In how many runs the metric is defined."""
        return sum(math.isfinite(score.value) for score in self.runs)

    @property
    def bold(self) -> bool:
        """The best, or not significantly worse, by a test that could be made."""
        return self.mark in (Mark.BEST, Mark.LEVEL)

    @property
    def count(self) -> tuple[int, int] | None:
        """k of n summed over the runs, where the metric is a proportion."""
        counted = [(score.k, score.n) for score in self.runs if score.k is not None and score.n is not None]
        return (sum(k for k, _ in counted), sum(n for _, n in counted)) if counted else None


@dataclass(frozen=True)
class MethodScores:
    """A method's row: what it is, its runs, and a cell for every side and metric."""

    about: MethodRuns  # without the predictions
    runs: tuple[int, ...]
    cells: Mapping[Place, Cell] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Every method in the given order, by every metric on every side."""

    methods: tuple[MethodScores, ...]
    metrics: tuple[Metric, ...]
    sides: tuple[str, ...]
    baseline: str | None  # None where the baseline is not among the methods
    resamples: int = 0  # 0: without the bootstrap
    pairs: Mapping[Pair, Mapping[Place, Difference]] = field(default_factory=dict)  # first less second

    def method(self, name: str) -> MethodScores:
        """The method of that name, which must be there."""
        return next(method for method in self.methods if method.about.name == name)
