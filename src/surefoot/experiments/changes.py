"""What changed between two experiments: their settings, and every method's numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.bootstrap import Draw, resampled
from surefoot.evaluation.compare import ENOUGH_RESAMPLES, compare, difference
from surefoot.evaluation.comparison import Cell, Difference, MethodRuns, Place, Said
from surefoot.evaluation.scores import SIDES
from surefoot.experiments.experiment import Experiment, Part
from surefoot.experiments.methods import METHODS, Method
from surefoot.experiments.plan import Plan, replanned
from surefoot.experiments.results import Result, as_runs
from surefoot.experiments.run import read_folder, results_of
from surefoot.intervals import few_samples_factor
from surefoot.metrics import METRICS, Metric
from surefoot.predictions.outcomes import Array
from surefoot.predictions.predictions import Predictions
from surefoot.runtime import one_thread
from surefoot.store.store import Store

BEFORE, AFTER = "before", "after"
ONE_SIDE = SIDES[0]  # a side by itself is compared as if it were the only one


Cells = Mapping[Place, Cell]


@dataclass(frozen=True)
class Change:
    """A method's metric on one side, in both experiments; the difference is after less before."""

    side: str
    metric: Metric
    before: float
    after: float
    difference: Difference
    runs: int  # that the means are over, of the one with more
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
    """Every metric on each side that both have, over the runs that both have; one run stands against all."""
    found: list[Change] = []
    for index, side in enumerate(SIDES):
        pair = _shared(_one_side(before, BEFORE, side), _one_side(after, AFTER, side))
        if all(each.runs for each in pair):
            found += _on_side(side, *pair, metrics, resamples, [seed, index])
    return tuple(found)


def same_rows(one: Predictions, other: Predictions) -> bool:
    """Whether both are of the same samples in the same order, as far as labels and names tell."""
    if one.kind is not other.kind or not torch.equal(one.labels, other.labels):
        return False
    return one.ids is None or other.ids is None or np.array_equal(one.ids, other.ids)


def _on_side(
    side: str,
    before: MethodRuns,
    after: MethodRuns,
    metrics: Sequence[Metric],
    resamples: int,
    seed: list[int],
) -> list[Change]:
    first = before.runs[0].familiar
    paired = all(same_rows(first, said.familiar) for each in (before, after) for said in each.runs)
    if paired:
        together = compare([before, after], metrics, resamples=resamples, seed=seed[1], baseline=BEFORE)
        old, new = (together.method(name).cells for name in (BEFORE, AFTER))
        gaps = [new[ONE_SIDE, metric.name].from_baseline for metric in metrics]
    else:
        old, new = (compare([each], metrics, resamples=0).methods[0].cells for each in (before, after))
        gaps = _unpaired(before, after, (old, new), metrics, resamples, seed)
    runs = max(len(before.runs), len(after.runs))
    found = []
    for metric, gap in zip(metrics, gaps, strict=True):
        ours, theirs = (cells[ONE_SIDE, metric.name].mean for cells in (old, new))
        found.append(Change(side, metric, ours, theirs, gap or Difference(theirs - ours), runs, paired))
    return found


def _unpaired(
    before: MethodRuns,
    after: MethodRuns,
    cells: tuple[Cells, Cells],
    metrics: Sequence[Metric],
    resamples: int,
    seed: list[int],
) -> list[Difference | None]:
    """Other samples before than after: each is resampled by itself."""
    if not resamples:
        return [None] * len(metrics)
    spread: dict[tuple[str, int], Array] = {}
    factors = []
    for index, method in enumerate((before, after)):
        first = method.runs[0].familiar
        rng = np.random.default_rng([*seed, index])
        draw = Draw.of(first.n, first.groups, resamples=resamples, rng=rng)
        factors.append(few_samples_factor(len(np.unique(draw.unit_of[first.outcomes.row]))))
        for said in method.runs:
            slow = min(resamples, ENOUGH_RESAMPLES)
            drawn = resampled(said.familiar.outcomes, metrics, draw, slow_resamples=slow)
            spread[method.name, said.run] = drawn
    return [
        difference(
            {name: of[ONE_SIDE, metric.name] for name, of in zip((BEFORE, AFTER), cells, strict=True)},
            AFTER,
            BEFORE,
            {key: drawn[index] for key, drawn in spread.items()},
            max(factors),
            paired=False,
        )
        for index, metric in enumerate(metrics)
    ]


def _one_side(method: MethodRuns, name: str, side: str) -> MethodRuns:
    """A method under another name, with one side alone."""
    said = [(each.run, each.side(side)) for each in method.runs]
    runs = tuple(Said(run, predictions) for run, predictions in said if predictions is not None)
    return replace(method, name=name, runs=runs, variance_from=None)


