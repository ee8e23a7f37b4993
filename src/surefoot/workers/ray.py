"""Networks trained on a Ray cluster: one task per network."""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from surefoot.errors import InputError
from surefoot.io import make_folder
from surefoot.store.remote import Remote
from surefoot.workers.cluster import (
    ONE_THREAD,
    Cluster,
    Nodes,
    Resources,
    alive,
    called,
    cause_of,
    check_nodes,
    connected,
    is_own,
    make_network,
    resources_of,
)
from surefoot.workers.jobs import Board, Event, Queue, WorkOrder

RETRIES = 3  # by Ray, of a task whose process or node was lost
SECONDS_BETWEEN_LOOKS = 0.5  # at what the board has heard
SECONDS_TO_ANSWER = 10.0  # for the board; after them it is looked at again
SECONDS_TO_STOP = 120.0  # for a step, and for a checkpoint on its way to a slow disk


@contextmanager
def engine(cluster: Cluster) -> Iterator[Callable[[WorkOrder, Callable[[Event], None]], None]]:
    """Carries out orders, one after another, on a cluster that is connected to when there is work."""
    with ExitStack() as stack:

        def execute_next(order: WorkOrder, on_event: Callable[[Event], None]) -> None:
            if order.jobs:
                stack.enter_context(connected(cluster))
            execute(order, cluster=cluster, on_event=on_event)

        yield execute_next


def execute(order: WorkOrder, *, cluster: Cluster, on_event: Callable[[Event], None]) -> None:
    """Have the order's jobs done by a cluster, teachers before students, and wait until all are done.

    `on_event` hears of each epoch and each network done, of nodes lost, and of waiting for some. An error of
    one network stops the others, which keep their checkpoints; so does Ctrl-C.
    """
    if not order.jobs:
        return
    place = order.remote or str(Path(order.store).absolute())
    if order.remote is None:
        make_folder(Path(place))
    with connected(cluster) as ray, Remote(place).marked() as mark:
        nodes = alive(ray)
        share = resources_of(cluster, order.device, nodes)
        wanted = _in_full(replace(order, device=share.device))
        if not any(share.fits(node) for node in nodes.values()) and is_own(cluster):
            raise InputError(f"a network is to have {share}, which this machine does not have")
        if not is_own(cluster) or len(nodes) > 1:
            check_nodes(ray, wanted, mark, share, remark=lambda text: on_event(_note(text)))
        _Run(ray, wanted, share, mark, on_event, cluster.most or len(order.jobs)).execute()


class _Run:
    """An order being carried out."""

    def __init__(
        self,
        ray: Any,
        order: WorkOrder,
        share: Resources,
        mark: str,
        on_event: Callable[[Event], None],
        most: int,
    ) -> None:
        self.ray, self.on_event, self.most, self.share = ray, on_event, most, share
        self.order, self.mark = ray.put(order.as_json()), mark
        self.queue = Queue(order)
        self.seeds = [job.seed for job in order.jobs]
        self.board = _board(ray)
        self.asked: tuple[Any, list[Any]] | None = None  # the board, and which tasks had ended by then
        self.running: dict[Any, int] = {}
        self.nodes_at_start: dict[int, set[str]] = {}
        self.nodes: Nodes = {}
        self.ready = False

    def execute(self) -> None:
        """Hand out jobs as their teachers are done, until none is left."""
        try:
            while self.queue.waiting or self.running:
                self._look_at_nodes()
                self._submit()
                for reference in self._pass_on(self._wait()):
                    self._settle(self.running.pop(reference), reference)
        finally:
            self._stop()

    def _submit(self) -> None:
        make = self.ray.remote(make_network).options(
            num_cpus=self.share.cpus, num_gpus=self.share.gpus, max_retries=RETRIES, runtime_env=ONE_THREAD
        )
        while len(self.running) < self.most and (job := self.queue.take_now()) is not None:
            self.nodes_at_start[job] = set(self.nodes)
            self.running[make.remote(self.order, job, self.board, self.mark)] = job

    def _wait(self) -> list[Any]:
        if not self.running:
            time.sleep(SECONDS_BETWEEN_LOOKS)  # all that is left is being made elsewhere
            return []
        running = list(self.running)
        ended, _ = self.ray.wait(running, num_returns=len(running), timeout=0, fetch_local=False)
        if ended:
            return list(ended)
        return list(self.ray.wait(running, timeout=SECONDS_BETWEEN_LOOKS, fetch_local=False)[0])

    def _pass_on(self, ended: list[Any]) -> list[Any]:
        """Tell what the board has heard; the tasks of which all is told now.

        A board that does not answer in time has taken its events all the same, so it is the same answer that
        is waited for again. While it is brought back there is nothing to tell.
        """
        self.asked = self.asked or (self.board.take.remote(), ended)
        answer, ended = self.asked
        try:
            events = self.ray.get(answer, timeout=SECONDS_TO_ANSWER)
        except self.ray.exceptions.GetTimeoutError:
            return []
        except self.ray.exceptions.RayError:
            events = []
        self.asked = None
        for event in events:
            if not self.ready:
                self.ready = True
                self.on_event({"event": "ready"})
            if event["job"] not in self.queue.done:
                self.on_event(event)
        return ended

    def _settle(self, job: int, reference: Any) -> None:
        try:
            event = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise InputError(
                f"{self._called(job)} failed: {cause_of(error)}; what was done is kept"
            ) from error
        except self.ray.exceptions.RayError as error:
            if self.nodes_at_start[job] <= alive(self.ray).keys():  # no node is to blame
                times = f"{RETRIES + 1} times"
                raise InputError(
                    f"{self._called(job)} failed {times}: {cause_of(error)}; what was done is kept"
                ) from error
            self.queue.put_back(job)
            return
        if event["event"] == "error":
            raise InputError(event["message"])
        if event["event"] == "done":
            self.queue.finish(job)
            self.on_event(event)
        elif self.queue.put_back(job) and event["event"] == "elsewhere":
            self.on_event(event)

    def _look_at_nodes(self) -> None:
        now = alive(self.ray)
        for key in self.nodes.keys() - now.keys():
            self.on_event(_note(f"{called(self.nodes[key])} was lost; others make what it was making"))
        could = any(self.share.fits(node) for node in self.nodes.values()) or not self.nodes
        if could and not any(self.share.fits(node) for node in now.values()):
            self.on_event(_note(f"waiting for a node that has {self.share} for a network"))
        self.nodes = now

    def _stop(self) -> None:
        """Have what still runs save its checkpoint and end, and wait for it."""
        for reference in self.running:
            self.ray.cancel(reference)
        if self.running:
            running = list(self.running)
            self.ray.wait(running, num_returns=len(running), timeout=SECONDS_TO_STOP, fetch_local=False)

    def _called(self, job: int) -> str:
        return f"the network with seed {self.seeds[job]}"


def _board(ray: Any) -> Any:
    """On the driver's node, whose loss would be ours too; made anew if its process is lost."""
    strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    here = strategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Board).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()


def _in_full(order: WorkOrder) -> WorkOrder:
    """With paths that mean the same in another folder."""
    paths: dict[str, str | None] = {
        name: getattr(order, name) for name in ("root", "store", "cache", "weights")
    }
    if order.task.lower().endswith(".toml"):
        paths["task"] = order.task
    full: dict[str, Any] = {
        name: str(Path(path).absolute()) for name, path in paths.items() if path is not None
    }
    return replace(order, **full)


def _note(text: str) -> Event:
    return {"event": "note", "text": text}
