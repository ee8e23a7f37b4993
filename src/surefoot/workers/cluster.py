"""A Ray cluster: connecting, resources per network, and whether its nodes can take part."""

import importlib
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from surefoot import __version__
from surefoot.errors import InputError
from surefoot.io import ClaimedError
from surefoot.recipes.recipe import Spec
from surefoot.store.remote import Remote
from surefoot.store.store import Store
from surefoot.training.loop import Progress, StoppedError
from surefoot.workers.build import Listener, TaskContext
from surefoot.workers.jobs import Event, WorkOrder
from surefoot.workers.produce import produce, score_novelty

SECONDS_BETWEEN_REPORTS = 0.25  # epochs may last milliseconds, and a message takes one


def probe_node(text: str, mark: str) -> dict[str, Any]:
    """What the driver must know of a node before it is given work."""
    return {
        "surefoot": __version__,
        "torch": version("torch"),
        "lacks": _lacks(WorkOrder.from_json(text), mark),
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
    if lacks := _lacks(WorkOrder.from_json(text), mark):  # it may have joined since the others were looked at
        raise InputError(f"a node {lacks}")
    order, context, store, specs = _opened(text)
    spec, novelty = specs[job], order.jobs[job].novelty
    if stop():
        raise StoppedError
    reports.facts["seed"] = spec.seed
    reports("start")
    _fetch((spec, *spec.needs()), order, store)
    produce(spec, context, store, listener=_listener(reports, stop))
    if novelty:
        score_novelty(spec, context, store, novelty)
    if order.remote is not None:
        Remote(order.remote).send(spec, store)


def _fetch(specs: tuple[Spec, ...], order: WorkOrder, store: Store) -> None:
    """What another machine has made, where each has a copy of the store."""
    if order.remote is not None:
        for spec in specs:
            Remote(order.remote).fetch(spec, store)


@lru_cache(maxsize=1)
def _opened(text: str) -> tuple[WorkOrder, TaskContext, Store, list[Spec]]:
    """Opened once for all the networks that this process makes of an order."""
    order = WorkOrder.from_json(text)
    context = TaskContext.open(order)
    specs = order.specs(context.task.name, context.task.identity)
    if order.remote is not None:
        return order, context, Remote(order.remote).local_copy(order.cache_path), specs
    store = Store(Path(order.store))
    store.request(specs)
    return order, context, store, specs


def _lacks(order: WorkOrder, mark: str) -> str | None:
    """What this machine cannot see of all that it needs, as the end of a sentence."""
    place = order.remote or order.store
    if not Remote(place).has_marker(mark):
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


OBJECT_STORE = 100 * 2**20  # bytes; no arrays go through it
SECONDS_TO_ANSWER = 120.0  # for a node that must first start Python and torch
GPUS_UNLESS_GIVEN = 0.5  # as the local engine: one network of this size cannot fill a GPU (docs/log.md)
ONE_THREAD = {
    "env_vars": {"OMP_NUM_THREADS": "1"}
}  # as in the local engine, so that sums have the same order
ADDRESSES = "HOST:PORT as 'ray start --head' says it, ray://HOST:PORT, or auto"

Nodes = dict[str, Mapping[str, Any]]  # those alive, by Ray's id


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Which cluster, and what a network takes of it."""

    address: str | None = None  # None: $RAY_ADDRESS, or else one of our own on this machine
    cpus: float = 1.0
    gpus: float | None = None  # None: half of one, where there are any to be used
    most: int | None = None  # networks at a time; None: as many as the cluster takes

    def __post_init__(self) -> None:
        for name, value in (("CPUs", self.cpus), ("GPUs", self.gpus or 0.0)):
            if not (0 <= value <= 1 or (value > 1 and value % 1 == 0)):
                raise InputError(f"{name} per network are {value!r}; allowed: up to 1, or a whole number")


@dataclass(frozen=True)
class Resources:
    """What one network takes of a node."""

    device: str
    cpus: float
    gpus: float

    def fits(self, node: Mapping[str, Any]) -> bool:
        """Whether the node has that much when it is idle."""
        have = node["Resources"]
        return bool(have.get("CPU", 0.0) >= self.cpus and have.get("GPU", 0.0) >= self.gpus)

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")


def load_ray(cluster: Cluster) -> Any:
    """The module, which reads these when it is first imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if is_own(cluster):
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # so that it listens on 127.0.0.1 alone
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise InputError("the engine 'ray' needs Ray: pip install 'surefoot[ray]'") from error


@contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """Ray, connected; as it is where this process has connected it before."""
    ray, address = load_ray(cluster), _address(cluster)
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": ONE_THREAD}
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            _start(ray, cluster, quiet)
        else:
            _reach(ray, address, quiet)
        _on_sigterm(signal.default_int_handler)  # as Ctrl-C; Ray's own handler aborts with a trace
        ray._private.worker._worker_logs_enabled = False  # or what befalls nodes is printed among the results
        yield ray
    finally:
        ray.shutdown()
        _on_sigterm(before or signal.SIG_DFL)


def _on_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # no other may set one
        signal.signal(signal.SIGTERM, handler)


def is_own(cluster: Cluster) -> bool:
    """Whether it is one that we start on this machine, for us alone."""
    return _address(cluster) is None


def _address(cluster: Cluster) -> str | None:
    return cluster.address or os.environ.get("RAY_ADDRESS")


def _start(ray: Any, cluster: Cluster, quiet: dict[str, Any]) -> None:
    os.environ.setdefault(
        "RAY_AUTH_TOKEN", secrets.token_hex(16)
    )  # or Ray would put one into the user's home
    cpus = max(cluster.cpus, len(os.sched_getaffinity(0)))
    size: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE}
    ray.init(address="local", include_dashboard=False, **size, **quiet)


