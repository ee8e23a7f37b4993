"""False alarms and detection of `surefoot monitor` itself, for stored networks.

    python benchmarks/monitoring.py STORE [--turns 100]         (the first plain network of each task)

Familiar test rows are repeatedly split at random into a reference and new windows: every alarm is false.
Windows of unfamiliar test rows, alone or mixed with familiar ones, are compared with the same references.
T is fitted on val. Results go to benchmarks/results/monitor.md. Which detectors the monitor combines was
decided by benchmarks/detectors.py.
"""

import argparse
import json
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path

import numpy as np

from surefoot import fit_temperature, read_predictions
from surefoot.deploy.monitor import AlphaBudget, Scores, check_shift, scores_of
from surefoot.intervals import Proportion

ALPHA = 0.05
WINDOWS = ((25, 1.0), (100, 1.0), (200, 0.3), (500, 0.1))  # rows, and how many of them are unfamiliar
CHECKS = 10  # checks of a sequence
RESULTS = Path(__file__).parent / "results" / "monitor.md"


@dataclass(frozen=True, eq=False)
class Stored:
    """A network's scores on familiar and unfamiliar test rows."""

    name: str
    familiar: Scores
    unfamiliar: Scores


def stored_networks(store: Path) -> list[Path]:
    """The first standard network of each task."""
    found: dict[str, Path] = {}
    for spec in sorted(store.glob("networks/*/*/seed*/spec.json")):
        plain = "variant" not in json.loads(spec.read_text())["recipe"]
        if plain and (spec.parent / "test_familiar.npz").exists():
            found.setdefault(spec.parts[-4], spec.parent)
    return list(found.values())


def load(folder: Path) -> Stored:
    """The input of the checks, calibrated on val."""
    sides = [read_predictions(folder / f"{name}.npz") for name in ("test_familiar", "test_unfamiliar", "val")]
    fitted = fit_temperature(sides[2])
    return Stored(folder.parts[-3], *(scores_of(side, calibration=fitted) for side in sides[:2]))


def rows(scores: Scores, chosen: np.ndarray) -> Scores:
    """Some of the rows, without labels."""
    arrays = {
        each.name: getattr(scores, each.name)[chosen]
        for each in fields(scores)
        if isinstance(getattr(scores, each.name), np.ndarray) and len(getattr(scores, each.name)) == scores.n
    }
    novelty = {name: values[chosen] for name, values in scores.novelty.items()}
    return replace(scores, **arrays, novelty=novelty, surplus=None, labelled=None)


def mixed(network: Stored, size: int, share: float, pool: np.ndarray, rng: np.random.Generator) -> Scores:
    """A window of that many rows, of which that share is unfamiliar."""
    strange = round(share * size)
    sides = [
        rows(network.unfamiliar, rng.permutation(network.unfamiliar.n)[:strange]),
        rows(network.familiar, rng.permutation(pool)[: size - strange]),
    ]
    arrays = {
        each.name: np.concatenate([getattr(side, each.name) for side in sides])
        for each in fields(sides[0])
        if isinstance(getattr(sides[0], each.name), np.ndarray)
    }
    novelty = {name: np.concatenate([s.novelty[name] for s in sides]) for name in sides[0].novelty}
    return replace(sides[0], **arrays, novelty=novelty)


def alarm_rates(network: Stored, turns: int, rng: np.random.Generator) -> dict[tuple[str, int], Proportion]:
    """Alarms by source and size of the window: single checks at ALPHA, and the first of a history."""
    counted: dict[tuple[str, int], list[bool]] = {}
    for _ in range(turns):
        order = rng.permutation(network.familiar.n)
        half = network.familiar.n // 2
        reference, pool = rows(network.familiar, order[:half]), order[half:]
        for size, share in WINDOWS:
            windows = {"familiar": rows(network.familiar, rng.permutation(pool)[:size])}
            if round(share * size) <= network.unfamiliar.n and size <= len(pool):
                windows["unfamiliar"] = mixed(network, size, share, pool, rng)
            for where, window in windows.items():
                check = check_shift(reference, window, budget=AlphaBudget.only(ALPHA))
                counted.setdefault((where, size), []).append(check.alarm)
                if where == "unfamiliar":
                    smallest = min(each.adjusted for each in check.findings)
                    first = AlphaBudget.of_check(1, ALPHA).level
                    counted.setdefault(("first check", size), []).append(smallest <= first)
    return {key: Proportion.of(sum(found), len(found)) for key, found in counted.items()}


def any_alarm(network: Stored, turns: int, rng: np.random.Generator) -> Proportion:
    """Sequences of CHECKS new familiar windows with one reference: how many contain any alarm."""
    size = min(100, network.familiar.n // 2 // CHECKS)
    alarms = 0
    for _ in range(turns):
        order = rng.permutation(network.familiar.n)
        fresh, reference = order[: size * CHECKS], rows(network.familiar, order[size * CHECKS :])
        alarms += any(
            check_shift(
                reference, rows(network.familiar, part), budget=AlphaBudget.of_check(number, ALPHA)
            ).alarm
            for number, part in enumerate(np.split(fresh, CHECKS), start=1)
        )
    return Proportion.of(alarms, turns)


def text(found: Proportion | None) -> str:
    return "" if found is None else f"{found.value:.1%} ({found.low:.1%} to {found.high:.1%})"


def table(header: list[str], lines: list[list[str]]) -> str:
    ruled = ["|" + "|".join(f" {cell} " for cell in line) + "|" for line in (header, *lines)]
    return "\n".join([ruled[0], "|:--" + "|--:" * (len(header) - 1) + "|", *ruled[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--turns", type=int, default=100)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    singles, sequences = [], []
    for folder in [folder for store in given.stores for folder in stored_networks(store)]:
        network = load(folder)
        rates = alarm_rates(network, given.turns, rng)
        for where in ("familiar", "unfamiliar", "first check"):
            singles.append([network.name, where, *(text(rates.get((where, size))) for size, _ in WINDOWS)])
        sequences.append([network.name, text(any_alarm(network, max(1, given.turns // 4), rng))])
        print(network.name, "done", flush=True)
        write(singles, sequences, given.turns)


def write(singles: list[list[str]], sequences: list[list[str]], turns: int) -> None:
    windows = [f"{size} rows, {share:.0%} unfamiliar" for size, share in WINDOWS]
    RESULTS.write_text(
        f"""# False alarms and detection of `surefoot monitor`

{date.today()}, `benchmarks/monitoring.py`, {turns:,} repetitions, alpha = {ALPHA}; brackets are exact 95%
intervals of the rate. Every repetition splits the familiar test rows at random: one half is the reference,
windows come from the other. Fine-tuned ResNet-18, T fitted on val.

## A single check

Alarms by rows in the window. *familiar*: no row is unfamiliar, all alarms are false, and at most
{ALPHA:.0%} is stated. *unfamiliar*: detection. *first check*: detection in the first check of a history,
which is tested at level {AlphaBudget.of_check(1, ALPHA).level:.2g}.

{table(["network", "window", *windows], singles)}

## Ten checks with one reference

Sequences of {CHECKS} new familiar windows of up to 100 rows that contain any alarm; at most {ALPHA:.0%} is
stated.

{table(["network", "any false alarm"], sequences)}
"""
    )


if __name__ == "__main__":
    main()
