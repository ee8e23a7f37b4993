"""Seeds, threads and cores. Importing this does not load torch."""

import hashlib
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from threading import Barrier, local
from typing import Any, TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")

MOST_WORKERS = 8  # more would wait for Python's lock
NUMBERS_TO_SHARE = 2**20  # on fewer, several workers are no faster than one
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


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch, if it is loaded, on one thread: sums are the same on every machine, and nothing small waits.

    Threads that wait for each other on a busy machine made a report five times slower.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
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
    if is_worker():
        return 1
    torch = sys.modules.get("torch")
    allowed = usable_cores() if torch is None else min(torch.get_num_threads(), usable_cores())
    return min(allowed, MOST_WORKERS)


def is_worker() -> bool:
    """Whether this thread is one of several that share some work, and so must not divide its part."""
    return getattr(_this_thread, "is_worker", False)


@contextmanager
def as_worker() -> Iterator[None]:
    """Make this thread a worker: of several threads that share some work, one is the caller's."""
    before, _this_thread.is_worker = is_worker(), True
    try:
        with one_thread():
            yield
    finally:
        _this_thread.is_worker = before


def in_parallel(
    work: Callable[[Part], Result], parts: Sequence[Part], *, numbers: int | None = None
) -> list[Result]:
    """`work` of each part, in the order of the parts, several at once where this thread may use several.

    Within `work`, torch's operations run on one thread: threads that divide a small operation wait for each
    other, on a busy machine far longer than the operation takes. The results do not depend on the number of
    workers. The thread settings of the caller and of the process stay as they are. Give the `numbers` that
    all parts work on where they may be so few that waking the workers takes longer than they save.
    """
    workers = worker_count()
    if workers == 1 or (numbers is not None and numbers < NUMBERS_TO_DIVIDE):
        return [work(part) for part in parts]
    if len(parts) == 1 or (numbers is not None and numbers < NUMBERS_TO_SHARE):
        with one_thread():
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

    pool = workers_of_process(workers - 1)
    futures = [pool.submit(work_off) for _ in range(min(workers, len(parts)) - 1)]
    try:
        with as_worker():
            work_off()
        for future in futures:
            future.result()
    finally:
        left.clear()  # if one has failed or Ctrl-C was pressed, the others stop
    return [results[index] for index in range(len(parts))]


@contextmanager
def may_fork() -> Iterator[None]:
    """Let `in_processes` fork this process: a command's own, in which no thread of others runs."""
    global _may_fork
    before, _may_fork = _may_fork, sys.platform == "linux"  # other systems' libraries may not survive it
    try:
        yield
    finally:
        _may_fork = before


def in_processes(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """The same as `in_parallel`, for work that is mostly Python, which threads cannot divide.

    Forks of this process work on the parts and send the results, which must be values. If one is killed, the
    work is done here. Without `may_fork`, and where CUDA or Ray, which no fork can use, are in use, it is
    `in_parallel`.
    """
    global _forked_work
    workers = min(usable_cores(), MOST_WORKERS, len(parts))
    if workers < 2 or not _can_fork():
        return in_parallel(work, parts)
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
    from multiprocessing import get_context

    _forked_work = work, parts  # a fork has them without sending: they need not be values
    with warnings.catch_warnings(), suppress(BrokenProcessPool):
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads: ours wait
        fork = get_context("fork")
        with ProcessPoolExecutor(workers, mp_context=fork, initializer=_become_worker) as pool:
            return list(pool.map(_forked_part, range(len(parts))))
    return in_parallel(work, parts)


def _forked_part(number: int) -> Any:
    work, parts = _forked_work
    return work(parts[number])


def _can_fork() -> bool:
    if not _may_fork or is_worker() or "ray" in sys.modules:
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()


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
_may_fork = False
_forked_work: Any = None  # what `in_processes` does, and with what


def _become_worker() -> None:
    _this_thread.is_worker = True
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.get_num_threads()  # the first operation of a thread sets the number, unless it has been read
        torch.set_num_threads(1)


def workers_of_process(workers: int) -> ThreadPoolExecutor:
    """So many workers that stay: new threads would need new memory, which costs as much as short work."""
    return _pool(workers, os.getpid(), "torch" in sys.modules)


@lru_cache(maxsize=4)
def _pool(workers: int, _process: int, _with_torch: bool) -> ThreadPoolExecutor:
    """The pool of this process: a fork has none of its threads, and without torch they cannot be set."""
    return start_workers(workers)
