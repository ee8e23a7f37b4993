"""Compile src/surefoot/kernels.cpp when the package is built or installed; also `python hatch_build.py`.

Without a C++ compiler the package has no compiled library, and computes the same with torch and numpy.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script
    BuildHookInterface = object

SOURCE = Path(__file__).parent / "src" / "surefoot" / "kernels.cpp"
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-fno-rtti")
FLAGS += ("-Wno-psabi", "-shared", "-fPIC")
VARIANTS: tuple[tuple[str, ...], ...] = ((), ("-DONE_CPU",))  # not every compiler has code for several CPUs


def compile_kernels() -> Path | None:
    """The library, named after its source so that an outdated one is never loaded; None if it fails."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = SOURCE.with_name(f"kernels-{digest}.native")
    if library.exists():
        return library
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None or sys.platform == "win32":
        return None
    for number, variant in enumerate(VARIANTS):
        partial = library.with_suffix(f".native.{os.getpid()}-{number}")
        command = [compiler, *FLAGS, *variant, "-o", str(partial), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode == 0 and _is_whole(partial):
            for old in SOURCE.parent.glob("kernels-*.native"):
                old.unlink()
            return partial.replace(library)
        partial.unlink(missing_ok=True)
    return None


def _is_whole(library: Path) -> bool:
    """Whether it can be loaded and has what is asked for: clang 14 leaves functions for several CPUs out."""
    try:
        return hasattr(ctypes.CDLL(str(library)), "softmax_facts_float32")
    except OSError:
        return False


class KernelHook(BuildHookInterface):  # type: ignore[misc, valid-type]
    """Puts the library into the wheel, which is then for this kind of machine only."""

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        library = compile_kernels()
        if library is not None:
            system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{system}"
            build_data["artifacts"].append(f"/src/surefoot/{library.name}")


if __name__ == "__main__":
    print(compile_kernels() or "no C++ compiler that compiles it")
