"""A comparison of methods as the paper's tables, with notes, and as CSV."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from surefoot.errors import InputError, did_you_mean
from surefoot.evaluation.compare import BEST_T, comparison_from_scores
from surefoot.evaluation.comparison import Cell, Comparison, Difference, Mark, MethodRuns, read_scores
from surefoot.evaluation.scores import SIDES
from surefoot.experiments.methods import METHODS
from surefoot.experiments.paper import (
    ENTROPY_ROWS,
    PAPER_TASKS,
    STUDENTS,
    paper_choice,
    paper_entropy,
    paper_value,
)
from surefoot.experiments.results import described, without_absent_lenders
from surefoot.intervals import StandardError
from surefoot.metrics import Metric
from surefoot.report.tables import Column, Row, Section, Table, TableCell, to_html, to_latex, to_markdown
from surefoot.report.views import write_files
from surefoot.text import DASH, csv_text, exact_text, number_text, signed_interval_text, signed_text

ORACLE = "oracle: tuned on unfamiliar data"
NOT_IN_PAPER = "not in the paper"
LONGEST_NAME = 60  # letters of a file's
SCORES_SUFFIX = "-scores"
BACKBONES = {"resnet18": "ResNet-18", "densenet161": "DenseNet-161"}
CALIBRATION_ROWS = ("Single Model", "Single + T-scaling", "Ensemble", "Ensemble of T-scaled models")
ERRORS = ("nll", "brier", "label_error", "ece", "e99")
ENTROPIES = ("nll", "entropy", "nll_minus_entropy")
HEADLINES = ("nll", BEST_T.name, "label_error", "ece", "e99")
PAPER_METHOD = "Single Model"  # the paper's own baseline
METHOD_COLUMNS = (Column("method", align="left"), Column("runs"))

SIDES_NOTE = "F: familiar test data, U: unfamiliar. Lower is better."
TESTED = (
    "Bold: the best of all methods compared, or not significantly worse than it "
    "(unpaired two-tailed t-test over runs, 5%)."
)
STARRED = "*: the best number, but with too few runs for a test; no significance is claimed."
COUNTED = "k/n: wrong predictions among the confident ones, summed over runs."
PAPER = "paper, or in parentheses: the number in Li & Hoiem, CVPR 2020."
BEST_T_NOTE = (
    "NLL at best T (oracle NLL): each run's predictions, averaged over members, are divided by the T that is "
    "best on the same test data. It compares networks whatever T a method chose; no method can know that T."
)
SHARPENED = (
    "In this table only, the paper's students with T are divided by T even where T is below 1; its Table 1 "
    "leaves them without T then, and so do we."
)
DIFFERENCE = (
    "Paired bootstrap over rows (whole groups of them where there are groups), 95% intervals: for new "
    "rows or groups, with the same networks. Bold: the interval excludes 0."
)

CellOf = Callable[[MethodRuns, Metric, str], TableCell]


@dataclass(frozen=True)
class TableContext:
    """The task and the backbone of a comparison, by their names."""

    task: str
    backbone: str = "resnet18"
    paper_task: str | None = None  # its name in the paper, where that differs

    @property
    def title(self) -> str:
        """For people."""
        return ", ".join(filter(None, (self.task, BACKBONES.get(self.backbone, self.backbone))))

    def paper(self, method: MethodRuns, metric: Metric, side: str) -> float | None:
        """The paper's number, from its complete table or else from its table of entropies."""
        key = (self.backbone, self.paper_task or self.task, method.paper, metric.name, side)
        complete = paper_value(*key)
        return paper_entropy(*key) if complete is None else complete

    def paper_choice(self, method: MethodRuns, metric: Metric, side: str) -> float | None:
        """The number that the paper itself compares the method by."""
        task = self.paper_task or self.task
        return paper_choice(self.backbone, task, method.paper, metric.name, side)

    def paper_baseline(self, metric: Metric, side: str) -> float | None:
        """The number of the paper's own baseline."""
        return paper_value(self.backbone, self.paper_task or self.task, PAPER_METHOD, metric.name, side)


