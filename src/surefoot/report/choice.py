"""Which method to use, and why, in a few sentences."""

import math
from dataclasses import dataclass

from surefoot.evaluation.compare import DECIDING
from surefoot.evaluation.comparison import Cell, Comparison, MethodScores
from surefoot.evaluation.scores import SIDES
from surefoot.experiments.methods import Method
from surefoot.experiments.results import Result
from surefoot.experiments.run import PartStudy

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
    honest = [m for m in comparison.methods if not m.about.oracle and _is_defined(m.cells[side, METRIC])]
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


NAMED = 3  # missing networks that a sentence names
E99 = "e99"


def verdict_of(part: PartStudy) -> list[str]:
    """Which method to use and what it gains; what it costs; what to beware of."""
    choice = choice_of(part)
    if choice is None:
        return [
            f"On {part.plan.task} no method has a finished run, so none can be recommended.",
            *_missing(part),
        ]
    baseline = _baseline(part)
    sentences = [_advice(part, choice, baseline)]
    if baseline is not None and baseline is not choice.chosen:
        sentences.append(_price(part, choice, baseline))
    return [*sentences, " ".join([_runs(choice, baseline), *_left_out(choice), *_missing(part)])]


def _baseline(part: PartStudy) -> MethodScores | None:
    name = part.comparison.baseline
    found = None if name is None else part.comparison.method(name)
    return found if found is not None and found.runs else None


def _advice(part: PartStudy, choice: Choice, baseline: MethodScores | None) -> str:
    title, side = choice.chosen.about.title, choice.side
    where = f"On {part.plan.task}"
    if side == "familiar":
        where += ", which has no unfamiliar test set, so that nothing is known of unfamiliar data"
    cell = choice.chosen.cells[side, METRIC]
    if len(part.comparison.methods) == 1:
        return f"{where} there is {title} alone, and nothing beside it: its {side} NLL is {cell.mean:.3f}."
    if choice.chosen is baseline:
        return f"{where}, keep {title}: {_standing(choice)} (NLL {cell.mean:.3f} on {side} data)."
    gain = f"{_gain(cell, baseline, side)}{_sure(choice, baseline)}"
    return f"{where}, use {title}: {_standing(choice)}; {gain}."


def _standing(choice: Choice) -> str:
    side = choice.side
    if choice.runs < 2 and choice.chosen is choice.best:
        return f"it has the lowest NLL on {side} data"
    if choice.chosen is choice.best:
        return f"it is the best on {side} data{_also(choice)}"
    best = choice.best.about.title
    cheapest = "it is the cheapest to run"
    if len(choice.level) > 2:
        cheapest = f"of {len(choice.level)} such methods it is the best of the cheapest to run"
    apart = (
        "the images do not tell it apart from" if choice.runs < 2 else "it is not significantly worse than"
    )
    return f"on {side} data {apart} {best}, which has the lowest NLL, and {cheapest}"


def _also(choice: Choice) -> str:
    """Who is level with the best without being cheaper to run."""
    others = [method.about.title for method in choice.level if method is not choice.best]
    if not others:
        return ""
    if len(others) == 1:
        return f" (not significantly better than {others[0]}, which is no cheaper to run)"
    return f" (not significantly better than {len(others)} others, which are no cheaper to run)"


def _gain(cell: Cell, baseline: MethodScores | None, side: str) -> str:
    """The percent reduction of NLL, with the interval of the paired bootstrap."""
    if baseline is None:
        return f"its {side} NLL is {cell.mean:.3f}"
    before = baseline.cells[side, METRIC].mean
    if not math.isfinite(before) or before <= 0:
        return f"its {side} NLL is {cell.mean:.3f}"
    text = f"{side} NLL goes from {before:.3f} to {cell.mean:.3f}, {percent_less(before, cell.mean)}"
    gap = cell.from_baseline
    if gap is None or math.isnan(gap.low):
        return text
    return f"{text} (95% interval over images {-gap.high / before:.0%} to {min(1.0, -gap.low / before):.0%})"


