"""The study of sharpness-aware training: temperature rules, ablation, evaluation, cost.

    python experiments/sharpness.py rotations --packs DATA --store RUNS --minutes 20 gender cat-dog
    python experiments/sharpness.py rules --store RUNS --out FOLDER
    python experiments/sharpness.py ablation --packs DATA --store RUNS [--dry-run] [--rho 0.3] animals objects
    python experiments/sharpness.py ablation-table --store RUNS --out FOLDER
    python experiments/sharpness.py evaluate --out FOLDER RUNS/experiments/NAME ...
    python experiments/sharpness.py cost --out FOLDER RUNS/experiments/NAME ...

`rotations` and `ablation` train what is missing in the store; the same command resumes. A task is a name
(experiments/NAME.toml) or the path of an experiment's TOML file. DATA has the backbones and the Pets. They
write a list of their networks into the store, so that the other commands need neither data nor weights;
`experiments/session.py collect` packs it with the predictions.

`rules` chooses the temperature rule: familiar subgroups, held out of training, stand in for unfamiliar data.
`evaluate` reads experiments that `surefoot run` has trained, with the methods of `EVALUATED`.
"""

import argparse
import dataclasses
import json
import math
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from session import HERE, ROOTS, WEIGHTS
from sharpness_evaluation import FULL, OWN_T, RULES, cost, evaluate, write, write_scores

from surefoot.calibrators.options import SURPLUS
from surefoot.errors import InputError
from surefoot.experiments.experiment import Part, experiment_named, overridden
from surefoot.experiments.methods import Setup, held_out_networks
from surefoot.experiments.run import resolved
from surefoot.io import make_folder, replacing
from surefoot.metrics import METRICS
from surefoot.recipes.recipe import Protocol, Recipe, Spec
from surefoot.store.store import Store
from surefoot.tasks import task_named
from surefoot.tasks.task import Split, Task
from surefoot.text import (
    count_of,
    csv_text,
    exact_text,
    number_text,
)
from surefoot.variants import recipe_from, variant_of
from surefoot.variants.held_out import FAMILIAR, HELD_OUT, HeldOut
from surefoot.workers.jobs import STOPPED, Job, WorkOrder

if TYPE_CHECKING:
    from surefoot.report.style import Picture

PLAIN = "plain"
LISTS = "sharpness"  # the folder of the store with the lists of networks
FOLDS = 4
SEEDS = range(3)

ROUNDING = 1e-9  # relative: familiar NLLs that differ by less are equal

INGREDIENTS = {
    "sharpness": ("sharpness",),
    "strong augmentation": ("augmentation",),
    "cosine, weight decay": ("schedule", "weight_decay"),
    "weight average": ("weight_average",),
}
NO_INGREDIENT = ("epochs", "protocol", "variant")
ADDITIONS: dict[str, dict[str, Any]] = {
    "mixup 0.2": {"mixup": 0.2},
    "RegMixup 10": {"regmixup": 10.0},
    "label smoothing 0.1": {"label_smoothing": 0.1},
}
RADII = (0.05, 0.1, 0.2, 0.4)
OWN_LENGTH = "plain, own length"
WIDEST_CHANGE = 0.3  # the ablation's figure ends there

IMAGES_PER_SECOND = 40_000  # of a plain training step, at SIDE
SIDE = 112
COST_OF_SHARPNESS, COST_OF_REGMIXUP = 2.1, 2.0  # in plain steps


# Networks to train, and their lists in the store.


@dataclass(frozen=True)
class Row:
    """A network of the study, and what it is there for."""

    label: str
    spec: Spec

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"label": self.label, **self.spec.as_dict()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Row":
        """The row that `as_dict` gave."""
        recipe = recipe_from(values["recipe"])
        return Row(values["label"], Spec(values["task"], values["task_identity"], recipe, values["seed"]))


def write_rows(kind: str, rows: Sequence[Row], store: Store) -> None:
    """The list of networks of a task, which replaces that of an earlier call."""
    folder = store.root / LISTS
    make_folder(folder)
    with replacing(folder / f"{kind}-{rows[0].spec.task.replace('/', '-')}.json") as temporary:
        temporary.write_text(json.dumps([row.as_dict() for row in rows], indent=1), encoding="utf-8")