def comparison_tables(comparison: Comparison, context: TableContext) -> list[Table]:
    """Every table that the comparison has the methods and metrics for."""
    makers = [reduction_table] if comparison.baseline is not None else []
    makers += [calibration_table, entropy_table, complete_table]
    if comparison.resamples:
        makers += [difference_table, best_difference_table]
    tables = [make(comparison, context) for make in (*makers, cost_table)]
    return [table for table in tables if table.rows and len(table.columns) > len(METHOD_COLUMNS)]


def reduction_table(comparison: Comparison, context: TableContext) -> Table:
    """Table 1: the baseline's errors, and by how many percent the other methods reduce them."""
    if comparison.baseline is None:
        raise InputError("the baseline is not among the methods; the table of reductions needs it")
    baseline, absolute = comparison.method(comparison.baseline), _absolute(context, 3)

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        if method is baseline:
            return absolute(method, metric, side)
        place = (side, metric.name)
        reduction = percent_reduction(baseline.cells[place].mean, method.cells[place].mean)
        before, after = context.paper_baseline(metric, side), context.paper_choice(method, metric, side)
        paper = None if before is None or after is None else percent_reduction(before, after)
        return _marked(method.cells[place], metric, reduction, paper)

    title = f"{baseline.title}, and percent reduction by the others: {context.title}"
    return replace(_table(comparison, title, ERRORS, comparison.methods, cell), number=1)


def calibration_table(comparison: Comparison, context: TableContext) -> Table:
    """Table 2: single networks and ensembles, without and with temperature scaling."""
    title = f"Single and ensemble, without and with T-scaling: {context.title}"
    methods = [method for method in comparison.methods if method.paper in CALIBRATION_ROWS]
    metrics = ("nll", BEST_T.name, "brier", "ece")
    return replace(_table(comparison, title, metrics, methods, _absolute(context, 3)), number=2)


def entropy_table(comparison: Comparison, context: TableContext) -> Table:
    """Table 3: entropy and NLL; an NLL above the entropy is overconfidence."""
    methods = [method for method in comparison.methods if method.paper in ENTROPY_ROWS]
    title = f"Entropy and NLL: {context.title}"
    return replace(_table(comparison, title, ENTROPIES, methods, _absolute(context, 3)), number=3)


def complete_table(comparison: Comparison, context: TableContext) -> Table:
    """Table 4, or 5 for another backbone: every method's errors, with the spread over runs."""
    absolute = _absolute(context, 5)

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        scores = method.cells[side, metric.name]
        details = [
            "" if math.isnan(scores.deviation) else f"±{scores.deviation:.5f}",
            _count(scores, metric),
            f"{scores.defined} of {len(method.runs)} runs" if scores.defined < len(method.runs) else "",
        ]
        return replace(absolute(method, metric, side), detail=", ".join(filter(None, details)) or None)

    metrics = (*ERRORS, BEST_T.name, *_additional_metrics(comparison))
    table = _table(comparison, f"All methods: {context.title}", metrics, comparison.methods, cell)
    has_students = any(method.paper in STUDENTS for method in comparison.methods)
    notes = (*table.notes, SHARPENED) if has_students and PAPER in table.notes else table.notes
    return replace(table, number=4 if context.backbone == "resnet18" else 5, notes=notes)


def headline_table(comparison: Comparison, context: TableContext) -> Table:
    """The most important errors, without spreads, counts and the paper's numbers."""
    absolute = _absolute(context, 4)

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        return replace(absolute(method, metric, side), detail=None, paper=None)

    def short(column: Column) -> Column:
        if column.group == BEST_T.title:
            return Column("NLL U", "Oracle")  # as narrow as the numbers
        is_error = "error" in column.group
        group = column.group.removeprefix("Label ").capitalize() if is_error else column.group
        return replace(column, group=group, name=column.name[0].upper()) if group else column

    metrics = (*HEADLINES, *_additional_metrics(comparison))
    table = _table(comparison, f"Methods on {context.title}", metrics, comparison.methods, cell)
    columns = tuple(short(column) for column in table.columns)
    return replace(table, columns=columns, notes=(SIDES_NOTE, *table.notes))


