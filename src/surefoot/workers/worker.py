"""A process that trains: reads an order from standard input, then the numbers of the jobs to do, a line each.

    python -m surefoot.workers.worker

Writes an event per line to standard output, and ends with its input.

SIGTERM and SIGINT let it save a checkpoint and end, and so does the end of the process that started it;
SIGKILL costs at most the seconds since the last one. What else is printed, as by a user's network, goes to
standard error.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from surefoot.errors import InputError
from surefoot.io import ClaimedError
from surefoot.store.store import Store
from surefoot.training.loop import Progress, StoppedError
from surefoot.workers.build import Listener, TaskContext
from surefoot.workers.jobs import STOPPED, WorkOrder
from surefoot.workers.produce import produce, score_novelty

Say = Callable[..., None]


class _Stop:
    """Set by a signal or by our parent's end, read after each step."""

    def __init__(self) -> None:
        self.asked = False
        self.parent = os.getppid()

    def __call__(self, *_: Any) -> bool:
        return self.asked or os.getppid() != self.parent

    def ask(self, *_: Any) -> None:
        self.asked = True


def main() -> int:
    """Carry out the order; 0 when done, 2 for a user's mistake, 3 when stopped."""
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.ask)
    order = WorkOrder.from_json(sys.stdin.readline())
    say = _events()
    try:
        _execute(order, stop, say)
    except InputError as error:
        say("error", message=str(error))
        return 2
    except (StoppedError, BrokenPipeError):  # the latter: nobody is there to hear
        return STOPPED
    return 0


def _execute(order: WorkOrder, stop: _Stop, say: Say) -> None:
    torch.set_num_threads(1)
    context = TaskContext.open(order)
    store = Store(Path(order.store))
    specs = order.specs(context.task.name, context.task.identity)
    store.request(specs)
    say("ready")
    for line in iter(sys.stdin.readline, ""):
        job = int(line)
        if stop():
            raise StoppedError
        send = partial(say, job=job, seed=specs[job].seed)
        send("start")
        try:
            produce(specs[job], context, store, listener=_listener(send, stop))
            if order.jobs[job].novelty:
                score_novelty(specs[job], context, store, order.jobs[job].novelty)
            send("done")
        except ClaimedError:
            send("elsewhere")


def _listener(send: Say, stop: _Stop) -> Listener:
    def progress(phase: str, progress: Progress) -> None:
        send("epoch", phase=phase, **vars(progress))

    return Listener(progress, lambda report: send("weights", report=report), stop)


def _events() -> Say:
    """Keep standard output for events alone; from now on it is standard error to everybody else."""
    pipe = os.dup(1)
    os.dup2(2, 1)

    def say(event: str, **facts: Any) -> None:
        os.write(pipe, (json.dumps({"event": event, **facts}) + "\n").encode())

    return say


if __name__ == "__main__":
    sys.exit(main())
