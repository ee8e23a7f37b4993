"""A comparison of methods as the paper's tables, with notes and CSV."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from surefoot.errors import InputError
from surefoot.evaluation.compare import DECIDING
from surefoot.evaluation.comparison import Cell, Comparison, Difference, Mark, MethodRuns
from surefoot.evaluation.scores import SIDES
from surefoot.evaluation.scores_csv import csv_text, number_text
from surefoot.experiments.paper import (
    BEYOND,
    ENTROPY_ROWS,
    QUESTIONS,
    REFERENCE,
    STUDENTS,
    Question,
    paper_choice,
    paper_entropy,
    paper_value,
)
from surefoot.metrics import Metric
from surefoot.report.tables import MethodTable, Section, TableCell, TableRow

TESTED = (
    "Bold: the best of all methods compared, or not significantly worse than it "
    "(unpaired two-tailed t-test over runs, 5%)."
)
STARRED = "*: the best number, but with too few runs for a test; no significance is claimed."
COUNTED = "k/n: wrong of sure decisions, summed over runs."
PAPER = "paper, or in parentheses: the number in Li & Hoiem, CVPR 2020."
SHARPENED = (
    "The paper's students with T are divided by T below 1 too, in this table only; its Table 1 takes them "
    "without T then, as ours are."
)
DIFFERENCE = (
    "Paired bootstrap over images (whole groups of them where there are groups), 95% intervals. "
    "Bold: the interval excludes 0. It speaks of other images, not of other training runs."
)


def table_notes(
    comparison: Comparison,
    methods: Sequence[MethodRuns],
    metrics: Sequence[Metric],
    cells: Sequence[TableCell],
) -> tuple[str, ...]:
    """The notes that the cells call for."""
    if any((cell.detail or "").startswith("[") for cell in cells):
        return (DIFFERENCE, *_fewer_runs(comparison, methods, metrics), *_missing(methods))
    notes = [TESTED] if any(cell.bold for cell in cells) else []
    notes += [STARRED] if any(cell.star for cell in cells) else []
    if any(cell.bold for cell in cells):
        notes += (*_untested(comparison, methods, metrics), *_borrowed(comparison, methods))
    notes += [COUNTED] if any("/" in (cell.detail or "") for cell in cells) else []
    notes += [PAPER] if any(cell.paper for cell in cells) else []
    return (*notes, *_missing(methods))


def _untested(
    comparison: Comparison, methods: Sequence[MethodRuns], metrics: Sequence[Metric]
) -> Iterable[str]:
    """Who is not bold for want of a test, and not for being worse."""
    places = [(side, m.name) for m in metrics if m.better in ("lower", "higher") for side in comparison.sides]
    competing = [method for method in methods if not method.oracle]
    names = [m.title for m in competing if any(_is_untested(m.cells[place]) for place in places)]
    if len(names) == len(competing) > 3:
        yield "No method is tested everywhere, for want of runs."
    elif names:
        yield f"Not tested everywhere, for want of runs: {', '.join(names)}."


def _is_untested(cell: Cell) -> bool:
    return cell.mark is Mark.UNTESTED and not math.isnan(cell.mean)


def _fewer_runs(
    comparison: Comparison, methods: Sequence[MethodRuns], metrics: Sequence[Metric]
) -> Iterable[str]:
    """Which intervals were made from some of the runs only, to stay quick."""
    for metric in metrics:
        cells = [method.cells[side, metric.name] for method in methods for side in comparison.sides]
        found = [gap for cell in cells for gap in (cell.from_baseline, cell.from_best) if gap is not None]
        cut = [gap for gap in found if gap.resampled < gap.pairs]
        if cut:
            fewest = min(gap.resampled for gap in cut)
            yield f"{metric.title}: the values rest on all runs, the intervals on as few as {fewest} of them."


def _borrowed(comparison: Comparison, methods: Sequence[MethodRuns]) -> Iterable[str]:
    for method in methods:
        lender = next((cell.borrowed for cell in method.cells.values() if cell.borrowed), None)
        if lender is not None:
            title = comparison.method(lender).title
            yield f"{method.title} was run once; its variance is that of {title}, as in the paper."


def _missing(methods: Sequence[MethodRuns]) -> Iterable[str]:
    for method in methods:
        missing = method.missing
        if missing:
            yield f"{method.title}: {len(missing)} missing, not averaged in: {', '.join(missing)}."


DASH = "–"  # noqa: RUF001  undefined is never 0
ORACLE = "cheating: tuned on unfamiliar data"
NOT_IN_PAPER = "beyond the paper"
BACKBONES = {"resnet18": "ResNet-18", "densenet161": "DenseNet-161"}
CALIBRATION_ROWS = ("Single Model", "Single + T-scaling", "Ensemble", "Ensemble of T-scaled models")
ERRORS = ("nll", "brier", "label_error", "ece", "e99")
ENTROPIES = ("nll", "entropy", "nll_minus_entropy")
SIDES_NOTE = "F: familiar test data, U: unfamiliar. Lower is better."
HEADLINES = ("nll", "label_error", "ece", "e99")
PAPER_METHOD = "Single Model"  # the paper's own baseline

CellOf = Callable[[MethodRuns, Metric, str], TableCell]


@dataclass(frozen=True)
class TableContext:
    """What was compared on: the task and backbone, by their names."""

    task: str
    backbone: str = "resnet18"
    paper_task: str | None = None  # its name in the paper, where that is another

    @property
    def title(self) -> str:
        """For people."""
        return ", ".join(filter(None, (self.task, BACKBONES.get(self.backbone, self.backbone))))

    def paper(self, method: MethodRuns, metric: Metric, side: str) -> float | None:
        """The paper's number, from its complete table or else from the one of entropies."""
        asked = (self.backbone, self.paper_task or self.task, method.paper, metric.name, side)
        complete = paper_value(*asked)
        return paper_entropy(*asked) if complete is None else complete

    def paper_choice(self, method: MethodRuns, metric: Metric, side: str) -> float | None:
        """The number that the paper itself compares the method by."""
        task = self.paper_task or self.task
        return paper_choice(self.backbone, task, method.paper, metric.name, side)