def percent_less(before: float, after: float) -> str:
    """The change in words.

    >>> percent_less(2.0, 1.5), percent_less(1.0, 1.1), percent_less(1.0, 1.001)
    ('25% less', '10% more', 'the same')
    """
    share = (before - after) / before
    if abs(share) < 0.005:
        return "the same"
    return f"{abs(share):.0%} {'less' if share > 0 else 'more'}"


def _sure(choice: Choice, baseline: MethodScores | None) -> str:
    """E99 before and after."""
    cells = choice.chosen.cells
    if (choice.side, E99) not in cells or baseline is None:
        return ""
    before, after = (m.cells[choice.side, E99].mean for m in (baseline, choice.chosen))
    if math.isnan(before) and math.isnan(after):
        return ""
    texts = [f"{value:.1%}" if math.isfinite(value) else "none given" for value in (before, after)]
    return f", and the errors among its answers above 99% confidence from {texts[0]} to {texts[1]}"


def _price(part: PartStudy, choice: Choice, baseline: MethodScores) -> str:
    """What it costs to train and to run, and what it does to familiar data."""
    results = {result.method.name: result for result in part.results}
    cost = _cost(choice, results[baseline.about.name])
    if choice.side == "familiar":
        return f"{cost}."
    place = ("familiar", METRIC)
    before, cell = baseline.cells[place].mean, choice.chosen.cells[place]
    if not (math.isfinite(before) and math.isfinite(cell.mean)):
        return f"{cost}."
    gap = cell.from_baseline
    clear = gap is None or math.isnan(gap.low) or gap.low > 0 or gap.high < 0
    change = percent_less(before, cell.mean) if before > 0 else "changed"
    noise = "" if clear else ", within the noise"
    return f"{cost}; on familiar data the NLL goes from {before:.3f} to {cell.mean:.3f} ({change}{noise})."


def _cost(choice: Choice, single: Result) -> str:
    ours, method = choice.result, choice.method
    training = _times(ours.seconds_training, single.seconds_training)
    running = _times(ours.seconds_per_sample, single.seconds_per_sample)
    if method.inference == single.method.inference:
        running = "as long"
    if training is None or running is None:
        needs = f"networks to train: {method.training}; passes to run: {method.inference}"
        return f"Its cost was not measured ({needs})"
    if method.inference == GRADIENT:
        return f"It takes {training} to train as a single network, and two passes and a gradient to run"
    return f"It takes {training} to train and {running} to run as a single network"


def _times(ours: float | None, single: float | None) -> str | None:
    if not ours or not single:
        return None
    ratio = ours / single
    if abs(ratio - 1) < 0.05:
        return "as long"
    return f"{ratio:.1f} times as long" if ratio < 10 else f"{ratio:.0f} times as long"


def _runs(choice: Choice, baseline: MethodScores | None) -> str:
    if choice.runs < 2:
        return "There is one run, so no significance is claimed."
    once = " (one of this method, which joins several networks)" if len(choice.chosen.runs) == 1 else ""
    text = f"From {choice.runs} runs{once}; the intervals speak of other images, not of other training runs"
    if baseline is None or baseline is choice.chosen or not baseline.cells[choice.side, METRIC].bold:
        return f"{text}."
    title = baseline.about.title
    return f"{text}: by the t-test over runs, {title} is not significantly worse than the best."


def _left_out(choice: Choice) -> list[str]:
    """Who was not considered."""
    titles = [method.about.title for method in choice.left_out]
    if not titles:
        return []
    harm = "it raises" if len(titles) == 1 else "they raise"
    was = "was" if len(titles) == 1 else "were"
    named = " and ".join(filter(None, [", ".join(titles[:-1]), titles[-1]]))
    return [f"{named} {was} not considered: {harm} the familiar NLL by more than a tenth."]


def _missing(part: PartStudy) -> list[str]:
    names = list(dict.fromkeys(name for result in part.results for name in result.missing))
    if not names:
        return []
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    count = "1 network or score is" if len(names) == 1 else f"{len(names)} networks or scores are"
    return [f"{count} missing and not averaged in: {shown}."]
