"""Methods over runs: means, deviations and the significance test of the paper; their scores as CSV."""

import csv
import io
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import numpy as np

from surefoot.calibrators import Calibration
from surefoot.errors import InputError
from surefoot.evaluation.scores import SIDES
from surefoot.io import read_text
from surefoot.lab.recipes.recipe import Spec
from surefoot.lab.tasks.task import Split
from surefoot.metrics import Better, Metric
from surefoot.metrics.intervals import NAN, UNKNOWN, Interval, StandardError, added
from surefoot.predictions.predictions import Predictions
from surefoot.text import exact_csv_text, exact_text, from_spreadsheet

TEST_SPLITS = dict(zip(SIDES, (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR), strict=True))

Place = tuple[str, str]  # the side and the metric's name
Pair = tuple[str, str]  # two methods' names
Network = Hashable  # equal for two methods that use the same network

SIGNIFICANCE = 0.05
SCORES_HEADER = ("method", "run", "side", "metric", "value", "k", "n")  # of `scores.csv`
SAME = 1e-12  # relative: means that differ by rounding only are equal

Spread = tuple[float, int]  # standard deviation, and how many runs it is of


class Mark(StrEnum):
    """How a method compares with the best of its column."""

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
    """One method less another, averaged over runs; `metrics.intervals` says what each interval means."""

    value: float
    low: float = NAN  # new groups of images, or new images where there are no groups
    high: float = NAN
    pairs: int = 0  # pairs of runs that the value is averaged over
    resampled: int = 0  # those of them that the interval was made from
    independent: int = 0  # groups, or images without groups, that were resampled
    runs: tuple[tuple[int, ...], ...] = ()  # of each method, that are in a pair
    over_runs: StandardError = UNKNOWN  # unknown where neither method has two networks
    within: StandardError = UNKNOWN  # for these groups; unknown where the metric is not a mean over rows
    p: float = NAN  # of the sign-flip test over groups; NaN where it was not made

    @property
    def these(self) -> Interval:
        """The interval for other images of these groups."""
        return self.within.around(self.value)

    @property
    def ends(self) -> tuple[float, float]:
        """Of the interval for new groups and other networks: what is known of both, added."""
        if math.isnan(self.low) or not self.over_runs.value > 0:
            return self.low, self.high
        freedom = self.independent - 1 if self.independent else math.inf
        below, above = (
            added(StandardError.of_margin(margin, freedom), self.over_runs).margin
            for margin in (self.value - self.low, self.high - self.value)
        )
        return self.value - below, self.value + above


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
    networks: Mapping[Network, float] = field(default_factory=dict)  # what each one contributes to the mean

    @property
    def over_runs(self) -> StandardError:
        """Of the mean, for other networks; unknown for one."""
        return over_networks(self.networks or {score.run: score.value for score in self.runs})

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


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One run of a method: its networks, their predictions of the test sets, and the fitted calibration."""

    run: int
    before: Mapping[Split, Predictions] = field(default_factory=dict)  # uncalibrated; empty: scores only
    calibration: Calibration | None = None
    specs: tuple[Spec, ...] = ()
    novelty_auroc: float | None = None  # of the novelty score: familiar against unfamiliar
    # Calibrated already, where T is inside the samples of a network: not a function of `before`
    scaled: Mapping[Split, Predictions] | None = None
    without: "tuple[MethodRun, ...]" = ()  # of an ensemble: the same without each of its networks

    @staticmethod
    def of_sides(run: int, familiar: Predictions, unfamiliar: Predictions | None = None) -> "MethodRun":
        """A run whose predictions are scored as they are."""
        given = zip(TEST_SPLITS.values(), (familiar, unfamiliar), strict=True)
        return MethodRun(run, {split: predictions for split, predictions in given if predictions is not None})

    @property
    def outputs(self) -> Mapping[Split, Predictions]:
        """What the networks of a bundle give: with T where it is inside their samples."""
        return self.before if self.scaled is None else self.scaled

    @property
    def outer_calibration(self) -> Calibration | None:
        """The calibration of these outputs; None where there is none, or where T is inside the samples."""
        return self.calibration if self.scaled is None else None

    @cached_property
    def after(self) -> Mapping[Split, Predictions]:
        """The calibrated predictions; the same as before where nothing was fitted."""
        if (outer := self.outer_calibration) is None:
            return self.outputs
        return {split: outer(predictions) for split, predictions in self.outputs.items()}

    @property
    def sides(self) -> dict[str, Predictions]:
        """The calibrated predictions by side."""
        return {side: self.after[split] for side, split in TEST_SPLITS.items() if split in self.after}


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """A method with its runs and their cost; once compared, with a cell for every side and metric."""

    name: str
    title: str
    runs: tuple[MethodRun, ...] = ()
    paper: str | None = None  # the row's name in the paper's complete table
    variance_from: str | None = None  # for a method run once: the method whose variance over runs is used
    oracle: bool = False  # tuned on the test sets: listed, but never the best
    not_in_paper: bool = False
    is_ensemble: bool = False  # a run joins several networks, so its number matches no other method's run
    seconds_training: float | None = None  # of one run, teachers included
    seconds_per_sample: float | None = None
    parameters: float | None = None  # of all networks of a run
    missing: tuple[str, ...] = ()  # networks that are not in the store: counted and named, not averaged in
    cells: Mapping[Place, Cell] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The title, marked where the method is an oracle."""
        return f"{self.title} (oracle)" if self.oracle else self.title


