"""Methods compared over runs: means, significance marks and paired differences."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import permutations

import numpy as np
import torch

from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.bootstrap import Draw, resampled
from surefoot.evaluation.comparison import (
    Cell,
    Comparison,
    Difference,
    MethodRuns,
    MethodScores,
    Pair,
    Place,
    RunScore,
    best_of,
    margin_of_means,
    margin_of_pairs,
    marked,
    summary,
)
from surefoot.evaluation.evaluate import Tick, silently
from surefoot.evaluation.scores import SIDES
from surefoot.intervals import (
    NAN,
    Interval,
    Proportion,
    centred_interval,
    difference_of_proportions,
    few_samples_factor,
    needs_exact,
)
from surefoot.metrics import METRICS, Metric
from surefoot.predictions.outcomes import Array
from surefoot.predictions.predictions import Predictions

ANYWHERE = (-np.inf, np.inf)

Replicates = Mapping[tuple[str, int], Array]  # by method and run
RunPair = tuple[RunScore, RunScore]


def difference(
    column: Mapping[str, Cell],
    name: str,
    other: str | None,
    replicates: Replicates,
    factor: float,
    *,
    crossed: bool = False,
    paired: bool = True,
) -> Difference | None:
    """One method less another; None for a method and itself, or where there is no other.

    Runs are paired by their number, or `crossed`: each with each, where the numbers mean different networks.
    Not `paired` are methods that were asked about different samples.
    """
    if other is None or other == name:
        return None
    pairs = _pairs(column[name].runs, column[other].runs, crossed)
    if not pairs:
        return Difference(NAN)
    gaps = [ours.value - theirs.value for ours, theirs in pairs]
    value = float(np.mean(gaps))
    drawn = [replicates[name, a.run] - replicates[other, b.run] for a, b in pairs]
    drawn = [differences for differences in drawn if np.isfinite(differences).any()]
    spread = np.mean(drawn, axis=0) if drawn else np.full(1, NAN)
    interval = centred_interval(value, spread, ANYWHERE, factor=factor)
    exact = _exact(pairs, paired)
    if exact is not None and np.isfinite(interval.low):
        # No resample of 0 of n holds an error: ask the exact intervals too, and take the wider ends.
        shift = value - exact.value
        low, high = min(interval.low, exact.low + shift), max(interval.high, exact.high + shift)
        interval = Interval(value, low, high)
    unpaired = _each_with_each(column[name].runs, column[other].runs, crossed)
    margin = margin_of_means(column[name], column[other]) if unpaired else margin_of_pairs(gaps)
    return Difference(interval.value, interval.low, interval.high, len(pairs), len(drawn), margin)


def _pairs(ours: Sequence[RunScore], theirs: Sequence[RunScore], crossed: bool) -> list[RunPair]:
    """Runs of the same number, or each with each."""
    if _each_with_each(ours, theirs, crossed):
        paired = [(a, b) for a in ours for b in theirs]
    else:
        by_run = {b.run: b for b in theirs}
        paired = [(a, by_run[a.run]) for a in ours if a.run in by_run]
    return [(a, b) for a, b in paired if np.isfinite(a.value) and np.isfinite(b.value)]


def _each_with_each(ours: Sequence[RunScore], theirs: Sequence[RunScore], crossed: bool) -> bool:
    """A method run once stands against every run of the other."""
    return crossed or 1 in (len(ours), len(theirs))


def _exact(pairs: Sequence[RunPair], paired: bool) -> Interval | None:
    """The difference of two proportions where resamples do not tell it; None where they do.

    Runs share their images, so k and n are the runs' mean counts and not their sums.
    """
    ours, theirs = (_mean_count([pair[side] for pair in pairs]) for side in (0, 1))
    if ours is None or theirs is None:
        return None
    if not needs_exact((ours.k, ours.n), (theirs.k, theirs.n), paired=paired):
        return None
    return difference_of_proportions(*(Interval(each.value, each.low, each.high) for each in (ours, theirs)))


def _mean_count(scores: Sequence[RunScore]) -> Proportion | None:
    """k and n averaged over runs; k is 0 or n only if it is so in every run."""
    counted = [(score.k, score.n) for score in scores if score.k is not None and score.n]
    if len(counted) < len(scores):
        return None
    n = max(1, round(float(np.mean([n for _, n in counted]))))
    k = round(float(np.mean([k for k, _ in counted])))
    never, always = all(k == 0 for k, _ in counted), all(k == n for k, n in counted)
    if never or always:
        return Proportion.of(n if always else 0, n)
    return Proportion.of(min(max(k, 1), n - 1), n) if n > 1 else None


BASELINE = "single"
DECIDING = "nll"  # by which all methods are set against each other
HEADLINE: tuple[Metric, ...] = tuple(
    METRICS.named(name)
    for name in ("nll", "brier", "label_error", "ece", "e99", "entropy", "nll_minus_entropy")
)
SLOW_WORK = 5e7  # decisions times resamples times predictions, for each metric that is not a ratio of sums
ENOUGH_RESAMPLES = 200
FEWEST_RESAMPLES = 100

Spoken = tuple[str, int, Predictions]  # the method's name, the run, and what it said on a side
Values = Mapping[str, Mapping[Place, Sequence[RunScore]]]


def compare(
    methods: Sequence[MethodRuns],
    metrics: Sequence[Metric] = HEADLINE,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    baseline: str = BASELINE,
    pairs: Sequence[Pair] = (),
    tick: Tick = silently,
) -> Comparison:
    """Score every run of every method, test against the best, and resample the images of each side.

    `pairs` are methods to be set against each other by every metric; by the deciding one all honest methods
    are anyway. `tick` is told of each set of predictions done. No resamples, no differences.
    """
    sides = tuple(side for side in SIDES if _spoken(methods, side))
    for side in sides:
        _refuse_unpaired(side, _spoken(methods, side))
    values = {method.name: _values(method, metrics, sides) for method in methods}
    found = tabulate(methods, metrics, sides, values, baseline=baseline)
    there = {method.name for method in methods if method.runs}
    honest = [method.name for method in methods if method.runs and not method.oracle]
    every = [*(pair for pair in pairs if there.issuperset(pair)), *permutations(honest, 2)]
    found = replace(found, pairs={pair: {} for pair in every})
    if not resamples:
        return found
    for index, side in enumerate(sides):
        rng = np.random.default_rng([seed, index])
        found = _with_differences(found, side, _spoken(methods, side), resamples, rng, tick, asked=set(pairs))
    return replace(found, resamples=resamples)


def tabulate(
    methods: Sequence[MethodRuns],
    metrics: Sequence[Metric],
    sides: Sequence[str],
    values: Values,
    *,
    baseline: str = BASELINE,
) -> Comparison:
    """Means, deviations and marks from the values alone."""
    about = {method.name: replace(method, runs=()) for method in methods}
    _refuse_unknown(methods, about)
    cells: dict[str, dict[Place, Cell]] = {name: {} for name in about}
    for side in sides:
        for metric in metrics:
            place = (side, metric.name)
            column = {name: summary(values[name].get(place, ())) for name in about}
            for name, cell in marked(column, about, metric.better).items():
                cells[name][place] = cell
    rows = tuple(MethodScores(about[name], _runs(cells[name]), cells[name]) for name in about)
    return Comparison(rows, tuple(metrics), tuple(sides), baseline if baseline in about else None)


def _with_differences(
    found: Comparison,
    side: str,
    spoken: Sequence[Spoken],
    resamples: int,
    rng: np.random.Generator,
    tick: Tick,
    *,
    asked: set[Pair],
) -> Comparison:
    first = next((said for _, _, said in spoken if said.groups is not None), spoken[0][2])
    draw = Draw.of(first.n, first.groups, resamples=resamples, rng=rng)
    kept, few = _slow_share(spoken, found.metrics, resamples)

    def drawn_of(each: Spoken) -> Array:
        slow = few if each[:2] in kept else 0
        return resampled(each[2].outcomes, found.metrics, draw, slow_resamples=slow)

    spread: dict[tuple[str, int], Array] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy lets go of the lock for most of it
        for (name, run, _), drawn in zip(spoken, pool.map(drawn_of, spoken), strict=True):
            spread[name, run] = drawn
            tick(1)
    factor = few_samples_factor(len(np.unique(draw.unit_of[first.outcomes.row])))
    about = {method.about.name: method.about for method in found.methods}
    cells = {method.about.name: dict(method.cells) for method in found.methods}
    pairs = {pair: dict(of_pair) for pair, of_pair in found.pairs.items()}

    def apart(
        name: str, other: str | None, column: Mapping[str, Cell], replicates: Replicates
    ) -> Difference | None:
        crossed = other is not None and about[name].is_ensemble != about[other].is_ensemble
        return difference(column, name, other, replicates, factor, crossed=crossed)

    for index, metric in enumerate(found.metrics):
        place = (side, metric.name)
        column = {name: of_method[place] for name, of_method in cells.items()}
        replicates = {key: drawn[index] for key, drawn in spread.items()}
        best = best_of(column, about, metric.better)
        for name, cell in column.items():
            cells[name][place] = replace(
                cell,
                from_baseline=apart(name, found.baseline, column, replicates),
                from_best=apart(name, best, column, replicates),
            )
        for pair, of_pair in pairs.items():
            if (pair in asked or metric.name == DECIDING) and (gap := apart(*pair, column, replicates)):
                of_pair[place] = gap
    rows = tuple(replace(method, cells=cells[method.about.name]) for method in found.methods)
    return replace(found, methods=rows, pairs=pairs)


def _slow_share(
    spoken: Sequence[Spoken], metrics: Sequence[Metric], resamples: int
) -> tuple[set[tuple[str, int]], int]:
    """Which runs, and how many resamples, the work allows for metrics that are not ratios of sums.

    Fewer resamples first, but enough; then fewer runs (those that most methods share), at least one; then
    fewer resamples again.
    """
    outcomes = spoken[0][2].outcomes
    everything = {(name, run) for name, run, _ in spoken}
    if all(metric.is_ratio(outcomes.kind) for metric in metrics):
        return everything, resamples
    allowed = SLOW_WORK / max(1, len(outcomes.row))
    few = min(resamples, max(ENOUGH_RESAMPLES, int(allowed / len(everything))))
    runs_of, with_run = Counter(name for name, _ in everything), Counter(run for _, run in everything)
    can_go = Counter(run for name, run in everything if runs_of[name] > 1)
    shared, left = sorted(with_run, key=lambda run: (-with_run[run], run)), len(everything)
    while left * few > allowed and len(shared) > 1:
        left -= can_go[shared.pop()]
    stay = set(shared)
    kept = {(name, run) for name, run in everything if run in stay or runs_of[name] == 1}
    return kept, min(few, max(FEWEST_RESAMPLES, int(allowed / len(kept))))


def _values(
    method: MethodRuns, metrics: Sequence[Metric], sides: Sequence[str]
) -> dict[Place, list[RunScore]]:
    found: dict[Place, list[RunScore]] = {}
    for said in method.runs:
        for side in sides:
            predictions = said.side(side)
            if predictions is None:
                continue
            for metric in metrics:
                found.setdefault((side, metric.name), []).append(_score(said.run, metric, predictions))
    return found


def _score(run: int, metric: Metric, predictions: Predictions) -> RunScore:
    count = metric.count(predictions) if metric.count else None
    if count is None:
        return RunScore(run, metric.function(predictions))
    return RunScore(run, count.value, count.k, count.n)


def _runs(cells: Mapping[Place, Cell]) -> tuple[int, ...]:
    return tuple(sorted({score.run for cell in cells.values() for score in cell.runs}))


def _spoken(methods: Sequence[MethodRuns], side: str) -> list[Spoken]:
    every = ((method.name, said) for method in methods for said in method.runs)
    return [(name, said.run, p) for name, said in every if (p := said.side(side)) is not None]


def _refuse_unknown(methods: Sequence[MethodRuns], about: Mapping[str, MethodRuns]) -> None:
    if not methods:
        raise InputError("no methods to compare; needed: at least one")
    names = [method.name for method in methods]
    for method in methods:
        if names.count(method.name) > 1:
            raise InputError(f"method {method.name!r} is there twice; names must differ")
        runs = [said.run for said in method.runs]
        if len(set(runs)) < len(runs):
            raise InputError(f"method {method.name!r} has runs {runs}; every run must have its own number")
        if method.variance_from is not None and method.variance_from not in about:
            have = ", ".join(names)
            raise InputError(
                f"method {method.name!r} has the spread of {method.variance_from!r}; have: {have}"
            )


def _refuse_unpaired(side: str, spoken: Sequence[Spoken]) -> None:
    """All methods must have seen the same rows in the same order."""
    _, _, first = spoken[0]
    for name, run, said in spoken:
        named = first.ids is None or said.ids is None or np.array_equal(first.ids, said.ids)
        if not named or said.kind is not first.kind or not torch.equal(said.labels, first.labels):
            raise InputError(
                f"run {run} of {name!r} has other {side} rows or labels than run {spoken[0][1]} of "
                f"{spoken[0][0]!r}; a comparison needs the same rows in the same order"
            )
