"""Scaling with rows, classes, columns, members, runs and methods: CPU seconds and memory, log-log, exponents.

    python benchmarks/growth.py                       (some minutes, about 2 GiB of memory)
    python benchmarks/growth.py --most 100000 --only fit

CPU time of the process, to reduce the influence of other load; one thread; the best of several
runs. Results go to benchmarks/results/growth.md, growth.svg and growth.png.
"""

import argparse
import ctypes
import io
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import scipy
from growth_figure import growth_picture
from operations import ARGSORT, GROUPED_ROWS, MATRICES, ROWS, Operation, Work, operations
from PIL import Image
from scipy.stats import linregress
from scipy.stats import t as student

HERE = Path(__file__).parent
LIMIT = 1.15  # above n log n, whose slope is 1 + 1 / ln n
LONG, LONGER = 0.3, 3.0  # seconds after which a run is one of two, or the only one
ENOUGH = 0.05  # seconds; short operations are repeated until this much is measured
LEAST_SHOWN = 8.0  # MiB: below, the allocator dominates the measurement
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
MMAP_MAX, TRIM_THRESHOLD = -4, -1  # of glibc's mallopt
ON_WHITE = '<svg style="background:#fff;color:#1c2126" '
AXES = ("rows", "classes", "columns", "members", "groups", "resamples", "runs", "methods")


