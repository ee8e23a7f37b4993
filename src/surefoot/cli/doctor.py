"""`surefoot doctor`: whether this machine has what Surefoot needs, and what to do where it has not."""

import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import typer

from surefoot import __version__
from surefoot.cli.inputs import StoreFolder
from surefoot.cli.terminal import echo
from surefoot.errors import TORCH, InputError, one_line
from surefoot.io import locked
from surefoot.text import bytes_text

OK, MISSING, PROBLEM = "ok", "missing", "problem"
OLDEST = (3, 11)
LIBRARIES = ("numpy", "scipy", "pyarrow", "PIL", "matplotlib")
EXTRAS = {
    "torch": (TORCH, "networks: training them, and calibrating, deploying and serving your own"),
    "ray": (("ray",), "training and streaming on a Ray cluster"),
    "export": (("onnx", "onnxscript", "onnxruntime"), "ONNX files ('surefoot export')"),
    "backbones": (("timm", "torchvision"), "networks of timm and torchvision"),
    "sklearn": (("sklearn",), "the scikit-learn estimator"),
    "serve": (
        ("fastapi", "uvicorn", "multipart", "prometheus_client"),
        "predictions over HTTP ('surefoot serve')",
    ),
}
LEAST_FREE = 2**30  # bytes of disk and of memory


@dataclass(frozen=True)
class Finding:
    """One thing that was checked; the remedy where it is not as needed."""

    what: str
    state: str
    text: str
    remedy: str = ""


def doctor(store: StoreFolder = Path("runs")) -> None:
    """Check this machine: versions, GPU, optional extras, folders, file locks, disk and memory.

    Exits with 1 if there is a problem; a missing optional package is not one.
    """
    broken = False
    for finding in findings(store):
        broken = broken or finding.state == PROBLEM
        echo(f"{finding.state:<8} {finding.what}: {finding.text}")
        if finding.remedy:
            echo(f"{'':<8} -> {finding.remedy}")
    if broken:
        raise typer.Exit(1)


def findings(store: Path) -> Iterator[Finding]:
    """Everything that is checked, in the order that it is printed."""
    from surefoot.lab.images.cache import default_cache

    yield _python()
    yield from (_library(name) for name in (*LIBRARIES, *filter(find_spec, TORCH)))
    yield _processor()
    yield from (_extra(name) for name in EXTRAS)
    for what, folder in (("store", store), ("image cache", default_cache())):
        yield from _folder(what, folder)
    yield _memory()


def _python() -> Finding:
    text = f"Surefoot {__version__}, Python {platform.python_version()} ({sys.executable})"
    if sys.version_info < OLDEST:
        return Finding("version", PROBLEM, text, f"install Python {'.'.join(map(str, OLDEST))} or later")
    return Finding("version", OK, text)


def _library(name: str) -> Finding:
    try:
        found = getattr(import_module(name), "__version__", "")
    except Exception as error:  # noqa: BLE001 (a broken installation can raise anything)
        remedy = "install Surefoot again: pip install --force-reinstall surefoot"
        return Finding(name, PROBLEM, f"cannot be imported: {one_line(error)}", remedy)
    return Finding(name, OK, str(found))


def _processor() -> Finding:
    """What there is to compute with, and what of it torch uses."""
    from surefoot.runtime import usable_cores

    cores = f"{usable_cores()} CPU cores"
    if find_spec("torch") is None:
        return Finding("processor", OK, cores)
    try:
        import torch
    except Exception:  # noqa: BLE001 (reported among the libraries)
        return Finding("processor", PROBLEM, "torch cannot be imported", "see torch above")
    cores += f", torch uses {torch.get_num_threads()} at a time"
    if torch.cuda.is_available():
        gpus = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return Finding("processor", OK, f"{gpus}; {cores}")
    if shutil.which("nvidia-smi") is None:
        return Finding("processor", OK, f"no GPU; {cores}")
    built = torch.version.cuda
    why = f"torch {torch.__version__} is built for " + (f"CUDA {built}" if built else "the CPU only")
    remedy = (
        "install a driver for this CUDA version, or torch for the driver's: https://pytorch.org/get-started"
    )
    return Finding(
        "processor", MISSING, f"nvidia-smi is here, but torch finds no GPU; {why}; {cores}", remedy
    )


def _extra(name: str) -> Finding:
    """An optional part of the installation, and what it is for."""
    modules, purpose = EXTRAS[name]
    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        return Finding(
            name, MISSING, f"{purpose} (no {', '.join(absent)})", f"pip install 'surefoot[{name}]'"
        )
    return Finding(name, OK, purpose)


def _folder(what: str, folder: Path) -> Iterator[Finding]:
    """Whether files can be written and locked there, and how much space is left."""
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    where = str(folder) if existing == folder.absolute() else f"{folder}, to be created in {existing}"
    probe = existing / f".surefoot-doctor-{os.getpid()}"
    try:
        with locked(probe):
            probe.write_bytes(b"x")
        yield Finding(what, OK, f"{where}: files can be written and locked")
    except (InputError, OSError) as error:
        remedy = "choose a folder that you may write to, on a file system with locks (flock)"
        yield Finding(what, PROBLEM, f"{where}: {one_line(error)}", f"{remedy}: --store or SUREFOOT_CACHE")
    finally:
        with suppress(OSError):
            probe.unlink()
    free = shutil.disk_usage(existing).free
    state, remedy = (OK, "") if free >= LEAST_FREE else (PROBLEM, "free some space, or choose another disk")
    yield Finding(f"disk of the {what}", state, f"{bytes_text(free)} free", remedy)


def _memory() -> Finding:
    from surefoot.predictions.memory import available_memory

    free = available_memory()
    if math.isinf(free):
        return Finding("memory", OK, "unknown")
    few = free < LEAST_FREE
    remedy = "close other programs, or use a machine with more memory" if few else ""
    return Finding("memory", PROBLEM if few else OK, f"{bytes_text(free)} available", remedy)