def difference_table(comparison: Comparison, context: TableContext) -> Table:
    """Each method minus the baseline, by the paired bootstrap."""

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        if method.name == comparison.baseline:
            return TableCell("baseline")
        return difference_cell(method.cells[side, metric.name].from_baseline)

    baseline = comparison.baseline and comparison.method(comparison.baseline).title
    title = f"Difference from {baseline}, paired bootstrap over rows: {context.title}"
    return _table(comparison, title, ERRORS, comparison.methods if baseline else (), cell)


def best_difference_table(comparison: Comparison, context: TableContext) -> Table:
    """Each method minus the best of each column, by the paired bootstrap."""

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        scores = method.cells[side, metric.name]
        is_best = scores.from_best is None and not math.isnan(scores.mean)
        return TableCell("best") if is_best else difference_cell(scores.from_best)

    title = f"Difference from the best of each column, paired bootstrap over rows: {context.title}"
    return _table(comparison, title, ERRORS, comparison.methods, cell)


def cost_table(comparison: Comparison, context: TableContext) -> Table:
    """The cost of each method, where it is known."""
    rows = []
    for method in comparison.methods:
        costs = (method.seconds_training, method.seconds_per_sample, method.parameters)
        if any(cost is not None for cost in costs):
            cells = tuple(TableCell(DASH if cost is None else f"{cost:.4g}") for cost in costs)
            rows.append((method, cells))
    names = ("Training, seconds", "Per sample, seconds", "Parameters")
    columns = (*METHOD_COLUMNS, *(Column(name) for name in names))
    return Table(f"Cost: {context.title}", columns, _sections(rows))


def difference_cell(difference: Difference | None) -> TableCell:
    """A difference with its interval; bold where that excludes 0."""
    if difference is None:
        return TableCell(DASH)
    excludes_zero = difference.low > 0 or difference.high < 0
    interval = "" if math.isnan(difference.value) else signed_interval_text(difference.low, difference.high)
    return TableCell(signed_text(difference.value), excludes_zero, detail=interval or None)


def margin_cell(error: StandardError) -> TableCell:
    """Half the 95% interval."""
    return TableCell(DASH if math.isnan(error.value) else f"±{error.margin:.4f}")


def percent_reduction(baseline: float, value: float) -> str:
    """By how much the value is below the baseline, in percent of the baseline."""
    if math.isnan(baseline) or math.isnan(value) or not baseline:
        return DASH
    return f"{round(100 * (baseline - value) / baseline) + 0:d}%"


def _additional_metrics(comparison: Comparison) -> tuple[str, ...]:
    """The metrics that no table holds by default."""
    return tuple(m.name for m in comparison.metrics if m.name not in (*ERRORS, *ENTROPIES, BEST_T.name))


def _table(
    comparison: Comparison, title: str, names: Sequence[str], methods: Sequence[MethodRuns], cell: CellOf
) -> Table:
    """A row per method, a column per metric and side."""
    metrics = [metric for name in names for metric in comparison.metrics if metric.name == name]
    places = [
        (metric, side)
        for metric in metrics
        for side in comparison.sides
        if metric is not BEST_T or side == SIDES[-1]  # on familiar data T is nearly the best already
    ]
    rows = [(method, tuple(cell(method, metric, side) for metric, side in places)) for method in methods]
    columns = (*METHOD_COLUMNS, *(Column(side, metric.title) for metric, side in places))
    notes = _notes(comparison, methods, metrics, [each for _, cells in rows for each in cells])
    return Table(title, columns, _sections(rows), notes)


