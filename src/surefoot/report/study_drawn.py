"""A part's results as the figures take them."""

import math
from collections.abc import Sequence

from surefoot.calibrators import BudgetTemperature, Temperature
from surefoot.predictions import Predictions
from surefoot.report.comparison_data import Cost, Drawn
from surefoot.results import Result, Run
from surefoot.runner import PartStudy
from surefoot.tasks.base import Split

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


def all_drawn(part: PartStudy) -> list[Drawn]:
    """The first run of every method; rows that cheat say so."""
    return [drawn(result) for result in drawable(part)]


def few_drawn(part: PartStudy, recommended: str | None) -> list[Drawn]:
    """The methods that a figure with room for few shows; the recommended one is among them."""
    wanted = {*FEW, recommended}
    return [drawn(result) for result in drawable(part) if result.method.name in wanted]


def curves_drawn(part: PartStudy) -> tuple[list[Drawn], dict[str, float]]:
    """A method for each kind of network, and the T that was fitted on validation."""
    results = {result.method.name: result for result in drawable(part)}
    found = [next((results[name] for name in line if name in results), None) for line in CURVES]
    there = [result for result in found if result is not None]
    fitted = {}
    for result in there:
        used = result.runs[0].calibration
        if isinstance(used, Temperature | BudgetTemperature):
            fitted[result.method.name] = used.temperature
    return [drawn(result) for result in there], fitted


def drawn(result: Result, run: int = 0, title: str | None = None) -> Drawn:
    """One run of a method, with all of them for bands."""
    shown = result.runs[run]
    name = title or (f"{result.method.title} (cheating)" if result.method.cheating else result.method.title)
    before = None if shown.calibration is None else (shown.before[BOTH[0]], shown.before[BOTH[1]])
    familiar, unfamiliar = _sides(shown)
    return Drawn(
        f"{result.method.name}-{run}" if run else result.method.name,
        name,
        familiar,
        unfamiliar,
        before,
        tuple(_sides(each) for each in result.runs if set(each.after) >= set(BOTH)),
    )


def toy_drawn(part: PartStudy) -> list[Drawn]:
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
