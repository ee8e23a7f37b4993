"""The evaluation of the distillation study: settings, the choice on validation data, comparisons, tables.

python experiments/distillation.py table --store RUNS --out FOLDER
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from sharpness_evaluation import write

from surefoot.errors import InputError
from surefoot.experiments.methods import Setup
from surefoot.intervals import centred_interval, few_samples_factor
from surefoot.metrics import METRICS
from surefoot.recipes.recipe import Spec
from surefoot.store.store import Store
from surefoot.tasks.task import Split
from surefoot.text import count_of, csv_text, number_text, signed_interval_text, signed_text
from surefoot.variants import Distilled, recipe_from

if TYPE_CHECKING:
    from surefoot.evaluation.comparison import Difference
    from surefoot.predictions.predictions import Predictions
    from surefoot.report.style import Picture

LISTS = "distillation"  # the folder of the store with the lists of networks
SMALL, LARGE = "small", "large"
RUNS, FINAL_RUNS = 3, 10  # of a setting of the grid; of the chosen one, and of the same without G
SHARES, FOLDERS, LENGTHS = (0.25, 1.0), (SMALL, LARGE), (1, 4)

OUTCOMES = {"unfamiliar": ("nll", "aurc", "label_error"), "familiar": ("nll", "label_error")}
PAPER_GAINS = {"gender-utkface": 0.07, "cat-dog": 0.07, "animals64": 0.04}  # of G, in unfamiliar NLL
PLACES = tuple((side, metric) for side, metrics in OUTCOMES.items() for metric in metrics)


@dataclass(frozen=True, order=True)
class Setting:
    """How a student is trained; `length` is in epochs of the teachers."""

    share: float = 0.0  # of G in an epoch, in samples of F; 0: without G
    folder: str = ""
    length: int = 1
    teacher_temperatures: bool = False
    separate_batches: bool = False

    @property
    def label(self) -> str:
        """In words."""
        words = f"G {self.folder}, share {self.share:g}" if self.share else "without G"
        words += f", x{self.length}"
        words += ", T-scaled teachers" if self.teacher_temperatures else ""
        return words + (", separate batches" if self.separate_batches else "")

    @property
    def without_g(self) -> "Setting":
        """What G is judged against: the same length and teachers."""
        return replace(self, share=0.0, folder="", separate_batches=False)

    @property
    def plain(self) -> "Setting":
        """What the options are judged against."""
        return replace(self, teacher_temperatures=False, separate_batches=False)

    @property
    def preference(self) -> tuple[bool, float, int]:
        """Higher for more of G: large first, then the share, then the length."""
        return self.folder == LARGE, self.share, self.length

    def spec(self, setup: Setup, seed: int) -> Spec:
        """The student of that seed."""
        variant = Distilled(
            teachers=setup.teachers(),
            unlabelled=self.share,
            unlabelled_folder=self.folder,
            teacher_temperatures=self.teacher_temperatures,
            separate_batches=self.separate_batches,
        )
        return setup.spec(
            replace(setup.recipe, epochs=self.length * setup.recipe.epochs, variant=variant), seed
        )

    @staticmethod
    def of(spec: Spec) -> "Setting":
        """The setting of a student."""
        variant = spec.recipe.variant
        assert isinstance(variant, Distilled)
        return Setting(
            variant.unlabelled,
            variant.unlabelled_folder,
            spec.recipe.epochs // variant.teachers.recipe.epochs,
            variant.teacher_temperatures,
            variant.separate_batches,
        )


WITH_G = tuple(Setting(*values) for values in product(SHARES, FOLDERS, LENGTHS))
GRID = (*(Setting(length=length) for length in LENGTHS), *WITH_G)


def read_lists(store: Store) -> dict[str, list[Spec]]:
    """The students of all commands that are done, by task; prints how many are not."""
    specs: dict[str, dict[Spec, None]] = {}
    for path in sorted((store.root / LISTS).glob("*.json")):
        for values in json.loads(path.read_text(encoding="utf-8")):
            spec = Spec(
                values["task"], values["task_identity"], recipe_from(values["recipe"]), values["seed"]
            )
            specs.setdefault(spec.task, {})[spec] = None
    if not specs:
        raise InputError(f"{store.root} has no networks of this study; needed: 'distillation.py grid' first")
    done = {task: [spec for spec in of_task if store.is_done(spec)] for task, of_task in specs.items()}
    for task, of_task in specs.items():
        if len(done[task]) < len(of_task):
            undone = count_of(len(of_task) - len(done[task]), "network")
            print(f"{task}: {undone} not done and left out", flush=True)
    return done


# Scores and comparisons.


@dataclass(frozen=True, eq=False)
class Student:
    """One student's scores with T, where that is 1 or more."""

    spec: Spec
    temperature: float
    val: float  # unclipped NLL on validation data
    sides: "Mapping[str, Predictions]"  # calibrated

    def value(self, side: str, metric: str) -> float:
        """A metric on a test set."""
        return float(METRICS.named(metric).function(self.sides[side]))


