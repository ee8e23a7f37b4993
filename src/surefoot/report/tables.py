"""Tables, and their writers: terminal, Markdown, LaTeX, CSV, HTML."""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from rich.table import Table as RichTable
from rich.text import Text

from surefoot.evaluation.scores import GROUP_METRICS, Evaluation, GroupScores, Score
from surefoot.predictions.labels import LabelKind


@dataclass(frozen=True)
class Table:
    """A title, column names and rows of text; the first column is a name, the others are numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TableCell:
    """A number as text, and what stands beside it."""

    text: str
    bold: bool = False  # the best, or not significantly worse
    star: bool = False  # the best number, but untested
    detail: str | None = None  # its spread, interval or count
    paper: str | None = None  # the paper's number


@dataclass(frozen=True)
class TableRow:
    """A method, its number of runs, and its cells."""

    name: str
    runs: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class Section:
    """Rows under a rule and, but for the first ones, a label."""

    label: str | None
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class MethodTable:
    """A title, headings of two levels, sections of rows, and notes below."""

    title: str
    groups: tuple[str, ...]  # the upper headings: metrics
    columns: tuple[str, ...]  # the lower ones, the same under each: sides
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    number: int | None = None  # of the paper's table of this form
    names: tuple[str, str] = ("method", "runs")  # the headings of the first two columns

    @property
    def heading(self) -> str:
        """The title with the table's number, for formats that do not count their tables."""
        return self.title if self.number is None else f"Table {self.number}. {self.title}"

    @property
    def headings(self) -> tuple[str, ...]:
        """Both levels in one, for formats that have one."""
        return tuple(f"{group} {column}".strip() for group in self.groups for column in self.columns)


MARKDOWN_SPECIAL = "\\`*_[]|#~"


def grid_rich(grid: MethodTable) -> RichTable:
    """For the terminal; text only, so that no name is read as a style."""
    notes = Text("\n".join(grid.notes))
    shown = RichTable(title=Text(grid.heading), title_justify="left", caption=notes, caption_justify="left")
    shown.add_column(grid.names[0])
    shown.add_column(grid.names[1], justify="right")
    for heading in (f"{group}\n{column}".strip() for group in grid.groups for column in grid.columns):
        shown.add_column(Text(heading), justify="right")
    for section in grid.sections:
        if section.label is not None:
            shown.add_section()
            shown.add_row(Text(section.label, style="italic"))
        for row in section.rows:
            shown.add_row(Text(row.name), Text(row.runs), *(_rich_cell(cell) for cell in row.cells))
    return shown


def _rich_cell(cell: TableCell) -> Text:
    text = Text(cell.text + "*" * cell.star, style="bold" if cell.bold else "")
    if cell.detail:
        text = Text.assemble(text, "\n", (cell.detail, "dim"))
    if cell.paper:
        text = Text.assemble(text, "\n", (f"({cell.paper})", "dim italic"))
    return text


def grids_markdown(grids: Sequence[MethodTable]) -> str:
    """GitHub's tables."""
    return "\n".join(_markdown(grid) for grid in grids)


def _markdown(grid: MethodTable) -> str:
    width = len(grid.headings)
    lines = [f"**{_markdown_text(grid.heading)}**", ""]
    lines.append(_markdown_row((*grid.names, *(_markdown_text(heading) for heading in grid.headings))))
    lines.append("|" + "|".join([":--", *["--:"] * (width + 1)]) + "|")
    for section in grid.sections:
        if section.label is not None:
            lines.append(_markdown_row((f"*{_markdown_text(section.label)}*", *[""] * (width + 1))))
        for row in section.rows:
            cells = (_markdown_cell(cell) for cell in row.cells)
            lines.append(_markdown_row((_markdown_text(row.name), _markdown_text(row.runs), *cells)))
    lines += ["", *(f"- {_markdown_text(note)}" for note in grid.notes), ""]
    return "\n".join(lines)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(cell: TableCell) -> str:
    text = _markdown_text(cell.text)
    parts = [f"**{text}**" if cell.bold else text + r"\*" * cell.star]
    parts += [_markdown_text(cell.detail)] if cell.detail else []
    parts += [f"(paper {_markdown_text(cell.paper)})"] if cell.paper else []
    return " ".join(parts)


def _markdown_text(text: str) -> str:
    html = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ").replace("\r", " ")
    return "".join(f"\\{character}" if character in MARKDOWN_SPECIAL else character for character in html)


def grids_html(grids: Sequence[MethodTable]) -> str:
    """A fragment: a scrolling table and its notes for each grid, everything escaped."""
    return str(Markup("\n").join(_html(grid) for grid in grids))


