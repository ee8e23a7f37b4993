"""Fit and metrics of 1,000,000 x 1000 float32 logits on a GPU: share of the bandwidth, and equal results.

    PYTHONPATH=src python benchmarks/gpu.py [--rows 1000000 --classes 1000 --write]

Needs torch with CUDA, numpy and scipy. The logits stay on the GPU. A reading is all logits read once; the
bandwidth is measured by a copy. torch's log_softmax (which reads and writes all logits, in float32) is for
comparison. On the first rows every result is compared with the same on the CPU; exits with 1 if one differs.
"""

import argparse
import sys
import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

for package, modules in {"pyarrow": ("", ".compute", ".csv", ".parquet"), "tomli_w": ("",)}.items():
    if find_spec(package) is None:  # it is needed for files only, and there are none here
        sys.modules |= {package + module: MagicMock() for module in modules}

from surefoot import metrics  # noqa: E402
from surefoot.calibrators.search import read  # noqa: E402
from surefoot.calibrators.temperature import fit_temperature  # noqa: E402
from surefoot.metrics import METRICS  # noqa: E402
from surefoot.predictions import fused  # noqa: E402
from surefoot.predictions.logits import outcomes_on_device  # noqa: E402
from surefoot.predictions.predictions import Predictions  # noqa: E402

RESULT = Path(__file__).parent / "results" / "gpu.md"
RIGHT = 2.5  # the logits are multiplied by this, so it is the true temperature
COMPARED_ROWS = 20_000
TURNS = 100  # the host is in the way of some, which the best shows
PAPER = ("nll", "brier", "label_error", "ece", "e99", "entropy")


