"""Seeds, threads and cores. Importing this does not load torch."""

import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Barrier, local
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

Part = TypeVar("Part")
Result = TypeVar("Result")

MOST_WORKERS = 8  # more would wait for Python's lock
NUMBERS_TO_DIVIDE = 2**15  # torch runs an operation on fewer numbers on one thread (its GRAIN_SIZE)


def derive_seed(*parts: object) -> int:
    """A seed from names and numbers, by sha256.

    >>> derive_seed("toy", 3, "order") == derive_seed("toy", 3, "order")
    True
    >>> derive_seed("toy", 3, "order") == derive_seed("toy", 3, "augmentation")
    False
    """
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*parts: object, device: "torch.device | str" = "cpu") -> "torch.Generator":
    """A new generator, seeded from names and numbers."""
    import torch

    return torch.Generator(device=device).manual_seed(derive_seed(*parts))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: sums are the same on every machine, and small operations do not wait.

    Threads that wait for each other on a busy machine made a report five times slower.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count() -> int:
    """On how many threads `in_parallel` works: as many as torch may use in this thread, 1 in a worker."""
    if getattr(_this_thread, "is_worker", False):
        return 1
    torch = sys.modules.get("torch")
    allowed = usable_cores() if torch is None else min(torch.get_num_threads(), usable_cores())
    return min(allowed, MOST_WORKERS)


def in_parallel(
    work: Callable[[Part], Result], parts: Sequence[Part], *, numbers: int = NUMBERS_TO_DIVIDE
) -> list[Result]:
    """`work` of each part, in the order of the parts, several at once where this thread may use several.

    Within `work`, torch's operations run on one thread: threads that divide a small operation wait for each
    other, on a busy machine far longer than the operation takes. The results do not depend on the number of
    workers. The thread settings of the caller and of the process stay as they are. Give the `numbers` that
    an operation works on where they may be so few that torch would not divide it anyway.
    """
    workers = worker_count() if numbers >= NUMBERS_TO_DIVIDE else 1
    if workers == 1:
        return [work(part) for part in parts]
    left = deque(enumerate(parts))
    results: dict[int, Result] = {}

    def work_off() -> None:
        while True:
            try:
                index, part = left.popleft()
            except IndexError:
                return
            results[index] = work(part)

    pool = _pool(workers, os.getpid(), "torch" in sys.modules)
    futures = [pool.submit(work_off) for _ in range(min(workers, len(parts)))]
    try:
        for future in futures:
            future.result()
    finally:
        left.clear()  # if one has failed or Ctrl-C was pressed, the others stop
    return [results[index] for index in range(len(parts))]


def start_workers(workers: int) -> ThreadPoolExecutor:
    """Threads in which torch, and `in_parallel`, use one thread; no other thread is affected."""
    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "surefoot", initializer=_become_worker)
    started = Barrier(workers)
    list(pool.map(lambda _: started.wait(), range(workers)))
    if torch is not None:
        torch.set_num_threads(before)  # the number for threads that are started later, which the workers set
    return pool


_this_thread = local()


def _become_worker() -> None:
    _this_thread.is_worker = True
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.get_num_threads()  # the first operation of a thread sets the number, unless it has been read
        torch.set_num_threads(1)


@lru_cache(maxsize=4)
def _pool(workers: int, _process: int, _with_torch: bool) -> ThreadPoolExecutor:
    """The pool of this process: a fork has none of its threads, and without torch they cannot be set."""
    return start_workers(workers)
