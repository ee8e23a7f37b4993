"""Do the stated levels hold where rows of one group depend on each other, and what do groups cost?

    python benchmarks/groups.py [--turns 400] [--write]

Simulated: logits and confidences of a person's rows share a part of their variance. `surefoot monitor`
without a shift and with one, the guarantee of `surefoot thresholds`, and the coverage of `surefoot sets`;
each with the groups and without them. With --write, results go to benchmarks/results/groups.md.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from surefoot import Predictions
from surefoot.decisions.learn_then_test import ErrorTest, valid_cuts
from surefoot.decisions.sets import choose_sets
from surefoot.metrics.intervals import Proportion
from surefoot.monitoring.history import AlphaBudget
from surefoot.monitoring.monitor import check_shift
from surefoot.monitoring.scores import Scores, scores_of

Array = np.ndarray
RESULTS = Path(__file__).parent / "results" / "groups.md"
ONLY = AlphaBudget.only(0.05)
OWN = 0.5  # of the variance is the person's
Sizes = Callable[[int, np.random.Generator], Array]
SIZES: dict[str, Sizes] = {
    "1": lambda groups, _: np.ones(groups, dtype=int),
    "8": lambda groups, _: np.full(groups, 8),
    "50": lambda groups, _: np.full(groups, 50),
    "1 to about 40, mean 8": lambda groups, rng: rng.geometric(1 / 8, groups),
    "heavy tail, 1 to 400": lambda groups, rng: np.minimum(np.ceil(2 * rng.pareto(1, groups)), 400).astype(
        int
    ),
}


def table(header: list[str], lines: Iterable[list[str]]) -> str:
    ruled = ["| " + " | ".join(line) + " |" for line in (header, *lines)]
    return "\n".join([ruled[0], "|:--" + "|--:" * (len(header) - 1) + "|", *ruled[1:]])


def rate(hits: Sequence[bool]) -> str:
    found = Proportion.of(sum(hits), len(hits))
    return f"{found.value:.1%} ({found.low:.1%} to {found.high:.1%})"


def shared(group_of: Array, columns: int, rng: np.random.Generator) -> Array:
    """Standard normal numbers, of which a person's rows share a part."""
    own = rng.standard_normal((group_of.max() + 1, columns))[group_of]
    return np.sqrt(OWN) * own + np.sqrt(1 - OWN) * rng.standard_normal((len(group_of), columns))


def persons(
    sizes: Array, rng: np.random.Generator, *, blur: float = 0.0, features: bool = False
) -> Predictions:
    """Three classes; `blur` takes the logits towards 0; persons differ in how right their confidence is."""
    group_of = np.repeat(np.arange(len(sizes)), sizes)
    drawn = shared(group_of, 3, rng)
    sharpness = np.exp(0.5 * rng.standard_normal(len(sizes)))[group_of, None]
    labels = (3 * drawn * sharpness + rng.gumbel(size=drawn.shape)).argmax(axis=1)
    found = np.concatenate([(1 - blur) * drawn, shared(group_of, 8, rng)], axis=1) if features else None
    return Predictions.from_logits(3 * (1 - blur) * drawn, labels, groups=group_of, features=found)


CHECKS = (
    ("1", 300, "1", 100, False), ("8", 100, "8", 30, False), ("8", 100, "8", 30, True),
    ("8", 30, "8", 10, True),
    ("50", 60, "50", 20, False), ("50", 60, "50", 20, True),
    ("1 to about 40, mean 8", 100, "1 to about 40, mean 8", 30, False),
    ("heavy tail, 1 to 400", 100, "heavy tail, 1 to 400", 30, False),
    ("50", 60, "1", 60, False), ("50", 60, "1", 60, True), ("1", 300, "50", 20, True),
)  # fmt: skip
BLURS = (0.0, 0.15, 0.3)


def without_groups(scores: Scores) -> Scores:
    return replace(scores, groups=None)


def checks(turns: int, rng: np.random.Generator) -> list[list[str]]:
    """How often a shift is detected, with the groups and without."""
    rows = []
    for before, many, after, few, features in CHECKS:
        found: dict[str, list[bool]] = {f"{blur} {how}": [] for blur in BLURS for how in ("with", "without")}
        for turn in range(turns):
            reference = scores_of(persons(SIZES[before](many, rng), rng, features=features))
            is_early = turn < turns // 4  # the false alarms of groups need more turns than the rest
            for blur in BLURS[: 3 if is_early else 1]:
                current = scores_of(persons(SIZES[after](few, rng), rng, blur=blur, features=features))
                found[f"{blur} with"].append(check_shift(reference, current, budget=ONLY).alarm)
                if blur == 0 and is_early:
                    plain = check_shift(without_groups(reference), without_groups(current), budget=ONLY)
                    found[f"{blur} without"].append(plain.alarm)
        cells = [found["0.0 without"], found["0.0 with"], *(found[f"{blur} with"] for blur in BLURS[1:])]
        sizes = [f"{many} of {before}", f"{few} of {after}", "yes" if features else "no"]
        rows.append([*sizes, *(rate(cell) for cell in cells)])
        print(*rows[-1], sep=" | ", flush=True)
    return rows


