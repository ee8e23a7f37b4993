"""What every result can do: print itself, show itself in a notebook, become a frame, a report or a plot."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.predictions.arguments import checked

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


class Result:
    """A mix-in for results; `surefoot.report.views` knows how each type looks.

    It is imported when a result is looked at: results are made below the reports, and without matplotlib.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]  # else `dataclass` writes its own

    def __repr__(self) -> str:
        return str(self._view().text())

    def _repr_html_(self) -> str:
        return str(self._view().html())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; undefined numbers are None."""
        document: dict[str, Any] = self._view().document()
        return document

    def to_frame(self) -> "pandas.DataFrame":
        """Every number as a pandas DataFrame, in long form; undefined numbers are NaN."""
        return self._view().frame()

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw on these axes, or on a new figure, and return the axes."""
        axes: Axes = self._view().plot(ax)
        return axes

    @checked
    def save_report(self, folder: str | Path) -> Path:
        """Write `report.html`, one self-contained page, and `report.json` into a folder; the page's path."""
        page: Path = self._view().save(Path(folder))
        return page

    def _view(self) -> Any:
        return import_module("surefoot.report.views").view_of(self)
