"""An experiment from its values to its comparison: plan, train, read the store, compare."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.errors import InputError
from surefoot.io import MOST_TEXT, make_folder, parse_json, read_regular, replacing
from surefoot.lab.experiments.experiment import Experiment, Part, placed, read_experiment, write_experiment
from surefoot.lab.experiments.methods import METHODS, Setup
from surefoot.lab.experiments.paper import PAIRS
from surefoot.lab.experiments.plan import Plan, plan_from, plan_of, replanned
from surefoot.lab.recipes.own_code import with_code
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Split
from surefoot.lab.variants import recipe_from
from surefoot.lab.workers.jobs import Job, WorkOrder
from surefoot.metrics import METRICS
from surefoot.predictions.arguments import checked
from surefoot.results import Result

if TYPE_CHECKING:  # torch is imported where results are read: listing runs must be fast
    from surefoot.lab.comparison.comparison import Comparison

EXPERIMENT = "experiment.toml"
PLANS = "plans.json"
REPEAT = "repeat 'surefoot run' with this experiment, which writes it again and trains nothing twice"


@dataclass(frozen=True, eq=False)
class PartStudy:
    """The result on one task: every method's runs, compared."""

    part: Part
    plan: Plan
    comparison: "Comparison"


@checked
@dataclass(frozen=True, eq=False)
class Study(Result):
    """The result of an experiment."""

    experiment: Experiment
    parts: tuple[PartStudy, ...]
    folder: Path | None = None  # of the experiment in the store


def resolved(experiment: Experiment) -> Experiment:
    """With the hashes of pretrained weights and of a user's own code in its recipes; with absolute paths."""
    parts = (_with_weights(placed(part, Path.cwd())) for part in experiment.parts)
    return replace(experiment, parts=tuple(replace(part, recipe=with_code(part.recipe)) for part in parts))


def _with_weights(part: Part) -> Part:
    if part.weights is None and part.recipe.pretrained is None:
        return part
    from surefoot.lab.training.initial import right_weights, weights_digest

    path = None if part.weights is None else Path(part.weights)
    if part.recipe.pretrained is not None:
        right_weights(part.recipe.pretrained, path)  # or an error that says which file is needed
    if path is None:
        return part
    return replace(part, recipe=recipe_from({"pretrained": weights_digest(path)}, base=part.recipe))


def plans_for(experiment: Experiment) -> tuple[Plan, ...]:
    """A plan per part; an error says which data a task needs."""
    methods = [METHODS.named(name).with_budget(experiment.budget) for name in experiment.methods]
    plans = []
    for part in experiment.parts:
        task = task_named(part.task, root=None if part.root is None else Path(part.root))
        if Split.TEST_FAMILIAR not in task.splits:
            raise InputError(f"task {task.name!r} has no familiar test samples; needed: at least one")
        setup = Setup(
            task,
            part.recipe,
            members=experiment.members,
            runs=experiment.runs,
            ensembles=experiment.ensembles,
            folds=experiment.folds,
            changes=part.sharpness_aware,
        )
        plan = plan_of(setup, methods)
        if not plan.methods:
            raise InputError(f"no method can be used on task {part.task!r}: {'; '.join(plan.skipped)}")
        plans.append(plan)
    return tuple(plans)


def undone(plan: Plan, store: Store) -> tuple[Job, ...]:
    """The jobs of a plan that are not done: a network, or what is computed from one, is missing."""
    jobs = []
    for job in plan.jobs():
        spec = plan.spec(job)
        has_scores = all(store.has_novelty(spec, name) for name in job.novelty)
        has_samples = store.has_scaled_samples(spec) or not job.scaled_samples
        if not (store.is_done(spec) and has_scores and has_samples):
            jobs.append(job)
    return tuple(jobs)


def order_for(
    part: Part, plan: Plan, *, store: Store, cache: Path | None, device: str, remote: str | None = None
) -> WorkOrder:
    """The order for an engine: all networks of a part that are not done."""
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

    If another experiment has the name, the folder of this one has its hash in the name.
    """
    folder = store.experiment_folder(experiment.name)
    if (folder / EXPERIMENT).is_file() and _read_values(folder) != experiment:
        folder = store.experiment_folder(f"{experiment.name}-{experiment.digest}")
    make_folder(folder)
    write_experiment(experiment, folder / EXPERIMENT)
    with replacing(folder / PLANS) as temporary:
        temporary.write_text(json.dumps([plan.as_dict() for plan in plans], indent=1), encoding="utf-8")
    return folder


def _read_values(folder: Path) -> Experiment:
    try:
        return read_experiment(folder / EXPERIMENT)
    except InputError as error:
        path = folder / EXPERIMENT
        raise InputError(f"{error}; if {path} is damaged, remove it and repeat 'surefoot run'") from error


def read_folder(folder: Path) -> tuple[Experiment, tuple[Plan, ...]]:
    """The values and plans of an experiment that was run."""
    try:
        plans = parse_json(read_regular(folder / PLANS, most=MOST_TEXT).decode("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {folder / PLANS}: {error.strerror}; {REPEAT}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder / PLANS} is damaged: {error}; {REPEAT}") from error
    experiment = _read_values(folder)
    if not isinstance(plans, list) or len(plans) != len(experiment.parts):
        raise InputError(
            f"{folder / PLANS} is damaged: it has no plan for each of {len(experiment.parts)} parts; {REPEAT}"
        )
    try:
        return experiment, tuple(plan_from(plan) for plan in plans)
    except InputError as error:
        raise InputError(f"{folder / PLANS} is damaged: {error}; {REPEAT}") from error


def with_methods(
    experiment: Experiment, plans: Sequence[Plan], names: Sequence[str]
) -> tuple[Experiment, tuple[Plan, ...]]:
    """An experiment that was run, with other methods that read the same networks.

    A part without networks for any of them is left out; a method without networks in any part is refused.
    """
    requested = replace(experiment, methods=tuple(names))
    methods = [METHODS.named(name).with_budget(requested.budget) for name in requested.methods]
    changed = [replanned(plan, methods) for plan in plans]
    for name in requested.methods:
        if all(name in without for _, without in changed):
            have = ", ".join(dict.fromkeys(p.method.name for plan in plans for p in plan.methods))
            raise InputError(
                f"experiment {experiment.name!r} has no networks for {name!r}; it was run with: {have}"
            )
    used = [(part, plan) for part, (plan, _) in zip(experiment.parts, changed, strict=True) if plan.methods]
    return replace(requested, parts=tuple(part for part, _ in used)), tuple(plan for _, plan in used)


def study(experiment: Experiment, plans: Sequence[Plan], store: Store) -> Study:
    """Read what the store has, fit, score and compare; no training."""
    from surefoot.lab.comparison.compare import HEADLINE, compare_runs
    from surefoot.lab.experiments.results import Reader, results_of, without_absent_lenders

    requested = [METRICS.named(name) for name in experiment.metrics]
    metrics = [*requested, *(metric for metric in HEADLINE if metric not in requested)]
    parts = []
    for part, plan in zip(experiment.parts, plans, strict=True):
        reader = Reader(store)
        with reader.fitting_threads(plan):
            methods = without_absent_lenders(results_of(plan, reader))
            comparison = compare_runs(methods, metrics, resamples=experiment.resamples, pairs=PAIRS)
        parts.append(PartStudy(part, plan, comparison))
    return Study(experiment, tuple(parts))
