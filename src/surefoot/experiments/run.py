"""An experiment from its values to its results: plan, have the networks made, read the store, compare."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.errors import InputError
from surefoot.experiments.experiment import Experiment, Part, placed, read_experiment, write_experiment
from surefoot.experiments.methods import METHODS, Setup
from surefoot.experiments.paper import PAIRS
from surefoot.experiments.plan import Plan, plan_from, plan_of, replanned
from surefoot.io import make_folder, replacing
from surefoot.metrics import METRICS, Metric
from surefoot.recipes.recipe import Spec
from surefoot.runtime import one_thread
from surefoot.store.store import Store
from surefoot.tasks import task_named
from surefoot.tasks.task import Split
from surefoot.variants import recipe_from
from surefoot.workers.jobs import Job, WorkOrder

if TYPE_CHECKING:  # torch is imported where results are read: listing runs must be fast
    from surefoot.evaluation.comparison import Comparison, MethodRuns
    from surefoot.experiments.results import Result

EXPERIMENT = "experiment.toml"
PLANS = "plans.json"


@dataclass(frozen=True, eq=False)
class PartStudy:
    """What came out on one task."""

    part: Part
    plan: Plan
    results: "tuple[Result, ...]"
    comparison: "Comparison"


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
    methods = [METHODS.named(name) for name in experiment.methods]
    plans = []
    for part in experiment.parts:
        task = task_named(part.task, root=None if part.root is None else Path(part.root))
        if Split.TEST_FAMILIAR not in task.splits:
            raise InputError(f"task {task.name!r} has no familiar test samples; needed: some, to compare on")
        setup = Setup(
            task,
            part.recipe,
            members=experiment.members,
            runs=experiment.runs,
            ensembles=experiment.ensembles,
            folds=experiment.folds,
        )
        plan = plan_of(setup, methods)
        if not plan.methods:
            raise InputError(f"no method can be used on task {part.task!r}: {'; '.join(plan.skipped)}")
        plans.append(plan)
    return tuple(plans)


def undone(plan: Plan, store: Store) -> tuple[Job, ...]:
    """The jobs of a plan that leave something to do: a network, or novelty scores of one."""
    return tuple(job for job in plan.jobs() if not _is_done(job, plan.spec(job), store))


def _is_done(job: Job, spec: Spec, store: Store) -> bool:
    return store.is_done(spec) and all(store.has_novelty(spec, name) for name in job.novelty)


def order_for(
    part: Part, plan: Plan, *, store: Store, cache: Path | None, device: str, remote: str | None = None
) -> WorkOrder:
    """All networks of a part that are not done, for an engine; a teacher that is done is not among them."""
    return WorkOrder(
        task=part.task,
        root=part.root,
        jobs=undone(plan, store),
        store=str(store.root),
        cache=None if cache is None else str(cache),
        weights=part.weights,
        device=device,
        remote=remote,
    )


def open_folder(experiment: Experiment, plans: Sequence[Plan], store: Store) -> Path:
    """The experiment's folder in the store, with its values and plans written.

    Another experiment of the same name stays where it is; this one then has its hash in its folder's name.
    """
    folder = store.experiment_folder(experiment.name)
    if (folder / EXPERIMENT).is_file() and read_experiment(folder / EXPERIMENT) != experiment:
        folder = store.experiment_folder(f"{experiment.name}-{experiment.digest}")
    make_folder(folder)
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
    experiment = read_experiment(folder / EXPERIMENT)
    if not isinstance(plans, list) or len(plans) != len(experiment.parts):
        raise InputError(
            f"{folder / PLANS} is damaged; needed: a plan for each of {len(experiment.parts)} parts"
        )
    try:
        return experiment, tuple(plan_from(plan) for plan in plans)
    except InputError as error:
        raise InputError(f"{folder / PLANS} is damaged: {error}") from error


def with_methods(
    experiment: Experiment, plans: Sequence[Plan], names: Sequence[str]
) -> tuple[Experiment, tuple[Plan, ...]]:
    """An experiment that was run, for other methods that can be had from its networks.

    A part that has networks for none of them is left out; a method that no part has any for is refused.
    """
    asked = replace(experiment, methods=tuple(names))
    methods = [METHODS.named(name) for name in asked.methods]
    found = [replanned(plan, methods) for plan in plans]
    for name in asked.methods:
        if all(name in without for _, without in found):
            have = ", ".join(dict.fromkeys(p.method.name for plan in plans for p in plan.methods))
            raise InputError(
                f"experiment {experiment.name!r} has no networks for {name!r}; it was run with: {have}"
            )
    kept = [(part, plan) for part, (plan, _) in zip(experiment.parts, found, strict=True) if plan.methods]
    return replace(asked, parts=tuple(part for part, _ in kept)), tuple(plan for _, plan in kept)


@one_thread()
def study(
    experiment: Experiment,
    plans: Sequence[Plan],
    store: Store,
    *,
    tick: Callable[[int], None] = lambda _: None,
) -> Study:
    """Read what the store has, fit, score and compare; no training."""
    from surefoot.evaluation.compare import compare
    from surefoot.experiments.results import as_runs

    metrics = _metrics(experiment)
    parts = []
    for part, plan in zip(experiment.parts, plans, strict=True):
        results = results_of(plan, store)
        runs = [_among(as_runs(result), results) for result in results]
        comparison = compare(runs, metrics, resamples=experiment.resamples, pairs=PAIRS, tick=tick)
        parts.append(PartStudy(part, plan, results, comparison))
    return Study(experiment, tuple(parts))


def results_of(plan: Plan, store: Store) -> "tuple[Result, ...]":
    """What the store has of every method of a plan."""
    from surefoot.experiments.results import Reader

    reader = Reader(store)
    return tuple(reader.result(planned) for planned in plan.methods)


def _metrics(experiment: Experiment) -> tuple[Metric, ...]:
    """Those asked for, and those that the tables of entropy need."""
    from surefoot.evaluation.compare import HEADLINE

    asked = [METRICS.named(name) for name in experiment.metrics]
    return (*asked, *(metric for metric in HEADLINE if metric not in asked))


def _among(runs: "MethodRuns", results: "Sequence[Result]") -> "MethodRuns":
    """Without a variance lent by a method that is not compared."""
    lender = runs.variance_from
    return replace(runs, variance_from=lender if lender in {each.method.name for each in results} else None)


def _with_weights(part: Part) -> Part:
    if part.weights is None and part.recipe.pretrained is None:
        return part
    from surefoot.training.initial import right_weights, weights_digest

    if part.weights is None:
        if part.recipe.pretrained is not None:
            right_weights(part.recipe.pretrained, None)  # which says what is needed
        return part
    path = Path(part.weights)
    if part.recipe.pretrained is not None:
        right_weights(part.recipe.pretrained, path)
    return replace(part, recipe=recipe_from({"pretrained": weights_digest(path)}, base=part.recipe))
