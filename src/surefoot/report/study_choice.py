"""Which method to use: the cheapest to run of those not significantly worse on unfamiliar data."""

import math
from dataclasses import dataclass

from surefoot.comparison import Cell, MethodScores
from surefoot.methods import Method
from surefoot.results import Result
from surefoot.runner import PartStudy
from surefoot.scoring import SIDES

METRIC = "nll"
GRADIENT = "2 and a gradient"  # of which the stored time is that of one pass
PASSES_OF_A_GRADIENT = 4  # two forward, and one backward that is as long as two


@dataclass(frozen=True, eq=False)
class Choice:
    """The method to use, the best by its number, and those that are level with it."""

    side: str  # that it was chosen by: unfamiliar, where there is such a test set
    chosen: MethodScores
    best: MethodScores
    level: tuple[MethodScores, ...]  # the chosen and the best among them
    method: Method
    result: Result
    runs: int  # the most that any method has


def choice_of(part: PartStudy) -> Choice | None:
    """The method to use; None where no honest method has a number. Rows that cheat are never chosen."""
    comparison = part.comparison
    if not comparison.sides:
        return None
    side = SIDES[1] if SIDES[1] in comparison.sides else SIDES[0]
    honest = [m for m in comparison.methods if not m.about.cheating and _is_defined(m.cells[side, METRIC])]
    if not honest:
        return None
    best = min(honest, key=lambda method: method.cells[side, METRIC].mean)
    level = tuple(m for m in honest if m is best or is_level(m.cells[side, METRIC]))
    results = {result.method.name: result for result in part.results}
    chosen = min(level, key=lambda m: (_time_to_run(m, part), _training(m), m.cells[side, METRIC].mean))
    result = results[chosen.about.name]
    runs = max(len(method.runs) for method in comparison.methods)
    return Choice(side, chosen, best, level, result.method, result, runs)


def is_level(cell: Cell) -> bool:
    """Not significantly worse than the best, by the paired bootstrap or else by the t-test."""
    gap = cell.from_best
    if gap is None:
        return cell.bold
    return not math.isnan(gap.low) and gap.low <= 0


def _is_defined(cell: Cell) -> bool:
    return bool(cell.runs) and math.isfinite(cell.mean)


def _time_to_run(method: MethodScores, part: PartStudy) -> float:
    """Seconds a sample, the least of all methods that run the same way, so that noise decides nothing."""
    ways = {result.method.name: result.method.inference for result in part.results}
    way = ways[method.about.name]
    measured = [
        result.seconds_per_sample
        for result in part.results
        if result.method.inference == way and result.seconds_per_sample is not None
    ]
    if not measured:
        return math.inf
    return min(measured) * (PASSES_OF_A_GRADIENT if way == GRADIENT else 1)


def _training(method: MethodScores) -> float:
    seconds = method.about.seconds_training
    return math.inf if seconds is None else seconds
