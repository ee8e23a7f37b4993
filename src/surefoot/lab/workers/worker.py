"""A process that trains: reads an order from standard input, then the numbers of jobs, one per line.

    python -m surefoot.lab.workers.worker

It writes one event per line to standard output and ends when its input ends.

On SIGTERM or SIGINT, or when its parent process has ended, it saves a checkpoint and ends; SIGKILL loses at
most the seconds since the last checkpoint. Anything else that is printed, such as by a user's network, goes
to standard error.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any

import torch

from surefoot.errors import InputError, described
from surefoot.io import ClaimedError
from surefoot.lab.recipes.recipe import Spec
from surefoot.lab.store.store import Store
from surefoot.lab.training.loop import Progress, StoppedError
from surefoot.lab.variants.build import Listener, TaskContext
from surefoot.lab.workers.jobs import STOPPED, Job, WorkOrder
from surefoot.lab.workers.produce import complete, open_context, produce
from surefoot.registry import search_in

Send = Callable[..., None]  # takes an event's name and its facts
Stop = Callable[[], bool]  # whether to stop; called after each training step


@contextmanager
def stop_on(*signals: signal.Signals) -> Iterator[Stop]:
    """While inside, these signals only make the yielded function return True."""
    stopped = False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True

    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield lambda: stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_job(spec: Spec, job: Job, context: TaskContext, store: Store, *, send: Send, stop: Stop) -> None:
    """Train a network and compute what is needed from it; `send` gets its epochs and its weights' report."""

    def on_epoch(phase: str, progress: Progress) -> None:
        send("epoch", phase=phase, **vars(progress))

    listener = Listener(on_epoch, lambda report: send("weights", report=report), stop)
    produce(spec, context, store, listener=listener)
    complete(spec, job, context, store)


def main() -> int:
    """Execute the order; 0 when done, 1 for an unexpected error, 2 for a user's mistake, 3 when stopped."""
    parent = os.getppid()
    with stop_on(signal.SIGTERM, signal.SIGINT) as stopped:
        with suppress(OSError):  # a current folder that was removed
            search_in(Path.cwd())
        order = WorkOrder.from_json(sys.stdin.readline())
        pipe = os.dup(1)
        os.dup2(2, 1)  # all other output goes to standard error

        def send(event: str, **facts: Any) -> None:
            os.write(pipe, (json.dumps({"event": event, **facts}) + "\n").encode())

        try:
            _execute(order, lambda: stopped() or os.getppid() != parent, send)
        except InputError as error:
            send("error", message=str(error))
            return 2
        except (StoppedError, BrokenPipeError):  # the latter: the parent process has ended
            return STOPPED
        except Exception as error:  # noqa: BLE001 whatever it is, such as of a user's network
            failed = f"a training process failed ({described(error)}); finished networks are saved"
            send("error", message=failed, traceback="".join(format_exception(error)))
            return 1
        return 0


def _execute(order: WorkOrder, stop: Stop, send: Send) -> None:
    torch.set_num_threads(1)
    context = open_context(order)
    store = Store(Path(order.store))
    specs = order.specs(context.task.name, context.task.identity)
    store.request(specs)
    send("ready")
    for line in iter(sys.stdin.readline, ""):
        job = int(line)
        if stop():
            raise StoppedError
        send_of_job = partial(send, job=job, seed=specs[job].seed)
        send_of_job("start")
        try:
            run_job(specs[job], order.jobs[job], context, store, send=send_of_job, stop=stop)
            send_of_job("done")
        except ClaimedError:
            send_of_job("elsewhere")
        except InputError as error:
            send_of_job("failed", message=str(error))
            raise


if __name__ == "__main__":
    sys.exit(main())
