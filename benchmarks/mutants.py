"""Mutation testing: make one small change in the source, and check that the tests of that area fail.

    python benchmarks/mutants.py                                   (60 mutants of all areas)
    python benchmarks/mutants.py --area store --count 20 --seed 3

Each worker has a temporary copy of the tree, so the work tree never changes. The tests are run without a
mutant first: they must pass, and their time sets the limit. Then each mutant gets the doctests and the tests
of its file, until one fails. A surviving mutant shows a line that no test checks; or it is equivalent, and
belongs in EQUIVALENT with the reason. Exits with 1 if any survived.
"""

import argparse
import ast
import difflib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from mutations import changes, replaced

ROOT = Path(__file__).parent.parent
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
SERVER = multiprocessing.get_context("forkserver")  # imports the libraries once, not for every mutant
LIBRARIES = ("pytest", "hypothesis", "torch", "scipy.stats", "scipy.optimize", "sklearn.metrics")
LIBRARIES += ("pyarrow.parquet", "matplotlib.pyplot", "fsspec", "safetensors.torch", "jinja2")
LIMIT = (3.0, 30.0)  # a mutant may take this many times as long as no mutant, plus this many seconds


# For each area: its source files in src/surefoot, and the files in tests that should detect a change in them.
# A Ray cluster takes too long to start, so predictions/engines.py is not here; nor is what needs a GPU.
METRICS = ("metrics/test_*.py", "streaming/test_bounds.py", "streaming/test_scores.py")
AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "metrics": (("metrics/*.py",), METRICS),
    "calibrators": (("calibrators/*.py",), ("calibrators/test_*.py",)),
    "evaluation": (
        ("evaluation/*.py", "lab/comparison/*.py", "metrics/intervals.py"),
        ("evaluation/test_*.py", "streaming/test_*.py"),
    ),
    "predictions": (
        ("predictions/[!e]*.py",),
        ("predictions/test_*.py", "streaming/test_batches.py", "metrics/test_*.py", "deploy/test_monitor.py"),
    ),
    "store": (("lab/store/*.py",), ("store/test_*.py",)),
    "training": (
        ("lab/recipes/recipe.py", "lab/training/augment.py", "lab/training/lo*.py"),
        (
            "recipes/test_recipe.py",
            "training/test_options.py",
            "training/test_augment.py",
            "training/test_lo*.py",
        ),
    ),
    "search": (
        ("lab/experiments/methods.py", "lab/experiments/search.py"),
        ("experiments/test_methods.py", "experiments/test_search.py", "experiments/test_plan.py"),
    ),
    "tasks": (("lab/tasks/split.py",), ("tasks/test_partition.py", "tasks/test_manifest.py")),
    "novelty": (("lab/novelty.py",), ("novelty/test_*.py",)),
    "thresholds": (
        (
            "decisions/chunks.py",
            "decisions/decision.py",
            "decisions/thresholds.py",
            "monitoring/monitor.py",
            "monitoring/scores.py",
        ),
        (
            "deploy/test_decision.py",
            "deploy/test_monitor.py",
            "deploy/test_scores.py",
            "deploy/test_thresholds.py",
            "cli/test_watch.py",
        ),
    ),
}

# Cases of tests/test_frozen.py, which compare the numbers of commands with golden files: the last tests.
FROZEN = {
    "metrics": ("evaluations",),
    "calibrators": ("calibrations",),
    "evaluation": ("evaluations", "calibrated_evaluations", "published"),
    "predictions": ("evaluations", "applied"),
    "thresholds": ("chosen_thresholds", "looks"),
}

