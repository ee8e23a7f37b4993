"""How parts of files are read in parallel: threads here, or tasks on a Ray cluster."""

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from threading import Event
from typing import Any, Protocol, TypeVar

from surefoot.errors import InputError
from surefoot.streaming.accumulate import Shape
from surefoot.streaming.outcomes import Batch
from surefoot.streaming.readers import Part, batches

Tick = Callable[[int], None]
Self = TypeVar("Self")


class Mergeable(Protocol):
    """A value that says the same of many rows as of few."""

    def merged(self: Self, other: Self) -> Self: ...


Found = TypeVar("Found", bound=Mergeable)


class Engine(Protocol):
    """Carries out some work over all parts, once, and merges what it finds."""

    def __call__(
        self, parts: Sequence[Part], shape: Shape, work: Callable[[Iterator[Batch]], Found], tick: Tick
    ) -> Found: ...


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Threads:
    """An engine. Which thread reads which part is fixed, and so is the result."""

    workers: int

    def __call__(
        self, parts: Sequence[Part], shape: Shape, work: Callable[[Iterator[Batch]], Found], tick: Tick
    ) -> Found:
        stop = Event()

        def read(mine: Sequence[Part]) -> Iterator[Batch]:
            for part in mine:
                for batch in batches(part, shape):
                    if stop.is_set():
                        return
                    yield batch
                    tick(batch.logits.shape[1])

        shares = [parts[index :: self.workers] for index in range(min(self.workers, len(parts)))]
        if len(shares) == 1:
            return work(read(shares[0]))
        with ThreadPoolExecutor(len(shares)) as pool:
            futures = [pool.submit(work, read(share)) for share in shares]
            try:
                ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
                found = [each.result() for each in futures if each in ended]  # all, unless one has failed
                return reduce(lambda ours, theirs: ours.merged(theirs), found)
            finally:
                stop.set()  # where one has failed, or Ctrl-C was pressed, the others need not go on


TASKS_PER_CORE = 2
SECONDS_TO_ANSWER = 10.0


def connect(address: str | None) -> None:
    """To the cluster at the address, or to one on this machine that is started now and no other can reach."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address is None:  # or Ray would listen to the network, whatever address it is given
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError as error:
        raise InputError("--engine ray needs Ray; to get it: pip install 'surefoot[ray]'") from error
    if address is not None:
        _check_reachable(address)
    own: dict[str, Any] = (
        {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address is None else {}
    )
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).strip().split("\n")[0]
        raise InputError(f"no Ray cluster at {address or 'this machine'}: {first}") from error


def _check_reachable(address: str) -> None:
    """Ask whether anything answers there: Ray itself would try for many minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if not (host and port.isdigit()):
        raise InputError(f"--address is {address!r}; allowed: HOST:PORT or ray://HOST:PORT of a Ray cluster")
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:  # the last for a name that is too long
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"no Ray cluster at {address}: {reason}") from error


def disconnect() -> None:
    """From the cluster; one that was started here ends."""
    import ray

    ray.shutdown()


@dataclass(frozen=True)
class RayTasks:
    """An engine, for use once connected."""

    def __call__(
        self, parts: Sequence[Part], shape: Shape, work: Callable[[Iterator[Batch]], Found], tick: Tick
    ) -> Found:
        import ray
        from ray.exceptions import RayTaskError

        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
        tasks = min(len(parts), TASKS_PER_CORE * cores)
        shares = [parts[index::tasks] for index in range(tasks)]
        given = ray.put((shape, work))
        run: Any = ray.remote(num_cpus=1)(_run)
        pending = [run.remote(given, share) for share in shares]
        try:
            found: Found = _merged(pending, shares, tick)
            return found
        except RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from error
            raise


def _merged(pending: Sequence[Any], shares: Sequence[Sequence[Part]], tick: Tick) -> Any:
    """In a fixed order, each as it comes in."""
    import ray

    found = None
    for share, task in zip(shares, pending, strict=True):
        part = ray.get(task)
        found = part if found is None else found.merged(part)
        tick(sum(each.rows or 0 for each in share))
    return found


def _run(given: tuple[Shape, Callable[[Iterator[Batch]], Found]], share: Sequence[Part]) -> Found:
    shape, work = given
    return work(chain.from_iterable(batches(part, shape) for part in share))
