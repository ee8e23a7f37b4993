"""Executes orders on this machine in worker processes of one thread: two train faster than one with two."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from typing import IO, Any

from surefoot.errors import InputError, failed_elsewhere
from surefoot.lab.workers.jobs import STOPPED, Event, Queue, WorkOrder
from surefoot.runtime import usable_cores

MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
MPS_SECONDS = 20  # for a command of the daemon
# Run in a new process: one that has once used the GPU without the daemon cannot switch to it.
MPS_TRIAL = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
sys.exit(bool(failed or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)))
"""


def device_named(name: str) -> str:
    """The device; `auto` is a GPU where torch finds one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}; allowed: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', and torch finds none here; allowed: auto, cpu")
    return name


def default_workers(device: str) -> int:
    """One process per core on a CPU; a few on a GPU, which one network cannot fill (docs/log.md)."""
    cores = usable_cores()
    if device != "cuda":
        return cores
    return min(4 if mps_is_available() else 2, cores)


def execute(order: WorkOrder, *, workers: int, on_event: Callable[[Event], None]) -> None:
    """Run the order's jobs in worker processes, teachers before students, and wait until all are done.

    `on_event` is called for each epoch and each network done. A network that another process trains is waited
    for. An error of one worker stops the others, which save their checkpoints; so does Ctrl-C.
    """
    if not order.jobs:
        return
    queue = Queue(order)
    workers = min(workers, len(order.jobs))
    with shared_gpu(order.device, workers) as environment, ThreadPoolExecutor(workers) as pool:
        processes = _start(order, workers, environment)
        followers = [pool.submit(_follow, process, queue, on_event) for process in processes]
        try:
            for ended in as_completed(followers):
                if (failure := ended.result()) is not None:
                    raise failure
        finally:
            queue.close()
            for process in processes:  # before the pool waits for its threads, which wait for the processes
                if process.poll() is None:
                    process.terminate()  # it saves a checkpoint and ends
            for process in processes:
                process.wait()


def _start(order: WorkOrder, workers: int, environment: dict[str, str]) -> list["subprocess.Popen[str]"]:
    """Start workers in new sessions, so that Ctrl-C reaches only this process, which then stops them."""
    command = [sys.executable, "-m", "surefoot.lab.workers.worker"]
    # Modules in the current folder are found last (see worker.main): no torch.py there replaces the real one.
    environment = {**environment, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    processes = []
    for _ in range(workers):
        process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        processes.append(process)
        assert process.stdin is not None
        _write(process.stdin, order.as_json())
    return processes


def _follow(
    process: "subprocess.Popen[str]", queue: Queue, on_event: Callable[[Event], None]
) -> Exception | None:
    """Give a worker one job after another and pass on its events; returns its error, if any."""
    failure: Exception | None = None
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdout as lines:
        for line in lines:
            event = json.loads(line)
            if event["event"] == "error":
                failure = _error_of(event)
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
        return InputError("a training process was stopped; the same command resumes")
    return failure or InputError(f"a training process ended with code {code}; finished networks are saved")


def _error_of(event: Event) -> Exception:
    """What a worker reported: a user's mistake, or an unexpected error with its traceback."""
    message = event["message"]
    return failed_elsewhere(message, event["traceback"]) if "traceback" in event else InputError(message)


def _close(pipe: IO[str]) -> None:
    """Close a worker's input, which ends it; one that has already ended is no error."""
    with suppress(BrokenPipeError):
        pipe.close()


def _write(pipe: IO[str], line: str) -> None:
    """Write a line; that a worker has ended is seen at the end of its output."""
    with suppress(BrokenPipeError):
        pipe.write(line + "\n")
        pipe.flush()


def mps_is_available() -> bool:
    """Whether NVIDIA's MPS daemon is installed or already runs."""
    return MPS_FOLDER in os.environ or shutil.which(MPS_CONTROL) is not None


@contextmanager
def shared_gpu(device: str, processes: int) -> Iterator[dict[str, str]]:
    """The environment variables for processes that share a GPU; unchanged where MPS is not used.

    With NVIDIA's MPS (Multi-Process Service) kernels of several processes run at the same time; without its
    daemon the processes take turns. A network of ResNet-18's size does not fill a large GPU: four processes
    with MPS train 1.25 times as many images a second as one (benchmarks/results/training.md, 128 px, H200).
    """
    if not device.startswith("cuda") or processes < 2 or MPS_FOLDER in os.environ or not mps_is_available():
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="surefoot-mps-", ignore_cleanup_errors=True) as folder:
        shared = {**os.environ, MPS_FOLDER: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        try:
            trial = [sys.executable, "-c", MPS_TRIAL]
            safe = {**shared, "PYTHONSAFEPATH": "1"}  # imports nothing from the current folder
            works = _succeeds([MPS_CONTROL, "-d"], shared) and _succeeds(trial, safe)
            yield shared if works else dict(os.environ)
        finally:
            _succeeds([MPS_CONTROL], shared, "quit\n")


def _succeeds(command: list[str], environment: dict[str, str], text: str = "") -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        options: Any = {"text": True, "capture_output": True, "timeout": MPS_SECONDS, "check": False}
        return bool(subprocess.run(command, env=environment, input=text, **options).returncode == 0)
    return False
