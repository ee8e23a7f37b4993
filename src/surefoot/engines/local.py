"""Carries out orders on this machine, in processes of their own: two of one thread each beat one of two."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from surefoot.engines.orders import STOPPED, Order
from surefoot.errors import InputError

Event = dict[str, Any]


def sensible_workers(device: str) -> int:
    """A process per core on a CPU; two on a GPU, which one network of this size cannot fill (docs/log.md)."""
    return 2 if device == "cuda" else len(os.sched_getaffinity(0))


def carry_out(order: Order, *, workers: int, tell: Callable[[Event], None]) -> None:
    """Share the order's seeds between workers and wait; `tell` hears of each epoch and each network done.

    An error of one worker stops the others, which keep their checkpoints; so does Ctrl-C.
    """
    shares = [order.seeds[first::workers] for first in range(min(workers, len(order.seeds)))]
    processes = _start([replace(order, seeds=share) for share in shares])
    with ThreadPoolExecutor(len(processes)) as pool:
        followed = [pool.submit(_follow, process, tell) for process in processes]
        try:
            for done in as_completed(followed):
                if (failure := done.result()) is not None:
                    raise InputError(failure)
        finally:
            _stop(processes)  # before the pool waits for its threads, which wait for the processes


def _start(orders: list[Order]) -> list["subprocess.Popen[str]"]:
    """A worker per order, in a session of its own: Ctrl-C reaches us alone, and we tell them."""
    command = [sys.executable, "-m", "surefoot.engines.worker"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes: list[subprocess.Popen[str]] = []
    for order in orders:
        process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        processes.append(process)
        assert process.stdin is not None
        process.stdin.write(order.as_json() + "\n")
        process.stdin.close()
    return processes


def _stop(processes: list["subprocess.Popen[str]"]) -> None:
    """Ask those that still run to save and end, and wait for them."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        process.wait()


def _follow(process: "subprocess.Popen[str]", tell: Callable[[Event], None]) -> str | None:
    """Pass on a worker's events until it ends; what went wrong, if anything did."""
    message = None
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            event = json.loads(line)
            if event["event"] == "error":
                message = event["message"]
            tell(event)
    code = process.wait()
    if code in (0, STOPPED):
        return None
    return message or f"a training process ended with code {code}; what it had finished is kept"
