"""A table as lines of text that fit the width: long texts wrap, and what is still too wide follows below."""

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.cells import cell_len

from surefoot.report.tables import Table, TableCell
from surefoot.text import visible

if TYPE_CHECKING:
    from rich.text import Text

LINE = 80  # characters of plain text
GAP = 2  # between columns
LONGEST = 32  # a longer word may be broken
READABLE = 16  # text is not wrapped to less
INDENT = 2  # of the lines after the first of a text, so that they do not look like rows of their own
WORD = re.compile(r"\[[^\]]{,30}\]\S*|\S+")  # an interval is not broken

Piece = tuple[str, str]  # text and its style
Parts = Callable[[TableCell], Sequence[Piece]]  # the parts of a cell, one below the other


def to_text(table: Table, width: int = LINE) -> list[str]:
    """Lines of plain text; a bold cell has an asterisk, an untested best number one in parentheses."""
    fits = sum(_natural(table, _in_a_line)) + GAP * (len(table.columns) - 1) <= width
    lines = _lines(table, _in_a_line if fits else _stacked, width, "-")
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def to_terminal(table: Table, width: int) -> "Text":
    """Lines with bold numbers and dim details; as Text, so that no name is read as a style."""
    from rich.text import Text

    lines = _lines(table, _styled, width, "─")
    return Text("\n").join(Text.assemble(*line) for line in lines)


def notes_text(table: Table) -> list[str]:
    """The notes of a table as lines of plain text, where other marks stand for bold and for the asterisk."""
    notes = [re.sub(r"^\*: ", "(*): ", visible(note)) for note in table.notes]
    return [line for note in notes for line in textwrap.wrap(re.sub("^Bold: ", "*: ", note), LINE)]


def _marked(cell: TableCell) -> str:
    return visible(cell.text) + "*" * cell.bold + "(*)" * cell.star


def _in_a_line(cell: TableCell) -> Sequence[Piece]:
    return [(f"{_marked(cell)} {visible(cell.detail)}" if cell.detail else _marked(cell), "")]


def _stacked(cell: TableCell) -> Sequence[Piece]:
    return [(_marked(cell), ""), *([(visible(cell.detail), "")] if cell.detail else [])]


def _styled(cell: TableCell) -> Sequence[Piece]:
    pieces = [(visible(cell.text) + "*" * cell.star, "bold" if cell.bold else "")]
    pieces += [(visible(cell.detail), "dim")] if cell.detail else []
    return pieces + ([(f"({visible(cell.paper)})", "dim italic")] if cell.paper else [])


def _lines(table: Table, parts: Parts, width: int, rule: str) -> Iterator[list[Piece]]:
    """The title, and the columns; those that do not fit follow below, with the first column again."""
    if table.title:
        yield from ([(line, "italic")] for line in textwrap.wrap(visible(table.heading), width))
    for number, block in enumerate(_blocks(table, parts, width)):
        if number:
            yield []
        yield from _block_lines(block, parts, width, rule)


def _blocks(table: Table, parts: Parts, width: int) -> list[Table]:
    """The table, or several whose columns fit."""
    least = _least(table, parts)
    places: list[list[int]] = [[0]]
    for _, (first, after) in spans(table):
        added = [place for place in range(first, after) if place]
        needed = [*places[-1], *added]
        if len(places[-1]) > 1 and sum(least[place] + GAP for place in needed) - GAP > width:
            places.append([0])
        places[-1] += added
    return [table.at(selected) for selected in places]


