"""The paper's questions as the data answer them; the methods beyond the paper against its strongest row."""

import math

from surefoot.comparison import DECIDING, Cell, Comparison, Difference
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
    "In brackets the 95% interval for other images: the paired bootstrap over them, or over their groups "
    "where the task names some; bold where it does not hold 0. Over runs: that for other trainings by the "
    "same recipe; a method that was run once is taken as it is, and a dash is for two such. The answer is by "
    "both together, as independent ones add. The same: all of that is within 0.5%."
)
TAUGHT = "The first ensemble taught all students; they are set against the mean of the {} ensembles."


def question_grids(comparison: Comparison, setting: Setting) -> list[Grid]:
    """Both tables, where there are the methods and a bootstrap for them."""
    if not comparison.resamples or UNFAMILIAR not in comparison.sides:
        return []
    return [grid for grid in (_questions(comparison, setting), _beyond(comparison, setting)) if grid.sections]


def answer(question: Question, gap: Difference, without: float) -> str:
    """As far as other images and other runs allow one; `without` is the other method's own number."""
    low, high = gap.ends
    if math.isnan(low):
        return "cannot be told"
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
        (ANSWERS, *_of_students(comparison)),
        names=("question", "pairs of runs"),
    )


def _row(question: Question, comparison: Comparison, setting: Setting) -> GridRow:
    ours, theirs = (comparison.method(name) for name in (question.method, question.other))
    place = (UNFAMILIAR, ASKED)
    metric = next(metric for metric in comparison.metrics if metric.name == ASKED)
    with_it, without = (method.cells[place].mean for method in (ours, theirs))
    papers = [setting.paper_choice(method, metric, UNFAMILIAR) for method in (theirs, ours)]
    gap = comparison.pairs[question.method, question.other][place]
    cells = (
        GridCell(answer(question, gap, without)),
        GridCell(f"{with_it:.4f}"),
        GridCell(f"{without:.4f}"),
        gap_cell(gap),
        GridCell(DASH if math.isnan(gap.margin) else f"±{gap.margin:.4f}"),
        GridCell(percent_reduction(without, with_it)),
        GridCell(DASH if None in papers else percent_reduction(*(value or 0.0 for value in papers))),
    )
    title = f"{question.text} ({ours.about.title} against {theirs.about.title})"
    return GridRow(title, str(gap.pairs), cells)


def _of_students(comparison: Comparison) -> tuple[str, ...]:
    """Which share of what ensembles gain over one network students keep, where that gain is certain."""
    names = ("single-t", "distill-t", REFERENCE)
    if not {name for pair in comparison.pairs for name in pair}.issuperset(names):
        return ()
    one, student, ensemble = (comparison.method(name).cells[UNFAMILIAR, ASKED] for name in names)
    taught = (TAUGHT.format(len(ensemble.runs)),) if len(ensemble.runs) > 1 else ()
    if not comparison.pairs[REFERENCE, "single-t"][UNFAMILIAR, ASKED].ends[1] < 0:
        return taught
    gain = one.mean - ensemble.mean
    share = (one.mean - student.mean) / gain
    slopes = ((1 - share, one), (1.0, student), (share, ensemble))
    error = math.hypot(*(slope * _standard_error(cell) for slope, cell in slopes)) / gain
    said = f"Of the unfamiliar NLL that ensembles gain over one network students keep {share:.0%}"
    return (*taught, f"{said}{f' (standard error over runs {100 * error:.0f} points)' if error else ''}.")


def _standard_error(cell: Cell) -> float:
    """Of the mean over runs; 0 for one run, which is taken as it is."""
    return cell.deviation / math.sqrt(cell.defined) if cell.defined > 1 else 0.0


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