@dataclass(frozen=True)
class Comparison:
    """Every method in the given order, by every metric on every side."""

    methods: tuple[MethodRuns, ...]
    metrics: tuple[Metric, ...]
    sides: tuple[str, ...]
    baseline: str | None  # None where the baseline is not among the methods
    resamples: int = 0  # 0: without the bootstrap
    pairs: Mapping[Pair, Mapping[Place, Difference]] = field(default_factory=dict)  # first less second

    def method(self, name: str) -> MethodRuns:
        """The method of that name, which must be among them."""
        return next(method for method in self.methods if method.name == name)


def summary(runs: Sequence[RunScore]) -> Cell:
    """Mean and standard deviation over the runs in which the metric is defined."""
    values = np.array([score.value for score in runs if np.isfinite(score.value)])
    mean = float(values.mean()) if len(values) else NAN
    deviation = float(values.std(ddof=1)) if len(values) > 1 else NAN
    return Cell(tuple(runs), mean, deviation)


def t_test(mean: float, spread: Spread, other_mean: float, other_spread: Spread) -> float:
    """The p value of Student's two-tailed t-test with equal variances; 1 for equal means.

    >>> round(t_test(1.0, (0.5, 10), 1.5, (0.5, 10)), 4)
    0.0382
    """
    if _same(mean, other_mean):
        return 1.0
    (deviation, n), (other_deviation, other_n) = spread, other_spread
    if deviation == 0 == other_deviation:  # no variance at all: any difference is one
        return 0.0
    from scipy.special import stdtr

    freedom = n + other_n - 2
    variance = ((n - 1) * deviation**2 + (other_n - 1) * other_deviation**2) / freedom
    t = (mean - other_mean) / math.sqrt(variance * (1 / n + 1 / other_n))
    return float(2 * stdtr(freedom, -abs(t)))


def over_networks(*methods: Mapping[Network, float]) -> StandardError:
    """Of a method's mean over networks, or of the first one's less the second's.

    A network's value is what it contributes to the mean. Networks that both methods use are paired, others
    are independent (Welch). The unknown variance of a method with one network is left out.

    >>> over_networks({0: 1.0, 1: 3.0}, {0: 2.0, 1: 4.0})  # the same networks: the difference is always 1
    StandardError(value=0.0, freedom=inf)
    """
    effects: dict[Network, float] = {}
    users: dict[Network, int] = {}  # a bit for each method
    for place, method in enumerate(methods):
        known = {network: value for network, value in method.items() if math.isfinite(value)}
        if (n := len(known)) < 2:
            continue
        mean = math.fsum(known.values()) / n
        for network, value in known.items():
            effect = (value - mean) / math.sqrt(n * (n - 1))
            effects[network] = effects.get(network, 0.0) + (-effect if place else effect)
            users[network] = users.get(network, 0) | 1 << place
    parts = [[effects[each] for each in users if users[each] == user] for user in set(users.values())]
    return added(
        *(StandardError(math.sqrt(sum(e * e for e in part)), max(1, len(part) - 1)) for part in parts)
    )


def marked(cells: Mapping[str, Cell], methods: Mapping[str, MethodRuns], better: Better) -> dict[str, Cell]:
    """The cells of one column, by the method's name, each with its mark.

    Oracles do not compete. Where the best has no variance over runs, or no other method to be tested against,
    no significance is claimed: only the best number is marked, as untested.
    """
    best = best_of(cells, methods, better)
    if best is None:
        return dict(cells)
    rivals = [name for name in cells if name != best and _competes(name, cells, methods)]
    p_values = {name: p_between(name, best, cells, methods) for name in rivals}
    tested = [name for name, p in p_values.items() if not math.isnan(p)]
    result = dict(cells)
    for name in (best, *rivals):
        lends = _spread(name, cells, methods) and len(cells[name].runs) == 1
        cell = replace(cells[name], borrowed=methods[name].variance_from if lends else None)
        mark, p = Mark.BEST if tested else Mark.BEST_UNTESTED, p_values.get(name, NAN)
        if name in tested:
            mark = Mark.LEVEL if p >= SIGNIFICANCE else Mark.WORSE
        elif name != best:
            mark = Mark.BEST_UNTESTED if _same(cell.mean, cells[best].mean) else Mark.UNTESTED
        result[name] = replace(cell, mark=mark, p=p)
    return result