def comparison_grids(comparison: Comparison, setting: TableContext) -> list[MethodTable]:
    """Every table that the comparison has the methods and metrics for."""
    makers = [reduction_grid] if comparison.baseline is not None else []
    grids = [make(comparison, setting) for make in (*makers, calibration_grid, entropy_grid, complete_grid)]
    if comparison.resamples:
        grids += [difference_grid(comparison, setting), best_difference_grid(comparison, setting)]
    grids.append(cost_grid(comparison, setting))
    return [grid for grid in grids if any(section.rows for section in grid.sections) and grid.headings]


def reduction_grid(comparison: Comparison, setting: TableContext) -> MethodTable:
    """Table 1: the baseline's errors, and by how many percent the other methods reduce them."""
    if comparison.baseline is None:
        raise InputError("the baseline is not among the methods; the table of reductions needs it")
    baseline, absolute = comparison.method(comparison.baseline), _absolute(setting, 3)

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        place = (side, metric.name)
        paper = setting.paper_choice(method, metric, side)
        if method is baseline:
            return absolute(method, metric, side)
        text = percent_reduction(baseline.cells[place].mean, method.cells[place].mean)
        of_baseline = paper_value(
            setting.backbone, setting.paper_task or setting.task, PAPER_METHOD, metric.name, side
        )
        theirs = None if paper is None or of_baseline is None else percent_reduction(of_baseline, paper)
        return _marked(method.cells[place], metric, text, theirs)

    title = f"{baseline.title}, and percent reduction by the others: {setting.title}"
    return replace(_grid(comparison, title, ERRORS, comparison.methods, cell), number=1)


def calibration_grid(comparison: Comparison, setting: TableContext) -> MethodTable:
    """Table 2: single networks and ensembles, without and with temperature scaling."""
    title = f"Single and ensemble, without and with T-scaling: {setting.title}"
    rows = [method for method in comparison.methods if method.paper in CALIBRATION_ROWS]
    return replace(_grid(comparison, title, ("nll", "brier", "ece"), rows, _absolute(setting, 3)), number=2)


def entropy_grid(comparison: Comparison, setting: TableContext) -> MethodTable:
    """Table 3: entropy against NLL; an NLL above the entropy is overconfidence."""
    title = f"Entropy and NLL: {setting.title}"
    rows = [method for method in comparison.methods if method.paper in ENTROPY_ROWS]
    return replace(_grid(comparison, title, ENTROPIES, rows, _absolute(setting, 3)), number=3)