def read_rows(kind: str, store: Store) -> dict[str, list[Row]]:
    """The lists of all tasks, by the task's name; every network of them must be done."""
    lists = {}
    for path in sorted((store.root / LISTS).glob(f"{kind}-*.json")):
        rows = [Row.from_dict(values) for values in json.loads(path.read_text(encoding="utf-8"))]
        undone = {row.spec for row in rows if not store.is_done(row.spec)}
        if undone:
            raise InputError(
                f"{rows[0].spec.task}: {count_of(len(undone), 'network')} of {kind} not done; needed: all; "
                f"'sharpness.py {kind}' resumes"
            )
        lists[rows[0].spec.task] = rows
    if not lists:
        raise InputError(f"{store.root} has no networks of {kind}; needed: run 'sharpness.py {kind}' first")
    return lists


def parts_of(name: str, chosen: argparse.Namespace) -> tuple[Part, ...]:
    """The tasks of an experiment, with the weights and data of this machine."""
    from surefoot.cli.inputs import value_of

    values: dict[str, Any] = {}
    if name in WEIGHTS:
        if chosen.packs is None:
            raise InputError(f"{name} needs --packs, the folder of the backbones and the Pets")
        values["weights"] = str(chosen.packs / WEIGHTS[name])
        if name in ROOTS:
            values["root"] = str(chosen.packs / ROOTS[name])
        name = str(HERE / f"{name}.toml")
    values |= dict(value_of(text) for text in chosen.set)
    return resolved(overridden(experiment_named(name), values)).parts


def setup_of(part: Part) -> Setup:
    """The task and both recipes of a part."""
    task = task_named(part.task, root=None if part.root is None else Path(part.root))
    return Setup(task, part.recipe, members=1, runs=1, folds=FOLDS, changes=part.sharpness_aware)


def rotation_rows(setup: Setup) -> list[Row]:
    """The held-out networks of both recipes."""
    return [
        Row(label, setup.spec(*network))
        for label, aware in ((PLAIN, False), (FULL, True))
        for network in held_out_networks(setup, sharpness_aware=aware)
    ]


def ablation_rows(setup: Setup, radii: Iterable[float] = RADII) -> list[Row]:
    """Every ablated recipe, for every seed, trained on train only."""
    return [
        Row(label, setup.spec(replace(recipe, protocol=Protocol.HOLDOUT), seed))
        for label, recipe in ablated(setup.recipe, setup.sharpness_aware, radii).items()
        for seed in SEEDS
    ]


def ablated(plain: Recipe, full: Recipe, radii: Iterable[float] = RADII) -> dict[str, Recipe]:
    """The recipes between plain and full, by their labels, all with the number of epochs of full.

    An ingredient is a set of values by which the two differ. Values of no known ingredient, such as the
    learning rate, are one more.
    """
    names = [field.name for field in dataclasses.fields(Recipe) if field.name not in NO_INGREDIENT]
    differing = [name for name in names if getattr(plain, name) != getattr(full, name)]
    known = {name for values in INGREDIENTS.values() for name in values}
    other = tuple(name for name in differing if name not in known)
    ingredients = {label: [n for n in values if n in differing] for label, values in INGREDIENTS.items()}
    ingredients[", ".join(other).replace("_", " ")] = list(other)
    ingredients = {label: values for label, values in ingredients.items() if values}

    def values_of(recipe: Recipe, values: Iterable[str]) -> dict[str, Any]:
        return {name: getattr(recipe, name) for name in values}

    additions = dict(ADDITIONS)
    if full.augmentation == plain.augmentation != "strong":  # not chosen here: tried as an addition
        additions["strong augmentation"] = {"augmentation": "strong"}
    base = replace(plain, epochs=full.epochs)
    recipes = {OWN_LENGTH: plain, PLAIN: base}
    recipes |= {f"plain + {k}": replace(base, **values_of(full, v)) for k, v in ingredients.items()}
    recipes |= {f"plain + {label}": replace(base, **values) for label, values in additions.items()}
    recipes["full"] = full
    recipes |= {f"full without {k}": replace(full, **values_of(plain, v)) for k, v in ingredients.items()}
    recipes |= {f"full + {label}": replace(full, **values) for label, values in additions.items()}
    return recipes | {f"full, rho {radius:g}": replace(full, sharpness=radius) for radius in radii}


