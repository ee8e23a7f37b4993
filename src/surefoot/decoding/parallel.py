"""Work on many files at once."""

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from PIL import Image

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 8  # results per worker that may wait for the reader


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in order, from as many threads as there are processors, never far ahead of the reader.

    Threads are enough: Pillow and hashlib let go of Python's lock while they work.
    """
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:
        warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
