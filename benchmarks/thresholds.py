"""How often the guarantee of `surefoot thresholds` holds, on simulated data and stored networks.

    python benchmarks/thresholds.py --turns 2000 [STORE ...]

Simulated: the error at every confidence is known, and so is the error above every threshold. Stored:
familiar test rows are split at random, thresholds are chosen on one half and evaluated on all familiar and
unfamiliar rows. Results go to benchmarks/results/thresholds.md.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
from monitoring_page import table
from scipy.stats import binom

from surefoot import LabelKind, Predictions, fit_temperature, read_predictions
from surefoot.deploy.learn_then_test import STEPS, ErrorTest, valid_cuts
from surefoot.deploy.thresholds import Guarantee, Thresholds, choose_thresholds, zones
from surefoot.intervals import Proportion

Array = np.ndarray
RESULTS = Path(__file__).parent / "results" / "thresholds.md"


def text(found: Proportion) -> str:
    return f"{found.value:.1%} ({found.low:.1%} to {found.high:.1%})"


def stored_networks(store: Path) -> list[Path]:
    """The first standard network of each task."""
    found: dict[str, Path] = {}
    for spec in sorted(store.glob("networks/*/*/seed*/spec.json")):
        plain = "variant" not in json.loads(spec.read_text())["recipe"]
        if plain and (spec.parent / "test_familiar.npz").exists():
            found.setdefault(spec.parts[-4], spec.parent)
    return list(found.values())


SHAPES: dict[str, Callable[[Array], Array]] = {
    "calibrated, 1 - confidence": lambda c: 1 - c,
    "overconfident, twice that": lambda c: 2 * (1 - c),
    "worst on top: 8% above 0.99, else 2%": lambda c: np.where(c > 0.99, 0.08, 0.02),
    "just above the target everywhere": lambda c: np.full_like(c, 0.0501),
    "calibrated, confidences of two decimals (ties)": lambda c: 1 - c,
    "weak: 20% * the share that is more confident": lambda c: 0.2 * np.cbrt(2 * (1 - c)),
}
SIZES = (500, 2000, 10_000)
GRID = 1 - ((np.arange(1_000_000) + 0.5) / 1_000_000) ** 3 / 2  # the confidences of all possible rows


def confidences_of(name: str, confidence: Array) -> Array:
    """Confidences as a classifier of that kind would give them."""
    return confidence.round(2) if "ties" in name else confidence.round(12)


def drawn(n: int, name: str, rng: np.random.Generator, error: Callable[[Array], Array]) -> Predictions:
    """Two classes, confidences 1 - u^3 / 2 for uniform u: half of them above 0.94."""
    confidence = confidences_of(name, 1 - rng.random(n) ** 3 / 2)
    right = rng.random(n) >= error(confidence)
    return Predictions.from_probs(np.stack([confidence, 1 - confidence], axis=1), 1 - right.astype(int))


@dataclass(frozen=True, eq=False)
class Population:
    """The true share and error at or above every confidence that occurs."""

    confidence: Array  # descending
    share: Array
    error: Array

    @staticmethod
    def of(name: str, error: Callable[[Array], Array]) -> "Population":
        confidence = confidences_of(name, GRID)
        ends = np.flatnonzero(np.append(confidence[1:] != confidence[:-1], True))
        rows = np.arange(1, len(confidence) + 1)
        return Population(
            confidence[ends], rows[ends] / len(rows), (np.cumsum(error(confidence)) / rows)[ends]
        )

    def at(self, accept: float) -> tuple[float, float]:
        """The share at or above a threshold, and its error."""
        last = np.searchsorted(-self.confidence, -accept, side="right") - 1
        return (self.share[last], self.error[last]) if last >= 0 else (0.0, 0.0)


@dataclass(frozen=True, eq=False)
class KnownStart:
    """Fixed-sequence testing that knows the cut with the highest power: all rows and the whole level are its.

    A procedure that has to find its start from the rows can hardly accept more.
    """

    cuts: Array
    shares: Array

    @staticmethod
    def of(population: Population, n: int) -> "KnownStart":
        ranks = np.arange(1, STEPS + 1) / STEPS
        at = np.unique(np.minimum(np.searchsorted(population.share, ranks), len(population.share) - 1))
        rows = np.round(n * population.share[at])
        most_wrong = binom.ppf(0.05, rows, 0.05)
        most_wrong -= binom.cdf(most_wrong, rows, 0.05) > 0.05
        start = int(binom.cdf(most_wrong, rows, population.error[at]).argmax())
        return KnownStart(np.nextafter(population.confidence[at], 0)[start:], population.share[at][start:])

    def accepted(self, tested: ErrorTest) -> float:
        rows, wrong = tested.above(self.cuts)
        failed = (rows == 0) | (binom.cdf(wrong, np.maximum(rows, 1), tested.most) > 1 - tested.level)
        end = int(failed.argmax()) if failed.any() else len(failed)
        return float(self.shares[end - 1]) if end else 0.0


def on_drawn(n: int, name: str, turns: int, rng: np.random.Generator) -> list[str]:
    """How often a threshold is found, how often it violates the guarantee, and how much it accepts."""
    population = Population.of(name, SHAPES[name])
    known_start = KnownStart.of(population, n)
    broken, shares, with_known = 0, [], []
    for turn in range(turns):
        confidence = confidences_of(name, 1 - rng.random(n) ** 3 / 2)
        wrong = rng.random(n) < SHAPES[name](confidence)
        tested = ErrorTest(confidence, wrong, 0.05, 0.95)
        cuts = valid_cuts(tested, seed=turn)
        with_known.append(known_start.accepted(tested))
        share, error = population.at(np.nextafter(min(cuts), 2)) if cuts else (0.0, 0.0)
        shares.append(share)
        broken += error > 0.05
    best = max(population.share[population.error <= 0.05], default=0.0)
    return [name, f"{n:,}", f"{np.mean(np.array(shares) > 0):.1%}", text(Proportion.of(broken, turns)),
            f"{np.mean(shares):.1%}", f"{best:.1%}" if best else "nothing",
            f"{np.mean(shares) / best:.1%}" if best else "",
            f"{np.mean(with_known) / best:.1%}" if best else ""]  # fmt: skip


REJECTABLE: dict[str, Callable[[Array], Array]] = {
    "70% wrong below 0.8": lambda c: np.where(c < 0.8, 0.7, 0.01),
    "calibrated up to 90% wrong": lambda c: np.clip(1.8 * (1 - c), 0, 0.9),
    "just below the target": lambda c: np.where(c < 0.8, 0.4999, 0.01),
}


def on_rejected(n: int, name: str, turns: int, rng: np.random.Generator) -> list[str]:
    """The same for `reject`: at least half of what is below must be wrong."""
    low = np.sort(GRID)
    error = np.cumsum(REJECTABLE[name](low)) / np.arange(1, len(low) + 1)
    broken, shares = 0, []
    for turn in range(turns):
        val = drawn(n, name, rng, REJECTABLE[name])
        found = choose_thresholds(val, Guarantee(target_error=0.05), seed=turn)
        below = int(np.searchsorted(low, found.reject)) if isinstance(found, Thresholds) else 0
        shares.append(below / len(low))
        broken += bool(below) and error[below - 1] < 0.5
    best = float(np.flatnonzero(error >= 0.5).max(initial=-1) + 1) / len(low)
    return [name, f"{n:,}", f"{np.mean(np.array(shares) > 0):.1%}", text(Proportion.of(broken, turns)),
            f"{np.mean(shares):.1%}", f"{best:.1%}" if best else "nothing"]  # fmt: skip


def with_fitted_temperature(n: int, turns: int, rng: np.random.Generator) -> list[list[str]]:
    """Ten classes, logits multiplied by two: T fitted on the same rows, on others, or not at all."""
    pool = _ten_classes(200_000, rng)
    lines = []
    for name in ("no temperature", "T of the same rows", "T of other rows"):
        broken, found_any = 0, 0
        for _ in range(turns):
            val, other = (pool.take(rng.integers(pool.n, size=n)) for _ in range(2))
            fitted = {"T of the same rows": val, "T of other rows": other}.get(name)
            calibration = None if fitted is None else fit_temperature(fitted)
            found = choose_thresholds(val, Guarantee(target_error=0.05), calibration=calibration)
            if isinstance(found, Thresholds):
                found_any += 1
                few = pool.take(rng.integers(pool.n, size=50_000))
                broken += found.zones_of(few)["accept"].error.value > 0.05
        lines.append([name, f"{n:,}", f"{found_any / turns:.1%}", text(Proportion.of(broken, turns))])
    return lines


def _ten_classes(n: int, rng: np.random.Generator) -> Predictions:
    logits = 6 * rng.standard_normal((n, 10))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions.from_logits(2 * logits, labels)


def on_stored(folder: Path, target: float, turns: int, rng: np.random.Generator) -> list[str] | None:
    """Chosen on half of the familiar test rows, evaluated on all of them and on the unfamiliar ones."""
    familiar, unfamiliar = (
        read_predictions(folder / f"test_{side}.npz") for side in ("familiar", "unfamiliar")
    )
    if familiar.kind is LabelKind.MANY_LABELS:
        return None
    broken, found_any, shares, strange, strange_shares = 0, 0, [], [], []
    for _ in range(turns):
        half = familiar.take(rng.permutation(familiar.n)[: familiar.n // 2])
        found = choose_thresholds(half, Guarantee(target_error=target))
        if isinstance(found, Thresholds):
            found_any += 1
            here, there = (
                zones(side, found.accept, found.reject)["accept"] for side in (familiar, unfamiliar)
            )
            broken += here.error.value > target
            shares.append(here.share.value)
            strange.append(there.error.value)
            strange_shares.append(there.share.value)
    if not found_any:
        return None
    return [folder.parts[-3], f"{target:g}", f"{found_any / turns:.1%}", text(Proportion.of(broken, turns)),
            f"{np.mean(shares):.1%}", f"{np.nanmean(strange_shares):.1%}", f"{np.nanmean(strange):.1%}",
            f"{np.nanmean(strange) / target:.1f}"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", nargs="*", type=Path)
    parser.add_argument("--turns", type=int, default=2000)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    simulated = [on_drawn(n, name, given.turns, rng) for name in SHAPES for n in SIZES]
    rejected = [on_rejected(n, name, given.turns, rng) for name in REJECTABLE for n in SIZES[:2]]
    print("simulated data done", flush=True)
    fitted = with_fitted_temperature(1000, given.turns // 10, rng)
    print("temperatures done", flush=True)
    folders = [folder for store in given.stores for folder in stored_networks(store)]
    some = given.turns // 20
    real = [on_stored(folder, target, some, rng) for folder in folders for target in (0.01, 0.05, 0.1)]
    RESULTS.write_text(
        f"""# Does the guarantee of `surefoot thresholds` hold?

