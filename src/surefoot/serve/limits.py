"""The limits of a server, how much of them is in use, and the error of a refused request."""

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from surefoot.errors import InputError, require
from surefoot.text import count_of

MEBIBYTE = 2**20
BATCH = 64  # images in a forward pass of the networks
LARGEST_REQUESTS = 16  # requests of the largest size that may be in memory at the same time


NICENESS = 10  # more, of threads that must not delay the others
LOWEST = 19  # priority there is
FEWEST_ROWS = 25  # of a window


def yield_to_others() -> None:
    """Lower the priority of this thread, and of those that it starts, where the system can (Linux)."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)  # 'nice surefoot serve' has one of its own
        os.setpriority(os.PRIO_PROCESS, thread, min(now + NICENESS, LOWEST))


class VerdictMode(StrEnum):
    """Whether predictions are marked as familiar or unfamiliar; `auto`: if the measured rates are useful."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class RefusedError(Exception):
    """A request, or one of its images, that is refused with a sentence and a status of 4xx or 5xx."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one request, of one image, and of the queue."""

    max_bytes: int = 32 * MEBIBYTE  # of a request
    max_image_bytes: int = 16 * MEBIBYTE
    max_images: int = 64  # in a request
    max_pixels: int = 64_000_000  # of an image, before it is resized
    max_waiting: int = 512  # images that were read and are not predicted yet
    timeout: float = 30.0  # seconds for a request to arrive, and again for its response

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < math.inf:
                raise InputError(f"{name} is {value!r}; allowed: a positive number")
        if self.max_waiting < self.max_images:
            raise InputError(
                f"max_waiting is {self.max_waiting}, below max_images, which is {self.max_images}; allowed: "
                "at least as many, or a full request could never be answered"
            )


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How a server checks for shift."""

    rows: int = 500  # of the window; 0: no checks
    every: int | None = None  # new rows between checks; None: as many as the window has
    alpha: float = 0.05  # the probability of any false alarm, over all checks
    history: Path | None = None  # a file as of `surefoot monitor`; None: checks are counted from the start

    def __post_init__(self) -> None:
        is_large = self.rows == 0 or self.rows >= FEWEST_ROWS
        require(is_large, "window", self.rows, f"0 for no checks, or {FEWEST_ROWS} or more")
        require(self.every is None or self.every >= 1, "check_every", self.every, "1 or more")
        require(0 < self.alpha < 1, "alpha", self.alpha, "above 0 and below 1")


class Capacity:
    """What all requests together use now; only used in the event loop's thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = 0  # of uploads
        self.waiting = 0  # images

    @contextmanager
    def request(self) -> Iterator["RequestMemory"]:
        """The memory of one request, released at its end."""
        memory = RequestMemory(self)
        try:
            yield memory
        finally:
            self.bytes -= memory.bytes

    @contextmanager
    def queued(self, images: int) -> Iterator[None]:
        """Count this many images as waiting."""
        if self.waiting + images > self.limits.max_waiting:
            waiting = count_of(self.waiting, "image is", "images are")
            raise RefusedError(503, f"{waiting} waiting already; try again in a second")
        self.waiting += images
        try:
            yield
        finally:
            self.waiting -= images


@dataclass(eq=False)
class RequestMemory:
    """The bytes of one request's uploads."""

    capacity: Capacity
    bytes: int = 0

    def add(self, number: int) -> None:
        """Count more bytes, or fewer where negative."""
        if self.capacity.bytes + number > LARGEST_REQUESTS * self.capacity.limits.max_bytes:
            raise RefusedError(503, "too many uploads at the moment; try again in a second")
        self.bytes += number
        self.capacity.bytes += number