@dataclass(frozen=True)
class Exponent:
    """The slope of log cost over log size, with its 95% interval by Student's t."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(sizes: Sequence[float], costs: Sequence[float]) -> "Exponent":
        """By least squares on the upper half of the sizes.

        >>> Exponent.of([1, 2, 4, 8, 16, 32], [1, 1, 1, 8, 16, 32]).value
        1.0
        """
        half = len(sizes) // 2
        found = linregress(np.log(sizes[half:]), np.log(costs[half:]))
        reach = float(student.ppf(0.975, len(sizes) - half - 2)) * found.stderr
        return Exponent(float(found.slope), found.slope - reach, found.slope + reach)

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Measured:
    """An operation's CPU seconds and peak MiB above the value before it, at every size."""

    operation: Operation
    seconds: tuple[float, ...]
    mebibytes: tuple[float, ...]

    @property
    def exponent(self) -> Exponent:
        return Exponent.of(self.operation.sizes, self.seconds)

    @property
    def memory(self) -> Exponent | None:
        """None if too little memory is used."""
        upper = self.mebibytes[len(self.mebibytes) // 2 :]
        return Exponent.of(self.operation.sizes, self.mebibytes) if min(upper) >= LEAST_SHOWN else None

    @property
    def steepest(self) -> tuple[float, int]:
        """The largest slope over three consecutive steps, and the size at which it ends."""
        x, y = np.log(self.operation.sizes), np.log(self.seconds)
        slopes = (y[3:] - y[:-3]) / (x[3:] - x[:-3])
        at = int(slopes.argmax())
        return float(slopes[at]), self.operation.sizes[at + 3]

    @property
    def too_steep(self) -> bool:
        return self.exponent.low > LIMIT


def measure(operation: Operation, turns: int) -> Measured:
    """Every size, smallest first, after a warm-up."""
    operation.prepare(operation.sizes[0])()
    pairs = [_at(operation, size, turns) for size in operation.sizes]
    return Measured(operation, *(tuple(each) for each in zip(*pairs, strict=True)))


def _measure_named(
    where: tuple[str, str], most: int, turns: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The numbers of an operation, in a process of its own."""
    (operation,) = [each for each in operations(most) if (each.axis, each.name) == where]
    measured = measure(operation, turns)
    return measured.seconds, measured.mebibytes


def measure_all(wanted: Sequence[Operation], most: int, turns: int, workers: int) -> Iterator[Measured]:
    """In this process, or several at a time in others."""
    if workers == 1:
        yield from (measure(operation, turns) for operation in wanted)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        of_all = [pool.submit(_measure_named, (each.axis, each.name), most, turns) for each in wanted]
        for operation, of_one in zip(wanted, of_all, strict=True):
            yield Measured(operation, *of_one.result())


def _at(operation: Operation, size: int, turns: int) -> tuple[float, float]:
    seconds, mebibytes = _watched(operation.prepare(size))
    # From here on freed memory is kept: new pages cost time, and only large arrays request them.
    _allocate(MMAP_MAX, 0)
    _allocate(TRIM_THRESHOLD, 2**31 - 1)
    found = [seconds]
    while len(found) < _wanted(min(found), turns):
        work = operation.prepare(size)
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found), mebibytes


def _wanted(seconds: float, turns: int) -> int:
    if seconds > LONG:
        return 1 if seconds > LONGER else min(turns, 2)
    return max(turns, min(10 * turns, int(ENOUGH / max(seconds, 1e-6))))


def _watched(work: Work) -> tuple[float, float]:
    """CPU seconds, and the rise of resident memory; Linux only."""
    _allocate(MMAP_MAX, 65536)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _kibibytes("VmRSS")
    start = time.process_time()
    kept = work()
    seconds = time.process_time() - start
    del kept
    return seconds, max(0.0, (_kibibytes("VmHWM") - before) / 1024)


def _allocate(parameter: int, value: int) -> None:
    assert ctypes.CDLL(None).mallopt(parameter, value), "glibc accepts every value of these"


def _kibibytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def table(found: Sequence[Measured], sorting: Exponent | None) -> list[str]:
    """A line per operation, with a flag if time grows faster than it should."""
    lines = [
        "| operation | up to | CPU seconds there | exponent | steepest | MiB there | memory's exponent | |",
        "|:--|--:|--:|--:|--:|--:|--:|:--|",
    ]
    for each in found:
        slope, at = each.steepest
        memory = "" if each.memory is None else str(each.memory)
        flag = _flag(each, sorting)
        lines.append(
            f"| {each.operation.name} | {each.operation.sizes[-1]:,} | {each.seconds[-1]:.3g} | "
            f"{each.exponent} | {slope:.2f} to {at:,} | {each.mebibytes[-1]:,.0f} | {memory} | {flag} |"
        )
    return lines


def _flag(each: Measured, sorting: Exponent | None) -> str:
    if not each.too_steep:
        return ""
    if each.operation.name in MATRICES and each.operation.axis == "classes":
        return f"above {LIMIT}, a matrix"
    as_sorting = each.operation.sorts and sorting is not None and each.exponent.low <= sorting.high
    return f"above {LIMIT}, as for sorting" if as_sorting else f"**above {LIMIT}**"


def numbers(found: Sequence[Measured]) -> str:
    """All measurements, as CSV."""
    lines = ["axis,operation,size,cpu_seconds,peak_mebibytes"]
    for each in found:
        about = f'{each.operation.axis},"{each.operation.name}"'
        values = zip(each.operation.sizes, each.seconds, each.mebibytes, strict=True)
        lines += [f"{about},{size},{seconds:.4g},{peak:.4g}" for size, seconds, peak in values]
    return "\n".join([*lines, ""])


def head(turns: int, workers: int) -> str:
    """What was measured, on what, and how to read it."""
    versions = f"numpy {np.__version__}, scipy {scipy.__version__}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores shared with others, one thread"
    machine += "" if workers == 1 else f" each, {workers} operations at a time"
    return f"""# How cost scales

{date.today()}, `python benchmarks/growth.py`; {machine};
{versions}. The best of {turns} runs or more; of two if a run takes
more than {LONG:g} s, one above {LONGER:g} s. All numbers: [growth.csv](growth.csv).

CPU seconds of the process. MiB are the peak of resident memory above its value before, so without the
input. The exponent is the least-squares slope of log cost over log size on the upper half of the sizes,
with its 95% interval. *Steepest* is the largest slope over three consecutive steps anywhere, to detect
quadratic growth at small sizes. Memory has an exponent if all of the upper half is above
{LEAST_SHOWN:g} MiB.

**Flagged** operations have the whole interval above {LIMIT}. n log n has a slope of 1 + 1 / ln n; reading
data larger than the processor's caches in sorted order adds to it. *As for sorting*: the
operation sorts, and its interval overlaps that of numpy's argsort. *A matrix*: it has classes x classes
parameters, so that the cost of reading the logits once is quadratic in the classes.

![CPU seconds and memory by size](growth.svg)"""


ABOUT = {
    "rows": """10 classes, one member, float32. Metrics are timed on precomputed outcomes, each
with its own sort. `evaluate` has 10 resamples, `compare` two methods of two runs and 200 resamples;
*groups* are of 100 and of 10 rows. The window of a monitor check has half as many rows as its reference, and
lower confidence.""",
    "classes": """5,000 rows of one member. Metrics: 500 multi-label rows; for single-label data they do not
depend on the number of classes.""",
    "columns": """Files of 20 rows, as the commands read them: a column for each class, or two classes
and columns that are no scores. `evaluate` has all metrics and no resamples.""",
    "members": "20,000 rows of 10 classes.",
    "groups": f"{GROUPED_ROWS:,} rows of 10 classes in so many groups, 10 resamples.",
    "resamples": f"{GROUPED_ROWS:,} rows of 10 classes, all metrics.",
    "runs": "Three methods, 1,000 rows in groups of 10, 200 resamples.",
    "methods": "Three runs each, otherwise the same.",
}


def main() -> None:
    """Time everything, print and save the tables and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=ROWS[-1], help="rows, at least 30,000")
    parser.add_argument("--turns", type=int, default=3, help="the best counts")
    parser.add_argument("--only", default="", help="operations whose name contains this")
    parser.add_argument("--axis", choices=AXES, help="only this size")
    parser.add_argument(
        "--folder", type=Path, help="folder for partial results; without it they are only printed"
    )
    parser.add_argument("--workers", type=int, default=1, help="operations at a time, on as many cores")
    chosen = parser.parse_args()
    if not ONE_THREAD.items() <= os.environ.items():  # must be set before numpy is imported
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)
    most = max(chosen.most, 30_000)
    wanted = [
        each for each in operations(most) if chosen.only in each.name and chosen.axis in (None, each.axis)
    ]
    found = []
    start = time.monotonic()
    for number, each in enumerate(measure_all(wanted, most, chosen.turns, chosen.workers), start=1):
        found.append(each)
        print(
            f"{number}/{len(wanted)} {time.monotonic() - start:.0f} s: {each.operation.name}, "
            f"{each.operation.axis}: {each.exponent}{' STEEP' if each.too_steep else ''}",
            file=sys.stderr,
            flush=True,
        )
    lines = [head(chosen.turns, chosen.workers)]
    sorting = next((each.exponent for each in found if each.operation.name == ARGSORT), None)
    for axis in AXES:
        of_axis = [each for each in found if each.operation.axis == axis]
        if of_axis:
            lines += ["", f"## By {axis}", "", ABOUT[axis], "", *table(of_axis, sorting)]
    print("\n".join(lines))
    whole = len(wanted) == len(operations(ROWS[-1])) and chosen.most == ROWS[-1]
    folder = HERE / "results" if whole else chosen.folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "growth.md").write_text("\n".join([*lines, ""]))
        (folder / "growth.csv").write_text(numbers(found))
        draw(found, folder)


def draw(found: Sequence[Measured], folder: Path) -> None:
    """The figure as SVG, and as a small PNG."""
    picture = growth_picture(found)
    (folder / "growth.svg").write_text(picture.svg().replace("<svg ", ON_WHITE, 1))
    drawn = Image.open(io.BytesIO(picture.png(dpi=100)))
    drawn.quantize(32, dither=Image.Dither.NONE).save(folder / "growth.png", optimize=True)


if __name__ == "__main__":
    main()
