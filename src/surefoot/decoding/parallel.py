"""Work on many files at once."""

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from PIL import Image

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 8  # results per worker that may wait for the reader


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in order, from as many threads as there are processors, never far ahead of the reader.

    Threads are enough: Pillow and hashlib let go of Python's lock while they work.
    """
    with refusing_bombs(), ThreadPoolExecutor(processors()) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= AHEAD * processors():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def refusing_bombs() -> Iterator[None]:
    """Inside, in every thread, an image beyond Pillow's limit of pixels is an error and not a remark."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
