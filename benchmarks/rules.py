"""Rules that make one test of several detectors; a part of monitoring.py; protocol: monitoring_protocol.md.

A rule has evidence of the outputs, evidence of the features, a way to combine them, and detectors of any
change with a small weight. Familiar windows of the same size calibrate each step, as permutations of the rows
do in the monitor.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

Array = np.ndarray
ALPHA = 0.05
CLASS_COSINE, COSINE = "class cosine", "cosine distance"
FEATURES = ("whitened features", "whitened features, ridge 1", "whitened features, within classes")
ONE_SIDED = ("confidence", "confidence tail", "energy", "energy tail")
SMALLEST, ADDED = "smallest", "added"
# Evidence of the outputs: the smallest p-value of detectors, or the sum of scores.
OUTPUTS: dict[bool, dict[str, tuple[str, tuple[str, ...]]]] = {
    False: {
        "confidence, energy, its tail": (SMALLEST, ("confidence", "energy", "energy tail")),
        "confidence, energy, tails": (SMALLEST, ONE_SIDED),
        "entropy, energy, its tail": (SMALLEST, ("entropy", "energy", "energy tail")),
        "entropy, energy": (SMALLEST, ("entropy", "energy")),
        "entropy, energy, sum": (SMALLEST, ("entropy", "energy", "sum")),
        "entropy + energy": (ADDED, ("entropy", "energy")),
        "sum": (SMALLEST, ("sum",)),
    },
    True: {
        "labels + energy": (ADDED, ("labels", "energy")),
        "labels": (SMALLEST, ("labels",)),
        "labels, energy, their sum": (SMALLEST, ("labels", "energy", "labels and energy")),
        "entropy, labels, energy, sum": (SMALLEST, ("entropy", "labels", "energy", "labels and energy")),
        "labels + energy + entropy": (ADDED, ("labels", "energy", "entropy")),
    },
}
OF_FEATURES: tuple[tuple[str, ...], ...] = (
    (), *((name,) for name in FEATURES), (CLASS_COSINE,), (FEATURES[0], CLASS_COSINE), (FEATURES[0], COSINE)
)  # fmt: skip
ANY_CHANGE: dict[str, dict[str, float]] = {
    "": {},
    "outputs/16": {"MMD": 1 / 16},
    "classes/16": {"classes": 1 / 16},
    "outputs/8, classes/8": {"MMD": 1 / 8, "classes": 1 / 8},
}
FEW, MANY_ROWS = 100, 500  # of a window, for weights that depend on them


def smallest(p: Array, _rows: int) -> Array:
    found: Array = -p.min(axis=0)
    return found


def weighted(first: float) -> Callable[[Array, int], Array]:
    """The smallest p-value; the outputs count `first` times in small windows, the others in large ones."""

    def rule(p: Array, rows: int) -> Array:
        of_outputs = first if rows < FEW else 1 / first if rows >= MANY_ROWS else 1.0
        return smallest(p / np.array([of_outputs, *(1 / of_outputs for _ in p[1:])])[:, None], rows)

    return rule


def fisher(p: Array, _rows: int) -> Array:
    found: Array = -np.log(p).sum(axis=0)
    return found


def squares(p: Array, _rows: int) -> Array:
    found: Array = (np.maximum(norm.isf(p), 0) ** 2).sum(axis=0)
    return found


def cauchy(p: Array, _rows: int) -> Array:
    found: Array = np.tan((0.5 - p) * np.pi).sum(axis=0)
    return found


def harmonic(p: Array, _rows: int) -> Array:
    found: Array = (1 / p).sum(axis=0)
    return found


def higher_criticism(p: Array, _rows: int) -> Array:
    ordered, n = np.clip(np.sort(p, axis=0), 1e-9, 1 - 1e-9), len(p)
    shares = np.arange(1, n + 1)[:, None] / n
    found: Array = (np.sqrt(n) * (shares - ordered) / np.sqrt(ordered * (1 - ordered))).max(axis=0)
    return found


OMNIBUS = "smallest of all and Fisher"
HOW: dict[str, Callable[[Array, int], Array]] = {
    "Fisher": fisher, "squares": squares, "smallest": smallest, "Cauchy": cauchy, "harmonic mean": harmonic,
    "higher criticism": higher_criticism, "smallest, outputs first in small windows": weighted(2.0),
    "smallest, features first in small windows": weighted(0.5), OMNIBUS: smallest,
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """The names of its parts."""

    outputs: str
    features: tuple[str, ...]
    how: str
    any_change: str

    @property
    def name(self) -> str:
        parts = [self.outputs, *self.features]
        change = f"; {self.any_change}" if self.any_change else ""
        return (
            f"rule: {self.how} of ({'; '.join(parts)}){change}"
            if self.features
            else f"rule: {parts[0]}{change}"
        )

    @property
    def detectors(self) -> int:
        outputs = next(each[self.outputs][1] for each in OUTPUTS.values() if self.outputs in each)
        return len(outputs) + len(self.features) + len(ANY_CHANGE[self.any_change])


def family(many: bool) -> Iterator[Rule]:
    """Every rule that is compared. One without features has to contain a detector of any change."""
    for outputs in OUTPUTS[many]:
        for features in OF_FEATURES:
            if many and FEATURES[2] in features:
                continue  # there is no predicted class
            for how in HOW if features else ("smallest",):
                for change in ANY_CHANGE:
                    if features or change:
                        yield Rule(outputs, features, how, change)


# What the monitor does: for one label and for many labels, with and without features; and before, in round 3.
MONITOR = {
    False: Rule("confidence, energy, its tail", (FEATURES[0],), "Fisher", ""),
    True: Rule("labels + energy", (FEATURES[0], CLASS_COSINE), "Fisher", ""),
}
WITHOUT = {many: Rule(each.outputs, (), "smallest", "outputs/16") for many, each in MONITOR.items()}
BEFORE = Rule("confidence, energy, tails", (FEATURES[0],), "Fisher", "outputs/8, classes/8")
SETS = ("set: monitor", "set: without features", "set: before")


class Evidence:
    """Detectors' statistics of the windows of a cell and of its familiar windows, and their p-values."""

    def __init__(self, found: dict[str, Array], null: dict[str, Array], rows: int) -> None:
        self.sides, self.rows = (found, null), rows
        self.p: dict[str, tuple[Array, Array]] = {}

    def p_values(self, name: str) -> tuple[Array, Array]:
        if name not in self.p:
            self.p[name] = calibrated(*(side[name] for side in self.sides))
        return self.p[name]

    def outputs(self, how: str, names: Sequence[str]) -> tuple[Array, Array]:
        key = f"{how} {names}"
        if key not in self.p:
            known = [name for name in names if name in self.sides[0]]
            if how == ADDED:
                sides = [sum(side[name] for name in known) for side in self.sides]
            else:
                each = [self.p_values(name) for name in known]
                sides = [-np.min([pair[i] for pair in each], axis=0) for i in (0, 1)]
            self.p[key] = calibrated(*sides)
        return self.p[key]

    def of(self, rule: Rule, many: bool) -> tuple[Array, Array]:
        """The rule's evidence in the windows and in the familiar ones; larger is more."""
        pairs = [self.outputs(*OUTPUTS[many][rule.outputs]), *(self.p_values(name) for name in rule.features)]
        joined = [np.stack([pair[i] for pair in pairs]) for i in (0, 1)]
        key = f"{rule.outputs} {rule.features} {rule.how}"
        if key not in self.p:
            if rule.how == OMNIBUS:
                added = calibrated(*(fisher(p, self.rows) for p in joined))
                joined = [np.concatenate([p, extra[None]]) for p, extra in zip(joined, added, strict=True)]
            self.p[key] = calibrated(*(HOW[rule.how](p, self.rows) for p in joined))
        main = self.p[key]
        changes = [(self.p_values(name), weight) for name, weight in ANY_CHANGE[rule.any_change].items()]
        found, null = (-np.min([main[i], *(p[i] / w for p, w in changes)], axis=0) for i in (0, 1))
        return found, null

    def before(self, many: bool) -> tuple[Array, Array]:
        """The rule of the third round."""
        if not many:
            return self.of(BEFORE, many)
        weights = {"MMD": 0.125, "classes": 0.125, "labels and energy": 1.0, FEATURES[0]: 0.25}
        pairs = [(self.p_values(name), weight) for name, weight in weights.items()]
        found, null = (-np.min([p[i] / w for p, w in pairs], axis=0) for i in (0, 1))
        return found, null


