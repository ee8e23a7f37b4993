"""Images of many requests in one pass of the networks."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Waiting = tuple[Asked, Future[Answer]]
LOG = logging.getLogger("surefoot.serve")


class UnansweredError(Exception):
    """A question to which there is no answer; the log says why."""


class Batcher(Generic[Asked, Answer]):
    """One thread that takes whatever waits, up to `at_once`, and answers it together.

    Nothing is waited for: alone, a question is answered at once; in a crowd, a pass answers many.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Asked]], Sequence[Answer]],
        *,
        at_once: int,
        tell: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._answer, self._at_once, self._tell = answer, at_once, tell
        self._waiting: deque[Waiting[Asked, Answer]] = deque()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._work, name="inference", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether questions will be answered."""
        return self._thread.is_alive() and not self._closed

    def ask(self, question: Asked) -> "Future[Answer]":
        """Its answer, some day; cancelled, it is passed over if its turn has not come."""
        future: Future[Answer] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("closed")
            self._waiting.append((question, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Answer what waits, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._taken():
            batch = [(asked, future) for asked, future in batch if future.set_running_or_notify_cancel()]
            if batch:
                self._tell(len(batch))
                self._settle(batch)

    def _taken(self) -> list[Waiting[Asked, Answer]]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return [self._waiting.popleft() for _ in range(min(self._at_once, len(self._waiting)))]

    def _settle(self, batch: Sequence[Waiting[Asked, Answer]]) -> None:
        """Answer a batch; where that fails, each by itself, so that one cannot spoil the others."""
        try:
            answers = self._answer([asked for asked, _ in batch])
        except Exception as error:  # whatever it is, the asker waits and the thread must go on
            if len(batch) > 1:
                for each in batch:
                    self._settle([each])
            else:
                LOG.error("no prediction", exc_info=error)
                batch[0][1].set_exception(UnansweredError())
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)