def p_between(name: str, other: str, cells: Mapping[str, Cell], methods: Mapping[str, MethodRuns]) -> float:
    """The p value of the t-test over runs between two methods; NaN where one has no variance over runs."""
    spread, other_spread = _spread(name, cells, methods), _spread(other, cells, methods)
    if spread is None or other_spread is None:
        return NAN
    return t_test(cells[name].mean, spread, cells[other].mean, other_spread)


def best_of(cells: Mapping[str, Cell], methods: Mapping[str, MethodRuns], better: Better) -> str | None:
    """The name of the competing method with the best mean; None where there is no better or worse."""
    competing = [name for name in cells if _competes(name, cells, methods)]
    if better not in ("lower", "higher") or not competing:
        return None
    sign = 1 if better == "lower" else -1
    return min(competing, key=lambda name: sign * cells[name].mean)


def _competes(name: str, cells: Mapping[str, Cell], methods: Mapping[str, MethodRuns]) -> bool:
    return not methods[name].oracle and bool(np.isfinite(cells[name].mean))


def _spread(name: str, cells: Mapping[str, Cell], methods: Mapping[str, MethodRuns]) -> Spread | None:
    """A method's own deviation over runs; for one run that of its lender; None if a run is undefined."""
    lender = methods[name].variance_from if len(cells[name].runs) == 1 else name
    cell = None if lender is None else cells.get(lender)
    if cell is None or not cell.defined == len(cell.runs) > 1:
        return None
    return cell.deviation, cell.defined


def _same(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=SAME, atol=0))


def scores_text(comparison: Comparison) -> str:
    """`scores.csv`: every run's values in full precision, a line each; empty where undefined."""
    lines = []
    for method in comparison.methods:
        for (side, metric), cell in method.cells.items():
            for score in cell.runs:
                numbers = (exact_text(score.value), exact_text(score.k), exact_text(score.n))
                lines.append((method.name, score.run, side, metric, *numbers))
    return exact_csv_text(SCORES_HEADER, lines)


def read_scores(path: str | Path) -> dict[str, dict[Place, list[RunScore]]]:
    """The scores of a `scores.csv` by method, then by side and metric."""
    lines = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        header = tuple(next(lines, ()))
        rest = [(line, lines.line_num) for line in lines]
    except csv.Error as error:
        raise InputError(f"{path}, line {lines.line_num}: {error}; allowed: CSV") from error
    if header != SCORES_HEADER:
        raise InputError(f"{path} begins with {','.join(header)[:80]!r}; needed: {','.join(SCORES_HEADER)}")
    scores: dict[str, dict[Place, list[RunScore]]] = {}
    seen = set()
    for line, number in rest:
        try:
            method, place, score = _parsed(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        if (method, place, score.run) in seen:
            what = f"run {score.run} of {method!r}, {' '.join(place)}"
            raise InputError(f"{path}, line {number}: {what} is given twice; allowed: once")
        seen.add((method, place, score.run))
        scores.setdefault(method, {}).setdefault(place, []).append(score)
    return scores


def mean_scores(path: str | Path) -> dict[tuple[str, str, str], float]:
    """The mean over runs of each method, side and metric of a `scores.csv`, where it is defined."""
    means = {}
    for method, places in read_scores(path).items():
        for (side, metric), scores in places.items():
            values = [score.value for score in scores if not math.isnan(score.value)]
            if values:
                means[method, side, metric] = math.fsum(values) / len(values)
    return means


def _parsed(line: Sequence[str]) -> tuple[str, Place, RunScore]:
    if len(line) != len(SCORES_HEADER):
        raise ValueError(f"{len(line)} values; needed: {len(SCORES_HEADER)}")
    method, run, side, metric, value, k, n = map(from_spreadsheet, line)
    if side not in SIDES:
        raise ValueError(f"side {side!r}; allowed: {', '.join(SIDES)}")
    counts = (int(k) if k else None, int(n) if n else None)
    return method, (side, metric), RunScore(int(run), float(value) if value else NAN, *counts)
