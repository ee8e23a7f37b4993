"""The evaluation of the sharpness-aware study, and the cost: of experiments that `surefoot run` has trained.

python experiments/sharpness.py evaluate --out FOLDER RUNS/experiments/NAME ...
python experiments/sharpness.py cost --out FOLDER RUNS/experiments/NAME ...
"""

import argparse
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.calibrators.options import SURPLUS
from surefoot.errors import InputError
from surefoot.experiments.methods import METHODS
from surefoot.experiments.plan import Plan
from surefoot.io import make_folder
from surefoot.metrics import METRICS
from surefoot.recipes.recipe import Spec
from surefoot.store.store import Store
from surefoot.text import (
    count_of,
    csv_text,
    interval_text,
    number_text,
    signed_interval_text,
    signed_text,
)

if TYPE_CHECKING:
    from surefoot.evaluation.bootstrap import Draw
    from surefoot.predictions.predictions import Predictions
    from surefoot.report.style import Picture

FULL = "sharpness-aware"
OWN_T = 0.0  # a budget of nothing: the T with the least NLL
RULES: dict[str, float | str] = {"own T": OWN_T, "2%": 0.02, "5%": 0.05, "10%": 0.1, SURPLUS: SURPLUS}

OURS = "sharpness-aware-budget-t"
PAPER_ENSEMBLE, OWN_ENSEMBLE = "ensemble-of-t", "ensemble-of-sharpness-aware-t"
EVALUATED = ("single", "single-t", PAPER_ENSEMBLE, FULL, "sharpness-aware-t", OURS, OWN_ENSEMBLE)
LIMITS = {PAPER_ENSEMBLE: 1.0, OWN_ENSEMBLE: 1.02}  # the goal: no higher; the stretch goal: within 2%
OUTCOMES = {
    "unfamiliar": ("nll", "aurc", "brier", "ece", "e99", "label_error"),
    "familiar": ("nll", "label_error"),
}
PRIMARY = (("unfamiliar", "nll"), ("unfamiliar", "aurc"))
GOALS = {
    PAPER_ENSEMBLE: (
        "Goal, no higher unfamiliar NLL, AURC and familiar NLL",
        (*PRIMARY, ("familiar", "nll")),
    ),
    OWN_ENSEMBLE: ("Stretch goal, unfamiliar NLL and AURC within 2%", PRIMARY),
}


@dataclass(frozen=True, eq=False)
class Contender:
    """A method's predictions of one side: of single networks, or of the members of ensembles.

    The probabilities of several networks of a run are averaged; `runs` are resampled network by network.
    """

    runs: "tuple[Predictions, ...]"  # calibrated
    specs: tuple[Spec, ...]  # of all networks of all runs, in this order

    def values(self, metrics: Sequence[Any]) -> np.ndarray:
        """(metrics,) averaged over runs."""
        return mean_defined(np.array([[m.function(run) for m in metrics] for run in self.runs]))

    def replicates(
        self, metrics: Sequence[Any], draw: "Draw", counts: np.ndarray, picks: np.ndarray
    ) -> np.ndarray:
        """(resamples, metrics) from how often each block occurs and the networks picked, by resample."""
        from surefoot.evaluation.bootstrap import Bootstrap

        if self.runs[0].members == 1:
            every = np.stack([Bootstrap(run.outcomes, metrics, draw).values(counts) for run in self.runs])
            return np.stack([mean_defined(every[picked, :, b]) for b, picked in enumerate(picks)])
        networks = np.concatenate([run.logits for run in self.runs])
        drawn = []
        for of_units, picked in zip(counts, picks.reshape(len(picks), len(self.runs), -1), strict=True):
            ensembles = [self.runs[0].with_logits(networks[members]) for members in picked]
            boots = [Bootstrap(ensemble.outcomes, metrics, draw) for ensemble in ensembles]
            drawn.append(mean_defined(np.stack([boot.values(of_units[None])[:, 0] for boot in boots])))
        return np.stack(drawn)


