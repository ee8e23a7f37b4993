"""Labels beside points and at the ends of lines, none on another."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.text import Annotation

from surefoot.report.style import GREY

PLACES = ((9, 0), (-9, 0), (0, 10), (0, -10), (8, 8), (-8, 8), (8, -8), (-8, -8))  # about a point, in points
FURTHER = (1, 1.6, 2.2, 3, 4, 6)  # how many times as far a label may move from its point


def place_labels(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Write each label beside its point, at the first place that no other label or point has.

    Call it when the figure is laid out. A label that had to move far gets a thin line.
    """
    taken = [_in_points(axes, point) for point in points]
    for point, label in zip(points, labels, strict=True):
        middle = _in_points(axes, point)
        offsets = [(far * x, far * y) for far in FURTHER for x, y in PLACES]
        free = (offset for offset in offsets if _is_free(middle, offset, taken))
        x, y = next(free, PLACES[0])
        taken.append((middle[0] + x, middle[1] + y))
        _label(axes, point, (x, y), label, far=(x, y) not in PLACES).set_in_layout(False)


def label_ends(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Write the labels of lines that end at the right edge in a column beside it, none on another."""
    heights = [_in_points(axes, point)[1] for point in points]
    bottom, top = (edge * 72 / axes.figure.dpi for edge in (axes.bbox.y0, axes.bbox.y1))
    order = sorted(range(len(points)), key=lambda i: heights[i])
    for index, place in zip(order, _spread([heights[i] for i in order], bottom, top), strict=True):
        _label(axes, points[index], (16, place - heights[index]), labels[index], far=True)


def _spread(heights: Sequence[float], bottom: float, top: float) -> list[float]:
    """Rising heights moved a line of text apart, within bottom and top; closer where there is no room."""
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


def _is_free(
    middle: tuple[float, float], offset: tuple[float, float], taken: Sequence[tuple[float, float]]
) -> bool:
    x, y = middle[0] + offset[0], middle[1] + offset[1]
    others = (other for other in taken if other != middle)
    return not any(abs(x - a) < 8 and abs(y - b) < 9 for a, b in others)


def _in_points(axes: Axes, point: tuple[float, float]) -> tuple[float, float]:
    x, y = axes.transData.transform(point) * 72 / axes.figure.dpi
    return float(x), float(y)
