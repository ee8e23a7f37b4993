"""Run cases in worker processes, and count what went wrong.

    python -m tests.fuzz.driver --cases 1000 --seed 0        all cases from 0
    python -m tests.fuzz.driver --cases 600 --first 400      the cases from 400 to 999, after an interruption
    python -m tests.fuzz.driver --seed 0 --case 17           one case again, with what it printed
    python -m tests.fuzz.driver --family groups --cases 200  cases of one family

A worker runs many cases by calling the command line's `main` in its own process. It announces each case before
running it; if it dies or does not answer in time, that case is a crash or a hang, and a new worker goes on after it.
"""

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.fuzz.cases import family_of
from tests.fuzz.prepared import ROOT, prepare
from tests.fuzz.worker import Worker, remove, work

SECONDS = 30  # of CPU time for a command, or of waiting for nothing: a hang
IDLE_LOOKS = 10  # a second apart, at which all threads wait
MOST_SECONDS = 900  # however busy the machine is
FOLDER = next((folder for folder in ("/dev/shm",) if os.access(folder, os.W_OK)), None)
KINDS = (
    "crash",
    "hang",
    "traceback",
    "wrong number",
    "wrong exit",
    "unclear refusal",
    "file changed",
    "no warning",
)


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


class Supervised:
    """A worker process over some of the cases, started again behind a case that ended it."""

    def __init__(self, first, end, stride, base, scratch, seed, family):
        self.family = family
        self.next, self.end, self.stride, self.seed = first, end, stride, seed
        self.base, self.scratch = base, scratch
        self.start()

    def start(self):
        self.case, self.words, self.rest = None, [], b""
        self.since, self.used, self.idle = time.monotonic(), None, 0
        if self.scratch.exists():
            remove(self.scratch)
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
            *(["--family", self.family] if self.family else []),
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
            self.since, self.used, self.idle = time.monotonic(), None, 0
            if "begin" in message:
                self.case, self.words = message["begin"], []
            elif "words" in message:
                self.words = message["words"]
            else:
                tally.add(message)
                self.next, self.case = message["case"] + self.stride, None
        return False

    def is_stuck(self):
        """Whether a command computes or waits for too long; one that gets no CPU time does not."""
        waited = time.monotonic() - self.since
        if self.case is None or waited < SECONDS:
            return False
        states, used = _threads(self.process.pid)
        self.used = used if self.used is None else self.used
        self.idle = 0 if states & {"R", "D"} else self.idle + 1
        return self.idle > IDLE_LOOKS or used - self.used > SECONDS or waited > MOST_SECONDS

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
        self._lost(tally, "hang", f"no answer in {time.monotonic() - self.since:.0f} s")
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
            "family": family_of(rng, self.family).__name__,
            "commands": 1,
            "refused": 0,
            "compared": 0,
        }
        tally.add({**lost, "failures": [(kind, self.words, detail)]})
        self.next = self.case + self.stride


def _threads(process):
    """The states of a process's threads, and the seconds of CPU time that they have used."""
    states, ticks = set(), 0
    for path in Path(f"/proc/{process}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            states.add(fields[0])
            ticks += int(fields[11]) + int(fields[12])
    return states, ticks / os.sysconf("SC_CLK_TCK")


def fuzz(cases, seed, *, workers=1, first=0, show=None, family=None):
    """Run so many cases from `first`; the tally. `show` is called with it and the first case that has not ended."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=FOLDER) as folder:
        base = Path(folder, "base")
        prepare(base)
        count = min(workers, cases)
        running = {}
        selector = selectors.DefaultSelector()
        for index in range(count):
            each = Supervised(
                first + index, first + cases, count, base, Path(folder, f"scratch{index}"), seed, family
            )
            running[index] = each
            selector.register(each.process.stdout, selectors.EVENT_READ, index)
        shown = looked = time.monotonic()
        while running:
            for key, _ in selector.select(timeout=1):
                each = running[key.data]
                if each.read(tally):
                    selector.unregister(key.fileobj)
                    if each.ended(tally):
                        selector.register(each.process.stdout, selectors.EVENT_READ, key.data)
                    else:
                        del running[key.data]
            if time.monotonic() - looked < 1:
                continue
            looked = time.monotonic()
            for index, each in list(running.items()):
                if each.is_stuck():
                    selector.unregister(each.process.stdout)
                    if each.hang(tally):
                        selector.register(each.process.stdout, selectors.EVENT_READ, index)
                    else:
                        del running[index]
            if show and time.monotonic() - shown > 10:
                shown = time.monotonic()
                show(tally, min((each.next for each in running.values()), default=first + cases))
    return tally


def main():
    """The command line of the fuzzer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("cases", 1000), ("seed", 0), ("workers", 1), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--family", help="only cases of this family, a function of tests/fuzz/cases.py")
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
        return again(arguments.seed, arguments.case, arguments.family)
    start, shown = time.monotonic(), 0

    def show(tally, following):
        nonlocal shown
        for kind, case, family, words, detail in tally.failures[shown:]:
            sys.stdout.write(
                f"{kind}: case {case} ({family}): {' '.join(words)[:400]!r}\n    {detail[:700]}\n"
            )
        shown = len(tally.failures)
        seconds = time.monotonic() - start
        sys.stdout.write(
            f"{tally.cases:,} cases in {seconds:.0f} s, {shown} failures; next: --first {following}\n"
        )
        sys.stdout.flush()

    end = arguments.first + arguments.cases
    tally = fuzz(
        arguments.cases,
        arguments.seed,
        workers=arguments.workers,
        first=arguments.first,
        show=show,
        family=arguments.family,
    )
    show(tally, end)
    title = f"seed {arguments.seed}, cases {arguments.first:,} to {end - 1:,}"
    sys.stdout.write(f"\n| {title} | {time.monotonic() - start:.0f} s |\n|---|---|\n{tally.table()}\n\n")
    for name, count in tally.families.most_common():
        each = 1000 * tally.seconds[name] / count
        sys.stdout.write(f"{name}: {count:,} cases, {each:.0f} ms of CPU time each\n")
    failed = bool(tally.failures)
    if arguments.scenarios:
        from tests.fuzz.scenarios import run_scenarios

        failed |= not run_scenarios(sys.stdout.write)
    return int(failed)


def again(seed, number, family):
    """One case in this process, with all that it prints; its folder stays."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-case-", dir=FOLDER))
    prepare(folder / "base")
    (folder / "scratch").mkdir()
    result = Worker(folder / "base", folder / "scratch", seed, family=family, verbose=True).run(number)
    sys.stdout.write(json.dumps(result, indent=2) + f"\nfolder: {folder}\n")
    return int(bool(result["failures"]))


if __name__ == "__main__":
    sys.exit(main())
