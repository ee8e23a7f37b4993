"""Plots on your own axes: each function draws on `ax`, or on a new figure, and returns the axes.

`predictions` are one `Predictions`, or several by name in a dictionary. Colours, line styles and markers are
those of matplotlib's style (`axes.prop_cycle`); the reports use the same functions with a style of their own.

>>> from matplotlib.figure import Figure
>>> val = Predictions.from_logits([[2.0, 0.0], [0.0, 2.0]] * 100, labels=[0, 1, 0, 0] * 50)
>>> left, right = Figure().subplots(1, 2)
>>> reliability({"before": val, "after": fit_temperature(val)(val)}, ax=left).get_ylabel()
'accuracy'
>>> risk_coverage(val, ax=right) is right
True
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from surefoot.arguments import checked
from surefoot.calibrators import Calibration
from surefoot.calibrators.temperature import fit_temperature
from surefoot.errors import InputError
from surefoot.evaluation import RESAMPLES
from surefoot.evaluation.evaluate import evaluate
from surefoot.intervals import Interval
from surefoot.metrics import METRICS, Better, Metric
from surefoot.plots import curves
from surefoot.predictions.labels import LabelKind, refuse_other_classifier
from surefoot.predictions.predictions import Predictions

__all__ = [
    "calibration_map",
    "compare_methods",
    "confidence_histogram",
    "nll_familiar_vs_unfamiliar",
    "reliability",
    "risk_coverage",
    "temperature_curve",
]


def __dir__() -> list[str]:
    return __all__


Named = Predictions | Mapping[str, Predictions]

GREY = "#8c8c8c"
# Every property, so that it takes none from `axes.prop_cycle`
DIAGONAL: Any = {"color": GREY, "linewidth": 1, "linestyle": "-", "marker": ""}
LONGEST_LABEL = 40  # characters
COUNT_SHARE = 0.2  # of a reliability diagram's height, for the tallest bar of counts
SHOWN_TEMPERATURES = (0.5, 2, 4, 8)  # written next to their points
MARKS = {"^": "uncalibrated, T = 1", "X": "calibrated", ".": "T = 2, 2.25, ..."}


@checked
def reliability(predictions: Named, ax: Axes | None = None) -> Axes:
    """Accuracy against confidence in ten bins of equal size, with exact 95% intervals.

    On the diagonal, confidence equals accuracy; below it, the model is overconfident. The band is where the
    bins of a calibrated model would fall by chance, the histogram at the foot shows the confidences.

    >>> reliability({"familiar": test, "unfamiliar": unfamiliar})  # doctest: +SKIP
    """
    named, axes = _named(predictions), given_or_new(ax)
    lowest = min(curves.lowest_confidence(p) for p in named.values())
    for name, each in named.items():
        bins, counts = curves.reliability(each.outcomes), curves.histogram(lowest, each.outcomes)
        draw_reliability(axes, bins, counts, name)
    axes.set(xlabel="confidence", ylabel="accuracy")
    return _with_legend(axes, named)


@checked
def confidence_histogram(predictions: Named, ax: Axes | None = None) -> Axes:
    """The share of the predictions at each confidence.

    >>> confidence_histogram({"familiar": test, "unfamiliar": unfamiliar})  # doctest: +SKIP
    """
    named, axes = _named(predictions), given_or_new(ax)
    for name, each in named.items():
        draw_histogram(axes, curves.histogram(curves.lowest_confidence(each), each.outcomes), name)
    axes.set(xlabel="confidence", ylabel="share of predictions")
    return _with_legend(axes, named, loc="upper left")


@checked
def risk_coverage(predictions: Named, ax: Axes | None = None) -> Axes:
    """The error rate among the most confident predictions, as more of them are accepted.

    >>> risk_coverage({"before": test, "after": calibration(test)})  # doctest: +SKIP
    """
    named, axes = _named(predictions), given_or_new(ax)
    for name, each in named.items():
        draw_risk_coverage(axes, curves.risk_coverage(each.outcomes.pooled_curve), name)
    finish_risk_coverage(axes)
    return _with_legend(axes, named)


@checked
def temperature_curve(predictions: Named, ax: Axes | None = None) -> Axes:
    """NLL (not clipped) as the logits are divided by T; a point marks the T that `fit_temperature` finds.

    >>> temperature_curve({"familiar": test, "unfamiliar": unfamiliar})  # doctest: +SKIP
    """
    named, axes = _named(predictions), given_or_new(ax)
    fits = {name: fit_temperature(each) for name, each in named.items()}
    marked = [fit.temperature for fit in fits.values() if not fit.at_bound]
    low, high = min(0.5, *marked) / 1.1, max(4.0, *marked) * 1.1
    temperatures = sorted({*np.geomspace(low, high, 60).tolist(), *marked})
    for name, each in named.items():
        values = curves.nll_by_temperature(curves.some_rows(each), temperatures, clip=(0.0, 1.0))
        style, best = Style(axes), fits[name].temperature
        if fits[name].at_bound:  # no T is best
            axes.plot(temperatures, values, **style.line, label=name or None)
            continue
        axes.plot(temperatures, values, **style.line, label=f"{name}, T = {best:.2f}".removeprefix(", "))
        axes.plot(best, values[temperatures.index(best)], **style.point("o"))
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [t for t in (0.01, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32, 100) if low <= t <= high]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="temperature T", ylabel="NLL")
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    return axes


@checked
def nll_familiar_vs_unfamiliar(
    familiar: Named,
    unfamiliar: Named,
    ax: Axes | None = None,
    *,
    calibration: Calibration | Mapping[str, Calibration] | None = None,
) -> Axes:
    """NLL on familiar against NLL on unfamiliar data while T varies; lower left is better.

    Triangle: T = 1; X: the T of the calibration of that name; dots: T = 2, 2.25, ... Give the predictions
    before calibration.

    >>> nll_familiar_vs_unfamiliar(test, unfamiliar, calibration=calibration)  # doctest: +SKIP
    """
    sides, axes = _both_sides(familiar, unfamiliar), given_or_new(ax)
    given = {"": calibration} if isinstance(calibration, Calibration) else dict(calibration or {})
    _refuse_names("calibration", given, sides)
    for name, (first, second) in sides.items():
        temperature = given[name].single_temperature if name in given else None
        if name in given and temperature is None:
            raise InputError(f"the calibration {name!r} is not one temperature; allowed: one that is")
        curve = curves.temperature_curve(first, second, fitted=temperature)
        draw_temperature_path(axes, curve, name)
        if len(sides) == 1:
            write_temperatures(axes, curve)
    axes.set(xlabel="NLL, familiar", ylabel="NLL, unfamiliar")
    lines, labels = axes.get_legend_handles_labels()
    marks = mark_keys(calibrated=bool(given))
    # The curve is open to the right: usually there is space within it.
    axes.legend([*lines, *marks], [*labels, *(str(mark.get_label()) for mark in marks)], loc="center right")
    return axes


@checked
def compare_methods(
    familiar: Named,
    unfamiliar: Named | None = None,
    ax: Axes | None = None,
    *,
    metric: str | Metric = "nll",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Axes:
    """A metric of several predictions with its 95% interval, on familiar and on unfamiliar data.

    >>> named = {"network": test, "calibrated": calibration(test)}  # doctest: +SKIP
    >>> compare_methods(named, metric="ece")  # doctest: +SKIP
    """
    chosen = METRICS.named(metric) if isinstance(metric, str) else metric
    sides: Mapping[str, tuple[Predictions, ...]] = (
        {name: (each,) for name, each in _named(familiar).items()}
        if unfamiliar is None
        else _both_sides(familiar, unfamiliar)
    )
    rows = {}
    for name, given in sides.items():
        scores = evaluate(*given, metrics=[chosen], resamples=resamples, seed=seed).sides
        rows[name] = {
            side: Interval(score.value, score.low, score.high)
            for side, score in ((side, each.metrics[chosen.name]) for side, each in scores.items())
        }
    return draw_intervals(given_or_new(ax), rows, axis_label(chosen.title, chosen.better))


@checked
def calibration_map(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """The confidence before against the confidence after a calibration, the other classes being equal.

    A calibration that needs a novelty has a line for each of 0, 0.5 and 1.

    >>> calibration_map(fit_calibration("isotonic", val))  # doctest: +SKIP
    """
    axes, classes = given_or_new(ax), calibration.classes
    lowest = 0.5 if calibration.label_kind is LabelKind.MANY_LABELS else 1 / classes
    before = np.linspace(lowest + 1e-4, 1 - 1e-6, 200)
    logits = np.zeros((calibration.needs_members or 1, len(before), classes))
    if calibration.label_kind is LabelKind.MANY_LABELS:
        logits += np.log(before / (1 - before))[:, None]
    else:
        logits[:, :, 0] = np.log(before / (1 - before) * (classes - 1))
    axes.plot([lowest, 1], [lowest, 1], **DIAGONAL)
    for novelty in (0.0, 0.5, 1.0) if calibration.needs_novelty else (None,):
        given = None if novelty is None else np.full(len(before), novelty)
        every = Predictions.from_logits(
            logits,
            None,
            kind=calibration.label_kind,
            novelty=given,
            class_names=calibration.class_names,
        )
        after = calibration(every).probs()[:, 0]
        label = _short_summary(calibration) if novelty is None else f"novelty {novelty:g}"
        axes.plot(before, after, **Style(axes).line, label=label)
    axes.set(xlabel="confidence before", ylabel="confidence after", xlim=(lowest, 1), ylim=(lowest, 1))
    percent_axes(axes.xaxis, axes.yaxis)
    axes.legend()
    return axes


def _short_summary(calibration: Calibration) -> str:
    """Its numbers, or its kind where they would not fit a legend."""
    summary = calibration.summary()
    return summary if len(summary) <= LONGEST_LABEL else calibration.kind


class Style:
    """The colour, line and marker that matplotlib's style has next for these axes."""

    def __init__(self, axes: Axes) -> None:
        (drawn,) = axes.plot([], [])  # takes the next of `axes.prop_cycle`
        self.colour, self.linestyle, self.marker = (
            drawn.get_color(),
            drawn.get_linestyle(),
            drawn.get_marker(),
        )
        drawn.remove()

    @property
    def line(self) -> dict[str, Any]:
        """For a line without markers."""
        return {"color": self.colour, "linestyle": self.linestyle, "marker": ""}

    def point(self, default: str) -> dict[str, Any]:
        """For points without a line; `default` is their marker if the style has none."""
        marker = default if self.marker in ("None", "none", "", " ", None) else self.marker
        return {"color": self.colour, "linestyle": "none", "marker": marker}


