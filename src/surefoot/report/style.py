"""One style for every figure, and its SVG and PNG."""

import html
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from cycler import cycler
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

COLOURS = {"familiar": "#0072b2", "unfamiliar": "#d55e00"}  # Okabe & Ito
MARKERS = {"familiar": "o", "unfamiliar": "s"}
LINES = {"familiar": "-", "unfamiliar": "--"}
INK = "#123456"  # replaced by the text colour of the page; see `_own_tag`
GREY = "#8c8c8c"
STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a name is no formula
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib; an SVG repeats the list in every text
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
SMALL = STYLE | {"font.size": 9, "hatch.linewidth": 0.8, "hatch.color": INK}  # many panels in one figure

WIDTH = 7.2  # inches; 100 of a page's pixels each
PAGE_WIDTH = 11.2  # of a figure as wide as the report of a study
TITLE_LETTERS = 12.4  # in an inch of a title
TITLE_LINE = 0.19  # inches
TITLE_SIZE = 10.5
NAME_LETTERS = 36
MOST_METHODS = 8  # in a figure: more cannot be distinguished
# Okabe & Ito without the yellow, which is invisible on white; the page's text colour for their black.
METHOD_COLOURS = (INK, "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b")
METHOD_MARKERS = ("o", "s", "D", "v", "P", "<", "p", "h")
METHOD_LINES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
)


@dataclass(frozen=True)
class MethodStyle:
    """The style of a method."""

    colour: str
    marker: str
    line: Any

    @property
    def of_line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.line, "linewidth": 1.6}

    @property
    def of_point(self) -> dict[str, Any]:
        return {"color": self.colour, "marker": self.marker, "linestyle": "none"}


@dataclass(frozen=True, eq=False)
class Picture:
    """A finished figure with a name, a title, which is a sentence, and for a page a caption."""

    name: str
    title: str
    figure: Figure
    caption: str = ""

    def svg(self, style: Any = SMALL) -> str:
        """SVG to embed in a page, with unique ids and in its text colour; text stays text."""
        out, dpi = io.StringIO(), self.figure.dpi
        with _drawing(style), _transparent(self.figure), rc_context({"svg.hashsalt": self.name}):
            canvas: Any = FigureCanvasSVG(self.figure)  # `savefig` would draw the figure twice
            canvas.print_svg(out, metadata={"Date": None, "Creator": None})
        self.figure.dpi = dpi
        return svg_text(out.getvalue(), self.name, self.title)

    def png(self, *, dpi: int = 150) -> bytes:
        """PNG on white, 1080 pixels wide by default."""
        out, before = io.BytesIO(), self.figure.dpi
        with _drawing(SMALL):
            self.figure.dpi = dpi
            canvas: Any = FigureCanvasAgg(self.figure)
            canvas.draw()
            self.figure.dpi = before
        Image.fromarray(np.asarray(canvas.buffer_rgba())).save(
            out, format="PNG", dpi=(dpi, dpi), compress_level=3
        )
        return out.getvalue()


def panels(
    title: str,
    height: float,
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = PAGE_WIDTH,
    margins: tuple[float, float, float] = (0.7, 0.15, 0.5),
    gaps: tuple[float, float] = (0.3, 0.3),
    titles: float = 0.0,
    **options: Any,
) -> tuple[Figure, Any]:
    """A figure and its rows of axes, so high together, below the title; all in inches.

    `margins` are left, right and bottom, `gaps` those between axes, across and down, `titles` the
    height of the first axes' own titles.

    The places are given, because computing them takes matplotlib as long as drawing the figure.
    """
    (left, right, bottom), (across, down) = margins, gaps
    top = 0.2 + titles + TITLE_LINE * len(_title_lines(title, width))
    height += bottom + top
    figure = Figure(figsize=(width, height))
    each_across = (width - left - right - across * (columns - 1)) / columns
    each_down = (height - bottom - top - down * (rows - 1)) / rows
    places = {
        "left": left / width,
        "right": 1 - right / width,
        "bottom": bottom / height,
        "top": 1 - top / height,
    }
    gridspec = places | {"wspace": across / each_across, "hspace": down / each_down}
    return figure, figure.subplots(rows, columns, squeeze=False, gridspec_kw=gridspec, **options)