def _html(grid: MethodTable) -> Markup:
    span = len(grid.columns)
    two_levels = any(grid.columns)
    upper = _join(
        Markup('<th scope="colgroup" colspan="{}">{}</th>').format(span, name) for name in grid.groups
    )
    names = _join(
        Markup('<th scope="col" rowspan="{}">{}</th>').format(1 + two_levels, name) for name in grid.names
    )
    head = Markup("<tr>{}{}</tr>").format(names, upper)
    if two_levels:
        lower = _join(
            Markup('<th scope="col">{}</th>').format(name) for _ in grid.groups for name in grid.columns
        )
        head += Markup("\n<tr>{}</tr>").format(lower)
    bodies = Markup("\n").join(
        Markup("<tbody>\n{}</tbody>").format(_html_section(section.label, grid, index))
        for index, section in enumerate(grid.sections)
    )
    notes = _join(Markup("<li>{}</li>").format(note) for note in grid.notes)
    return Markup(
        '<div class="scroll"><table class="methods">\n<caption>{}</caption>\n'
        "<thead>\n{}\n</thead>\n{}\n</table></div>\n"
        '<ul class="notes">{}</ul>'
    ).format(grid.heading, head, bodies, notes)


def _html_section(label: str | None, grid: MethodTable, index: int) -> Markup:
    lines = Markup("")
    if label is not None:
        width = len(grid.names) + len(grid.headings)
        lines += Markup('<tr class="section"><th colspan="{}">{}</th></tr>\n').format(width, label)
    for row in grid.sections[index].rows:
        cells = _join(_html_cell(cell) for cell in row.cells)
        lines += Markup('<tr><th scope="row">{}</th><td>{}</td>{}</tr>\n').format(row.name, row.runs, cells)
    return lines


def _html_cell(cell: TableCell) -> Markup:
    text = Markup("<strong>{}</strong>").format(cell.text) if cell.bold else escape(cell.text)
    text += Markup("<sup>*</sup>") * cell.star
    for name, more in (("detail", cell.detail), ("paper", cell.paper and f"paper {cell.paper}")):
        if more:
            text += Markup('<br><small class="{}">{}</small>').format(name, more)
    return Markup("<td>{}</td>").format(text)


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


BOUND_SHOWN = 1e-4  # a streamed value that may be off by more says so


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """The main table; then what calibration changed and the worst groups, where there are any."""
    tables = [_main_table(evaluation)]
    if evaluation.change:
        tables.append(_change_table(evaluation))
    if any(scores.groups for scores in evaluation.sides.values()):
        tables.append(_worst_table(evaluation))
    return tables


def text_of(score: Score) -> str:
    """Value, interval, and k of n: `0.0840 [0.0711, 0.0985] 171/2034`; of cells also how far it may be off.

    >>> text_of(Score(0.5, 0.25, 0.75, k=2, n=4))
    '0.5000 [0.2500, 0.7500] 2/4'
    >>> text_of(Score(0.5, bound=0.0004))
    '0.5000 (binned, ± 0.0004)'
    """
    if math.isnan(score.value):
        return "undefined (n = 0)" if score.n == 0 else "undefined"
    parts = [f"{score.value:.4f}"]
    if not math.isnan(score.low):
        parts.append(f"[{score.low:.4f}, {score.high:.4f}]")
    if score.n is not None:
        parts.append(f"{score.k}/{score.n}")
    if score.bound is not None and not score.bound <= BOUND_SHOWN:
        parts.append("(binned)" if math.isnan(score.bound) else f"(binned, ± {score.bound:.1g})")
    return " ".join(parts)


def signed_text_of(score: Score) -> str:
    """A difference, with its sign."""
    if math.isnan(score.value):
        return "undefined"
    ends = "" if math.isnan(score.low) else f" [{_signed(score.low)}, {_signed(score.high)}]"
    return f"{_signed(score.value)}{ends}"


def _signed(value: float) -> str:
    return f"{round(value, 4) + 0.0:+.4f}"  # adding 0 turns a rounded -0.0 into +0.0


def _main_table(evaluation: Evaluation) -> Table:
    sides = evaluation.sides
    header = ["metric", *(f"{side} (n = {scores.n:,})" for side, scores in sides.items())]
    rows = []
    for metric in evaluation.metrics:
        row = [metric.title, *(text_of(scores.metrics[metric.name]) for scores in sides.values())]
        rows.append((*row, signed_text_of(evaluation.gap[metric.name])) if evaluation.gap else tuple(row))
    one = next(iter(sides.values()))
    kind = "one label" if one.kind is LabelKind.ONE_LABEL else "many labels"
    members = "" if one.members == 1 else f", mean of {one.members} members"
    what = "Calibrated predictions" if evaluation.change else "Predictions as given"
    title = f"{what}: {kind}, {one.classes} classes{members}"
    return Table(title, (*header, "gap") if evaluation.gap else tuple(header), tuple(rows))


