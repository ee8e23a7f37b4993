"""One style for every figure, and label placement."""

import html
import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, permutations, product
from typing import Any

import numpy as np
from cycler import cycler
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

from surefoot.errors import InputError
from surefoot.evaluation.comparison import MethodRuns
from surefoot.plots import percent_axes

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
    """A style for each of so many methods, at most MOST_METHODS."""
    return tuple(
        MethodStyle(
            METHOD_COLOURS[index % len(METHOD_COLOURS)],
            METHOD_MARKERS[index % len(METHOD_MARKERS)],
            METHOD_LINES[index % len(METHOD_LINES)],
        )
        for index in range(count)
    )


def check_methods(methods: Sequence[MethodRuns]) -> None:
    """At least one method, not more than a reader can distinguish, no name twice."""
    if not 1 <= len(methods) <= MOST_METHODS:
        raise InputError(f"{len(methods)} methods to draw; allowed: 1 to {MOST_METHODS}")
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


def key_below(figure: Figure, handles: Sequence[Any], *, columns: int = 2) -> None:
    """The legend under all panels."""
    where: Any = "lower left" if figure.get_layout_engine() is None else "outside lower left"
    figure.legend(handles=list(handles), loc=where, ncols=columns, columnspacing=1.2, handletextpad=0.5)


def percent_ticks(axis: Axis) -> None:
    """Shares as percentages, with no more digits than they need."""
    percent_axes(axis)


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


LABEL_SIZE = 8.5
LABEL_HEIGHT = 1.3 * LABEL_SIZE
LETTER_WIDTH = 0.64 * LABEL_SIZE  # some words are wider than most
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
DISTANCES = (1, 5)  # points between a label and the mark of its point
# Where a label with a line is, right of its point and above it (or left, or below), the nearest first
FAR_PLACES = sorted(product(range(8, 400, 8), range(0, 250, 6)), key=lambda place: math.hypot(*place))
MOST_PLACES = 400  # of a label with a line
MOST_ORDERS = 24  # of placing these labels
CLEARANCE = 3  # points between a line and the ends of other labels

Box = tuple[float, float, float, float]  # left, bottom, right, top


def place_labels(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    labels: Sequence[str],
    *,
    radii: Sequence[float] | None = None,
    optional: Sequence[bool] | None = None,
    colours: Sequence[str] | None = None,
    avoid: Sequence[tuple[float, float]] = (),
) -> None:
    """Write each label next to its point, where it covers no other label or point and is inside the axes.

    Where there is no such place, a label is further away, with a thin line to its point; an `optional` one is
    left out. Points to `avoid` have no label. Call it when everything is drawn.
    """
    radii = radii or [4.0] * len(points)
    middles = [_in_points(axes, point) for point in points]
    taken = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(middles, radii, strict=True)]
    taken += [(x - 2, y - 2, x + 2, y + 2) for x, y in (_in_points(axes, point) for point in avoid)]
    edges = _edges(axes)
    named = [i for i in range(len(points)) if not (optional and optional[i])]
    boxes = _near(named, middles, radii, labels, taken, edges)
    far = sorted((i for i in named if i not in boxes), key=lambda i: middles[i])
    boxes |= _far({i: middles[i] for i in far}, labels, taken, list(boxes.values()), edges)
    others = [i for i in range(len(points)) if i not in named]
    boxes |= _near(others, middles, radii, labels, [*taken, *boxes.values()], edges)
    for index, box in boxes.items():
        is_left = box[2] < middles[index][0]
        offset = (box[2 if is_left else 0] - middles[index][0], (box[1] + box[3]) / 2 - middles[index][1])
        colour = INK if colours is None else colours[index]
        _label(axes, points[index], offset, labels[index], far=index in far, color=colour, is_left=is_left)


def _near(
    indices: Sequence[int],
    middles: Sequence[tuple[float, float]],
    radii: Sequence[float],
    labels: Sequence[str],
    taken: Sequence[Box],
    edges: Box,
) -> dict[int, Box]:
    """The first free place next to its point, of each label that has one."""
    boxes: dict[int, Box] = {}
    for index in indices:
        size = (LETTER_WIDTH * len(labels[index]), LABEL_HEIGHT)
        places = (
            _box_near(middles[index], radii[index] + far, where, size)
            for far in DISTANCES
            for where in DIRECTIONS
        )
        free = next((box for box in places if _is_free(box, [*taken, *boxes.values()], edges)), None)
        if free is not None:
            boxes[index] = free
    return boxes