SHAPES: dict[str, Callable[[Array], Array]] = {
    "calibrated, 1 - confidence": lambda c: 1 - c,
    "just above the target everywhere": lambda c: np.full_like(c, 0.0501),
}
CHOICES = (("1", 2000), ("8", 500), ("50", 250), ("50", 1000), ("1 to about 40, mean 8", 500),
           ("heavy tail, 1 to 400", 500))  # fmt: skip
GRID = 1 - ((np.arange(200_000) + 0.5) / 200_000) ** 3 / 2  # the confidences of all possible rows


def choices(turns: int, rng: np.random.Generator) -> list[list[str]]:
    """How often the guarantee of a target error of 0.05 is violated, and how much is accepted."""
    rows = []
    for name, error in SHAPES.items():
        for kind, groups in CHOICES:
            found: dict[bool, list[tuple[bool, float]]] = {True: [], False: []}
            for turn in range(turns):
                group_of = np.repeat(np.arange(groups), SIZES[kind](groups, rng))
                uniform = ndtr(shared(group_of, 2, rng))
                confidence = (1 - uniform[:, 0] ** 3 / 2).round(12)
                wrong = uniform[:, 1] < error(confidence)
                for use in (True, False):
                    of = group_of if use and kind != "1" else None
                    tested = ErrorTest(confidence, wrong, 0.05, 0.95, of).in_random_order(turn)
                    cuts = valid_cuts(tested, seed=turn)
                    above = min(cuts, default=np.inf) < GRID
                    broken = above.any() and error(GRID[above]).mean() > 0.05
                    found[use].append((bool(broken), float(above.mean())))
            cells = [rate([broken for broken, _ in found[use]]) for use in (False, True)]
            shares = [f"{np.mean([share for _, share in found[use]]):.1%}" for use in (False, True)]
            rows.append([name, f"{groups:,} of {kind}", *cells, *shares])
            print(*rows[-1], sep=" | ", flush=True)
    return rows


def sets(turns: int, rng: np.random.Generator) -> list[list[str]]:
    """The coverage of sets for rows of new groups, its spread over draws of val, and the size of the sets."""
    rows = []
    everyone = persons(np.ones(20_000, dtype=int), rng)  # a random row of each new group
    probs = everyone.probs()
    of_true = probs[np.arange(everyone.n), everyone.labels]
    for kind, groups in (("1", 200), ("8", 25), ("8", 200), ("50", 25), ("heavy tail, 1 to 400", 25)):
        found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for _ in range(turns):
            val = persons(SIZES[kind](groups, rng), rng)
            for use in (True, False):
                limit = choose_sets(val if use else replace(val, groups=None)).least_probability
                found[use].append(((of_true >= limit).mean(), (probs >= limit).sum(axis=1).mean()))
        means = {use: np.mean(cells, axis=0) for use, cells in found.items()}
        sizes = [f"{means[use][1]:.2f}" for use in (False, True)]
        rows.append([f"{groups} of {kind}", *(f"{means[use][0]:.1%}" for use in (False, True)), *sizes])
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def page(turns: int, found: Sequence[list[list[str]]]) -> str:
    of_checks = table(
        ["reference", "current", "features", "no shift, without groups", "no shift", "15%", "30%"], found[0]
    )
    shares = ["accepted, without groups", "accepted"]
    of_choices = table(
        ["error at a confidence", "groups", "violated, without groups", "violated", *shares], found[1]
    )
    of_sets = table(
        ["groups", "coverage, without groups", "coverage", "mean size, without groups", "mean size"], found[2]
    )
    return f"""# Do the stated levels hold for rows in groups?

{date.today()}, `benchmarks/groups.py --turns {turns}`. Simulated: half of the variance of logits, confidences
and errors is that of a person. Brackets are exact 95% intervals.

## `surefoot monitor`: alarms at 5%

*Without groups*, each row counts as independent. Shifts: all logits are smaller by 15% or 30%; a quarter of
the repetitions.

{of_checks}

Whole groups are permuted, so false alarms are exact where the sizes of groups have the same distribution on
both sides. Where they do not (the last three rows), groups are weighted by how many independent rows they are
worth.

## `surefoot thresholds`: target error 0.05, level 0.95

*Violated*: the true error of the accepted is above the target, in at most 5% of the draws if the guarantee
holds.

{of_choices}

Any test that holds for all distributions has to exclude that one of so many new groups is entirely wrong. So
a target of 0.05 takes some 250 groups, however large they are.

## `surefoot sets`: coverage 0.9 of a random row of a new group

{of_sets}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with ProcessPoolExecutor(3) as pool:
        parts = [
            pool.submit(part, given.turns, np.random.default_rng(seed))
            for seed, part in enumerate((checks, choices, sets))
        ]
        written = page(given.turns, [part.result() for part in parts])
    print(written)
    if given.write:
        RESULTS.write_text(written)


if __name__ == "__main__":
    main()
