"""A comparison as the paper's tables, with the paper's number beside ours."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from surefoot.comparison import Cell, Comparison, Difference, Mark, MethodScores
from surefoot.errors import InputError
from surefoot.metrics import Metric
from surefoot.report.comparison_notes import PAPER, SHARPENED, table_notes
from surefoot.report.grid import Grid, GridCell, GridRow, Section
from surefoot.report.paper_numbers import ENTROPY_ROWS, STUDENTS, paper_choice, paper_entropy, paper_value

DASH = "–"  # noqa: RUF001  undefined is never 0
CHEATING = "cheating: tuned on unfamiliar data"
BEYOND = "beyond the paper"
BACKBONES = {"resnet18": "ResNet-18", "densenet161": "DenseNet-161"}
CALIBRATION_ROWS = ("Single Model", "Single + T-scaling", "Ensemble", "Ensemble of T-scaled models")
ERRORS = ("nll", "brier", "label_error", "ece", "e99")
ENTROPIES = ("nll", "entropy", "nll_minus_entropy")
SIDES_NOTE = "F: familiar test data, U: unfamiliar. Lower is better."
HEADLINES = ("nll", "label_error", "ece", "e99")
PAPER_METHOD = "Single Model"  # the paper's own baseline

CellOf = Callable[[MethodScores, Metric, str], GridCell]


@dataclass(frozen=True)
class Setting:
    """What was compared on: the task and backbone, by their names."""

    task: str
    backbone: str = "resnet18"
    paper_task: str | None = None  # its name in the paper, where that is another

    @property
    def title(self) -> str:
        """For people."""
        return ", ".join(filter(None, (self.task, BACKBONES.get(self.backbone, self.backbone))))

    def paper(self, method: MethodScores, metric: Metric, side: str) -> float | None:
        """The paper's number, from its complete table or else from the one of entropies."""
        asked = (self.backbone, self.paper_task or self.task, method.about.paper, metric.name, side)
        complete = paper_value(*asked)
        return paper_entropy(*asked) if complete is None else complete

    def paper_choice(self, method: MethodScores, metric: Metric, side: str) -> float | None:
        """The number that the paper itself compares the method by."""
        task = self.paper_task or self.task
        return paper_choice(self.backbone, task, method.about.paper, metric.name, side)


def comparison_grids(comparison: Comparison, setting: Setting) -> list[Grid]:
    """Every table that the comparison has the methods and metrics for."""
    makers = [reduction_grid] if comparison.baseline is not None else []
    grids = [make(comparison, setting) for make in (*makers, calibration_grid, entropy_grid, complete_grid)]
    if comparison.resamples:
        grids += [difference_grid(comparison, setting), best_difference_grid(comparison, setting)]
    grids.append(cost_grid(comparison, setting))
    return [grid for grid in grids if any(section.rows for section in grid.sections) and grid.headings]


def reduction_grid(comparison: Comparison, setting: Setting) -> Grid:
    """Table 1: the baseline's errors, and by how many percent the other methods reduce them."""
    if comparison.baseline is None:
        raise InputError("the baseline is not among the methods; the table of reductions needs it")
    baseline, absolute = comparison.method(comparison.baseline), _absolute(setting, 3)

    def cell(method: MethodScores, metric: Metric, side: str) -> GridCell:
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

    title = f"{baseline.about.title}, and percent reduction by the others: {setting.title}"
    return replace(_grid(comparison, title, ERRORS, comparison.methods, cell), number=1)


def calibration_grid(comparison: Comparison, setting: Setting) -> Grid:
    """Table 2: single networks and ensembles, without and with temperature scaling."""
    title = f"Single and ensemble, without and with T-scaling: {setting.title}"
    rows = [method for method in comparison.methods if method.about.paper in CALIBRATION_ROWS]
    return replace(_grid(comparison, title, ("nll", "brier", "ece"), rows, _absolute(setting, 3)), number=2)


def entropy_grid(comparison: Comparison, setting: Setting) -> Grid:
    """Table 3: entropy against NLL; an NLL above the entropy is overconfidence."""
    title = f"Entropy and NLL: {setting.title}"
    rows = [method for method in comparison.methods if method.about.paper in ENTROPY_ROWS]
    return replace(_grid(comparison, title, ENTROPIES, rows, _absolute(setting, 3)), number=3)


def complete_grid(comparison: Comparison, setting: Setting) -> Grid:
    """Table 4, or 5 for another backbone: every method's errors, with the spread over runs."""
    absolute = _absolute(setting, 5)

    def cell(method: MethodScores, metric: Metric, side: str) -> GridCell:
        plain, found = absolute(method, metric, side), method.cells[side, metric.name]
        return GridCell(plain.text, plain.bold, plain.star, _detail(found, metric, method), plain.paper)

    number = 4 if setting.backbone == "resnet18" else 5
    title = f"All methods: {setting.title}"
    names = (*ERRORS, *_asked_for(comparison))
    grid = _grid(comparison, title, names, comparison.methods, cell)
    taught = any(method.about.paper in STUDENTS for method in comparison.methods)
    notes = (*grid.notes, SHARPENED) if taught and PAPER in grid.notes else grid.notes
    return replace(grid, number=number, notes=notes)