def _far(
    points: Mapping[int, tuple[float, float]],
    labels: Sequence[str],
    marks: Sequence[Box],
    near: Sequence[Box],
    edges: Box,
) -> dict[int, Box]:
    """The nearest free places from which no line to a point crosses a label.

    A label can block the others, so of several orders the one with the fewest crossings is used, and of equal
    ones the one with the shortest lines.
    """
    places = {i: _far_places(point, labels[i], marks, near, edges) for i, point in points.items()}
    best: dict[int, Box] = {}
    lowest = (math.inf, math.inf)
    for order in islice(permutations(points), MOST_ORDERS):
        boxes: dict[int, Box] = {}
        crossed = 0
        for index in order:
            clear = (box for box in places[index] if _is_clear(index, box, boxes, points, near))
            box = next(clear, None)
            crossed += box is None
            free = (each for each in places[index] if _is_free(each, list(boxes.values()), edges))
            boxes[index] = box or next(free, places[index][0])
        length = sum(math.dist(points[i], _end(points[i], box)) for i, box in boxes.items())
        if (crossed, length) < lowest:
            best, lowest = boxes, (crossed, length)
    return best


def _far_places(
    point: tuple[float, float], label: str, marks: Sequence[Box], near: Sequence[Box], edges: Box
) -> list[Box]:
    """The nearest places that cover no mark and no label next to its point; any place if there is none."""
    x, y = point
    width, half = LETTER_WIDTH * len(label), LABEL_HEIGHT / 2
    places = [
        (start, y + above - half, start + width, y + above + half)
        for right, up in FAR_PLACES
        for start in (x + right, x - right - width)
        for above in (up, -up)
    ]
    free = (box for box in places if _is_free(box, [*marks, *near], edges))
    return list(islice(free, MOST_PLACES)) or places[:1]


def _is_clear(
    index: int,
    box: Box,
    boxes: Mapping[int, Box],
    points: Mapping[int, tuple[float, float]],
    near: Sequence[Box],
) -> bool:
    """Whether a label there covers no other one and no line, and its own line crosses no other label."""
    others = list(boxes.values())
    return (
        not any(_overlap(box, other) for other in others)
        and not _is_crossed(points[index], box, [*near, *others])
        and not any(_is_crossed(points[i], other, [box]) for i, other in boxes.items())
    )


def _is_crossed(point: tuple[float, float], box: Box, others: Sequence[Box]) -> bool:
    """Whether the line from a point to its label crosses another label, or nearly so."""
    (x, y), end = point, _end(point, box)
    line = [(x + part * (end[0] - x), y + part * (end[1] - y)) for part in np.linspace(0, 1, 25).tolist()]
    return any(
        o[0] - CLEARANCE < at[0] < o[2] + CLEARANCE and o[1] < at[1] < o[3] for o in others for at in line
    )


def _end(point: tuple[float, float], box: Box) -> tuple[float, float]:
    """Where the line from a point ends: at the nearer end of its label."""
    left, bottom, right, top = box
    return left if left > point[0] else right, (bottom + top) / 2


def _edges(axes: Axes) -> Box:
    left, bottom, right, top = (float(edge) * 72 / axes.figure.dpi for edge in axes.bbox.extents)
    return left, bottom, right, top


def _is_free(box: Box, taken: Sequence[Box], edges: Box) -> bool:
    """Whether a box is within the edges and covers none of the others."""
    inside = edges[0] <= box[0] and edges[1] <= box[1] and box[2] <= edges[2] and box[3] <= edges[3]
    return inside and not any(_overlap(box, other) for other in taken)


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _box_near(
    middle: tuple[float, float], far: float, where: tuple[int, int], size: tuple[float, float]
) -> Box:
    """The box of a label in that direction from a point."""
    diagonal = 0.7 if all(where) else 1.0
    x, y = (at + to * (far * diagonal + side / 2) for at, to, side in zip(middle, where, size, strict=True))
    return x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2


def label_ends(
    axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str], colours: Sequence[str]
) -> None:
    """Write the labels of lines that end at the right edge in a column next to it, without overlaps."""
    heights = [_in_points(axes, point)[1] for point in points]
    _, bottom, _, top = _edges(axes)
    order = sorted(range(len(points)), key=lambda i: heights[i])
    for index, place in zip(order, _spread([heights[i] for i in order], bottom, top), strict=True):
        offset = (12, place - heights[index])
        _label(axes, points[index], offset, labels[index], far=True, color=colours[index])


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
    axes: Axes,
    point: tuple[float, float],
    offset: tuple[float, float],
    label: str,
    *,
    far: bool,
    color: str,
    is_left: bool = False,
) -> None:
    """Text that begins, or ends, at that offset from a point, with a thin line to it where it is far."""
    line = {
        "arrowstyle": "-",
        "color": GREY,
        "linewidth": 0.6,
        "shrinkA": 0,
        "shrinkB": 0,
        "relpos": (1 if is_left else 0, 0.5),
    }
    axes.annotate(
        label,
        point,
        xytext=offset,
        textcoords="offset points",
        ha="right" if is_left else "left",
        va="center",
        fontsize=LABEL_SIZE,
        color=color,
        arrowprops=line if far else None,
        annotation_clip=False,
    )


def _in_points(axes: Axes, point: tuple[float, float]) -> tuple[float, float]:
    _ = axes.viewLim  # when it is read, matplotlib scales the axes to what was drawn
    x, y = axes.transData.transform(point) * 72 / axes.figure.dpi
    return float(x), float(y)
