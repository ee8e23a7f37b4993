"""What a server says about unfamiliar data, on stored predictions: its window, and its verdict per row.

    python benchmarks/serve_checks.py STORE [--servers 200] [--checks 8]

Each network of STORE with predictions on familiar and unfamiliar test rows. The verdict: a limit from half of
the familiar rows, false alarms on the other half, detection on the unfamiliar rows. The window: half of the
familiar rows are the reference, a server sees windows drawn from the other half, and then windows in which a
share of the rows is unfamiliar; a false alarm is one in any of the first checks. Results go to
benchmarks/results/serve_checks.md.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from surefoot import Predictions, read_predictions
from surefoot.deploy.decision import fit_familiar
from surefoot.deploy.monitor import energies
from surefoot.intervals import Proportion
from surefoot.serve.limits import Watch
from surefoot.serve.window import SHIFT, ShiftWindow

RESULTS = Path(__file__).parent / "results" / "serve_checks.md"
WINDOW = 100
SHARES = (0.3, 1.0)


@dataclass
class FakeBundle:
    """What a window takes from a bundle."""

    reference: Predictions
    about: dict[str, Any] = field(default_factory=dict)


def networks(store: Path) -> Iterator[tuple[str, Predictions, Predictions]]:
    """Task, familiar and unfamiliar test predictions of each network of the standard recipe."""
    for file in sorted(store.glob("networks/*/*/seed*/test_unfamiliar.npz")):
        recipe = json.loads((file.parent / "spec.json").read_text())["recipe"]
        if not recipe.get("sharpness") and recipe.get("variant") is None:
            yield file.parts[-4], *(read_predictions(file.with_name(f"test_{side}.npz")) for side in SIDES)


SIDES = ("familiar", "unfamiliar")


def halves(predictions: Predictions, rng: np.random.Generator) -> tuple[Predictions, Predictions]:
    """Two random halves."""
    drawn = rng.permutation(predictions.n)
    return tuple(predictions.take(part) for part in np.array_split(drawn, 2))  # type: ignore[return-value]


def window_checks(
    familiar: Predictions, unfamiliar: Predictions, checks: int, rng: np.random.Generator
) -> dict[str, bool]:
    """Whether any of the checks on familiar windows alarms, and whether the next one does on a mixture."""
    reference, rest = halves(familiar, rng)
    results = {}
    server = ShiftWindow(FakeBundle(reference.take(slice(1000))), Watch(rows=WINDOW))  # type: ignore[arg-type]
    for _ in range(checks):
        _check(server, [rest.take(rng.choice(rest.n, WINDOW, replace=False))])
    results["false alarm in any check"] = server.state.alarms > 0
    past = server.state
    for share in SHARES:
        for place, state in (("first", replace(past, checks=0)), ("next", past)):
            server.state = state
            n = round(share * WINDOW)
            parts = [(unfamiliar, n), (rest, WINDOW - n)]
            rows = [side.take(rng.choice(side.n, count, replace=False)) for side, count in parts if count]
            _check(server, rows)
            results[f"{share:.0%} unfamiliar, {place} check"] = server.state.name == SHIFT
    return results


def _check(server: ShiftWindow, rows: list[Predictions]) -> None:
    for each in rows:
        server.add(replace(each, ids=None, groups=None))
    server.check()


def verdict_rates(
    familiar: Predictions, unfamiliar: Predictions, rng: np.random.Generator
) -> dict[str, float]:
    """The rates of the verdict per row."""
    held_out, measured = (energies(half) for half in halves(familiar, rng))
    found = fit_familiar(held_out, measured, energies(unfamiliar))
    assert found.found is not None
    return {
        "false alarms": found.alarms.value,
        "detected": found.found.value,
        "shown by default": float(found.is_useful),
    }


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("store", type=Path)
    parser.add_argument("--servers", type=int, default=200)
    parser.add_argument("--checks", type=int, default=8)
    arguments = parser.parse_args()
    by_task = defaultdict(list)
    for task, familiar, unfamiliar in networks(arguments.store):
        by_task[task].append((familiar, unfamiliar))
    rng = np.random.default_rng(0)
    lines = [
        "# What a server says about unfamiliar data",
        "",
        f"{date.today()}, `benchmarks/serve_checks.py --servers {arguments.servers} --checks "
        f"{arguments.checks}`: networks of the standard recipe, {WINDOW} rows in the window, 1,000 rows or "
        "half of the familiar test rows as the reference; a false alarm is one in any of the first "
        f"{arguments.checks} checks, and the next check sees a mixture. The verdict per row: means over "
        "networks.",
        "",
    ]
    rows: dict[str, dict[str, str]] = {}
    for task, pairs in by_task.items():
        found = defaultdict(list)
        for server in range(arguments.servers):
            for name, value in window_checks(*pairs[server % len(pairs)], arguments.checks, rng).items():
                found[name].append(value)
        cells = {}
        for name, values in found.items():
            rate = Proportion.of(sum(values), len(values))
            cells[f"window: {name}"] = f"{rate.value:.0%} ({rate.low:.0%} to {rate.high:.0%})"
        rates = [verdict_rates(*pair, rng) for pair in pairs]
        for name in rates[0]:
            cells[f"verdict: {name}"] = f"{np.mean([each[name] for each in rates]):.1%}"
        rows[task] = cells
        print(task, cells, flush=True)
    names = list(next(iter(rows.values())))
    lines += [f"| | {' | '.join(rows)} |", f"|:--|{'--:|' * len(rows)}"]
    lines += [f"| {name} | {' | '.join(cells[name] for cells in rows.values())} |" for name in names]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
