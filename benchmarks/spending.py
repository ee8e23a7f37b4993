"""How alpha is best spent over the checks of a history: simulated; a part of monitoring.py.

A history has CHECKS windows and one reference. What a check compares is a normal mean; the reference is a
sample, too, so the checks of a history are dependent, as in the monitor.
"""

from collections.abc import Callable
from math import log, pi

import numpy as np
from scipy.stats import norm

Array = np.ndarray
ALPHA = 0.05
CHECKS = 20
HISTORIES = 20_000
POWERS = (0.3, 0.6, 0.8, 0.95)  # of a single check at ALPHA
STARTS = (1, 5, 10)
SOON = 5  # checks
TODAY = "6 / (pi k)^2 (the monitor's)"
TERMS = 200_000
LOG_TOTAL = sum(1 / (k * log(k + 1) ** 2) for k in range(1, TERMS)) + 1 / log(TERMS)
ROOT_TOTAL = sum(k**-1.5 for k in range(1, TERMS)) + 2 / TERMS**0.5
FIRST = 6 / pi**2  # of alpha, that the monitor spends at the first check


def with_first(share: float) -> Callable[[int], float]:
    """A share of alpha for the first check (--first-share), the rest as 1 / k^2."""
    return lambda k: share if k == 1 else (1 - share) * 6 / (pi * k) ** 2 / (1 - FIRST)


def declared(checks: int) -> Callable[[int], float]:
    """1 / k^2, for a declared number of checks."""
    total = sum(1 / k**2 for k in range(1, checks + 1))
    return lambda k: 1 / k**2 / total if k <= checks else 0.0


DECLARED = f"1 / k^2, {CHECKS} checks declared"
GENEROUS = "0.95 first (--first-share 0.95)"
LEVELS: dict[str, Callable[[int], float]] = {
    TODAY: lambda k: 6 / (pi * k) ** 2,
    "1 / (k (k + 1))": lambda k: 1 / (k * (k + 1)),
    "0.8 first, 0.2 * 6 / (pi (k - 1))^2": lambda k: 0.8 if k == 1 else 0.2 * 6 / (pi * (k - 1)) ** 2,
    "2/3 first, 1/3 / (k (k - 1))": lambda k: 2 / 3 if k == 1 else 1 / 3 / (k * (k - 1)),
    "2^-k": lambda k: 2.0**-k,
    "1 / (k log(k + 1)^2), normalised": lambda k: 1 / (k * log(k + 1) ** 2) / LOG_TOTAL,
    "0.8 first (--first-share 0.8)": with_first(0.8),
    GENEROUS: with_first(0.95),
    "1 / k^2, 5 checks declared": declared(5),
    DECLARED: declared(CHECKS),
    "k^-1.5, normalised": lambda k: k**-1.5 / ROOT_TOTAL,
}
BETTING = np.linspace(0.05, 0.95, 19)[:, None]  # exponents of the bets