def _shared(before: MethodRuns, after: MethodRuns) -> tuple[MethodRuns, MethodRuns]:
    """The runs that both have; one run stands against every run of the other."""
    if 1 in (len(before.runs), len(after.runs)):
        return before, after
    shared = {said.run for said in before.runs} & {said.run for said in after.runs}
    ours, theirs = (tuple(said for said in each.runs if said.run in shared) for each in (before, after))
    return replace(before, runs=ours), replace(after, runs=theirs)


Pair = tuple[Plan, Plan]


@dataclass(frozen=True)
class Opened:
    """An experiment that was run, and where its networks are."""

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
    missing: tuple[str, ...]  # networks that are not there, and so not averaged in


@dataclass(frozen=True)
class ExperimentChange:
    """All that changed."""

    before: Opened
    after: Opened
    settings: tuple[Setting, ...]
    tasks: tuple[TaskChange, ...]
    only_before: tuple[str, ...]  # tasks
    only_after: tuple[str, ...]


def open_run(folder: Path) -> Opened:
    """An experiment's folder, with the store that it lies in."""
    return Opened(folder, *read_folder(folder), Store.containing(folder))


@one_thread()
def experiment_change(before: Opened, after: Opened, *, resamples: int) -> ExperimentChange:
    """Read both, fit, score, and resample what they share; no training, no data."""
    asked = {*before.experiment.metrics, *after.experiment.metrics}
    metrics = [metric for metric in METRICS if metric.name in asked]
    matched = _matched(before.plans, after.plans)
    ours, theirs = ([id(pair[side]) for pair in matched] for side in (0, 1))
    return ExperimentChange(
        before,
        after,
        _settings(before, after, matched),
        tuple(_task((a, before.store), (b, after.store), metrics, resamples) for a, b in matched),
        tuple(_called(plan) for plan in before.plans if id(plan) not in ours),
        tuple(_called(plan) for plan in after.plans if id(plan) not in theirs),
    )


def _matched(before: Sequence[Plan], after: Sequence[Plan]) -> list[Pair]:
    """Plans of the same task; where one has several, those of the same network first."""
    left = list(after)
    found: list[Pair] = []
    for alike in (_called, lambda plan: plan.task):
        for plan in before:
            taken = any(plan is ours for ours, _ in found)
            other = next((each for each in left if not taken and alike(each) == alike(plan)), None)
            if other is not None:
                found.append((plan, other))
                left = [each for each in left if each is not other]
    return sorted(found, key=lambda pair: [each is pair[0] for each in before].index(True))


def _called(plan: Plan) -> str:
    return f"{plan.task} ({plan.recipe.network})"


def _task(
    before: tuple[Plan, Store], after: tuple[Plan, Store], metrics: Sequence[Metric], resamples: int
) -> TaskChange:
    names = [[planned.method.name for planned in plan.methods] for plan, _ in (before, after)]
    shared = [METHODS.named(name) for name in names[0] if name in names[1]]
    pairs = list(zip(_results(before, shared), _results(after, shared), strict=True))
    missing = [name for pair in pairs for result in pair for name in result.missing]
    return TaskChange(
        before[0].task,
        tuple(_method(old, new, metrics, resamples) for old, new in pairs),
        tuple(name for name in names[0] if name not in names[1]),
        tuple(name for name in names[1] if name not in names[0]),
        tuple(dict.fromkeys(missing)),
    )


def _results(side: tuple[Plan, Store], methods: Sequence[Method]) -> tuple[Result, ...]:
    plan, store = side
    return results_of(replanned(plan, methods)[0], store)


def _method(old: Result, new: Result, metrics: Sequence[Metric], resamples: int) -> MethodChange:
    found = changes(as_runs(old), as_runs(new), metrics, resamples=resamples)
    title = f"{old.method.title} (cheating)" if old.method.oracle else old.method.title
    return MethodChange(old.method.name, title, found)


def _settings(before: Opened, after: Opened, matched: Sequence[Pair]) -> tuple[Setting, ...]:
    """Of the experiments, then of each task that both have."""
    found = _differing(_plain(before.experiment), _plain(after.experiment))
    for name in ("methods", "metrics"):
        ours, theirs = getattr(before.experiment, name), getattr(after.experiment, name)
        old, new = (
            ", ".join(each for each in a if each not in b) for a, b in ((ours, theirs), (theirs, ours))
        )
        found += [Setting(f"{name} only here", old or None, new or None)] if old or new else []
    for old_plan, new_plan in matched:
        prefix = f"{old_plan.task}: "
        parts = (_part(before, old_plan), _part(after, new_plan))
        found += _differing(*(_flat(part.as_dict(), prefix) for part in parts))
    return tuple(found)


def _plain(experiment: Experiment) -> dict[str, str]:
    """The values that are of the experiment as a whole, and no lists."""
    return {name: str(value) for name, value in experiment.as_dict().items() if not isinstance(value, list)}


def _part(run: Opened, plan: Plan) -> Part:
    return next(part for part, own in zip(run.experiment.parts, run.plans, strict=True) if own is plan)


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[Setting]:
    names = dict.fromkeys((*old, *new))
    return [Setting(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Every plain value under a dotted name; None is left out."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return found