def mean_defined(values: np.ndarray) -> np.ndarray:
    """The mean over the first axis of the numbers that are defined; NaN where none is."""
    defined = np.isfinite(values)
    count = defined.sum(axis=0)
    total = np.where(defined, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass(frozen=True)
class Gap:
    """One method compared with another by a metric; intervals are for other images and other networks."""

    task: str
    method: str
    other: str
    side: str
    metric: str
    value: float
    other_value: float
    difference: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    limit: float  # the ratio that is to be reached
    excess_low: float  # of the value less `limit` times the other's

    @property
    def verdict(self) -> str:
        """Whether the value is at most `limit` times the other."""
        excess = self.value - self.limit * self.other_value
        if math.isnan(excess):
            return "undefined"
        if excess <= 0:
            return "met"
        if self.excess_low > 0:
            return "not met"
        share = excess / (self.limit * self.other_value) if self.other_value else math.inf
        return f"not met by {100 * share:.1f}%, not significant"


def contenders(plan: Plan, store: Store) -> dict[str, dict[str, Contender]]:
    """The methods by side, then by name; also the sharpness-aware networks with every temperature rule."""
    from surefoot.experiments.results import results_of

    plan = plan.with_budget(METHODS.named(OURS).budget or 0.0)  # today's rule, not the one it was run with
    results = {result.name: result for result in results_of(plan, store)}
    for name in EVALUATED:
        if name not in results or not results[name].runs:
            have = ", ".join(EVALUATED)
            raise InputError(f"{plan.task}: {name!r} was not run or is not done; needed: {have}")
        for missing in results[name].missing:
            print(f"{plan.task}: {name} without {missing}, which is not done", flush=True)
    runs = {name: results[name].runs for name in (OURS, PAPER_ENSEMBLE, OWN_ENSEMBLE)}
    only = replace(plan, methods=tuple(each for each in plan.methods if each.method.name == OURS))
    for rule, budget in RULES.items():
        [result] = results_of(only.with_budget(budget), store)
        runs[f"sharpness-aware, {rule}"] = result.runs
    return {
        side: {
            name: Contender(
                tuple(run.sides[side] for run in of_method), tuple(s for run in of_method for s in run.specs)
            )
            for name, of_method in runs.items()
        }
        for side in OUTCOMES
    }


def gaps(
    task: str, by_side: Mapping[str, Mapping[str, Contender]], *, resamples: int, seed: int = 0
) -> Iterator[Gap]:
    """Every method compared with both ensembles, on the same resamples of groups and of networks."""
    from surefoot.evaluation.bootstrap import Draw
    from surefoot.intervals import centred_interval, few_samples_factor

    for index, (side, methods) in enumerate(by_side.items()):
        metrics = [METRICS.named(name) for name in OUTCOMES[side]]
        first = next(iter(methods.values())).runs[0]
        rng = np.random.default_rng([seed, index])
        draw = Draw.of(first.n, first.groups, resamples=resamples, rng=rng)
        factor = few_samples_factor(len(np.unique(draw.unit_of[first.outcomes.row])))
        counts = np.concatenate(list(draw.counts()))
        picks = picked_networks([method.specs for method in methods.values()], resamples, rng)
        values = {name: method.values(metrics) for name, method in methods.items()}

        def replicates(
            method: Contender,
            metrics: Any = metrics,
            draw: Draw = draw,
            counts: Any = counts,
            picks: Any = picks,
        ) -> np.ndarray:
            return method.replicates(metrics, draw, counts, picks[method.specs])

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy releases the lock for most of it
            drawn = dict(zip(methods, pool.map(replicates, methods.values()), strict=True))

        def interval(value: float, replicates: np.ndarray, factor: float = factor) -> tuple[float, float]:
            result = centred_interval(value, replicates, (-math.inf, math.inf), factor=factor)
            return result.low, result.high

        for other, limit in LIMITS.items():
            for name in (name for name in methods if name not in LIMITS):
                for place, metric in enumerate(metrics):
                    a, b = float(values[name][place]), float(values[other][place])
                    of_a, of_b = drawn[name][:, place], drawn[other][:, place]
                    ratio, ends = math.nan, (math.nan, math.nan)
                    if a > 0 and b > 0:
                        ratio = a / b
                        positive = (of_a > 0) & (of_b > 0)
                        low, high = interval(math.log(ratio), np.log(of_a[positive] / of_b[positive]))
                        ends = (math.exp(low), math.exp(high))
                    yield Gap(
                        task, name, other, side, metric.name, a, b, a - b,
                        *interval(a - b, of_a - of_b), ratio, *ends, limit,
                        interval(a - limit * b, of_a - limit * of_b)[0],
                    )  # fmt: skip


def picked_networks(
    pools: Iterable[tuple[Spec, ...]], resamples: int, rng: np.random.Generator
) -> dict[tuple[Spec, ...], np.ndarray]:
    """As many of each set of networks, with replacement; methods of the same networks share the picks."""
    picks: dict[tuple[Spec, ...], np.ndarray] = {}
    for pool in pools:
        if pool not in picks:
            picks[pool] = rng.integers(len(pool), size=(resamples, len(pool)))
    return picks


def gap_table(task: str, found: Sequence[Gap]) -> str:
    """A task's table: a section per ensemble, the rules after the method."""
    from surefoot.report.tables import Column, Section, Table, TableCell, to_markdown

    sections = []
    for other, limit in LIMITS.items():
        lines = []
        for gap in (gap for gap in found if gap.other == other):
            texts = (
                gap.method,
                f"{gap.side} {METRICS.named(gap.metric).title}",
                number_text(gap.value),
                number_text(gap.other_value),
                f"{signed_text(gap.difference)} {signed_interval_text(gap.low, gap.high)}",
                f"{number_text(gap.ratio, 3)} {interval_text(gap.ratio_low, gap.ratio_high, 3)}",
                gap.verdict,
            )
            lines.append(tuple(TableCell(text) for text in texts))
        goal = "no higher" if limit == 1 else f"at most {100 * (limit - 1):.0f}% higher"
        sections.append(Section(f"compared with {other}; to be reached: {goal}", tuple(lines)))
    columns = [Column(name, align="left") for name in ("method", "outcome")]
    columns += [Column(name) for name in ("value", "the ensemble's", "difference", "ratio")]
    columns.append(Column("verdict", align="left"))
    notes = ("95% intervals of a paired bootstrap over groups (images where there are none) and networks",)
    return to_markdown([Table(f"{task}: one network and ensembles", tuple(columns), tuple(sections), notes)])


def overview(found: Mapping[str, Sequence[Gap]]) -> str:
    """All tasks: whether the goal and the stretch goal are met, and by how much."""
    from surefoot.report.tables import Table, to_markdown

    lines, sentences = [], []
    for other, (goal, places) in GOALS.items():
        met = []
        for task, of_task in found.items():
            gaps = [gap for gap in of_task if (gap.method, gap.other) == (OURS, other)]
            gaps = [gap for gap in gaps if (gap.side, gap.metric) in places]
            met += [task] if all(gap.verdict == "met" for gap in gaps) else []
            for gap in gaps:
                ends = f"[{100 * (gap.ratio_low - 1):+.1f}, {100 * (gap.ratio_high - 1):+.1f}]"
                outcome = f"{gap.side} {METRICS.named(gap.metric).title}"
                lines.append((task, other, outcome, f"{100 * (gap.ratio - 1):+.1f}% {ends}", gap.verdict))
        tasks = f"on {len(met)} of {count_of(len(found), 'task')}"
        sentences.append(f"{goal}: {tasks}{', ' if met else ''}{', '.join(met)}.")
    header = ("task", "compared with", "outcome", "change", "verdict")
    table = Table.of_text(f"{OURS} compared with ensembles", header, lines)
    return "\n".join([to_markdown([table]), *(f"- {sentence}" for sentence in sentences), ""])


def evaluate(chosen: argparse.Namespace) -> None:
    """Write every task's comparison and the overview."""
    from surefoot.experiments.run import read_folder
    from surefoot.runtime import one_thread

    found: dict[str, list[Gap]] = {}
    with one_thread():
        for folder in chosen.folders:
            for plan in read_folder(folder)[1]:
                by_side = contenders(plan, Store.containing(folder))
                found[plan.task] = list(gaps(plan.task, by_side, resamples=chosen.resamples))
    names = [field.name for field in dataclasses.fields(Gap)]
    lines = [[getattr(gap, n) for n in names] + [gap.verdict] for of in found.values() for gap in of]
    write(chosen.out / "evaluation.csv", csv_text([*names, "verdict"], lines))
    tables = [overview(found), *(gap_table(task, of_task) for task, of_task in found.items())]
    write(chosen.out / "evaluation.md", "\n".join(tables))
    print(tables[0])


SHOWN = {  # label, colour, marker
    "single-t": ("single", "#888888", "o"),
    "budget-t": ("single", "#888888", "s"),
    PAPER_ENSEMBLE: ("ensemble", "#1f5fa8", "o"),
    "ensemble-budget-t": ("ensemble", "#1f5fa8", "s"),
    "sharpness-aware-t": ("sharpness-aware", "#c4541a", "o"),
    OURS: ("sharpness-aware", "#c4541a", "s"),
    OWN_ENSEMBLE: ("ensemble of sharpness-aware", "#6a3d9a", "o"),
}
SCORES = (("familiar", "nll"), ("unfamiliar", "nll"), ("unfamiliar", "aurc"), ("unfamiliar", "label_error"))
SCORES_TITLE = "Familiar and unfamiliar NLL: circles with the own T, squares with the risk budget"


def scores_of(plan: Plan, store: Store) -> dict[str, tuple[float, ...]]:
    """The number of networks and the means over runs of each method that is shown."""
    from surefoot.experiments.plan import replanned
    from surefoot.experiments.results import results_of

    shown, _ = replanned(plan, [METHODS.named(name) for name in SHOWN])
    found = {}
    for result in results_of(shown.with_budget(METHODS.named(OURS).budget or 0.0), store):
        if result.runs:
            means = (
                float(np.mean([METRICS.named(metric).function(run.sides[side]) for run in result.runs]))
                for side, metric in SCORES
            )
            found[result.name] = (len(result.runs[0].specs), *means)
    return found


def scores_picture(scores: Mapping[str, Mapping[str, tuple[float, ...]]]) -> "Picture":
    """A panel per task: familiar NLL across, unfamiliar NLL up."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from surefoot.report.style import GREY, SMALL, WIDTH, finished, key_below

    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        panels: Any = figure.subplots(1, len(scores), squeeze=False)
        for axes, (task, methods) in zip(panels.flat, scores.items(), strict=True):
            axes.set_title(task, loc="left", fontsize=9)
            axes.set_xlabel("familiar NLL")
            for name, (networks, familiar, unfamiliar, *_) in methods.items():
                _, colour, marker = SHOWN[name]
                size = 60 if networks > 1 else 28
                axes.scatter(familiar, unfamiliar, c=colour, marker=marker, s=size, zorder=3)
            axes.locator_params(axis="y", nbins=4)
            axes.locator_params(axis="x", nbins=3)
            axes.grid(color=GREY, alpha=0.25, linewidth=0.5)
            axes.margins(0.15)
        panels[0, 0].set_ylabel("unfamiliar NLL")
        kinds = {label: colour for label, colour, _ in SHOWN.values()}
        keys = [
            Line2D(
                [],
                [],
                color=colour,
                marker="o",
                linestyle="",
                markersize=7 if label.startswith("ensemble") else 5,
                label=label,
            )
            for label, colour in kinds.items()
        ]
        key_below(figure, keys, columns=4)
        return finished(figure, "sharpness-aware", SCORES_TITLE)


def write_scores(chosen: argparse.Namespace) -> None:
    """Write the scores of each method as a table and a figure."""
    from surefoot.experiments.run import read_folder
    from surefoot.report.tables import Table, to_markdown

    scores = {
        plan.task: scores_of(plan, Store.containing(folder))
        for folder in chosen.folders
        for plan in read_folder(folder)[1]
    }
    names = ("task", "method", "networks", *("_".join(place) for place in SCORES))
    lines = [(task, name, *values) for task, of_task in scores.items() for name, values in of_task.items()]
    write(chosen.out / "scores.csv", csv_text(names, lines))
    cells = [
        (task, name, str(networks), *(number_text(value, 3) for value in values))
        for task, name, networks, *values in lines
    ]
    header = (
        "task",
        "row",
        "networks",
        *(f"{side} {METRICS.named(metric).title}" for side, metric in SCORES),
    )
    write(chosen.out / "scores.md", to_markdown([Table.of_text("Means over runs", header, cells)]))
    write(chosen.out / "sharpness-aware.svg", scores_picture(scores).svg())


COSTED = ("single", FULL, PAPER_ENSEMBLE, OWN_ENSEMBLE)
MEMORY = ("training_memory", "prediction_memory")  # bytes, in the networks' logs; None on a CPU
MIB = ("training_mib", "inference_mib")


def cost_lines(plan: Plan, store: Store) -> Iterator[tuple[Any, ...]]:
    """Task, method, networks of a run, seconds of training, seconds for 1000 images, MiB of both."""
    from surefoot.experiments.results import results_of
    from surefoot.store.files import LOG, read_log

    results = {result.name: result for result in results_of(plan, store)}
    for result in (results[name] for name in COSTED if name in results):
        if result.runs:
            specs = [spec for run in result.runs for spec in run.specs]
            logs = [entry for spec in specs for entry in read_log(store.folder(spec) / LOG)]
            peaks = [max((e[name] for e in logs if e.get(name)), default=math.nan) for name in MEMORY]
            yield (
                plan.task,
                result.name,
                len(result.runs[0].specs),
                math.nan if result.seconds_training is None else result.seconds_training,
                math.nan if result.seconds_per_sample is None else 1000 * result.seconds_per_sample,
                *(peak / 2**20 for peak in peaks),
            )


def cost(chosen: argparse.Namespace) -> None:
    """Write the cost of each method."""
    from surefoot.experiments.run import read_folder
    from surefoot.report.tables import Table, to_markdown

    lines = []
    for folder in chosen.folders:
        for plan in read_folder(folder)[1]:
            lines += list(cost_lines(plan, Store.containing(folder)))
    names = ("task", "method", "networks", "training_seconds", "seconds_per_1000_images", *MIB)
    write(chosen.out / "cost.csv", csv_text(names, lines))
    header = (
        "task",
        "method",
        "networks",
        "training, s",
        "1000 images, s",
        "training, MiB",
        "inference, MiB",
    )
    cells = [
        (
            task,
            method,
            str(n),
            number_text(train, 0),
            number_text(infer, 3),
            *(number_text(m, 0) for m in memory),
        )
        for task, method, n, train, infer, *memory in lines
    ]
    table = replace(
        Table.of_text("Cost of a run", header, cells),
        notes=(
            "medians over runs; seconds of a process that shares the GPU with others",
            "memory: the most that one network's process allocated on the GPU, its images included",
        ),
    )
    write(chosen.out / "cost.md", to_markdown([table]))
    print(to_markdown([table]))


def write(path: Path, text: str) -> None:
    """Write a file and print its name."""
    make_folder(path.parent)
    path.write_text(text, encoding="utf-8")
    print(path, flush=True)
