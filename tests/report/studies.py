"""Small studies to report on: a tiny task trained here and now, and comparisons made by hand."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from surefoot.lab.comparison.compare import tabulate
from surefoot.lab.comparison.comparison import Comparison, Difference, MethodRun, MethodRuns, RunScore
from surefoot.lab.experiments.experiment import Experiment, Part
from surefoot.lab.experiments.methods import METHODS, Setup
from surefoot.lab.experiments.plan import Plan, plan_of
from surefoot.lab.experiments.run import PartStudy, study
from surefoot.lab.store.store import Store
from surefoot.lab.tasks.task import Split
from surefoot.lab.training.data import task_inputs
from surefoot.lab.variants.build import TaskContext
from surefoot.lab.workers.produce import complete, produce
from surefoot.metrics import METRICS
from surefoot.predictions.labels import LabelKind
from tests.conftest import draw_one_label
from tests.experiments.test_methods import RECIPE, small_task

SOME = (
    "single",
    "single-t",
    "ensemble",
    "ensemble-of-t",
    "t-of-ensemble",
    "g-distill",
    "novelty",
    "held-out-t",
    "oracle-t",
)
FEW = ("single", "ensemble", "t-of-ensemble")
HOSTILE = "</script><script>alert(1)</script>"
UNFAMILIAR = Split.TEST_UNFAMILIAR
TESTED = (Split.TEST_FAMILIAR, UNFAMILIAR)
SIDES = ("familiar", "unfamiliar")
ERRORS = tuple(METRICS.named(name) for name in ("nll", "e99"))


@dataclass(frozen=True)
class Trained:
    """A store, and what was planned and requested."""

    store: Store
    experiment: Experiment
    plan: Plan

    def study(self, **changes):
        return study(replace(self.experiment, **changes), [self.plan], self.store)


def trained(folder, kind=LabelKind.ONE_LABEL, *, methods=SOME, groups=True, without=()):
    """Some methods on the small toy, two runs of two members; `without` leaves splits out."""
    task = small_task(kind, groups=groups)
    task = replace(task, splits={split: s for split, s in task.splits.items() if split not in without})
    setup = Setup(task, RECIPE, members=2, runs=2, folds=2)
    plan = plan_of(setup, [METHODS.named(name) for name in methods])
    context = TaskContext(task, task_inputs(task, RECIPE, cache=folder / "cache"), torch.device("cpu"))
    store = Store(folder)
    for job in plan.jobs():
        produce(setup.spec(job.recipe, job.seed), context, store)
        complete(setup.spec(job.recipe, job.seed), job, context, store)
    part = Part(task="toy/small", recipe=RECIPE)
    experiment = Experiment(
        name="tiny", parts=(part,), methods=methods, members=2, runs=2, folds=2, resamples=20
    )
    return Trained(store, experiment, plan)


def hostile(original):
    """The same study under names that try to break out of whatever shows them."""
    methods = tuple(
        replace(p, method=replace(p.method, title=f"{p.method.title}{HOSTILE}"))
        for p in original.plan.methods
    )
    plan = replace(original.plan, task=f"../../{HOSTILE}", methods=methods, skipped=(HOSTILE,))
    experiment = replace(original.experiment, name="<img src=x onerror=alert(2)>", about=HOSTILE)
    return Trained(original.store, experiment, plan)


@dataclass(frozen=True)
class Row:
    """A method's numbers by hand: NLL and E99 of each run on each side, and intervals of differences."""

    unfamiliar: tuple[float, ...]
    familiar: tuple[float, ...] = (0.2,)
    e99: float = 0.05
    from_best: tuple[float, float, float] | None = None
    from_baseline: tuple[float, float, float] | None = None
    training: float | None = 10.0
    running: float | None = 0.001
    missing: tuple[str, ...] = ()
    familiar_from_baseline: tuple[float, float, float] | None = None


def by_hand(rows, *, sides=SIDES, pairs=None):
    """A part whose comparison has these numbers, by method name; `pairs` are gaps of unfamiliar NLL."""
    methods, values = [], {}
    for name, row in rows.items():
        method = METHODS.named(name)
        about = MethodRuns(name=name, title=method.title, oracle=method.oracle, missing=row.missing)
        methods.append(replace(about, seconds_training=row.training, seconds_per_sample=row.running))
        values[name] = {
            (side, "nll"): [RunScore(run, value) for run, value in enumerate(getattr(row, side))]
            for side in sides
        } | {(side, "e99"): [RunScore(run, row.e99) for run in range(len(row.unfamiliar))] for side in sides}
    comparison = tabulate(methods, ERRORS, sides, values)
    comparison = replace(
        comparison,
        methods=tuple(_with_gaps(m, rows[m.name]) for m in comparison.methods),
        pairs={pair: {("unfamiliar", "nll"): Difference(*gap)} for pair, gap in (pairs or {}).items()},
    )
    plan = Plan("letters", "", LabelKind.ONE_LABEL, ("a", "b"), RECIPE, ())
    return PartStudy(Part(task="letters", recipe=RECIPE), plan, comparison)


def _with_gaps(method, row):
    cells = dict(method.cells)
    place = ("unfamiliar", "nll")
    if place in cells:
        gaps = {
            name: Difference(*getattr(row, name))
            for name in ("from_best", "from_baseline")
            if getattr(row, name)
        }
        cells[place] = replace(cells[place], **gaps)
    if row.familiar_from_baseline:
        place = ("familiar", "nll")
        cells[place] = replace(cells[place], from_baseline=Difference(*row.familiar_from_baseline))
    return replace(method, cells=cells)


def empty_part():
    """A part of which no network is there."""
    part = by_hand({"single": Row((0.5,))})
    gone = tuple(f"plain network of letters, seed {seed}" for seed in range(5))
    about = MethodRuns(name="single", title="Single", missing=gone)
    comparison: Comparison = tabulate([about], ERRORS, (), {"single": {}})
    return replace(part, comparison=comparison)


def drawn_part(names=("<b>a</b>", "b", "c", "d")):
    """A part whose single network and ensemble were drawn by lot, with many mistakes and named samples."""
    ids = [f"sample {row}" for row in range(300)]
    runs = {
        name: MethodRun.of_sides(
            0, *(draw_one_label(sharpness=sharpness, class_names=names, ids=ids) for _ in SIDES)
        )
        for name, sharpness in (("single", 3.0), ("ensemble", 1.0))
    }
    return with_runs(by_hand({"single": Row((1.0,)), "ensemble": Row((0.6,))}), runs)


def with_runs(part, runs):
    """A part whose methods have these runs, by name."""
    methods = tuple(replace(method, runs=(runs[method.name],)) for method in part.comparison.methods)
    return replace(part, comparison=replace(part.comparison, methods=methods))


def nll_by_hand(predictions):
    """Clipped NLL from the probabilities alone."""
    p = predictions.probs()[np.arange(predictions.n), predictions.labels]
    return float(-np.log(np.clip(p, 0.001, 0.999)).mean())