def _change_table(evaluation: Evaluation) -> Table:
    header = ["metric"]
    for side in evaluation.change:
        header += [f"{side} before", f"{side} change"]
    rows = []
    for metric in evaluation.metrics:
        row = [metric.title]
        for side, change in evaluation.change.items():
            before = evaluation.uncalibrated[side].metrics[metric.name].value
            row += [text_of(Score(before)), signed_text_of(change[metric.name])]
        rows.append(tuple(row))
    return Table("What calibration changed (paired intervals)", tuple(header), tuple(rows))


def _worst_table(evaluation: Evaluation) -> Table:
    rows = []
    for metric in evaluation.metrics:
        if metric.name in GROUP_METRICS:
            row = [metric.title]
            for scores in evaluation.sides.values():
                worst = scores.worst(metric.name)
                row.append("none" if worst is None else _worst_text(worst, metric.name))
            rows.append(tuple(row))
    counts = (f"{side} ({len(scores.groups)} groups)" for side, scores in evaluation.sides.items())
    return Table("Worst group", ("metric", *counts), tuple(rows))


def _worst_text(worst: GroupScores, name: str) -> str:
    return f"{text_of(worst.metrics[name])} in {worst.group} (n = {worst.n})"


def to_markdown(tables: list[Table]) -> str:
    """GitHub's tables."""
    lines = []
    for table in tables:
        lines += [f"**{table.title}**", "", _table_markdown_row(table.header)]
        lines.append("|" + "|".join([":--", *["--:"] * (len(table.header) - 1)]) + "|")
        lines += [*(_table_markdown_row(row) for row in table.rows), ""]
    return "\n".join(lines)


def _table_markdown_row(cells: tuple[str, ...]) -> str:
    escaped = (cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in cells)
    return "| " + " | ".join(escaped) + " |"


def to_latex(tables: list[Table]) -> str:
    """booktabs tables."""
    lines = []
    for table in tables:
        lines += [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(table.title)}}}"]
        lines.append(rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}")
        lines += [r"\toprule", _latex_row(table.header), r"\midrule"]
        lines += [_latex_row(row) for row in table.rows]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def _latex_row(cells: tuple[str, ...]) -> str:
    # A cell that begins with '[' would be read as an option of the '\\' before it.
    escaped = (latex_text(cell) for cell in cells)
    return " & ".join(f"{{}}{cell}" if cell.startswith("[") else cell for cell in escaped) + r" \\"


def latex_text(text: str) -> str:
    """Text with whatever LaTeX would read as a command escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " ", "\r": " "}
    special |= {"\u2013": "--", "\u00b1": r"$\pm$"}
    return "".join(special.get(character, character) for character in text)


def to_csv(evaluation: Evaluation) -> str:
    """Long and numeric: a line per metric and part, empty where undefined."""
    parts: dict[str, Mapping[str, Score]] = {s: scores.metrics for s, scores in evaluation.sides.items()}
    parts |= {"gap": evaluation.gap} if evaluation.gap else {}
    parts |= {f"{side} uncalibrated": scores.metrics for side, scores in evaluation.uncalibrated.items()}
    parts |= {f"{side} change": scores for side, scores in evaluation.change.items()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("metric", "part", "value", "low", "high", "k", "n"))
    for metric in evaluation.metrics:
        for part, scores in parts.items():
            score = scores[metric.name]
            numbers = ("" if math.isnan(v) else repr(v) for v in (score.value, score.low, score.high))
            k, n = ("" if count is None else count for count in (score.k, score.n))
            writer.writerow((metric.name, part, *numbers, k, n))
    return out.getvalue()


def grids_latex(grids: Sequence[MethodTable]) -> str:
    """One table environment for each grid."""
    return "\n".join(line for grid in grids for line in (*_table(grid), ""))


def _table(grid: MethodTable) -> Iterator[str]:
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


def _headings(grid: MethodTable) -> Iterator[str]:
    span = len(grid.columns)
    yield _line("", "", *(rf"\multicolumn{{{span}}}{{c}}{{{latex_text(group)}}}" for group in grid.groups))
    starts = range(3, 3 + span * len(grid.groups), span)
    if any(grid.columns):
        yield " ".join(rf"\cmidrule(lr){{{start}-{start + span - 1}}}" for start in starts)
    yield _line(*grid.names, *(latex_text(column) for _ in grid.groups for column in grid.columns))


def _rows(row: TableRow) -> Iterator[str]:
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


def _number(cell: TableCell) -> str:
    text = _minus(cell.text) + "$^{*}$" * cell.star
    return rf"\textbf{{{text}}}" if cell.bold else text


def _minus(text: str) -> str:
    """Escaped, with minus signs for the hyphens before numbers."""
    return re.sub(r"(^|\[|, )-(?!-)", r"\1$-$", latex_text(text))


def _line(*cells: str) -> str:
    # A line that begins with '[' or '*' would be read as an option of the '\\' before it.
    text = " & ".join(cells)
    return ("{}" if text[:1] in ("[", "*") else "") + text + r" \\"