def draw(rows: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels on the GPU; labels are drawn from softmax(z), and the logits are T z."""
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.empty(rows, classes, device="cuda")
    labels = torch.empty(rows, dtype=torch.int64, device="cuda")
    for start in range(0, rows, 100_000):
        part = logits[start : start + 100_000].normal_(0, 3, generator=generator)
        race = torch.empty_like(part).exponential_(generator=generator).log_()
        labels[start : start + 100_000] = (part - race).argmax(dim=1)
        part.mul_(RIGHT)
    return logits, labels


def seconds(work: Callable[[], object]) -> float:
    """The best of some runs, the GPU's work included; the first run, which compiles, does not count."""
    times = []
    for _ in range(TURNS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def bandwidth(logits: torch.Tensor) -> float:
    """Bytes per second of a copy, read and written."""
    target = torch.empty_like(logits)
    return 2 * logits.nbytes / seconds(lambda: target.copy_(logits))


def different(logits: torch.Tensor, labels: torch.Tensor) -> list[str]:
    """What differs between the GPU and the CPU, on some rows."""
    given = Predictions.from_logits(logits, labels)
    there = Predictions.from_logits(logits.cpu(), labels.cpu())
    assert given.logits.is_cuda
    pairs = {metric.name: (metric.function(given), metric.function(there)) for metric in METRICS}
    fits = [fit_temperature(predictions) for predictions in (given, there)]
    pairs["T"] = tuple(fit.temperature for fit in fits)
    scaled = [metrics.nll(fit(predictions)) for fit, predictions in zip(fits, (given, there), strict=True)]
    pairs["nll after T"] = tuple(scaled)
    close = (1e-9, 1e-12) if logits.dtype == torch.float64 else (1e-5, 1e-7)
    return [
        f"{name}: {a!r}, CPU {b!r}"
        for name, (a, b) in pairs.items()
        if not np.isclose(a, b, *close, equal_nan=True)
    ]


class Readings:
    """How many times all logits have been read: rows read by the kernels, in units of all rows."""

    def __init__(self, rows: int) -> None:
        self.rows, self.read = rows, 0
        for name in ("softmax_facts", "softmax_slopes"):
            setattr(fused, name, self._counted(getattr(fused, name)))

    def _counted(self, kernel: Callable[..., object]) -> Callable[..., object]:
        def count_and_run(logits: torch.Tensor, *rest: object) -> object:
            self.read += logits.shape[1]
            return kernel(logits, *rest)

        return count_and_run

    def of(self, work: Callable[[], object]) -> float:
        before = self.read
        work()
        return (self.read - before) / self.rows


def measured(logits: torch.Tensor, labels: torch.Tensor) -> list[str]:
    """A table row per operation; whole calls include the check of the logits."""
    peak = bandwidth(logits)
    given = Predictions.from_logits(logits, labels)
    facts, extremes = given.outcomes.on_device, torch.zeros(2, len(labels), device=labels.device)
    counter = Readings(len(labels))

    def new() -> Predictions:
        return Predictions.from_logits(logits, labels)

    def paper(predictions: Predictions) -> None:
        for name in PAPER:
            getattr(metrics, name)(predictions)

    def fit_and_metrics() -> None:
        predictions = new()
        fit_temperature(predictions)
        paper(predictions)

    parts: dict[str, Callable[[], object]] = {
        "kernel of the facts": lambda: fused.softmax_facts(given.logits, labels),
        "kernel of the derivatives": lambda: fused.softmax_slopes(given.logits, labels, 0.4),
        "one step of a fit": lambda: read(given, 0.4),
        "kernel of ranges and sums": lambda: fused.totals(facts.facts, facts.correct, extremes, labels),
        "sorting confidences": lambda: facts.keys.sort(),
        "ECE, after the facts": lambda: metrics.ece(new_facts(given)),
        "the paper's metrics, after the facts": lambda: paper(new_facts(given)),
    }
    calls: dict[str, Callable[[], object]] = {
        "check (Predictions.from_logits)": new,
        "all facts, one copied to the host": lambda: new().outcomes.entropy,
        "NLL": lambda: metrics.nll_unclipped(new()),
        "the paper's metrics": lambda: paper(new()),
        "fit_temperature of checked predictions": lambda: fit_temperature(given),
        "fit_temperature": lambda: fit_temperature(new()),
        "fit_temperature and the paper's metrics": fit_and_metrics,
    }
    taken = seconds(lambda: torch.log_softmax(logits, dim=1))
    share = 2 * logits.nbytes / taken / peak
    lines = ["| operation | ms | readings | share of bandwidth |", "|:--|--:|--:|--:|"]
    lines.append(f"| torch's log_softmax (reads and writes) | {1000 * taken:.2f} | 2 | {share:.2f} |")
    for name, work in (calls | parts).items():
        readings, taken = counter.of(work), seconds(work)
        share = readings * logits.nbytes / taken / peak
        shown = f"{readings:.2f} | {share:.2f}" if readings else "0 | "
        lines.append(f"| {name} | {1000 * taken:.2f} | {shown} |")
        print(lines[-1], flush=True)
    return [f"A copy reaches {peak / 1e12:.2f} TB/s.", "", *lines]


def new_facts(predictions: Predictions) -> Predictions:
    """The same predictions, of which facts and their sums are known, and no ranking."""
    facts = predictions.outcomes.on_device
    same = copy(predictions)
    same.__dict__["outcomes"] = outcomes_on_device(replace(facts), None)
    return same


def main() -> None:
    """Compare, measure, print; with --write, save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT}")
    chosen = parser.parse_args()
    logits, labels = draw(chosen.rows, chosen.classes)
    wrong = different(logits[:COMPARED_ROWS], labels[:COMPARED_ROWS])
    few, truth = draw(COMPARED_ROWS, 10)
    gaps = truth.masked_fill(few[:, 0] > 1, -100)
    several = few + torch.randn(3, *few.shape, device="cuda")
    present = (few[:2000] > torch.randn(2000, 10, device="cuda")).to(torch.int64)
    for these in (
        (few, truth),
        (several, truth),
        (few[:2000], present),
        (few.double(), truth),
        (1e10 * few, gaps),
    ):
        wrong += different(*these)
    print(*(wrong or ["all results equal those of the CPU: to 1e-9, of float32 logits to 1e-5"]), sep="\n")
    lines = [
        f"# {chosen.rows:,} x {chosen.classes} float32 logits on a GPU",
        "",
        f"{date.today()}, {torch.cuda.get_device_name()}, torch {torch.__version__}. "
        "`python benchmarks/gpu.py`. A reading is all logits read once; a fit also reads some of the rows.",
        "",
        *measured(logits, labels),
        "",
        "Every metric of the package and T equal those of the CPU (1e-9; of float32 logits 1e-5), or the",
        "command fails.",
        "",
    ]
    print("\n".join(lines))
    if chosen.write:
        RESULT.write_text("\n".join(lines))
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
