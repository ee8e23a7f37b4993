"""Tally on a Ray cluster: a task for some of the parts each, their tallies merged here."""

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from surefoot.errors import InputError
from surefoot.streaming.batches import batches
from surefoot.streaming.files import Part
from surefoot.streaming.local import Found, Tick
from surefoot.tally import Batch, Shape

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
        _knock(address)
    own: dict[str, Any] = (
        {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address is None else {}
    )
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).strip().split("\n")[0]
        raise InputError(f"no Ray cluster at {address or 'this machine'}: {first}") from error


def _knock(address: str) -> None:
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
