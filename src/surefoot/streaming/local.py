"""Read on this machine: threads, each over its own parts; numpy and the decoder let them run at once."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import reduce
from threading import Event
from typing import Protocol, TypeVar

from surefoot.streaming.batches import batches
from surefoot.streaming.files import Part
from surefoot.tally import Batch, Shape

Tick = Callable[[int], None]
Self = TypeVar("Self")


class Mergeable(Protocol):
    """A value that says the same of many rows as of few."""

    def merged(self: Self, other: Self) -> Self: ...


Found = TypeVar("Found", bound=Mergeable)


class Engine(Protocol):
    """Carries out some work over all parts, once, and merges what it finds."""

    def __call__(
        self, parts: Sequence[Part], shape: Shape, work: Callable[[Iterator[Batch]], Found], tick: Tick
    ) -> Found: ...


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Threads:
    """An engine. Which thread reads which part is fixed, and so is the result."""

    workers: int

    def __call__(
        self, parts: Sequence[Part], shape: Shape, work: Callable[[Iterator[Batch]], Found], tick: Tick
    ) -> Found:
        stop = Event()

        def read(mine: Sequence[Part]) -> Iterator[Batch]:
            for part in mine:
                for batch in batches(part, shape):
                    if stop.is_set():
                        return
                    yield batch
                    tick(batch.logits.shape[1])

        shares = [parts[index :: self.workers] for index in range(min(self.workers, len(parts)))]
        if len(shares) == 1:
            return work(read(shares[0]))
        with ThreadPoolExecutor(len(shares)) as pool:
            futures = [pool.submit(work, read(share)) for share in shares]
            try:
                ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
                found = [each.result() for each in futures if each in ended]  # all, unless one has failed
                return reduce(lambda ours, theirs: ours.merged(theirs), found)
            finally:
                stop.set()  # where one has failed, or Ctrl-C was pressed, the others need not go on