def headline_grid(comparison: Comparison, setting: Setting) -> Grid:
    """The errors that matter most, for a first look: no spreads, no counts, no paper."""
    absolute = _absolute(setting, 4)

    def cell(method: MethodScores, metric: Metric, side: str) -> GridCell:
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


def difference_grid(comparison: Comparison, setting: Setting) -> Grid:
    """Each method less the baseline, by the paired bootstrap."""

    def cell(method: MethodScores, metric: Metric, side: str) -> GridCell:
        itself = method.about.name == comparison.baseline
        return GridCell("baseline") if itself else gap_cell(method.cells[side, metric.name].from_baseline)

    against = comparison.baseline and comparison.method(comparison.baseline).about.title
    title = f"Difference from {against}, paired bootstrap over images: {setting.title}"
    return _grid(comparison, title, ERRORS, comparison.methods if against else (), cell)


def best_difference_grid(comparison: Comparison, setting: Setting) -> Grid:
    """Each method less the best of each column, by the paired bootstrap."""

    def cell(method: MethodScores, metric: Metric, side: str) -> GridCell:
        found = method.cells[side, metric.name]
        itself = found.from_best is None and not math.isnan(found.mean)
        return GridCell("best") if itself else gap_cell(found.from_best)

    title = f"Difference from the best of each column, paired bootstrap over images: {setting.title}"
    return _grid(comparison, title, ERRORS, comparison.methods, cell)


def cost_grid(comparison: Comparison, setting: Setting) -> Grid:
    """What each method costs, where it is known."""
    rows: dict[str | None, list[GridRow]] = {None: [], BEYOND: [], CHEATING: []}
    for method in comparison.methods:
        about = method.about
        costs = (about.seconds_training, about.seconds_per_sample, about.parameters)
        if any(cost is not None for cost in costs):
            cells = tuple(GridCell(DASH if cost is None else f"{cost:.4g}") for cost in costs)
            rows[_label(method)].append(GridRow(about.title, _runs(method), cells))
    groups = ("Training, seconds", "Per sample, seconds", "Parameters")
    return Grid(f"Cost: {setting.title}", groups, ("",), _sections(rows))


def _grid(
    comparison: Comparison, title: str, names: Sequence[str], methods: Sequence[MethodScores], cell: CellOf
) -> Grid:
    metrics = [metric for name in names for metric in comparison.metrics if metric.name == name]
    places = [(metric, side) for metric in metrics for side in comparison.sides]
    rows: dict[str | None, list[GridRow]] = {None: [], BEYOND: [], CHEATING: []}
    for method in methods:
        cells = tuple(cell(method, metric, side) for metric, side in places)
        rows[_label(method)].append(GridRow(method.about.title, _runs(method), cells))
    sections = _sections(rows)
    notes = table_notes(
        comparison, methods, metrics, [cell for s in sections for r in s.rows for cell in r.cells]
    )
    return Grid(title, tuple(metric.title for metric in metrics), comparison.sides, sections, notes)


def _sections(rows: Mapping[str | None, Sequence[GridRow]]) -> tuple[Section, ...]:
    return tuple(Section(label, tuple(of_label)) for label, of_label in rows.items() if of_label)


def _absolute(setting: Setting, decimals: int) -> CellOf:
    def cell(method: MethodScores, metric: Metric, side: str) -> GridCell:
        found = method.cells[side, metric.name]
        paper = _paper(setting.paper(method, metric, side), decimals)
        return _marked(found, metric, _number(found.mean, decimals), paper)

    return cell


def _marked(cell: Cell, metric: Metric, text: str, paper: str | None) -> GridCell:
    return GridCell(text, cell.bold, cell.mark is Mark.BEST_UNTESTED, _count(cell, metric), paper)


def _detail(cell: Cell, metric: Metric, method: MethodScores) -> str | None:
    """Standard deviation over runs, k of n of E99, and in how many runs it is defined if not in all."""
    parts = [] if math.isnan(cell.deviation) else [f"±{cell.deviation:.5f}"]
    parts += [count] if (count := _count(cell, metric)) else []
    if cell.defined < len(method.runs):
        parts.append(f"{cell.defined} of {len(method.runs)} runs")
    return ", ".join(parts) or None


def _count(cell: Cell, metric: Metric) -> str | None:
    return "{}/{}".format(*cell.count) if metric.name == "e99" and cell.count else None


def gap_cell(found: Difference | None) -> GridCell:
    """A difference with its interval; bold where that does not hold 0."""
    if found is None or math.isnan(found.value):
        return GridCell(DASH)
    if math.isnan(found.low):
        return GridCell(_signed(found.value))
    apart = found.low > 0 or found.high < 0
    return GridCell(_signed(found.value), apart, detail=f"[{_signed(found.low)}, {_signed(found.high)}]")


def _label(method: MethodScores) -> str | None:
    return CHEATING if method.about.cheating else BEYOND if method.about.beyond else None


def _runs(method: MethodScores) -> str:
    missing = len(method.about.missing)
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