def draw_reliability(
    axes: Axes, bins: curves.Reliability, counts: curves.Histogram, name: str, *, markersize: float = 5
) -> None:
    """One reliability diagram; nothing but the diagonal where there are no labels."""
    if not axes.lines:
        axes.plot([0, 1], [0, 1], **DIAGONAL)
    axes.set(xlim=(counts.edges[0] - 0.02, 1.02), ylim=(-0.02, 1.02))
    if not bins.number:
        return
    style = Style(axes)
    heights = np.asarray(counts.share) * COUNT_SHARE / max(counts.share)
    axes.stairs(heights, counts.edges, color=style.colour, fill=True, alpha=0.25)
    order = np.argsort(bins.confidence)
    x, low, high = (np.asarray(values)[order] for values in (bins.confidence, bins.band_low, bins.band_high))
    axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
    draw_strokes(axes, bins.confidence, bins.low, bins.high, style.colour, 1.0)
    axes.plot(
        bins.confidence, bins.accuracy, markersize=markersize, label=name or "accuracy", **style.point("o")
    )


def draw_histogram(axes: Axes, histogram: curves.Histogram, name: str) -> None:
    """One histogram of shares."""
    style = Style(axes)
    line: Any = {"color": style.colour, "linestyle": style.linestyle, "label": name or None}
    axes.stairs(histogram.share, histogram.edges, linewidth=2, **line)
    percent_axes(axes.yaxis)


