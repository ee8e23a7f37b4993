"""Training on a Ray cluster, one task per network: resources, checks of the nodes, and the driver's loop."""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from surefoot import __version__
from surefoot.errors import InputError, failed_elsewhere
from surefoot.io import make_folder
from surefoot.lab.store.remote import Remote
from surefoot.lab.workers.event_queue import EventQueue
from surefoot.lab.workers.jobs import Event, Queue, WorkOrder
from surefoot.lab.workers.ray_node import probe_node, train_network
from surefoot.predictions.ray_cluster import ONE_THREAD, cluster_address, connected

OBJECT_STORE = 100 * 2**20  # bytes; no arrays are passed through it
DEFAULT_GPUS = 0.5  # as the local engine: one network of this size cannot fill a GPU (docs/log.md)
RETRIES = 3  # by Ray, of a task whose process or node was lost
SECONDS_TO_PROBE = 120.0  # a node must first start Python and import torch
SECONDS_BETWEEN_CHECKS = 0.5  # of the event queue
SECONDS_TO_ANSWER = 10.0  # for the event queue; then it is called again
SECONDS_TO_STOP = 120.0  # for a step, and for a checkpoint to a slow disk

Nodes = dict[str, Mapping[str, Any]]  # those alive, by Ray's id
OnEvent = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Which cluster to use, and what a network takes of it."""

    address: str | None = None  # None: $RAY_ADDRESS, or a cluster of our own on this machine
    cpus: float = 1.0
    gpus: float | None = None  # None: half of one where the cluster has GPUs
    most: int | None = None  # networks at a time; None: as many as the cluster takes

    def __post_init__(self) -> None:
        for name, value in (("CPUs", self.cpus), ("GPUs", self.gpus or 0.0)):
            if not (0 <= value <= 1 or (value > 1 and value % 1 == 0)):
                raise InputError(f"{name} per network are {value!r}; allowed: up to 1, or a whole number")

    @property
    def is_own(self) -> bool:
        """Whether we start it on this machine."""
        return cluster_address(self.address) is None

    def connected(self) -> AbstractContextManager[Any]:
        """Ray, connected to this cluster."""
        return connected(self.address, cpus=self.cpus, object_store_bytes=OBJECT_STORE)


@dataclass(frozen=True)
class Resources:
    """What one network takes of a node."""

    device: str
    cpus: float
    gpus: float

    def fits(self, node: Mapping[str, Any]) -> bool:
        """Whether the node has that much when it is idle."""
        total = node["Resources"]
        return bool(total.get("CPU", 0.0) >= self.cpus and total.get("GPU", 0.0) >= self.gpus)

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")


def alive(ray: Any) -> Nodes:
    """The cluster's nodes that are alive now."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def resources_of(cluster: Cluster, device: str, nodes: Nodes) -> Resources:
    """What a network takes: `auto` is half a GPU where the cluster has any, otherwise a CPU."""
    gpus = cluster.gpus
    if device == "auto":
        any_gpu = any(node["Resources"].get("GPU", 0.0) for node in nodes.values())
        device = "cuda" if (any_gpu if gpus is None else gpus > 0) else "cpu"
    if gpus is None:
        gpus = DEFAULT_GPUS if device == "cuda" else 0.0
    if device == "cuda" and not gpus:
        raise InputError("GPUs per network are 0 and the device is 'cuda'; allowed: more than 0, or cpu")
    return Resources(device, cluster.cpus, gpus)


