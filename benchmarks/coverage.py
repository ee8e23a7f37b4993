"""How often the intervals and tests of Surefoot hold, in simulations where the truth is known.

    python benchmarks/coverage.py [--simulations 4000] [--out benchmarks/results/coverage.md]

A paired difference of losses is simulated as effect + group + network + group x network + image, and
ensembles as networks whose probabilities are averaged. Rules that are not used are there to compare with.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from surefoot.calibrators import Calibration, fit_calibration
from surefoot.evaluation.bootstrap import Draw
from surefoot.evaluation.evaluate import evaluate
from surefoot.evaluation.scores import Score
from surefoot.lab.comparison.comparison import Difference, RunScore, over_networks, summary
from surefoot.lab.comparison.differences import difference
from surefoot.metrics import METRICS
from surefoot.metrics.intervals import NORMAL, Interval, StandardError, error_within, sign_flip
from surefoot.predictions.predictions import Predictions

RESAMPLES = 400
IMAGES = 40  # in a group, on average
NOMINAL = 0.95
TOLERATED = 0.015  # a rule fails if it misses the nominal share by more, and by three simulation errors
POOL = 20_000  # networks of which ensembles are made
ENSEMBLE_IMAGES = 150
CLASSES = 5
ROWS_OF_TRUTH = 4_000_000
ROWS_AT_ONCE = 200_000
SHARE_OF_EVALUATIONS = 10  # one in so many simulations, which take longer
SCORED = ("nll", "ece", "aurc", "brier", "e99", "label_error")

Array = np.ndarray
Shape = Callable[[np.random.Generator, int], Array]


def normal(rng: np.random.Generator, n: int) -> Array:
    return rng.standard_normal(n)


def skewed(rng: np.random.Generator, n: int) -> Array:
    """Mean 0, variance 1, skewness 2: a few groups gain much more than the others."""
    return rng.exponential(size=n) - 1


SHAPES: dict[str, Shape] = {"normal": normal, "skewed": skewed}


@dataclass(frozen=True)
class Row:
    """A rule in a situation: how often it held, and how wide it was."""

    about: str
    situation: str
    rule: str
    held: float
    width: float  # the mean over simulations; NaN for a test
    nominal: float = NOMINAL
    used: bool = True
    simulations: int | None = None  # if other than for most rows

    def cell(self, simulations: int) -> str:
        """Percent with the simulation error, the width in parentheses, a star where it fails."""
        error = math.sqrt(max(self.held * (1 - self.held), 1e-4) / (self.simulations or simulations))
        fails = abs(self.held - self.nominal) > max(TOLERATED, 3 * error)
        width = "" if math.isnan(self.width) else f" ({self.width:.2f})"
        return f"{100 * self.held:.1f} ±{100 * error:.1f}{width}{'*' * fails}"


@dataclass(frozen=True)
class Simulated:
    """The losses of one method less another's, and what they are the sum of; the effect is 0."""

    group_of: Array  # (images,)
    group: Array  # (images,) the group's effect
    run: Array  # (runs, 1) the network's effect
    both: Array  # (runs, images) the network's effect in the group
    image: Array  # (images,) the same for all networks
    own: Array  # (runs, images)

    @property
    def gaps(self) -> Array:
        return np.asarray(self.group + self.run + self.both + self.image + self.own)

    @staticmethod
    def of(rng: np.random.Generator, groups: int, runs: int, shape: Shape, spread: float) -> "Simulated":
        sizes = rng.integers(IMAGES // 2, IMAGES * 3 // 2, size=groups, endpoint=True)
        group_of = np.repeat(np.arange(groups), sizes)
        return Simulated(
            group_of,
            shape(rng, groups)[group_of],
            spread * rng.standard_normal((runs, 1)),
            0.3 * rng.standard_normal((runs, groups))[:, group_of],
            2.0 * rng.standard_t(5, len(group_of)),
            rng.standard_normal((runs, len(group_of))),
        )

    def difference(self, rng: np.random.Generator) -> Difference:
        """As `compare` makes it, of `runs` networks that both methods use."""
        all_gaps = self.gaps
        draw = Draw.of(len(self.group_of), self.group_of, resamples=RESAMPLES, rng=rng)
        counts = np.concatenate(list(draw.counts()))
        sums = np.stack([np.bincount(draw.block_of, gaps) for gaps in all_gaps])
        drawn = sums @ counts.T / (counts @ np.bincount(draw.block_of))
        ours = summary([RunScore(run, float(gaps.mean())) for run, gaps in enumerate(all_gaps)])
        column = {"ours": ours, "theirs": summary([RunScore(run, 0.0) for run in range(len(all_gaps))])}
        replicates = {("ours", run): values for run, values in enumerate(drawn)}
        replicates |= {("theirs", run): np.zeros(RESAMPLES) for run in range(len(all_gaps))}
        return difference(column, "ours", "theirs", replicates, int(self.group_of.max()) + 1)

    def by_student(self) -> StandardError:
        """Over groups, from the variance of their totals around the mean."""
        gaps = self.gaps.mean(axis=0)
        totals = np.bincount(self.group_of, gaps - gaps.mean()) / len(gaps)
        groups = len(totals)
        return StandardError(math.sqrt(groups / (groups - 1) * float(totals @ totals)), groups - 1)


@dataclass
class Tally:
    """Counts how often intervals contain their target."""

    held: int = 0
    width: float = 0.0
    number: int = 0

    def add(self, low: float, high: float, target: float) -> None:
        self.number += 1
        self.held += low <= target <= high
        self.width += high - low

    def row(self, about: str, situation: str, rule: str, *, used: bool = True) -> Row:
        return Row(about, situation, rule, self.held / self.number, self.width / self.number, used=used)


NEW, THESE, RUNS, BOTH = "New groups", "These groups", "Over runs", "New groups and other networks"
JACKKNIFE, AS_FIXED = "leave-one-out (jackknife)", "ensemble as fixed"
FLIPS, ENSEMBLES = "The sign-flip test at 5%", "Ensembles, other networks"
EVALUATED = "Evaluations, new rows or groups"
RULES = {
    "bootstrap of groups, widened": NEW,
    "bootstrap of groups, not widened": NEW,
    "Student's t over groups": NEW,
    "within groups": THESE,
    "bootstrap of groups, widened ": THESE,
    "paired runs": RUNS,
    "variances added, Satterthwaite": BOTH,
    "half-widths added as squares": BOTH,
    "images only": BOTH,
}
USED = ("bootstrap of groups, widened", "within groups", "paired runs", "variances added, Satterthwaite")


def differences(simulations: int, rng: np.random.Generator) -> Iterator[Row]:
    """Intervals of differences between methods of the same networks."""
    for groups in (5, 8, 20):
        for runs in (3, 10):
            for name, shape in SHAPES.items():
                situation = f"{groups} groups, {runs} runs, {name}"
                tallies = {rule: Tally() for rule in RULES}
                for _ in range(simulations):
                    simulated = Simulated.of(rng, groups, runs, shape, spread=0.5)
                    for rule, (interval, target) in judged(simulated, rng).items():
                        tallies[rule].add(interval.low, interval.high, target)
                for rule, about in RULES.items():
                    if about == BOTH or (runs == 10 and about != RUNS) or (about, groups) == (RUNS, 8):
                        yield tallies[rule].row(about, situation, rule.strip(), used=rule in USED)


def judged(simulated: Simulated, rng: np.random.Generator) -> dict[str, tuple[Interval, float]]:
    """Each rule's interval, with what it should contain."""
    gap = simulated.difference(rng)
    value, groups = gap.value, gap.independent
    of_run = float(simulated.run.mean())
    these = float((simulated.group + simulated.run + simulated.both).mean())
    same_images = float((simulated.group + simulated.image).mean())
    images = Interval(value, gap.low, gap.high)
    factor = StandardError(1.0, groups - 1).margin / NORMAL * math.sqrt(groups / (groups - 1))
    plain = Interval(value, value - (value - gap.low) / factor, value + (gap.high - value) / factor)
    mean = simulated.gaps.mean(axis=0)
    within = error_within((mean - value) / len(mean), simulated.group_of)
    both = Interval(value, *gap.ends)
    squares = [math.hypot(end, gap.over_runs.margin) for end in (value - gap.low, gap.high - value)]
    return {
        "bootstrap of groups, widened": (images, of_run),
        "bootstrap of groups, not widened": (plain, of_run),
        "Student's t over groups": (simulated.by_student().around(value), of_run),
        "within groups": (within.around(value), these),
        "bootstrap of groups, widened ": (images, these),
        "paired runs": (gap.over_runs.around(value), same_images),
        "variances added, Satterthwaite": (both, 0.0),
        "half-widths added as squares": (Interval(value, value - squares[0], value + squares[1]), 0.0),
        "images only": (images, 0.0),
    }


def independent_networks(simulations: int, rng: np.random.Generator) -> Iterator[Row]:
    """Two methods with networks of their own, one of which varies three times as much."""
    for runs in (3, 10):
        rules = {"Welch": Tally(), "paired by run number": Tally()}
        for _ in range(simulations):
            ours, theirs = rng.normal(0, 1, runs), rng.normal(0, 3, runs)
            value = float(ours.mean() - theirs.mean())
            apart = over_networks(
                {("a", i): v for i, v in enumerate(ours)}, {("b", i): v for i, v in enumerate(theirs)}
            )
            paired = over_networks(dict(enumerate(ours - theirs)))
            for tally, error in zip(rules.values(), (apart, paired), strict=True):
                interval = error.around(value)
                tally.add(interval.low, interval.high, 0.0)
        for rule, tally in rules.items():
            yield tally.row(RUNS, f"other networks, {runs} runs each", rule, used=rule == "Welch")


def flips(simulations: int, rng: np.random.Generator) -> Iterator[Row]:
    """How often the sign-flip test rejects where the groups' effects have a mean of 0."""
    for groups in (5, 8, 20):
        for name, shape in SHAPES.items():
            p = []
            for _ in range(simulations):
                simulated = Simulated.of(rng, groups, 3, shape, spread=0.0)
                p.append(
                    sign_flip(
                        np.bincount(simulated.group_of, simulated.gaps.mean(axis=0)), int(rng.integers(2**32))
                    )
                )
            rejected = float(np.mean(np.array(p) <= 0.05))
            yield Row(FLIPS, f"{groups} groups, {name}", "sign flips", rejected, math.nan, nominal=0.05)


@dataclass(frozen=True)
class Pool:
    """Many networks' probabilities of the true class, of the same images."""

    p_true: Array  # (networks, images)

    @staticmethod
    def of(rng: np.random.Generator, spread: float) -> "Pool":
        """Networks that differ in how confident they are and by noise, on images of which some are hard."""
        signal = rng.normal(1.5, 2.0, ENSEMBLE_IMAGES)
        confidence = np.exp(rng.normal(0.5, spread, (POOL, 1)))
        logits = confidence * (signal + rng.standard_normal((POOL, ENSEMBLE_IMAGES)))
        return Pool(1 / (1 + np.exp(-logits)))

    def nll(self, networks: Array) -> Array:
        """Of ensembles, (ensembles, members) -> (ensembles,)."""
        mean = sum(self.p_true[of_member] for of_member in networks.T) / networks.shape[1]
        return np.asarray(-np.log(np.clip(mean, 0.001, 0.999)).mean(axis=1))


def ensembles(simulations: int, rng: np.random.Generator) -> Iterator[Row]:
    """One ensemble of M, the mean of its M networks, and the difference of both."""
    for networks, spread in (("alike", 0.1), ("unlike", 0.3)):
        pool = Pool.of(rng, spread)
        for members in (5, 10):
            tallies = ensemble_tallies(pool, members, simulations, rng)
            for (about, rule), tally in tallies.items():
                situation = f"{about}, {members} members, {networks}"
                yield tally.row(ENSEMBLES, situation, rule, used=rule == JACKKNIFE)


def ensemble_tallies(
    pool: Pool, members: int, simulations: int, rng: np.random.Generator
) -> dict[tuple[str, str], Tally]:
    """By what is estimated, and the rule."""
    single = pool.nll(np.arange(POOL)[:, None])
    truth = float(pool.nll(rng.integers(POOL, size=(POOL, members))).mean())
    less_truth = truth - float(single.mean())
    keys = ("single", "ensemble", "ensemble less single")
    tallies = {(about, JACKKNIFE): Tally() for about in keys} | {(keys[2], AS_FIXED): Tally()}
    for _ in range(simulations):
        networks = rng.choice(POOL, members, replace=False)
        value, alone = float(pool.nll(networks[None])[0]), single[networks]
        rest = pool.nll(np.stack([np.delete(networks, place) for place in range(members)]))
        pseudo = dict(enumerate(members * value - (members - 1) * rest))
        runs, mean = dict(enumerate(alone)), float(alone.mean())
        judged = (
            (mean, float(single.mean()), (runs,)),
            (value, truth, (pseudo,)),
            (value - mean, less_truth, (pseudo, runs)),
            (value - mean, less_truth, (runs,)),
        )
        for tally, (estimate, target, methods) in zip(tallies.values(), judged, strict=True):
            interval = over_networks(*methods).around(estimate)
            tally.add(interval.low, interval.high, target)
    return tallies


def overconfident(rng: np.random.Generator, group_of: Array) -> Predictions:
    """Logits 1.5 times too large; each group has a temperature and frequencies of classes of its own."""
    groups = int(group_of[-1]) + 1
    inverse = np.exp(0.4 * rng.standard_normal((groups, 1)))[group_of]
    true = (
        2 * rng.standard_normal((len(group_of), CLASSES)) + rng.standard_normal((groups, CLASSES))[group_of]
    )
    labels = (inverse * true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return Predictions.from_logits(1.5 * true, labels, groups=group_of)


def scores(
    predictions: Predictions, calibration: Calibration | None, resamples: int, seed: int
) -> dict[str, Score]:
    """Of the predictions, or what the calibration changes."""
    result = evaluate(predictions, calibration=calibration, metrics=SCORED, resamples=resamples, seed=seed)
    return result.sides["familiar"].metrics if calibration is None else result.change["familiar"]


def true_values(calibration: Calibration | None, rng: np.random.Generator) -> dict[str, float]:
    """The means over many samples, each so large that a calibration error has nearly no bias."""
    parts = []
    for _ in range(ROWS_OF_TRUTH // ROWS_AT_ONCE):
        drawn = scores(replace(overconfident(rng, np.arange(ROWS_AT_ONCE)), groups=None), calibration, 0, 0)
        parts.append([drawn[name].value for name in SCORED])
    return dict(zip(SCORED, np.mean(parts, axis=0).tolist(), strict=True))


def evaluations(simulations: int, rng: np.random.Generator) -> Iterator[Row]:
    """The intervals of `evaluate`: blocks of rows or groups, and cells of confidence."""
    simulations //= SHARE_OF_EVALUATIONS
    fitted = fit_calibration("temperature", overconfident(rng, np.arange(20_000)))
    truths = {calibration: true_values(calibration, rng) for calibration in (None, fitted)}
    for groups, least, most, calibration in (
        (2_500, 1, 1, None),
        (20_000, 1, 1, None),
        (100, 1, 99, None),
        (2_500, 4, 4, None),
        (2_500, 1, 1, fitted),
        (20_000, 1, 1, fitted),
        (2_500, 4, 4, fitted),
    ):
        tallies, eces = {name: Tally() for name in SCORED}, list[Score]()
        for number in range(simulations):
            sizes = rng.integers(least, most, groups, endpoint=True)
            predictions = overconfident(rng, np.repeat(np.arange(groups), sizes))
            if most == 1:
                predictions = replace(predictions, groups=None)
            found = scores(predictions, calibration, RESAMPLES, number)
            eces.append(found["ece"])
            for name, score in found.items():
                tallies[name].add(score.low, score.high, truths[calibration][name])
        rows_each = f"{most}" if least == most else f"{least} to {most}"
        situation = f"{groups:,} rows" if most == 1 else f"{groups:,} groups of {rows_each} rows"
        situation += "" if calibration is None else ", change by a temperature"
        for name, tally in tallies.items():
            row = tally.row(EVALUATED, situation, METRICS.named(name).title)
            yield replace(row, simulations=simulations)
        with_bias = Tally()
        for score in eces:
            with_bias.add(score.low, score.high, float(np.mean([each.value for each in eces])))
        row = with_bias.row(EVALUATED, situation, "mean of the estimated ECE", used=False)
        yield replace(row, simulations=simulations)


MEANS = {
    EVALUATED: "Intervals of `evaluate`: 1,000 blocks of rows or groups are drawn, and confidences are "
    "joined to 512 cells. Five classes, overconfident; groups differ in difficulty and classes. The truth is "
    f"the mean of samples of {ROWS_AT_ONCE:,} rows, {ROWS_OF_TRUTH:,} in all. One in {SHARE_OF_EVALUATIONS} "
    "of the simulations. A plug-in ECE is too high for few rows, the more the better calibrated the model "
    "is; so the change of ECE is underestimated, and its interval is around that estimate: the last column "
    "is how often it contains the mean estimate of as many rows. A temperature cannot change the label "
    "error, and where it leaves no error above 0.99, the interval of the change of E99 is exact, which is "
    "wider.",
    NEW: "Other groups of the same kind, the same networks.",
    THESE: "Other images of the same groups, the same networks.",
    RUNS: "Other networks of the same recipes, the same images.",
    BOTH: "The interval behind an answer.",
    FLIPS: "How often it rejects where there is no effect. With 5 groups the least p is 0.0625.",
    ENSEMBLES: "Other networks, the same images: the expected NLL of an ensemble of M, and less the mean NLL "
    "of its M networks. Networks are alike (their confidences vary by 10%) or unlike (30%).",
}


def ranges(rows: Sequence[Row]) -> Iterator[str]:
    """A line per rule: the lowest and the highest percentage over the situations, skewed effects apart."""
    yield "| interval | rule | normal effects | skewed effects |"
    yield "|:--|:--|--:|--:|"
    in_order = sorted(rows, key=lambda row: list(MEANS).index(row.about))
    for about, rule, used in dict.fromkeys((row.about, row.rule, row.used) for row in in_order):
        cells = []
        for skew in (False, True):
            held = [
                100 * row.held
                for row in rows
                if (row.about, row.rule) == (about, rule) and ("skewed" in row.situation) == skew
            ]
            cells.append(f"{min(held):.1f} to {max(held):.1f}" if held else "")
        yield f"| {about} | {f'**{rule}**' if used else rule} | {' | '.join(cells)} |"


def page(rows: Sequence[Row], simulations: int) -> str:
    """A table for each kind of interval: a line for each situation, a column for each rule."""
    lines = [
        "# Coverage of the intervals",
        "",
        f"`python benchmarks/coverage.py`: {simulations:,} simulations of each situation, {RESAMPLES} "
        "resamples. The percentage of simulations in which a 95% interval contains the truth, ± its "
        "simulation error (one standard error); in parentheses the mean width. Bold: the rule that is "
        f"used. A star: more than {100 * TOLERATED:.1f} points and three simulation errors from the nominal "
        "95 (for the test: 5). "
        f"Groups have about {IMAGES} images; their effects are normal, or skewed (exponential).",
        "",
        *ranges(rows),
    ]
    for about in MEANS:
        of_kind = [row for row in rows if row.about == about]
        rules = {row.rule: f"**{row.rule}**" if row.used else row.rule for row in of_kind}
        lines += ["", f"## {about}", "", MEANS[about], ""]
        lines += [f"| | {' | '.join(rules.values())} |", f"|:--|{'--:|' * len(rules)}"]
        for situation in dict.fromkeys(row.situation for row in of_kind):
            found = {row.rule: row.cell(simulations) for row in of_kind if row.situation == situation}
            lines.append(f"| {situation} | {' | '.join(found.get(rule, '') for rule in rules)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulations", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/coverage.md"))
    chosen = parser.parse_args()
    parts = (differences, independent_networks, flips, ensembles, evaluations)
    rows = [
        row
        for place, part in enumerate(parts)
        for row in part(chosen.simulations, np.random.default_rng([chosen.seed, place]))
    ]
    chosen.out.write_text(page(rows, chosen.simulations))
    print(chosen.out)


if __name__ == "__main__":
    main()