def calibrated(values: Array, null: Array) -> tuple[Array, Array]:
    """p-values of the windows, and of the familiar windows among themselves."""
    ordered = np.sort(null)
    found, own = (
        (1 + len(null) - np.searchsorted(ordered, each, "left")) / (len(null) + 1) for each in (values, null)
    )
    return found, own


def rate(values: Array, null: Array) -> float:
    """How often a value is above the 95% quantile; a tie with it counts with the share that makes it 5%."""
    place = int(np.ceil((1 - ALPHA) * len(null))) - 1
    limit = np.partition(null, place)[place]
    above, at = (null > limit).mean(), (null == limit).mean()
    return float((values > limit).mean() + max(0.0, ALPHA - above) / at * (values == limit).mean())


def detection_rates(
    found: dict[str, Array], null: dict[str, Array], rows: int, many: bool, *, whole_family: bool
) -> dict[str, float]:
    """Of each detector, of the monitor and of the family; statistics are (splits, windows)."""
    flat, own = ({name: each.ravel() for name, each in side.items()} for side in (found, null))
    detected = {name: rate(values, own[name]) for name, values in flat.items()}
    detected |= {PICKED: picked(found, own)}
    evidence = Evidence(flat, own, rows)
    detected[SETS[0]] = rate(*evidence.of(MONITOR[many], many))
    detected[SETS[1]] = rate(*evidence.of(WITHOUT[many], many))
    detected[SETS[2]] = rate(*evidence.before(many))
    for rule in family(many) if whole_family else ():
        detected[rule.name] = rate(*evidence.of(rule, many))
    return detected


PICKED = "set: best single detector, picked on other splits"


def picked(found: dict[str, Array], null: dict[str, Array]) -> float:
    """The rate of the detector that is best on every other split, on the remaining splits; both ways."""
    halves = [
        {name: rate(each[start::2].ravel(), null[name]) for name, each in found.items()} for start in (0, 1)
    ]
    best = [max(half, key=lambda name, half=half: half[name]) for half in halves]
    return float(np.mean([halves[1][best[0]], halves[0][best[1]]]))
