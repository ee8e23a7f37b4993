"""NVIDIA's MPS: kernels of several processes side by side on one GPU, instead of by turns.

A network of ResNet-18's size does not fill a large GPU; four at once, side by side, train 1.25 times as many
images a second as one (benchmarks/at_once.py, 128 px, H200). Where the driver's daemon cannot be had, the
processes take turns.
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
SECONDS = 20  # that the daemon may take for an answer
# A process of its own asks, because one that has once met the GPU without the daemon stays without it.
TRIAL = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
sys.exit(bool(failed or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)))
"""


def is_here() -> bool:
    """Whether the daemon is installed, or somebody's runs already."""
    return FOLDER in os.environ or shutil.which(CONTROL) is not None


@contextmanager
def side_by_side(device: str, processes: int) -> Iterator[dict[str, str]]:
    """The environment for processes that are to share a GPU; as it is where they cannot or need not."""
    if not device.startswith("cuda") or processes < 2 or FOLDER in os.environ or not is_here():
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="surefoot-mps-", ignore_cleanup_errors=True) as folder:
        shared = {**os.environ, FOLDER: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        try:
            yield shared if _starts(shared) else dict(os.environ)
        finally:
            _control(shared, [], "quit\n")


def _starts(environment: dict[str, str]) -> bool:
    trial = [sys.executable, "-c", TRIAL]
    return _control(environment, ["-d"]) and _succeeds(trial, environment)


def _control(environment: dict[str, str], arguments: list[str], said: str = "") -> bool:
    return _succeeds([CONTROL, *arguments], environment, said)


def _succeeds(command: list[str], environment: dict[str, str], said: str = "") -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, env=environment, input=said, text=True, capture_output=True, timeout=SECONDS, check=False
        )
        return done.returncode == 0
    return False
