"""The paper's questions as the data answer them; the methods beyond the paper against its strongest row."""

import math

from surefoot.comparison import DECIDING, Cell, Comparison, Difference, margin_over_runs
from surefoot.metrics import Metric
from surefoot.questions import BEYOND, QUESTIONS, REFERENCE, Question
from surefoot.report.comparison_tables import DASH, Setting, gap_cell, percent_reduction
from surefoot.report.grid import Grid, GridCell, GridRow, Section
from surefoot.scoring import SIDES

UNFAMILIAR = SIDES[1]
ASKED = DECIDING
SHOWN = ("nll", "brier", "ece", "e99", "aurc")
NEGLIGIBLE = 0.005  # of the number without it
ANSWERS = (
    "Answered by two 95% intervals together. In brackets, bold where it does not hold 0: the paired "
    "bootstrap over images, or over their groups where the task names some; it speaks of other images. Over "
    "runs: of other trainings by the same recipe; a method that was run once is taken as it is. The same: "
    "all of both is within 0.5%."
)


def question_grids(comparison: Comparison, setting: Setting) -> list[Grid]:
    """Both tables, where there are the methods and a bootstrap for them."""
    if not comparison.resamples or UNFAMILIAR not in comparison.sides:
        return []
    return [grid for grid in (_questions(comparison, setting), _beyond(comparison, setting)) if grid.sections]


def answer(question: Question, gap: Difference, margin: float, without: float) -> str:
    """As far as the intervals give one; `margin` is over runs, `without` is the other method's own number."""
    if math.isnan(gap.low):
        return "cannot be told"
    spread = 0.0 if math.isnan(margin) else margin
    low, high = min(gap.low, gap.value - spread), max(gap.high, gap.value + spread)
    if max(abs(low), abs(high)) < NEGLIGIBLE * without:
        return question.same
    if high < 0:
        return question.better
    return question.worse if low > 0 else question.level


def _questions(comparison: Comparison, setting: Setting) -> Grid:
    rows = tuple(
        _row(question, comparison, setting)
        for question in QUESTIONS
        if (question.method, question.other) in comparison.pairs
    )
    return Grid(
        f"Six questions, unfamiliar NLL: {setting.title}",
        ("Answer", "With", "Without", "Difference", "Over runs", "Less by", "In the paper"),
        ("",),
        (Section(None, rows),) if rows else (),
        (ANSWERS, *_kept(comparison)),
        names=("question", "pairs of runs"),
    )


def _row(question: Question, comparison: Comparison, setting: Setting) -> GridRow:
    ours, theirs = (comparison.method(name) for name in (question.method, question.other))
    place = (UNFAMILIAR, ASKED)
    metric = next(metric for metric in comparison.metrics if metric.name == ASKED)
    with_it, without = (method.cells[place].mean for method in (ours, theirs))
    papers = [setting.paper_choice(method, metric, UNFAMILIAR) for method in (theirs, ours)]
    gap = comparison.pairs[question.method, question.other][place]
    paired = not (ours.about.together or theirs.about.together)
    margin = margin_over_runs(ours.cells[place], theirs.cells[place], paired=paired)
    cells = (
        GridCell(answer(question, gap, margin, without)),
        GridCell(f"{with_it:.4f}"),
        GridCell(f"{without:.4f}"),
        gap_cell(gap),
        GridCell(DASH if math.isnan(margin) else f"±{margin:.4f}"),
        GridCell(percent_reduction(without, with_it)),
        GridCell(DASH if None in papers else percent_reduction(*(value or 0.0 for value in papers))),
    )
    title = f"{question.text} ({ours.about.title} against {theirs.about.title})"
    return GridRow(title, str(gap.pairs), cells)


def _kept(comparison: Comparison) -> tuple[str, ...]:
    """Which share of what the ensemble gains over one network its student keeps, and how sure that is."""
    names = ("single-t", "distill-t", REFERENCE)
    if not {name for pair in comparison.pairs for name in pair}.issuperset(names):
        return ()
    one, student, all_of_them = (comparison.method(name).cells[UNFAMILIAR, ASKED] for name in names)
    gain = one.mean - all_of_them.mean
    if not gain > 0:
        return ()
    share = (one.mean - student.mean) / gain
    said = f"Of the unfamiliar NLL that the ensemble gains over one network, its student keeps {share:.0%}"
    error = math.hypot((1 - share) * _standard_error(one), _standard_error(student)) / gain
    spread = "" if math.isnan(error) else f", with a standard error over runs of {100 * error:.0f} points"
    return (f"{said}{spread}.",)


def _standard_error(cell: Cell) -> float:
    return cell.deviation / math.sqrt(cell.defined) if cell.defined > 1 else math.nan


def _beyond(comparison: Comparison, setting: Setting) -> Grid:
    metrics = [metric for name in SHOWN for metric in comparison.metrics if metric.name == name]
    rows = tuple(
        GridRow(
            comparison.method(name).about.title,
            str(len(comparison.method(name).runs)),
            tuple(_gap(comparison, name, metric) for metric in metrics),
        )
        for name, other in BEYOND
        if (name, other) in comparison.pairs
    )
    against = comparison.method(REFERENCE).about.title if rows else ""
    return Grid(
        f"Beyond the paper, difference from {against} on unfamiliar data: {setting.title}",
        tuple(metric.title for metric in metrics),
        ("",),
        (Section(None, rows),) if rows else (),
        ("Below 0 is better. Bold: the 95% interval of the paired bootstrap does not hold 0.",),
    )


def _gap(comparison: Comparison, name: str, metric: Metric) -> GridCell:
    return gap_cell(comparison.pairs[name, REFERENCE].get((UNFAMILIAR, metric.name)))
