"""How alpha is best spent over the checks of a history: the spending part of monitoring_protocol.md.

    python benchmarks/spending.py

Detection when the shift begins at a check, for a shift that a single check at alpha = 0.05 detects with a
given power (normal approximation, one-sided). Results go to benchmarks/results/spending.md.
"""

from datetime import date
from math import log, pi
from pathlib import Path
from statistics import NormalDist

ALPHA = 0.05
CHECKS = (1, 2, 3, 5, 10, 20)
POWERS = (0.6, 0.8, 0.95)
RESULTS = Path(__file__).parent / "results" / "spending.md"
TERMS = 200_000
TOTAL = sum(1 / (k * log(k + 1) ** 2) for k in range(1, TERMS)) + 1 / log(TERMS)
RULES = {
    "6 / (pi k)^2 (the monitor's)": lambda k: 6 / (pi * k) ** 2,
    "1 / (k (k + 1))": lambda k: 1 / (k * (k + 1)),
    "0.8 first, then 0.2 * 6 / (pi (k - 1))^2": lambda k: 0.8 if k == 1 else 0.2 * 6 / (pi * (k - 1)) ** 2,
    "2^-k": lambda k: 2.0**-k,
    "1 / (k log(k + 1)^2), normalised": lambda k: 1 / (k * log(k + 1) ** 2) / TOTAL,
}


def detected(level: float, power: float) -> float:
    """The power at this level of a check that has the given power at ALPHA."""
    normal = NormalDist()
    shift = normal.inv_cdf(1 - ALPHA) + normal.inv_cdf(power)
    return 1 - normal.cdf(normal.inv_cdf(1 - max(level, 1e-15)) - shift)


def main() -> None:
    lines = []
    for power in POWERS:
        for name, rule in RULES.items():
            found = [detected(ALPHA * rule(k), power) for k in CHECKS]
            cells = [f"{value:.0%}" for value in (*found, sum(found) / len(found))]
            lines.append(f"| {power:.0%} | {name} | {' | '.join(cells)} |")
    header = f"| single check | rule | {' | '.join(f'check {k}' for k in CHECKS)} | mean |"
    RESULTS.write_text(
        f"""# Spending alpha over the checks of a history

{date.today()}, `benchmarks/spending.py`. The detection rate if the shift begins at a check, for shifts that a
single check at {ALPHA} detects with the power in the first column. Every rule keeps the probability of any
false alarm over all checks at {ALPHA} or less, whatever the dependence between checks.

{header}
|--:|:--{"|--:" * (len(CHECKS) + 1)}|
{chr(10).join(lines)}
"""
    )


if __name__ == "__main__":
    main()
