"""What a server takes on, and how it says no."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from surefoot.errors import InputError
from surefoot.text import count_of

MEBIBYTE = 2**20
AT_ONCE = 64  # images in a pass of the networks
HELD = 16  # requests of the largest size that may be in memory together


class RefusedError(Exception):
    """A request, or one image of it, that is answered with a sentence and a status of 4xx or 5xx."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one request, of one image, and of all that wait."""

    max_bytes: int = 32 * MEBIBYTE  # of a request
    max_image_bytes: int = 16 * MEBIBYTE
    max_images: int = 64  # in a request
    max_pixels: int = 64_000_000  # of an image, before it is made smaller
    max_waiting: int = 512  # images that were read and have no answer yet
    timeout: float = 30.0  # seconds to send a request in, and again to answer it in

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < math.inf:
                raise InputError(f"{name} is {value!r}; allowed: a positive number")
        if self.max_waiting < self.max_images:
            raise InputError(
                f"max_waiting is {self.max_waiting}, below max_images, which is {self.max_images}; allowed: "
                "at least as many, or a full request could never be answered"
            )


class Capacity:
    """How much is held right now, over all requests; only the event loop's thread asks."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0  # bytes of uploads
        self.waiting = 0  # images

    @contextmanager
    def guest(self) -> Iterator["Admission"]:
        """One request; what it holds is let go at its end."""
        guest = Admission(self)
        try:
            yield guest
        finally:
            self.held -= guest.held

    @contextmanager
    def admitted(self, images: int) -> Iterator[None]:
        """Inside, so many images more are waiting."""
        if self.waiting + images > self.limits.max_waiting:
            waiting = count_of(self.waiting, "image is", "images are")
            raise RefusedError(503, f"{waiting} waiting already; try again in a second")
        self.waiting += images
        try:
            yield
        finally:
            self.waiting -= images


@dataclass(eq=False)
class Admission:
    """What one request holds of a room."""

    room: Capacity
    held: int = 0

    def hold(self, number: int) -> None:
        """So many bytes more, or less."""
        if self.room.held + number > HELD * self.room.limits.max_bytes:
            raise RefusedError(503, "too much is being uploaded at this moment; try again in a second")
        self.held += number
        self.room.held += number