{date.today()}, `benchmarks/thresholds.py`, {given.turns:,} repetitions, level 0.95: at most 5% of the draws
may violate the guarantee. Brackets are exact 95% intervals.

## Simulated data, target error 0.05

Half of the confidences are above 0.94; the error is a known function of them. *Accepted* is the mean share,
0 where no threshold was found. *Possible* is the share that would be accepted if the error were known.
*Known start*: the same for fixed-sequence testing that is told the cut with the highest power, and so spends
neither rows nor level on finding it. Where that is far below 100%, so few rows do not show more.

{table(["error at a confidence", "n", "found", "violated", "accepted", "possible", "accepted / possible",
        "known start / possible"], simulated)}

## Rejected: at least half of them wrong

Simulated, target error 0.05.

{table(["error at a confidence", "n", "found", "violated", "rejected", "possible"], rejected)}

## A temperature fitted on the same rows

Ten classes, logits multiplied by two, target error 0.05, {given.turns // 10:,} repetitions; evaluated on
50,000 other rows of the same source, so a narrow violation may be noise.

{table(["calibration", "n", "found", "violated"], fitted)}

## Stored networks

Chosen on a random half of the familiar test rows ({given.turns // 20:,} repetitions), evaluated on all
familiar and all unfamiliar ones. Half of the familiar rows were used for the choice, so this is more
favourable than new rows.

{table(["task", "target", "found", "violated, familiar", "accepted, familiar", "accepted, unfamiliar",
        "error, unfamiliar", "ratio to target"], [line for line in real if line])}
"""
    )  # fmt: skip
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
