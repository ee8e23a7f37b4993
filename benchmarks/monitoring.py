r"""How often the monitor raises an alarm on new familiar data and on unfamiliar data, for stored networks.

    surefoot run quickstart --store runs
    surefoot train cat-dog --root Oxford_IIIT_Pets --weights resnet18_animalfree.safetensors \
        --store photographs --set view=64 --set resize=72 --set learning_rate=0.02 --set epochs=8
    surefoot train examples/animals64.toml --weights resnet18_animalfree.safetensors --store photographs \
        --set view=56 --set resize=64 --set learning_rate=0.02 --set epochs=6 --set protocol=holdout
    python benchmarks/monitoring.py runs photographs           (the first plain network of each task)

Familiar test rows are repeatedly split at random into a reference and new windows: every alarm is false.
Windows of unfamiliar test rows are then compared with the same references. T is fitted on val, the
thresholds are chosen there. Results go to benchmarks/results/monitor.md.
"""

import argparse
import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

from surefoot import fit_temperature, read_predictions
from surefoot.deploy.monitor import AlphaBudget, Scores, check_shift, scores_of
from surefoot.deploy.thresholds import Guarantee, Thresholds, choose_thresholds
from surefoot.intervals import Proportion

ALPHA = 0.05
WINDOWS = (50, 100, 200, 500)
CHECKS = 10  # checks of a sequence, each with a window of 100
TARGETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)  # the first that can be guaranteed sets the thresholds
RESULTS = Path(__file__).parent / "results" / "monitor.md"


@dataclass(frozen=True, eq=False)
class Stored:
    """A network's scores on familiar and unfamiliar test rows and on val, and its accuracy."""

    name: str
    protocol: str
    familiar: Scores
    unfamiliar: Scores
    val: Scores
    thresholds: Thresholds | None


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
    recipe = json.loads((folder / "spec.json").read_text())["recipe"]
    fitted = fit_temperature(sides[2])
    tried = (choose_thresholds(sides[2], Guarantee(target_error=t), calibration=fitted) for t in TARGETS)
    chosen = next((each for each in tried if isinstance(each, Thresholds)), None)
    scores = [scores_of(side, calibration=fitted, thresholds=chosen) for side in sides]
    name = f"{folder.parts[-3]} ({recipe['network']}, {recipe['protocol']})"
    return Stored(name, recipe["protocol"], *scores, chosen)


def rows(scores: Scores, chosen: np.ndarray) -> Scores:
    """Some of the rows, with their accuracy."""
    assert scores.accepted is None or len(scores.accepted) == scores.n
    return Scores(
        confidence=scores.confidence[chosen],
        novelty={name: values[chosen] for name, values in scores.novelty.items()},
        accepted=None if scores.accepted is None else scores.accepted[chosen],
        surplus=None if scores.surplus is None else scores.surplus[chosen],
        accuracy=scores.accuracy,
    )


def alarm_rates(network: Stored, turns: int, rng: np.random.Generator) -> dict[tuple[str, int], Proportion]:
    """Alarms of single checks at ALPHA, by source and size of the window."""
    counted: dict[tuple[str, int], list[bool]] = {}
    for _ in range(turns):
        order = rng.permutation(network.familiar.n)
        half = network.familiar.n // 2
        reference = rows(network.familiar, order[:half])
        for size in WINDOWS:
            fresh = rows(network.familiar, order[half : half + size])
            strange = rows(network.unfamiliar, rng.permutation(network.unfamiliar.n)[:size])
            for where, window in (("familiar", fresh), ("unfamiliar", strange)):
                if window.n == size:
                    check = check_shift(reference, window, share=AlphaBudget.only(ALPHA))
                    counted.setdefault((where, size), []).append(check.alarm)
                    if where == "unfamiliar":
                        late = check_shift(reference, window, share=AlphaBudget.of_look(CHECKS, ALPHA))
                        counted.setdefault(("tenth check", size), []).append(late.alarm)
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
                reference, rows(network.familiar, part), share=AlphaBudget.of_look(number, ALPHA)
            ).alarm
            for number, part in enumerate(np.split(fresh, CHECKS), start=1)
        )
    return Proportion.of(alarms, turns)


