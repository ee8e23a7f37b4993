"""Which method to use, and why: in a few sentences, and in the short table of the terminal."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.evaluation.compare import DECIDING, HEADLINE
from surefoot.evaluation.comparison import SIGNIFICANCE, Comparison, Mark, MethodRuns, p_between
from surefoot.evaluation.scores import SIDES
from surefoot.experiments.methods import METHODS
from surefoot.experiments.run import PartStudy
from surefoot.report.study_tables import STARRED
from surefoot.report.tables import Column, Section, Table, TableCell, distinguishing
from surefoot.text import count_of

if TYPE_CHECKING:  # which needs this module
    from surefoot.report.study_part import PartReport

E99 = "e99"
GRADIENT = "2 and a gradient"  # inference whose measured time is that of one pass only
PASSES_OF_A_GRADIENT = 4  # two forward, and one backward that takes as long as two
TOO_HIGH = 1.1  # times the baseline's familiar NLL
MOST_SHOWN = 8  # methods in a short table
NEEDED = ("single-t", "ensemble")  # in a short table, where they were run
NAMED = 3  # missing networks that a sentence names
SAME = "as long"
FAMILIAR, UNFAMILIAR = SIDES
FEW = 30  # predictions, of which no error rate is given
ERROR = "label_error"
WITH_T = "single-t"
SIDES_NOTE = (
    "F: familiar test data, U: unfamiliar; lower is better. E99: the error among predictions with more than "
    "99% confidence."
)
IN_REPORT = "in the report."
BOLD = "Bold: the best, or not significantly worse (t-test over runs, 5%)."
NEXT = (
    "What to try next:",
    "  your own predictions (docs/tutorials/predictions.md):",
    "    surefoot evaluate familiar.parquet unfamiliar.parquet",
    "  the tables with other metrics:",
    "    surefoot report {run}{store} --set metrics=nll,ece,aurc",
    "  the recommended method as one folder, to predict with:",
    "    surefoot bundle {run} {method}{store} -o my-bundle",
    "  your own images (docs/tutorials/images.md) or table (docs/tutorials/table.md)",
)


@dataclass(frozen=True, eq=False)
class Choice:
    """The method to use, the best by its number, and those not significantly worse than it."""

    side: str  # by which it was chosen: unfamiliar, where there is such a test set
    chosen: MethodRuns
    best: MethodRuns
    tied: tuple[MethodRuns, ...]  # with the chosen and the best
    runs: int  # the most that any method has
    left_out: tuple[MethodRuns, ...] = ()  # because they raise the familiar NLL


def choice_of(part: PartStudy) -> Choice | None:
    """The baseline, unless a method is significantly better; then the cheapest to run of the best ones.

    Those are the methods that are better than the baseline and not worse than the best, by the test of the
    tables: the t-test over runs. Oracles are never chosen. None where no method has a number.
    """
    comparison = part.comparison
    if not comparison.sides:
        return None
    side = SIDES[1] if SIDES[1] in comparison.sides else SIDES[0]
    defined = [m for m in comparison.methods if not m.oracle and math.isfinite(m.cells[side, DECIDING].mean)]
    if not defined:
        return None
    harmful = [method for method in defined if _raises_familiar(method, comparison)]
    able = [method for method in defined if method not in harmful] or defined
    best = min(able, key=lambda method: method.cells[side, DECIDING].mean)
    tied = [method for method in able if not _is_better(best, method, comparison, side)]
    baseline = next((method for method in tied if method.name == comparison.baseline), None)
    if baseline is None:
        tied = [method for method in tied if _improves(method, comparison, side)]
        chosen, tied = _cheapest(able, tied, comparison, side)
    else:
        chosen = baseline
    runs = max(len(method.runs) for method in comparison.methods)
    left_out = tuple(method for method in harmful if method not in able)
    return Choice(side, chosen, best, tuple(tied), runs, left_out)


def _cheapest(
    able: list[MethodRuns], tied: list[MethodRuns], comparison: Comparison, side: str
) -> tuple[MethodRuns, list[MethodRuns]]:
    """The first tied method by its time to run, and the tied ones that take no less time.

    Of methods that take the same time only the one with the lowest number can be chosen: an uncertain one
    does not win by that.
    """
    times = {method.name: time_to_run(method, comparison) for method in able}
    order = sorted(
        able,
        key=lambda method: (
            times[method.name],
            method.cells[side, DECIDING].mean,
            math.inf if method.seconds_training is None else method.seconds_training,
        ),
    )
    lowest = {times[method.name]: method for method in reversed(order)}
    chosen = next(method for method in order if method in tied and lowest[times[method.name]] is method)
    return chosen, [method for method in tied if times[method.name] >= times[chosen.name]]


def _improves(method: MethodRuns, comparison: Comparison, side: str) -> bool:
    """Whether it is better than the baseline; the best is, where the baseline is worse than the best."""
    baseline = next((m for m in comparison.methods if m.name == comparison.baseline), None)
    if baseline is None or not math.isfinite(baseline.cells[side, DECIDING].mean):
        return True
    return _is_better(method, baseline, comparison, side)


def _is_better(method: MethodRuns, other: MethodRuns, comparison: Comparison, side: str) -> bool:
    """Significantly, by the t-test over runs; without that by the paired bootstrap, or else by the number."""
    place = (side, DECIDING)
    cells = {each.name: each.cells[place] for each in comparison.methods}
    if method is other or cells[method.name].mean >= cells[other.name].mean:
        return False
    p = p_between(method.name, other.name, cells, {each.name: each for each in comparison.methods})
    if not math.isnan(p):
        return p < SIGNIFICANCE
    gap = comparison.pairs.get((other.name, method.name), {}).get(place)
    if gap is None and cells[method.name].from_best is None:  # it is the best of all
        gap = cells[other.name].from_best
    return gap is None or math.isnan(gap.low) or gap.low > 0


def _raises_familiar(method: MethodRuns, comparison: Comparison) -> bool:
    """Whether its familiar NLL is far above the baseline's; where there is a bootstrap, significantly."""
    place, baseline = (SIDES[0], DECIDING), comparison.baseline
    if baseline is None or place not in method.cells:
        return False
    cell, before = method.cells[place], comparison.method(baseline).cells[place].mean
    gap = cell.from_baseline
    return cell.mean > TOO_HIGH * before and (gap is None or gap.low > 0)