def student(spec: Spec, store: Store) -> Student:
    """A student's predictions, divided by its T unless that is below 1."""
    from surefoot.calibrators.temperature import fit_temperature_at_least_one
    from surefoot.evaluation.comparison import TEST_SPLITS

    val = store.predictions(spec, Split.VAL)
    fitted = fit_temperature_at_least_one(val)
    sides = {side: fitted(store.predictions(spec, split)) for side, split in TEST_SPLITS.items()}
    return Student(
        spec, fitted.temperature, float(METRICS.named("nll_unclipped").function(fitted(val))), sides
    )


@dataclass(frozen=True)
class Choice:
    """The validation NLL of each setting with G, a value a run, and the setting to be run again."""

    values: Mapping[Setting, Sequence[float]]

    @property
    def standard_error(self) -> float:
        """Of the difference of two settings' means, from the variance over runs of all settings."""
        variance = np.mean([np.var(values, ddof=1) for values in self.values.values()])
        return math.sqrt(2 * variance / min(map(len, self.values.values())))

    @property
    def best(self) -> Setting:
        """Of the settings within one standard error of the lowest mean, the one with most of G."""
        means = {setting: float(np.mean(values)) for setting, values in self.values.items()}
        limit = min(means.values()) + self.standard_error
        return max((each for each in means if means[each] <= limit), key=lambda each: each.preference)


def choice(specs: Iterable[Spec], store: Store) -> Choice:
    """The choice among these students, from the first runs of each; no test data are read."""
    from surefoot.calibrators.temperature import fit_temperature_at_least_one

    unclipped = METRICS.named("nll_unclipped").function
    values: dict[Setting, list[float]] = {}
    for spec in specs:
        val = store.predictions(spec, Split.VAL)
        if spec.seed < RUNS:
            values.setdefault(Setting.of(spec), []).append(
                float(unclipped(fit_temperature_at_least_one(val)(val)))
            )
    return Choice(values)


@dataclass(frozen=True, eq=False)
class Results:
    """All students of a task, by setting, and what they are compared with."""

    task: str
    students: Mapping[Setting, Sequence[Student]]
    references: "Mapping[str, Mapping[str, Sequence[Predictions]]]"  # of the teachers: by name, side, run
    chosen: Setting | None  # None: the grid is not complete

    def values(self, setting: Setting, side: str, metric: str) -> list[float]:
        """A value a run."""
        return [each.value(side, metric) for each in self.students[setting]]


def results(specs: Sequence[Spec], store: Store) -> Results:
    """The students of a task that are done."""
    by_setting: dict[Setting, list[Student]] = {}
    for spec in sorted(specs, key=lambda spec: (Setting.of(spec), spec.seed)):
        by_setting.setdefault(Setting.of(spec), []).append(student(spec, store))
    complete = all(len(by_setting.get(setting, ())) >= RUNS for setting in WITH_G)
    with_g = [spec for spec in specs if Setting.of(spec) in WITH_G]
    chosen = choice(with_g, store).best if complete else None
    return Results(specs[0].task, by_setting, references(specs[0], store), chosen)


