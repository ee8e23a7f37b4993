"""The paper's six questions, answered by paired differences; and the methods that are not in the paper."""

import math

from surefoot.evaluation.compare import DECIDING
from surefoot.evaluation.comparison import Comparison, Difference
from surefoot.evaluation.scores import SIDES
from surefoot.experiments.paper import NOT_IN_PAPER, QUESTIONS, REFERENCE, Question
from surefoot.report.comparison import METHOD_COLUMNS, TableContext, difference_cell, percent_reduction
from surefoot.report.tables import Column, Row, Section, Table, TableCell
from surefoot.text import DASH

UNFAMILIAR = SIDES[1]
PLACE = (UNFAMILIAR, DECIDING)
METRICS_SHOWN = ("nll", "brier", "ece", "e99", "aurc")
NEGLIGIBLE = 0.005  # of the number of the other method
INCONCLUSIVE = "inconclusive"
QUESTION_COLUMNS = (
    Column("question", align="left"),
    *(Column(name) for name in ("pairs of runs", "Answer", "With", "Without", "Difference", "Over runs")),
    *(Column(name) for name in ("Less by", "In the paper")),
)
ANSWERS = (
    "In brackets: the 95% interval over images, by the paired bootstrap (over groups of images where there "
    "are groups); bold where it excludes 0. Over runs: the half-width of the 95% interval over training runs "
    "of the same recipe; a method that was run once counts as exact, and a dash means that both were. The "
    "answer uses both intervals, combined as independent. Negligible: the combined interval lies within 0.5% "
    "of the number without the method."
)
TAUGHT = (
    "The first ensemble was the teacher of all students; they are compared with the mean of the {} ensembles."
)
NOT_IN_PAPER_NOTE = "Below 0 is better. Bold: the 95% interval of the paired bootstrap excludes 0."


def question_tables(comparison: Comparison, context: TableContext) -> list[Table]:
    """Both tables, where there are the methods and a bootstrap for them."""
    if not comparison.resamples or UNFAMILIAR not in comparison.sides:
        return []
    rows = tuple(
        _question_row(question, comparison, context)
        for question in QUESTIONS
        if (question.method, question.other) in comparison.pairs
    )
    title = f"Six questions, unfamiliar NLL: {context.title}"
    notes = (ANSWERS, *_student_notes(comparison))
    questions = Table(title, QUESTION_COLUMNS, (Section(None, rows),), notes)
    return [table for table in (questions, _not_in_paper(comparison, context)) if table.rows]


def answer(question: Question, gap: Difference, without: float) -> str:
    """The answer by the intervals over images and over runs; `without` is the other method's number."""
    low, high = gap.ends
    if math.isnan(low):
        return INCONCLUSIVE
    if max(abs(low), abs(high)) < NEGLIGIBLE * without:
        return question.same
    if high < 0:
        return question.better
    return question.worse if low > 0 else INCONCLUSIVE


def _question_row(question: Question, comparison: Comparison, context: TableContext) -> Row:
    method, other = (comparison.method(name) for name in (question.method, question.other))
    metric = next(metric for metric in comparison.metrics if metric.name == DECIDING)
    with_it, without = (each.cells[PLACE].mean for each in (method, other))
    papers = [context.paper_choice(each, metric, UNFAMILIAR) for each in (other, method)]
    gap = comparison.pairs[question.method, question.other][PLACE]
    return (
        TableCell(f"{question.text} ({method.title} compared with {other.title})"),
        TableCell(str(gap.pairs)),
        TableCell(answer(question, gap, without)),
        TableCell(f"{with_it:.4f}"),
        TableCell(f"{without:.4f}"),
        difference_cell(gap),
        TableCell(DASH if math.isnan(gap.margin) else f"±{gap.margin:.4f}"),
        TableCell(percent_reduction(without, with_it)),
        TableCell(DASH if None in papers else percent_reduction(*(value or 0.0 for value in papers))),
    )


def _student_notes(comparison: Comparison) -> tuple[str, ...]:
    """Which share of the gain of ensembles over one network students keep, where that gain is significant."""
    names = ("single-t", "distill-t", REFERENCE)
    if not {name for pair in comparison.pairs for name in pair}.issuperset(names):
        return ()
    one, student, ensemble = (comparison.method(name).cells[PLACE] for name in names)
    taught = (TAUGHT.format(len(ensemble.runs)),) if len(ensemble.runs) > 1 else ()
    if not comparison.pairs[REFERENCE, "single-t"][PLACE].ends[1] < 0:
        return taught
    gain = one.mean - ensemble.mean
    share = (one.mean - student.mean) / gain
    errors = [  # of each mean over runs; a method that was run once counts as exact
        cell.deviation / math.sqrt(cell.defined) if cell.defined > 1 else 0.0
        for cell in (one, student, ensemble)
    ]
    error = math.hypot((1 - share) * errors[0], errors[1], share * errors[2]) / gain
    precision = f" (standard error over runs {100 * error:.0f} points)" if error else ""
    return (
        *taught,
        f"Students keep {share:.0%} of the reduction in unfamiliar NLL from one network to an ensemble"
        f"{precision}.",
    )


def _not_in_paper(comparison: Comparison, context: TableContext) -> Table:
    metrics = [metric for name in METRICS_SHOWN for metric in comparison.metrics if metric.name == name]
    rows = []
    for name, other in NOT_IN_PAPER:
        if (name, other) in comparison.pairs:
            method, gaps = comparison.method(name), comparison.pairs[name, other]
            cells = (difference_cell(gaps.get((UNFAMILIAR, metric.name))) for metric in metrics)
            rows.append((TableCell(method.title), TableCell(str(len(method.runs))), *cells))
    reference = comparison.method(REFERENCE).title if rows else ""
    return Table(
        f"Not in the paper, difference from {reference} on unfamiliar data: {context.title}",
        (*METHOD_COLUMNS, *(Column(metric.title) for metric in metrics)),
        (Section(None, tuple(rows)),),
        (NOT_IN_PAPER_NOTE,),
    )