def draw_risk_coverage(axes: Axes, curve: curves.RiskCoverage, name: str) -> Style:
    """One risk-coverage curve; nothing where there are no labels."""
    style = Style(axes)
    axes.plot(curve.coverage, curve.risk, label=name or None, **style.line)
    return style


def finish_risk_coverage(axes: Axes) -> None:
    """The limits and labels, after all curves are drawn: matplotlib scales the axes no more after it."""
    axes.set(xlabel="coverage: share accepted, most confident first", ylabel="error among the accepted")
    axes.set(xlim=(0, 1), ylim=(0, None))
    percent_axes(axes.xaxis, axes.yaxis)


def limit_risk(axes: Axes) -> None:
    """Heights that a few wrong predictions at very low coverage do not decide."""
    drawn = [np.asarray(line.get_data(), dtype=np.float64).tolist() for line in axes.lines]
    highest = max((curves.highest_risk(coverage, risk) for coverage, risk in drawn), default=0.0)
    if highest > 0:
        axes.set_ylim(0, min(1.02, 1.15 * highest))


def draw_temperature_path(
    axes: Axes, curve: curves.TemperatureCurve, name: str, *, edge: str = "none"
) -> Line2D:
    """NLL of both sides while T varies: triangle T = 1, X calibrated, dots from T = 2 by 0.25."""
    style = Style(axes)
    (line,) = axes.plot(curve.familiar, curve.unfamiliar, alpha=0.8, label=name or None, **style.line)
    dots = [i for i, t in enumerate(curve.temperature) if t >= 2 and t * 4 == round(t * 4)]
    points = [curve.familiar[i] for i in dots], [curve.unfamiliar[i] for i in dots]
    axes.plot(*points, ".", color=style.colour, markersize=4)
    mark: Any = {"color": style.colour, "markersize": 9, "markeredgecolor": edge, "markeredgewidth": 0.6}
    axes.plot(*curve.uncalibrated, "^", **mark)
    if curve.calibrated is not None:
        axes.plot(*curve.calibrated, "X", **mark)
    return line


