"""Grids as booktabs tables; they need \\usepackage{booktabs} and nothing else."""

import re
from collections.abc import Iterator, Sequence

from surefoot.report.grid import Grid, GridCell, GridRow
from surefoot.report.tables import latex_text


def grids_latex(grids: Sequence[Grid]) -> str:
    """One table environment for each grid."""
    return "\n".join(line for grid in grids for line in (*_table(grid), ""))


def _table(grid: Grid) -> Iterator[str]:
    width = len(grid.headings)
    yield from (r"\begin{table*}", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{3.5pt}")
    yield rf"\caption{{{latex_text(grid.title)}}}"
    yield rf"\begin{{tabular}}{{lr{'r' * width}}}"
    yield r"\toprule"
    yield from _headings(grid)
    for section in grid.sections:
        yield r"\midrule"
        if section.label is not None:
            yield rf"\multicolumn{{{width + 2}}}{{l}}{{\emph{{{latex_text(section.label)}}}}} \\"
        for row in section.rows:
            yield from _rows(row)
    yield from (r"\bottomrule", r"\end{tabular}")
    for note in grid.notes:
        yield rf"\par\smallskip {latex_text(note)}"
    yield r"\end{table*}"


def _headings(grid: Grid) -> Iterator[str]:
    span = len(grid.columns)
    yield _line("", "", *(rf"\multicolumn{{{span}}}{{c}}{{{latex_text(group)}}}" for group in grid.groups))
    starts = range(3, 3 + span * len(grid.groups), span)
    if any(grid.columns):
        yield " ".join(rf"\cmidrule(lr){{{start}-{start + span - 1}}}" for start in starts)
    yield _line(*grid.names, *(latex_text(column) for _ in grid.groups for column in grid.columns))


def _rows(row: GridRow) -> Iterator[str]:
    """The numbers; below them, smaller, their details and the paper's numbers, where there are any."""
    yield _line(latex_text(row.name), latex_text(row.runs), *(_number(cell) for cell in row.cells))
    for label, values in (
        ("", [cell.detail for cell in row.cells]),
        (r"{\scriptsize\quad paper}", [cell.paper for cell in row.cells]),
    ):
        if any(values):
            yield _line(
                label, "", *(rf"{{\scriptsize {_minus(value)}}}" if value else "" for value in values)
            )


def _number(cell: GridCell) -> str:
    text = _minus(cell.text) + "$^{*}$" * cell.star
    return rf"\textbf{{{text}}}" if cell.bold else text


def _minus(text: str) -> str:
    """Escaped, with minus signs for the hyphens before numbers."""
    return re.sub(r"(^|\[|, )-(?!-)", r"\1$-$", latex_text(text))


def _line(*cells: str) -> str:
    # A line that begins with '[' or '*' would be read as an option of the '\\' before it.
    text = " & ".join(cells)
    return ("{}" if text[:1] in ("[", "*") else "") + text + r" \\"