def time_to_run(method: MethodRuns, comparison: Comparison) -> float:
    """Seconds a sample: the least of all methods with the same inference, so that noise does not decide."""
    inference = METHODS.named(method.name).inference
    measured = [
        other.seconds_per_sample
        for other in comparison.methods
        if METHODS.named(other.name).inference == inference and other.seconds_per_sample is not None
    ]
    if not measured:
        return math.inf
    return min(measured) * (PASSES_OF_A_GRADIENT if inference == GRADIENT else 1)


def shown_methods(
    comparison: Comparison, recommended: str | None, *, most: int = MOST_SHOWN
) -> list[MethodRuns]:
    """The methods of short tables and figures, in the order of the comparison.

    First those that a reader needs (the baseline, the recommended one, one network with T, the ensemble),
    then those with the lowest NLL; never oracles.
    """
    methods = [method for method in comparison.methods if method.runs and not method.oracle]
    side = SIDES[1] if SIDES[1] in comparison.sides else SIDES[0]
    needed = (comparison.baseline, recommended, *NEEDED)

    def rank(method: MethodRuns) -> tuple[bool, float]:
        mean = method.cells[side, DECIDING].mean if (side, DECIDING) in method.cells else math.nan
        return method.name not in needed, math.inf if math.isnan(mean) else mean

    chosen = sorted(methods, key=rank)[:most]
    return [method for method in methods if method in chosen]


def verdict_of(part: PartStudy, choice: Choice | None) -> list[str]:
    """Which method to use and what it gains; what it costs; what limits the conclusion."""
    missing = _missing(part.comparison)
    if choice is None:
        task = part.plan.task
        return [f"On {task} no method has a finished run, so none can be recommended.", *missing]
    name = part.comparison.baseline
    baseline = None if name is None else part.comparison.method(name)
    if baseline is not None and not baseline.runs:
        baseline = None
    sentences = [_advice(part, choice, baseline)]
    if baseline is not None and baseline is not choice.chosen:
        sentences.append(_price(choice, baseline))
    limits = [_runs(choice)]
    if choice.left_out:
        *others, last = [method.title for method in choice.left_out]
        titles = f"{', '.join(others)} and {last}" if others else last
        verb, raises = ("were", "they raise") if others else ("was", "it raises")
        limits.append(f"{titles} {verb} not considered: {raises} the familiar NLL by more than a tenth.")
    return [*sentences, " ".join([*limits, *missing])]


