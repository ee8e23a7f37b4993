"""The log-log figure of `benchmarks/growth.py`: a panel for each size, a letter for each operation."""

from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from surefoot.report.style import (
    COLOURS,
    GREY,
    SMALL,
    WIDTH,
    MethodStyle,
    Picture,
    finished,
    key_below,
    method_styles,
)

TITLE = "Cost by size: CPU seconds of one thread, and memory"
METRIC_LINES = {
    "metrics that are sums, smooth ECE": {"color": GREY, "linestyle": "-", "linewidth": 1.2},
    "metrics that sort": {"color": COLOURS["familiar"], "linestyle": (0, (5, 1.5)), "linewidth": 1.2},
    "floors of the ECE": {"color": COLOURS["unfamiliar"], "linestyle": (0, (1, 1)), "linewidth": 1.6},
}  # fmt: skip
GUIDES = ((1, (0, (6, 3))), (2, (0, (1, 3))))
LEGEND_SIZE = 7.5  # so that the longest names fit into three columns
APART = 0.06  # of a panel's height, from letter to letter

Line = tuple[Sequence[float], Sequence[float], dict[str, Any], str]


def growth_picture(found: Sequence[Any]) -> Picture:
    """All measurements."""
    names = list(dict.fromkeys(each.operation.name for each in found if not each.operation.is_metric))
    letters = zip(ascii_letters, method_styles(len(names)), strict=False)
    styles = dict(zip(names, letters, strict=True))

    def of(axes: str, chosen: Callable[[Any], bool], cost: str = "seconds") -> list[Line]:
        return [
            _line(each, cost, styles)
            for each in found
            if each.operation.axis in axes.split() and chosen(each)
        ]

    panels = (
        ("rows", "CPU seconds", of("rows", lambda each: _calibrates(each) and not each.operation.is_metric)),
        ("rows", "CPU seconds", of("rows", lambda each: not (_calibrates(each) or each.operation.is_metric))),
        ("rows (metrics)", "CPU seconds", of("rows", lambda each: each.operation.is_metric)),
        ("rows", "peak MiB", of("rows", lambda each: each.memory is not None, "mebibytes")),
        ("classes", "CPU seconds", of("classes", lambda each: not each.operation.is_metric)),
        ("classes (metrics)", "CPU seconds", of("classes", lambda each: each.operation.is_metric)),
        ("members", "CPU seconds", of("members", lambda _: True)),
        ("runs, or methods (dotted)", "CPU seconds", _of_both(of)),
    )  # fmt: skip
    with rc_context(SMALL | {"legend.fontsize": LEGEND_SIZE}):
        figure = Figure(figsize=(WIDTH, 11.5), layout="constrained")
        every: Any = figure.subplots(4, 2)
        for axes, (size, cost, lines) in zip(every.flat, panels, strict=True):
            if lines:
                _panel(axes, size, cost, lines)
            else:
                axes.remove()
        keys = [
            Line2D([], [], label=f"{letter}  {name}", **style.of_line)
            for name, (letter, style) in styles.items()
        ]
        keys += [Line2D([], [], label=label, **look) for label, look in METRIC_LINES.items()]
        keys += [
            Line2D([], [], color=GREY, linestyle=line, linewidth=0.9, label=f"slope {power}")
            for power, line in GUIDES
        ]
        key_below(figure, keys, columns=3)
        return finished(figure, "growth", TITLE)


def _tick(value: float, _place: int) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}" if value >= 1e-3 else f"{1e6 * value:g}µ"


def _calibrates(each: Any) -> bool:
    return each.operation.name.startswith(("fit", "apply"))


def _of_both(of: Callable[..., list[Line]]) -> list[Line]:
    methods = [(x, y, look | {"linestyle": (0, (1, 1))}, text) for x, y, look, text in of("methods", bool)]
    return [*of("runs", bool), *methods]


def _line(each: Any, cost: str, styles: dict[str, tuple[str, MethodStyle]]) -> Line:
    sizes, costs = each.operation.sizes, np.asarray(getattr(each, cost))
    kept = costs > 0.5 if cost == "mebibytes" else costs > 0
    if not each.operation.is_metric:
        letter, style = styles[each.operation.name]
        return np.asarray(sizes)[kept], costs[kept], style.of_line, letter
    return np.asarray(sizes)[kept], costs[kept], METRIC_LINES[_family(each.operation)], ""


def _family(operation: Any) -> str:
    sums, sorts, floors = METRIC_LINES
    if operation.name.startswith("ece_floor"):
        return floors
    return sorts if operation.sorts else sums


def _panel(axes: Axes, size: str, cost: str, lines: Sequence[Line]) -> None:
    axes.set(xscale="log", yscale="log", xlabel=size, ylabel=cost)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_tick))
        axis.set_minor_formatter(NullFormatter())
    for x, y, look, _ in lines:
        axes.plot(x, y, **look)
    limits = axes.get_ylim()
    _guides(axes, lines)
    axes.set_ylim(limits)
    _letters(axes, lines)


def _guides(axes: Axes, lines: Sequence[Line]) -> None:
    """Straight lines of slope 1 and 2 that end at the most expensive operation."""
    dearest = max(lines, key=lambda line: line[1][-1])
    x = np.asarray(dearest[0], dtype=float)
    for power, line in GUIDES:
        axes.plot(x, 2 * dearest[1][-1] * (x / x[-1]) ** power, color=GREY, linestyle=line, linewidth=0.9)


def _letters(axes: Axes, lines: Sequence[Line]) -> None:
    """A letter at the end of each line, moved until it does not overlap its neighbours."""
    low, high = np.log(axes.get_ylim())
    for end in {float(line[0][-1]) for line in lines}:
        there = sorted(
            (line for line in lines if line[3] and line[0][-1] == end), key=lambda line: line[1][-1]
        )
        heights = _apart([(np.log(line[1][-1]) - low) / (high - low) for line in there])
        for (_, _, look, text), height in zip(there, heights, strict=True):
            axes.annotate(
                text,
                (end, float(np.exp(low + height * (high - low)))),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=look["color"],
            )


def _apart(heights: Sequence[float]) -> list[float]:
    """Increasing heights, moved up if too close, then down from the top.

    >>> _apart([0.5, 0.5])
    [0.5, 0.56]
    """
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + APART) if moved else height)
    for place in reversed(range(len(moved))):
        moved[place] = min(moved[place], 1.0 if place == len(moved) - 1 else moved[place + 1] - APART)
    return moved
