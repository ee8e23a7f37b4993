"""The paper's six questions, answered by paired differences; and the methods that are not in the paper."""

import math

from surefoot.evaluation.compare import BEST_T, DECIDING
from surefoot.evaluation.comparison import Comparison, Difference, Pair
from surefoot.evaluation.scores import SIDES
from surefoot.experiments.paper import ENSEMBLE_PAIRS, NOT_IN_PAPER, PAIRS, QUESTIONS, REFERENCE, Question
from surefoot.metrics import Metric
from surefoot.report.study_tables import (
    BEST_T_NOTE,
    METHOD_COLUMNS,
    TableContext,
    difference_cell,
    margin_cell,
    percent_reduction,
)
from surefoot.report.tables import Column, Row, Section, Table, TableCell
from surefoot.text import DASH, csv_text, exact_text, p_text

UNFAMILIAR = SIDES[1]
PLACE = (UNFAMILIAR, DECIDING)
METRICS_SHOWN = ("nll", BEST_T.name, "brier", "ece", "e99", "aurc")
NEGLIGIBLE = 0.005  # of the number of the other method
INCONCLUSIVE = "inconclusive"
QUESTION_COLUMNS = (
    Column("question", align="left"),
    *(Column(name) for name in ("pairs of runs", "Answer", "With", "Without", "Difference", "Over runs")),
    *(Column(name) for name in ("Less by", "In the paper", "These groups", "Sign flips")),
)
ANSWERS = (
    "In brackets: the 95% interval for new groups, by the paired bootstrap over groups (for new rows, over "
    "rows, where there are no groups); bold where it excludes 0. Over runs: half the 95% interval for other "
    "networks of the same recipes; an ensemble's is from its leave-one-out ensembles; a dash means that it "
    "is unknown. The answer is for new groups and other networks: both variances added, with Satterthwaite's "
    "degrees of freedom. Negligible: that interval lies within 0.5% of the number without the method. These "
    "groups: half the 95% interval for other rows of the same groups. Sign flips: p of the sign-flip test "
    "over groups."
)
FEWEST_GROUPS = 6  # with fewer the sign-flip test cannot reach 5%
FEW_GROUPS = "With {} groups the p of the sign-flip test is at least {:.3g}, so it cannot be significant."
COMPARISONS = (
    "{} comparisons of methods by unfamiliar NLL are made in this report, none corrected for the others: "
    "without any effect, about 1 in 20 of their intervals would exclude 0."
)
TAUGHT = (
    "The first ensemble was the teacher of all students; they are compared with the mean of the {} ensembles."
)
DIFFERENCES_NOTE = (
    "Below 0 is better. Bold: the 95% interval for new groups, by the paired bootstrap, excludes 0."
)
PAIRS_HEADER = (
    *("method", "other", "side", "metric", "value", "new_groups_low", "new_groups_high", "groups"),
    *("these_groups_low", "these_groups_high", "over_runs_margin", "over_runs_freedom"),
    *("combined_low", "combined_high", "sign_flip_p"),
)


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
    notes = (ANSWERS, *_few_groups_note(comparison), *_student_notes(comparison), _comparisons(comparison))
    ensembles = _pair_table(comparison, f"Ensembles and students on unfamiliar data: {context.title}")
    tables = (
        Table(title, QUESTION_COLUMNS, (Section(None, rows),), notes),
        ensembles,
        _not_in_paper(comparison, context),
    )
    return [table for table in tables if table.rows]


def answer(question: Question, gap: Difference, without: float) -> str:
    """The answer by the intervals over rows and over runs; `without` is the other method's number."""
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
        margin_cell(gap.over_runs),
        TableCell(percent_reduction(without, with_it)),
        TableCell(DASH if None in papers else percent_reduction(*(value or 0.0 for value in papers))),
        margin_cell(gap.within),
        TableCell(DASH if math.isnan(gap.p) else p_text(gap.p)),
    )


def _few_groups_note(comparison: Comparison) -> tuple[str, ...]:
    """Where the sign-flip test cannot be significant."""
    groups = {of_pair[PLACE].independent for of_pair in comparison.pairs.values() if PLACE in of_pair}
    fewest = min(groups, default=0)
    return (FEW_GROUPS.format(fewest, 2 / 2**fewest),) if 0 < fewest < FEWEST_GROUPS else ()


def _comparisons(comparison: Comparison) -> str:
    """How many pairs of methods the tables compare."""
    return COMPARISONS.format(len(comparison.pairs.keys() & set(PAIRS)))


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
    known = [cell.over_runs.value for cell in (one, student, ensemble)]
    errors = [0.0 if math.isnan(error) else error for error in known]  # of one network nothing is known
    error = math.hypot((1 - share) * errors[0], errors[1], share * errors[2]) / gain
    precision = f" (standard error over runs {100 * error:.0f} points)" if error else ""
    return (
        *taught,
        f"Students keep {share:.0%} of the reduction in unfamiliar NLL from one network to an ensemble"
        f"{precision}.",
    )


def _shown(comparison: Comparison) -> list[Metric]:
    return [metric for name in METRICS_SHOWN for metric in comparison.metrics if metric.name == name]


def _gap_cells(comparison: Comparison, pair: Pair) -> Row:
    gaps = comparison.pairs[pair]
    return tuple(difference_cell(gaps.get((UNFAMILIAR, metric.name))) for metric in _shown(comparison))


def _pair_table(comparison: Comparison, title: str) -> Table:
    """Both ensembles compared with each other and with one network; students compared with both."""
    rows = []
    for pair in (pair for pair in ENSEMBLE_PAIRS if pair in comparison.pairs):
        one, other = (comparison.method(name).title for name in pair)
        rows.append((TableCell(f"{one} minus {other}"), *_gap_cells(comparison, pair)))
    columns = (METHOD_COLUMNS[0], *(Column(metric.title) for metric in _shown(comparison)))
    return Table(title, columns, (Section(None, tuple(rows)),), (DIFFERENCES_NOTE, BEST_T_NOTE))


def _not_in_paper(comparison: Comparison, context: TableContext) -> Table:
    rows = []
    for pair in (pair for pair in NOT_IN_PAPER if pair in comparison.pairs):
        method = comparison.method(pair[0])
        runs = TableCell(str(len(method.runs)))
        rows.append((TableCell(method.title), runs, *_gap_cells(comparison, pair)))
    reference = comparison.method(REFERENCE).title if rows else ""
    return Table(
        f"Not in the paper, difference from {reference} on unfamiliar data: {context.title}",
        (*METHOD_COLUMNS, *(Column(metric.title) for metric in _shown(comparison))),
        (Section(None, tuple(rows)),),
        (DIFFERENCES_NOTE, BEST_T_NOTE),
    )


def pairs_csv(comparison: Comparison) -> str:
    """Every difference between two methods that the tables show, with all its intervals."""
    lines = []
    for (name, other), gaps in comparison.pairs.items():
        if (name, other) not in PAIRS:
            continue
        for (side, metric), gap in gaps.items():
            numbers = (
                *(gap.value, gap.low, gap.high, gap.independent, gap.these.low, gap.these.high),
                *(gap.over_runs.margin, gap.over_runs.freedom, *gap.ends, gap.p),
            )
            lines.append((name, other, side, metric, *(exact_text(value) for value in numbers)))
    return csv_text(PAIRS_HEADER, lines)