def _reach(ray: Any, address: str, quiet: dict[str, Any]) -> None:
    if address != "auto":
        _refuse_unreachable(address)
    try:
        ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises many kinds: other versions, other Pythons, nothing there
        reason = " ".join(str(error).split()).rstrip(".")
        token = "one that asks for a token needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        raise InputError(f"cannot connect to Ray at {address!r}: {reason}; {token}") from error


def _refuse_unreachable(address: str) -> None:
    """Said at once; Ray would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"--address is {address!r}; allowed: {ADDRESSES}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, UnicodeError) as error:  # the latter for a host's name that is too long
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"no Ray cluster answers at {address!r}: {reason}; allowed: {ADDRESSES}") from error


def alive(ray: Any) -> Nodes:
    """The cluster's nodes as Ray knows them now."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def resources_of(cluster: Cluster, device: str, nodes: Nodes) -> Resources:
    """What a network takes: `auto` is a GPU's half where the cluster has any, and a CPU otherwise."""
    gpus = cluster.gpus
    if device == "auto":
        any_gpu = any(node["Resources"].get("GPU", 0.0) for node in nodes.values())
        device = "cuda" if (any_gpu if gpus is None else gpus > 0) else "cpu"
    if gpus is None:
        gpus = GPUS_UNLESS_GIVEN if device == "cuda" else 0.0
    if device == "cuda" and not gpus:
        raise InputError("GPUs per network are 0 and the device is 'cuda'; allowed: more than 0, or cpu")
    return Resources(device, cluster.cpus, gpus)


def check_nodes(
    ray: Any, order: WorkOrder, mark: str, share: Resources, *, remark: Callable[[str], None]
) -> None:
    """Ask every node that could take a network whether it sees what it needs; one that does not is named."""
    nodes = {key: node for key, node in alive(ray).items() if share.fits(node)}
    text = order.as_json()
    strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    asked = {
        key: ray.remote(probe_node)
        .options(num_cpus=0, scheduling_strategy=strategy(key, soft=False), runtime_env=ONE_THREAD)
        .remote(text, mark)
        for key in nodes
    }
    for key, reference in asked.items():
        node = called(nodes[key])
        try:
            answer = ray.get(reference, timeout=SECONDS_TO_ANSWER)
        except ray.exceptions.GetTimeoutError as error:
            raise InputError(f"{node} did not answer within {SECONDS_TO_ANSWER:.0f} seconds") from error
        except ray.exceptions.RayTaskError as error:
            raise InputError(_cannot_look(node, error)) from error
        except ray.exceptions.RayError:
            continue  # it was lost meanwhile, as it may be at any later moment
        if answer["lacks"]:
            raise InputError(f"{node} {answer['lacks']}")
        if answer["surefoot"] != __version__:
            raise InputError(f"{node} has surefoot {answer['surefoot']}; needed: {__version__}, as here")
        if answer["torch"] != version("torch"):
            have = f"{node} has torch {answer['torch']}, and this machine {version('torch')}"
            remark(f"{have}: networks may differ in their last digits")


def called(node: Mapping[str, Any]) -> str:
    """A node's name for people."""
    return f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def cause_of(error: Any) -> str:
    """Ray's word on what a task raised, in one line."""
    cause = getattr(error, "cause", None) or error
    first = str(cause).strip().partition("\n")[0].rstrip(".")
    return f"{type(cause).__name__}: {first}"


def _cannot_look(node: str, error: Exception) -> str:
    cause = cause_of(error)
    if "No module named 'surefoot" in str(error):
        return f"{node} has no surefoot; needed: {__version__}, as here"
    return f"{node} cannot take part: {cause}"
