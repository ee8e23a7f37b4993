"""The figures as SVG text: one style, readable in black and white, in the dark and by the colour-blind."""

from collections.abc import Mapping
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from surefoot.report.data import Histogram, Reliability, RiskCoverage, TemperatureCurve
from surefoot.report.style import COLOURS, GREY, LINES, MARKERS, STYLE, svg_of


def reliability_figure(side: str, calibrated: Reliability, before: Reliability | None) -> str:
    """Accuracy against confidence, ten equal-mass bins, counts below, the noise band around the diagonal."""
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 5.0), layout="constrained")
        upper, lower = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
        shown = calibrated
        order = sorted(range(len(shown.number)), key=lambda i: shown.confidence[i])
        sorted_confidence = [shown.confidence[i] for i in order]
        upper.plot([0, 1], [0, 1], color=GREY, linewidth=1)
        upper.fill_between(
            sorted_confidence,
            [shown.band_low[i] for i in order],
            [shown.band_high[i] for i in order],
            color=GREY,
            alpha=0.3,
            linewidth=0,
            label="if calibrated, 95%",
        )
        if before is not None:
            label = "before calibration"
            upper.plot(before.confidence, before.accuracy, "x", color=GREY, markersize=6, label=label)
        down = [max(0.0, a - low) for a, low in zip(shown.accuracy, shown.low, strict=True)]
        up = [max(0.0, high - a) for a, high in zip(shown.accuracy, shown.high, strict=True)]
        upper.errorbar(
            shown.confidence,
            shown.accuracy,
            yerr=(down, up),
            fmt=MARKERS[side],
            color=COLOURS[side],
            capsize=2,
            label=side,
        )
        upper.set(ylabel="accuracy", xlim=(_lowest(shown, before), 1.01), ylim=(-0.02, 1.02))
        figure.legend(loc="outside upper left", ncols=3, fontsize=9, columnspacing=1, handletextpad=0.4)
        lower.vlines(shown.confidence, 0, shown.number, color=COLOURS[side], linewidth=4)
        lower.set(xlabel="confidence", ylabel="count", ylim=(0, max(shown.number) * 1.1))
        lower.set_title(f"n = {sum(shown.number):,.0f} in {len(shown.number)} bins", loc="left", fontsize=9)
        return svg_of(figure, f"reliability-{side}", f"Reliability diagram, {side}")


def histogram_figure(sides: Mapping[str, Histogram]) -> str:
    """How often the model is how sure."""
    with rc_context(STYLE):
        figure, axes = _one_axes()
        for side, shown in sides.items():
            axes.stairs(
                shown.share, shown.edges, color=COLOURS[side], linestyle=LINES[side], linewidth=2, label=side
            )
        axes.set(xlabel="confidence", ylabel="share of answers")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.legend(loc="upper left")
        return svg_of(figure, "histogram", "Histogram of confidences")


def risk_coverage_figure(sides: Mapping[str, RiskCoverage]) -> str:
    """The error rate left when only the most confident share is answered."""
    with rc_context(STYLE):
        figure, axes = _one_axes()
        for side, shown in sides.items():
            style: Any = {"color": COLOURS[side], "linestyle": LINES[side], "linewidth": 2, "label": side}
            axes.plot(shown.coverage, shown.risk, **style)
        axes.set(xlabel="coverage: share answered, most confident first", ylabel="error among the answered")
        axes.set(xlim=(0, 1), ylim=(0, None))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.legend(loc="upper left")
        return svg_of(figure, "risk-coverage", "Risk against coverage")


def temperature_figure(curve: TemperatureCurve) -> str:
    """NLL on both sides while T varies: triangle uncalibrated, X calibrated, dots from T = 2 by 0.25."""
    with rc_context(STYLE):
        figure, axes = _one_axes()
        axes.plot(curve.familiar, curve.unfamiliar, color=GREY, linewidth=1.5)
        dots = [i for i, t in enumerate(curve.temperature) if t >= 2 and t * 4 == round(t * 4)]
        points = [curve.familiar[i] for i in dots], [curve.unfamiliar[i] for i in dots]
        axes.plot(*points, "o", color=GREY, markersize=3.5, label="T = 2, 2.25, ...")
        one = curve.temperature.index(1.0)
        here = curve.familiar[one], curve.unfamiliar[one]
        axes.plot(*here, "^", color=COLOURS["unfamiliar"], markersize=10, label="uncalibrated, T = 1")
        if curve.fitted is not None:
            t, x, y = curve.fitted
            axes.plot(x, y, "X", color=COLOURS["familiar"], markersize=10, label=f"calibrated, T = {t:.2f}")
        _label_temperatures(axes, curve)
        axes.set(xlabel="NLL, familiar", ylabel="NLL, unfamiliar")
        axes.legend(loc="best")
        return svg_of(figure, "temperature", "Familiar against unfamiliar NLL as T varies")


def _one_axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    return figure, figure.subplots()


def _lowest(*shown: Reliability | None) -> float:
    lowest = min(value for each in shown if each is not None for value in each.confidence)
    return max(0.0, lowest - 0.03)


def _label_temperatures(axes: Axes, curve: TemperatureCurve) -> None:
    for i, t in enumerate(curve.temperature):
        if t in (0.5, 2, 4, 8):
            place = curve.familiar[i], curve.unfamiliar[i]
            axes.annotate(f"{t:g}", place, xytext=(5, 5), textcoords="offset points", color=GREY, fontsize=9)