def complete_grid(comparison: Comparison, setting: TableContext) -> MethodTable:
    """Table 4, or 5 for another backbone: every method's errors, with the spread over runs."""
    absolute = _absolute(setting, 5)

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        plain, found = absolute(method, metric, side), method.cells[side, metric.name]
        return TableCell(plain.text, plain.bold, plain.star, _detail(found, metric, method), plain.paper)

    number = 4 if setting.backbone == "resnet18" else 5
    title = f"All methods: {setting.title}"
    names = (*ERRORS, *_asked_for(comparison))
    grid = _grid(comparison, title, names, comparison.methods, cell)
    taught = any(method.paper in STUDENTS for method in comparison.methods)
    notes = (*grid.notes, SHARPENED) if taught and PAPER in grid.notes else grid.notes
    return replace(grid, number=number, notes=notes)


def headline_grid(comparison: Comparison, setting: TableContext) -> MethodTable:
    """The errors that matter most, for a first look: no spreads, no counts, no paper."""
    absolute = _absolute(setting, 4)

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        return replace(absolute(method, metric, side), detail=None, paper=None)

    names = (*HEADLINES, *_asked_for(comparison))
    grid = _grid(comparison, f"Methods on {setting.title}", names, comparison.methods, cell)
    groups = tuple(
        group.removeprefix("Label ").capitalize() if "error" in group else group for group in grid.groups
    )
    columns = tuple(side[0].upper() for side in grid.columns)
    return replace(grid, groups=groups, columns=columns, notes=(SIDES_NOTE, *grid.notes))


def _asked_for(comparison: Comparison) -> tuple[str, ...]:
    """The metrics that are there only because somebody asked for them."""
    usual = {*ERRORS, *ENTROPIES}
    return tuple(metric.name for metric in comparison.metrics if metric.name not in usual)


def difference_grid(comparison: Comparison, setting: TableContext) -> MethodTable:
    """Each method less the baseline, by the paired bootstrap."""

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        itself = method.name == comparison.baseline
        return TableCell("baseline") if itself else gap_cell(method.cells[side, metric.name].from_baseline)

    against = comparison.baseline and comparison.method(comparison.baseline).title
    title = f"Difference from {against}, paired bootstrap over images: {setting.title}"
    return _grid(comparison, title, ERRORS, comparison.methods if against else (), cell)


def best_difference_grid(comparison: Comparison, setting: TableContext) -> MethodTable:
    """Each method less the best of each column, by the paired bootstrap."""

    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        found = method.cells[side, metric.name]
        itself = found.from_best is None and not math.isnan(found.mean)
        return TableCell("best") if itself else gap_cell(found.from_best)

    title = f"Difference from the best of each column, paired bootstrap over images: {setting.title}"
    return _grid(comparison, title, ERRORS, comparison.methods, cell)


def cost_grid(comparison: Comparison, setting: TableContext) -> MethodTable:
    """What each method costs, where it is known."""
    rows: dict[str | None, list[TableRow]] = {None: [], NOT_IN_PAPER: [], ORACLE: []}
    for method in comparison.methods:
        about = method
        costs = (about.seconds_training, about.seconds_per_sample, about.parameters)
        if any(cost is not None for cost in costs):
            cells = tuple(TableCell(DASH if cost is None else f"{cost:.4g}") for cost in costs)
            rows[_label(method)].append(TableRow(about.title, _runs(method), cells))
    groups = ("Training, seconds", "Per sample, seconds", "Parameters")
    return MethodTable(f"Cost: {setting.title}", groups, ("",), _sections(rows))


def _grid(
    comparison: Comparison, title: str, names: Sequence[str], methods: Sequence[MethodRuns], cell: CellOf
) -> MethodTable:
    metrics = [metric for name in names for metric in comparison.metrics if metric.name == name]
    places = [(metric, side) for metric in metrics for side in comparison.sides]
    rows: dict[str | None, list[TableRow]] = {None: [], NOT_IN_PAPER: [], ORACLE: []}
    for method in methods:
        cells = tuple(cell(method, metric, side) for metric, side in places)
        rows[_label(method)].append(TableRow(method.title, _runs(method), cells))
    sections = _sections(rows)
    notes = table_notes(
        comparison, methods, metrics, [cell for s in sections for r in s.rows for cell in r.cells]
    )
    return MethodTable(title, tuple(metric.title for metric in metrics), comparison.sides, sections, notes)