def _sections(rows: Sequence[tuple[MethodRuns, Row]]) -> tuple[Section, ...]:
    """The paper's methods first, then those that are not in the paper, then the oracles."""
    sections: dict[str | None, list[Row]] = {None: [], NOT_IN_PAPER: [], ORACLE: []}
    for method, cells in rows:
        missing = len(method.missing)
        label = ORACLE if method.oracle else NOT_IN_PAPER if method.not_in_paper else None
        runs = f"{len(method.runs)}, {missing} missing" if missing else str(len(method.runs))
        sections[label].append((TableCell(method.title), TableCell(runs), *cells))
    return tuple(Section(label, tuple(of_label)) for label, of_label in sections.items() if of_label)


def _absolute(context: TableContext, decimals: int) -> CellOf:
    """Cells with the mean over runs, and the paper's number."""

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        scores, paper = method.cells[side, metric.name], context.paper(method, metric, side)
        theirs = None if paper is None else number_text(paper, decimals)
        return _marked(scores, metric, number_text(scores.mean, decimals), theirs)

    return cell


def _marked(cell: Cell, metric: Metric, text: str, paper: str | None) -> TableCell:
    return TableCell(text, cell.bold, cell.mark is Mark.BEST_UNTESTED, _count(cell, metric), paper)


def _count(cell: Cell, metric: Metric) -> str | None:
    """k of n, for a proportion whose n differs from method to method."""
    return "{}/{}".format(*cell.count) if metric.denominator is not None and cell.count else None


def _notes(
    comparison: Comparison,
    methods: Sequence[MethodRuns],
    metrics: Sequence[Metric],
    cells: Sequence[TableCell],
) -> tuple[str, ...]:
    """The notes that the cells need."""
    missing = [
        f"{m.title}: {len(m.missing)} missing, not averaged in: {', '.join(m.missing)}."
        for m in methods
        if m.missing
    ]
    if any((cell.detail or "").startswith("[") for cell in cells):
        notes = [DIFFERENCE]
        for metric in metrics:
            of_metric = [method.cells[side, metric.name] for method in methods for side in comparison.sides]
            gaps = [gap for cell in of_metric for gap in (cell.from_baseline, cell.from_best) if gap]
            fewer = [gap.resampled for gap in gaps if gap.resampled < gap.pairs]
            if fewer:  # to save time
                least = min(fewer)
                notes.append(
                    f"{metric.title}: the values use all runs, the intervals as few as {least} of them."
                )
        return (*notes, *missing)
    notes = [TESTED] if any(cell.bold for cell in cells) else []
    notes += [STARRED] if any(cell.star for cell in cells) else []
    if any(cell.bold for cell in cells):
        notes += _untested(comparison, methods, metrics)
        for method in methods:
            lender = next((cell.borrowed for cell in method.cells.values() if cell.borrowed), None)
            if lender is not None:
                title = comparison.method(lender).title
                notes.append(
                    f"{method.title} was run once; its variance is taken from {title}, as in the paper."
                )
    notes += [COUNTED] if any("/" in (cell.detail or "") for cell in cells) else []
    notes += [PAPER] if any(cell.paper for cell in cells) else []
    notes += [BEST_T_NOTE] if BEST_T in metrics and SIDES[-1] in comparison.sides else []
    return (*notes, *missing)


def _untested(
    comparison: Comparison, methods: Sequence[MethodRuns], metrics: Sequence[Metric]
) -> Iterable[str]:
    """Which methods are not bold because there was no test, rather than because they are worse."""
    places = [(side, m.name) for m in metrics if m.better in ("lower", "higher") for side in comparison.sides]
    competing = [method for method in methods if not method.oracle]
    names = [
        method.title
        for method in competing
        if any(
            method.cells[place].mark is Mark.UNTESTED and not math.isnan(method.cells[place].mean)
            for place in places
        )
    ]
    if len(names) == len(competing) > 3:
        yield "No method has enough runs to be tested everywhere."
    elif names:
        yield f"Too few runs to be tested everywhere: {', '.join(names)}."


