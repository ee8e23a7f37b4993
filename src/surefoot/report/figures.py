"""The figures of an evaluation and those that compare methods."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from surefoot.evaluation.comparison import MethodRuns
from surefoot.evaluation.scores import SIDES
from surefoot.intervals import Proportion
from surefoot.metrics import nll
from surefoot.plots import (
    DIAGONAL,
    draw_histogram,
    draw_reliability,
    draw_risk_coverage,
    draw_temperature_path,
    finish_risk_coverage,
    mark_keys,
    write_temperatures,
)
from surefoot.plots.curves import (
    BAND_COVERAGES,
    Histogram,
    Reliability,
    RiskCoverage,
    TemperatureCurve,
    e99_bars,
    method_curve,
    risk_band,
    risk_curve,
)
from surefoot.report.style import (
    COLOURS,
    GREY,
    INK,
    SMALL,
    WIDTH,
    MethodStyle,
    Picture,
    check_methods,
    finished,
    key_below,
    label_ends,
    lay_out,
    line_key,
    method_styles,
    methods_style,
    percent_ticks,
    place_labels,
    plain_text,
    point_key,
    side_style,
    svg_of,
)
from surefoot.text import short_number

HATCHES = {"familiar": "", "unfamiliar": "////"}
Point = tuple[float, float]

COSTS = (  # of MethodRuns: the field, the factor to the axis's unit, the label
    ("seconds_training", 1, "training time, seconds"),
    ("seconds_per_sample", 1000, "time per image, ms"),
    ("parameters", 1, "parameters"),
)


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
        finish_risk_coverage(axes)
        axes.legend(loc="best")
        return svg_of(figure, "risk-coverage", "Risk against coverage")


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
        axes.legend(handles=keys, loc="best")
        return svg_of(figure, "temperature", "Familiar against unfamiliar NLL as T varies")


def _one_axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    return figure, figure.subplots()


def e99_picture(methods: Sequence[MethodRuns]) -> Picture:
    """E99 of every method on both sides, with exact intervals and k of n next to each bar."""
    check_methods(methods)
    bars = e99_bars(methods)
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 1.4 + 0.5 * len(methods)), layout="constrained")
        axes = figure.subplots()
        highest = max((p.high for of in bars.values() for p in of.values() if p.n), default=1.0)
        axes.set(xlim=(0, 1.35 * highest), ylim=(len(methods) - 0.5, -0.5))
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
        title = "How often each method is wrong above 99% confidence, with exact 95% intervals."
        return finished(figure, "e99", title)


def temperature_picture(methods: Sequence[MethodRuns]) -> Picture:
    """NLL of both sides while T varies, a curve per method, with the point that was fitted."""
    check_methods(methods)
    curves = {method.name: method_curve(method.runs[0]) for method in methods}
    styles = method_styles(len(methods))
    with rc_context(methods_style(len(methods))):
        figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
        axes = figure.subplots()
        for method in methods:
            draw_temperature_path(axes, curves[method.name], "", edge=INK)
        axes.set(xlabel="NLL on familiar data, nats", ylabel="NLL on unfamiliar data, nats")
        marked = mark_keys(calibrated=True, color=INK)
        axes.legend(handles=marked, loc="best")
        key_below(figure, [line_key(style, m.label) for m, style in zip(methods, styles, strict=True)])
        title = "Familiar against unfamiliar NLL while the temperature T varies; lower left is better."
        lay_out(figure, title)
        starts = {s.letter: curves[m.name].uncalibrated for m, s in zip(methods, styles, strict=True)}
        starts = {letter: start for letter, start in starts.items() if np.isfinite(start).all()}
        place_labels(axes, list(starts.values()), list(starts))
        return finished(figure, "temperature-curves", title)


def risk_coverage_picture(methods: Sequence[MethodRuns]) -> Picture:
    """The error rate when only the most confident share is accepted; bands where there are several runs."""
    check_methods(methods)
    styles = method_styles(len(methods))
    with rc_context(methods_style(len(methods))):
        figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
        panels: Any = figure.subplots(1, 2)
        ends = {
            side: [_risk_line(panels[i], m, s, side) for m, s in zip(methods, styles, strict=True)]
            for i, side in enumerate(SIDES)
        }
        for axes, side in zip(panels, SIDES, strict=True):
            axes.set(xlabel="share accepted, most confident first", xlim=(0, 1), ylim=(0, None))
            axes.set_title(f"{side} data", loc="left", fontsize=9)
            for axis in (axes.xaxis, axes.yaxis):
                percent_ticks(axis)
        panels[0].set_ylabel("error rate among the accepted")
        key_below(
            figure, [line_key(style, method.label) for method, style in zip(methods, styles, strict=True)]
        )
        bands = "; bands cover all runs" if any(len(method.runs) > 1 for method in methods) else ""
        title = f"The error rate when only each method's most confident predictions are accepted{bands}."
        lay_out(figure, title)
        for axes, side in zip(panels, SIDES, strict=True):
            drawn = [(end, style) for end, style in zip(ends[side], styles, strict=True) if end is not None]
            label_ends(axes, [end for end, _ in drawn], [style.letter for _, style in drawn])
        return finished(figure, "risk-coverage-methods", title)


def _e99_bar(axes: Axes, row: float, error: Proportion, side: str) -> None:
    if not error.n:
        _text_right_of(axes, 0, row, "no sample above 0.99").set_fontstyle("italic")
        return
    axes.barh(
        row, error.value, height=0.36, color=COLOURS[side], hatch=HATCHES[side], edgecolor=INK, linewidth=0.6
    )
    ends = [[max(0.0, error.value - error.low)], [max(0.0, error.high - error.value)]]
    axes.errorbar(error.value, row, xerr=ends, fmt="none", color=INK, capsize=2, linewidth=1)
    _text_right_of(axes, error.high, row, f"{error.k:,} of {error.n:,}")


def _text_right_of(axes: Axes, x: float, y: float, text: str) -> Annotation:
    """Small text to the right of a point; by an offset, as HTML drops leading spaces."""
    offset: Any = {"xytext": (6, 0), "textcoords": "offset points"}
    return axes.annotate(text, (x, y), va="center", fontsize=8, **offset)


def _risk_line(axes: Axes, method: MethodRuns, style: MethodStyle, side: str) -> tuple[float, float] | None:
    """Draw the curve of a method's first run, with a band of all runs; the place of its letter."""
    curve = risk_curve(method.runs[0].sides[side].outcomes)
    runs = [run.sides[side].outcomes for run in method.runs if side in run.sides]
    if len([outcomes for outcomes in runs if outcomes.total]) > 1:
        low, high = risk_band(runs)
        axes.fill_between(BAND_COVERAGES, low, high, color=style.colour, alpha=0.15, linewidth=0)
    draw_risk_coverage(axes, curve, "")
    return (curve.coverage[-1], curve.risk[-1]) if curve.coverage else None


def cost_picture(methods: Sequence[MethodRuns]) -> Picture:
    """NLL on unfamiliar data against training time, inference time and size, a point per method."""
    check_methods(methods)
    styles = method_styles(len(methods))
    heights = [nll(method.runs[0].sides["unfamiliar"]) for method in methods]
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 3.1 + 0.17 * -(-len(methods) // 2)), layout="constrained")
        panels: Any = figure.subplots(1, 3, sharey=True)
        panels[0].set_ylabel("NLL on unfamiliar data, nats")
        key_below(
            figure, [point_key(style, method.label) for method, style in zip(methods, styles, strict=True)]
        )
        places = []
        for axes, (field, factor, label) in zip(panels, COSTS, strict=True):
            costs = [getattr(method, field) for method in methods]
            values = [math.nan if cost is None else factor * cost for cost in costs]
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
    every = zip(points, styles, strict=True)
    known = [((x, y), style) for (x, y), style in every if x > 0 and math.isfinite(x) and math.isfinite(y)]
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