def histories(shift: float, start: int, ratio: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """z of each check: with the reference, and with the reference and all earlier windows (independent)."""
    k = np.arange(1, CHECKS + 1)
    reference = rng.standard_normal((HISTORIES, 1)) / np.sqrt(ratio)
    window = rng.standard_normal((HISTORIES, CHECKS)) + np.where(k >= start, shift, 0)
    z = (window - reference) / np.sqrt(1 + 1 / ratio)
    earlier = np.cumsum(window, axis=1) - window
    pooled = (ratio * reference + earlier) / (ratio + k - 1)
    return z, (window - pooled) / np.sqrt(1 + 1 / (ratio + k - 1))


def wealth(z: Array) -> Array:
    """A bet on small p-values, a mixture of kappa p^(kappa - 1), that a shift begins at any check."""
    logs = np.log(np.maximum(norm.sf(z), 1e-12))
    starts = np.array([6 / (pi * k) ** 2 for k in range(1, CHECKS + 1)])
    left, running, found = 1.0, np.zeros((len(BETTING), len(z))), []
    for check, start in enumerate(starts):
        left -= start
        running = (running + start) * BETTING * np.exp((BETTING - 1) * logs[:, check])
        found.append(running.mean(axis=0) + left)
    return np.stack(found, axis=1)


def alarms(z: Array, exact: Array) -> dict[str, Array]:
    """Which checks of each history raise an alarm, by rule."""
    levels = {
        name: np.array([ALPHA * rule(k) for k in range(1, CHECKS + 1)]) for name, rule in LEVELS.items()
    }
    found = {name: z >= norm.isf(each) for name, each in levels.items()}
    bets = wealth(exact)
    return found | {
        "e-process": wealth(z) >= 1 / ALPHA,
        "e-process, earlier rows": bets >= 1 / ALPHA,
        "3/4 levels, 1/4 e-process, earlier rows": (z >= norm.isf(0.75 * levels[TODAY]))
        | (bets >= 4 / ALPHA),
    }


def simulate() -> dict[str, dict[str, float]]:
    """By rule: false alarms with references of five and two windows, and the powers, by column."""
    rng = np.random.default_rng(0)
    table: dict[str, dict[str, float]] = {}
    for ratio in (5, 2):
        for name, alarm in alarms(*histories(0, 1, ratio, rng)).items():
            table.setdefault(name, {})[f"any false alarm, reference of {ratio} windows"] = alarm.any(1).mean()
    for power in POWERS:
        shift = (norm.isf(ALPHA) + norm.ppf(power)) * np.sqrt(1 + 1 / 5)
        for start in STARTS:
            for name, alarm in alarms(*histories(shift, start, 5, rng)).items():
                soon = alarm[:, start - 1 : start - 1 + SOON].any(1).mean()
                if start == 1:
                    table[name][f"first check, {power:.0%}"] = alarm[:, 0].mean()
                table[name][f"from check {start}, {power:.0%}"] = soon
    for row in table.values():
        for part in ("first check", *(f"from check {start}" for start in STARTS)):
            row[part] = np.mean([row[f"{part}, {power:.0%}"] for power in POWERS])
        row["mean"] = np.mean([row["first check"], *(row[f"from check {start}"] for start in STARTS)])
    return table


def spending_answer(found: dict[str, dict[str, float]]) -> str:
    """Whether another rule is better, in a sentence; not one that needs a declared number of checks."""
    today = found[TODAY]
    found = {name: row for name, row in found.items() if "declared" not in name}
    later = [f"from check {start}" for start in STARTS[1:]]
    as_good = {
        name: np.mean([row[part] for part in later])
        for name, row in found.items()
        if name != TODAY and row["first check"] >= today["first check"]
    }
    better = [name for name, mean in as_good.items() if mean > np.mean([today[part] for part in later])]
    return (
        f"**Spending:** {len(as_good)} of {len(found) - 1} other rules detect as much at the first check; of "
        f"these, {' and '.join(better) if better else 'none'} detects more of the shifts that begin later. "
        "The first check pays for later ones whatever the rule (see below); `--first-share` says how much."
    )


def spending_words(found: dict[str, dict[str, float]]) -> str:
    """One shift in detail, and what e-processes do."""

    def of(name: str, part: str) -> str:
        return f"{100 * found[name][part]:.0f}%"

    exact, mixed = "e-process, earlier rows", "3/4 levels, 1/4 e-process, earlier rows"
    begins_late = f"from check {STARTS[-1]}"
    first, soon, late = "first check, 80%", "from check 1, 80%", f"from check {STARTS[-1]}, 80%"
    return f"""A shift that a single check detects in 80% of the cases is detected by the monitor's rule in
{of(TODAY, first)} as the first check of a history, and within {SOON} checks in {of(TODAY, soon)}; if it
begins at check {STARTS[-1]}, within {SOON} checks in {of(TODAY, late)}. By the e-process with earlier rows:
{of(exact, first)}, {of(exact, soon)} and {of(exact, late)}.

**The first check pays whatever the rule.** A false alarm at the first check, and a first false alarm at a
later one, exclude each other, so their probabilities add up to that of any false alarm. If the first check
has all of alpha, none is left: without a shift, no later check may ever raise an alarm, so it has no power
against a small shift either. What the first check gets, the later ones lose. With `--first-share 0.95` the
first check detects {of(GENEROUS, "first check")} (a single check: {np.mean(POWERS):.0%}, the monitor's rule:
{of(TODAY, "first check")}), and a shift that begins at check {STARTS[-1]} is detected within {SOON} checks in
{of(GENEROUS, begins_late)} of the cases (the monitor's rule: {of(TODAY, begins_late)}). Declaring {CHECKS}
checks changes the mean of these from {of(TODAY, "mean")} to {of(DECLARED, "mean")}.

The plain e-process alarms in {of("e-process", "any false alarm, reference of 2 windows")} of the histories
with a reference of two windows, because all checks share a reference. Comparing each window with the
reference *and all earlier windows* makes the p-values independent, and that e-process valid. Three quarters
levels and one quarter e-process has a mean of {of(mixed, "mean")} (the monitor's rule: {of(TODAY, "mean")}),
but needs the rows of all earlier checks, which a history file does not hold."""