def train(kind: str, chosen: argparse.Namespace) -> None:
    """Train the missing networks of each task."""
    from surefoot.cli.inputs import device_named

    store, device = Store(chosen.store), device_named(chosen.device)
    for name in chosen.names:
        for part in parts_of(name, chosen):
            setup = setup_of(part)
            rows = rotation_rows(setup) if kind == "rotations" else ablation_rows(setup, chosen.rho or RADII)
            if chosen.dry_run:
                print(work_table(rows, setup.task, store))
                continue
            write_rows(kind, rows, store)
            specs = [row.spec for row in rows]
            execute_specs(specs, part, store, device, chosen, title=f"{kind} of {setup.task.name}")


def execute_specs(
    specs: Sequence[Spec], part: Part, store: Store, device: str, chosen: argparse.Namespace, *, title: str
) -> None:
    """Train these networks and those that they need, where they are not done."""
    from surefoot.cli.progress import watch
    from surefoot.workers.local import default_workers, execute

    needed = dict.fromkeys(each for spec in specs for each in (*spec.needs(), spec))
    order = WorkOrder(
        task=part.task,
        root=part.root,
        jobs=tuple(Job(spec.recipe, spec.seed) for spec in needed if not store.is_done(spec)),
        store=str(store.root),
        cache=str(chosen.cache) if chosen.cache else None,
        weights=part.weights,
        device=device,
    )
    with watch(order, title=title, done_before=len(needed) - len(order.jobs)) as on_event:
        execute(order, workers=chosen.workers or default_workers(device), on_event=on_event)
    print(f"{title}: {count_of(len(needed), 'network')} done", flush=True)


