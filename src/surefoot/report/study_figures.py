"""The figures of one task of a study. To add one: write a function of a Drawable, and add it to FIGURES."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from surefoot.errors import InputError
from surefoot.evaluation.compare import DECIDING
from surefoot.evaluation.comparison import MethodRuns
from surefoot.evaluation.scores import SIDES
from surefoot.experiments.methods import METHODS
from surefoot.experiments.run import PartStudy
from surefoot.plots import (
    draw_strokes,
    draw_temperature_path,
    finish_risk_coverage,
    limit_risk,
    mark_keys,
    percent_axes,
)
from surefoot.plots.curves import single_temperature
from surefoot.report.study_curves import COVERAGES, MeanError, e99_bars, method_curve, risk_curves, runs_on
from surefoot.report.study_panels import confidence_picture, reliability_picture, toy_picture
from surefoot.report.study_verdict import shown_methods, time_to_run
from surefoot.report.style import (
    COLOURS,
    GREY,
    INK,
    METHOD_COLOURS,
    METHOD_MARKERS,
    MOST_METHODS,
    SMALL,
    MethodStyle,
    Picture,
    finished,
    key_below,
    key_height,
    method_styles,
    methods_style,
    panels,
    plain_text,
)
from surefoot.text import short_number

TOY_METHODS = ("ensemble", "distill", "g-distill")  # after two single networks, as in the paper
FEW = 4  # methods in a figure with panels for each
FAR_ABOVE = 1.8  # times the median NLL
ACROSS = 4  # methods in a line of a legend
HATCHES = {"familiar": "", "unfamiliar": "////"}
COSTS = (  # of MethodRuns: the field, the factor to the axis's unit, the label
    ("seconds_training", 1, "training time, seconds"),
    ("seconds_per_sample", 1000, "time per image, ms"),
)
HALF_WIDTH = 5.5  # inches; of the figure next to a table
NAMES_WIDTH = 2.65  # for names of methods
AREA = 24.0  # of the fastest method's point, in square points
MOST_AREA = 20.0  # times that

Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Drawable:
    """What a figure may draw: the methods with a run that was tested on both sides."""

    part: PartStudy
    methods: dict[str, MethodRuns]  # by name
    recommended: str | None  # the name of the method to use

    @property
    def shown(self) -> list[MethodRuns]:
        """Those of the short table."""
        names = [each.name for each in shown_methods(self.part.comparison, self.recommended)]
        return [method for name, method in self.methods.items() if name in names] or self.few

    @property
    def few(self) -> list[MethodRuns]:
        """For a figure with little space: those that a comparison needs."""
        comparison = self.part.comparison
        some = shown_methods(comparison, self.recommended, most=FEW)
        few = [method for method in self.methods.values() if method in some]
        return few or list(self.methods.values())[:1]

    @property
    def runs(self) -> str:
        """How many runs a figure is the mean of; ensembles may have fewer."""
        most = max(len(method.runs) for method in self.methods.values())
        return f"Means over {most} runs." if most > 1 else "From one run."


def overview(drawable: Drawable) -> Picture:
    """Familiar against unfamiliar NLL of every method; the first figure of the page."""
    comparison, methods = drawable.part.comparison, list(drawable.methods.values())
    named = [method.name for method in drawable.shown]
    times = {method.name: time_to_run(method, comparison) for method in methods}
    known = [time for time in times.values() if math.isfinite(time)]
    caption = f"{drawable.runs} Orange: recommended; grey: not in the table."
    if known and max(known) > min(known):
        ratio = max(known) / min(known)
        caption += f" The largest points take {ratio:.0f} times as long as the smallest."
    return replace(overview_picture(methods, named, drawable.recommended, times), caption=caption)


def overview_picture(
    methods: Sequence[MethodRuns], named: Collection[str], recommended: str | None, times: Mapping[str, float]
) -> Picture:
    """The NLL of every method on both sides, in the mean over runs; its area is its time per image.

    `named` methods are in the legend, the others grey; a time is infinite where it was not measured.
    """
    title = "NLL of every method; lower left is better. Area: time per image."
    familiar, unfamiliar = SIDES
    places = {m.name: (m.cells[familiar, DECIDING].mean, m.cells[unfamiliar, DECIDING].mean) for m in methods}
    drawn = [m for m in methods if np.isfinite(places[m.name]).all()]
    least = min((time for time in times.values() if math.isfinite(time)), default=1.0)
    ratios = {m.name: min(MOST_AREA, times.get(m.name, math.inf) / least) for m in drawn}
    looks = _overview_looks([m.name for m in drawn], named, recommended)
    keys = [
        Line2D([], [], linestyle="none", label=plain_text(m.label), markeredgecolor=INK, **looks[m.name])
        for m in drawn
        if m.name in named
    ]
    with rc_context(SMALL):
        margins = (0.7, 0.1, 0.55 + key_height(len(keys)))
        figure, ((axes,),) = panels(title, 2.45, width=HALF_WIDTH, margins=margins)
        axes.set(xscale="log", yscale="log", xlabel="NLL on familiar data", ylabel="NLL on unfamiliar data")
        for method in sorted(drawn, key=lambda m: -ratios[m.name]):
            line: Any = {"edgecolors": INK, "alpha": 0.75, "linewidths": 0.6}
            axes.scatter(*places[method.name], s=AREA * ratios[method.name], **looks[method.name], **line)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 8)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.margins(0.08, 0.08)
        key_below(figure, keys)
        return finished(figure, "overview", title)


def _overview_looks(
    names: Sequence[str], named: Collection[str], recommended: str | None
) -> dict[str, dict[str, Any]]:
    """Grey circles but for the named methods; only the recommended one is orange."""
    looks: dict[str, dict[str, Any]] = {name: {"color": GREY, "marker": "o"} for name in names}
    others = [name for name in names if name in named and name != recommended]
    colours = [colour for colour in METHOD_COLOURS if colour not in (COLOURS["unfamiliar"], "#e69f00")]
    for index, name in enumerate(others):
        marker = METHOD_MARKERS[index % len(METHOD_MARKERS)]
        looks[name] = {"color": colours[index % len(colours)], "marker": marker}
    if recommended in looks:
        looks[recommended] = {"color": COLOURS["unfamiliar"], "marker": "o"}
    return looks


def temperature_curves(drawable: Drawable) -> Picture | None:
    """NLL of both sides while T varies, for each kind of network that the paper has."""
    by_networks: dict[object, list[MethodRuns]] = {}
    for method in drawable.methods.values():
        if not (method.oracle or method.not_in_paper):
            by_networks.setdefault(METHODS.named(method.name).network_kind, []).append(method)

    def rank(method: MethodRuns) -> tuple[bool, bool, bool]:
        """First a method with one fitted T, which is on the curve; then without novelty; then calibrated."""
        calibration = method.runs[0].calibration
        uses_novelty = METHODS.named(method.name).novelty is not None
        return single_temperature(calibration) is None, uses_novelty, calibration is None

    methods = [min(of_networks, key=rank) for of_networks in by_networks.values()][:MOST_METHODS]
    if not methods:
        return None
    caption = (
        "A curve for each kind of network. Moving along it trades one side for the other; it ends "
        f"soon after it is worse on both than T = 1. {drawable.runs}"
    )
    return replace(temperature_picture(methods), caption=caption)


def temperature_picture(methods: Sequence[MethodRuns]) -> Picture:
    """NLL of both sides while T varies, a curve per method, with the point that was fitted."""
    title = "Familiar against unfamiliar NLL while the temperature T varies; lower left is better."
    with rc_context(methods_style(len(methods))):
        margins = (0.7, 0.15, 0.6 + key_height(len(methods), columns=ACROSS))
        figure, ((axes,),) = panels(title, 4.6, margins=margins)
        lines = [draw_temperature_path(axes, method_curve(m.runs), "", edge=INK) for m in methods]
        for line, method in zip(lines, methods, strict=True):
            line.set_label(plain_text(method.label))
        axes.set(xlabel="NLL on familiar data", ylabel="NLL on unfamiliar data")
        axes.legend(handles=mark_keys(calibrated=True, color=INK), loc="lower right")
        axes.margins(0.04, 0.08)
        key_below(figure, lines, columns=ACROSS)
        return finished(figure, "temperature-curves", title)


def toy_planes(drawable: Drawable) -> Picture | None:
    """The paper's panels, where the predictions are those of the whole plane."""
    kind, _, variant = drawable.part.plan.task.partition("/")
    singles = [drawable.methods["single"]] if "single" in drawable.methods else []
    methods = [
        replace(single, name=f"single-{number}", title=f"Single {number + 1}", runs=(run,))
        for single in singles
        for number, run in enumerate(single.runs[:2])
    ]
    methods += [drawable.methods[name] for name in TOY_METHODS if name in drawable.methods]
    if kind != "toy" or not drawable.part.part.task.startswith("toy") or not methods:
        return None
    try:
        picture = toy_picture(variant, methods)
    except InputError:  # a user's own task of that name
        return None
    return replace(picture, caption="As in the supplement of Li & Hoiem, with our own four data sets.")