def check_nodes(
    ray: Any, order: WorkOrder, marker: str, resources: Resources, *, remark: Callable[[str], None]
) -> None:
    """Check that every node that could train a network sees its inputs and has our version."""
    nodes = {key: node for key, node in alive(ray).items() if resources.fits(node)}
    text = order.as_json()
    references = {
        key: ray.remote(probe_node)
        .options(num_cpus=0, scheduling_strategy=_on_node(key), runtime_env=ONE_THREAD)
        .remote(text, marker)
        for key in nodes
    }
    for key, reference in references.items():
        node = _name(nodes[key])
        try:
            facts = ray.get(reference, timeout=SECONDS_TO_PROBE)
        except ray.exceptions.GetTimeoutError as error:
            raise InputError(f"{node} did not answer within {SECONDS_TO_PROBE:.0f} seconds") from error
        except ray.exceptions.RayTaskError as error:
            if "No module named 'surefoot" in str(error):
                raise InputError(f"{node} has no surefoot; needed: {__version__}, as here") from error
            raise InputError(f"{node} cannot take part: {_cause(error)}") from error
        except ray.exceptions.RayError:
            continue  # the node was lost meanwhile, as it may be at any later time
        if facts["lacks"]:
            raise InputError(f"{node} {facts['lacks']}")
        if facts["surefoot"] != __version__:
            raise InputError(f"{node} has surefoot {facts['surefoot']}; needed: {__version__}, as here")
        if facts["torch"] != version("torch"):
            have = f"{node} has torch {facts['torch']}, and this machine {version('torch')}"
            remark(f"{have}: networks may differ in their last digits")


@contextmanager
def engine(cluster: Cluster) -> Iterator[Callable[[WorkOrder, OnEvent], None]]:
    """A function that executes orders on a cluster, which is connected to when there is work."""
    with ExitStack() as stack:

        def execute_next(order: WorkOrder, on_event: OnEvent) -> None:
            if order.jobs:
                stack.enter_context(cluster.connected())
            execute(order, cluster=cluster, on_event=on_event)

        yield execute_next


def execute(order: WorkOrder, *, cluster: Cluster, on_event: OnEvent) -> None:
    """Run the order's jobs on a cluster, teachers before students, and wait until all are done.

    `on_event` is called for each epoch, each network done, lost nodes, and waiting for nodes. An error of one
    network stops the others, which save their checkpoints; so does Ctrl-C.
    """
    if not order.jobs:
        return
    location = order.remote or str(Path(order.store).absolute())
    if order.remote is None:
        make_folder(Path(location))
    with cluster.connected() as ray, Remote(location).marked() as marker:
        nodes = alive(ray)
        resources = resources_of(cluster, order.device, nodes)
        full_order = _with_absolute_paths(replace(order, device=resources.device))
        if not any(resources.fits(node) for node in nodes.values()) and cluster.is_own:
            raise InputError(f"a network needs {resources}, which this machine does not have")
        if not cluster.is_own or len(nodes) > 1:
            check_nodes(ray, full_order, marker, resources, remark=lambda text: on_event(_note(text)))
        _Run(ray, full_order, resources, marker, on_event, cluster.most or len(order.jobs)).execute()


