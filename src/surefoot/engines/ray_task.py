"""What a node of a Ray cluster does: look whether it can take part, and make a network."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from surefoot.engines.making import Listener, Workshop
from surefoot.engines.novelty import score_novelty
from surefoot.engines.orders import Event, Order
from surefoot.engines.produce import produce
from surefoot.errors import InputError
from surefoot.recipes import Spec
from surefoot.store import ClaimedError, Store
from surefoot.store.remote import Remote
from surefoot.training.loop import Progress, StoppedError
from surefoot.version import VERSION

SECONDS_BETWEEN_REPORTS = 0.25  # epochs may last milliseconds, and a message takes one


def look(text: str, mark: str) -> dict[str, Any]:
    """What the driver must know of a node before it is given work."""
    return {
        "surefoot": VERSION,
        "torch": version("torch"),
        "lacks": _lacks(Order.from_json(text), mark),
    }


def make_network(text: str, job: int, board: Any, mark: str) -> Event:
    """Make one of the order's networks; how it ended, as an event.

    The driver's `ray.cancel` arrives as SIGINT, on which a checkpoint is saved.
    """
    reports = _Reports(board, job)
    with _stoppable() as stop:
        try:
            _make(text, job, reports, mark, stop)
            ended: Event = {"event": "done"}
        except ClaimedError:
            ended = {"event": "elsewhere"}
        except StoppedError:
            ended = {"event": "stopped"}
        except InputError as error:
            ended = {"event": "error", "message": str(error)}
        except SystemExit as error:  # which would end Ray's process, and be taken for a crash
            ended = {"event": "error", "message": f"a training process ended with code {error.code}"}
        reports.close()
    return {**ended, **reports.facts}


def _make(text: str, job: int, reports: "_Reports", mark: str, stop: "_Stop") -> None:
    torch.set_num_threads(1)
    if lacks := _lacks(Order.from_json(text), mark):  # it may have joined since the others were looked at
        raise InputError(f"a node {lacks}")
    order, workshop, store, specs = _opened(text)
    spec, novelty = specs[job], order.jobs[job].novelty
    if stop():
        raise StoppedError
    reports.facts["seed"] = spec.seed
    reports("start")
    _fetch((spec, *spec.needs()), order, store)
    produce(spec, workshop, store, listener=_listener(reports, stop))
    if novelty:
        score_novelty(spec, workshop, store, novelty)
    if order.remote is not None:
        Remote(order.remote).send(spec, store)


def _fetch(specs: tuple[Spec, ...], order: Order, store: Store) -> None:
    """What another machine has made, where each has a copy of the store."""
    if order.remote is not None:
        for spec in specs:
            Remote(order.remote).fetch(spec, store)


@lru_cache(maxsize=1)
def _opened(text: str) -> tuple[Order, Workshop, Store, list[Spec]]:
    """Opened once for all the networks that this process makes of an order."""
    order = Order.from_json(text)
    workshop = Workshop.open(order)
    specs = order.specs(workshop.task.name, workshop.task.identity)
    if order.remote is not None:
        return order, workshop, Remote(order.remote).copy_in(order.cache_path), specs
    store = Store(Path(order.store))
    store.want(specs)
    return order, workshop, store, specs


def _lacks(order: Order, mark: str) -> str | None:
    """What this machine cannot see of all that it needs, as the end of a sentence."""
    place = order.remote or order.store
    if not Remote(place).sees(mark):
        return (
            f"does not see the store {place}; needed: a folder that all nodes share, at the same path, "
            "or a URL such as s3://bucket/runs"
        )
    files = [order.root, order.weights, order.task if order.task.lower().endswith(".toml") else None]
    for path in files:
        if path is not None and not Path(path).exists():
            return f"does not see {path}; needed: the same path on every node"
    return None


class _Stop:
    """Set by a signal, read after each step."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def ask(self, *_: Any) -> None:
        self.asked = True


@contextmanager
def _stoppable() -> Iterator[_Stop]:
    stop = _Stop()
    before = signal.signal(signal.SIGINT, stop.ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class _Reports:
    """Events on their way to the board, some at a time."""

    def __init__(self, board: Any, job: int) -> None:
        self.board = board
        self.facts: Event = {"job": job, "pid": os.getpid()}
        self.held: list[Event] = []
        self.sent_at = 0.0

    def __call__(self, event: str, **more: Any) -> None:
        self.held.append({"event": event, **self.facts, **more})
        if time.monotonic() - self.sent_at > SECONDS_BETWEEN_REPORTS:
            self.sent_at = time.monotonic()
            self.board.post.remote(self.held)
            self.held = []

    def close(self) -> None:
        """Send the rest, and wait until it was heard: how the task ended must not overtake it."""
        import ray

        with suppress(ray.exceptions.RayError):  # where the board was lost, so was whoever looks at it
            ray.get(self.board.post.remote(self.held), timeout=10)


def _listener(reports: _Reports, stop: _Stop) -> Listener:
    def progress(phase: str, progress: Progress) -> None:
        reports("epoch", phase=phase, **vars(progress))

    return Listener(progress, lambda report: reports("weights", report=report), stop)
