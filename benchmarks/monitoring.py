"""The study of `surefoot monitor`: power, false alarms, spending, accuracy without labels, and its peers.

    python benchmarks/monitoring.py STORE [--peers PYTHON] [--workers N] [--quick] [--write]

STORE has networks with predictions on val and on familiar and unfamiliar test rows. PYTHON is that of an
environment with frouros and NannyML (monitoring_peers.py). Protocol: monitoring_protocol.md. With --write,
results go to benchmarks/results/monitor.md and monitor.png; without, the page is printed.
"""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import accuracy
import detectors
import monitoring_page
import numpy as np
import spending
import two_detectors
from detectors import DECIDING, HALVES, TASKS, Cell, Drawn, Sample
from rules import ALPHA, rate

from surefoot import fit_temperature
from surefoot.deploy.monitor import AlphaBudget, Scores, check_shift, scores_of
from surefoot.intervals import Proportion

RESULTS = Path(__file__).parent / "results"
CHECKED: tuple[Cell, ...] = (
    (25, "familiar"), (25, "100%"), (200, "familiar"), (200, "30%"), (200, "other mix")
)  # fmt: skip
CHECKS = 20  # of a history
CONFIRM = HALVES[1]
REPEATED = ("cat-dog",)  # with OTHER_SEED, for the Monte Carlo error
OTHER_SEED = 11


def members(store: Path, task: str, half: str) -> list[detectors.Network]:
    return [detectors.embedded(half)] if task == "pets" else detectors.networks(store, task, half)


def rows(scores: Scores, chosen: np.ndarray) -> Scores:
    """Some of the rows, without labels."""
    arrays = {
        each.name: getattr(scores, each.name)[chosen]
        for each in fields(scores)
        if isinstance(getattr(scores, each.name), np.ndarray)
    }
    novelty = {name: values[chosen] for name, values in scores.novelty.items()}
    return replace(scores, **arrays, novelty=novelty, surplus=None, labelled=None)


def both_sides(network: detectors.Network) -> Scores:
    """The scores of the familiar rows, then of the unfamiliar ones, calibrated with T of val."""
    calibration = None if network.val is None else fit_temperature(network.val)
    sides = [
        replace(scores_of(each, calibration=calibration), surplus=None, labelled=None, ids=None, groups=None)
        for each in (network.familiar, network.unfamiliar)
    ]
    arrays = {
        each.name: np.concatenate([getattr(side, each.name) for side in sides])
        for each in fields(Scores)
        if isinstance(getattr(sides[0], each.name), np.ndarray)
    }
    novelty = {"energy": np.concatenate([side.novelty["energy"] for side in sides])}
    return replace(sides[0], **arrays, novelty=novelty, features=network.features)


def checked(store: Path, sample: Sample, task: str) -> dict[Cell, dict[str, Proportion]]:
    """How often `surefoot monitor` itself finds a shift: alone, as a first check, and if it matters."""
    networks = members(store, task, CONFIRM)
    found: dict[Cell, list[tuple[bool, bool, bool]]] = {}
    scores: dict[int, Scores] = {}
    first = AlphaBudget.of_check(1, ALPHA).level
    for each in detectors.draws(networks, HALVES.index(CONFIRM), sample.splits):
        if each.cell not in CHECKED:
            continue
        if id(each.network) not in scores:
            scores = {id(each.network): both_sides(each.network)}
        whole = scores[id(each.network)]
        reference = rows(whole, each.reference)
        windows = sample.checked if each.cell in DECIDING else sample.others
        for chosen in each.rows[: max(1, round(windows / sample.splits))]:
            check = check_shift(reference, rows(whole, chosen), budget=AlphaBudget.only(ALPHA))
            smallest = min(finding.adjusted for finding in check.findings)
            found.setdefault(each.cell, []).append((check.alarm, smallest <= first, check.matters))
    return {
        cell: {
            name: Proportion.of(sum(each[i] for each in results), len(results))
            for i, name in enumerate(("single check", "first check", "matters"))
        }
        for cell, results in found.items()
    }


