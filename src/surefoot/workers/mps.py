"""NVIDIA's MPS (Multi-Process Service): kernels of several processes run on one GPU at the same time.

A network of ResNet-18's size does not fill a large GPU; four processes with MPS train 1.25 times as many
images a second as one (benchmarks/at_once.py, 128 px, H200). Without the daemon, the processes take turns.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CONTROL = "nvidia-cuda-mps-control"
FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
SECONDS = 20  # for a command of the daemon
# Run in a new process: one that has once used the GPU without the daemon cannot switch to it.
TRIAL = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
sys.exit(bool(failed or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)))
"""


def is_available() -> bool:
    """Whether the daemon is installed or already runs."""
    return FOLDER in os.environ or shutil.which(CONTROL) is not None


@contextmanager
def shared_gpu(device: str, processes: int) -> Iterator[dict[str, str]]:
    """The environment variables for processes that share a GPU; unchanged where MPS is not used."""
    if not device.startswith("cuda") or processes < 2 or FOLDER in os.environ or not is_available():
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="surefoot-mps-", ignore_cleanup_errors=True) as folder:
        shared = {**os.environ, FOLDER: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        try:
            trial = [sys.executable, "-c", TRIAL]
            works = _succeeds([CONTROL, "-d"], shared) and _succeeds(trial, shared)
            yield shared if works else dict(os.environ)
        finally:
            _succeeds([CONTROL], shared, "quit\n")


def _succeeds(command: list[str], environment: dict[str, str], text: str = "") -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, env=environment, input=text, text=True, capture_output=True, timeout=SECONDS, check=False
        )
        return done.returncode == 0
    return False
