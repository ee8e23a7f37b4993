"""Mutation testing: make one small change in the source, and check that the tests of that area fail.

    python benchmarks/mutants.py                                   (60 mutants of all areas)
    python benchmarks/mutants.py --area store --count 20 --seed 3

Each worker has a temporary copy of the tree, so the work tree never changes. The tests are run without a
mutant first: they must pass, and their time sets the limit. A surviving mutant shows a line that no test
checks; or it is equivalent, and belongs in EQUIVALENT with the reason. Exits with 1 if any survived.
"""

import argparse
import ast
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from mutations import changes, replaced

ROOT = Path(__file__).parent.parent
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
LIMIT = (3.0, 30.0)  # a mutant may take this many times as long as no mutant, plus this many seconds


@dataclass(frozen=True)
class Area:
    """Source files, and the tests that should detect a change in them; fast ones first."""

    sources: tuple[str, ...]  # globs in src/surefoot
    tests: tuple[str, ...]  # paths in tests


AREAS = {
    "metrics": Area(("metrics/*.py",), ("metrics",)),
    "calibrators": Area(("calibrators/*.py",), ("calibrators",)),
    "evaluation": Area(("intervals.py", "evaluation/*.py", "experiments/changes.py"), ("evaluation",)),
    "streaming": Area(  # without engines.py: a Ray cluster takes too long to start
        ("streaming/[!e]*.py", "streaming/evaluate.py"),
        ("streaming",),
    ),
    "predictions": Area(("predictions/*.py",), ("predictions", "metrics")),
    "store": Area(("store/*.py",), ("store",)),
    "novelty": Area(("novelty.py",), ("novelty",)),
    "thresholds": Area(
        ("deploy/thresholds.py", "deploy/decision.py", "deploy/monitor.py"),
        ("deploy/test_thresholds.py", "deploy/test_monitor.py", "cli/test_watch.py"),
    ),
}

# Mutants that behave like the source: the line, the changed line, and the reason.
EQUIVALENT: tuple[tuple[str, str, str], ...] = (
    (
        "frozen = all(n for _, n in counts) and any(k in (0, n) for k, n in counts)",
        "frozen = any(n for _, n in counts) and any(k in (0, n) for k, n in counts)",
        "if one n is 0 its value is NaN, and so is any difference from it",
    ),
    (
        "return float(np.exp(brentq(excess, narrowest, 0.1, xtol=1e-6)))",
        "return float(np.exp(brentq(excess, narrowest, 0.15000000000000002, xtol=1e-6)))",
        "any upper end beyond the only root finds that root",
    ),
    (
        "result = minimize(in_units, np.clip(start, low, high), jac=True, method='L-BFGS-B', "
        "bounds=Bounds(low, high), options={'ftol': 1e-16, 'gtol': 1e-10},)",
        "result = minimize(in_units, np.clip(start, low, high), jac=True, "
        "bounds=Bounds(low, high), options={'ftol': 1e-16, 'gtol': 1e-10})",
        "with bounds SciPy chooses L-BFGS-B by default",
    ),
    (
        "if not lengths.any():",
        "if not lengths.all():",
        "lengths that differ are refused just before",
    ),
    (
        "familiar, unfamiliar = (np.asarray(s, dtype=np.float64) "
        "for s in (familiar_scores, unfamiliar_scores))",
        "familiar, unfamiliar = (np.asarray(s) for s in (familiar_scores, unfamiliar_scores))",
        "only their ranks are used, which are the same for any type of number",
    ),
    (
        'temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\\n", encoding="utf-8")',
        'temporary.write_text(json.dumps(document, indent=3, allow_nan=False) + "\\n", encoding="utf-8")',
        "the indentation of a JSON file has no meaning",
    ),
)


@dataclass(frozen=True)
class Mutant:
    """One change in one file."""

    area: str
    path: Path  # relative to the root
    line: int
    source: str  # the file, unchanged
    changed: str

    @property
    def diff(self) -> list[str]:
        """The lines that differ: old ones with a minus, new ones with a plus."""
        old, new = self.source.splitlines(), self.changed.splitlines()
        return list(difflib.unified_diff(old, new, n=0, lineterm=""))[3:]  # without the header

    def __str__(self) -> str:
        return "\n".join([f"{self.path}:{self.line} ({self.area})", *(f"    {line}" for line in self.diff)])


def mutants_of(area: str, path: Path) -> list[Mutant]:
    """Every mutant of a file, in line order."""
    source = (ROOT / path).read_text(encoding="utf-8")
    found = [(node.lineno, replaced(source, node, text)) for node, text in changes(ast.parse(source))]
    return [Mutant(area, path, line, source, changed) for line, changed in sorted(dict.fromkeys(found))]


def is_another_program(mutant: Mutant) -> bool:
    """Whether it is valid Python and differs in more than formatting."""
    try:
        return ast.dump(ast.parse(mutant.changed)) != ast.dump(ast.parse(mutant.source))
    except SyntaxError:
        return False


def known_equivalent(mutant: Mutant) -> bool:
    """Whether it is in the list; lines are compared by text, not by position."""
    old, new = (" ".join(line[1:] for line in mutant.diff if line[0] == sign) for sign in "-+")
    return any((_squeezed(a), _squeezed(b)) == (_squeezed(old), _squeezed(new)) for a, b, _ in EQUIVALENT)


def is_worth_trying(mutant: Mutant) -> bool:
    """Whether a test could detect it."""
    return is_another_program(mutant) and not known_equivalent(mutant)