def finished(figure: Figure, name: str, title: str) -> Picture:
    """The figure under its title; its layout is computed, where it has an engine for that, and fixed."""
    text, width, height = "\n".join(_title_lines(title, figure.get_figwidth())), *figure.get_size_inches()
    engine = figure.get_layout_engine()
    if engine is None:
        figure.suptitle(text, x=0.06 / width, y=1 - 0.05 / height, ha="left", va="top", fontsize=TITLE_SIZE)
        return Picture(name, title, figure)
    figure.suptitle(text, x=0.01, ha="left", fontsize=TITLE_SIZE)
    with _drawing(SMALL):
        engine.execute(figure)
    figure.set_layout_engine("none")
    return Picture(name, title, figure)


def _title_lines(title: str, width: float) -> list[str]:
    return textwrap.wrap(title, int(TITLE_LETTERS * width))


def drawn_svg(
    name: str,
    title: str,
    style: Any,
    draw: Callable[[Axes], object],
    *,
    size: tuple[float, float] = (4.6, 3.6),
) -> str:
    """A figure of one panel in this style; `draw` draws on its axes."""
    with rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        return Picture(name, title, figure).svg(style)


def svg_text(svg: str, name: str, title: str) -> str:
    """Matplotlib's SVG, adapted for embedding in a page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: _own_tag(tag.group(), name), svg)  # tags only: text stays as it is
    head, rest = svg.split(">", 1)
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    head = head.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
    return f"{head}>{rest}"


def plain_text(text: str, most: int = NAME_LETTERS) -> str:
    """Any text as one short printable line.

    >>> plain_text("a\\tb\\x00")
    'a b?'
    """
    line = "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def method_styles(count: int) -> tuple[MethodStyle, ...]:
    """A style for each of so many methods, at most MOST_METHODS."""
    return tuple(
        MethodStyle(
            METHOD_COLOURS[index % len(METHOD_COLOURS)],
            METHOD_MARKERS[index % len(METHOD_MARKERS)],
            METHOD_LINES[index % len(METHOD_LINES)],
        )
        for index in range(count)
    )


def side_cycle(*sides: str) -> Any:
    """The styles of the sides, in this order, for axes on which `surefoot.plots` draws them."""
    properties: dict[str, Any] = {"color": COLOURS, "linestyle": LINES, "marker": MARKERS}
    return cycler(**{name: [of[side] for side in sides] for name, of in properties.items()})


def side_style(*sides: str) -> Any:
    """The style of a figure whose curves are of these sides, in this order."""
    return STYLE | {"axes.prop_cycle": side_cycle(*sides), "lines.linewidth": 2}


def methods_style(count: int) -> Any:
    """The style of a figure with a curve for each of so many methods."""
    styles = method_styles(count)
    cycle = cycler(color=[style.colour for style in styles], linestyle=[style.line for style in styles])
    return SMALL | {"axes.prop_cycle": cycle, "lines.linewidth": 1.6}


def key_below(figure: Figure, handles: Sequence[Any], *, columns: int = 2) -> None:
    """The legend under all panels."""
    where: Any = "lower left" if figure.get_layout_engine() is None else "outside lower left"
    empty = [""] * len(handles)  # a name that begins with an underscore would be left out
    legend = figure.legend(
        list(handles), empty, loc=where, ncols=columns, columnspacing=1.2, handletextpad=0.5
    )
    for text, handle in zip(legend.get_texts(), handles, strict=True):
        text.set_text(handle.get_label())


def key_height(count: int, *, columns: int = 2) -> float:
    """Inches that the legend under all panels takes."""
    return 0.2 * -(-count // columns)


@contextmanager
def _transparent(figure: Figure) -> Iterator[None]:
    """Without the white background of the figure and its panels."""
    patches = [figure.patch, *(axes.patch for axes in figure.axes)]
    before = [(patch.get_facecolor(), patch.get_edgecolor()) for patch in patches]
    for patch in patches:
        patch.set(facecolor="none", edgecolor="none")
    try:
        yield
    finally:
        for patch, (face, edge) in zip(patches, before, strict=True):
            patch.set(facecolor=face, edgecolor=edge)


def _own_tag(tag: str, name: str) -> str:
    if tag.startswith("<g "):  # nothing refers to a group
        tag = re.sub(r' id="[^"]*"', "", tag)
    tag = re.sub(r"(\d\.\d\d)\d+", r"\1", tag)  # a hundredth of a point is precise enough
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag).replace(INK, "currentColor")


@contextmanager
def _drawing(style: Any) -> Iterator[None]:
    """Apply a style; the fonts of the reader supply the characters that ours lacks."""
    with rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield
