"""Which job an engine does next: teachers before students."""

import threading
import time

from surefoot.engines.orders import Order

SECONDS_UNTIL_ANOTHER_LOOK = 1.0  # at a network that another process is making


class Queue:
    """The jobs not begun; one is handed out when all that it needs is done."""

    def __init__(self, order: Order) -> None:
        jobs = order.jobs
        self.changed = threading.Condition()
        self.waiting = list(range(len(jobs)))
        self.needs = [{i for i, other in enumerate(jobs) if job.needs(other)} for job in jobs]
        self.done: set[int] = set()
        self.not_before: dict[int, float] = {}
        self.closed = False

    def take(self) -> int | None:
        """The next job that can be done, waiting for it; None when there is none left to begin."""
        with self.changed:
            while self.waiting and not self.closed:
                if (job := self.take_now()) is not None:
                    return job
                self.changed.wait(SECONDS_UNTIL_ANOTHER_LOOK)
            return None

    def take_now(self) -> int | None:
        """The next job that can be done at this moment, if there is one."""
        with self.changed:
            now = time.monotonic()
            for job in self.waiting:
                if self.needs[job] <= self.done and self.not_before.get(job, 0.0) <= now:
                    self.waiting.remove(job)
                    return job
            return None

    def finish(self, job: int) -> None:
        """It is done, and others may be waiting for it."""
        with self.changed:
            self.done.add(job)
            self.changed.notify_all()

    def put_back(self, job: int) -> bool:
        """To be tried again in a while; True the first time."""
        with self.changed:
            first = job not in self.not_before
            self.not_before[job] = time.monotonic() + SECONDS_UNTIL_ANOTHER_LOOK
            self.waiting.append(job)
            return first

    def close(self) -> None:
        """Hand out no more."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