def _advice(part: PartStudy, choice: Choice, baseline: MethodRuns | None) -> str:
    title, side = choice.chosen.title, choice.side
    where = f"On {part.plan.task}"
    if side == "familiar":
        where += ", which has no unfamiliar test set, so that nothing is known about unfamiliar data"
    cell = choice.chosen.cells[side, DECIDING]
    if len(part.comparison.methods) == 1:
        return f"{where} only {title} was run: its {side} NLL is {cell.mean:.3f}."
    if choice.chosen is baseline:
        return f"{where}, keep {title}: {_reason(choice, baseline)} (NLL {cell.mean:.3f} on {side} data)."
    return f"{where}, use {title}: {_reason(choice, baseline)}; {_gain(part, choice, baseline)}."


def _reason(choice: Choice, baseline: MethodRuns | None) -> str:
    """Why this method: the best, or the cheapest of those not significantly worse."""
    side = choice.side
    if choice.chosen is baseline and baseline is not choice.best:
        lowest = choice.best.cells[side, DECIDING].mean
        how = "clearly" if choice.runs < 2 else "significantly"
        return f"no method is {how} better on {side} data, not even {choice.best.title} with {lowest:.3f}"
    if choice.chosen is choice.best:
        if choice.runs < 2:
            return f"it has the lowest NLL on {side} data"
        cell = choice.chosen.cells[side, DECIDING]
        if cell.mark is Mark.BEST_UNTESTED and len(cell.runs) < 2:
            return f"it has the lowest NLL on {side} data, with too few runs for a test"
        others = [method.title for method in choice.tied if method is not choice.best]
        also = ""
        if len(others) == 1:
            also = f" (not significantly better than {others[0]}, which is no cheaper to run)"
        elif others:
            also = f" (not significantly better than {len(others)} others, which are no cheaper to run)"
        return f"it is the best on {side} data{also}"
    cheapest = "it is the cheapest to run"
    if len(choice.tied) > 2:
        cheapest = f"it is the cheapest to run of {len(choice.tied)} such methods"
    worse = "it is not clearly worse than" if choice.runs < 2 else "it is not significantly worse than"
    return f"on {side} data {worse} {choice.best.title}, which has the lowest NLL, and {cheapest}"


def _gain(part: PartStudy, choice: Choice, baseline: MethodRuns | None) -> str:
    """The percent reduction of NLL, with the interval of the paired bootstrap, and E99 before and after."""
    side, cells = choice.side, choice.chosen.cells
    cell = cells[side, DECIDING]
    text = f"its {side} NLL is {cell.mean:.3f}"
    if baseline is None:
        return text
    before = baseline.cells[side, DECIDING].mean
    if math.isfinite(before) and before > 0:
        text = f"{side} NLL goes from {before:.3f} to {cell.mean:.3f}, {percent_less(before, cell.mean)}"
        gap = cell.from_baseline
        if gap is not None and not math.isnan(gap.low):
            low, high = -gap.high / before, min(1.0, -gap.low / before)
            text += f" (95% interval for new {_resampled(part, choice)} {low:.0%} to {high:.0%})"
    if (side, E99) not in cells:
        return text
    errors = [method.cells[side, E99].mean for method in (baseline, choice.chosen)]
    if all(math.isnan(value) for value in errors):
        return text
    shares = [f"{value:.1%}" if math.isfinite(value) else "no such predictions" for value in errors]
    return f"{text}, and the error rate above 99% confidence from {shares[0]} to {shares[1]}"