@contextmanager
def time_limit(minutes: float | None) -> Iterator[None]:
    """Interrupt what is inside when the time is over, as Ctrl-C does: workers save their checkpoints."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes if minutes else 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def work_table(rows: Sequence[Row], task: Task, store: Store) -> str:
    """How many networks and images are to be trained, and about how long it takes."""
    from surefoot.report.tables import Table, to_markdown

    counted: set[Spec] = set()
    work: list[tuple[str, float, float, float]] = []
    for label in dict.fromkeys(row.label for row in rows):
        specs = [each for row in rows if row.label == label for each in (*row.spec.needs(), row.spec)]
        missing = [s for s in dict.fromkeys(specs) if s not in counted and not store.is_done(s)]
        counted |= set(missing)
        images = [images_trained(spec.recipe, task) for spec in missing]
        steps = sum(n * step_cost(spec.recipe) for n, spec in zip(images, missing, strict=True))
        work.append((label, len(missing), sum(images), steps / IMAGES_PER_SECOND / 60))
    work.append(("all", *(sum(numbers) for numbers in list(zip(*work, strict=True))[1:])))
    cells = [(label, str(n), f"{images / 1e6:.2f}", f"{minutes:.1f}") for label, n, images, minutes in work]
    header = ("recipe", "networks", "million images", "minutes")
    return to_markdown([Table.of_text(f"{task.name}: to be trained", header, cells)])


def images_trained(recipe: Recipe, task: Task) -> float:
    """The images of all epochs; for a held-out network about those of the other folds."""
    train_rows, val_rows = (len(task.splits[split]) for split in (Split.TRAIN, Split.VAL))
    if isinstance(recipe.variant, HeldOut):
        return recipe.epochs * train_rows * (1 - 1 / recipe.variant.folds)
    both = train_rows + val_rows if variant_of(recipe).trainings(recipe) == 2 else 0
    return float(recipe.epochs * (train_rows + both))


def step_cost(recipe: Recipe) -> float:
    """Of an image, in images of a plain step at `SIDE`."""
    cost = (recipe.view / SIDE) ** 2
    cost *= COST_OF_SHARPNESS if recipe.sharpness else 1.0
    return cost * (COST_OF_REGMIXUP if recipe.regmixup else 1.0)


# The choice of a temperature rule.


@dataclass(frozen=True)
class RuleScore:
    """A rule on one fold of a task."""

    task: str
    fold: int
    rule: str
    temperature: float
    held_out: float  # NLL on the subgroups held out
    held_out_own: float  # the same at the network's own T
    familiar: float  # unclipped NLL on familiar validation data, which T is fitted on
    reference: float  # the same of the plain network at its own T
    held_out_images: int
    familiar_images: int


def rule_scores(rows: Sequence[Row], store: Store) -> Iterator[RuleScore]:
    """Every rule on every fold, for the sharpness-aware network."""
    from surefoot.calibrators.budget import fit_budget_temperature
    from surefoot.evaluation.compare import same_rows

    nll, unclipped = METRICS.named("nll").function, METRICS.named("nll_unclipped").function
    by_label: dict[str, dict[int, Spec]] = {PLAIN: {}, FULL: {}}
    for row in rows:
        assert isinstance(row.spec.recipe.variant, HeldOut)
        by_label[row.label][row.spec.recipe.variant.fold] = row.spec
    for fold, spec in by_label[FULL].items():
        val, held_out = (store.predictions(spec, split) for split in (FAMILIAR, HELD_OUT))
        reference = store.predictions(by_label[PLAIN][fold], FAMILIAR)
        if not same_rows(val, reference):
            raise InputError(f"{spec.task}: the networks of fold {fold} hold out different subgroups")
        own_reference = fit_budget_temperature(reference, OWN_T)(reference)
        fitted = {
            rule: fit_budget_temperature(val, budget, reference=reference if budget == SURPLUS else None)
            for rule, budget in RULES.items()
        }
        for rule, calibration in fitted.items():
            yield RuleScore(
                spec.task,
                fold,
                rule,
                temperature=calibration.temperature,
                held_out=nll(calibration(held_out)),
                held_out_own=nll(fitted["own T"](held_out)),
                familiar=unclipped(calibration(val)),
                reference=unclipped(own_reference),
                held_out_images=held_out.n,
                familiar_images=val.n,
            )


def mean_of(scores: Iterable[RuleScore], name: str) -> float:
    """A number of the scores, averaged over folds."""
    return float(np.mean([getattr(score, name) for score in scores]))


@dataclass(frozen=True)
class RuleChoice:
    """The scores of all rules, by task and rule."""

    scores: Mapping[tuple[str, str], Sequence[RuleScore]]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, _ in self.scores))

    def log_ratio(self, task: str, rule: str) -> float:
        """Of the held-out NLL to that at the network's own T, both averaged over folds."""
        scores = self.scores[task, rule]
        return math.log(mean_of(scores, "held_out") / mean_of(scores, "held_out_own"))

    def mean_log_ratio(self, rule: str) -> float:
        """The mean over tasks."""
        return float(np.mean([self.log_ratio(task, rule) for task in self.tasks]))

    def costs_more(self, task: str, rule: str) -> bool:
        """Whether the mean familiar NLL is above the plain network's."""
        familiar, reference = (mean_of(self.scores[task, rule], name) for name in ("familiar", "reference"))
        return familiar > reference * (1 + ROUNDING)

    def is_eligible(self, rule: str) -> bool:
        """Whether on no task the familiar NLL is above the plain network's."""
        return not any(self.costs_more(task, rule) for task in self.tasks)

    @property
    def best(self) -> str:
        """The eligible rule with the lowest mean; surplus where none is eligible."""
        eligible = [rule for rule in RULES if RULES[rule] != OWN_T and self.is_eligible(rule)]
        return min(eligible, key=self.mean_log_ratio, default=SURPLUS)

    @property
    def sentence(self) -> str:
        """The choice in words."""
        change = 100 * math.expm1(self.mean_log_ratio(self.best))
        why = "" if self.is_eligible(self.best) else "; no rule is eligible on all tasks, so it is surplus"
        return f"Chosen: {self.best}, which changes the held-out NLL by {change:+.1f}% on average{why}."


def rule_choice(lists: Mapping[str, Sequence[Row]], store: Store) -> RuleChoice:
    """The rules on every task."""
    scores: dict[tuple[str, str], list[RuleScore]] = {}
    for rows in lists.values():
        for score in rule_scores(rows, store):
            scores.setdefault((score.task, score.rule), []).append(score)
    return RuleChoice(scores)