def false_alarms(store: Path, sample: Sample, task: str) -> tuple[int, int]:
    """Histories of CHECKS windows of new familiar rows with one reference: with any alarm, and all."""
    networks, rng = members(store, task, CONFIRM), np.random.default_rng(2)
    sides = [both_sides(network) for network in networks]
    n = networks[0].familiar.n
    alarms = 0
    for number in range(sample.histories):
        whole = sides[number % len(sides)]
        reference, pool = np.split(rng.permutation(n), [n // 2])
        size = len(pool) // CHECKS
        alarms += any(
            check_shift(
                rows(whole, reference),
                rows(whole, pool[size * k : size * (k + 1)]),
                budget=AlphaBudget.of_check(k + 1, ALPHA),
            ).alarm
            for k in range(CHECKS)
        )
    return alarms, sample.histories


def for_peers(drawn: Iterable[Drawn], folder: Path, task: str, splits: int) -> dict[str, Cell]:
    """Write the windows of the deciding cells and the familiar ones of these sizes; names of the files."""
    sizes = {size for size, _ in DECIDING}
    seen: dict[Cell, int] = {}
    names = {}
    for each in drawn:
        wanted = each.cell in DECIDING or (each.cell[1] == "familiar" and each.cell[0] in sizes)
        number = seen.get(each.cell, 0)
        if not wanted or number >= splits:
            continue
        seen[each.cell] = number + 1
        confidence, logits = -each.data.scores["confidence"], each.data.logits
        name = f"detect-{task}-{each.cell[0]}-{each.cell[1].strip('%')}-{number}.npz"
        names[name] = each.cell
        some = each.rows[: detectors.WINDOWS]
        np.savez(
            folder / name,
            reference=confidence[each.reference],
            windows=confidence[some],
            reference_logits=logits[each.reference],
            windows_logits=logits[some],
        )
    return names


def peer_rates(folder: Path, names: dict[str, Cell]) -> dict[Cell, dict[str, float]]:
    """Frouros' detection rates at 5% false alarms and, for its tests, at its own p <= 0.05."""
    values: dict[Cell, dict[str, list[np.ndarray]]] = {}
    for name, cell in names.items():
        with np.load(folder / f"found-{name}") as stored:
            for detector in stored:
                values.setdefault(cell, {}).setdefault(detector, []).append(stored[detector])
    joined = {c: {d: np.concatenate(parts) for d, parts in each.items()} for c, each in values.items()}
    found: dict[Cell, dict[str, float]] = {}
    for cell, each in joined.items():
        for name, evidence in each.items():
            if name.endswith(" p"):
                found.setdefault(cell, {})[f"{name} <= 0.05"] = float((evidence <= ALPHA).mean())
            else:
                null = joined[cell[0], "familiar"][name]
                found.setdefault(cell, {})[name] = rate(evidence, null)
    return found


def cbpe(python: str, folder: Path, given: list[accuracy.Uncalibrated]) -> Iterator[accuracy.Estimate]:
    """NannyML's estimates for the same windows."""
    for number, each in enumerate(given):
        np.savez(
            folder / f"estimate-{number}.npz",
            reference=each.reference,
            labels=each.labels,
            windows=np.concatenate(each.windows),
            sizes=[len(window) for window in each.windows],
        )
    run_peers(python, folder)
    for number, each in enumerate(given):
        with np.load(folder / f"found-estimate-{number}.npz") as stored:
            estimates = stored["accuracy"]
        for cell, value, true in zip(each.cells, estimates, each.true, strict=True):
            yield accuracy.Estimate(each.task, each.network, cell, "no T", accuracy.CBPE, float(value), true)


def run_peers(python: str, folder: Path) -> None:
    subprocess.run([python, str(Path(__file__).with_name("monitoring_peers.py")), str(folder)], check=True)


def peer_versions(python: str) -> str:
    code = (
        "from importlib.metadata import version as v; print('frouros', v('frouros'), 'nannyml', v('nannyml'))"
    )
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def power(store: Path, sample: Sample, task: str, half: str, seed: int) -> dict[Cell, dict[str, float]]:
    """Each detector's and each rule's power on windows drawn with a seed."""
    splits = sample.choosing if half == HALVES[0] else sample.splits
    return detectors.rates(detectors.draws(members(store, task, half), seed, splits))


def frouros(store: Path, peers: str, sample: Sample, task: str) -> dict[Cell, dict[str, float]]:
    """Frouros on the same windows."""
    drawn = detectors.draws(members(store, task, CONFIRM), HALVES.index(CONFIRM), sample.splits)
    with tempfile.TemporaryDirectory() as folder:
        names = for_peers(drawn, Path(folder), task, sample.peers)
        run_peers(peers, Path(folder))
        return peer_rates(Path(folder), names)


def study(store: Path, peers: str | None, sample: Sample, workers: int) -> monitoring_page.Study:
    versions = peer_versions(peers) if peers else "none"
    tasks = (*TASKS, "pets")
    with ProcessPoolExecutor(workers) as pool:
        products = {task: pool.submit(checked, store, sample, task) for task in tasks}
        histories = {task: pool.submit(false_alarms, store, sample, task) for task in tasks}
        powers = {
            half: {task: pool.submit(power, store, sample, task, half, seed) for task in tasks}
            for seed, half in enumerate(HALVES)
        }
        repeated = {task: pool.submit(power, store, sample, task, CONFIRM, OTHER_SEED) for task in REPEATED}
        halves = {half: pool.submit(accuracy.all_estimates, store, half) for half in HALVES}
        peer = {task: pool.submit(frouros, store, peers, sample, task) for task in tasks} if peers else {}
        spent, simulated = pool.submit(spending.simulate), pool.submit(two_detectors.simulate)
        estimates = {half: each.result()[0] for half, each in halves.items()}
        if peers:
            with tempfile.TemporaryDirectory() as folder:
                estimates[CONFIRM] += cbpe(peers, Path(folder), halves[CONFIRM].result()[1])
    return monitoring_page.Study(
        {half: results(each) for half, each in powers.items()},
        results(repeated),
        results(products),
        results(histories),
        {task: peer[task].result() if peers else {} for task in tasks},
        spent.result(),
        estimates,
        simulated.result(),
        sample,
        versions,
        sum(os.times()[:4]),  # of this process and of those that it has waited for
    )


def results(futures: dict[str, Future]) -> dict:
    return {name: each.result() for name, each in futures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--peers", help="Python of an environment with frouros and NannyML")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes")
    parser.add_argument("--quick", action="store_true", help="few repetitions, to try the script")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    sample = Sample(5, 5, 5, 5, 5, 1) if given.quick else Sample()
    found = study(given.store, given.peers, sample, given.workers)
    text = monitoring_page.page(found)
    if given.write:
        (RESULTS / "monitor.md").write_text(text)
        monitoring_page.figure(found).savefig(RESULTS / "monitor.png", dpi=120)
    else:
        print(text)


if __name__ == "__main__":
    main()