def references(spec: Spec, store: Store) -> "dict[str, dict[str, list[Predictions]]]":
    """The teachers: each with its T, their ensemble, and the ensemble of T-scaled teachers."""

    from surefoot.calibrators import CALIBRATORS
    from surefoot.evaluation.comparison import TEST_SPLITS

    def together(split: Split) -> "Predictions":
        parts = [store.predictions(teacher, split) for teacher in spec.needs()]
        return parts[0].with_logits(np.concatenate([part.logits for part in parts]))

    fitted = CALIBRATORS.named("member-temperatures").fit(together(Split.VAL))
    tests = {side: together(split) for side, split in TEST_SPLITS.items()}
    scaled = {side: fitted(each) for side, each in tests.items()}
    singles = {
        side: [each.with_logits(each.logits[[member]]) for member in range(each.members)]
        for side, each in scaled.items()
    }
    return {
        "teachers, each with T": singles,
        "ensemble of the teachers": {side: [each] for side, each in tests.items()},
        "ensemble of T-scaled teachers": {side: [each] for side, each in scaled.items()},
    }


def difference(
    ours: "Sequence[Predictions]",
    others: "Sequence[Predictions]",
    metric: str,
    *,
    resamples: int,
    seed: int = 0,
) -> "Difference":
    """The difference of means over runs, its interval over groups, and Welch's margin over runs."""
    from surefoot.evaluation.bootstrap import Draw, resampled
    from surefoot.evaluation.comparison import Difference, over_networks

    metrics = [METRICS.named(metric)]
    draw = Draw.of(ours[0].n, ours[0].groups, resamples=resamples, rng=np.random.default_rng(seed))
    means, scores = [], []
    for place, runs in enumerate((ours, others)):
        means.append(np.mean([resampled(run.outcomes, metrics, draw)[0] for run in runs], axis=0))
        scores.append({(place, i): metrics[0].function(run) for i, run in enumerate(runs)})
    value = float(np.mean(list(scores[0].values())) - np.mean(list(scores[1].values())))
    independent = len(np.unique(draw.unit_of[ours[0].outcomes.row]))
    factor = few_samples_factor(independent)
    interval = centred_interval(value, means[0] - means[1], (-math.inf, math.inf), factor=factor)
    over_runs = over_networks(*scores)
    return Difference(value, interval.low, interval.high, independent=independent, over_runs=over_runs)


@dataclass(frozen=True)
class Effect:
    """A mean over settings less another one, with a 95% interval over runs (these images)."""

    name: str
    side: str
    metric: str
    percent_of: float  # the second mean
    value: float
    margin: float


def effects(found: Results) -> Iterable[Effect]:
    """The main effects of the grid's factors, and of G as a whole; only where the grid is complete."""
    from scipy.stats import t as t_distribution

    if any(len(found.students.get(setting, ())) < RUNS for setting in GRID):
        return
    halves = {"G (all settings) less without G": (list(WITH_G), [each.without_g for each in WITH_G])}
    factors: dict[str, Callable[[Setting], bool]] = {
        "share 1 less 0.25": lambda setting: setting.share == SHARES[1],
        "G large less small": lambda setting: setting.folder == LARGE,
        "x4 less x1": lambda setting: setting.length == LENGTHS[1],
    }
    for name, is_first in factors.items():
        halves[name] = ([s for s in WITH_G if is_first(s)], [s for s in WITH_G if not is_first(s)])
    for side, metric in PLACES:
        values = {setting: found.values(setting, side, metric)[:RUNS] for setting in GRID}
        variance = float(np.mean([np.var(each, ddof=1) for each in values.values()]))
        t = float(t_distribution.ppf(0.975, len(GRID) * (RUNS - 1)))
        for name, (some, others) in halves.items():
            weights = dict.fromkeys(GRID, 0.0)
            for settings, sign in ((some, 1.0), (others, -1.0)):
                for setting in settings:
                    weights[setting] += sign / len(settings)
            value = sum(weights[setting] * float(np.mean(values[setting])) for setting in GRID)
            margin = t * math.sqrt(variance / RUNS * sum(weight**2 for weight in weights.values()))
            base = float(np.mean([np.mean(values[setting]) for setting in others]))
            yield Effect(name, side, metric, base, value, margin)