def rules_markdown(choice: RuleChoice) -> str:
    """A section per task, and one of the means."""
    from surefoot.report.tables import Column, Section, Table, TableCell, to_markdown

    def row(rule: str, *texts: str) -> tuple[TableCell, ...]:
        return tuple(TableCell(text, bold=bool(text) and rule == choice.best) for text in (rule, *texts))

    def percent(log_ratio: float) -> str:
        return f"{100 * math.expm1(log_ratio):+.1f}%"

    sections = []
    for task in choice.tasks:
        lines = []
        for rule in RULES:
            scores = choice.scores[task, rule]
            texts = [number_text(mean_of(scores, name)) for name in ("held_out", "familiar", "reference")]
            change, higher = percent(choice.log_ratio(task, rule)), choice.costs_more(task, rule)
            temperature = number_text(mean_of(scores, "temperature"), 2)
            lines.append(row(rule, temperature, texts[0], change, *texts[1:], "no" if higher else "yes"))
        sections.append(Section(task, tuple(lines)))
    means = []
    for rule in RULES:
        eligible = "yes" if choice.is_eligible(rule) else "no"
        means.append(row(rule, "", "", percent(choice.mean_log_ratio(rule)), "", "", eligible))
    sections.append(Section("mean over tasks", tuple(means)))
    header = ("rule", "T", "held-out NLL", "change", "familiar NLL", "of the plain network", "no higher")
    columns = tuple(Column(name, align="right" if place else "left") for place, name in enumerate(header))
    notes = (
        "held-out NLL: on familiar subgroups left out of training, the mean over folds",
        "change: of the held-out NLL from that at the network's own T; its mean over tasks is that of logs",
        "familiar NLL: unclipped, on validation data of the other subgroups, on which T is fitted",
    )
    table = Table("Temperature rules on held-out familiar subgroups", columns, tuple(sections), notes)
    return f"{to_markdown([table])}\n{choice.sentence}\n"


def rules(chosen: argparse.Namespace) -> None:
    """Write the rules' scores and the choice."""
    store = Store(chosen.store)
    choice = rule_choice(read_rows("rotations", store), store)
    fields = [field.name for field in dataclasses.fields(RuleScore)]
    every = [score for scores in choice.scores.values() for score in scores]
    write(chosen.out / "rules.csv", csv_text(fields, map(dataclasses.astuple, every)))
    write(chosen.out / "rules.md", rules_markdown(choice))
    print(rules_markdown(choice))


# The ablation's table and figure.

NLL_PLACES = (("unfamiliar", "nll"), ("familiar", "nll"))
ABLATION_PLACES = (
    *NLL_PLACES,
    ("unfamiliar", "aurc"),
    ("unfamiliar", "label_error"),
    ("familiar", "label_error"),
)
ABLATION_TITLE = (
    "The change of the NLL from the plain recipe of the same length, at each network's own T; "
    f"left of 0 is better. Means of {len(SEEDS)} runs and their standard errors."
)

Place = tuple[str, str]  # the side and the metric's name
Scores = Mapping[str, Mapping[Place, Sequence[float]]]  # of each run, by the row's label


