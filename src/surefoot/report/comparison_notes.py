"""What must be said below a table of methods, so that nobody reads more into it than is there."""

import math
from collections.abc import Iterable, Sequence

from surefoot.comparison import Cell, Comparison, Mark, MethodScores
from surefoot.metrics import Metric
from surefoot.report.grid import GridCell

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
    methods: Sequence[MethodScores],
    metrics: Sequence[Metric],
    cells: Sequence[GridCell],
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
    comparison: Comparison, methods: Sequence[MethodScores], metrics: Sequence[Metric]
) -> Iterable[str]:
    """Who is not bold for want of a test, and not for being worse."""
    places = [(side, m.name) for m in metrics if m.better in ("lower", "higher") for side in comparison.sides]
    competing = [method for method in methods if not method.about.cheating]
    names = [m.about.title for m in competing if any(_is_untested(m.cells[place]) for place in places)]
    if len(names) == len(competing) > 3:
        yield "No method is tested everywhere, for want of runs."
    elif names:
        yield f"Not tested everywhere, for want of runs: {', '.join(names)}."


def _is_untested(cell: Cell) -> bool:
    return cell.mark is Mark.UNTESTED and not math.isnan(cell.mean)


def _fewer_runs(
    comparison: Comparison, methods: Sequence[MethodScores], metrics: Sequence[Metric]
) -> Iterable[str]:
    """Which intervals were made from some of the runs only, to stay quick."""
    for metric in metrics:
        cells = [method.cells[side, metric.name] for method in methods for side in comparison.sides]
        found = [gap for cell in cells for gap in (cell.from_baseline, cell.from_best) if gap is not None]
        cut = [gap for gap in found if gap.resampled < gap.pairs]
        if cut:
            fewest = min(gap.resampled for gap in cut)
            yield f"{metric.title}: the values rest on all runs, the intervals on as few as {fewest} of them."


def _borrowed(comparison: Comparison, methods: Sequence[MethodScores]) -> Iterable[str]:
    for method in methods:
        lender = next((cell.borrowed for cell in method.cells.values() if cell.borrowed), None)
        if lender is not None:
            title = comparison.method(lender).about.title
            yield f"{method.about.title} was run once; its variance is that of {title}, as in the paper."


def _missing(methods: Sequence[MethodScores]) -> Iterable[str]:
    for method in methods:
        missing = method.about.missing
        if missing:
            yield f"{method.about.title}: {len(missing)} missing, not averaged in: {', '.join(missing)}."
