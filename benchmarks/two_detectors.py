"""How close any combination of two detectors can be to the better one: simulated; a part of monitoring.py.

Two independent detectors, each a normal score; a shift moves one of them, and nobody knows which.
"""

from collections.abc import Callable

import numpy as np
from scipy.stats import norm

Array = np.ndarray
ALPHA = 0.05
DRAWS = 400_000
EFFECTS = np.arange(0.5, 4.01, 0.25)  # of a shift, in standard deviations of the score
RULES: dict[str, Callable[[Array], Array]] = {
    "smallest p-value": lambda z: z.max(axis=1),
    "squares": lambda z: (np.maximum(z, 0) ** 2).sum(axis=1),
    "Fisher": lambda z: -norm.logsf(z).sum(axis=1),
    "sum of normal scores": lambda z: z.sum(axis=1),
}


def power(rule: Callable[[Array], Array], drawn: Array, effect: Array) -> float:
    """At ALPHA false alarms."""
    limit = np.quantile(rule(drawn), 1 - ALPHA)
    return float((rule(drawn + effect) > limit).mean())


def single(effect: float) -> float:
    return float(norm.sf(norm.isf(ALPHA) - effect))


def simulate() -> dict[str, tuple[float, float]]:
    """Of each rule: the largest loss where one detector sees the shift; the largest gain where both do.

    "any": no rule can lose less. The likelihood ratio test of a shift in either, with equal probability, has
    the highest mean power of all tests, so the loss in one of the two cases is at least its mean loss.
    """
    drawn = np.random.default_rng(0).standard_normal((DRAWS, 2))
    one, both = np.array([1.0, 0.0]), np.array([1.0, 1.0])
    found = {
        name: (
            max(single(e) - power(rule, drawn, e * one) for e in EFFECTS),
            max(power(rule, drawn, e * both) - single(e) for e in EFFECTS),
        )
        for name, rule in RULES.items()
    }
    least = [
        single(e) - power(lambda z, e=e: np.logaddexp(e * z[:, 0], e * z[:, 1]), drawn, e * one)
        for e in EFFECTS
    ]
    return found | {"any": (max(least), float("nan"))}
