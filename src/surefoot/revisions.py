"""What changed between two experiments that were run: their values, and every method's numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.comparison import Change, changes
from surefoot.experiments import Experiment, Part
from surefoot.methods import Method, method_named
from surefoot.metrics import METRICS, Metric
from surefoot.plans import Plan, replanned
from surefoot.results import Result, as_runs
from surefoot.runner import read_folder, results_of
from surefoot.store import Store
from surefoot.threads import one_thread

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
class Revision:
    """All that changed."""

    before: Opened
    after: Opened
    settings: tuple[Setting, ...]
    tasks: tuple[TaskChange, ...]
    only_before: tuple[str, ...]  # tasks
    only_after: tuple[str, ...]


def open_run(folder: Path) -> Opened:
    """An experiment's folder, with the store that it lies in."""
    return Opened(folder, *read_folder(folder), Store.holding(folder))


@one_thread()
def revision(before: Opened, after: Opened, *, resamples: int) -> Revision:
    """Read both, fit, score, and resample what they share; no training, no data."""
    asked = {*before.experiment.metrics, *after.experiment.metrics}
    metrics = [metric for metric in METRICS if metric.name in asked]
    matched = _matched(before.plans, after.plans)
    ours, theirs = ([id(pair[side]) for pair in matched] for side in (0, 1))
    return Revision(
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
    shared = [method_named(name) for name in names[0] if name in names[1]]
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
    title = f"{old.method.title} (cheating)" if old.method.cheating else old.method.title
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
