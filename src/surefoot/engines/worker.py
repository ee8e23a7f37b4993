"""A process that trains: reads an order from standard input, writes an event per line to standard output.

    python -m surefoot.engines.worker

SIGTERM and SIGINT let it save a checkpoint and end; SIGKILL costs at most the seconds since the last one.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from surefoot.engines.orders import STOPPED, Order
from surefoot.engines.produce import Listener, Workshop, produce
from surefoot.errors import InputError
from surefoot.recipes import Spec
from surefoot.store import ClaimedError, Store
from surefoot.training.loop import Progress, StoppedError


class _Stop:
    """Set by a signal, read after each step."""

    asked = False

    def __call__(self, *_: Any) -> bool:
        return self.asked

    def ask(self, *_: Any) -> None:
        self.asked = True


def main() -> int:
    """Carry out the order; 0 when done, 2 for a user's mistake, 3 when stopped."""
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.ask)
    order = Order.from_json(sys.stdin.readline())
    try:
        _carry_out(order, stop)
    except InputError as error:
        _say("error", message=str(error))
        return 2
    except StoppedError:
        return STOPPED
    return 0


def _carry_out(order: Order, stop: _Stop) -> None:
    torch.set_num_threads(1)
    workshop = Workshop.open(order)
    store = Store(Path(order.store))
    for spec in order.specs(workshop.task.name, workshop.task.identity):
        if stop():
            raise StoppedError
        _say("start", seed=spec.seed)
        try:
            produce(spec, workshop, store, listener=Listener(_teller(spec), stop))
            _say("done", seed=spec.seed)
        except ClaimedError:
            _say("elsewhere", seed=spec.seed)


def _teller(spec: Spec) -> Any:
    def tell(phase: str, progress: Progress) -> None:
        _say("epoch", seed=spec.seed, phase=phase, **vars(progress))

    return tell


def _say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