def _sections(rows: Mapping[str | None, Sequence[TableRow]]) -> tuple[Section, ...]:
    return tuple(Section(label, tuple(of_label)) for label, of_label in rows.items() if of_label)


def _absolute(setting: TableContext, decimals: int) -> CellOf:
    def cell(method: MethodRuns, metric: Metric, side: str) -> TableCell:
        found = method.cells[side, metric.name]
        paper = _paper(setting.paper(method, metric, side), decimals)
        return _marked(found, metric, _number(found.mean, decimals), paper)

    return cell


def _marked(cell: Cell, metric: Metric, text: str, paper: str | None) -> TableCell:
    return TableCell(text, cell.bold, cell.mark is Mark.BEST_UNTESTED, _count(cell, metric), paper)


def _detail(cell: Cell, metric: Metric, method: MethodRuns) -> str | None:
    """Standard deviation over runs, k of n of E99, and in how many runs it is defined if not in all."""
    parts = [] if math.isnan(cell.deviation) else [f"±{cell.deviation:.5f}"]
    parts += [count] if (count := _count(cell, metric)) else []
    if cell.defined < len(method.runs):
        parts.append(f"{cell.defined} of {len(method.runs)} runs")
    return ", ".join(parts) or None


def _count(cell: Cell, metric: Metric) -> str | None:
    return "{}/{}".format(*cell.count) if metric.name == "e99" and cell.count else None


def gap_cell(found: Difference | None) -> TableCell:
    """A difference with its interval; bold where that does not hold 0."""
    if found is None or math.isnan(found.value):
        return TableCell(DASH)
    if math.isnan(found.low):
        return TableCell(_signed(found.value))
    apart = found.low > 0 or found.high < 0
    return TableCell(_signed(found.value), apart, detail=f"[{_signed(found.low)}, {_signed(found.high)}]")


def _label(method: MethodRuns) -> str | None:
    return ORACLE if method.oracle else NOT_IN_PAPER if method.not_in_paper else None


def _runs(method: MethodRuns) -> str:
    missing = len(method.missing)
    return f"{len(method.runs)}, {missing} missing" if missing else str(len(method.runs))


def _number(value: float, decimals: int) -> str:
    return DASH if math.isnan(value) else f"{round(value, decimals) + 0.0:.{decimals}f}"


def _signed(value: float) -> str:
    return f"{round(value, 4) + 0.0:+.4f}"


def _paper(value: float | None, decimals: int) -> str | None:
    return None if value is None else _number(value, decimals)


def percent_reduction(baseline: float, value: float) -> str:
    """By how much the value is below the baseline, in percent of the baseline."""
    if math.isnan(baseline) or math.isnan(value) or not baseline:
        return DASH
    return f"{round(100 * (baseline - value) / baseline) + 0:d}%"


DIFFERENCES = ("baseline", "best")
HEADER = (
    *(
        "task",
        "backbone",
        "method",
        "title",
        "cheating",
        "beyond",
        "side",
        "metric",
        "runs",
        "defined",
        "missing",
    ),
    *("mean", "deviation", "k", "n", "mark", "p", "variance_of", "paper"),
    *(f"from_{other}{end}" for other in DIFFERENCES for end in ("", "_low", "_high", "_pairs", "_resampled")),
    *("seconds_training", "seconds_per_sample", "parameters"),
)


