"""What runs on the nodes of a Ray cluster: checking a node, training a network, reporting progress."""

import os
import signal
import time
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from surefoot import __version__
from surefoot.errors import InputError
from surefoot.io import ClaimedError
from surefoot.lab.recipes.recipe import Spec
from surefoot.lab.store.remote import Remote
from surefoot.lab.store.store import Store
from surefoot.lab.training.loop import StoppedError
from surefoot.lab.variants.build import TaskContext
from surefoot.lab.workers.jobs import Event, WorkOrder
from surefoot.lab.workers.produce import open_context
from surefoot.lab.workers.worker import Stop, run_job, stop_on

SECONDS_BETWEEN_REPORTS = 0.25  # an epoch may take milliseconds, and so does a message


def probe_node(text: str, marker: str) -> dict[str, Any]:
    """What the driver must know about a node before giving it work."""
    try:
        lacks = _missing_input(WorkOrder.from_json(text), marker)
    except InputError as error:  # a plugin that is not on this node
        lacks = f"reports: {error}"
    return {"surefoot": __version__, "torch": version("torch"), "lacks": lacks}


def train_network(text: str, job: int, queue: Any, marker: str) -> Event:
    """Train one network of the order and return how it ended, as an event.

    The driver's `ray.cancel` arrives as SIGINT; a checkpoint is then saved.
    """
    reports = _Reports(queue, job)
    with stop_on(signal.SIGINT) as stop:
        try:
            _train(text, job, reports, marker, stop)
            ended: Event = {"event": "done"}
        except ClaimedError:
            ended = {"event": "elsewhere"}
        except StoppedError:
            ended = {"event": "stopped"}
        except InputError as error:
            ended = {"event": "error", "message": str(error)}
        except SystemExit as error:  # would end Ray's process and look like a crash
            ended = {"event": "error", "message": f"a training process ended with code {error.code}"}
        reports.close()
    return {**ended, **reports.facts}


def _train(text: str, job: int, reports: "_Reports", marker: str, stop: Stop) -> None:
    torch.set_num_threads(1)
    missing = _missing_input(WorkOrder.from_json(text), marker)
    if missing:  # the node may have joined after the check
        raise InputError(f"a node {missing}")
    order, context, store, specs = _open(text)
    spec = specs[job]
    if stop():
        raise StoppedError
    reports.facts["seed"] = spec.seed
    reports("start")
    if order.remote is not None:
        for needed in (spec, *spec.needs()):  # what another machine has already trained
            Remote(order.remote).fetch(needed, store)
    run_job(spec, order.jobs[job], context, store, send=reports, stop=stop)
    if order.remote is not None:
        Remote(order.remote).send(spec, store)


@lru_cache(maxsize=1)
def _open(text: str) -> tuple[WorkOrder, TaskContext, Store, list[Spec]]:
    """Open the order's task and store, once for all the networks that this process trains."""
    order = WorkOrder.from_json(text)
    context = open_context(order)
    specs = order.specs(context.task.name, context.task.identity)
    if order.remote is not None:
        return order, context, Remote(order.remote).local_copy(order.cache_path), specs
    store = Store(Path(order.store))
    store.request(specs)
    return order, context, store, specs


def _missing_input(order: WorkOrder, marker: str) -> str | None:
    """The first input that this machine cannot see, as the end of a sentence; None if it sees all."""
    location = order.remote or order.store
    if not Remote(location).has_marker(marker):
        return (
            f"does not see the store {location}; needed: a folder that all nodes share, at the same path, "
            "or a URL such as s3://bucket/runs"
        )
    files = [order.root, order.weights, order.task if order.task.lower().endswith(".toml") else None]
    for path in files:
        if path is not None and not Path(path).exists():
            return f"does not see {path}; needed: the same path on every node"
    return None


class _Reports:
    """Sends events to the queue, several per message."""

    def __init__(self, queue: Any, job: int) -> None:
        self.queue = queue
        self.facts: Event = {"job": job, "pid": os.getpid()}
        self.pending: list[Event] = []
        self.sent_at = 0.0

    def __call__(self, event: str, **more: Any) -> None:
        self.pending.append({"event": event, **self.facts, **more})
        if time.monotonic() - self.sent_at > SECONDS_BETWEEN_REPORTS:
            self.sent_at = time.monotonic()
            self.queue.post.remote(self.pending)
            self.pending = []

    def close(self) -> None:
        """Send the rest and wait until it has arrived, so that the task's result does not overtake it."""
        import ray

        with suppress(ray.exceptions.RayError):  # where the queue was lost, so was its reader
            ray.get(self.queue.post.remote(self.pending), timeout=10)
