"""An experiment from its values to its results: plan, have the networks made, read the store, compare."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from surefoot.comparison import HEADLINE, Comparison, MethodRuns, compare
from surefoot.engines.orders import Order
from surefoot.errors import InputError
from surefoot.experiments import Experiment, Part, placed, read_experiment, write_experiment
from surefoot.files import replacing
from surefoot.methods import Setup, method_named
from surefoot.metrics import Metric, metric_named
from surefoot.plans import Plan, plan_from, plan_of
from surefoot.recipes import recipe_from
from surefoot.results import Reader, Result, as_runs
from surefoot.store import Store
from surefoot.tasks import task_named
from surefoot.training.start import right_weights, weights_digest

EXPERIMENT = "experiment.toml"
PLANS = "plans.json"


@dataclass(frozen=True, eq=False)
class PartStudy:
    """What came out on one task."""

    part: Part
    plan: Plan
    results: tuple[Result, ...]
    comparison: Comparison


@dataclass(frozen=True, eq=False)
class Study:
    """What came out of an experiment."""

    experiment: Experiment
    parts: tuple[PartStudy, ...]


def resolved(experiment: Experiment) -> Experiment:
    """With the hash of each pretrained weights file in its recipe, and with paths in full."""
    return replace(
        experiment, parts=tuple(_with_weights(placed(part, Path.cwd())) for part in experiment.parts)
    )


def plans_for(experiment: Experiment) -> tuple[Plan, ...]:
    """A plan per part. A task whose data are not there says what it needs."""
    methods = [method_named(name) for name in experiment.methods]
    plans = []
    for part in experiment.parts:
        task = task_named(part.task, root=None if part.root is None else Path(part.root))
        setup = Setup(task, part.recipe, experiment.members, experiment.runs, experiment.folds)
        plans.append(plan_of(setup, methods))
    return tuple(plans)


def order_for(part: Part, plan: Plan, *, store: Store, cache: Path, device: str) -> Order:
    """All networks of a part that are not done, for an engine."""
    return Order(
        task=part.task,
        root=part.root,
        jobs=plan.jobs(),
        store=str(store.root),
        cache=str(cache),
        weights=part.weights,
        device=device,
    )


def open_folder(experiment: Experiment, plans: Sequence[Plan], store: Store) -> Path:
    """The experiment's folder in the store, with its values and plans written.

    Another experiment of the same name stays where it is; this one then has its hash in its folder's name.
    """
    folder = store.experiment_folder(experiment.name)
    if (folder / EXPERIMENT).is_file() and read_experiment(folder / EXPERIMENT) != experiment:
        folder = store.experiment_folder(f"{experiment.name}-{experiment.digest}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error
    write_experiment(experiment, folder / EXPERIMENT)
    with replacing(folder / PLANS) as temporary:
        temporary.write_text(json.dumps([plan.as_dict() for plan in plans], indent=1), encoding="utf-8")
    return folder


def read_folder(folder: Path) -> tuple[Experiment, tuple[Plan, ...]]:
    """The values and plans of an experiment that was run."""
    try:
        plans = json.loads((folder / PLANS).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"no experiment was run in {folder}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{folder / PLANS} is damaged: {error}") from error
    return read_experiment(folder / EXPERIMENT), tuple(plan_from(plan) for plan in plans)


def study(
    experiment: Experiment,
    plans: Sequence[Plan],
    store: Store,
    *,
    tick: Callable[[int], None] = lambda _: None,
) -> Study:
    """Read what the store has, fit, score and compare; no training."""
    metrics = _metrics(experiment)
    parts = []
    for part, plan in zip(experiment.parts, plans, strict=True):
        reader = Reader(store)
        results = tuple(reader.result(planned) for planned in plan.methods)
        runs = [_among(as_runs(result), results) for result in results]
        comparison = compare(runs, metrics, resamples=experiment.resamples, tick=tick)
        parts.append(PartStudy(part, plan, results, comparison))
    return Study(experiment, tuple(parts))


def _metrics(experiment: Experiment) -> tuple[Metric, ...]:
    """Those asked for, and those that the tables of entropy need."""
    asked = [metric_named(name) for name in experiment.metrics]
    return (*asked, *(metric for metric in HEADLINE if metric not in asked))


def _among(runs: MethodRuns, results: Sequence[Result]) -> MethodRuns:
    """Without a variance lent by a method that is not compared."""
    lender = runs.spread_of
    return replace(runs, spread_of=lender if lender in {each.method.name for each in results} else None)


def _with_weights(part: Part) -> Part:
    if part.weights is None:
        if part.recipe.pretrained is not None:
            right_weights(part.recipe.pretrained, None)  # which says what is needed
        return part
    path = Path(part.weights)
    if part.recipe.pretrained is not None:
        right_weights(part.recipe.pretrained, path)
    return replace(part, recipe=recipe_from({"pretrained": weights_digest(path)}, base=part.recipe))
