"""The rules compared with the best single detector; a part of monitoring_page.py."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from detectors import DECIDING, HALVES, SHARES, Cell
from rules import HOW, MONITOR, PICKED, SETS, WITHOUT, Rule, family

Power = dict[str, dict[Cell, dict[str, float]]]  # task, cell, detector
MANY_LABELS = "objects96"
NEAR = 5  # points: the goal
OF_FEATURES = ("features", "domain", "cosine", "norm", "distance", "subspace", "Mahalanobis")
SHOWN = 5  # rules


def singles(cell: dict[str, float], *, features: bool = True) -> dict[str, float]:
    return {
        name: value
        for name, value in cell.items()
        if not name.startswith(("set: ", "rule: "))
        and (features or not any(part in name for part in OF_FEATURES))
    }


def best(cell: dict[str, float], *, features: bool = True) -> tuple[str, float]:
    found = singles(cell, features=features)
    name = max(found, key=lambda each: found[each])
    return name, found[name]


Rates = dict[tuple[str, Cell], float]


def best_rates(power: Power, *, features: bool = True, picked: bool = False) -> Rates:
    """Of the best single detector in each cell, unfamiliar rows only; or as picked on other splits."""
    return {
        (task, cell): each[PICKED] if picked else best(each, features=features)[1]
        for task, cells in power.items()
        for cell, each in cells.items()
        if cell[1] in SHARES
    }


def gaps(power: Power, name: str, against: Rates) -> list[tuple[float, str, Cell]]:
    """A rule less the best single detector, in points, smallest first."""
    return sorted(
        (100 * (power[task][cell][name] - rate), task, cell) for (task, cell), rate in against.items()
    )


@dataclass(frozen=True)
class Standing:
    """How a rule compares on a half: in points, and the number of cells."""

    excess: float  # mean of the gaps' part above NEAR
    largest: float
    far: int
    cells: int
    power: float


def standing(power: Power, name: str, against: Rates) -> Standing:
    found = [-gap for gap, _, _ in gaps(power, name, against)]
    cells = [[of_task[cell][name] for of_task in power.values() if cell in of_task] for cell in DECIDING]
    means = [np.mean(each) for each in cells if each]
    return Standing(
        float(np.mean([max(0.0, gap - NEAR) for gap in found])),
        max(0.0, *found),
        sum(gap > NEAR for gap in found),
        len(found),
        float(100 * np.mean(means)),
    )


def of_kind(power: Power, many: bool) -> Power:
    return {task: cells for task, cells in power.items() if (task == MANY_LABELS) == many}


def in_order(standings: dict[Rule, Standing]) -> list[Rule]:
    """By the protocol: within 0.1 points of the smallest excess and 1 of the largest gap, by power."""
    least = min(each.excess for each in standings.values())
    near = {rule: each for rule, each in standings.items() if each.excess <= least + 0.1}
    least = min(each.largest for each in near.values())
    near = {rule: each for rule, each in near.items() if each.largest <= least + 1}
    return sorted(near, key=lambda rule: -near[rule].power)


def rules_lines(powers: dict[str, Power], many: bool, features: bool) -> Iterable[list[str]]:
    """The monitor's rule, its evidence combined otherwise, the first by the protocol, the oracle, before."""
    names = {rule: rule.name for rule in family(many) if bool(rule.features) == features}
    halves = {half: of_kind(power, many) for half, power in powers.items()}
    against = {half: best_rates(power, features=features) for half, power in halves.items()}
    found = {
        half: {rule: standing(power, name, against[half]) for rule, name in names.items()}
        for half, power in halves.items()
    }
    own = (MONITOR if features else WITHOUT)[many]
    oracle = min(
        found["confirm"], key=lambda rule: (found["confirm"][rule].largest, -found["confirm"][rule].power)
    )
    shown = {own: f"**the monitor:** {_words(own)}"}
    if features:
        shown |= {each: _words(each) for how in HOW if (each := replace(own, how=how)) != own}
    for place, rule in enumerate(in_order(found["choose"])[:SHOWN], start=1):
        shown[rule] = f"{shown.get(rule, _words(rule))} (choice {place})"
    shown[oracle] = f"{shown.get(oracle, _words(oracle))} (oracle)"
    for rule, words in shown.items():
        yield _line(words, [found[half][rule] for half in HALVES])
    if features:
        both = [standing(halves[half], SETS[2], against[half]) for half in HALVES]
        yield _line("before (third round)", both)


def _words(rule: Rule) -> str:
    return rule.name.removeprefix("rule: ")


def _line(words: str, both: list[Standing]) -> list[str]:
    line = [words]
    for each in both:
        line += [f"{each.power:.1f}", f"{each.largest:.1f}", f"{each.far} of {each.cells}"]
    return line


def rules_header() -> list[str]:
    parts = ("mean power", "largest gap", f"gaps above {NEAR} points")
    return ["rule", *(f"{half}: {what}" for half in HALVES for what in parts)]


def within_reach(power: Power) -> str:
    """What the rule that is best on the confirming half itself reaches, and any rule in each cell."""
    parts, out_of_reach = [], []
    for many, words in ((False, "one label"), (True, "many labels")):
        of_one = of_kind(power, many)
        names = [rule.name for rule in family(many) if rule.features]
        against = best_rates(of_one)
        largest, name = min((-gaps(of_one, name, against)[0][0], name) for name in names)
        parts.append(f"{words}: {max(0.0, largest):.1f} points ({name.removeprefix('rule: ')})")
        for (task, cell), rate in against.items():
            gap = 100 * (rate - max(of_one[task][cell][name] for name in names))
            out_of_reach += [(gap, task, cell)] if gap > NEAR else []
    count = sum(1 for many in (False, True) for rule in family(many) if rule.features)
    worst = max(out_of_reach, default=None)
    beyond = (
        f"In {len(out_of_reach)} cells no rule of the family is within {NEAR} points, even one chosen for "
        f"that cell alone (largest gap {worst[0]:.0f} points: {worst[1]}, {worst[2][0]} rows, {worst[2][1]})."
        if worst
        else f"In each cell some rule of the family is within {NEAR} points."
    )
    return (
        f"The smallest largest gap of all {count:,} rules with features, chosen with the confirming half "
        f"itself (an oracle): {'; '.join(parts)}. {beyond}"
    )
