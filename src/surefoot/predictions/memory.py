"""Data that do not fit into memory are refused, before the system ends the process. Does not need torch."""

import math
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from surefoot.errors import InputError
from surefoot.text import bytes_text

RESERVE = 2**30  # bytes of address space for what is reserved, but not used: threads, memory pools


def available_memory() -> float:
    """The bytes that this process can still allocate, as far as the system says it."""
    limits = [math.inf]
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
        limits += [int(found[1]) * 1024] if found else []
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        pass  # another system, or no limit ("max")
    return min(limits)


def refuse_larger_than_memory(what: str, size: int) -> None:
    """Raise if something of that size does not fit into the available memory: before it is allocated."""
    available = available_memory()
    if size > available:
        have = bytes_text(available)
        raise InputError(f"{what} would take {bytes_text(size)}; allowed: the available memory, {have}")


_lock = Lock()
_limits: list[tuple[int, int]] = []  # those before the first of the blocks that are running, in any thread
_running = 0


def most_addresses() -> float:
    """The bytes of address space that this process may have, if what it allocates is to fit into memory."""
    available = available_memory()
    if math.isinf(available):
        return available
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize() + available + RESERVE


@contextmanager
def limited_memory(most: float | None = None) -> Iterator[None]:
    """A block in which an allocation beyond the available memory fails, and is refused.

    A few hundred bytes of a file can stand for gigabytes, and not everything that decodes them announces the
    size. Nor does the system: it promises more than it has, and ends a process that uses it. For many short
    blocks, ask for `most_addresses` once: it reads files of the system.
    """
    _limit(most_addresses() if most is None else most)
    try:
        yield
    except MemoryError as error:
        have = bytes_text(available_memory())
        raise InputError(f"the data do not fit into memory; allowed: what is available, {have}") from error
    finally:
        _restore()


def _limit(most: float) -> None:
    global _running
    with _lock:
        _running += 1
        if _running > 1 or math.isinf(most):
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft == resource.RLIM_INFINITY or most < soft:
            _limits.append((soft, hard))
            resource.setrlimit(resource.RLIMIT_AS, (int(most), hard))


def _restore() -> None:
    global _running
    with _lock:
        _running -= 1
        if not _running and _limits:
            resource.setrlimit(resource.RLIMIT_AS, _limits.pop())
