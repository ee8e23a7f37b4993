"""Why `check_shift` detects less or more than the study's rate of the same rule: one difference at a time.

    python benchmarks/check_shift_steps.py STORE [--half choose] [--draws 5] [--splits 40] [TASK ...]

Windows of 200 rows of which 30% are unfamiliar, of one half of monitoring_protocol.md. Prints the detection
rate of the study's rule (all windows, and those that are checked), then with ranks and covariances of the
pooled rows, then calibrated by permutations instead of familiar windows (1,999, then 499 as in the monitor),
then with T, which is `check_shift`; and the false alarms of `check_shift`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import detectors
import numpy as np
from detectors import HALVES, TASKS, Network, Numbers
from monitoring import both_sides, members, rows
from monitoring_page import table
from rules import ALPHA, CLASS_COSINE, FEATURES, MONITOR, Evidence, rate

from surefoot.deploy import monitor
from surefoot.deploy.detectors import PERMUTATIONS, Detector, _permuted
from surefoot.deploy.monitor import Scores

Array = np.ndarray
ROWS, KIND, FAMILIAR = 200, "30%", "familiar"
CHECKED, CHECKED_FAMILIAR = 6, 20  # windows of a split
MANY_PERMUTATIONS = 1999
NAMES = {"features": FEATURES[0], "class cosine": CLASS_COSINE}
STUDY, SAME, POOLED, MORE, FEWER, CHECK, ALARMS = (
    "study", "study, the same windows", "pooled rows", f"{MANY_PERMUTATIONS:,} permutations",
    f"{PERMUTATIONS} permutations", "with T: `check_shift`", "false alarms",
)  # fmt: skip


def detectors_of(reference: Scores, current: Scores) -> Sequence[Detector]:
    """What `check_shift` combines."""
    with patch.object(monitor, "combine", return_value=()) as combine:
        monitor._findings(reference, current, ALPHA)
    found: Sequence[Detector] = combine.call_args.args[0]
    return found


with_t = cache(both_sides)


@cache
def without_t(network: Network) -> Scores:
    return both_sides(replace(network, val=None))


def statistics(found: Sequence[Detector], many: bool) -> dict[str, float]:
    """Of the pooled rows, by the study's names; the one score of many labels contains the energy."""
    values = {
        each.name: float(each.statistic(each.columns[-ROWS:].sum(axis=0, keepdims=True), ROWS)[0])
        for each in found
    }
    return {"labels" if many and n == "confidence" else NAMES.get(n, n): v for n, v in values.items()}


def needed(columns: detectors.Columns, many: bool) -> detectors.Columns:
    """Only what the rule uses."""
    names = {"labels", "energy", CLASS_COSINE} if many else {"confidence", "energy", "energy tail"}
    one = {name: each for name, each in columns.one.items() if name in names}
    return detectors.Columns(one, {FEATURES[0]: columns.several[FEATURES[0]]}, {})


class Drawn:
    """Statistics and decisions of the windows of a draw."""

    def __init__(self, many: bool) -> None:
        self.many = many
        self.study: dict[str, list[dict[str, Array]]] = {KIND: [], FAMILIAR: []}
        self.pooled: dict[str, list[dict[str, float]]] = {KIND: [], FAMILIAR: []}
        self.detected: dict[str, list[bool]] = {MORE: [], FEWER: [], CHECK: [], ALARMS: []}

    def add(self, network: Network, data: Numbers, order: Array, rng: np.random.Generator) -> None:
        """A split: familiar rows in a random order, the first half of them the reference."""
        reference, pool = np.split(order, [data.familiar // 2])
        columns = needed(detectors.columns(data, reference), self.many)
        calibrated, plain = with_t(network), without_t(network)
        for (_, kind), windows in detectors.windows(network, data, pool, rng, (ROWS,)):
            if kind not in self.study:
                continue
            self.study[kind].append(
                detectors.statistics(columns, replace(data, scores={}, features=None), reference, windows)
            )
            for number, window in enumerate(windows[: CHECKED if kind == KIND else CHECKED_FAMILIAR]):
                of_plain = detectors_of(rows(plain, reference), rows(plain, window))
                self.pooled[kind].append(statistics(of_plain, self.many))
                if number >= CHECKED:
                    continue
                of_calibrated = detectors_of(rows(calibrated, reference), rows(calibrated, window))
                if kind == FAMILIAR:
                    self.decide(ALARMS, of_calibrated, PERMUTATIONS)
                    continue
                self.decide(MORE, of_plain, MANY_PERMUTATIONS)
                self.decide(FEWER, of_plain, PERMUTATIONS)
                self.decide(CHECK, of_calibrated, PERMUTATIONS)

    def decide(self, step: str, found: Sequence[Detector], permutations: int) -> None:
        self.detected[step].append(_permuted(found, ROWS, permutations)[-1].p <= ALPHA)

    def rates(self) -> dict[str, float]:
        study = {kind: joined(each) for kind, each in self.study.items()}
        same = joined([{n: v[:CHECKED] for n, v in each.items()} for each in self.study[KIND]])
        pooled = {
            kind: {n: np.array([w[n] for w in each]) for n in each[0]} for kind, each in self.pooled.items()
        }
        return {
            STUDY: self.rate(study[KIND], study[FAMILIAR]),
            SAME: self.rate(same, study[FAMILIAR]),
            POOLED: self.rate(pooled[KIND], pooled[FAMILIAR]),
            **{step: float(np.mean(each)) for step, each in self.detected.items()},
        }

    def rate(self, found: dict[str, Array], familiar: dict[str, Array]) -> float:
        return rate(*Evidence(found, familiar, ROWS).of(MONITOR[self.many], self.many))


def joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


def draw(networks: Sequence[Network], splits: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    numbers = [detectors.numbers(network) for network in networks]
    drawn = Drawn(numbers[0].many)
    for network, data in zip(networks, numbers, strict=True):
        for _ in range(max(1, splits // len(networks))):
            drawn.add(network, data, rng.permutation(data.familiar), rng)
    return drawn.rates()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("tasks", nargs="*", metavar="TASK", default=[*TASKS, "pets"])
    parser.add_argument("--half", choices=HALVES, default=HALVES[0])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--splits", type=int, default=40)
    given = parser.parse_intermixed_args()
    steps = (STUDY, SAME, POOLED, MORE, FEWER, CHECK, ALARMS)
    lines = []
    for task in given.tasks:
        networks = members(given.store, task, given.half)
        found = [draw(networks, given.splits, seed) for seed in range(given.draws)]
        apart = sorted(100 * (each[STUDY] - each[CHECK]) for each in found)
        means = [f"{100 * np.mean([each[step] for each in found]):.1f}" for step in steps]
        lines.append([task, *means, f"{np.mean(apart):+.1f} ({apart[0]:+.1f} to {apart[-1]:+.1f})"])
        print(task, "done", flush=True)
    print(table(["task", *steps, "study less `check_shift`"], lines))


if __name__ == "__main__":
    main()
