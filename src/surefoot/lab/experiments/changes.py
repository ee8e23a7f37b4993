"""What changed between two experiments: their settings, and every method's numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.bootstrap import Draw, resampled
from surefoot.evaluation.scores import SIDES
from surefoot.lab.comparison.compare import compare_runs, same_rows
from surefoot.lab.comparison.comparison import Difference, MethodRun, MethodRuns
from surefoot.lab.comparison.differences import difference
from surefoot.lab.experiments.experiment import Experiment
from surefoot.lab.experiments.plan import Plan, replanned
from surefoot.lab.experiments.results import Reader, results_of
from surefoot.lab.experiments.run import read_folder
from surefoot.lab.store.store import Store
from surefoot.metrics import METRICS, Metric
from surefoot.predictions.arguments import checked
from surefoot.predictions.outcomes import Array
from surefoot.predictions.predictions import Predictions
from surefoot.results import Result

BEFORE, AFTER = "before", "after"
ONE_SIDE = SIDES[0]  # a single side is compared as if it were the familiar one

Pair = tuple[Plan, Plan]


@dataclass(frozen=True)
class Change:
    """A method's metric on one side, in both experiments; the difference is after less before."""

    side: str
    metric: Metric
    before: float
    after: float
    difference: Difference
    runs: int  # of the experiment with more of them
    paired: bool  # the same samples: resampled together

    @property
    def clear(self) -> bool:
        """Whether the interval of the difference leaves 0 out."""
        return self.difference.low > 0 or self.difference.high < 0


def changes(
    before: MethodRuns,
    after: MethodRuns,
    metrics: Sequence[Metric],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Change, ...]:
    """Every metric on each side that both have, over the runs that both have.

    A method that was run once is compared with every run of the other.
    """
    result: list[Change] = []
    for index, side in enumerate(SIDES):
        old, new = _one_side(before, BEFORE, side), _one_side(after, AFTER, side)
        if 1 not in (len(old.runs), len(new.runs)):
            shared = {run.run for run in old.runs} & {run.run for run in new.runs}
            old, new = (
                replace(each, runs=tuple(run for run in each.runs if run.run in shared))
                for each in (old, new)
            )
        if old.runs and new.runs:
            result += _changes_on_side(side, old, new, metrics, resamples, [seed, index])
    return tuple(result)


def _one_side(method: MethodRuns, name: str, side: str) -> MethodRuns:
    """A method under another name, with the predictions of one side as its only ones."""
    runs = tuple(MethodRun.of_sides(run.run, run.sides[side]) for run in method.runs if side in run.sides)
    return replace(method, name=name, runs=runs, variance_from=None)


def _changes_on_side(
    side: str,
    before: MethodRuns,
    after: MethodRuns,
    metrics: Sequence[Metric],
    resamples: int,
    seed: list[int],
) -> list[Change]:
    every = [run.sides[ONE_SIDE] for method in (before, after) for run in method.runs]
    paired = all(same_rows(every[0], predictions) for predictions in every)
    if paired:
        both = compare_runs(
            [before, after], metrics, resamples=resamples, seed=seed[1], baseline=BEFORE
        ).methods
        gaps = [both[1].cells[ONE_SIDE, metric.name].from_baseline for metric in metrics]
    else:
        both = tuple(compare_runs([each], metrics, resamples=0).methods[0] for each in (before, after))
        gaps = _unpaired(both, metrics, resamples, seed)
    runs = max(len(before.runs), len(after.runs))
    result = []
    for metric, gap in zip(metrics, gaps, strict=True):
        old, new = (method.cells[ONE_SIDE, metric.name].mean for method in both)
        result.append(Change(side, metric, old, new, gap or Difference(new - old), runs, paired))
    return result


def _unpaired(
    methods: Sequence[MethodRuns], metrics: Sequence[Metric], resamples: int, seed: list[int]
) -> list[Difference | None]:
    """Differences where the samples are not the same before and after: each set is resampled by itself."""
    if not resamples:
        return [None] * len(metrics)
    drawn: dict[tuple[str, int], Array] = {}
    independent = []
    for index, method in enumerate(methods):
        outputs: list[Predictions] = [run.sides[ONE_SIDE] for run in method.runs]
        rng = np.random.default_rng([*seed, index])
        draw = Draw.of(outputs[0].n, outputs[0].groups, resamples=resamples, rng=rng)
        independent.append(len(np.unique(draw.unit_of[outputs[0].outcomes.row])))
        for run, predictions in zip(method.runs, outputs, strict=True):
            drawn[method.name, run.run] = resampled(predictions.outcomes, metrics, draw)
    return [
        difference(
            {method.name: method.cells[ONE_SIDE, metric.name] for method in methods},
            AFTER,
            BEFORE,
            {key: values[index] for key, values in drawn.items()},
            min(independent),
            paired=lambda: False,
        )
        for index, metric in enumerate(metrics)
    ]


