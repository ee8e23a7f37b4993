"""The figures of one task of a study."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from surefoot.errors import InputError
from surefoot.experiments.results import Result, Run
from surefoot.experiments.run import PartStudy
from surefoot.metrics import nll
from surefoot.predictions.predictions import Predictions
from surefoot.report.curves import Cost, MethodRun, temperature_curve_data
from surefoot.report.figures import cost_picture, e99_picture, risk_coverage_picture, temperature_picture
from surefoot.report.panels import ToyRow, confidence_picture, reliability_picture, toy_picture
from surefoot.report.style import LETTERS, Picture
from surefoot.tasks.task import Split

BOTH = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
FEW = ("single", "single-t", "ensemble", "ensemble-of-t", "g-distill", "bayesian")  # drawn in every figure
CURVES = (  # a curve for each kind of network: the first of a line that is there
    ("single-t", "single"),
    ("t-of-ensemble", "ensemble-of-t", "ensemble"),
    ("distill-t", "distill"),
    ("g-distill-t", "g-distill"),
    ("bayesian-t", "bayesian"),
)


def drawable(part: PartStudy) -> list[Result]:
    """Methods with a run that was tested on both sides."""
    return [result for result in part.results if result.runs and set(result.runs[0].after) >= set(BOTH)]


def all_drawn(part: PartStudy) -> list[MethodRun]:
    """The first run of every method; rows that cheat say so."""
    return [drawn(result) for result in drawable(part)]


def few_drawn(part: PartStudy, recommended: str | None) -> list[MethodRun]:
    """The methods that a figure with room for few shows; the recommended one is among them."""
    wanted = {*FEW, recommended}
    return [drawn(result) for result in drawable(part) if result.method.name in wanted]


def curves_drawn(part: PartStudy) -> tuple[list[MethodRun], dict[str, float]]:
    """A method for each kind of network, and the T that was fitted on validation."""
    results = {result.method.name: result for result in drawable(part)}
    found = [next((results[name] for name in line if name in results), None) for line in CURVES]
    there = [result for result in found if result is not None]
    fitted = {}
    for result in there:
        used = result.runs[0].calibration
        if used is not None and used.single_temperature is not None:
            fitted[result.method.name] = used.single_temperature
    return [drawn(result) for result in there], fitted


def drawn(result: Result, run: int = 0, title: str | None = None) -> MethodRun:
    """One run of a method, with all of them for bands."""
    shown = result.runs[run]
    name = title or (f"{result.method.title} (cheating)" if result.method.oracle else result.method.title)
    before = None if shown.calibration is None else (shown.before[BOTH[0]], shown.before[BOTH[1]])
    familiar, unfamiliar = _sides(shown)
    return MethodRun(
        f"{result.method.name}-{run}" if run else result.method.name,
        name,
        familiar,
        unfamiliar,
        before,
        tuple(_sides(each) for each in result.runs if set(each.after) >= set(BOTH)),
    )


def toy_drawn(part: PartStudy) -> list[MethodRun]:
    """Two single networks, the ensemble and the distilled, as in the paper's panels."""
    results = {result.method.name: result for result in drawable(part)}
    shown = []
    if "single" in results:
        singles = range(min(2, len(results["single"].runs)))
        shown += [drawn(results["single"], run, f"Single {run + 1}") for run in singles]
    return shown + [drawn(results[name]) for name in ("ensemble", "distill", "g-distill") if name in results]