def e99(drawable: Drawable) -> Picture:
    """E99 of the shown methods."""
    caption = f"Next to a bar: wrong of all predictions above 0.99, summed over runs. {drawable.runs}"
    return replace(e99_picture(drawable.shown), caption=caption)


def e99_picture(methods: Sequence[MethodRuns]) -> Picture:
    """E99 of some methods on both sides, with exact intervals and k of n next to each bar."""
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
        percent_axes(axes.xaxis)
        handles: list[Any] = [
            Patch(facecolor=COLOURS[side], hatch=HATCHES[side], edgecolor=INK, label=side) for side in SIDES
        ]
        allowed = Line2D([], [], color=GREY, linestyle=(0, (1, 1)), label="1%, the most that 0.99 allows")
        key_below(figure, [*handles, allowed], columns=3)
        return finished(figure, "e99", title)


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


def cost(drawable: Drawable) -> Picture:
    """Cost against NLL, without methods so far above the others that they would flatten the figure."""
    methods = drawable.shown
    heights = {method.name: method.cells["unfamiliar", DECIDING].mean for method in methods}
    limit = FAR_ABOVE * float(np.nanmedian(list(heights.values())))
    caption = "As measured in training; the time of a novelty score is not in the time per image."
    too_high = [f"{m.label} (NLL {heights[m.name]:.2f})" for m in methods if heights[m.name] > limit]
    if too_high:
        caption += f" Too high to draw: {', '.join(too_high)}."
    picture = cost_picture([m for m in methods if not heights[m.name] > limit])
    return replace(picture, caption=caption)


