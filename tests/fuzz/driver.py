"""Run cases in worker processes, and count what went wrong.

    python -m tests.fuzz.driver --cases 1000 --seed 0        all cases from 0
    python -m tests.fuzz.driver --seed 0 --case 17           one case again, with what it printed

A worker runs many cases by calling the command line's `main` in its own process. It announces each case before
running it; if it dies or does not answer in time, that case is a crash or a hang, and a new worker goes on after it.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import resource
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.fuzz.cases import ANY, EITHER, REFUSED, VALID, Place, family_of

SECONDS = 30  # without an answer: a hang
MEMORY = 6 * 2**30  # address space that a worker may take beyond what its libraries take
ROOT = Path(__file__).parents[2]
KINDS = ("crash", "hang", "traceback", "wrong number", "wrong exit", "unclear refusal", "file changed")


@dataclass
class Tally:
    """What came of the cases so far."""

    cases: int = 0
    commands: int = 0
    refused: int = 0
    compared: int = 0
    families: Counter = field(default_factory=Counter)
    seconds: Counter = field(default_factory=Counter)  # of CPU time
    failures: list = field(default_factory=list)  # of (kind, case, family, words, detail)

    def add(self, message):
        self.cases += 1
        self.families[message["family"]] += 1
        self.seconds[message["family"]] += message.get("seconds", 0.0)
        for name in ("commands", "refused", "compared"):
            setattr(self, name, getattr(self, name) + message[name])
        for kind, words, detail in message["failures"]:
            self.failures.append((kind, message["case"], message["family"], words, detail))

    def table(self):
        kinds = Counter(kind for kind, *_ in self.failures)
        rows = [("cases", self.cases), ("commands", self.commands), ("refusals", self.refused)]
        rows += [
            ("numbers compared with the oracle", self.compared),
            *((kind, kinds[kind]) for kind in KINDS),
        ]
        return "\n".join(f"| {name} | {count:,} |" for name, count in [*rows])


# In the worker


class Worker:
    """Runs cases in this process."""

    def __init__(self, base, scratch, seed, *, announce=lambda _: None, verbose=False):
        self.base, self.scratch, self.seed, self.verbose = Path(base), Path(scratch), seed, verbose
        self.announce = announce
        import typer

        import surefoot.cli
        from surefoot.cli.app import app

        self.main = surefoot.cli.main
        surefoot.cli.app = typer.main.get_command(app)  # built once; it is most of a short command's time
        warnings.simplefilter("error")
        os.environ |= {"COLUMNS": "100", "TMPDIR": str(self.scratch)}
        os.environ["SUREFOOT_CACHE"] = str(self.scratch / "cache")
        tempfile.tempdir = str(self.scratch)

    def run(self, number):
        """One case: how many commands it ran, and the failures among them."""
        rng = np.random.default_rng([self.seed, number])
        folder = self.scratch / f"case{number}"
        folder.mkdir()
        family = family_of(rng)
        result = {
            "case": number,
            "family": family.__name__,
            "commands": 0,
            "refused": 0,
            "compared": 0,
            "failures": [],
        }
        start = time.process_time()
        os.chdir(folder)
        try:
            steps, code = family(Place(folder, self.base), rng), None
            with contextlib.suppress(StopIteration):
                while True:
                    code = self._step(steps.send(code), folder, result)
        except Exception:  # noqa: BLE001 the generator's own mistake must not end the run unseen
            result["failures"].append(("traceback", ["the fuzzer itself"], traceback.format_exc()[-1500:]))
        os.chdir(self.base)
        result["seconds"] = time.process_time() - start
        if not self.verbose:
            _remove(folder)
        return result

    def _step(self, step, folder, result):
        self.announce({"words": [str(word) for word in step.words]})
        before = _snapshot(folder)
        code, out, err, trace = self._command(step.words)
        result["commands"] += 1
        words = [str(word) for word in step.words]
        if self.verbose:
            sys.stdout.write(f"{words}\n-> {code}\n{out}{err}{trace or ''}\n")

        def fail(kind, detail):
            result["failures"].append((kind, words, detail))

        if trace:
            fail("traceback", trace)
            return code
        refused = code == 2
        result["refused"] += refused
        allowed = {VALID: {0}, EITHER: {0, 2}, ANY: {0, 2}, REFUSED: {2}}[step.expect] | (
            {1} if step.may_fail else set()
        )
        if code not in allowed:
            fail("wrong exit", f"exit code {code}, allowed {sorted(allowed)}: {err[-300:]}")
        if refused and (problem := _unclear(err)):
            fail("unclear refusal", problem)
        for name in _changed(before, _snapshot(folder)):
            outputs = step.caches if refused else step.writes
            if outputs is not None and not any(_is_below(folder / name, output) for output in outputs):
                fail("file changed", f"{name} (exit code {code})")
        if code in (0, 1) and code in allowed and step.expect in (VALID, EITHER):
            result["compared"] += 1
            if problem := step.check(out):
                fail("wrong number", problem)
        return code

    def _command(self, words):
        """Exit code, standard output, standard error, and the traceback of an exception that is no refusal."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        sys.argv = ["surefoot", *map(str, words)]
        code, trace = 0, None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                self.main()
            except SystemExit as ended:
                code = ended.code or 0
            except BaseException as error:  # noqa: BLE001 whatever escapes is what we look for
                last = traceback.extract_tb(error.__traceback__)[-1]
                ours = [f for f in traceback.extract_tb(error.__traceback__) if "surefoot" in f.filename][-1:]
                at = "; ".join(f"{Path(f.filename).name}:{f.lineno}" for f in (*ours, last))
                code, trace = 1, f"{type(error).__name__}: {str(error)[:300]} at {at}"
        # What Python's own printing cannot encode is not shown here: sys.stderr of a real process escapes it.
        texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
        return code, *texts, trace


