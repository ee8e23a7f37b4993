"""Images of many requests in one forward pass of the networks."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from threading import Condition, Thread
from typing import Any, Generic, TypeVar

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from surefoot.decisions.decision import Familiar, Rule
from surefoot.deploy.bundle import Bundle
from surefoot.deploy.predict import Table
from surefoot.deploy.rows import CSV, rows_of_csv, rows_of_json
from surefoot.errors import InputError
from surefoot.lab.images.cache import reason_of
from surefoot.lab.images.decode import FORMATS, UNREADABLE, TooManyPixelsError, decode
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions
from surefoot.runtime import usable_cores
from surefoot.serve.limits import RefusedError, VerdictMode

USELESS = (
    "Predictions are not marked as familiar or unfamiliar: on the test data, unfamiliar samples are not "
    "detected at least twice as often as there are false alarms (at the unfavourable ends of the 95% "
    "intervals). --verdict on marks them anyway."
)
Item = TypeVar("Item")
Result = TypeVar("Result")
Submitted = tuple[Item, Future[Result]]
LOG = logging.getLogger("surefoot.serve")
LARGE = (
    8_000_000  # pixels; larger images, which take up to some 25 bytes per pixel, are decoded one at a time
)
MOST_STEPS = 100_000  # that Pillow may do in Python for an image: some 0.1 s, as for 8 million pixels in C
TOO_LARGE = (TooManyPixelsError, Image.DecompressionBombError, Image.DecompressionBombWarning)
# Not TIFF: libtiff writes a line to standard error for every damaged row.
KINDS = tuple(each for each in FORMATS if each != "TIFF")


class PredictionError(Exception):
    """A prediction failed; the log has the reason."""


class Batcher(Generic[Item, Result]):
    """One thread that processes all waiting items together, at most `batch` of them.

    It never waits for a batch to fill: a single item is processed at once, many are processed together.
    """

    def __init__(
        self,
        process: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        batch: int,
        on_batch: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._process, self._batch, self._on_batch = process, batch, on_batch
        self._waiting: deque[Submitted[Item, Result]] = deque()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._work, name="inference", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether items will be processed."""
        return self._thread.is_alive() and not self._closed

    def submit(self, item: Item) -> "Future[Result]":
        """The item's future result; one that is cancelled in time is not processed."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("closed")
            self._waiting.append((item, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Process what waits, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                batch = [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]
            if not batch:  # closed
                return
            batch = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
            if batch:
                self._on_batch(len(batch))
                self._run(batch)

    def _run(self, batch: Sequence[Submitted[Item, Result]]) -> None:
        """Process a batch; where that fails, each item alone, so that one cannot fail the others."""
        try:
            results = self._process([item for item, _ in batch])
        except Exception as error:  # whatever it is, the requests wait and the thread must continue
            if len(batch) > 1:
                for each in batch:
                    self._run([each])
            elif isinstance(error, InputError):
                batch[0][1].set_exception(error)
            else:
                LOG.error("no prediction", exc_info=error)
                batch[0][1].set_exception(PredictionError())
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)


def use_threads(number: int | None) -> None:
    """Set the threads of a forward pass; by default half the cores, because others decode.

    With as many threads as cores, passes and decoding wait for each other, and fewer images are predicted.
    """
    torch.set_num_threads(number or min(torch.get_num_threads(), max(1, usable_cores() // 2)))


class Predictor:
    """A bundle on its device: image bytes or rows to inputs, inputs to predictions."""

    def __init__(
        self,
        bundle: Bundle,
        thresholds: Rule | None,
        device: str,
        *,
        allow_unseen: bool = False,
        verdict: VerdictMode = VerdictMode.AUTO,
    ) -> None:
        if bundle.preprocessing is None and bundle.encoding is None:
            raise InputError(f"the bundle ({bundle.name}) takes {bundle.taken}, not images")
        self.allow_unseen = allow_unseen
        self.bundle = bundle.to(device)
        self.preprocessing = bundle.preprocessing
        self.device = torch.device(device)
        self.table = Table(bundle, thresholds or bundle.thresholds, probabilities=True)
        self.verdict = Verdict.of(bundle.familiar, verdict)
        self.predict([torch.zeros(bundle.shape)])  # the first pass is slow: run it before the first request

    def preprocess(self, data: bytes | bytearray, max_pixels: int) -> Tensor | RefusedError:
        """The networks' input from an image file's bytes; too many pixels are refused before decoding."""
        if not data:
            return RefusedError(422, "the image is empty")
        assert self.preprocessing is not None
        try:
            pixels = decode(
                data, self.preprocessing.size, most_pixels=max_pixels, most_steps=MOST_STEPS, formats=KINDS
            )
            return self.preprocessing.of_pixels(pixels)
        except UnidentifiedImageError:
            return RefusedError(415, f"not an image in a supported format: {', '.join(KINDS)}")
        except TOO_LARGE as error:
            most = min(max_pixels, Image.MAX_IMAGE_PIXELS or max_pixels)
            too_many = str(error) if isinstance(error, TooManyPixelsError) else reason_of(error)
            return RefusedError(413, f"the image has {too_many}; allowed: {most:,} pixels")
        except UNREADABLE as error:
            return RefusedError(400, f"the image cannot be read: {reason_of(error)}")

    def rows(self, kind: str, data: bytes | bytearray, most: int) -> list[Tensor]:
        """The networks' inputs from the rows in the body of a request; RefusedError where one is wrong."""
        encoding = self.bundle.encoding
        assert encoding is not None
        try:
            raw = (rows_of_csv if kind == CSV else rows_of_json)(encoding, bytes(data))
            if len(raw) > most:
                raise RefusedError(413, f"the request has {len(raw):,} rows; allowed: {most:,}")
            if not self.allow_unseen:
                encoding.refuse_unseen(raw)
            return list(torch.from_numpy(encoding.encode(raw)))
        except InputError as error:
            raise RefusedError(422, str(error)) from error

    def predict(self, inputs: Sequence[Tensor]) -> list[dict[str, Any]]:
        """The predictions of one forward pass, as JSON values."""
        return self.documents(self.outputs(inputs))

    def outputs(self, inputs: Sequence[Tensor]) -> Predictions:
        """The predictions of one forward pass."""
        reference = self.bundle.reference
        features = reference is not None and reference.features is not None
        return self.bundle.predict(torch.stack(list(inputs)), features=features)

    def documents(self, predictions: Predictions) -> list[dict[str, Any]]:
        """Predictions as JSON values."""
        columns, names = self.table.columns(predictions), self.bundle.class_names
        documents = []
        for index in range(predictions.n):
            row = {name: column[index] for name, column in columns.items()}
            probabilities = {name: row[f"prob_{name}"] for name in names}
            if self.bundle.kind is LabelKind.ONE_LABEL:
                labels = {"label": row["label"]}
            else:
                labels = {"labels": [name for name in names if probabilities[name] >= 0.5]}
            documents.append(
                {
                    **labels,
                    "confidence": row["confidence"],
                    "entropy": row["entropy"],
                    "novelty": row["novelty"],
                    "verdict": self.verdict.of_novelty(row["novelty"]),
                    "decision": row.get("decision"),
                    "probabilities": probabilities,
                }
            )
        return documents