# Tables.


def comparisons(
    found: Results, *, resamples: int
) -> "list[tuple[str, str, str, str, int, int, float, Difference]]":
    """The chosen setting and the same without G; each option and the same without; students and ensembles."""
    pairs = []
    if found.chosen is not None:
        pairs.append(("primary", found.chosen, found.chosen.without_g))
    for setting in found.students:
        if setting.plain != setting and setting.plain in found.students:
            pairs.append(("option", setting, setting.plain))
        if setting.teacher_temperatures and setting.share:
            pairs.append(("option", setting, setting.without_g))
    lines = []
    for kind, one, other in pairs:
        if one not in found.students or other not in found.students:
            continue
        for side, metric in PLACES:
            sides = [[each.sides[side] for each in found.students[setting]] for setting in (one, other)]
            base = float(np.mean(found.values(other, side, metric)))
            gap = difference(*sides, metric, resamples=resamples)
            place = f"{side} {metric}"
            lines.append((kind, one.label, other.label, place, *map(len, sides), base, gap))
    if found.chosen is not None:
        for setting, (name, by_side) in product(
            (found.chosen, found.chosen.without_g), found.references.items()
        ):
            if setting in found.students:
                for side, metric in PLACES:
                    ours = [each.sides[side] for each in found.students[setting]]
                    base = float(np.mean([METRICS.named(metric).function(run) for run in by_side[side]]))
                    gap = difference(ours, by_side[side], metric, resamples=resamples)
                    counts = (len(ours), len(by_side[side]))
                    lines.append(("teachers", setting.label, name, f"{side} {metric}", *counts, base, gap))
    return lines


def scores_csv(every: Sequence[Results]) -> str:
    """A line per student, side and metric."""
    lines = []
    for found in every:
        for setting, of_setting in found.students.items():
            facts = (setting.share, setting.folder, setting.length)
            facts += (int(setting.teacher_temperatures), int(setting.separate_batches))
            for each in of_setting:
                run = (found.task, *facts, each.spec.seed, each.temperature)
                lines.append((*run, "validation", "nll_unclipped", each.val))
                lines += [(*run, side, metric, each.value(side, metric)) for side, metric in PLACES]
    names = ("task", "share", "folder", "length", "teacher_temperatures", "separate_batches", "run", "T")
    return csv_text((*names, "side", "metric", "value"), lines)


def oracle_nll(predictions: "Predictions") -> float:
    """NLL at the T that is best for these labels: how well it ranks, without the choice of T."""
    from surefoot.calibrators.temperature import fit_temperature

    averaged = predictions.average()
    return float(METRICS.named("nll").function(fit_temperature(averaged)(averaged)))