def costs_of(results: Sequence[Result]) -> dict[str, Cost]:
    """What each method costs, as far as it was measured."""
    return {
        result.method.name: Cost(
            _number(result.seconds_training),
            1000 * _number(result.seconds_per_sample),
            _number(result.parameters),
        )
        for result in results
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _sides(run: Run) -> tuple[Predictions, Predictions]:
    return run.after[BOTH[0]], run.after[BOTH[1]]


STEPS = 48
TEMPERATURES = tuple(sorted({1.0, *np.geomspace(0.5, 5.0, STEPS + 1).round(4).tolist()}))
SLIDER_CURVES = (("single", "single-t"), ("ensemble", "t-of-ensemble"))  # a method, and who fits a T to it


def slider_data(part: PartStudy) -> dict[str, Any] | None:
    """Curves of the first run by T, and the T that validation chose; None without both sides."""
    results = {result.method.name: result for result in drawable(part)}
    curves = []
    for name, scaled in SLIDER_CURVES:
        if name not in results:
            continue
        before = results[name].runs[0].before
        curve: dict[str, Any] = temperature_curve_data(before[BOTH[0]], before[BOTH[1]], TEMPERATURES)
        used = results[scaled].runs[0].calibration if scaled in results else None
        fitted = None if used is None else used.single_temperature
        curves.append({**curve, "title": results[name].method.title, "fitted": fitted})
    return {"curves": curves, "start": TEMPERATURES.index(1.0)} if curves else None


FAR_ABOVE = 1.8  # times the median NLL
FIRST_RUN = "The first run is drawn."


@dataclass(frozen=True, eq=False)
class CaptionedFigure:
    """A picture and its caption."""

    picture: Picture
    caption: str


def part_pictures(part: PartStudy, name: str, recommended: str | None) -> list[CaptionedFigure]:
    """Every figure that the part has the predictions for, named after the part; none without both sides."""
    if not drawable(part):
        return []
    found = [*_curves(part), *_toy(part), *_methods(part, recommended)]
    return [
        replace(each, picture=replace(each.picture, name=f"{name}-{each.picture.name}")) for each in found
    ]


def _curves(part: PartStudy) -> Iterator[CaptionedFigure]:
    methods, fitted = curves_drawn(part)
    if methods:
        caption = (
            f"A curve for each kind of network. Moving along it trades one side for the other; it ends "
            f"soon after it is worse on both than T = 1. {FIRST_RUN}"
        )
        yield CaptionedFigure(temperature_picture(methods, fitted), caption)


def _methods(part: PartStudy, recommended: str | None) -> Iterator[CaptionedFigure]:
    everything = all_drawn(part)[: len(LETTERS)]
    few = few_drawn(part, recommended) or everything[:1]
    yield CaptionedFigure(e99_picture(everything), f"Every method. {FIRST_RUN}")
    near, caption = _within_sight(everything)
    yield CaptionedFigure(cost_picture(near, costs_of(drawable(part))), caption)
    yield CaptionedFigure(reliability_picture(few), f"Bars are exact 95% intervals. {FIRST_RUN}")
    yield CaptionedFigure(confidence_picture(few), f"Bars are exact 95% intervals. {FIRST_RUN}")
    yield CaptionedFigure(risk_coverage_picture(few), "Lines are the first run's.")


def _within_sight(methods: list[MethodRun]) -> tuple[list[MethodRun], str]:
    """Those that are not so far above the others that they would flatten them; the caption names the rest."""
    heights = {method.name: nll(method.unfamiliar) for method in methods}
    limit = FAR_ABOVE * float(np.nanmedian(list(heights.values())))
    far = [method for method in methods if heights[method.name] > limit]
    caption = (
        "As measured when the networks were trained; what a novelty score takes is not in the time per image."
    )
    if far:
        caption += f" Too high to draw: {', '.join(f'{m.title} (NLL {heights[m.name]:.2f})' for m in far)}."
    return [method for method in methods if method not in far], caption


def _toy(part: PartStudy) -> Iterator[CaptionedFigure]:
    """The paper's panels, where the predictions are those of the whole plane."""
    kind, _, variant = part.plan.task.partition("/")
    methods = toy_drawn(part)
    if kind != "toy" or not part.part.task.startswith("toy") or not methods:
        return
    try:
        picture = toy_picture([ToyRow(variant, tuple(methods))])
    except InputError:  # a toy of somebody's own
        return
    yield CaptionedFigure(picture, "As in the supplement of Li & Hoiem, with our own four data sets.")
