"""Small orders, workers that are easy to kill, and what a finished store holds."""

import json
from pathlib import Path

from safetensors.torch import load_file

from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Split
from surefoot.lab.workers.jobs import WorkOrder, jobs_of
from tests import warm

PREDICTED = (Split.VAL, Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
SMALL = Recipe(network="mlp", width=16, epochs=2, learning_rate=0.05)

# Each life of a worker should take a fraction of a second: this process forks a worker for each order that it is
# given. It says the worker's number, then how it ended.
NURSERY = """
import os, sys
import torch
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
from surefoot.lab.workers import worker
from surefoot.lab.training import loop
torch.set_num_threads(1)
loop.SECONDS_BETWEEN_CHECKPOINTS = 0.05
for line in iter(sys.stdin.readline, ""):
    read, write = os.pipe()
    jobs = range(line.count('"seed"'))
    os.write(write, (line + "".join(f"{job}\\n" for job in jobs)).encode())
    os.close(write)
    pid = os.fork()
    if pid == 0:
        os.dup2(read, 0)
        os.dup2(2, 1)
        sys.stdin = open(0)
        code = 1
        try:
            code = worker.main()
        finally:
            os._exit(code)
    os.close(read)
    print("began", pid, flush=True)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its number stays its own
    sys.stdin.readline()  # until nobody will send it a signal any more
    print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Nursery:
    """Workers, one after another, that save a checkpoint twenty times a second."""

    def __enter__(self):
        self.process = warm.Process(NURSERY, stdin=True)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        with self.process:
            pass

    def start(self, wanted):
        """The number of a new worker's process."""
        self.process.stdin.write(wanted.as_json() + "\n")
        return self._heard("began")

    def ended(self):
        """How it ended; waits until it has."""
        self.process.stdin.write("\n")
        return self._heard("ended")

    def _heard(self, word):
        """Checked, for the number will be sent signals: a wrong one could be anybody's."""
        first, number = self.process.stdout.readline().split()
        assert first == word
        return int(number)


ENGINE = """
import json, sys
from surefoot.lab.workers.local import execute
from surefoot.lab.workers.jobs import WorkOrder
execute(WorkOrder.from_json(sys.argv[1]), workers=1, on_event=lambda event: print(json.dumps(event)))
"""


def started(wanted):
    """A local engine of one worker in a process of its own."""
    return warm.Process(ENGINE, [wanted.as_json()])


def events_of(engine):
    """What it was told, when it has ended."""
    with engine:
        printed, errors = engine.communicate()
    assert engine.returncode == 0, errors
    return [json.loads(line) for line in printed.splitlines()]


def order(store, recipe=SMALL, seeds=(0,), task="toy"):
    return WorkOrder(
        task=task,
        root=None,
        jobs=jobs_of(recipe, seeds),
        store=str(store),
        cache=str(store / "cache"),
    )


def specs(wanted):
    task = task_named(wanted.task)
    return wanted.specs(task.name, task.identity)


def results(wanted):
    """All that the order's networks came to, as bytes: weights and logits by seed and name."""
    store, found = Store(Path(wanted.store)), {}
    for spec in specs(wanted):
        assert store.is_done(spec), spec
        for name, tensor in load_file(store.weights_file(spec)).items():
            found[spec.seed, name] = tensor.numpy().tobytes()
        for split in PREDICTED:
            found[spec.seed, split] = store.predictions(spec, split).logits.tobytes()
    return found


def epochs_logged(wanted):
    """(seed, phase, epoch) of every line of the logs."""
    store = Store(Path(wanted.store))
    return [
        (found.seed, entry["phase"], entry["epoch"])
        for found in store.networks()
        for entry in found.log
        if "epoch" in entry
    ]