def ablation_scores(rows: Sequence[Row], store: Store) -> dict[str, dict[Place, list[float]]]:
    """Every row's scores at its own T, a value a run."""
    from surefoot.calibrators import CALIBRATORS
    from surefoot.evaluation.comparison import TEST_SPLITS

    known: dict[Spec, dict[Place, float]] = {}
    scores: dict[str, dict[Place, list[float]]] = {}
    for row in rows:
        if row.spec not in known:
            fitted = CALIBRATORS.named("temperature").fit(store.predictions(row.spec, Split.VAL))
            after = {s: fitted(store.predictions(row.spec, split)) for s, split in TEST_SPLITS.items()}
            known[row.spec] = {(s, m): METRICS.named(m).function(after[s]) for s, m in ABLATION_PLACES}
        for place, value in known[row.spec].items():
            scores.setdefault(row.label, {}).setdefault(place, []).append(value)
    return scores


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean over runs and its standard error; NaN for one run."""
    array = np.asarray(values)
    error = float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return float(array.mean()), error


def mean_change(scores: Mapping[str, Scores], label: str, place: Place) -> float:
    """The mean over the tasks with that row of the log of its ratio to plain; NaN where none has it."""
    ratios = [np.mean(of[label][place]) / np.mean(of[PLAIN][place]) for of in scores.values() if label in of]
    return float(np.mean(np.log(ratios))) if ratios and min(ratios) > 0 else math.nan


def ablation_csv(scores: Mapping[str, Scores]) -> str:
    """A line per task, row, side and metric."""
    lines = []
    for task, of_task in scores.items():
        for label, of_row in of_task.items():
            for (side, metric), values in of_row.items():
                numbers = [exact_text(number) for number in mean_and_error(values)]
                runs = " ".join(exact_text(value) for value in values)
                lines.append((task, label, side, metric, *numbers, len(values), runs))
    header = ("task", "recipe", "side", "metric", "mean", "standard_error", "runs", "values")
    return csv_text(header, lines)


def labels_of(scores: Mapping[str, Scores]) -> list[str]:
    """The labels of all tasks; without the plain recipe at its own length where that is no other length."""
    named = (*INGREDIENTS, *ADDITIONS)
    order = [OWN_LENGTH, PLAIN, *(f"plain + {name}" for name in named), "full"]
    order += [f"full without {name}" for name in INGREDIENTS] + [f"full + {name}" for name in named]
    found = dict.fromkeys(label for of_task in scores.values() for label in of_task)
    labels = [label for label in order if label in found] + [label for label in found if label not in order]
    if all(of_task.get(OWN_LENGTH, of_task[PLAIN]) == of_task[PLAIN] for of_task in scores.values()):
        labels = [label for label in labels if label != OWN_LENGTH]
    return labels


def ablation_markdown(scores: Mapping[str, Scores]) -> str:
    """A section per task, and one of the mean changes from plain."""
    from surefoot.report.tables import Column, Section, Table, TableCell, to_markdown

    def cell(values: Sequence[float]) -> TableCell:
        mean, error = mean_and_error(values)
        return TableCell(number_text(mean), detail=f"±{number_text(error)}")

    labels = labels_of(scores)
    means = []
    for label in labels:
        count = sum(label in of_task for of_task in scores.values())
        shown = label if count == len(scores) else f"{label} ({count} of {len(scores)} tasks)"
        changes = [math.expm1(mean_change(scores, label, place)) for place in ABLATION_PLACES]
        texts = ["" if math.isnan(each) else f"{100 * each:+.1f}%" for each in changes]
        means.append((TableCell(shown), *(TableCell(text) for text in texts)))
    sections = [Section("mean over tasks of the change from plain", tuple(means))]
    for task, of_task in scores.items():
        lines = [
            (TableCell(label), *(cell(of_task[label][place]) for place in ABLATION_PLACES))
            for label in labels
            if label in of_task
        ]
        sections.append(Section(task, tuple(lines)))
    names = [Column(METRICS.named(metric).title, group=side) for side, metric in ABLATION_PLACES]
    columns = (Column("recipe", align="left"), *names)
    notes = (
        f"means of {len(SEEDS)} runs ± their standard error; trained on train only, T fitted on validation "
        "data",
        "all rows of a task have the same number of epochs"
        + (f", except '{OWN_LENGTH}'" if OWN_LENGTH in labels else ""),
    )
    return to_markdown([Table("Ablation of the sharpness-aware recipe", columns, tuple(sections), notes)])


def ablation_picture(scores: Mapping[str, Scores]) -> "Picture":
    """A panel per task: the change of both NLLs from plain, row by row."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from surefoot.report.style import COLOURS, GREY, MARKERS, SMALL, WIDTH, finished, key_below, percent_ticks

    labels = labels_of(scores)
    offsets = {"unfamiliar": -0.16, "familiar": 0.16}
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 1.2 + 0.2 * len(labels)), layout="constrained")
        panels: Any = figure.subplots(1, len(scores), sharey=True, squeeze=False)
        for axes, (task, of_task) in zip(panels.flat, scores.items(), strict=True):
            axes.set_title(task, loc="left", fontsize=9)
            axes.axvline(0, color=GREY, linewidth=0.8)
            for side, metric in NLL_PLACES:
                base = mean_and_error(of_task[PLAIN][side, metric])[0]
                for place, label in enumerate(labels):
                    if label in of_task:
                        mean, error = mean_and_error(of_task[label][side, metric])
                        error = 0.0 if math.isnan(error) else error
                        change, height = mean / base - 1, place + offsets[side]
                        style: dict[str, Any] = {"color": COLOURS[side], "linewidth": 1, "markersize": 3}
                        if change <= WIDEST_CHANGE:
                            axes.errorbar(change, height, xerr=error / base, marker=MARKERS[side], **style)
                        else:  # a failed recipe: its number, so that the others stay readable
                            axes.plot(WIDEST_CHANGE, height, marker=">", **style)
                            axes.annotate(
                                f"+{100 * change:.0f}%", (WIDEST_CHANGE, height), (-4, 0), ha="right",
                                va="center", textcoords="offset points", fontsize=6, color=COLOURS[side],
                            )  # fmt: skip
            axes.set_yticks(range(len(labels)), labels)
            axes.set_ylim(len(labels) - 0.5, -0.5)
            axes.tick_params(axis="x", labelsize=7.5)
            left, right = axes.get_xlim()
            axes.set_xlim(left, min(right, 1.08 * WIDEST_CHANGE))
            axes.locator_params(axis="x", nbins=4)
            axes.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.5)
            percent_ticks(axes.xaxis)
        keys = [
            Line2D([], [], label=f"{side} NLL", color=COLOURS[side], marker=MARKERS[side], markersize=4)
            for side, _ in NLL_PLACES
        ]
        key_below(figure, keys)
        return finished(figure, "ablation", ABLATION_TITLE)


