"""Connecting to a Ray cluster, or starting one on this machine. Importing this does not load Ray or torch."""

import importlib
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from surefoot.errors import InputError
from surefoot.runtime import usable_cores

SECONDS_TO_CONNECT = 10.0
# One thread per task, as in local worker processes, so that sums have the same order.
ONE_THREAD = {"env_vars": {"OMP_NUM_THREADS": "1"}}
ADDRESSES = "HOST:PORT as printed by 'ray start --head', ray://HOST:PORT, or auto"


def cluster_address(address: str | None) -> str | None:
    """The address, or $RAY_ADDRESS; None for a cluster of our own on this machine."""
    return address or os.environ.get("RAY_ADDRESS") or None


def load_ray(address: str | None) -> Any:
    """Import Ray, which reads these environment variables when it is first imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if cluster_address(address) is None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # so that it listens on 127.0.0.1 only
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise InputError("the engine 'ray' needs Ray; install it: pip install 'surefoot[ray]'") from error


@contextmanager
def connected(
    address: str | None, *, cpus: float = 1.0, object_store_bytes: int | None = None
) -> Iterator[Any]:
    """Ray, connected to a cluster; a connection that this process already has is used and left open.

    `cpus` and `object_store_bytes` apply to a cluster that is started here: it has at least so many CPUs.
    SIGTERM raises KeyboardInterrupt while connected: Ray's own handler aborts with a stack trace.
    """
    ray, address = load_ray(address), cluster_address(address)
    if ray.is_initialized():
        yield ray
        return
    options = {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": ONE_THREAD}
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            # A token of our own, or Ray would write one to the user's home directory.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))
            size = {"num_cpus": max(cpus, usable_cores()), "object_store_memory": object_store_bytes}
            ray.init(address="local", include_dashboard=False, **size, **options)
        else:
            _connect(ray, address, options)
        _on_sigterm(signal.default_int_handler)
        ray._private.worker._worker_logs_enabled = False  # or messages about nodes are printed among results
        yield ray
    finally:
        ray.shutdown()
        _on_sigterm(before or signal.SIG_DFL)


def _connect(ray: Any, address: str, options: dict[str, Any]) -> None:
    if address != "auto":
        _check_reachable(address)
    try:
        ray.init(address=address, **options)
    except Exception as error:  # Ray raises many types: other versions, other Pythons, no cluster
        reason = " ".join(str(error).split()).rstrip(".")
        token = "a cluster with token authentication needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        raise InputError(f"cannot connect to Ray at {address!r}: {reason}; {token}") from error


def _check_reachable(address: str) -> None:
    """Fail within seconds where nothing listens; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"the address is {address!r}; allowed: {ADDRESSES}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_CONNECT).close()
    except (OSError, UnicodeError) as error:  # the latter for a host name that is too long
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"no Ray cluster at {address!r}: {reason}; allowed: {ADDRESSES}") from error


def _on_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # Python allows it in no other thread
        signal.signal(signal.SIGTERM, handler)