def percent_less(before: float, after: float) -> str:
    """The change in words.

    >>> percent_less(2.0, 1.5), percent_less(1.0, 1.1), percent_less(1.0, 1.001)
    ('25% less', '10% more', 'the same')
    """
    share = (before - after) / before
    if abs(share) < 0.005:
        return "the same"
    return f"{abs(share):.0%} {'less' if share > 0 else 'more'}"


def _price(choice: Choice, baseline: MethodRuns) -> str:
    """What it costs to train and to run, and what it does to familiar data."""
    cost = cost_sentence(choice.chosen, baseline)
    if choice.side == "familiar":
        return f"{cost}."
    place = ("familiar", DECIDING)
    before, cell = baseline.cells[place].mean, choice.chosen.cells[place]
    if not (math.isfinite(before) and math.isfinite(cell.mean)):
        return f"{cost}."
    gap = cell.from_baseline
    is_clear = gap is None or math.isnan(gap.low) or gap.low > 0 or gap.high < 0
    change = percent_less(before, cell.mean) if before > 0 else "changed"
    noise = "" if is_clear else ", within the noise"
    return f"{cost}; on familiar data the NLL goes from {before:.3f} to {cell.mean:.3f} ({change}{noise})."


def cost_sentence(chosen: MethodRuns, baseline: MethodRuns) -> str:
    """What a method costs to train and to run, compared with a single network; without the full stop."""
    method, single = METHODS.named(chosen.name), METHODS.named(baseline.name)
    training = _times(chosen.seconds_training, baseline.seconds_training)
    running = _times(chosen.seconds_per_sample, baseline.seconds_per_sample)
    if method.inference == single.inference:
        running = SAME
    if training is None or running is None:
        needs = f"networks to train: {method.training}; passes to run: {method.inference}"
        return f"Its cost was not measured ({needs})"
    if method.inference == GRADIENT:
        return f"It takes {training} to train as a single network, and two passes and a gradient to run"
    if running == SAME:
        return f"It takes {training} to train as a single network, and the same time to run"
    return f"It takes {training} to train and {running} to run as a single network"


def _times(cost: float | None, single: float | None) -> str | None:
    if not cost or not single:
        return None
    ratio = cost / single
    if abs(ratio - 1) < 0.05:
        return SAME
    return f"{ratio:.1f} times as long" if ratio < 10 else f"{ratio:.0f} times as long"


def _unit(part: PartStudy) -> str:
    """What the test set has many of."""
    return "samples" if part.plan.encoding is None else "rows"


def _resampled(part: PartStudy, choice: Choice) -> str:
    """What the bootstrap drew again: whole groups, where there are any."""
    tested = (run.sides.get(choice.side) for run in choice.chosen.runs)
    return "groups" if any(p is not None and p.groups is not None for p in tested) else _unit(part)


def _runs(choice: Choice) -> str:
    """How many runs there are, and by which test methods are better or worse."""
    if choice.runs < 2:
        return "There is one run, so no significance is claimed."
    once = " (one of this method, which combines several networks)" if len(choice.chosen.runs) == 1 else ""
    return f"From {choice.runs} runs{once}; significant means by the t-test over runs, as in the table."


def _missing(comparison: Comparison) -> list[str]:
    names = list(dict.fromkeys(name for method in comparison.methods for name in method.missing))
    if not names:
        return []
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    count = "1 network or score is" if len(names) == 1 else f"{len(names)} networks or scores are"
    return [f"{count} missing and not averaged in: {listed}."]


def brief_tables(part: "PartReport") -> list[Table]:
    """A table of at most eight methods, with `shown_methods`; none where no method has a run."""
    comparison = part.study.comparison
    methods = shown_methods(comparison, part.recommended)
    if not methods:
        return []
    added = [(metric.title, metric.name) for metric in comparison.metrics if metric not in HEADLINE]
    places = [
        (name, each, side)
        for name, each in (("NLL", DECIDING), ("Error", ERROR), ("E99", E99), *added)
        for side in comparison.sides
        if (side, each) in methods[0].cells
    ]
    rows = tuple(
        (TableCell(method.title), *(_cell(method, side, metric) for _, metric, side in places))
        for method in methods
    )
    columns = [Column("method", align="left")]
    columns += [Column(side[0].upper(), name) for name, _, side in places]
    left_out = sum(bool(method.runs) for method in comparison.methods) - len(methods)
    more = (f"{count_of(left_out, 'more method is', 'more methods are')} {IN_REPORT}",) if left_out else ()
    cells = [cell for row in rows for cell in row]
    marks = {BOLD: any(cell.bold for cell in cells), STARRED: any(cell.star for cell in cells)}
    notes = (SIDES_NOTE, *(note for note, used in marks.items() if used), *more)
    table = Table(f"Methods on {part.context.title}", tuple(columns), (Section(None, rows),), notes)
    return [distinguishing(table)]


