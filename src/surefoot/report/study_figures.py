"""The figures of one task, each with what to see in it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from surefoot.errors import InputError
from surefoot.metrics import nll
from surefoot.report.comparison_data import Drawn
from surefoot.report.comparison_figures import e99_picture, risk_coverage_picture, temperature_picture
from surefoot.report.cost_figures import cost_picture
from surefoot.report.panel_figures import confidence_picture, reliability_picture
from surefoot.report.study_drawn import (
    all_drawn,
    costs_of,
    curves_drawn,
    drawable,
    few_drawn,
    toy_drawn,
)
from surefoot.report.style import LETTERS, Picture
from surefoot.report.toy_figures import ToyRow, toy_picture
from surefoot.runner import PartStudy

FAR_ABOVE = 1.8  # times the median NLL
FIRST_RUN = "The first run is drawn."


@dataclass(frozen=True, eq=False)
class Shown:
    """A picture and its caption."""

    picture: Picture
    caption: str


def part_pictures(part: PartStudy, name: str, recommended: str | None) -> list[Shown]:
    """Every figure that the part has the predictions for, named after the part; none without both sides."""
    if not drawable(part):
        return []
    found = [*_curves(part), *_toy(part), *_methods(part, recommended)]
    return [
        replace(each, picture=replace(each.picture, name=f"{name}-{each.picture.name}")) for each in found
    ]


def _curves(part: PartStudy) -> Iterator[Shown]:
    methods, fitted = curves_drawn(part)
    if methods:
        caption = (
            f"A curve for each kind of network. Moving along it trades one side for the other; it ends "
            f"soon after it is worse on both than T = 1. {FIRST_RUN}"
        )
        yield Shown(temperature_picture(methods, fitted), caption)


def _methods(part: PartStudy, recommended: str | None) -> Iterator[Shown]:
    everything = all_drawn(part)[: len(LETTERS)]
    few = few_drawn(part, recommended) or everything[:1]
    yield Shown(e99_picture(everything), f"Every method. {FIRST_RUN}")
    near, caption = _within_sight(everything)
    yield Shown(cost_picture(near, costs_of(drawable(part))), caption)
    yield Shown(reliability_picture(few), f"Bars are exact 95% intervals. {FIRST_RUN}")
    yield Shown(confidence_picture(few), f"Bars are exact 95% intervals. {FIRST_RUN}")
    yield Shown(risk_coverage_picture(few), "Lines are the first run's.")


def _within_sight(methods: list[Drawn]) -> tuple[list[Drawn], str]:
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


def _toy(part: PartStudy) -> Iterator[Shown]:
    """The paper's panels, where the predictions are those of the whole plane."""
    kind, _, variant = part.plan.task.partition("/")
    methods = toy_drawn(part)
    if kind != "toy" or not part.part.task.startswith("toy") or not methods:
        return
    try:
        picture = toy_picture([ToyRow(variant, tuple(methods))])
    except InputError:  # a toy of somebody's own
        return
    yield Shown(picture, "As in the supplement of Li & Hoiem, with our own four data sets.")
