"""A table of methods that every format prints: metrics across, a column for each side under each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GridCell:
    """A number as text, and what stands beside it."""

    text: str
    bold: bool = False  # the best, or not significantly worse
    star: bool = False  # the best number, but untested
    detail: str | None = None  # its spread, interval or count
    paper: str | None = None  # the paper's number


@dataclass(frozen=True)
class GridRow:
    """A method, its number of runs, and its cells."""

    name: str
    runs: str
    cells: tuple[GridCell, ...]


@dataclass(frozen=True)
class Section:
    """Rows under a rule and, but for the first ones, a label."""

    label: str | None
    rows: tuple[GridRow, ...]


@dataclass(frozen=True)
class Grid:
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