def first_tables(part: "PartReport") -> list[Table]:
    """The same for the first screen of the report, which has the title above it and all methods below it."""
    tables = brief_tables(part)
    return [
        replace(table, title="", notes=tuple(note for note in table.notes if not note.endswith(IN_REPORT)))
        for table in tables
    ]


def _cell(method: MethodRuns, side: str, metric: str) -> TableCell:
    cell = method.cells[side, metric]
    if math.isnan(cell.mean):
        return TableCell("none")
    text = f"{cell.mean:.1%}" if metric in (ERROR, E99) else f"{cell.mean:.3f}"
    return TableCell(text, bold=cell.bold, star=cell.mark is Mark.BEST_UNTESTED)


def _mean(method: MethodRuns, side: str, metric: str) -> float:
    cell = method.cells.get((side, metric))
    return math.inf if cell is None or math.isnan(cell.mean) else cell.mean


def brief_verdict(part: "PartReport") -> list[str]:
    """Three sentences: the problem, the best method and its price, and what one network can do.

    The verdict of the page where there is no unfamiliar data, or nothing is better than the baseline.
    """
    comparison, choice = part.study.comparison, part.choice
    methods = {method.name: method for method in comparison.methods if method.runs}
    single, scaled = methods.get(comparison.baseline or ""), methods.get(WITH_T)
    if choice is None or single is None or scaled is None or choice.chosen in (single, scaled):
        return part.verdict
    before, after, cheap = (_mean(m, choice.side, DECIDING) for m in (single, choice.chosen, scaled))
    wrong = [_mean(single, side, E99) for side in (UNFAMILIAR, FAMILIAR)]
    if choice.side != UNFAMILIAR or not all(map(math.isfinite, (before, after, cheap, *wrong))):
        return part.verdict
    share = (before - cheap) / (before - after)
    return [
        "A single network is overconfident on unfamiliar data: of its predictions with more than 99% "
        f"confidence {wrong[0]:.0%} are wrong there, and {wrong[1]:.0%} on familiar data.",
        f"{_best(choice)}: unfamiliar NLL {after:.2f} instead of {before:.2f} "
        f"({percent_less(before, after)}), and {_confident(choice.chosen)}.",
        f"{cost_sentence(choice.chosen, single)}.",
        f"One network with a temperature ({scaled.title}) has {share:.0%} of that gain (NLL {cheap:.2f}) "
        "at no cost: its predictions stay the same, only its confidence is lower.",
    ]


def _best(choice: Choice) -> str:
    """The best method, or the one that is cheaper to run and not significantly worse."""
    chosen, best = choice.chosen.title, choice.best.title
    if choice.chosen is choice.best:
        return f"Best is {chosen}"
    return f"Use {chosen}, which is cheaper to run than {best} and not significantly worse"


def _confident(method: MethodRuns) -> str:
    """How many of its unfamiliar predictions have more than 99% confidence, and are wrong."""
    cell = method.cells[UNFAMILIAR, E99]
    if math.isnan(cell.mean):
        return "it is never that confident"
    if cell.count is not None and cell.count[1] < FEW:
        wrong, count = cell.count
        return f"it is that confident only {count_of(count, 'time')}, {wrong} of them wrong"
    return f"of such predictions {cell.mean:.0%} are wrong"


def next_steps(part: "PartReport", folder: Path) -> list[str]:
    """Commands for the run in that folder of a store."""
    store = folder.parent.parent
    option = "" if store == Path("runs") else f" --store {store}"
    method = part.recommended or "single"
    return [line.format(run=folder.name, method=method, store=option) for line in NEXT]