def _squeezed(line: str) -> str:
    """Without spaces, brackets and quotes, which a change does not preserve."""
    return "".join(each for each in line if each not in " ()'\"")


def all_mutants(areas: Sequence[str]) -> dict[str, list[Mutant]]:
    """All mutants of every area, in file and line order."""
    found: dict[str, list[Mutant]] = {}
    for area in areas:
        for test in AREAS[area].tests:
            if not (ROOT / "tests" / test).exists():
                sys.exit(f"area {area!r}: there is no tests/{test}; correct AREAS")
        paths = sorted({path for glob in AREAS[area].sources for path in _sources(area, glob)})
        found[area] = [mutant for path in paths for mutant in mutants_of(area, path.relative_to(ROOT))]
    return found


def _sources(area: str, glob: str) -> list[Path]:
    paths = list((ROOT / "src" / "surefoot").glob(glob))
    if not paths:
        sys.exit(f"area {area!r}: no file matches src/surefoot/{glob}; correct AREAS")
    return paths


def sample(mutants: dict[str, list[Mutant]], *, count: int, seed: int) -> list[Mutant]:
    """A random sample, alternating between areas, without the known equivalent ones."""
    chance = random.Random(seed)
    drawn = {area: chance.sample(each, len(each)) for area, each in mutants.items()}
    queues = [filter(is_worth_trying, each) for each in drawn.values()]
    found: list[Mutant] = []
    while queues and len(found) < count:
        for queue in list(queues):
            mutant = next(queue, None)
            if mutant is None:
                queues.remove(queue)
            elif len(found) < count:
                found.append(mutant)
    return found


def copied_tree(to: Path) -> Path:
    """The tracked and untracked, not ignored files, with their current content."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    return to


def tested(tree: Path, tests: Sequence[str], *, limit: float | None) -> str:
    """Run tests in a copy of the tree until one fails."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=short"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=tree,
        env={
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return TIMED_OUT
    if limit is None and process.returncode:
        sys.exit(f"the tests fail without any mutant:\n{output}")
    return KILLED if process.returncode else SURVIVED


def tests_of(mutant: Mutant) -> list[str]:
    """The doctests of the file, then the tests of the area."""
    return [str(mutant.path), *(f"tests/{test}" for test in AREAS[mutant.area].tests)]


def outcome_of(mutant: Mutant, tree: Path, limit: float) -> str:
    """Whether the tests detect a mutant."""
    place = tree / mutant.path
    place.write_text(mutant.changed, encoding="utf-8")
    try:
        return tested(tree, tests_of(mutant), limit=limit)
    finally:
        place.write_text(mutant.source, encoding="utf-8")


def limits(areas: Sequence[str], tree: Path) -> dict[str, float]:
    """The time limit of a mutant, by area, in seconds."""
    found = {}
    for area in areas:
        begun = time.perf_counter()
        tested(tree, [f"tests/{test}" for test in AREAS[area].tests], limit=None)
        seconds = time.perf_counter() - begun
        found[area] = LIMIT[0] * seconds + LIMIT[1]
        print(f"{area}: {seconds:.0f} s without a mutant", flush=True)
    return found


def run(mutants: Sequence[Mutant], *, workers: int) -> list[tuple[Mutant, str]]:
    """Test each in a copy of the tree that no other worker uses."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: Queue[Path] = Queue()
        for number in range(workers):
            trees.put(copied_tree(Path(folder) / str(number)))
        first = trees.queue[0]
        allowed = limits(sorted({mutant.area for mutant in mutants}), first)

        def one(mutant: Mutant) -> tuple[Mutant, str]:
            tree = trees.get()
            try:
                outcome = outcome_of(mutant, tree, allowed[mutant.area])
            finally:
                trees.put(tree)
            print(f"{outcome:9}  {mutant}", flush=True)
            return mutant, outcome

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, mutants))


def summary(results: Sequence[tuple[Mutant, str]]) -> None:
    """A line for each area, and the survivors."""
    counts = Counter((mutant.area, outcome) for mutant, outcome in results)
    outcomes = (KILLED, SURVIVED, TIMED_OUT)
    print(f"\n{'area':12}" + "".join(f"{outcome:>11}" for outcome in outcomes))
    for area in dict.fromkeys(mutant.area for mutant, _ in results):
        print(f"{area:12}" + "".join(f"{counts[area, outcome]:11}" for outcome in outcomes))
    totals = Counter(outcome for _, outcome in results)
    print(f"{'all':12}" + "".join(f"{totals[outcome]:11}" for outcome in outcomes))
    for mutant, outcome in results:
        if outcome == SURVIVED:
            print(f"\nsurvived: {mutant}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the random sample")
    parser.add_argument("--count", type=int, default=60, help="how many")
    parser.add_argument("--area", choices=AREAS, action="append", help="only this one; may be repeated")
    parser.add_argument("--workers", type=int, default=2, help="parallel processes")
    options = parser.parse_args()
    mutants = all_mutants(options.area or list(AREAS))
    chosen = sample(mutants, count=options.count, seed=options.seed)
    begun = time.perf_counter()
    results = run(chosen, workers=options.workers)
    summary(results)
    seconds = time.perf_counter() - begun
    rate = 60 * len(chosen) / seconds
    print(f"\nseed {options.seed}: {len(chosen)} mutants in {seconds:.0f} s, {rate:.1f} a minute")
    sys.exit(any(outcome == SURVIVED for _, outcome in results))


if __name__ == "__main__":
    main()
