"""Which method to use: not significantly worse than the best on unfamiliar data, and cheap to run.

Of methods that cost the same to run, only the one with the lowest number is asked whether it is worse than
the best: a method whose number is uncertain must not win by that. What spoils familiar data is not chosen.
"""

import math
from dataclasses import dataclass

from surefoot.comparison import DECIDING, Cell, Comparison, MethodScores
from surefoot.methods import Method
from surefoot.results import Result
from surefoot.runner import PartStudy
from surefoot.scoring import SIDES

METRIC = DECIDING
GRADIENT = "2 and a gradient"  # of which the stored time is that of one pass
PASSES_OF_A_GRADIENT = 4  # two forward, and one backward that is as long as two
SPOILT = 1.1  # times the baseline's familiar NLL


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
    left_out: tuple[MethodScores, ...] = ()  # for what they do to familiar data


def choice_of(part: PartStudy) -> Choice | None:
    """The method to use; None where no honest method has a number. Rows that cheat are never chosen."""
    comparison = part.comparison
    if not comparison.sides:
        return None
    side = SIDES[1] if SIDES[1] in comparison.sides else SIDES[0]
    honest = [m for m in comparison.methods if not m.about.cheating and _is_defined(m.cells[side, METRIC])]
    if not honest:
        return None
    spoilt = [method for method in honest if _spoils_familiar(method, part)]
    able = [method for method in honest if method not in spoilt] or honest
    best = min(able, key=lambda method: method.cells[side, METRIC].mean)
    level = [method for method in able if is_level(method, best, comparison, side)]
    times = {method.about.name: _time_to_run(method, part) for method in able}
    for time in sorted(set(times.values())):
        alike = [method for method in able if times[method.about.name] == time]
        chosen = min(alike, key=lambda method: (method.cells[side, METRIC].mean, _training(method)))
        if chosen in level:
            break
    level = [method for method in level if times[method.about.name] >= time or method is best]
    result = {result.method.name: result for result in part.results}[chosen.about.name]
    runs = max(len(method.runs) for method in comparison.methods)
    left_out = tuple(method for method in spoilt if method not in able)
    return Choice(side, chosen, best, tuple(level), result.method, result, runs, left_out)


def is_level(method: MethodScores, best: MethodScores, comparison: Comparison, side: str) -> bool:
    """Not significantly worse than the best, by the paired bootstrap or else by the t-test."""
    if method is best:
        return True
    cell = method.cells[side, METRIC]
    gap = comparison.pairs.get((method.about.name, best.about.name), {}).get((side, METRIC))
    if gap is None and best.cells[side, METRIC].from_best is None:  # it is the best of all
        gap = cell.from_best
    if gap is None:
        return cell.bold
    return not math.isnan(gap.low) and gap.low <= 0


def _spoils_familiar(method: MethodScores, part: PartStudy) -> bool:
    """Whether its familiar NLL is far above the baseline's; where there is a bootstrap, not by chance."""
    place, baseline = (SIDES[0], METRIC), part.comparison.baseline
    if baseline is None or place not in method.cells:
        return False
    cell, before = method.cells[place], part.comparison.method(baseline).cells[place].mean
    gap = cell.from_baseline
    return cell.mean > SPOILT * before and (gap is None or gap.low > 0)


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
