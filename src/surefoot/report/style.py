"""One style for every figure, and label placement."""

import html
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from cycler import cycler
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter
from PIL import Image

from surefoot.errors import InputError
from surefoot.evaluation.comparison import MethodRuns

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
TITLE_LETTERS = 92  # per line of a title
NAME_LETTERS = 34
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Okabe & Ito without the yellow, which is invisible on white; the page's text colour for their black.
METHOD_COLOURS = (INK, "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
METHOD_MARKERS = ("o", "s", "D", "v", "P", "<", "p", "h", ">", "*", "d")
METHOD_LINES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
)


@dataclass(frozen=True)
class MethodStyle:
    """The style of a method; its letter is unique even where colour, marker and line repeat."""

    letter: str
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
    """A finished figure with a name and a title, which is a sentence."""

    name: str
    title: str
    figure: Figure

    def svg(self) -> str:
        """SVG to embed in a page; its text stays text."""
        out, dpi = io.StringIO(), self.figure.dpi
        with _drawing(SMALL), _transparent(self.figure), rc_context({"svg.hashsalt": self.name}):
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
        Image.fromarray(np.asarray(canvas.buffer_rgba())).save(out, format="PNG", dpi=(dpi, dpi))
        return out.getvalue()


def finished(figure: Figure, name: str, title: str) -> Picture:
    """Compute the layout of a figure and fix it."""
    lay_out(figure, title)
    figure.set_layout_engine("none")
    return Picture(name, title, figure)


def lay_out(figure: Figure, title: str) -> None:
    """Compute the layout under the title, so that labels can be placed next to points."""
    figure.suptitle(textwrap.fill(title, TITLE_LETTERS), x=0.01, ha="left", fontsize=10.5)
    engine = figure.get_layout_engine()
    assert engine is not None
    with _drawing(SMALL):
        engine.execute(figure)


def svg_of(figure: Figure, name: str, title: str) -> str:
    """The figure as SVG to embed in a page, with unique ids and in the text colour of the page."""
    out = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return svg_text(out.getvalue(), name, title)


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
    """A style for each of so many methods, at most as many as there are letters."""
    return tuple(
        MethodStyle(
            LETTERS[index],
            METHOD_COLOURS[index % len(METHOD_COLOURS)],
            METHOD_MARKERS[index % len(METHOD_MARKERS)],
            METHOD_LINES[index % len(METHOD_LINES)],
        )
        for index in range(count)
    )


def check_methods(methods: Sequence[MethodRuns]) -> None:
    """At least one method, not more than there are letters to label them, no name twice."""
    if not 1 <= len(methods) <= len(LETTERS):
        raise InputError(f"{len(methods)} methods to draw; allowed: 1 to {len(LETTERS)}")
    names = [method.name for method in methods]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"method {twice[0]!r} is given more than once; allowed: each name once")


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


def line_key(style: MethodStyle, title: str) -> Line2D:
    """The legend entry of a method's line: its letter first."""
    return Line2D([], [], label=f"{style.letter}  {plain_text(title)}", **style.of_line)


def point_key(style: MethodStyle, title: str) -> Line2D:
    """The legend entry of a method's point."""
    return Line2D([], [], label=f"{style.letter}  {plain_text(title)}", **style.of_point)


def key_below(figure: Figure, handles: Sequence[Any], *, columns: int = 2) -> None:
    """The legend under all panels."""
    figure.legend(
        handles=list(handles), loc="outside lower left", ncols=columns, columnspacing=1.2, handletextpad=0.5
    )


def percent_ticks(axis: Axis) -> None:
    """Shares as percentages, with no more digits than they need."""
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))


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


PLACES = ((9, 0), (-9, 0), (0, 10), (0, -10), (8, 8), (-8, 8), (8, -8), (-8, -8))  # offsets, in points
DISTANCES = (1, 1.6, 2.2, 3, 4, 6)  # factors by which a label may move away from its point


def place_labels(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Write each label next to its point, at the first place that is free of labels and points.

    Call it after `lay_out`. A label that had to move far gets a thin line.
    """
    taken = [_in_points(axes, point) for point in points]
    for point, label in zip(points, labels, strict=True):
        middle = across, up = _in_points(axes, point)
        others = [other for other in taken if other != middle]
        free = (
            (far * x, far * y)
            for far in DISTANCES
            for x, y in PLACES
            if not any(abs(across + far * x - a) < 8 and abs(up + far * y - b) < 9 for a, b in others)
        )
        x, y = next(free, PLACES[0])
        taken.append((across + x, up + y))
        _label(axes, point, (x, y), label, far=(x, y) not in PLACES).set_in_layout(False)


def label_ends(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Write the labels of lines that end at the right edge in a column next to it, without overlaps."""
    heights = [_in_points(axes, point)[1] for point in points]
    bottom, top = (edge * 72 / axes.figure.dpi for edge in (axes.bbox.y0, axes.bbox.y1))
    order = sorted(range(len(points)), key=lambda i: heights[i])
    for index, place in zip(order, _spread([heights[i] for i in order], bottom, top), strict=True):
        _label(axes, points[index], (16, place - heights[index]), labels[index], far=True)


def _spread(heights: Sequence[float], bottom: float, top: float) -> list[float]:
    """Ascending heights moved a line of text apart, within bottom and top; closer where space is short."""
    gap = min(12.0, (top - bottom) / max(1, len(heights)))
    places: list[float] = []
    for height in heights:
        places.append(max(height, bottom if not places else places[-1] + gap))
    ceiling = top
    for index in reversed(range(len(places))):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places


def _label(
    axes: Axes, point: tuple[float, float], offset: tuple[float, float], label: str, *, far: bool
) -> Annotation:
    """Bold ink near a point, with a thin line to it where it is far."""
    line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
    return axes.annotate(
        label,
        point,
        xytext=offset,
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=9,
        fontweight="bold",
        arrowprops=line if far else None,
        annotation_clip=False,
    )


def _in_points(axes: Axes, point: tuple[float, float]) -> tuple[float, float]:
    x, y = axes.transData.transform(point) * 72 / axes.figure.dpi
    return float(x), float(y)
