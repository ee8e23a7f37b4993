"""One type of table, and its writers: Markdown, LaTeX and HTML; plain text is in table_text."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from surefoot.text import DASH, csv_text, exact_text, visible

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class TableCell:
    """A text or a number as text, with its marks and additions."""

    text: str
    bold: bool = False  # the best, or not significantly worse
    star: bool = False  # the best number, but untested
    detail: str | None = None  # its spread, interval or count
    paper: str | None = None  # the paper's number


Row = tuple[TableCell, ...]


@dataclass(frozen=True)
class Column:
    """A column's heading; neighbouring columns of the same group share a heading above it."""

    name: str
    group: str = ""
    align: Literal["left", "right"] = "right"

    @property
    def heading(self) -> str:
        """Both levels in one, for formats that have one."""
        return f"{self.group} {self.name}".strip()


@dataclass(frozen=True)
class Section:
    """Rows under a rule and, except for the first section, a label."""

    label: str | None
    rows: tuple[Row, ...]

    @staticmethod
    def of_text(label: str | None, rows: Iterable[Sequence[str]]) -> "Section":
        """Rows of plain text."""
        return Section(label, tuple(tuple(map(TableCell, row)) for row in rows))


@dataclass(frozen=True)
class Table:
    """A title, columns with headings of one or two levels, sections of rows, and notes below."""

    title: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    number: int | None = None  # of the paper's table of the same form

    @staticmethod
    def of_text(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
        """A table of plain text: the first column is a name, columns of numbers are aligned to the right."""
        texts = [tuple(row) for row in rows]
        columns = tuple(
            Column(
                name, align="right" if index and all(NUMERIC.match(row[index]) for row in texts) else "left"
            )
            for index, name in enumerate(header)
        )
        return Table(title, columns, (Section.of_text(None, texts),))

    def select(self, *headings: str) -> "Table":
        """The same with the columns of these headings only."""
        return self.at([self.header.index(heading) for heading in headings])

    def at(self, places: Sequence[int]) -> "Table":
        """The same with the columns at these places only."""
        sections = tuple(
            replace(section, rows=tuple(tuple(row[place] for place in places) for row in section.rows))
            for section in self.sections
        )
        return replace(self, columns=tuple(self.columns[place] for place in places), sections=sections)

    @property
    def heading(self) -> str:
        """The title with the table's number, for formats that do not number tables themselves."""
        return self.title if self.number is None else f"Table {self.number}. {self.title}"

    @property
    def header(self) -> tuple[str, ...]:
        """The headings, both levels in one."""
        return tuple(column.heading for column in self.columns)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all sections."""
        return tuple(row for section in self.sections for row in section.rows)

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """The upper headings, each with the number of columns below it; '' above an ungrouped column."""
        groups: list[tuple[str, int]] = []
        for group, columns in groupby(self.columns, key=lambda column: column.group):
            count = len(list(columns))
            groups += [(group, count)] if group else [("", 1)] * count
        return tuple(groups)

    @property
    def has_groups(self) -> bool:
        """Whether there are headings of two levels."""
        return any(column.group for column in self.columns)


# What a cell of a column of numbers begins with, or is.
NUMERIC = re.compile(r"\[?[-+<±]? ?\d|(?:undefined|none|-|\N{EN DASH}|)(?: |$)")
MARKDOWN_SPECIAL = "\\`*_|#~"
LATEX_SPECIAL = (
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {character: f"\\{character}" for character in "&%$#_{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {"\N{EN DASH}": "--", "±": r"$\pm$"}
)
NARROW = 5  # columns that fit into one column of a two-column paper
UNMARKED = "more than half of the methods are the best or not significantly worse, so none is marked."


def distinguishing(table: Table) -> Table:
    """Bold only in columns where at most half of the cells are; a note names the others."""
    common = [
        index
        for index in range(len(table.columns))
        if 2 * sum(row[index].bold for row in table.rows) > len(table.rows)
    ]
    if not common:
        return table
    sections = tuple(
        replace(section, rows=tuple(_without_bold(row, common) for row in section.rows))
        for section in table.sections
    )
    if not any(cell.bold for section in sections for row in section.rows for cell in row):
        notes = tuple(note for note in table.notes if not note.startswith("Bold: "))
        return replace(table, sections=sections, notes=(*notes, UNMARKED[0].upper() + UNMARKED[1:]))
    names = ", ".join(table.columns[index].heading for index in common)
    return replace(table, sections=sections, notes=(*table.notes, f"{names}: {UNMARKED}"))


def _without_bold(row: Row, columns: Sequence[int]) -> Row:
    return tuple(replace(cell, bold=cell.bold and index not in columns) for index, cell in enumerate(row))


def rows_csv(header: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV, numbers in full precision; empty where undefined."""

    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else exact_text(value)

    return csv_text(header, ([shown(row[name]) for name in header] for row in rows))


def to_markdown(tables: Sequence[Table]) -> str:
    """GitHub's tables."""
    lines = []
    for table in tables:
        lines += [f"**{_markdown_text(table.heading)}**", ""]
        lines.append(_markdown_row(_markdown_text(heading) for heading in table.header))
        rules = {"left": ":--", "right": "--:"}
        lines.append("|" + "|".join(rules[column.align] for column in table.columns) + "|")
        for section in table.sections:
            if section.label is not None:
                lines.append(
                    _markdown_row([f"*{_markdown_text(section.label)}*", *[""] * (len(table.columns) - 1)])
                )
            lines += [_markdown_row(_markdown_cell(cell) for cell in row) for row in section.rows]
        lines += ["", *(f"- {_markdown_text(note)}" for note in table.notes), ""] if table.notes else [""]
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
    html = visible(html)
    escaped = "".join(f"\\{character}" if character in MARKDOWN_SPECIAL else character for character in html)
    return escaped.replace("](", r"]\(")  # brackets alone are no link


def to_latex(tables: Sequence[Table]) -> str:
    """booktabs tables; those with many columns span the page."""
    return "\n".join(line for table in tables for line in (*_latex(table), ""))


def _latex(table: Table) -> Iterator[str]:
    wide = table.has_groups or len(table.columns) > NARROW
    environment = "table*" if wide else "table"
    yield from (rf"\begin{{{environment}}}", r"\centering")
    if wide:
        yield from (r"\footnotesize", r"\setlength{\tabcolsep}{3.5pt}")
    yield rf"\caption{{{latex_text(table.title)}}}"
    yield rf"\begin{{tabular}}{{{''.join(column.align[0] for column in table.columns)}}}"
    yield r"\toprule"
    if table.has_groups:
        cells, rules, start = [], [], 1
        for group, count in table.groups:
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{latex_text(group)}}}" if group else "")
            if group:
                rules.append(rf"\cmidrule(lr){{{start}-{start + count - 1}}}")
            start += count
        yield from (_latex_row(cells), " ".join(rules))
    yield _latex_row(latex_text(column.name) for column in table.columns)
    for section in table.sections:
        yield r"\midrule"
        if section.label is not None:
            label = latex_text(section.label)
            yield rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\emph{{{label}}}}} \\"
        for row in section.rows:
            yield from _latex_lines(row)
    yield from (r"\bottomrule", r"\end{tabular}")
    for note in table.notes:
        yield rf"\par\smallskip {latex_text(note)}"
    yield rf"\end{{{environment}}}"