def _block_lines(table: Table, parts: Parts, width: int, rule: str) -> Iterator[list[Piece]]:
    widths = _widths(table, parts, width)

    def padded(place: int, text: str) -> str:
        space = " " * max(0, widths[place] - cell_len(text))
        return text + space if table.columns[place].align == "left" else space + text

    def lines(cells: Sequence[Sequence[Piece]]) -> Iterator[list[Piece]]:
        for line in zip_longest(*cells, fillvalue=("", "")):
            texts = [(padded(place, text), style) for place, (text, style) in enumerate(line)]
            yield [piece for text in texts for piece in (text, (" " * GAP, ""))][:-1]

    if table.has_groups:
        upper = ""
        for group, (first, after) in spans(table):
            start = sum(widths[:first]) + GAP * first
            space = " " * max(0, sum(widths[first:after]) + GAP * (after - first - 1) - cell_len(group))
            left = table.columns[first].align == "left"
            upper = upper + " " * (start - cell_len(upper)) + (group + space if left else space + group)
        yield [(upper, "bold")]
    heads = [_wrapped(visible(column.name), widths[i]) for i, column in enumerate(table.columns)]
    tallest = max(map(len, heads))
    yield from lines(
        [[("", "")] * (tallest - len(head)) + [(line, "bold") for line in head] for head in heads]
    )
    yield [((" " * GAP).join(rule * each for each in widths), "")]
    for section in table.sections:
        if section.label:
            yield from ([(line, "italic")] for line in textwrap.wrap(visible(section.label), width))
        for row in section.rows:
            yield from lines(
                [
                    [
                        (line, style)
                        for text, style in parts(cell)
                        for line in _wrapped(text, widths[place], _indent(table, place))
                    ]
                    for place, cell in enumerate(row)
                ]
            )


def spans(table: Table) -> Iterator[tuple[str, tuple[int, int]]]:
    """The upper headings, each with its first column and the one after its last."""
    start = 0
    for group, count in table.groups:
        yield visible(group), (start, start + count)
        start += count


def _with_groups(table: Table, widths: list[int]) -> list[int]:
    """The widths, with the last column of a group so wide that the upper heading fits."""
    for group, (first, after) in spans(table):
        widths[after - 1] += max(0, cell_len(group) - sum(widths[first:after]) - GAP * (after - first - 1))
    return widths


def _texts(table: Table, parts: Parts) -> Iterator[list[str]]:
    """Per column, the heading and the parts of the cells."""
    for place, column in enumerate(table.columns):
        yield [visible(column.name), *(text for row in table.rows for text, _ in parts(row[place]))]


def _natural(table: Table, parts: Parts) -> list[int]:
    return _with_groups(table, [max(map(cell_len, texts)) for texts in _texts(table, parts)])


def _least(table: Table, parts: Parts) -> list[int]:
    """The widths at which only words of more than LONGEST characters are broken, and texts can be read."""
    least = []
    for column, texts in zip(table.columns, _texts(table, parts), strict=True):
        word = max((cell_len(word) for text in texts for word in WORD.findall(text)), default=0)
        readable = min(READABLE, max(map(cell_len, texts))) if column.align == "left" else 0
        least.append(max(min(LONGEST, word), readable))
    return _with_groups(table, least)


def _widths(table: Table, parts: Parts, width: int) -> list[int]:
    """The natural widths, the widest reduced until the line fits or no text can wrap."""
    widths, least = _natural(table, parts), _least(table, parts)
    too_much = sum(widths) + GAP * (len(widths) - 1) - width
    while too_much > 0 and (wraps := [place for place, each in enumerate(widths) if each > least[place]]):
        widest, *others = sorted((widths[place] for place in wraps), reverse=True)
        place = next(place for place in wraps if widths[place] == widest)
        step = min(too_much, widest - least[place], max(1, widest - max(others, default=0)))
        widths[place], too_much = widest - step, too_much - step
    tight = [
        max(cell_len(line) for text in texts for line in _wrapped(text, widths[place], _indent(table, place)))
        for place, texts in enumerate(_texts(table, parts))
    ]
    return _with_groups(table, tight)


def _indent(table: Table, place: int) -> int:
    return INDENT if table.columns[place].align == "left" else 0


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of whole words, all but the first indented; a word longer than the line is broken."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in WORD.findall(text):
        if lines[-1].strip() and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1].strip():
            lines.append(" " * indent)
        for character in word:
            if cell_len(lines[-1] + character) > width:
                lines.append(" " * indent)
            lines[-1] += character
    return lines