def summary_csv(comparison: Comparison, setting: TableContext) -> str:
    """Means, tests, differences, the paper's numbers and the cost; empty where undefined or not known."""
    lines = []
    for method in comparison.methods:
        about = method
        flags = ("yes" if flag else "no" for flag in (about.oracle, about.not_in_paper))
        what = (setting.task, setting.backbone, about.name, about.title, *flags)
        cost = [number_text(v) for v in (about.seconds_training, about.seconds_per_sample, about.parameters)]
        for metric in comparison.metrics:
            for side in comparison.sides:
                cell = method.cells[side, metric.name]
                k, n = cell.count or (None, None)
                numbers = (number_text(v) for v in (cell.mean, cell.deviation, k, n))
                paper = number_text(setting.paper(method, metric, side))
                runs = (len(cell.runs), cell.defined, "; ".join(about.missing))
                test = (cell.mark.value, number_text(cell.p), cell.borrowed or "", paper)
                gaps = (*_difference(cell.from_baseline), *_difference(cell.from_best))
                lines.append((*what, side, metric.name, *runs, *numbers, *test, *gaps, *cost))
    return csv_text(HEADER, lines)


def _difference(found: Difference | None) -> tuple[str, ...]:
    if found is None:
        return ("",) * 5
    numbers = (found.value, found.low, found.high, found.pairs, found.resampled)
    return tuple(number_text(number) for number in numbers)


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


def question_grids(comparison: Comparison, setting: TableContext) -> list[MethodTable]:
    """Both tables, where there are the methods and a bootstrap for them."""
    if not comparison.resamples or UNFAMILIAR not in comparison.sides:
        return []
    return [grid for grid in (_questions(comparison, setting), _beyond(comparison, setting)) if grid.sections]


def answer(question: Question, gap: Difference, without: float) -> str:
    """As far as other images and other runs allow one; `without` is the other method's own number."""
    low, high = gap.ends
    if math.isnan(low):
        return "inconclusive"
    if max(abs(low), abs(high)) < NEGLIGIBLE * without:
        return question.same
    if high < 0:
        return question.better
    return question.worse if low > 0 else question.level


def _questions(comparison: Comparison, setting: TableContext) -> MethodTable:
    rows = tuple(
        _row(question, comparison, setting)
        for question in QUESTIONS
        if (question.method, question.other) in comparison.pairs
    )
    return MethodTable(
        f"Six questions, unfamiliar NLL: {setting.title}",
        ("Answer", "With", "Without", "Difference", "Over runs", "Less by", "In the paper"),
        ("",),
        (Section(None, rows),) if rows else (),
        (ANSWERS, *_of_students(comparison)),
        names=("question", "pairs of runs"),
    )


def _row(question: Question, comparison: Comparison, setting: TableContext) -> TableRow:
    ours, theirs = (comparison.method(name) for name in (question.method, question.other))
    place = (UNFAMILIAR, ASKED)
    metric = next(metric for metric in comparison.metrics if metric.name == ASKED)
    with_it, without = (method.cells[place].mean for method in (ours, theirs))
    papers = [setting.paper_choice(method, metric, UNFAMILIAR) for method in (theirs, ours)]
    gap = comparison.pairs[question.method, question.other][place]
    cells = (
        TableCell(answer(question, gap, without)),
        TableCell(f"{with_it:.4f}"),
        TableCell(f"{without:.4f}"),
        gap_cell(gap),
        TableCell(DASH if math.isnan(gap.margin) else f"±{gap.margin:.4f}"),
        TableCell(percent_reduction(without, with_it)),
        TableCell(DASH if None in papers else percent_reduction(*(value or 0.0 for value in papers))),
    )
    title = f"{question.text} ({ours.title} against {theirs.title})"
    return TableRow(title, str(gap.pairs), cells)


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


def _beyond(comparison: Comparison, setting: TableContext) -> MethodTable:
    metrics = [metric for name in SHOWN for metric in comparison.metrics if metric.name == name]
    rows = tuple(
        TableRow(
            comparison.method(name).title,
            str(len(comparison.method(name).runs)),
            tuple(_gap(comparison, name, metric) for metric in metrics),
        )
        for name, other in BEYOND
        if (name, other) in comparison.pairs
    )
    against = comparison.method(REFERENCE).title if rows else ""
    return MethodTable(
        f"Beyond the paper, difference from {against} on unfamiliar data: {setting.title}",
        tuple(metric.title for metric in metrics),
        ("",),
        (Section(None, rows),) if rows else (),
        ("Below 0 is better. Bold: the 95% interval of the paired bootstrap does not hold 0.",),
    )


def _gap(comparison: Comparison, name: str, metric: Metric) -> TableCell:
    return gap_cell(comparison.pairs[name, REFERENCE].get((UNFAMILIAR, metric.name)))