@dataclass(frozen=True)
class Opened:
    """An experiment that was run, and the store of its networks."""

    folder: Path
    experiment: Experiment
    plans: tuple[Plan, ...]
    store: Store


@dataclass(frozen=True)
class Setting:
    """A value that differs; None where one does not have it."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class MethodChange:
    """A method that both have."""

    name: str
    title: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class TaskChange:
    """A task that both have: the methods in both, and those in one only."""

    task: str
    methods: tuple[MethodChange, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    missing: tuple[str, ...]  # networks that are not in the store, and so not averaged in


@checked
@dataclass(frozen=True)
class ExperimentChange(Result):
    """All changes between two experiments."""

    before: Opened
    after: Opened
    settings: tuple[Setting, ...]
    tasks: tuple[TaskChange, ...]
    only_before: tuple[str, ...]  # tasks
    only_after: tuple[str, ...]


def open_run(folder: Path) -> Opened:
    """An experiment's folder, with the store that it is in."""
    return Opened(folder, *read_folder(folder), Store.containing(folder))


def experiment_change(before: Opened, after: Opened, *, resamples: int) -> ExperimentChange:
    """Read both, fit, score, and resample what they share; no training, no data."""
    names = {*before.experiment.metrics, *after.experiment.metrics}
    metrics = [metric for metric in METRICS if metric.name in names]
    matched = _matched(before.plans, after.plans)
    old, new = ({id(pair[index]) for pair in matched} for index in (0, 1))
    return ExperimentChange(
        before,
        after,
        _settings(before, after, matched),
        tuple(_task_change(pair, (before.store, after.store), metrics, resamples) for pair in matched),
        tuple(_plan_title(plan) for plan in before.plans if id(plan) not in old),
        tuple(_plan_title(plan) for plan in after.plans if id(plan) not in new),
    )


def _matched(before: Sequence[Plan], after: Sequence[Plan]) -> list[Pair]:
    """Plans of the same task; where one has several, those of the same network first."""
    left = list(after)
    matched: list[Pair] = []
    for key in (_plan_title, lambda plan: plan.task):
        for plan in before:
            is_taken = any(plan is old for old, _ in matched)
            other = next((each for each in left if not is_taken and key(each) == key(plan)), None)
            if other is not None:
                matched.append((plan, other))
                left = [each for each in left if each is not other]
    return sorted(matched, key=lambda pair: [each is pair[0] for each in before].index(True))


def _plan_title(plan: Plan) -> str:
    return f"{plan.task} ({plan.recipe.network})"


def _task_change(
    plans: Pair, stores: tuple[Store, Store], metrics: Sequence[Metric], resamples: int
) -> TaskChange:
    names = [[planned.method.name for planned in plan.methods] for plan in plans]
    shared = [planned.method for planned in plans[0].methods if planned.method.name in names[1]]
    readers = {store: Reader(store) for store in stores}  # what both share is read and fitted once
    with readers[stores[0]].fitting_threads(plans[0]):
        results = [
            results_of(replanned(plan, shared)[0], readers[store])
            for plan, store in zip(plans, stores, strict=True)
        ]
        pairs = list(zip(*results, strict=True))
        changed = tuple(
            MethodChange(old.name, old.label, changes(old, new, metrics, resamples=resamples))
            for old, new in pairs
        )
    return TaskChange(
        plans[0].task,
        changed,
        tuple(name for name in names[0] if name not in names[1]),
        tuple(name for name in names[1] if name not in names[0]),
        tuple(dict.fromkeys(name for pair in pairs for method in pair for name in method.missing)),
    )


def _settings(before: Opened, after: Opened, matched: Sequence[Pair]) -> tuple[Setting, ...]:
    """The values that differ: those of the experiments, then those of each task that both have."""
    differing = _differing(_plain(before.experiment), _plain(after.experiment))
    for name in ("methods", "metrics"):
        ours, theirs = getattr(before.experiment, name), getattr(after.experiment, name)
        old, new = (
            ", ".join(each for each in a if each not in b) for a, b in ((ours, theirs), (theirs, ours))
        )
        differing += [Setting(f"{name} only here", old or None, new or None)] if old or new else []
    for pair in matched:
        parts = [
            next(part for part, own in zip(run.experiment.parts, run.plans, strict=True) if own is plan)
            for run, plan in zip((before, after), pair, strict=True)
        ]
        differing += _differing(*(_flat(part.as_dict(), f"{pair[0].task}: ") for part in parts))
    return tuple(differing)


def _plain(experiment: Experiment) -> dict[str, str]:
    """The values of the experiment as a whole that are no lists."""
    return {name: str(value) for name, value in experiment.as_dict().items() if not isinstance(value, list)}


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[Setting]:
    names = dict.fromkeys((*old, *new))
    return [Setting(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Every plain value under a dotted name; None is left out."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return flat
