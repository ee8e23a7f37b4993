"""Images of many requests in one pass of the networks."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Lock, Thread
from typing import Any, Generic, TypeVar

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from surefoot.deploy.bundle import Bundle
from surefoot.deploy.decision import Rule
from surefoot.deploy.predict import Table
from surefoot.errors import InputError
from surefoot.images.cache import reason_of
from surefoot.images.decode import FORMATS, UNREADABLE, TooManyPixelsError, decode
from surefoot.predictions.labels import LabelKind
from surefoot.runtime import usable_cores
from surefoot.serve.limits import RefusedError

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
        on_event: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._answer, self._at_once, self._on_event = answer, at_once, on_event
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
                self._on_event(len(batch))
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


LARGE = 8_000_000  # pixels
BOMBS = (TooManyPixelsError, Image.DecompressionBombError, Image.DecompressionBombWarning)
# Not TIFF: libtiff writes a line to standard error for every row that is damaged.
KINDS = tuple(each for each in FORMATS if each != "TIFF")


def use_threads(number: int | None) -> None:
    """How many threads a pass of the networks takes: unless given, half the processors, for others decode.

    With as many as there are processors, passes and decoding wait for each other, and less is answered.
    """
    torch.set_num_threads(number or min(torch.get_num_threads(), max(1, usable_cores() // 2)))


class Answerer:
    """A bundle on its device: images to views, views to answers."""

    def __init__(self, bundle: Bundle, thresholds: Rule | None, device: str) -> None:
        if bundle.preprocessing is None:
            raise InputError(f"the bundle ({bundle.name}) takes points of shape {bundle.shape}, not images")
        self.bundle = bundle.to(device)
        self.preprocessing = bundle.preprocessing
        self.device = torch.device(device)
        self.one_at_a_time = Lock()
        self.table = Table(bundle, thresholds or bundle.thresholds, probabilities=True)
        self.answers([torch.zeros(bundle.shape)])  # what is slow the first time is done before anyone waits

    def view(self, data: bytes | bytearray, max_pixels: int) -> Tensor | RefusedError:
        """What the networks see of an image file's bytes."""
        if not data:
            return RefusedError(422, "the image is empty")
        try:
            return self._view(data, max_pixels)
        except UnidentifiedImageError:
            return RefusedError(415, f"not an image of a kind that is read: {', '.join(KINDS)}")
        except BOMBS as error:
            most = min(max_pixels, Image.MAX_IMAGE_PIXELS or max_pixels)
            too_many = str(error) if isinstance(error, TooManyPixelsError) else reason_of(error)
            return RefusedError(413, f"the image has {too_many}; allowed: {most:,} pixels")
        except UNREADABLE as error:
            return RefusedError(400, f"the image cannot be read: {reason_of(error)}")

    def _view(self, data: bytes | bytearray, max_pixels: int) -> Tensor:
        """Of large ones, which take up to some 25 bytes a pixel meanwhile, one after the other."""
        try:
            return self._seen(data, min(LARGE, max_pixels))
        except TooManyPixelsError:
            if max_pixels <= LARGE:
                raise
        with self.one_at_a_time:
            return self._seen(data, max_pixels)

    def _seen(self, data: bytes | bytearray, most_pixels: int) -> Tensor:
        pixels = decode(data, self.preprocessing.size, most_pixels=most_pixels, formats=KINDS)
        return self.preprocessing.of_pixels(pixels)

    def answers(self, views: Sequence[Tensor]) -> list[dict[str, Any]]:
        """What the bundle says, in one pass."""
        rows = self.table.rows([""] * len(views), views, self.device)
        return [
            self._answer({name: column[row] for name, column in rows.items()}) for row in range(len(views))
        ]

    def _answer(self, row: dict[str, Any]) -> dict[str, Any]:
        names, familiar = self.bundle.class_names, self.bundle.familiar
        probabilities = {name: row[f"prob_{name}"] for name in names}
        one = self.bundle.kind is LabelKind.ONE_LABEL
        return {
            **({"label": row["label"]} if one else {"labels": [n for n in names if probabilities[n] >= 0.5]}),
            "confidence": row["confidence"],
            "entropy": row["entropy"],
            "novelty": row["novelty"],
            "verdict": None if familiar is None else familiar.verdict(row["novelty"]),
            "decision": row.get("decision"),
            "probabilities": probabilities,
        }