def write_temperatures(axes: Axes, curve: curves.TemperatureCurve) -> None:
    """Write a few temperatures next to their points, within the axes."""
    axes.margins(0.12, 0.1)
    for t, x, y in zip(curve.temperature, curve.familiar, curve.unfamiliar, strict=True):
        if t in SHOWN_TEMPERATURES:
            side = -1 if t < 1 else 1  # the curve goes to the right on both ends, more so below 1
            offset: Any = {
                "xytext": (5 * side, 5),
                "textcoords": "offset points",
                "ha": "right" if t < 1 else "left",
            }
            axes.annotate(f"T = {t:g}", (x, y), color=GREY, fontsize="small", **offset)


def mark_keys(*, calibrated: bool, **marks: Any) -> list[Line2D]:
    """Legend entries for the points of `draw_temperature_path`."""
    return [
        Line2D([], [], marker=marker, linestyle="none", label=label, **{"color": GREY} | marks)
        for marker, label in MARKS.items()
        if calibrated or marker != "X"
    ]


def draw_intervals(axes: Axes, rows: Mapping[str, Mapping[str, Interval]], label: str) -> Axes:
    """Values with intervals, a row for each name, from the top; one style for each key within the rows."""
    keys = list(dict.fromkeys(key for row in rows.values() for key in row))
    for place, key in enumerate(keys):
        style = Style(axes)
        given = {y: row[key] for y, row in enumerate(rows.values()) if key in row}
        heights = [y + (place - (len(keys) - 1) / 2) * 0.5 / len(keys) for y in given]
        values = [each.value for each in given.values()]
        draw_strokes(
            axes,
            heights,
            [each.low for each in given.values()],
            [each.high for each in given.values()],
            style.colour,
            1.5,
            across=True,
        )
        axes.plot(values, heights, label=key, **style.point("o"))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set(xlabel=label, ylim=(len(rows) - 0.5, -0.5))
    if len(keys) > 1:
        axes.legend()
    return axes


def draw_strokes(
    axes: Axes, x: Any, low: Any, high: Any, colour: Any, width: float, *, across: bool = False
) -> None:
    """Vertical strokes (or horizontal ones at heights x), as one line with gaps: a tenth of the SVG size."""
    gap = np.full(len(x), np.nan)
    places, ends = np.column_stack([x, x, gap]).ravel(), np.column_stack([low, high, gap]).ravel()
    line: Any = {"color": colour, "linewidth": width, "linestyle": "-", "marker": ""}
    axes.plot(*((ends, places) if across else (places, ends)), solid_capstyle="butt", **line)


def percent_axes(*axes: Axis) -> None:
    """Write shares as percentages."""
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))


def axis_label(title: str, better: Better) -> str:
    """A metric's title, and which direction is better."""
    return f"{title} ({better} is better)" if better in ("lower", "higher") else title


def _named(predictions: Named) -> dict[str, Predictions]:
    if isinstance(predictions, Predictions):
        return {"": predictions}
    if not predictions:
        raise InputError("no predictions to draw; allowed: one or more")
    return {str(name): each for name, each in predictions.items()}


def _both_sides(familiar: Named, unfamiliar: Named) -> dict[str, tuple[Predictions, ...]]:
    first, second = _named(familiar), _named(unfamiliar)
    _refuse_names("familiar", first, second)
    _refuse_names("unfamiliar", second, first)
    for name, each in first.items():
        refuse_other_classifier({"familiar": each, "unfamiliar": second[name]})
    return {name: (each, second[name]) for name, each in first.items()}


def _refuse_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    have = list(known)
    for name in names:
        if name not in have:
            raise InputError(f"{what} has the name {name!r}, the other side has: {', '.join(have)}")


@checked
def given_or_new(ax: Axes | None) -> Axes:
    """These axes, or those of a new figure."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def _with_legend(axes: Axes, named: Mapping[str, Predictions], **options: Any) -> Axes:
    if list(named) != [""]:
        axes.legend(**options)
    return axes
