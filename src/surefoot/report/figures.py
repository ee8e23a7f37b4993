"""The figures of an evaluation and those that compare methods."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from surefoot.evaluation.compare import DECIDING
from surefoot.evaluation.comparison import MethodRuns
from surefoot.evaluation.scores import SIDES
from surefoot.plots import (
    DIAGONAL,
    draw_histogram,
    draw_reliability,
    draw_risk_coverage,
    draw_strokes,
    draw_temperature_path,
    finish_risk_coverage,
    mark_keys,
    write_temperatures,
)
from surefoot.plots.curves import (
    COVERAGES,
    Histogram,
    MeanError,
    MethodCurve,
    Reliability,
    RiskCoverage,
    TemperatureCurve,
    e99_bars,
    highest_risk,
    method_curve,
    risk_curves,
    runs_on,
)
from surefoot.report.style import (
    COLOURS,
    GREY,
    INK,
    SMALL,
    MethodStyle,
    Picture,
    check_methods,
    finished,
    key_below,
    label_ends,
    method_styles,
    methods_style,
    panels,
    percent_ticks,
    place_labels,
    plain_text,
    side_style,
    svg_of,
)
from surefoot.text import short_number

HATCHES = {"familiar": "", "unfamiliar": "////"}
Point = tuple[float, float]

COSTS = (  # of MethodRuns: the field, the factor to the axis's unit, the label
    ("seconds_training", 1, "training time, seconds"),
    ("seconds_per_sample", 1000, "time per image, ms"),
)
HALF_WIDTH = 5.5  # inches; of the figure next to a table
NAMES_WIDTH = 2.65  # for names of methods
AREA = 16.0  # of the fastest method's point, in square points
MOST_AREA = 20.0  # times that


def reliability_figure(
    side: str, calibrated: Reliability, before: Reliability | None, confidence: Histogram
) -> str:
    """Accuracy against confidence, ten equal-mass bins, the confidences at the foot, the noise band."""
    with rc_context(side_style(side)):
        figure, axes = _one_axes()
        axes.plot([0, 1], [0, 1], **DIAGONAL)
        if before is not None:
            label = "before calibration"
            axes.plot(before.confidence, before.accuracy, "x", color=GREY, markersize=6, label=label)
        draw_reliability(axes, calibrated, confidence, side)
        axes.set(xlabel="confidence", ylabel="accuracy")
        axes.set_title(f"n = {sum(calibrated.number):,.0f}", loc="left", fontsize=9)
        axes.legend(loc="upper left", fontsize=9)
        return svg_of(figure, f"reliability-{side}", f"Reliability diagram, {side}")


def histogram_figure(sides: Mapping[str, Histogram]) -> str:
    """The share of predictions at each confidence."""
    with rc_context(side_style(*sides)):
        figure, axes = _one_axes()
        for side, histogram in sides.items():
            draw_histogram(axes, histogram, side)
        axes.set(xlabel="confidence", ylabel="share of predictions")
        axes.legend(loc="upper left")
        return svg_of(figure, "histogram", "Histogram of confidences")


def risk_coverage_figure(sides: Mapping[str, RiskCoverage]) -> str:
    """The error rate when only the most confident share is accepted."""
    with rc_context(side_style(*sides)):
        figure, axes = _one_axes()
        for side, curve in sides.items():
            draw_risk_coverage(axes, curve, side)
        _finish_risk(axes)
        axes.legend(loc="best")
        return svg_of(figure, "risk-coverage", "Risk against coverage")


def _finish_risk(axes: Axes) -> None:
    """Labels, and limits that a few wrong predictions at very low coverage do not decide."""
    finish_risk_coverage(axes)
    drawn = [np.asarray(line.get_data(), dtype=np.float64).tolist() for line in axes.lines]
    highest = max((highest_risk(coverage, risk) for coverage, risk in drawn), default=0.0)
    if highest > 0:
        axes.set_ylim(0, min(1.02, 1.15 * highest))


def temperature_figure(curve: TemperatureCurve) -> str:
    """NLL on both sides while T varies: triangle uncalibrated, X calibrated, dots from T = 2 by 0.25."""
    with rc_context(side_style("familiar")):
        figure, axes = _one_axes()
        draw_temperature_path(axes, curve, "")
        write_temperatures(axes, curve)
        axes.set(xlabel="NLL, familiar", ylabel="NLL, unfamiliar")
        keys = mark_keys(calibrated=curve.fitted is not None)
        if curve.fitted is not None:
            keys[1].set_label(f"calibrated, T = {curve.fitted[0]:.2f}")
        axes.legend(handles=keys, loc="center right")
        return svg_of(figure, "temperature", "Familiar against unfamiliar NLL as T varies")


def _one_axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    return figure, figure.subplots()


def overview_picture(
    methods: Sequence[MethodRuns], named: Collection[str], recommended: str | None, times: Mapping[str, float]
) -> Picture:
    """The NLL of every method on both sides, in the mean over runs; its area is its time per image.

    `named` methods are labelled, others where there is space; a time is infinite where it was not measured.
    """
    title = "NLL of every method; lower left is better. Area: time per image."
    familiar, unfamiliar = SIDES
    places = {m.name: (m.cells[familiar, DECIDING].mean, m.cells[unfamiliar, DECIDING].mean) for m in methods}
    drawn = [m for m in methods if np.isfinite(places[m.name]).all()]
    least = min((time for time in times.values() if math.isfinite(time)), default=1.0)
    ratios = {m.name: min(MOST_AREA, times.get(m.name, math.inf) / least) for m in drawn}
    with rc_context(SMALL):
        figure, ((axes,),) = panels(title, 3.05, width=HALF_WIDTH, margins=(0.7, 0.1, 0.5))
        axes.set(xscale="log", yscale="log", xlabel="NLL on familiar data", ylabel="NLL on unfamiliar data")
        for method in sorted(drawn, key=lambda m: -ratios[m.name]):
            colour = COLOURS["unfamiliar"] if method.name == recommended else COLOURS["familiar"]
            look: Any = {"color": colour if method.name in named else GREY, "alpha": 0.75, "linewidths": 0.6}
            axes.scatter(*places[method.name], s=AREA * ratios[method.name], edgecolors=INK, **look)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 8)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.margins(0.08, 0.08)
        place_labels(
            axes,
            [places[method.name] for method in drawn],
            [plain_text(method.label) for method in drawn],
            radii=[math.sqrt(AREA * ratios[method.name] / math.pi) for method in drawn],
            optional=[method.name not in named for method in drawn],
        )
        return finished(figure, "overview", title)


def e99_picture(methods: Sequence[MethodRuns]) -> Picture:
    """E99 of some methods on both sides, with exact intervals and k of n next to each bar."""
    check_methods(methods)
    bars = e99_bars(methods)
    title = "How often each method is wrong above 99% confidence, with exact 95% intervals."
    with rc_context(SMALL):
        figure, ((axes,),) = panels(title, 0.5 * len(methods), margins=(NAMES_WIDTH, 1.6, 0.75))
        highest = max((p.high for of in bars.values() for p in of.values() if p.n), default=1.0)
        axes.set(xlim=(0, min(1.0, 1.1 * highest)), ylim=(len(methods) - 0.5, -0.5))
        for row, method in enumerate(methods):
            for side, offset in zip(SIDES, (-0.19, 0.19), strict=True):
                _e99_bar(axes, row + offset, bars[method.name][side], side)
        axes.axvline(0.01, color=GREY, linewidth=1, linestyle=(0, (1, 1)))
        axes.set_yticks(range(len(methods)), [plain_text(method.label) for method in methods])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("error rate among predictions above 0.99 confidence")
        percent_ticks(axes.xaxis)
        handles: list[Any] = [
            Patch(facecolor=COLOURS[side], hatch=HATCHES[side], edgecolor=INK, label=side) for side in SIDES
        ]
        allowed = Line2D([], [], color=GREY, linestyle=(0, (1, 1)), label="1%, the most that 0.99 allows")
        key_below(figure, [*handles, allowed], columns=3)
        return finished(figure, "e99", title)


def temperature_picture(methods: Sequence[MethodRuns]) -> Picture:
    """NLL of both sides while T varies, a curve per method, with the point that was fitted."""
    check_methods(methods)
    curves = [method_curve(method.runs) for method in methods]
    title = "Familiar against unfamiliar NLL while the temperature T varies; lower left is better."
    with rc_context(methods_style(len(methods))):
        figure, ((axes,),) = panels(title, 4.6)
        for curve in curves:
            draw_temperature_path(axes, curve, "", edge=INK)
        axes.set(xlabel="NLL on familiar data", ylabel="NLL on unfamiliar data")
        axes.legend(handles=mark_keys(calibrated=True, color=INK), loc="lower right")
        axes.margins(0.04, 0.08)
        starts = [
            (curve.uncalibrated, plain_text(method.label), style.colour)
            for curve, method, style in zip(curves, methods, method_styles(len(methods)), strict=True)
            if np.isfinite(curve.uncalibrated).all()
        ]
        ends = [point for curve in curves for point in (curve.calibrated,) if point is not None]
        place_labels(
            axes,
            [point for point, *_ in starts],
            [name for _, name, _ in starts],
            colours=[colour for *_, colour in starts],
            avoid=[*ends, *_on_curves(curves)],
        )
        return finished(figure, "temperature-curves", title)


def _on_curves(curves: Sequence[MethodCurve]) -> list[Point]:
    """Points of curves that a label should not cover."""
    points = []
    for curve in curves:
        knots = np.arange(len(curve.temperature))
        between = np.linspace(0, knots[-1], 10 * len(knots))
        x, y = (np.interp(between, knots, values).tolist() for values in (curve.familiar, curve.unfamiliar))
        points += [point for point in zip(x, y, strict=True) if np.isfinite(point).all()]
    return points


def risk_coverage_picture(methods: Sequence[MethodRuns]) -> Picture:
    """The error rate when only the most confident share is accepted."""
    check_methods(methods)
    styles = method_styles(len(methods))
    title = "The error rate when only each method's most confident predictions are accepted."
    with rc_context(methods_style(len(methods))):
        figure, (both,) = panels(
            title, 3.6, 1, 2, margins=(0.7, NAMES_WIDTH, 0.5), gaps=(NAMES_WIDTH + 0.4, 0), titles=0.2
        )
        for axes, side in zip(both, SIDES, strict=True):
            ends = [
                _risk_line(axes, method, style, side) for method, style in zip(methods, styles, strict=True)
            ]
            _finish_risk(axes)
            axes.set(ylabel="")
            axes.set_title(f"{side} data", loc="left", fontsize=9)
            drawn = [
                (end, plain_text(method.label), style.colour)
                for end, method, style in zip(ends, methods, styles, strict=True)
                if end is not None
            ]
            label_ends(
                axes, [end for end, *_ in drawn], [name for _, name, _ in drawn], [c for *_, c in drawn]
            )
        both[0].set_ylabel("error among the accepted")
        return finished(figure, "risk-coverage-methods", title)


def _e99_bar(axes: Axes, row: float, error: MeanError, side: str) -> None:
    if not error.n:
        _text_right_of(axes, 0, row, "no sample above 0.99").set_fontstyle("italic")
        return
    axes.barh(
        row, error.value, height=0.36, color=COLOURS[side], hatch=HATCHES[side], edgecolor=INK, linewidth=0.6
    )
    draw_strokes(axes, [row], [error.low], [error.high], INK, 1, across=True)
    _text_right_of(axes, error.high, row, f"{error.k:,} of {error.n:,}")


def _text_right_of(axes: Axes, x: float, y: float, text: str) -> Annotation:
    """Small text to the right of a point; by an offset, as HTML drops leading spaces."""
    offset: Any = {"xytext": (6, 0), "textcoords": "offset points"}
    return axes.annotate(text, (x, y), va="center", fontsize=8, annotation_clip=False, **offset)


def _risk_line(axes: Axes, method: MethodRuns, style: MethodStyle, side: str) -> Point | None:
    """Draw the mean over runs; the place of its label."""
    risks = risk_curves([predictions.outcomes for predictions in runs_on(method, side)])
    if not len(risks):
        return None
    mean = risks.mean(axis=0)
    axes.plot(COVERAGES, mean, **style.of_line)
    return 1.0, float(mean[-1])


def cost_picture(methods: Sequence[MethodRuns]) -> Picture:
    """NLL on unfamiliar data against training time and time per image, a point per method."""
    check_methods(methods)
    styles = method_styles(len(methods))
    heights = [method.cells["unfamiliar", DECIDING].mean for method in methods]
    title = "What each method costs, against its NLL on unfamiliar data; lower left is better."
    with rc_context(SMALL):
        figure, (both,) = panels(title, 3.4, 1, 2, sharey=True, gaps=(0.4, 0))
        both[0].set_ylabel("NLL on unfamiliar data")
        places = []
        for axes, (field, factor, label) in zip(both, COSTS, strict=True):
            costs = [getattr(method, field) for method in methods]
            values = [math.nan if cost is None else factor * cost for cost in costs]
            places.append(_cost_panel(axes, label, list(zip(values, heights, strict=True)), styles))
        names = [plain_text(method.label) for method in methods]
        for axes, of_panel in zip(both, places, strict=True):
            place_labels(axes, list(of_panel.values()), [names[index] for index in of_panel])
        return finished(figure, "cost", title)


def _cost_panel(
    axes: Axes, label: str, points: Sequence[Point], styles: Sequence[MethodStyle]
) -> dict[int, Point]:
    """Draw the methods whose cost is known; their points by number."""
    axes.set_xlabel(label)
    known = {i: (x, y) for i, (x, y) in enumerate(points) if x > 0 and math.isfinite(x) and math.isfinite(y)}
    if not known:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", style="italic")
        axes.set_xticks([])
        return {}
    low, high = 0.4 * min(x for x, _ in known.values()), 2.5 * max(x for x, _ in known.values())
    ticks = (1, 2, 5) if high < 30 * low else (1, 3) if high < 300 * low else (1,)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(low, high)
    axes.margins(y=0.18)
    for index, point in known.items():
        axes.plot(*point, markersize=6, **styles[index].of_point)
    return known
