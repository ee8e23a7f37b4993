"""What every format prints."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A title, column names and rows of text; the first column is a name, the others are numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