def settings_table(found: Results) -> str:
    """Every setting's means over runs."""
    from surefoot.report.tables import Column, Section, Table, TableCell, to_markdown

    def cell(values: Sequence[float], *, bold: bool = False) -> TableCell:
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        detail = "" if math.isnan(error) else f"±{number_text(error)}"
        return TableCell(number_text(float(np.mean(values))), detail=detail, bold=bold)

    lines = []
    for name, by_side in found.references.items():
        scores = [[float(METRICS.named(m).function(run)) for run in by_side[s]] for s, m in PLACES]
        scores.insert(1, [oracle_nll(run) for run in by_side["unfamiliar"]])
        runs = str(len(scores[0]))
        lines.append((TableCell(name), *map(TableCell, (runs, "", "")), *map(cell, scores)))
    sections = [Section("teachers", tuple(lines))]
    lines = []
    for setting in sorted(found.students, key=lambda s: (s.teacher_temperatures, s.separate_batches, s)):
        of_setting, bold = found.students[setting], setting == found.chosen
        label = setting.label + (" (chosen)" if bold else "")
        temperature = number_text(float(np.mean([each.temperature for each in of_setting])), 2)
        first = (TableCell(label, bold=bold), TableCell(str(len(of_setting))), TableCell(temperature))
        val = cell([each.val for each in of_setting[:RUNS]], bold=bold)
        values = [found.values(setting, *place) for place in PLACES]
        values.insert(1, [oracle_nll(each.sides["unfamiliar"]) for each in of_setting])
        lines.append((*first, val, *map(cell, values)))
    sections.append(Section("students", tuple(lines)))
    columns = [Column("setting", align="left"), Column("runs"), Column("T"), Column("validation NLL")]
    columns += [Column(METRICS.named(metric).title, group=side) for side, metric in PLACES]
    columns.insert(5, Column("NLL at best T (oracle)", group="unfamiliar"))
    notes = (
        "means over runs ± their standard error; students divided by T where T >= 1",
        f"validation NLL: unclipped, of the first {RUNS} runs; the setting is chosen by it",
    )
    table = Table(f"{found.task}: distillation with and without G", tuple(columns), tuple(sections), notes)
    return to_markdown([table])


def effects_table(found: Results) -> str:
    """The main effects, in percent."""
    from surefoot.report.tables import Table, to_markdown

    lines = []
    for each in effects(found):
        percent = 100 / each.percent_of if each.percent_of else math.nan
        outcome = f"{each.side} {METRICS.named(each.metric).title}"
        lines.append((each.name, outcome, f"{percent * each.value:+.1f}% ±{percent * each.margin:.1f}"))
    if not lines:
        return f"{found.task}: the grid is not complete, so no effects are computed.\n"
    header = ("effect", "outcome", "change, 95% interval over runs")
    return to_markdown([Table.of_text(f"{found.task}: main effects", header, lines)])


def verdict(gap: "Difference") -> str:
    """Lower, higher or not significant, for other images and other runs."""
    low, high = gap.ends
    if math.isnan(low):
        return "undefined"
    return "lower" if high < 0 else "higher" if low > 0 else "not significant"


def answer(task: str, nll: "Difference", aurc: "Difference", without_g: float) -> str:
    """Whether G helps, by the rule of the protocol; `without_g` is the NLL without it."""
    low, high = nll.ends
    word = "inconclusive"
    if high < 0 and not aurc.ends[0] > 0:
        word = "G helps"
    elif low > 0:
        word = "G harms"
    percent = [100 * each / without_g for each in (nll.value, low, high)]
    sentence = f"{task}: {word}; unfamiliar NLL {percent[0]:+.1f}% [{percent[1]:+.1f}, {percent[2]:+.1f}]"
    gain = PAPER_GAINS.get(task)
    if gain is None:
        return f"{sentence}."
    return (
        f"{sentence}; the paper's -{100 * gain:.0f}% is {'' if percent[1] > -100 * gain else 'not '}excluded."
    )


def answer_from(found: Results, lines: "Sequence[tuple[Any, ...]]") -> str:
    """The answer of the primary comparison."""
    primary = {each[3]: each[-2:] for each in lines if each[0] == "primary"}
    if not primary:
        return f"{found.task}: the grid is not complete, so there is no answer yet.\n"
    base, nll = primary["unfamiliar nll"]
    runs = min(min(each[4:6]) for each in lines if each[0] == "primary")
    preliminary = f" Preliminary: {runs} of {FINAL_RUNS} runs." if runs < FINAL_RUNS else ""
    return f"{answer(found.task, nll, primary['unfamiliar aurc'][1], base)}{preliminary}\n"