def _unclear(err):
    """What is wrong with the words of a refusal: it is one printable line, or the usage of a command."""
    if "Usage:" in err:
        return None
    lines = [line for line in err.split("\n") if line and not line.startswith("note: ")]
    if not lines or not lines[-1].startswith("surefoot: "):
        return f"no sentence: {err[-300:]!r}"
    if sum(line.startswith("surefoot: ") for line in lines) != 1 or len(lines) != 1:
        return f"several lines: {err[-300:]!r}"
    if not lines[0].isprintable():
        return f"control characters: {lines[0][:300]!r}"
    if len(lines[0]) > 8000:
        return f"{len(lines[0])} characters: {lines[0][:100]!r}"
    return None


def _snapshot(folder):
    """Every name below a folder with its type and content."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            content = ""
            if stat.S_ISREG(mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            elif stat.S_ISLNK(mode):
                content = str(path.readlink())
            found[str(path.relative_to(folder))] = (stat.S_IFMT(mode), content)
    return found


def _changed(before, after):
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def _is_below(path, output):
    return path == output or output in path.parents


def _remove(folder):
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder)


def work(arguments):
    """A worker's life: announce each case on the pipe, run it, report it."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)

    def announce(message):
        pipe.write(json.dumps(message) + "\n")

    worker = Worker(arguments.base, arguments.scratch, arguments.seed, announce=announce)
    with open("/proc/self/statm") as pages:  # noqa: PTH123 it is one line
        now = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    for number in range(arguments.first, arguments.end, arguments.stride):
        announce({"begin": number})
        announce(worker.run(number))


# In the driver


class Supervised:
    """A worker process over some of the cases, started again behind a case that ended it."""

    def __init__(self, first, end, stride, base, scratch, seed):
        self.next, self.end, self.stride, self.seed = first, end, stride, seed
        self.base, self.scratch = base, scratch
        self.start()

    def start(self):
        self.case, self.words, self.rest = None, [], b""
        self.since = time.monotonic()
        if self.scratch.exists():
            _remove(self.scratch)
        self.scratch.mkdir()
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.driver",
            "--work",
            "--seed",
            self.seed,
            "--first",
            self.next,
        ]
        command += [
            "--end",
            self.end,
            "--stride",
            self.stride,
            "--base",
            self.base,
            "--scratch",
            self.scratch,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 closed when the process has ended
        self.process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=self.errors, cwd=ROOT, env=environment, start_new_session=True
        )  # fmt: skip
        os.set_blocking(self.process.stdout.fileno(), False)

    def read(self, tally):
        """Take what the worker reported; whether it has closed its pipe."""
        data = self.process.stdout.read()
        if data == b"":
            return True
        *lines, self.rest = (self.rest + (data or b"")).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.since = time.monotonic()
            if "begin" in message:
                self.case, self.words = message["begin"], []
            elif "words" in message:
                self.words = message["words"]
            else:
                tally.add(message)
                self.next, self.case = message["case"] + self.stride, None
        return False

    def ended(self, tally):
        """Record how it ended, and start again where cases are left; whether there are."""
        code = self.process.wait()
        if code:
            self.errors.seek(0)
            detail = self.errors.read().decode("utf-8", "replace")
            if self.case is None:
                raise SystemExit(f"a worker ended with {code} outside of a case:\n{detail[-3000:]}")
            self._lost(tally, "crash", f"{signal.Signals(-code).name if code < 0 else code}: {detail[-600:]}")
        return self._again()

    def hang(self, tally):
        """Kill it and its children, and start again where cases are left; whether there are."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._lost(tally, "hang", f"no answer in {SECONDS} s")
        return self._again()

    def _again(self):
        self.errors.close()
        self.process.stdout.close()
        if self.next >= self.end:
            return False
        self.start()
        return True

    def _lost(self, tally, kind, detail):
        rng = np.random.default_rng([self.seed, self.case])
        lost = {
            "case": self.case,
            "family": family_of(rng).__name__,
            "commands": 1,
            "refused": 0,
            "compared": 0,
        }
        tally.add({**lost, "failures": [(kind, self.words, detail)]})
        self.next = self.case + self.stride


def fuzz(cases, seed, *, workers=1, first=0, show=None):
    """Run so many cases from `first`; the tally."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        base = Path(folder, "base")
        prepare(base)
        count = min(workers, cases)
        running = {}
        selector = selectors.DefaultSelector()
        for index in range(count):
            each = Supervised(
                first + index, first + cases, count, base, Path(folder, f"scratch{index}"), seed
            )
            running[index] = each
            selector.register(each.process.stdout, selectors.EVENT_READ, index)
        shown = time.monotonic()
        while running:
            for key, _ in selector.select(timeout=1):
                each = running[key.data]
                if each.read(tally):
                    selector.unregister(key.fileobj)
                    if each.ended(tally):
                        selector.register(each.process.stdout, selectors.EVENT_READ, key.data)
                    else:
                        del running[key.data]
            for index, each in list(running.items()):
                if each.case is not None and time.monotonic() - each.since > SECONDS:
                    selector.unregister(each.process.stdout)
                    if each.hang(tally):
                        selector.register(each.process.stdout, selectors.EVENT_READ, index)
                    else:
                        del running[index]
            if show and time.monotonic() - shown > 10:
                shown = time.monotonic()
                show(tally)
    return tally


