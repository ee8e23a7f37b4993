"""Random and centre crops of a whole batch at once, on the device that trains.

A crop, its resize and its mirror are one linear map per axis, so a batch of views is two batched matrix
products: rows @ image @ columns. The weights are those of an antialiased bilinear resize (a triangle as wide
as the reduction), the same as Pillow's; nothing here synchronises with the host.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ATTEMPTS = 10
DRAWS = 2 * ATTEMPTS + 3  # random numbers per crop
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
MEAN = (0.485, 0.456, 0.406)  # of ImageNet, which Places365's and torchvision's weights expect
SPREAD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, eq=False)
class Crops:
    """A box per image, in its own pixels, and whether the view is mirrored: all of shape (batch,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    mirrored: Tensor


def random_crops(heights: Tensor, widths: Tensor, draws: Tensor) -> Crops:
    """Inception crops: area 8% to 100%, aspect 3/4 to 4/3, any position; half of them mirrored.

    `draws` are uniform random numbers (DRAWS, batch).

    Ten shapes are drawn and the first that fits is used; where none fits, the largest centred box whose
    aspect is allowed. Szegedy et al., CVPR 2015.
    """
    tall, wide = heights.float(), widths.float()
    area = (AREA[0] + (AREA[1] - AREA[0]) * draws[:ATTEMPTS]) * tall * wide
    low, high = (math.log(end) for end in ASPECT)
    aspect = torch.exp(low + (high - low) * draws[ATTEMPTS : 2 * ATTEMPTS])
    box_width, box_height = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (box_width >= 1) & (box_height >= 1) & (box_width <= wide) & (box_height <= tall)
    first = fits.int().argmax(dim=0, keepdim=True)
    some = fits.any(dim=0)
    middle_width = torch.minimum(wide, (tall * ASPECT[1]).round())
    middle_height = torch.minimum(tall, (wide / ASPECT[0]).round())
    width = torch.where(some, box_width.gather(0, first).squeeze(0), middle_width)
    height = torch.where(some, box_height.gather(0, first).squeeze(0), middle_height)
    top_draw, left_draw, mirror_draw = draws[-3:]
    top = torch.where(some, (top_draw * (tall - height + 1)).floor(), ((tall - height) / 2).floor())
    left = torch.where(some, (left_draw * (wide - width + 1)).floor(), ((wide - width) / 2).floor())
    return Crops(top, left, height, width, mirror_draw < 0.5)


def centre_crops(heights: Tensor, widths: Tensor, share: float) -> Crops:
    """The centred square whose side is `share` of the short side: resize to 256 and crop 224 is 224 / 256."""
    side = torch.minimum(heights, widths).float() * share
    top, left = (heights - side) / 2, (widths - side) / 2
    return Crops(top, left, side, side, torch.zeros_like(side, dtype=torch.bool))


def resample(images: Tensor, crops: Crops, size: int) -> Tensor:
    """Views (batch, channels, size, size) of images (batch, channels, height, width) of a floating type."""
    rows = _weights(crops.top, crops.height, images.shape[2], size)
    columns = _weights(crops.left, crops.width, images.shape[3], size)
    columns = torch.where(crops.mirrored[:, None, None], columns.flip(1), columns)
    rows, columns = (weights.to(images.dtype).unsqueeze(1) for weights in (rows, columns))
    return rows @ images @ columns.transpose(2, 3)


def normalise(views: Tensor) -> Tensor:
    """From 0..255 to about mean 0 and standard deviation 1; one channel uses the mean of the three."""
    mean, spread = (_per_channel(values, views) for values in (MEAN, SPREAD))
    return (views / 255 - mean) / spread


def _per_channel(values: tuple[float, ...], views: Tensor) -> Tensor:
    """A number per channel, created on the views' device: a captured step may copy nothing from the host."""
    channels = views.shape[1]
    if channels != len(values):
        values = (sum(values) / len(values),) * channels
    options: dict[str, Any] = {"device": views.device, "dtype": views.dtype}
    return torch.cat([torch.full((1, 1, 1, 1), value, **options) for value in values], dim=1)


def _weights(start: Tensor, length: Tensor, pixels: int, size: int) -> Tensor:
    """(batch, size, pixels): each output pixel's share of each input pixel, inside the box only.

    A triangle about start + (i + 1/2) length / size for output i, of half-width max(1, length / size).
    """
    position = torch.arange(size, device=start.device) + 0.5
    pixel = torch.arange(pixels, device=start.device) + 0.5
    scale = (length / size)[:, None, None]
    start, end = start[:, None, None], (start + length)[:, None, None]
    centre = start + position[None, :, None] * scale
    weight = (1 - (pixel - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    weight = weight * ((pixel > start) & (pixel < end))
    return weight / weight.sum(dim=2, keepdim=True)
