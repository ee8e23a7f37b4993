"""Small orders, workers that are easy to kill, and what a finished store holds."""

import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file

from surefoot.recipes.recipe import Recipe
from surefoot.store.store import Store
from surefoot.tasks import task_named
from surefoot.tasks.task import Split
from surefoot.workers.jobs import WorkOrder, jobs_of

PREDICTED = (Split.VAL, Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
SMALL = Recipe(network="mlp", width=16, epochs=2, learning_rate=0.05)

# Starting Python and torch takes seconds, and each life of a worker should take a fraction of one: this process
# has them loaded, and forks a worker for each order that it is given. It says the worker's number, then how it ended.
NURSERY = """
import os, sys
import torch
import torch._dynamo  # which an optimiser loads when it is first used
from surefoot.workers import worker
from surefoot.training import loop
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
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([sys.executable, "-c", NURSERY], text=True, bufsize=1, **pipes)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

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
            found[spec.seed, split] = store.predictions(spec, split).logits.numpy().tobytes()
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
