"""Processes that are killed, and processes that share a store: the networks are the same to the bit.

The single-worker and Ray kills with their exact checks are in `tests/workers/test_kill.py` and `test_ray.py`.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from surefoot.store.files import State
from surefoot.store.store import Store
from surefoot.workers.local import execute
from tests.workers.orders import SMALL, epochs_logged, order, results, specs

SEEDS = (0, 1, 2, 3)
KILLS = 6
LONG = replace(SMALL, epochs=40)
ENGINE = """
import sys
from surefoot.training import loop
from surefoot.workers.jobs import WorkOrder
from surefoot.workers.local import execute
execute(WorkOrder.from_json(sys.argv[1]), workers=int(sys.argv[2]), on_event=lambda event: None)
"""


def engine(wanted, workers):
    """The engine in a process group of its own, with that many workers."""
    command = [sys.executable, "-c", ENGINE, wanted.as_json(), str(workers)]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def finished(wanted):
    return all(Store(Path(wanted.store)).state(spec) is State.DONE for spec in specs(wanted))


def killed_with_two_workers(folder, expected, seed):
    """The engine and its workers are killed at random moments until enough kills came, then resumed."""
    wanted, moments = order(folder, LONG, seeds=SEEDS), random.Random(seed)
    for _ in range(KILLS):
        process = engine(wanted, 2)
        time.sleep(moments.uniform(0.5, 6))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert engine(wanted, 2).wait() == 0
    assert results(wanted) == expected


def two_engines_one_killed(folder, expected, seed):
    """Two processes on one store, in opposite orders; one is killed, the other finishes everything."""
    wanted = order(folder, LONG, seeds=SEEDS)
    first, second = engine(wanted, 1), engine(replace(wanted, jobs=wanted.jobs[::-1]), 1)
    time.sleep(random.Random(seed).uniform(3, 9))
    if first.poll() is None:
        os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert second.wait() == 0
    if not finished(wanted):  # what the killed one held when the other looked
        assert engine(wanted, 1).wait() == 0
    assert results(wanted) == expected


def two_engines(folder, expected, _seed):
    """Two processes on one store train each network once."""
    wanted = order(folder, LONG, seeds=SEEDS)
    both = [engine(each, 1) for each in (wanted, replace(wanted, jobs=wanted.jobs[::-1]))]
    assert [process.wait() for process in both] == [0, 0]
    assert results(wanted) == expected
    assert max(Counter(epochs_logged(wanted)).values()) == 1


SCENARIOS = (killed_with_two_workers, two_engines_one_killed, two_engines)


def run_scenarios(write, seed=0):
    """Run each scenario, write a line on each; whether all held."""
    held = True
    with tempfile.TemporaryDirectory(prefix="fuzz-store-") as folder:
        plain = order(Path(folder, "plain"), LONG, seeds=SEEDS)
        execute(plain, workers=1, on_event=lambda _: None)
        expected = results(plain)
        for scenario in SCENARIOS:
            try:
                scenario(Path(folder, scenario.__name__), expected, seed)
                outcome = "the same to the bit"
            except AssertionError as error:
                held, outcome = False, f"FAILED: {error}"
            write(f"| {scenario.__name__.replace('_', ' ')} | {outcome} |\n")
    return held