def ablation_table(chosen: argparse.Namespace) -> None:
    """Write the ablation's scores, table and figure."""
    store = Store(chosen.store)
    scores = {task: ablation_scores(rows, store) for task, rows in read_rows("ablation", store).items()}
    write(chosen.out / "ablation.csv", ablation_csv(scores))
    write(chosen.out / "ablation.md", ablation_markdown(scores))
    write(chosen.out / "ablation.svg", ablation_picture(scores).svg())


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="what", required=True)
    for kind in ("rotations", "ablation"):
        command = commands.add_parser(kind, help="train the networks that are missing")
        command.add_argument(
            "names", nargs="+", metavar="NAME", help=f"{', '.join(WEIGHTS)}, or a .toml file"
        )
        command.add_argument("--packs", type=Path, help="the folder of the backbones and the Pets")
        command.add_argument("--store", type=Path, required=True)
        command.add_argument("--cache", type=Path, help="of decoded images")
        command.add_argument("--device", default="auto")
        command.add_argument("--workers", type=int, help="networks at a time")
        command.add_argument("--minutes", type=float, help="stop after this time; the same command resumes")
        command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
        command.add_argument("--dry-run", action="store_true", help="print what is to be trained")
        if kind == "ablation":
            radii = ", ".join(map(str, RADII))
            command.add_argument("--rho", type=float, action="append", help=f"repeat for more; else {radii}")
    for name in ("rules", "ablation-table"):
        command = commands.add_parser(name, help="write tables from a store")
        command.add_argument("--store", type=Path, required=True)
        command.add_argument("--out", type=Path, required=True)
    for name in ("evaluate", "scores", "cost"):
        command = commands.add_parser(name, help="write tables of experiments that were run")
        command.add_argument("folders", type=Path, nargs="+", metavar="STORE/experiments/NAME")
        command.add_argument("--out", type=Path, required=True)
        if name == "evaluate":
            command.add_argument("--resamples", type=int, default=1000)
    return parser.parse_args(words)


WRITERS = {
    "rules": rules,
    "ablation-table": ablation_table,
    "evaluate": evaluate,
    "scores": write_scores,
    "cost": cost,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    chosen = parsed(words)
    return exit_code(chosen, WRITERS.get(chosen.what), train)


def exit_code(
    chosen: argparse.Namespace,
    write: Callable[[argparse.Namespace], None] | None,
    train: Callable[[str, argparse.Namespace], None],
) -> int:
    """Write tables, or train for a limited time; 2 for a user's mistake, 3 when stopped."""
    try:
        if write is not None:
            write(chosen)
        else:
            with time_limit(chosen.minutes):
                train(chosen.what, chosen)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command resumes", file=sys.stderr)
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