def against_val(network: Stored, turns: int, rng: np.random.Generator) -> Proportion:
    """New familiar windows of 500 compared with val, which in the paper's protocol is of another network."""
    size = min(500, network.familiar.n // 2)
    windows = (rows(network.familiar, rng.permutation(network.familiar.n)[:size]) for _ in range(turns))
    return Proportion.of(
        sum(check_shift(network.val, window, share=AlphaBudget.only(ALPHA)).alarm for window in windows),
        turns,
    )


def estimates(network: Stored, rng: np.random.Generator) -> list[str]:
    """Estimated and true accuracy, for a new familiar half and for all unfamiliar rows."""
    order = rng.permutation(network.familiar.n)
    half = network.familiar.n // 2
    reference = rows(network.familiar, order[:half])
    cells = []
    for window in (rows(network.familiar, order[half:]), network.unfamiliar):
        check = check_shift(reference, window, share=AlphaBudget.only(ALPHA))
        assert window.surplus is not None
        true = float((window.surplus + window.confidence).mean())
        ends = f"{check.accuracy.low:.1%} to {check.accuracy.high:.1%}"
        cells += [f"{check.accuracy.value:.1%} ({ends})", f"{true:.1%}"]
    return cells


def text(found: Proportion | None) -> str:
    return "" if found is None else f"{found.value:.1%} ({found.low:.1%} to {found.high:.1%})"


def table(header: list[str], lines: list[list[str]]) -> str:
    ruled = ["|" + "|".join(f" {cell} " for cell in line) + "|" for line in (header, *lines)]
    return "\n".join([ruled[0], "|:--" + "|--:" * (len(header) - 1) + "|", *ruled[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--turns", type=int, default=1000)
    given = parser.parse_args()
    networks = [load(folder) for store in given.stores for folder in stored_networks(store)]
    rng = np.random.default_rng(0)
    singles, sequences, estimated, with_val = [], [], [], []
    for network in networks:
        rates = alarm_rates(network, given.turns, rng)
        for where in ("familiar", "unfamiliar", "tenth check"):
            singles.append([network.name, where, *(text(rates.get((where, size))) for size in WINDOWS)])
        sequences.append([network.name, text(any_alarm(network, given.turns, rng))])
        with_val.append([network.name, text(against_val(network, given.turns, rng))])
        estimated.append([network.name, *estimates(network, rng)])
        print(network.name, "done", flush=True)
    sizes = [
        [each.name, f"{each.familiar.n:,}", f"{each.unfamiliar.n:,}",
         f"{each.familiar.accuracy.value:.1%}", f"{each.unfamiliar.accuracy.value:.1%}",
         "none" if each.thresholds is None else f"{each.thresholds.promise.target_error:g}"]
        for each in networks
    ]  # fmt: skip
    RESULTS.write_text(
        f"""# False alarms and detection of `surefoot monitor`

{date.today()}, `benchmarks/monitoring.py`, {given.turns:,} repetitions, alpha = {ALPHA}; brackets are exact
95% intervals of the rate. Every repetition splits the familiar test rows at random: one half is the
reference, windows come from the other. `letters` and `toy-wave` are the quickstart's; `cat-dog`
(Oxford-IIIT Pets, unseen breeds) and `animals64` (ImageNet, unseen subclasses) are photographs at 64 and 56
pixels, with small networks trained on two CPU cores in minutes, with the commands in the script.

{table(["network", "familiar rows", "unfamiliar rows", "accuracy", "on unfamiliar", "target error"], sizes)}

## A single check

Alarms by rows in the window. *familiar*: all are false, and at most {ALPHA:.0%} is stated. *unfamiliar*:
detection. *tenth check*: detection in the tenth check of a history, which is tested at level
{AlphaBudget.of_look(CHECKS, ALPHA).level:.1e}.

{table(["network", "window", *(f"{size} rows" for size in WINDOWS)], singles)}

## Ten checks with one reference

Sequences of {CHECKS} new familiar windows of 100 rows that contain any alarm; at most {ALPHA:.0%} is
stated.

{table(["network", "any false alarm"], sequences)}

## Val as the reference

Alarms on new familiar windows of 500 rows compared with val. In the `paper` protocol val's logits come from
the network before it was retrained with val: another network, and so not a valid reference. In animals64
val is split from the training photographs, whose class distribution differs from that of the test
photographs.

{table(["network", "alarms"], with_val)}

## Estimated accuracy

For a new familiar half and for all unfamiliar rows; the reference has labels.

{table(["network", "familiar: estimated", "true", "unfamiliar: estimated", "true"], estimated)}
"""
    )
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
