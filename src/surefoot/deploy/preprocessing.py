"""From an image file to what a network sees: exactly what was done in testing."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from surefoot.decoding.images import read_pixels, reason_of
from surefoot.decoding.pixels import UNREADABLE, Fit, Size, pixels_of
from surefoot.errors import InputError
from surefoot.training.augment import MEAN, SPREAD
from surefoot.training.batches import images_from

DEFINITION = (
    "upright, 8 bits of red, green and blue; resized (bicubic) so that the short side has short_side pixels, "
    "where that is given; the middle square whose side is view / resize of the short side (at most all of "
    "it) resized (antialiased bilinear) to view x view; (value / 255 - mean) / std per channel"
)


@dataclass(frozen=True)
class Preprocessing:
    """The centre crop of training's recipe."""

    view: int  # pixels a side of what the network sees
    resize: int  # the crop keeps view / resize of the short side
    short_side: int | None  # that files are decoded to; None: their own size

    @property
    def size(self) -> Size:
        """How files are decoded."""
        return Size(self.view, Fit.AS_IT_IS) if self.short_side is None else Size(self.short_side)

    def of_file(self, path: str | Path) -> Tensor | str:
        """What the network sees of a file, (3, view, view) in float32; or in words why there is none."""
        if not Path(path).is_file() and Path(path).exists():
            return "not a regular file"  # to open a pipe would be to wait for ever
        pixels = read_pixels(str(path), self.size)
        return pixels if isinstance(pixels, str) else self.of_pixels(pixels)

    def of_image(self, image: Image) -> Tensor | str:
        """The same of an image that Pillow has opened or made, which is left as it is."""
        try:
            return self.of_pixels(pixels_of(image, self.size))
        except UNREADABLE as error:
            return reason_of(error)

    def of_pixels(self, pixels: NDArray[np.uint8]) -> Tensor:
        """The same from decoded pixels (height, width, channels)."""
        images = images_from(pixels[None], view=self.view, resize=self.resize, augmentation="none")
        return images.test_views(images.pixels, torch.tensor([0]))[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with all that another program needs to do the same."""
        return {**asdict(self), "mean": list(MEAN), "std": list(SPREAD), "definition": DEFINITION}


def preprocessing_from(document: Any) -> Preprocessing:
    """From plain values; those of another normalisation are refused."""
    values = {name: document[name] for name in ("view", "resize", "short_side")}
    for name, value in values.items():
        if not (isinstance(value, int) and value >= 1) and not (name == "short_side" and value is None):
            raise InputError(f"preprocessing has {name} {value!r}; allowed: a whole number from 1")
    if (list(MEAN), list(SPREAD)) != (document["mean"], document["std"]):
        raise InputError("preprocessing has another mean or std than this version's")
    return Preprocessing(**values)