def _latex_lines(row: Row) -> Iterator[str]:
    """The cells; below them, smaller, their details and the paper's numbers, where there are any."""
    texts = [_latex_number(cell.text) + "$^{*}$" * cell.star for cell in row]
    yield _latex_row(
        rf"\textbf{{{text}}}" if cell.bold else text for cell, text in zip(row, texts, strict=True)
    )
    for label, values in (
        ("", [cell.detail for cell in row[1:]]),
        (r"{\scriptsize\quad paper}", [cell.paper for cell in row[1:]]),
    ):
        if any(values):
            small = (rf"{{\scriptsize {_latex_number(value)}}}" if value else "" for value in values)
            yield _latex_row([label, *small])


def _latex_number(text: str) -> str:
    """Escaped, with minus signs for the hyphens before numbers."""
    return re.sub(r"(^|\[|, )-(?=\.?\d)", r"\1$-$", latex_text(text))


def _latex_row(cells: Iterable[str]) -> str:
    # A line that begins with '[' or '*' would be read as an option of the '\\' before it.
    return " & ".join(f"{{}}{cell}" if cell[:1] in ("[", "*") else cell for cell in cells) + r" \\"


def latex_text(text: str) -> str:
    """Text with everything escaped that LaTeX would read as a command."""
    plain = visible(text.replace("\n", " ").replace("\r", " "))
    return "".join(LATEX_SPECIAL.get(character, character) for character in plain)


def to_html(tables: Sequence[Table], css_class: str = "methods") -> Markup:
    """A fragment: a scrolling table and its notes for each, everything escaped."""
    return Markup(_html_template().render(tables=tables, css_class=css_class, dash=DASH))


@cache
def _html_template() -> "Template":
    from surefoot.pages import template_named  # terminal tables need no templates

    return template_named("tables.html")