def prepare(base):
    """What cases share: a run with its store, a bundle, documents of every kind, a task, experiments, scores."""
    from surefoot.deploy.make_bundle import chosen_method, write_bundle
    from surefoot.io import toml_text
    from tests.cli.command import surefoot
    from tests.deploy.made import ran
    from tests.tasks.trees import FACES, faces

    base.mkdir(parents=True)
    made = ran(base / "run", methods=("single", "ensemble-of-t"))
    chosen = chosen_method(made.opened, "ensemble-of-t", task=None, network=None)
    write_bundle(chosen, base / "bundle", resamples=0, thresholds={"accept": 0.4, "reject": 0.35})
    documents = base / "documents"
    documents.mkdir()
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((200, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    np.savez(base / "val.npz", logits=logits, labels=labels, novelty=rng.random(200))
    np.savez(base / "members.npz", logits=np.stack([logits, 2 * logits]), labels=labels)
    for method in ("temperature", "softening", "budget", "novelty"):
        surefoot("calibrate", base / "val.npz", "--method", method, "-o", documents / f"{method}.json")
    surefoot(
        "calibrate", base / "members.npz", "--method", "member-temperatures", "-o", documents / "members.json"
    )
    for name, options in (("thresholds", ()), ("thresholds-split", ("--split", 0.5))):
        surefoot(
            "thresholds", base / "val.npz", "--target-error", 0.6, "-o", documents / f"{name}.json", *options
        )
    faces(base / "task", 20, text=FACES)
    (base / "experiments").mkdir()
    for source in (
        *sorted((ROOT / "experiments").glob("*.toml")),
        *sorted((ROOT / "examples").glob("*.toml")),
    ):
        shutil.copy(source, base / "experiments" / source.name)
    from surefoot.experiments.experiment import experiment_named
    from surefoot.experiments.run import resolved

    text = toml_text(resolved(experiment_named("quickstart")).as_dict())
    (base / "experiments" / "quickstart.toml").write_text(text)
    lines = (ROOT / "docs/results/cat-dog-scores.csv").read_text().splitlines()
    (base / "scores.csv").write_text("\n".join([lines[0], *lines[1::40]]) + "\n")


def main():
    """The command line of the fuzzer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("cases", 1000), ("seed", 0), ("workers", 1), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--case", type=int, help="run this case alone and print what its commands printed")
    parser.add_argument("--scenarios", action="store_true", help="also kill processes that share a store")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    for name in ("end", "stride"):
        parser.add_argument(f"--{name}", type=int, default=1, help=argparse.SUPPRESS)
    for name in ("base", "scratch"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments)
        return 0
    if arguments.case is not None:
        return again(arguments.seed, arguments.case)
    start = time.monotonic()
    tally = fuzz(
        arguments.cases,
        arguments.seed,
        workers=arguments.workers,
        first=arguments.first,
        show=lambda t: sys.stderr.write(f"{t.cases:,} cases, {len(t.failures)} failures\n"),
    )
    for kind, case, family, words, detail in tally.failures:
        sys.stdout.write(f"{kind}: case {case} ({family}): {' '.join(words)[:400]!r}\n    {detail[:700]}\n")
    sys.stdout.write(
        f"\n| seed {arguments.seed} | {time.monotonic() - start:.0f} s |\n|---|---|\n{tally.table()}\n"
    )
    for name, count in tally.families.most_common():
        sys.stderr.write(
            f"{name}: {count:,} cases, {1000 * tally.seconds[name] / count:.0f} ms of CPU time each\n"
        )
    failed = bool(tally.failures)
    if arguments.scenarios:
        from tests.fuzz.scenarios import run_scenarios

        failed |= not run_scenarios(sys.stdout.write)
    return int(failed)


def again(seed, number):
    """One case in this process, with all that it prints; its folder stays."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-case-"))
    prepare(folder / "base")
    (folder / "scratch").mkdir()
    result = Worker(folder / "base", folder / "scratch", seed, verbose=True).run(number)
    sys.stdout.write(json.dumps(result, indent=2) + f"\nfolder: {folder}\n")
    return int(bool(result["failures"]))


if __name__ == "__main__":
    sys.exit(main())
