"""The figures that set methods side by side: curves and points, a letter for each method."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation

from surefoot.metrics.proper import CLIP
from surefoot.report.comparison_data import (
    BAND_COVERAGES,
    DOTS,
    SIDES,
    Drawn,
    MethodCurve,
    check_methods,
    e99_bars,
    method_curves,
    risk_band,
    risk_curve,
)
from surefoot.report.labels import label_ends, place_labels
from surefoot.report.style import (
    COLOURS,
    GREY,
    INK,
    SMALL,
    WIDTH,
    MethodStyle,
    Picture,
    finished,
    key_below,
    lay_out,
    line_key,
    method_styles,
    percent_ticks,
    plain_text,
)
from surefoot.statistics import Proportion

HATCHES = {"familiar": "", "unfamiliar": "////"}


def metric_definitions_picture() -> Picture:
    """What each metric charges one answer to a yes-or-no question, by the probability of the truth."""
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        axes = figure.subplots()
        p = np.linspace(0, 1, 401)
        penalties = {
            "NLL, clipped": -np.log(np.clip(p, *CLIP)),
            "Brier, squared error": (1 - p) ** 2,
            "label error": np.where(p < 0.5, 1.0, 0.0),
        }
        for style, (label, penalty) in zip(method_styles(3), penalties.items(), strict=True):
            axes.plot(p, penalty, label=label, **style.of_line)
        axes.set(xlabel="probability given to the true label", ylabel="penalty", xlim=(0, 1), ylim=(0, 7))
        axes.legend(loc="upper right")
        title = "NLL punishes a confident mistake far more than the Brier score and label error do."
        return finished(figure, "metric-definitions", title)


def e99_picture(methods: Sequence[Drawn]) -> Picture:
    """E99 of every method on both sides, with exact intervals and k of n beside each bar."""
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
        axes.set_yticks(range(len(methods)), [plain_text(method.title) for method in methods])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("error rate among answers above 0.99 confidence")
        percent_ticks(axes.xaxis)
        handles: list[Any] = [
            Patch(facecolor=COLOURS[side], hatch=HATCHES[side], edgecolor=INK, label=side) for side in SIDES
        ]
        allowed = Line2D([], [], color=GREY, linestyle=(0, (1, 1)), label="1%, the most that 0.99 allows")
        key_below(figure, [*handles, allowed], columns=3)
        title = "How often each method is wrong when it is more than 99% sure, with exact 95% intervals."
        return finished(figure, "e99", title)


def temperature_picture(methods: Sequence[Drawn], fitted: Mapping[str, float] | None = None) -> Picture:
    """NLL of both sides while T varies, a curve per method; `fitted` is the T from val by method name."""
    check_methods(methods)
    curves = method_curves(methods, fitted or {})
    styles = method_styles(len(methods))
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
        axes = figure.subplots()
        for method, style in zip(methods, styles, strict=True):
            _temperature_curve(axes, curves[method.name], style)
        axes.set(xlabel="NLL on familiar data, nats", ylabel="NLL on unfamiliar data, nats")
        marks: Any = {"linestyle": "none", "color": INK}
        marked = [
            Line2D([], [], marker="^", markersize=8, label="uncalibrated, T = 1", **marks),
            Line2D([], [], marker="X", markersize=8, label="calibrated on validation data", **marks),
            Line2D([], [], marker=".", markersize=5, label="T = 2, 2.25, ..., at most 6", **marks),
        ]
        axes.legend(handles=marked, loc="best")
        key_below(figure, [line_key(style, m.title) for m, style in zip(methods, styles, strict=True)])
        title = "Familiar against unfamiliar NLL while the temperature T varies; lower left is better."
        lay_out(figure, title)
        starts = {s.letter: curves[m.name].uncalibrated for m, s in zip(methods, styles, strict=True)}
        starts = {letter: start for letter, start in starts.items() if np.isfinite(start).all()}
        place_labels(axes, list(starts.values()), list(starts))
        return finished(figure, "temperature-curves", title)


def risk_coverage_picture(methods: Sequence[Drawn]) -> Picture:
    """The error left when only the most confident share is answered; bands where several runs are given."""
    check_methods(methods)
    styles = method_styles(len(methods))
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
        panels: Any = figure.subplots(1, 2)
        ends = {
            side: [_risk_line(panels[i], m, s, side) for m, s in zip(methods, styles, strict=True)]
            for i, side in enumerate(SIDES)
        }
        for axes, side in zip(panels, SIDES, strict=True):
            axes.set(xlabel="share answered, most confident first", xlim=(0, 1), ylim=(0, None))
            axes.set_title(f"{side} data", loc="left", fontsize=9)
            for axis in (axes.xaxis, axes.yaxis):
                percent_ticks(axis)
        panels[0].set_ylabel("error rate among the answered")
        key_below(
            figure, [line_key(style, method.title) for method, style in zip(methods, styles, strict=True)]
        )
        bands = "; bands hold all runs" if any(len(method.runs) > 1 for method in methods) else ""
        title = (
            f"The error rate that is left when each method answers only where it is most confident{bands}."
        )
        lay_out(figure, title)
        for axes, side in zip(panels, SIDES, strict=True):
            shown = [(end, style) for end, style in zip(ends[side], styles, strict=True) if end is not None]
            label_ends(axes, [end for end, _ in shown], [style.letter for _, style in shown])
        return finished(figure, "risk-coverage-methods", title)


def _e99_bar(axes: Axes, row: float, shown: Proportion, side: str) -> None:
    if not shown.n:
        _beside(axes, 0, row, "no sample above 0.99").set_fontstyle("italic")
        return
    axes.barh(
        row, shown.value, height=0.36, color=COLOURS[side], hatch=HATCHES[side], edgecolor=INK, linewidth=0.6
    )
    ends = [[max(0.0, shown.value - shown.low)], [max(0.0, shown.high - shown.value)]]
    axes.errorbar(shown.value, row, xerr=ends, fmt="none", color=INK, capsize=2, linewidth=1)
    _beside(axes, shown.high, row, f"{shown.k:,} of {shown.n:,}")


def _beside(axes: Axes, x: float, y: float, text: str) -> Annotation:
    """Small text a little to the right; by an offset, as a page drops the spaces that begin a text."""
    away: Any = {"xytext": (6, 0), "textcoords": "offset points"}
    return axes.annotate(text, (x, y), va="center", fontsize=8, **away)


def _temperature_curve(axes: Axes, curve: MethodCurve, style: MethodStyle) -> None:
    axes.plot(curve.familiar, curve.unfamiliar, alpha=0.8, **style.of_line)
    dots = [i for i, temperature in enumerate(curve.temperature) if temperature in DOTS]
    points = [curve.familiar[i] for i in dots], [curve.unfamiliar[i] for i in dots]
    axes.plot(*points, ".", color=style.colour, markersize=4)
    marks: Any = {"color": style.colour, "markersize": 9, "markeredgecolor": INK, "markeredgewidth": 0.6}
    axes.plot(*curve.uncalibrated, "^", **marks)
    if curve.calibrated is not None:
        axes.plot(*curve.calibrated, "X", **marks)


def _risk_line(axes: Axes, method: Drawn, style: MethodStyle, side: str) -> tuple[float, float] | None:
    """Draw a method's curve; where its letter belongs."""
    shown = risk_curve(method.sides[side].outcomes)
    runs = [run[SIDES.index(side)].outcomes for run in method.runs]
    if len([outcomes for outcomes in runs if outcomes.total]) > 1:
        low, high = risk_band(runs)
        axes.fill_between(BAND_COVERAGES, low, high, color=style.colour, alpha=0.15, linewidth=0)
    if not shown.coverage:
        return None
    axes.plot(shown.coverage, shown.risk, **style.of_line)
    return shown.coverage[-1], shown.risk[-1]
