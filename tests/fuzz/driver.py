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
import signal
import subprocess
import sys
import tempfile
import threading
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
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
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
        rows = {"cases": self.cases, "commands": self.commands, "refusals": self.refused}
        rows |= {"numbers compared with the oracle": self.compared} | {kind: kinds[kind] for kind in KINDS}
        return "\n".join(f"| {name} | {count:,} |" for name, count in rows.items())


class Supervised(threading.Thread):
    """A worker process over some of the cases, started again behind a case that ended it."""

    def __init__(self, cases, seed, base, scratch, family, tally):
        super().__init__(daemon=True)
        self.cases, self.seed, self.base, self.scratch = cases, seed, base, scratch
        self.family, self.tally, self.error = family, tally, None
        self.case, self.killed, self.since = None, None, time.monotonic()

    def run(self):
        try:
            while self.cases:
                self._run_process()
        except BaseException as error:  # noqa: BLE001 raised again by the main thread
            self.error = error

    def _run_process(self):
        """Take what a process reports, until it ends."""
        self.case, self.words, self.killed = None, [], None
        self.since, self.used, self.idle = time.monotonic(), None, 0
        if self.scratch.exists():
            remove(self.scratch)
        self.scratch.mkdir()
        with tempfile.TemporaryFile() as errors:
            self.process = subprocess.Popen(
                self._command(), stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=ENVIRONMENT, start_new_session=True
            )  # fmt: skip
            with self.process.stdout as lines:
                for line in lines:
                    self._take(json.loads(line))
            code = self.process.wait()
            errors.seek(0)
            detail = errors.read().decode("utf-8", "replace")
        if self.killed:
            self._lost("hang", self.killed)
        elif code and self.case is None:
            raise SystemExit(f"a worker ended with {code} outside of a case:\n{detail[-3000:]}")
        elif code:
            self._lost("crash", f"{signal.Signals(-code).name if code < 0 else code}: {detail[-600:]}")

    def _command(self):
        options = {"seed": self.seed, "first": self.cases.start, "end": self.cases.stop}
        options |= {"stride": self.cases.step, "base": self.base, "scratch": self.scratch}
        options |= {"family": self.family} if self.family else {}
        words = [f"--{name}={value}" for name, value in options.items()]
        return [sys.executable, "-m", "tests.fuzz.driver", "--work", *words]

    def _take(self, message):
        self.since, self.used, self.idle = time.monotonic(), None, 0
        if "begin" in message:
            self.case, self.words = message["begin"], []
        elif "words" in message:
            self.words = message["words"]
        else:
            self._add(message)

    def _add(self, message):
        self.tally.add(message)
        self.cases, self.case = (
            range(message["case"] + self.cases.step, self.cases.stop, self.cases.step),
            None,
        )

    def _lost(self, kind, detail):
        family = family_of(np.random.default_rng([self.seed, self.case]), self.family).__name__
        lost = {"case": self.case, "family": family, "commands": 1, "refused": 0, "compared": 0}
        self._add({**lost, "failures": [(kind, self.words, detail)]})

    def kill_if_stuck(self):
        """Kill it and its children if a command computes or waits for too long, not if it gets no CPU time."""
        waited = time.monotonic() - self.since
        if self.case is None or self.killed or waited < SECONDS:
            return
        states, used = _threads(self.process.pid)
        self.used = used if self.used is None else self.used
        self.idle = 0 if states & {"R", "D"} else self.idle + 1
        if self.idle > IDLE_LOOKS or used - self.used > SECONDS or waited > MOST_SECONDS:
            self.killed = f"no answer in {waited:.0f} s"
            os.killpg(self.process.pid, signal.SIGKILL)


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
        of_workers = [range(first + index, first + cases, workers) for index in range(min(workers, cases))]
        running = [
            Supervised(each, seed, base, Path(folder, f"scratch{index}"), family, tally)
            for index, each in enumerate(of_workers)
        ]
        for each in running:
            each.start()
        shown = time.monotonic()
        while any(each.is_alive() for each in running):
            for each in running:
                each.join(1 / len(running))
                each.kill_if_stuck()
            if show and time.monotonic() - shown > 10:
                shown = time.monotonic()
                show(tally, min((each.cases.start for each in running if each.cases), default=first + cases))
        for each in running:
            if each.error:
                raise each.error
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
            words = " ".join(words)[:400]
            sys.stdout.write(f"{kind}: case {case} ({family}): {words!r}\n    {detail[:700]}\n")
        shown, seconds = len(tally.failures), time.monotonic() - start
        about = f"{tally.cases:,} cases in {seconds:.0f} s, {shown} failures"
        sys.stdout.write(f"{about}; next: --first {following}\n")
        sys.stdout.flush()

    end = arguments.first + arguments.cases
    options = {name: getattr(arguments, name) for name in ("workers", "first", "family")}
    tally = fuzz(arguments.cases, arguments.seed, show=show, **options)
    show(tally, end)
    title = f"seed {arguments.seed}, cases {arguments.first:,} to {end - 1:,}"
    sys.stdout.write(f"\n| {title} | {time.monotonic() - start:.0f} s |\n|---|---|\n{tally.table()}\n\n")
    for name, count in tally.families.most_common():
        each = 1000 * tally.seconds[name] / count
        sys.stdout.write(f"{name}: {count:,} cases, {each:.0f} ms of CPU time each\n")
    return int(bool(tally.failures))


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
