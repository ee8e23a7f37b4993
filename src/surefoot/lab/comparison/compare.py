"""Methods compared over runs: means, significance marks and which differences to compute."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import permutations
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from surefoot.calibrators.temperature import best_temperature
from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.bootstrap import Draw, resampled
from surefoot.evaluation.scores import SIDES
from surefoot.lab.comparison.comparison import (
    Cell,
    Comparison,
    Difference,
    MethodRun,
    MethodRuns,
    Network,
    Pair,
    Place,
    RunScore,
    best_of,
    marked,
    summary,
)
from surefoot.lab.comparison.differences import Replicates, RunKey, difference
from surefoot.lab.recipes.recipe import Spec
from surefoot.metrics import METRICS, Metric
from surefoot.metrics.intervals import NAN, error_within, sign_flips
from surefoot.metrics.metric import IDENTITY
from surefoot.predictions.outcomes import Array, Index
from surefoot.predictions.predictions import Predictions
from surefoot.runtime import in_processes

BASELINE = "single"
DECIDING = "nll"  # the metric by which all methods are compared with each other


_best_t: "WeakKeyDictionary[Predictions, float]" = WeakKeyDictionary()
_at_best: "WeakKeyDictionary[Predictions, Predictions]" = WeakKeyDictionary()


def at_best_temperature(predictions: Predictions) -> Predictions:
    """An oracle: with the T that has the lowest NLL on these very data, after averaging members.

    Fitted once, as the value, the resamples and the differences all need it.
    """
    if not predictions.outcomes.total:
        return predictions
    if predictions not in _at_best:
        average = predictions.average()
        if predictions not in _best_t:
            _best_t[predictions] = best_temperature(average)
        _at_best[predictions] = average.with_logits(average.logits / _best_t[predictions])
    return _at_best[predictions]


def nll_at_best_temperature(predictions: Any) -> float:
    """The NLL with the T that is best on these very data: how good the ranking is, whatever T was chosen."""
    return METRICS.named(DECIDING).function(at_best_temperature(predictions))


# Resampled with this T: where the NLL is least its slope is 0, so a slightly other T changes almost nothing.
BEST_T = replace(
    METRICS.named(DECIDING),
    name="nll_best_t",
    title="NLL at best T (oracle)",
    formula="nll of z / T, T = argmin mean -log p_true(z / T) on the same test data",
    reference="Ashukha et al., ICLR 2020",
    function=nll_at_best_temperature,
)
HEADLINE: tuple[Metric, ...] = (
    *(METRICS.named(name) for name in ("nll", "brier", "label_error", "ece", "e99")),
    *(METRICS.named(name) for name in ("entropy", "nll_minus_entropy")),
    BEST_T,
)

Outputs = Mapping[RunKey, Predictions]  # of one side
Values = Mapping[str, Mapping[Place, Sequence[RunScore]]]  # by the method's name


def compare_runs(
    methods: Sequence[MethodRuns],
    metrics: Sequence[Metric] = HEADLINE,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    baseline: str = BASELINE,
    pairs: Sequence[Pair] = (),
) -> Comparison:
    """Score every run of every method, test against the best, and resample the images of each side.

    `pairs` are methods to be compared by every metric; by the deciding metric all methods but oracles are
    compared in any case. Without resamples there are no differences.
    """
    outputs = {
        side: {(m.name, run.run): run.sides[side] for m in methods for run in m.runs if side in run.sides}
        for side in SIDES
    }
    sides = tuple(side for side in SIDES if outputs[side])
    for side in sides:
        _refuse_unpaired(side, outputs[side])
    resampling = {}
    if resamples:
        resampling = {
            side: _Resampling.of(outputs[side], resamples, np.random.default_rng([seed, index]))
            for index, side in enumerate(sides)
        }
    measured = _measured(methods, metrics, outputs, resampling)
    values: dict[str, dict[Place, list[RunScore]]] = {method.name: {} for method in methods}
    for side in sides:
        for (name, run), predictions in outputs[side].items():
            for metric, score in zip(metrics, measured[id(predictions), side].scores, strict=True):
                values[name].setdefault((side, metric.name), []).append(RunScore(run, *score))
    comparison = tabulate(methods, metrics, sides, values, baseline=baseline)
    has_runs = {method.name for method in methods if method.runs}
    competing = [method.name for method in methods if method.runs and not method.oracle]
    every = [*(pair for pair in pairs if has_runs.issuperset(pair)), *permutations(competing, 2)]
    comparison = replace(comparison, pairs={pair: {} for pair in every})
    if not resamples:
        return comparison
    specs = dict.fromkeys(spec for method in methods for run in method.runs for spec in run.specs)
    numbers = {spec: number for number, spec in enumerate(specs)}  # hashing a spec takes long
    known = tuple(_with_networks(method, metrics, numbers, measured) for method in comparison.methods)
    comparison = replace(comparison, methods=known)
    for side in sides:
        drawn = {key: measured[id(each), side].drawn for key, each in outputs[side].items()}
        comparison = _with_differences(comparison, side, outputs[side], resampling[side], drawn, set(pairs))
    return replace(comparison, resamples=resamples)


def tabulate(
    methods: Sequence[MethodRuns],
    metrics: Sequence[Metric],
    sides: Sequence[str],
    values: Values,
    *,
    baseline: str = BASELINE,
) -> Comparison:
    """Means, deviations and marks from the values alone; runs without predictions where none are given."""
    _refuse_inconsistent(methods)
    by_name = {method.name: method for method in methods}
    cells: dict[str, dict[Place, Cell]] = {name: {} for name in by_name}
    for side in sides:
        for metric in metrics:
            place = (side, metric.name)
            column = {name: summary(values[name].get(place, ())) for name in by_name}
            for name, cell in marked(column, by_name, metric.better).items():
                cells[name][place] = cell
    rows = []
    for method in methods:
        numbers = sorted({score.run for cell in cells[method.name].values() for score in cell.runs})
        runs = method.runs or tuple(MethodRun(number) for number in numbers)
        rows.append(replace(method, runs=runs, cells=cells[method.name]))
    return Comparison(tuple(rows), tuple(metrics), tuple(sides), baseline if baseline in by_name else None)


def comparison_from_scores(
    values: Values,
    about: Sequence[MethodRuns] = (),
    metrics: Sequence[Metric] | None = None,
    *,
    baseline: str = BASELINE,
) -> Comparison:
    """The comparison from its scores, without the bootstrap, which needs the predictions.

    `about` describes the methods, in the order of the rows; of any other method only the name is known.
    """
    known = [method.name for method in about]
    methods = [*about, *(MethodRuns(name, name) for name in values if name not in known)]
    places = {place for of_method in values.values() for place in of_method}
    scores = {method.name: values.get(method.name, {}) for method in methods}
    sides = [side for side in SIDES if side in {side for side, _ in places}]
    if metrics is None:
        names = {name for _, name in places}
        named = [METRICS.named(name) for name in sorted(names - {BEST_T.name})]
        metrics = [metric for metric in METRICS if metric in named] + [BEST_T] * (BEST_T.name in names)
    return tabulate(methods, metrics, sides, scores, baseline=baseline)


@dataclass(frozen=True, eq=False)
class _Resampling:
    """The resamples of one side."""

    draw: Draw
    first: Predictions  # with the groups and labels of all

    @staticmethod
    def of(outputs: Outputs, resamples: int, rng: np.random.Generator) -> "_Resampling":
        """One draw for all methods."""
        every = list(outputs.values())
        first = next((predictions for predictions in every if predictions.groups is not None), every[0])
        draw = Draw.of(first.n, first.groups, resamples=resamples, rng=rng)
        return _Resampling(draw, first)

    def values(self, predictions: Predictions, metrics: Sequence[Metric]) -> Array:
        """(metrics, resamples)."""
        values = resampled(predictions.outcomes, metrics, self.draw)
        for index, metric in enumerate(metrics):
            if metric is BEST_T:
                best = at_best_temperature(predictions)
                values[index] = resampled(best.outcomes, [BEST_T], self.draw)[0]
        return values


class _Measured(NamedTuple):
    """What is computed of some predictions."""

    scores: list[tuple[float, int | None, int | None]]  # each metric, and k of n where it is a proportion
    drawn: Array  # (metrics, resamples); empty where one of a run's networks is left out
    best_t: float | None


Measured = Mapping[tuple[int, str], _Measured]  # by the predictions' id and their side


def _measured(
    methods: Sequence[MethodRuns],
    metrics: Sequence[Metric],
    outputs: Mapping[str, Outputs],
    resampling: Mapping[str, _Resampling],
) -> Measured:
    """Of every run, and without each of its networks if there are resamples; shared predictions once."""
    runs = {(id(each), side): each for side in outputs for each in outputs[side].values()}
    without = [rest for method in methods for run in method.runs for rest in run.without if resampling]
    given = {(id(each), side): each for rest in without for side, each in rest.sides.items()} | runs

    def measure(key: tuple[int, str]) -> _Measured:
        predictions, draw = given[key], resampling.get(key[1]) if key in runs else None
        scores = [_score(metric, predictions) for metric in metrics]
        drawn = np.empty(0) if draw is None else draw.values(predictions, metrics)
        return _Measured(scores, drawn, _best_t.get(predictions))

    done = dict(zip(given, in_processes(measure, list(given)), strict=True))
    for key, measured in done.items():
        if measured.best_t is not None:
            _best_t[given[key]] = measured.best_t
    return done


def _score(metric: Metric, predictions: Predictions) -> tuple[float, int | None, int | None]:
    count = metric.count(predictions) if metric.count else None
    return (metric.function(predictions), None, None) if count is None else (count.value, count.k, count.n)


def _with_networks(
    method: MethodRuns,
    metrics: Sequence[Metric],
    numbers: Mapping[Spec, int],
    measured: Measured,
) -> MethodRuns:
    """With what each network, by its number, contributes to each mean: the value of its run.

    In an ensemble of M it is the pseudo-value M v - (M - 1) v', v' being the value without that network: the
    variance of their mean is the jackknife's. Efron & Stein, Annals of Statistics 1981.
    """
    cells = {}
    keys = {run.run: tuple(numbers[spec] for spec in run.specs) for run in method.runs}
    for (side, name), cell in method.cells.items():
        index = next(index for index, metric in enumerate(metrics) if metric.name == name)
        values, networks = {score.run: score.value for score in cell.runs}, dict[Network, float]()
        for run in method.runs:
            value, members = values.get(run.run, NAN), len(run.without)
            if not members:
                networks[keys[run.run] or ("run", method.is_ensemble, run.run)] = value
            for key, without in zip(keys[run.run] if members else (), run.without, strict=False):
                left = measured.get((id(without.sides.get(side)), side))
                rest = NAN if left is None else left.scores[index][0]
                networks[(key,)] = members * value - (members - 1) * rest
        cells[side, name] = replace(cell, networks=networks)
    return replace(method, cells=cells)


def same_networks(one: MethodRuns, other: MethodRuns) -> bool:
    """Whether runs of the same number use the same networks, so that they are paired.

    Other networks are independent of each other, even if a seed or teachers are the same. Runs without specs
    are taken for the same networks, unless only one is of an ensemble.
    """
    theirs = {run.run: run.specs for run in other.runs}
    same = all(theirs.get(run.run, run.specs) == run.specs for run in one.runs)
    return same and one.is_ensemble == other.is_ensemble


def _refuse_inconsistent(methods: Sequence[MethodRuns]) -> None:
    """Names and run numbers must be unique, and a lender of variance must be among the methods."""
    if not methods:
        raise InputError("no methods to compare; needed: at least one")
    names = [method.name for method in methods]
    for method in methods:
        if names.count(method.name) > 1:
            raise InputError(f"method {method.name!r} is given twice; names must differ")
        runs = [run.run for run in method.runs]
        if len(set(runs)) < len(runs):
            raise InputError(f"method {method.name!r} has runs {runs}; every run must have its own number")
        if method.variance_from is not None and method.variance_from not in names:
            raise InputError(
                f"method {method.name!r} takes its variance from {method.variance_from!r}; "
                f"have: {', '.join(names)}"
            )


def _refuse_unpaired(side: str, outputs: Outputs) -> None:
    """All methods must have predicted the same rows in the same order."""
    (first_name, first_run), first = next(iter(outputs.items()))
    for (name, run), predictions in outputs.items():
        if not same_rows(first, predictions):
            raise InputError(
                f"run {run} of {name!r} has other {side} rows or labels than run {first_run} of "
                f"{first_name!r}; a comparison needs the same rows in the same order"
            )


def same_rows(one: Predictions, other: Predictions) -> bool:
    """Whether both are of the same samples in the same order, as far as labels and ids tell."""
    if one.kind is not other.kind or not np.array_equal(one.labels, other.labels):
        return False
    return one.ids is None or other.ids is None or np.array_equal(one.ids, other.ids)


def _with_differences(
    comparison: Comparison,
    side: str,
    outputs: Outputs,
    resampling: _Resampling,
    drawn: Mapping[RunKey, Array],
    requested: set[Pair],
) -> Comparison:
    """The comparison with the differences of one side, from one draw of resamples for all methods."""
    draw, first = resampling.draw, resampling.first
    independent = len(np.unique(draw.unit_of[first.outcomes.row]))
    methods = {method.name: method for method in comparison.methods}
    cells = {method.name: dict(method.cells) for method in comparison.methods}
    pairs = {pair: dict(differences) for pair, differences in comparison.pairs.items()}

    predictions_of: dict[str, list[Predictions]] = {name: [] for name in methods}
    for (name, _), predictions in outputs.items():
        predictions_of[name].append(predictions)

    @cache
    def have_same_networks(name: str, other: str) -> bool:
        return same_networks(methods[name], methods[other])

    def gap_between(
        name: str, other: str | None, metric: Metric, column: Mapping[str, Cell], replicates: Replicates
    ) -> Difference | None:
        if other is None or other == name:
            return None
        crossed = not have_same_networks(name, other)
        same = partial(_same_decisions, metric, predictions_of[name], predictions_of[other])
        return difference(column, name, other, replicates, independent, crossed=crossed, paired=same)

    losses = _Losses(outputs, first, draw.unit_of)
    for index, metric in enumerate(comparison.metrics):
        place = (side, metric.name)
        column = {name: of_method[place] for name, of_method in cells.items()}
        replicates = {key: values[index] for key, values in drawn.items()}
        best = best_of(column, methods, metric.better)
        for name, cell in column.items():
            cells[name][place] = replace(
                cell,
                from_baseline=gap_between(name, comparison.baseline, metric, column, replicates),
                from_best=gap_between(name, best, metric, column, replicates),
            )
        gaps = {
            pair: gap
            for pair in pairs
            if (pair in requested or metric.name == DECIDING)
            and (gap := gap_between(*pair, metric, column, replicates))
        }
        asked = {pair: gap for pair, gap in gaps.items() if pair in requested}
        for pair, gap in {**gaps, **losses.tested(asked, metric)}.items():
            pairs[pair][place] = gap
    rows = tuple(replace(method, cells=cells[method.name]) for method in comparison.methods)
    return replace(comparison, methods=rows, pairs=pairs)


def _same_decisions(metric: Metric, ours: Sequence[Predictions], theirs: Sequence[Predictions]) -> bool:
    """Whether two methods count the same decisions in every run, so that a proportion differs by exactly 0.

    Equal counts are not enough: 0 of 1 confident predictions says little about the next images.
    """
    return len(ours) == len(theirs) and all(
        np.array_equal(a.correct, b.correct)
        and (metric.denominator is None or np.array_equal(a.confidence, b.confidence))
        for a, b in zip((p.outcomes for p in ours), (p.outcomes for p in theirs), strict=True)
    )


def _is_mean(metric: Metric) -> bool:
    """Whether it is the mean over decisions of something."""
    return metric.numerator is not None and metric.denominator is None and metric.transform is IDENTITY


@dataclass(eq=False)
class _Losses:
    """What a mean metric sums up in each row, of the runs of one side."""

    outputs: Outputs
    first: Predictions  # with the groups and labels of all
    unit_of: Index
    cache: dict[tuple[RunKey, str], Array] = field(default_factory=dict)

    def of(self, key: RunKey, metric: Metric) -> Array:
        if (key, metric.name) not in self.cache:
            predictions = self.outputs[key]
            outcomes = (at_best_temperature(predictions) if metric is BEST_T else predictions).outcomes
            numerator = metric.of_kind(outcomes.kind).numerator
            assert numerator is not None
            values = np.asarray(numerator(outcomes), dtype=np.float64)
            self.cache[key, metric.name] = np.bincount(outcomes.row, values, predictions.n).astype(np.float64)
        return self.cache[key, metric.name]

    def tested(self, gaps: Mapping[Pair, Difference], metric: Metric) -> dict[Pair, Difference]:
        """With the interval for these groups and the sign-flip test, where the metric is a mean over rows."""
        if not _is_mean(metric.of_kind(self.first.kind)):
            return dict(gaps)
        defined = {pair: gap for pair, gap in gaps.items() if not math.isnan(gap.value)}
        rows = {pair: self._gaps(gap, metric, pair) for pair, gap in defined.items()}
        p = sign_flips([np.bincount(self.unit_of, of_pair).astype(np.float64) for of_pair in rows.values()])
        decisions = np.bincount(self.first.outcomes.row, minlength=self.first.n)
        labelled = decisions > 0
        # Without groups all rows are one: other rows of it are other images, as in the bootstrap.
        group_of = np.zeros_like(self.unit_of) if self.first.groups is None else self.unit_of
        tested = {}
        for (pair, gap), of_pair in zip(defined.items(), p, strict=True):
            residuals = (rows[pair] - gap.value * decisions) / decisions.sum()
            within = error_within(residuals[labelled], group_of[labelled])
            tested[pair] = replace(gap, within=within, p=of_pair)
        return {**gaps, **tested}

    def _gaps(self, gap: Difference, metric: Metric, pair: Pair) -> Array:
        """What the first of a pair sums up in each row, less the second, in the mean over runs."""
        ours, theirs = (
            np.mean([self.of((name, run), metric) for run in runs], axis=0)
            for name, runs in zip(pair, gap.runs, strict=True)
        )
        return np.asarray(ours - theirs)
