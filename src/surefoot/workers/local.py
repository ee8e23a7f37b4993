"""Carries out orders on this machine, in processes of their own: two of one thread each beat one of two."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import IO, Any

from surefoot.errors import InputError
from surefoot.workers import mps
from surefoot.workers.jobs import STOPPED, Event, Queue, WorkOrder


def sensible_workers(device: str) -> int:
    """A process per core on a CPU; a few on a GPU, which one network cannot fill (docs/log.md)."""
    cores = len(os.sched_getaffinity(0))
    if device != "cuda":
        return cores
    return min(4 if mps.is_here() else 2, cores)


def execute(order: WorkOrder, *, workers: int, on_event: Callable[[Event], None]) -> None:
    """Share the order's jobs between workers, teachers before students, and wait until all are done.

    `on_event` is called for each epoch and each network done. A network that another process builds is
    waited for.
    An error of one worker stops the others, which keep their checkpoints; so does Ctrl-C.
    """
    if not order.jobs:
        return
    queue = Queue(order)
    workers = min(workers, len(order.jobs))
    with mps.side_by_side(order.device, workers) as environment:
        _share(queue, _start(order, workers, environment), on_event)


def _share(queue: Queue, processes: list["subprocess.Popen[str]"], on_event: Callable[[Event], None]) -> None:
    with ThreadPoolExecutor(len(processes)) as pool:
        followed = [pool.submit(_follow, process, queue, on_event) for process in processes]
        try:
            for done in as_completed(followed):
                if (failure := done.result()) is not None:
                    raise InputError(failure)
        finally:
            queue.close()
            _stop(processes)  # before the pool waits for its threads, which wait for the processes


def _start(order: WorkOrder, workers: int, environment: dict[str, str]) -> list["subprocess.Popen[str]"]:
    """Workers in sessions of their own: Ctrl-C reaches us alone, and we tell them."""
    command = [sys.executable, "-m", "surefoot.workers.worker"]
    environment = {**environment, "OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    processes = []
    for _ in range(workers):
        process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        processes.append(process)
        assert process.stdin is not None
        _write(process.stdin, order.as_json())
    return processes


def _stop(processes: list["subprocess.Popen[str]"]) -> None:
    """Ask those that still run to save and end, and wait for them."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        process.wait()


def _follow(process: "subprocess.Popen[str]", queue: Queue, on_event: Callable[[Event], None]) -> str | None:
    """Hand a worker job after job and pass on its events; what went wrong, if anything did."""
    message = None
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdout as lines:
        for line in lines:
            event = json.loads(line)
            if event["event"] == "error":
                message = event["message"]
            elif event["event"] == "done":
                queue.finish(event["job"])
            if event["event"] != "elsewhere" or queue.put_back(event["job"]):
                on_event(event)
            if event["event"] in ("ready", "done", "elsewhere"):
                job = queue.take()
                _close(process.stdin) if job is None else _write(process.stdin, str(job))
    _close(process.stdin)
    code = process.wait()
    if code == 0 or (code == STOPPED and queue.closed):
        return None
    if code == STOPPED:
        return "a training process was told to stop; the same command goes on from here"
    return message or f"a training process ended with code {code}; what it had finished is kept"


def _close(pipe: IO[str]) -> None:
    """Which ends the worker; where it has ended before, what was still to be written is of no use."""
    with suppress(BrokenPipeError):
        pipe.close()


def _write(pipe: IO[str], line: str) -> None:
    """A line; where the worker has ended, the end of its output will tell how."""
    with suppress(BrokenPipeError):
        pipe.write(line + "\n")
        pipe.flush()