# Mutants that behave like the source: the line, the changed line, and the reason.
EQUIVALENT: tuple[tuple[str, str, str], ...] = (
    (
        "constant = all(n for _, n in counts) and any(k in (0, n) for k, n in counts)",
        "constant = any(n for _, n in counts) and any(k in (0, n) for k, n in counts)",
        "if one n is 0 its value is NaN, and so is any difference from it",
    ),
    (
        "result = minimize(objective, np.clip(start, low, high), jac=True, method='L-BFGS-B', "
        "bounds=Bounds(low, high), options={'ftol': 1e-16, 'gtol': 1e-10},)",
        "result = minimize(objective, np.clip(start, low, high), jac=True, "
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
        "wrong = np.abs(totals - 1) > SUM_TOLERANCE",
        "wrong = np.abs(totals - 1) >= SUM_TOLERANCE",
        "no float64 near 1 differs from 1 by exactly the float64 0.001",
    ),
    (
        "if not isinstance(task, str) or key != path.stem:",
        "if key != path.stem:",
        "for another type re.sub raises the TypeError that is caught below",
    ),
    *(
        (
            "apart = [name for name in ours if name not in gap or (ours[name].n and theirs[name].n)]",
            f"apart = [name for name in ours if name not in gap or ({other})]",
            "if one n is 0 or None, the difference is NaN either way",
        )
        for other in ("ours[name].n or theirs[name].n", "ours[name].n", "theirs[name].n")
    ),
    (
        "if exact is not None and np.isfinite(interval.low):",
        "if exact is not None:",
        "min and max of NaN and a number, in this order, are NaN",
    ),
    (
        "totals = np.maximum(1, self.count.sum(axis=1, keepdims=True))",
        "totals = np.maximum(2, self.count.sum(axis=1, keepdims=True))",
        "a cell with different decisions has at least two",
    ),
    (
        "name.removesuffix('.npy'): npy.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)",
        "name.removesuffix('.npy'): npy.read_array(io.BytesIO(archive.read(name)))",
        "False is NumPy's default",
    ),
    (
        "npy.write_array(file, array, allow_pickle=False)",
        "npy.write_array(file, array)",
        "arrays of objects are refused before",
    ),
    (
        "return np.asarray(_log_sum(every) - np.log(len(every)))",
        "return np.asarray(_log_sum(every) + np.log(len(every)))",
        "logits of a softmax: a constant added to all classes changes nothing",
    ),
    (
        "again.__dict__.update(block_rankings=self.block_rankings, pooled_ranking=self.pooled_ranking, "
        "score_rankings=self.score_rankings,)",
        "again.__dict__.update(block_rankings=self.block_rankings, pooled_ranking=self.pooled_ranking)",
        "a ranking that is not shared is computed again, with the same result",
    ),
    (
        "return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, label_smoothing=smoothing)",
        "return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)",
        "IGNORE is torch's default",
    ),
    (
        "for saved, kind in zip(self.before, kinds, strict=True):",
        "for saved, kind in zip(self.before, kinds, strict=False):",
        "one is made from the other",
    ),
    (
        "return views.mean(dim=1, keepdim=True)",
        "return views.mean(dim=2, keepdim=True)",
        "images have one channel or three; of one channel, only the grey of a mean colour is computed",
    ),
    (
        "TOLERANCE = 1e-9  # of log T",
        "TOLERANCE = 1.5000000000000002e-09  # of log T",
        "far below what any test or user could measure",
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


def files_of(area: str) -> tuple[list[Path], list[Path]]:
    """The source files of an area and its tests, relative to the root."""
    both = []
    for folder, patterns in zip(("src/surefoot", "tests"), AREAS[area], strict=True):
        found = {pattern: sorted((ROOT / folder).glob(pattern)) for pattern in patterns}
        if missing := [pattern for pattern, files in found.items() if not files]:
            sys.exit(f"area {area!r}: no file is {folder}/{missing[0]}; correct AREAS")
        both.append([file.relative_to(ROOT) for files in found.values() for file in files])
    return both[0], both[1]


def all_mutants(areas: Sequence[str]) -> dict[str, list[Mutant]]:
    """All mutants of every area, in file and line order."""
    return {area: [each for path in files_of(area)[0] for each in mutants_of(area, path)] for area in areas}


def check_equivalent() -> None:
    """Exit if a line in EQUIVALENT is no longer in the source."""
    paths = [ROOT / path for area in AREAS for path in files_of(area)[0]]
    whole = _squeezed("".join(path.read_text(encoding="utf-8").replace("\n", "") for path in paths))
    for line, _, _ in EQUIVALENT:
        if _squeezed(line) not in whole:
            sys.exit(f"EQUIVALENT: no file has the line {line!r}; correct or remove it")


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


def run_tests(tree: Path, tests: Sequence[str], output: Path) -> None:
    """Run tests in a copy of the tree until one fails, and exit with pytest's status; in its own process."""
    os.setsid()  # so that the processes that tests start can be stopped too
    with output.open("w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "src")
    sys.path[:0] = [str(tree / "src"), str(tree)]
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    import hypothesis
    import pytest

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # the smallest example is not needed
    hypothesis.settings.register_profile("mutants", derandomize=True, deadline=None, phases=phases)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=short"]
    options += ["-m", "not browser and not realdata", "--hypothesis-profile=mutants"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the libraries are imported already
    os._exit(int(pytest.main([*options, *tests])))


def tested(tree: Path, tests: Sequence[str], *, limit: float | None) -> str:
    """Whether tests detect the mutant in a copy of the tree; without a limit they must pass."""
    output = tree / "output.txt"
    process = SERVER.Process(target=run_tests, args=(tree, tests, output))
    process.start()
    process.join(limit)
    if process.exitcode is None:
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return TIMED_OUT
    if limit is None and process.exitcode:
        sys.exit(f"the tests fail without any mutant:\n{output.read_text()}")
    return KILLED if process.exitcode else SURVIVED


def tests_of(path: Path, area: str) -> list[str]:
    """The doctests of a source file, its tests, those with its name first, and those of whole commands."""
    tests = sorted(files_of(area)[1], key=lambda test: path.stem not in test.stem)
    frozen = [f"tests/test_frozen.py::test_nothing_has_changed[{case}]" for case in FROZEN.get(area, ())]
    return [str(path), *map(str, tests), "tests/test_limits.py", *frozen]


def outcome_of(mutant: Mutant, tree: Path, limit: float) -> str:
    """Whether the tests detect a mutant."""
    place = tree / mutant.path
    place.write_text(mutant.changed, encoding="utf-8")
    try:
        return tested(tree, tests_of(mutant.path, mutant.area), limit=limit)
    finally:
        place.write_text(mutant.source, encoding="utf-8")


def run(mutants: Sequence[Mutant], *, workers: int, limit: float | None) -> list[tuple[Mutant, str]]:
    """Test each in a copy of the tree that no other worker uses; first without a mutant, for the limits."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(workers) as pool:
        trees: Queue[Path] = Queue()
        for number in range(workers):
            trees.put(copied_tree(Path(folder) / str(number)))

        @contextmanager
        def free_tree() -> Iterator[Path]:
            tree = trees.get()
            try:
                yield tree
            finally:
                trees.put(tree)

        def tests_for(mutant: Mutant) -> list[str]:
            return tests_of(mutant.path, mutant.area)[1:]

        def seconds_of(tests: tuple[str, ...]) -> float:
            with free_tree() as tree:
                start = time.perf_counter()
                tested(tree, tests, limit=None)
                return time.perf_counter() - start

        def one(mutant: Mutant) -> tuple[Mutant, str]:
            allowed = limit or LIMIT[0] * sum(map(seconds.__getitem__, tests_for(mutant))) + LIMIT[1]
            with free_tree() as tree:
                outcome = outcome_of(mutant, tree, allowed)
            print(f"{outcome:9}  {mutant}", flush=True)
            return mutant, outcome

        seconds = {}
        if limit is None:
            files = sorted({test for mutant in mutants for test in tests_for(mutant)})
            seconds = dict(zip(files, pool.map(lambda test: seconds_of((test,)), files), strict=True))
            print(f"{len(files)} test files: {sum(seconds.values()):.0f} s without a mutant", flush=True)
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
    parser.add_argument("--limit", type=float, help="seconds for one; without it the tests are timed first")
    parser.add_argument("--workers", type=int, default=2, help="parallel processes")
    options = parser.parse_args()
    check_equivalent()
    os.environ["OMP_NUM_THREADS"] = "1"
    SERVER.set_forkserver_preload(list(LIBRARIES))
    mutants = all_mutants(options.area or list(AREAS))
    chosen = sample(mutants, count=options.count, seed=options.seed)
    begun = time.perf_counter()
    results = run(chosen, workers=options.workers, limit=options.limit)
    summary(results)
    seconds = time.perf_counter() - begun
    rate = 60 * len(chosen) / seconds
    print(f"\nseed {options.seed}: {len(chosen)} mutants in {seconds:.0f} s, {rate:.1f} a minute")
    sys.exit(any(outcome == SURVIVED for _, outcome in results))


if __name__ == "__main__":
    main()
