"""The end of a run in the terminal: a short table; of the quickstart, sentences and what to try next."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.evaluation.compare import DECIDING, HEADLINE
from surefoot.evaluation.comparison import Mark, MethodRuns
from surefoot.evaluation.scores import SIDES
from surefoot.report.choice import E99, Choice, cost_sentence, percent_less, shown_methods
from surefoot.report.comparison import STARRED
from surefoot.report.tables import Column, Section, Table, TableCell, distinguishing
from surefoot.text import count_of

if TYPE_CHECKING:  # which needs this module for its page
    from surefoot.report.study import PartReport

FEW = 30  # predictions, of which no error rate is given
FAMILIAR, UNFAMILIAR = SIDES
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