@dataclass(frozen=True)
class Verdict:
    """Whether predictions are marked as familiar or unfamiliar, and how often that was right."""

    familiar: Familiar | None
    shown: bool
    sentence: str

    @staticmethod
    def of(familiar: Familiar | None, mode: VerdictMode) -> "Verdict":
        """By default it is shown if it is useful."""
        if familiar is None:
            return Verdict(None, False, "This bundle has no limit of novelty, so predictions are not marked.")
        shown = mode is VerdictMode.ON or (mode is VerdictMode.AUTO and familiar.is_useful)
        if shown or mode is VerdictMode.OFF:
            return Verdict(familiar, shown, "" if shown else "Predictions are not marked: --verdict off.")
        return Verdict(familiar, False, USELESS)

    def of_novelty(self, novelty: float) -> str | None:
        """Familiar or unfamiliar; None where it is not shown."""
        return self.familiar.verdict(novelty) if self.familiar is not None and self.shown else None

    def document(self) -> dict[str, Any]:
        """Its rates as plain data: what it detects of unfamiliar samples, and its false alarms."""
        if self.familiar is None:
            return {"shown": False, "reason": self.sentence, "detected": None, "false_alarms": None}
        found, alarms = self.familiar.found, self.familiar.alarms
        return {
            "shown": self.shown,
            "reason": self.sentence or None,
            "detected": None if found is None else asdict(found),
            "false_alarms": asdict(alarms),
        }
