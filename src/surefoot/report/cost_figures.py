"""What methods cost, against what they achieve."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from surefoot.errors import InputError
from surefoot.metrics import nll
from surefoot.report.comparison_data import Cost, Drawn, check_methods
from surefoot.report.labels import place_labels
from surefoot.report.style import (
    SMALL,
    WIDTH,
    MethodStyle,
    Picture,
    finished,
    key_below,
    lay_out,
    method_styles,
    point_key,
)

Point = tuple[float, float]

COSTS = (
    ("training_seconds", "training time, seconds"),
    ("inference_ms", "time per image, ms"),
    ("parameters", "parameters"),
)


def cost_picture(methods: Sequence[Drawn], costs: Mapping[str, Cost]) -> Picture:
    """NLL on unfamiliar data against training time, inference time and size, a point per method."""
    check_methods(methods)
    missing = [method.name for method in methods if method.name not in costs]
    if missing:
        raise InputError(f"no cost for method {missing[0]!r}; have: {', '.join(costs) or 'none'}")
    styles = method_styles(len(methods))
    heights = [nll(method.unfamiliar) for method in methods]
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 3.1 + 0.17 * -(-len(methods) // 2)), layout="constrained")
        panels: Any = figure.subplots(1, 3, sharey=True)
        panels[0].set_ylabel("NLL on unfamiliar data, nats")
        key_below(
            figure, [point_key(style, method.title) for method, style in zip(methods, styles, strict=True)]
        )
        places = []
        for axes, (field, label) in zip(panels, COSTS, strict=True):
            values = [getattr(costs[method.name], field) for method in methods]
            places.append(_cost_panel(axes, label, list(zip(values, heights, strict=True)), styles))
        title = "What each method costs, against its NLL on unfamiliar data; lower left is better."
        lay_out(figure, title)
        for axes, of_panel in zip(panels, places, strict=True):
            place_labels(axes, list(of_panel.values()), list(of_panel))
        return finished(figure, "cost", title)


def _cost_panel(
    axes: Axes, label: str, points: Sequence[Point], styles: Sequence[MethodStyle]
) -> dict[str, Point]:
    """Draw the methods whose cost is known; their points by letter."""
    axes.set_xlabel(label)
    known = [(point, style) for point, style in zip(points, styles, strict=True) if _can_be_drawn(*point)]
    if not known:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", style="italic")
        axes.set_xticks([])
        return {}
    low, high = 0.5 * min(x for (x, _), _ in known), 2 * max(x for (x, _), _ in known)
    ticks = (1, 2, 5) if high < 30 * low else (1, 3) if high < 300 * low else (1,)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(low, high)
    axes.margins(y=0.12)
    for (x, y), style in known:
        axes.plot(x, y, markersize=6, **style.of_point)
    return {style.letter: point for point, style in known}


def _can_be_drawn(cost: float, height: float) -> bool:
    return cost > 0 and math.isfinite(cost) and math.isfinite(height)


def short_number(value: float) -> str:
    """A cost for an axis.

    >>> short_number(11_700_000), short_number(0.02)
    ('11.7 M', '0.02')
    """
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
