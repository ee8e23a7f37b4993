"""Preprocessing as a part of an exported graph: an image of any size to the network's input.

The views are those of `predict`. Pillow's bicubic resize is written as two matrix products whose weights
depend on the image's shape, in float64, where they give Pillow's whole numbers exactly: ONNX's own resize
does not round after each pass. The centre crop is the code that testing uses. Pillow 13 resizes the rows of
an image that is more than twice as tall as wide before its columns; this graph never does, and some of its
pixels then differ by a level or two of 255.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from surefoot.deploy.bundle import Preprocessing
from surefoot.deploy.model import CalibratedModule, probabilities_of
from surefoot.lab.training.augment import Crops, centre_crops, normalise, resample

UNIT = 2**22  # Pillow's weights are whole multiples of 1 / UNIT
CUBIC = -0.5  # the parameter of Pillow's cubic filter
SIZES = ((97, 131), (131, 97), (30, 500))  # height and width of images that are compared with Pillow


class ImageGraph(nn.Module):
    """An image (height, width, 3) of 8-bit values to its probabilities and calibrated logits (classes,)."""

    def __init__(self, model: CalibratedModule, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.model = model
        self.preprocessing = preprocessing

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(preprocessed(image, self.preprocessing))
        return probabilities_of(logits, self.model.kind)[0], logits[0]


def preprocessed(image: Tensor, preprocessing: Preprocessing) -> Tensor:
    """The network's input (1, 3, view, view), in float32: as `Preprocessing.of_image` of the same pixels."""
    pixels = image.permute(2, 0, 1)[None].to(torch.float32)
    lengths = [torch.ones(side).sum().double() for side in image.shape[:2]]
    starts = [torch.zeros((), dtype=torch.float64)] * 2
    sides, short_side = lengths, preprocessing.short_side
    if short_side is not None:
        short = torch.minimum(*lengths)
        sides = [(length * short_side / short).round().clamp(min=1) for length in lengths]
        starts = [((side - short_side) / 2).floor() for side in sides]
        pixels = _middle(pixels, lengths, sides, starts, short_side + 1)
    crops = _centre_crops(sides, min(1.0, preprocessing.view / preprocessing.resize))
    top, left = ((crop - start).float() for crop, start in zip((crops.top, crops.left), starts, strict=True))
    box = Crops(top, left, crops.height.float(), crops.width.float(), crops.mirrored)
    return normalise(resample(pixels, box, preprocessing.view))


def _centre_crops(sides: list[Tensor], share: float) -> Crops:
    """The box of the centre crop; an image longer than twice its short side is cropped to that before."""
    longest = 2 * torch.minimum(*sides)
    top, left = (((side - longest) / 2).floor().clamp(min=0) for side in sides)
    height, width = (torch.minimum(side, longest)[None] for side in sides)
    crops = centre_crops(height, width, share)
    return replace(crops, top=top + crops.top, left=left + crops.left)


def _middle(
    pixels: Tensor, lengths: list[Tensor], sides: list[Tensor], starts: list[Tensor], count: int
) -> Tensor:
    """`count` rows and columns, from `starts` on, of the image after Pillow's bicubic resize to `sides`."""
    rows, columns = (
        _bicubic(pixels.shape[2 + axis], lengths[axis], sides[axis], starts[axis], count) for axis in (0, 1)
    )
    return _whole(rows @ _whole(pixels.double() @ columns.T)).float()  # first the columns, as Pillow does


def _bicubic(pixels: int, length: Tensor, size: Tensor, start: Tensor, count: int) -> Tensor:
    """(count, pixels): weights of the outputs from `start` on when `length` pixels are resized to `size`.

    Keys, IEEE TASSP 1981, as wide as the reduction. Computed in float64: positions reach some thousands.
    """
    scale = length / size
    output = torch.minimum(start + torch.arange(count, dtype=torch.float64), size - 1)
    centre = (output[:, None] + 0.5) * scale
    x = (torch.arange(pixels, dtype=torch.float64) + 0.5 - centre).abs() / scale.clamp(min=1)
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * CUBIC
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    weights = weights / weights.sum(dim=1, keepdim=True) * UNIT
    return weights.sign() * (weights.abs() + 0.5).floor() / UNIT


def _whole(values: Tensor) -> Tensor:
    """8-bit values, rounded as Pillow does."""
    return (values + 0.5).floor().clamp(0, 255)


def noise_images() -> list[NDArray[np.uint8]]:
    """Noise in several shapes: two ways to resize differ most there."""
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES]
