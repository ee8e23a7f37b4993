"""Grids for the terminal, as Markdown and as an HTML fragment."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape
from rich.table import Table as RichTable
from rich.text import Text

from surefoot.report.grid import Grid, GridCell

MARKDOWN_SPECIAL = "\\`*_[]|#~"


def grid_rich(grid: Grid) -> RichTable:
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


def _rich_cell(cell: GridCell) -> Text:
    text = Text(cell.text + "*" * cell.star, style="bold" if cell.bold else "")
    if cell.detail:
        text = Text.assemble(text, "\n", (cell.detail, "dim"))
    if cell.paper:
        text = Text.assemble(text, "\n", (f"({cell.paper})", "dim italic"))
    return text


def grids_markdown(grids: Sequence[Grid]) -> str:
    """GitHub's tables."""
    return "\n".join(_markdown(grid) for grid in grids)


def _markdown(grid: Grid) -> str:
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


def _markdown_cell(cell: GridCell) -> str:
    text = _markdown_text(cell.text)
    parts = [f"**{text}**" if cell.bold else text + r"\*" * cell.star]
    parts += [_markdown_text(cell.detail)] if cell.detail else []
    parts += [f"(paper {_markdown_text(cell.paper)})"] if cell.paper else []
    return " ".join(parts)


def _markdown_text(text: str) -> str:
    html = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ").replace("\r", " ")
    return "".join(f"\\{character}" if character in MARKDOWN_SPECIAL else character for character in html)


def grids_html(grids: Sequence[Grid]) -> str:
    """A fragment: a scrolling table and its notes for each grid, everything escaped."""
    return str(Markup("\n").join(_html(grid) for grid in grids))


def _html(grid: Grid) -> Markup:
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


def _html_section(label: str | None, grid: Grid, index: int) -> Markup:
    lines = Markup("")
    if label is not None:
        width = len(grid.names) + len(grid.headings)
        lines += Markup('<tr class="section"><th colspan="{}">{}</th></tr>\n').format(width, label)
    for row in grid.sections[index].rows:
        cells = _join(_html_cell(cell) for cell in row.cells)
        lines += Markup('<tr><th scope="row">{}</th><td>{}</td>{}</tr>\n').format(row.name, row.runs, cells)
    return lines


def _html_cell(cell: GridCell) -> Markup:
    text = Markup("<strong>{}</strong>").format(cell.text) if cell.bold else escape(cell.text)
    text += Markup("<sup>*</sup>") * cell.star
    for name, more in (("detail", cell.detail), ("paper", cell.paper and f"paper {cell.paper}")):
        if more:
            text += Markup('<br><small class="{}">{}</small>').format(name, more)
    return Markup("<td>{}</td>").format(text)


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)
