"""The figures of one task of a study. To add one: write a function, and add it to FIGURES."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from surefoot.errors import InputError
from surefoot.evaluation.compare import DECIDING
from surefoot.evaluation.comparison import MethodRuns
from surefoot.evaluation.scores import SIDES
from surefoot.experiments.methods import METHODS
from surefoot.experiments.run import PartStudy
from surefoot.plots.curves import single_temperature
from surefoot.report.choice import shown_methods, time_to_run
from surefoot.report.figures import (
    cost_picture,
    e99_picture,
    overview_picture,
    risk_coverage_picture,
    temperature_picture,
)
from surefoot.report.panels import ToyRow, confidence_picture, reliability_picture, toy_picture
from surefoot.report.style import MOST_METHODS, Picture

TOY_METHODS = ("ensemble", "distill", "g-distill")  # after two single networks, as in the paper
FEW = 4  # methods in a figure with panels for each
FAR_ABOVE = 1.8  # times the median NLL


@dataclass(frozen=True, eq=False)
class CaptionedFigure:
    """A picture and its caption."""

    picture: Picture
    caption: str


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


def temperature_curves(drawable: Drawable) -> CaptionedFigure | None:
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
    return CaptionedFigure(temperature_picture(methods), caption)


def toy_planes(drawable: Drawable) -> CaptionedFigure | None:
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
        picture = toy_picture([ToyRow(variant, tuple(methods))])
    except InputError:  # a user's own task of that name
        return None
    return CaptionedFigure(picture, "As in the supplement of Li & Hoiem, with our own four data sets.")


def overview(drawable: Drawable) -> CaptionedFigure:
    """Familiar against unfamiliar NLL of every method; the first figure of the page."""
    comparison, methods = drawable.part.comparison, list(drawable.methods.values())
    named = [method.name for method in drawable.shown]
    times = {method.name: time_to_run(method, comparison) for method in methods}
    known = [time for time in times.values() if math.isfinite(time)]
    caption = f"{drawable.runs} Orange: recommended; grey: not in the table."
    if known and max(known) > min(known):
        ratio = max(known) / min(known)
        caption += f" The largest points take {ratio:.0f} times as long as the smallest."
    return CaptionedFigure(overview_picture(methods, named, drawable.recommended, times), caption)


def e99(drawable: Drawable) -> CaptionedFigure:
    """E99 of the shown methods."""
    caption = f"Next to a bar: wrong of all predictions above 0.99, summed over runs. {drawable.runs}"
    return CaptionedFigure(e99_picture(drawable.shown), caption)


def cost(drawable: Drawable) -> CaptionedFigure:
    """Cost against NLL, without methods so far above the others that they would flatten the figure."""
    methods = drawable.shown
    heights = {method.name: method.cells["unfamiliar", DECIDING].mean for method in methods}
    limit = FAR_ABOVE * float(np.nanmedian(list(heights.values())))
    caption = "As measured in training; the time of a novelty score is not in the time per image."
    too_high = [f"{m.label} (NLL {heights[m.name]:.2f})" for m in methods if heights[m.name] > limit]
    if too_high:
        caption += f" Too high to draw: {', '.join(too_high)}."
    return CaptionedFigure(cost_picture([m for m in methods if not heights[m.name] > limit]), caption)


def reliability(drawable: Drawable) -> CaptionedFigure:
    """Reliability diagrams of a few methods."""
    picture = reliability_picture(drawable.few)
    return CaptionedFigure(picture, f"Bars are exact 95% intervals. {drawable.runs}")


def error_by_confidence(drawable: Drawable) -> CaptionedFigure:
    """The error rate of a few methods by confidence."""
    picture = confidence_picture(drawable.few)
    return CaptionedFigure(picture, f"Bars are exact 95% intervals. {drawable.runs}")


def risk_coverage(drawable: Drawable) -> CaptionedFigure:
    """Risk-coverage curves of the shown methods."""
    return CaptionedFigure(risk_coverage_picture(drawable.shown), drawable.runs)


FIGURES: tuple[Callable[[Drawable], CaptionedFigure | None], ...] = (
    overview,
    temperature_curves,
    toy_planes,
    e99,
    cost,
    reliability,
    error_by_confidence,
    risk_coverage,
)


def part_figures(part: PartStudy, recommended: str | None) -> list[Callable[[], CaptionedFigure | None]]:
    """What draws each figure, or gives None if the part does not have the predictions for it.

    There is none without both sides.
    """
    drawable = drawable_methods(part, recommended)
    return [partial(draw, drawable) for draw in FIGURES] if drawable.methods else []


def drawable_methods(part: PartStudy, recommended: str | None) -> Drawable:
    """The methods of a part whose first run was tested on both sides."""
    methods = [m for m in part.comparison.methods if m.runs and len(m.runs[0].sides) == len(SIDES)]
    return Drawable(part, {method.name: method for method in methods}, recommended)
