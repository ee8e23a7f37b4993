"""How parts of files are read in parallel: by threads on this machine, or by tasks on a Ray cluster."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from threading import Event
from typing import Any, Protocol, TypeVar

from surefoot.errors import InputError
from surefoot.predictions.readers import Batch, Part, Shape, batches
from surefoot.progress import Tick
from surefoot.runtime import as_worker, is_worker, workers_of_process

Self = TypeVar("Self")


class Mergeable(Protocol):
    """A result over some rows that can be merged with that over other rows."""

    def merged(self: Self, other: Self) -> Self: ...


Result = TypeVar("Result", bound=Mergeable)


class Engine(Protocol):
    """Runs some work once over all parts and merges the results."""

    def __call__(
        self, parts: Sequence[Part], shape: Shape, work: Callable[[Iterator[Batch]], Result], tick: Tick
    ) -> Result: ...


@dataclass(frozen=True)
class Threads:
    """An engine of threads. Each thread reads fixed parts, so the result is reproducible."""

    workers: int

    def __call__(
        self, parts: Sequence[Part], shape: Shape, work: Callable[[Iterator[Batch]], Result], tick: Tick
    ) -> Result:
        stop = Event()

        def read(mine: Sequence[Part]) -> Iterator[Batch]:
            for part in mine:
                for batch in batches(part, shape):
                    if stop.is_set():
                        return
                    yield batch
                    tick(batch.logits.shape[1])

        def work_off(share: Sequence[Part]) -> Result:
            try:
                return work(read(share))
            except BaseException:
                stop.set()  # the others read no more
                raise

        workers = 1 if is_worker() else min(self.workers, len(parts))
        own, *others = [parts[index::workers] for index in range(workers)]
        if not others:
            with as_worker():
                return work(read(own))
        pool = workers_of_process(len(others))
        futures = [pool.submit(work_off, share) for share in others]
        try:
            with as_worker():
                results = [work_off(own)]
            results += [future.result() for future in futures]
            return reduce(lambda merged, part: merged.merged(part), results)
        finally:
            stop.set()  # if Ctrl-C was pressed, the others stop
            wait(futures)


TASKS_PER_CORE = 2


@dataclass(frozen=True)
class RayTasks:
    """An engine of tasks on a Ray cluster; `ray` is the module, connected."""

    ray: Any

    def __call__(
        self, parts: Sequence[Part], shape: Shape, work: Callable[[Iterator[Batch]], Result], tick: Tick
    ) -> Result:
        cores = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        tasks = min(len(parts), TASKS_PER_CORE * cores)
        shares = [parts[index::tasks] for index in range(tasks)]
        inputs = self.ray.put((shape, work))
        run = self.ray.remote(num_cpus=1)(_read_share)
        references = [run.remote(inputs, share) for share in shares]
        merged: Result | None = None
        try:
            for share, reference in zip(shares, references, strict=True):  # a fixed order
                result: Result = self.ray.get(reference)
                merged = result if merged is None else merged.merged(result)
                tick(sum(part.rows or 0 for part in share))
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from error
            raise
        assert merged is not None  # there is at least one part
        return merged


def _read_share(inputs: tuple[Shape, Callable[[Iterator[Batch]], Result]], share: Sequence[Part]) -> Result:
    shape, work = inputs
    with as_worker():
        return work(chain.from_iterable(batches(part, shape) for part in share))