DIFFERENCES = ("baseline", "best")
HEADER = (
    *("task", "backbone", "method", "title", "cheating", "beyond"),
    *("side", "metric", "runs", "defined", "missing"),
    *("mean", "deviation", "k", "n", "mark", "p", "variance_of", "paper"),
    *(f"from_{other}{end}" for other in DIFFERENCES for end in ("", "_low", "_high", "_pairs", "_resampled")),
    *("seconds_training", "seconds_per_sample", "parameters"),
)


def summary_csv(comparison: Comparison, context: TableContext) -> str:
    """Means, tests, differences, the paper's numbers and the cost; empty where undefined or not known."""
    lines = []
    for method in comparison.methods:
        flags = ("yes" if flag else "no" for flag in (method.oracle, method.not_in_paper))
        names = (context.task, context.backbone, method.name, method.title, *flags)
        cost = [
            exact_text(v) for v in (method.seconds_training, method.seconds_per_sample, method.parameters)
        ]
        for metric in comparison.metrics:
            for side in comparison.sides:
                cell = method.cells[side, metric.name]
                runs = (len(cell.runs), cell.defined, "; ".join(method.missing))
                numbers = (exact_text(v) for v in (cell.mean, cell.deviation, *(cell.count or (None, None))))
                paper = exact_text(context.paper(method, metric, side))
                test = (cell.mark.value, exact_text(cell.p), cell.borrowed or "", paper)
                gaps = (*_difference_numbers(cell.from_baseline), *_difference_numbers(cell.from_best))
                lines.append((*names, side, metric.name, *runs, *numbers, *test, *gaps, *cost))
    return csv_text(HEADER, lines)


def _difference_numbers(gap: Difference | None) -> Sequence[str]:
    if gap is None:
        return ("",) * 5
    return [exact_text(number) for number in (gap.value, gap.low, gap.high, gap.pairs, gap.resampled)]


def safe_name(text: str) -> str:
    """Any text as part of a file's name.

    >>> safe_name("toy/wave"), safe_name("../<b>"), safe_name("??")
    ('toy-wave', 'b', 'unnamed')
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:LONGEST_NAME].strip("-") or "unnamed"


def write_table_files(tables: Sequence[Table], folder: Path, name: str) -> list[Path]:
    """Tables as Markdown, LaTeX and HTML; their paths."""
    texts = {
        f"{name}-tables.md": to_markdown(tables),
        f"{name}-tables.tex": to_latex(tables),
        f"{name}-tables.html": to_html(tables),
    }
    return write_files(folder, texts)


def scores_compared(path: Path, names: Sequence[str] | None = None) -> Comparison:
    """The methods of a scores file, or the named ones of them, in the order of the paper's table."""
    values = read_scores(path)
    selected = list(values) if names is None else list(names)
    for name in selected:
        if name not in values:
            near = did_you_mean(name, values)
            raise InputError(f"{path} has no method {name!r}{near}; have: {', '.join(values)}")
    listed = [method.name for method in METHODS if method.name in selected]
    made = [name for name in selected if name not in listed]  # of calibrators, which are not listed
    about = without_absent_lenders([described(METHODS.named(name)) for name in (*listed, *made)])
    return comparison_from_scores({name: values[name] for name in selected}, about)


def scores_context(path: Path, paper: str | None) -> TableContext:
    """The task of a scores file, by its name; and the paper's task to compare with."""
    if paper is not None and paper not in PAPER_TASKS:
        raise InputError(f"the paper has no task {paper!r}; have: {', '.join(PAPER_TASKS)}")
    backbone = "" if paper is None else "resnet18"  # scores do not name it
    return TableContext(path.stem.removesuffix(SCORES_SUFFIX), backbone, paper)


def write_score_tables(comparison: Comparison, context: TableContext, folder: Path) -> list[Path]:
    """Every table that scores are enough for; their paths."""
    return write_table_files(comparison_tables(comparison, context), folder, safe_name(context.task))