def comparisons_table(found: Results, lines: "Sequence[tuple[Any, ...]]") -> str:
    """Differences with their intervals."""
    from surefoot.report.tables import Table, to_markdown

    cells = []
    for kind, one, other, place, runs, other_runs, base, gap in lines:
        side, metric = place.split()
        change = f"{100 * gap.value / base:+.1f}%" if base else ""
        ends = f"{signed_text(gap.value)} {signed_interval_text(*gap.ends)}"
        outcome = f"{side} {METRICS.named(metric).title}"
        cells.append((kind, one, other, f"{runs}, {other_runs}", outcome, ends, change, verdict(gap)))
    header = ("kind", "setting", "less", "runs", "outcome", "difference", "change", "verdict")
    note = "\n95% intervals: a bootstrap over groups, and Welch's over runs, which are not paired.\n"
    return to_markdown([Table.of_text(f"{found.task}: comparisons", header, cells)]) + note


def picture(every: "Sequence[Results]", compared: "Sequence[Sequence[tuple[Any, ...]]]") -> "Picture":
    """The change of unfamiliar NLL in percent: the primary comparison, the paper's, and the main effects."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from surefoot.report.style import GREY, SMALL, WIDTH, finished

    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        panels: Any = figure.subplots(1, len(every), sharey=True, sharex=True, squeeze=False)
        for axes, found, lines in zip(panels.flat, every, compared, strict=True):
            axes.set_title(found.task, loc="left", fontsize=9)
            axes.axvline(0, color=GREY, linewidth=0.8)
            rows: list[tuple[str, float, float, float]] = []
            for kind, _, _, place, runs, _, base, gap in lines:
                if (kind, place) == ("primary", "unfamiliar nll"):
                    low, high = gap.ends
                    rows.append(
                        (f"chosen setting, {runs} runs", *(100 * v / base for v in (low, gap.value, high)))
                    )
            for effect in effects(found):
                if (effect.side, effect.metric) == ("unfamiliar", "nll"):
                    ends = (effect.value - effect.margin, effect.value, effect.value + effect.margin)
                    rows.append((effect.name, *(100 * v / effect.percent_of for v in ends)))
            for place, (_, low, value, high) in enumerate(rows):
                colour = "C0" if place == 0 else "C7"
                axes.plot([low, high], [place, place], color=colour, linewidth=1.4)
                axes.plot(value, place, "o", color=colour, markersize=4.5)
            if found.task in PAPER_GAINS and rows:
                of_paper = -100 * PAPER_GAINS[found.task]
                axes.plot(of_paper, 0, "D", color="C3", markersize=4.5)
                axes.text(of_paper, -0.25, "paper", ha="center", color="C3", fontsize=8)
            axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
            axes.set_ylim(len(rows) - 0.5, -0.8)
            axes.margins(x=0.12)
        figure.supxlabel("change of unfamiliar NLL, %", fontsize=9)
        return finished(figure, "distillation", "What unlabelled images and longer training change")


def table(chosen: argparse.Namespace) -> None:
    """Write the scores, the comparisons, their tables and a figure."""
    from surefoot.runtime import one_thread

    store = Store(chosen.store)
    with one_thread():
        every = [results(specs, store) for specs in read_lists(store).values() if specs]
        compared = [comparisons(found, resamples=chosen.resamples) for found in every]
    write(chosen.out / "distillation-scores.csv", scores_csv(every))
    names = ("task", "kind", "setting", "less", "outcome", "runs", "less_runs", "less_value", "difference")
    rows = [
        (
            found.task,
            *line[:-1],
            line[-1].value,
            line[-1].low,
            line[-1].high,
            line[-1].over_runs.margin,
            *line[-1].ends,
        )
        for found, lines in zip(every, compared, strict=True)
        for line in lines
    ]
    names += ("low_groups", "high_groups", "margin_runs", "low", "high")
    write(chosen.out / "distillation-comparisons.csv", csv_text(names, rows))
    parts = []
    for found, lines in zip(every, compared, strict=True):
        parts += [answer_from(found, lines), settings_table(found), effects_table(found)]
        parts.append(comparisons_table(found, lines))
    write(chosen.out / "distillation-tables.md", "\n".join(parts))
    write(chosen.out / "distillation.svg", picture(every, compared).svg())
    print("\n".join(parts))