def cost_picture(methods: Sequence[MethodRuns]) -> Picture:
    """NLL on unfamiliar data against training time and time per image, a point per method."""
    styles = method_styles(len(methods))
    heights = [method.cells["unfamiliar", DECIDING].mean for method in methods]
    title = "What each method costs, against its NLL on unfamiliar data; lower left is better."
    with rc_context(SMALL):
        margins = (0.7, 0.15, 0.6 + key_height(len(methods), columns=ACROSS))
        figure, (both,) = panels(title, 3.4, 1, 2, sharey=True, gaps=(0.4, 0), margins=margins)
        both[0].set_ylabel("NLL on unfamiliar data")
        for axes, (field, factor, label) in zip(both, COSTS, strict=True):
            costs = [getattr(method, field) for method in methods]
            values = [math.nan if cost is None else factor * cost for cost in costs]
            _cost_panel(axes, label, list(zip(values, heights, strict=True)), styles)
        keys = [
            Line2D([], [], label=plain_text(method.label), markersize=6, **style.of_point)
            for method, style in zip(methods, styles, strict=True)
        ]
        key_below(figure, keys, columns=ACROSS)
        return finished(figure, "cost", title)


def _cost_panel(axes: Axes, label: str, points: Sequence[Point], styles: Sequence[MethodStyle]) -> None:
    """Draw the methods whose cost is known."""
    axes.set_xlabel(label)
    known = {i: (x, y) for i, (x, y) in enumerate(points) if x > 0 and math.isfinite(x) and math.isfinite(y)}
    if not known:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", style="italic")
        axes.set_xticks([])
        return
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


def reliability(drawable: Drawable) -> Picture:
    """Reliability diagrams of a few methods."""
    picture = reliability_picture(drawable.few)
    return replace(picture, caption=f"Bars are exact 95% intervals. {drawable.runs}")


def error_by_confidence(drawable: Drawable) -> Picture:
    """The error rate of a few methods by confidence."""
    picture = confidence_picture(drawable.few)
    return replace(picture, caption=f"Bars are exact 95% intervals. {drawable.runs}")


def risk_coverage(drawable: Drawable) -> Picture:
    """Risk-coverage curves of the shown methods."""
    return replace(risk_coverage_picture(drawable.shown), caption=drawable.runs)


def risk_coverage_picture(methods: Sequence[MethodRuns]) -> Picture:
    """The error rate when only the most confident share is accepted, in the mean over runs."""
    title = "The error rate when only each method's most confident predictions are accepted."
    styles = method_styles(len(methods))
    keys = [
        Line2D([], [], label=plain_text(method.label), **style.of_line)
        for method, style in zip(methods, styles, strict=True)
    ]
    with rc_context(SMALL):
        margins = (0.7, 0.3, 0.6 + key_height(len(methods), columns=ACROSS))
        figure, (both,) = panels(title, 3.6, 1, 2, margins=margins, gaps=(0.7, 0), titles=0.2)
        for axes, side in zip(both, SIDES, strict=True):
            for method, style in zip(methods, styles, strict=True):
                risks = risk_curves([predictions.outcomes for predictions in runs_on(method, side)])
                if len(risks):
                    axes.plot(COVERAGES, risks.mean(axis=0), **style.of_line)
            finish_risk_coverage(axes)
            limit_risk(axes)
            axes.set(ylabel="")
            axes.set_title(f"{side} data", loc="left", fontsize=9)
        both[0].set_ylabel("error among the accepted")
        key_below(figure, keys, columns=ACROSS)
        return finished(figure, "risk-coverage-methods", title)


FIGURES: tuple[Callable[[Drawable], Picture | None], ...] = (
    overview,
    temperature_curves,
    toy_planes,
    e99,
    cost,
    reliability,
    error_by_confidence,
    risk_coverage,
)


def part_figures(part: PartStudy, recommended: str | None) -> list[Callable[[], Picture | None]]:
    """What draws each figure, or gives None if the part does not have the predictions for it.

    There is none without both sides.
    """
    drawable = drawable_methods(part, recommended)
    return [partial(draw, drawable) for draw in FIGURES] if drawable.methods else []


def drawable_methods(part: PartStudy, recommended: str | None) -> Drawable:
    """The methods of a part whose first run was tested on both sides."""
    methods = [m for m in part.comparison.methods if m.runs and len(m.runs[0].sides) == len(SIDES)]
    return Drawable(part, {method.name: method for method in methods}, recommended)