class _Run:
    """The execution of one order."""

    def __init__(
        self,
        ray: Any,
        order: WorkOrder,
        resources: Resources,
        marker: str,
        on_event: OnEvent,
        most: int,
    ) -> None:
        self.ray, self.on_event, self.most, self.resources = ray, on_event, most, resources
        self.order, self.marker = ray.put(order.as_json()), marker
        self.jobs = Queue(order)
        self.seeds = [job.seed for job in order.jobs]
        # On the driver's node, whose loss ends us anyway; restarted if its process is lost.
        here = _on_node(ray.get_runtime_context().get_node_id())
        actor = ray.remote(EventQueue).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        self.events = actor.remote()
        # A call of the queue, and the tasks that had ended before it.
        self.pending_take: tuple[Any, list[Any]] | None = None
        self.running: dict[Any, int] = {}
        self.nodes_at_start: dict[int, set[str]] = {}
        self.nodes: Nodes = {}
        self.ready = False

    def execute(self) -> None:
        """Submit jobs as their teachers are done, until none is left."""
        try:
            while self.jobs.waiting or self.running:
                self._check_nodes()
                self._submit()
                for reference in self._report(self._wait()):
                    self._finish(self.running.pop(reference), reference)
        finally:  # running tasks save their checkpoints and end
            running = list(self.running)
            for reference in running:
                self.ray.cancel(reference)
            if running:
                options = {"timeout": SECONDS_TO_STOP, "fetch_local": False}
                self.ray.wait(running, num_returns=len(running), **options)

    def _check_nodes(self) -> None:
        now = alive(self.ray)
        for key in self.nodes.keys() - now.keys():
            self.on_event(_note(f"{_name(self.nodes[key])} was lost; other nodes take over its networks"))
        could = any(self.resources.fits(node) for node in self.nodes.values()) or not self.nodes
        if could and not any(self.resources.fits(node) for node in now.values()):
            self.on_event(_note(f"waiting for a node that has {self.resources} for a network"))
        self.nodes = now

    def _submit(self) -> None:
        train = self.ray.remote(train_network).options(
            num_cpus=self.resources.cpus,
            num_gpus=self.resources.gpus,
            max_retries=RETRIES,
            runtime_env=ONE_THREAD,
        )
        while len(self.running) < self.most and (job := self.jobs.take_now()) is not None:
            self.nodes_at_start[job] = set(self.nodes)
            self.running[train.remote(self.order, job, self.events, self.marker)] = job

    def _wait(self) -> list[Any]:
        """The tasks that have ended; waits for one, but not for long."""
        if not self.running:
            time.sleep(SECONDS_BETWEEN_CHECKS)  # other processes train all that is left
            return []
        running = list(self.running)
        ended, _ = self.ray.wait(running, num_returns=len(running), timeout=0, fetch_local=False)
        if ended:
            return list(ended)
        return list(self.ray.wait(running, timeout=SECONDS_BETWEEN_CHECKS, fetch_local=False)[0])

    def _report(self, ended: list[Any]) -> list[Any]:
        """Pass the posted events on; returns the ended tasks whose events have all been passed on.

        A queue that does not answer in time has removed its events all the same, so the next call waits for
        the same answer. While the queue is restarted there are no events.
        """
        self.pending_take = self.pending_take or (self.events.take.remote(), ended)
        reference, ended = self.pending_take
        try:
            events = self.ray.get(reference, timeout=SECONDS_TO_ANSWER)
        except self.ray.exceptions.GetTimeoutError:
            return []
        except self.ray.exceptions.RayError:
            events = []
        self.pending_take = None
        for event in events:
            if not self.ready:
                self.ready = True
                self.on_event({"event": "ready"})
            if event["job"] not in self.jobs.done:
                self.on_event(event)
        return ended

    def _finish(self, job: int, reference: Any) -> None:
        """Handle the end of a task: done, failed, or to be tried again."""
        network = f"the network with seed {self.seeds[job]}"
        try:
            event = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            failed = f"{network} failed ({_cause(error)}); finished networks are saved"
            raise failed_elsewhere(failed, str(error)) from error
        except self.ray.exceptions.RayError as error:
            if self.nodes_at_start[job] <= alive(self.ray).keys():  # it did not fail because a node was lost
                failed = f"{network} failed {RETRIES + 1} times: {_cause(error)}"
                raise InputError(f"{failed}; finished networks are saved") from error
            self.jobs.put_back(job)
            return
        if event["event"] == "error":
            raise InputError(event["message"])
        if event["event"] == "done":
            self.jobs.finish(job)
            self.on_event(event)
        elif self.jobs.put_back(job) and event["event"] == "elsewhere":
            self.on_event(event)


def _on_node(key: str) -> Any:
    """Ray's scheduling strategy for one node and no other."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(key, soft=False)


def _with_absolute_paths(order: WorkOrder) -> WorkOrder:
    """The order for a process with another working directory."""
    names = ["root", "store", "cache", "weights"] + ["task"] * order.task.lower().endswith(".toml")
    paths: dict[str, str | None] = {name: getattr(order, name) for name in names}
    absolute: dict[str, Any] = {
        n: str(Path(path).absolute()) for n, path in paths.items() if path is not None
    }
    return replace(order, **absolute)


def _name(node: Mapping[str, Any]) -> str:
    return f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _cause(error: Any) -> str:
    """What a task raised, in one line."""
    cause = getattr(error, "cause", None) or error
    first = str(cause).strip().partition("\n")[0].rstrip(".")
    return f"{type(cause).__name__}: {first}"


def _note(text: str) -> Event:
    return {"event": "note", "text": text}
