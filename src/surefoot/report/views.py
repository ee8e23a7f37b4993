"""How a result looks: as text, HTML, a frame, plain values, a plot and a page; and who knows that of each."""

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from matplotlib.axes import Axes

from surefoot import __version__
from surefoot.errors import InputError
from surefoot.intervals import NAN
from surefoot.io import all_or_none, make_folder, replacing
from surefoot.pages import template_named
from surefoot.report.style import WIDTH, drawn_svg, side_style
from surefoot.report.table_text import to_text
from surefoot.report.tables import Table, to_html
from surefoot.results import Result
from surefoot.text import count_of, visible, without_controls

if TYPE_CHECKING:
    import pandas

VIEWS = {  # of the type of a result: the module in this folder, and its function that makes the view
    "Evaluation": "evaluation:evaluation_view",
    "Calibration": "calibration:calibration_view",
    "Thresholds": "thresholds:thresholds_view",
    "Unreachable": "thresholds:unreachable_view",
    "Sets": "sets:sets_view",
    "Check": "monitor:check_view",
    "ExperimentChange": "change:change_view",
    "Study": "study:study_view",
}
MOST_LINES = 38  # of a result as text, besides one that says what is left out
LINE = 100  # characters of a sentence per line
CSS = """
.surefoot { font-size: 0.9rem; line-height: 1.4; }
.surefoot p { margin: 0.2em 0; max-width: 60em; }
.surefoot p.title { font-weight: 600; }
.surefoot .scroll { overflow: auto; max-height: 40em; margin: 0.6em 0; }
.surefoot table { border-collapse: collapse; font-size: inherit; font-variant-numeric: tabular-nums; }
.surefoot caption { text-align: left; font-weight: 600; padding: 0.3em 0; white-space: nowrap; }
.surefoot th, .surefoot td { padding: 0.2em 0.8em; border: 0; text-align: right; white-space: nowrap; }
.surefoot thead th[colspan]:not([colspan="1"]) { text-align: center; }
.surefoot tr:first-child th:first-child, .surefoot tbody th, .surefoot .left { text-align: left; }
.surefoot tbody th { font-weight: 400; }
.surefoot thead th { border-bottom: 1px solid rgba(128, 128, 128, 0.6); font-weight: 600; }
.surefoot tbody tr + tr th, .surefoot tbody tr + tr td { border-top: 1px solid rgba(128, 128, 128, 0.18); }
.surefoot small, .surefoot .notes { opacity: 0.75; }
.surefoot .notes { list-style: none; margin: 0.4em 0; padding: 0; max-width: 60em; }
"""


@dataclass(frozen=True, eq=False)
class View:
    """One result: its verdict and tables, and functions for what takes longer."""

    title: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    rows: Callable[[], Iterable[dict[str, Any]]]  # of the frame
    document: Callable[[], dict[str, Any]]
    plot: Callable[[Axes | None], Axes]
    write: Callable[[Path], Path] | None = None  # the type's own page, where it has one

    def text(self) -> str:
        """The title, the verdict and the tables in less than 40 lines."""
        lines = [self.title]
        for sentence in self.sentences:
            lines += textwrap.wrap(visible(sentence), LINE)
        left_out = 0
        for table in self.tables:
            written = ["", *to_text(table)]
            if lines[1:] and len(lines) + len(written) >= MOST_LINES and table is not self.tables[0]:
                left_out += 1  # a whole table, rather than its first lines
            else:
                lines += written
        if len(lines) >= MOST_LINES:
            lines = [*lines[: MOST_LINES - 1], "..."]
        if left_out or lines[-1] == "...":
            tables = f"{count_of(left_out, 'more table')}; " if left_out else ""
            lines.append(f"{tables}to_frame() has every number")
        return "\n".join(lines)

    def html(self) -> str:
        """A fragment for notebooks; everything that came from the user is escaped."""
        sentences = Markup("").join(Markup("<p>{}</p>").format(each) for each in self.sentences)
        fragment = Markup('<div class="surefoot"><style>{}</style><p class="title">{}</p>{}{}</div>').format(
            Markup(CSS), self.title, sentences, to_html(self.tables, "result")
        )
        return without_controls(fragment)

    def frame(self) -> "pandas.DataFrame":
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_frame needs pandas; install it with: pip install pandas") from error
        rows = ({name: NAN if value is None else value for name, value in row.items()} for row in self.rows())
        return pandas.DataFrame(rows)

    def save(self, folder: Path) -> Path:
        """Write the page and the JSON document."""
        if self.write is not None:
            return self.write(folder)
        style = side_style("familiar", "unfamiliar") | {"font.size": 9}
        svg = drawn_svg("result", self.title, style, self.plot, size=(WIDTH, 3.8))
        page = template_named("result.html").render(
            title=self.title,
            verdict=self.sentences,
            tables=to_html(self.tables, "scores"),
            figure=Markup(svg),
            caption="",
            sources={},
            written="report.json",
            version=__version__,
        )
        document = json.dumps(self.document(), indent=1, allow_nan=False)
        write_files(folder, {"report.json": document, "report.html": page})
        return folder / "report.html"


def view_of(result: Result) -> View:
    """The view of a result, by its type or that of its base."""
    for kind in type(result).__mro__:
        if kind.__name__ in VIEWS:
            module, function = VIEWS[kind.__name__].split(":")
            view: View = getattr(import_module(f"surefoot.report.{module}"), function)(result)
            return view
    raise InputError(f"a {type(result).__name__} cannot be shown; have: {', '.join(VIEWS)}")


def flat(**values: Any) -> dict[str, Any]:
    """The fields of some dataclasses as columns of a row: `share_value`, `share_low`, ..."""
    return {f"{name}_{end}": value for name, each in values.items() for end, value in asdict(each).items()}


def write_files(folder: Path, contents: Mapping[str, str | bytes]) -> list[Path]:
    """Files in a folder, made if missing, by their names; their paths. Each is whole or is not there."""
    paths = [folder / name for name in contents]
    with all_or_none():
        make_folder(folder)
        for path, content in zip(paths, contents.values(), strict=True):
            with replacing(path) as temporary:
                temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return paths
