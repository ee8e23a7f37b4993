"""Views of a whole batch at once, on the device that trains: crops, and the changes of strong augmentation.

A crop, its resize, its mirror and its blur are one linear map per axis, so a batch of views is two batched
matrix products: rows @ image @ columns. The weights are those of an antialiased bilinear resize (a triangle
as wide as the reduction), the same as Pillow's. All random numbers are arguments, and nothing here
synchronises with the host.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ATTEMPTS = 10
DRAWS = 2 * ATTEMPTS + 3  # random numbers per crop
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
MEAN = (0.485, 0.456, 0.406)  # of ImageNet, which Places365's and torchvision's weights expect
SPREAD = (0.229, 0.224, 0.225)

# Strong augmentation, after the crop.
STRONG_DRAWS = 12  # random numbers per view, in addition to the crop's
ROTATION = 15.0  # degrees, to either side
JITTER = (0.6, 1.4)  # factors of brightness, contrast and saturation
GREYSCALE_SHARE = 0.1  # of the views
BLUR_SHARE = 0.2
BLUR = (0.1, 2.0)  # standard deviations, in pixels of a view of BLUR_VIEW
BLUR_VIEW = 112
ERASED_SHARE = 0.25
ERASED_AREA = (0.02, 0.2)  # of the view; with these aspects a box always fits
ERASED_ASPECT = (0.3, 3.3)
LUMA = (0.2989, 0.587, 0.114)  # shares of red, green and blue in grey


@dataclass(frozen=True, eq=False)
class Crops:
    """A box per image, in its own pixels, and whether the view is mirrored: all of shape (batch,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    mirrored: Tensor


@dataclass(frozen=True, eq=False)
class Changes:
    """What strong augmentation does to each view, of `size` pixels: all of shape (batch,)."""

    angle: Tensor  # in degrees, anticlockwise
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor  # 0 is greyscale
    blur: Tensor  # standard deviation in pixels
    erased: Crops  # a box of the view; an empty one erases nothing


def random_crops(heights: Tensor, widths: Tensor, draws: Tensor) -> Crops:
    """Inception crops: area 8% to 100%, aspect 3/4 to 4/3, any position; half of them mirrored.

    `draws` are uniform random numbers (DRAWS, batch).

    Ten shapes are drawn and the first that fits is used; where none fits, the largest centred box whose
    aspect is allowed. Szegedy et al., CVPR 2015.
    """
    tall, wide = heights.float(), widths.float()
    area = _uniform(draws[:ATTEMPTS], AREA) * tall * wide
    aspect = _log_uniform(draws[ATTEMPTS : 2 * ATTEMPTS], ASPECT)
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


def random_changes(draws: Tensor, size: int) -> Changes:
    """The changes of strong augmentation, from uniform random numbers (STRONG_DRAWS, batch).

    Jitter as in torchvision's ColorJitter, in a fixed order; erasing as in Zhong et al., AAAI 2020. A
    greyscale view is one of saturation 0: on a grey view saturation has no effect, so their order is
    irrelevant.
    """
    angle, brightness, contrast, saturation, greyscale, blurred, blur, *erasing = draws.unbind()
    erased, area, aspect, top, left = erasing
    scale = size / BLUR_VIEW
    area, aspect = size**2 * _uniform(area, ERASED_AREA), _log_uniform(aspect, ERASED_ASPECT)
    is_erased = erased < ERASED_SHARE
    height, width = ((value.sqrt().round() * is_erased) for value in (area * aspect, area / aspect))
    top, left = (top * (size - height + 1)).floor(), (left * (size - width + 1)).floor()
    return Changes(
        angle=_uniform(angle, (-ROTATION, ROTATION)),
        brightness=_uniform(brightness, JITTER),
        contrast=_uniform(contrast, JITTER),
        saturation=_uniform(saturation, JITTER) * (greyscale >= GREYSCALE_SHARE),
        blur=_uniform(blur, (BLUR[0] * scale, BLUR[1] * scale)) * (blurred < BLUR_SHARE),
        erased=Crops(top, left, height, width, torch.zeros_like(is_erased)),
    )


def resample(images: Tensor, crops: Crops, size: int, blur: Tensor | None = None) -> Tensor:
    """Views (batch, channels, size, size) of images (batch, channels, height, width) of a floating type.

    `blur` (batch,) is the standard deviation of a Gaussian blur of the view, in its pixels.
    """
    rows = _weights(crops.top, crops.height, images.shape[2], size)
    columns = _weights(crops.left, crops.width, images.shape[3], size)
    columns = torch.where(crops.mirrored[:, None, None], columns.flip(1), columns)
    rows, columns = (weights.to(images.dtype).unsqueeze(1) for weights in (rows, columns))
    if blur is not None:
        gaussian = _gaussian(blur, size).to(images.dtype).unsqueeze(1)
        rows, columns = gaussian @ rows, gaussian @ columns
    return rows @ images @ columns.transpose(2, 3)


def rotate(views: Tensor, angle: Tensor) -> Tensor:
    """Square views rotated anticlockwise about their middle, bilinear; the border's pixels are repeated."""
    size = views.shape[2]
    radians = torch.deg2rad(angle.float())[:, None, None]
    sine, cosine = radians.sin(), radians.cos()
    axis = (2 * torch.arange(size, device=views.device) + 1) / size - 1
    across, down = axis[None, None, :], axis[None, :, None]
    # Not affine_grid: its matrix product may be TF32 on a GPU, too coarse for positions; so is float16.
    grid = torch.stack([cosine * across - sine * down, sine * across + cosine * down], dim=3)
    turned = F.grid_sample(views.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return turned.to(views.dtype)


def jitter(views: Tensor, changes: Changes) -> Tensor:
    """Views of 0..255 with brightness, contrast and saturation multiplied, in this order, each clamped.

    Brightness is relative to black, contrast to the view's mean grey, saturation to each pixel's grey.
    """
    brightness, contrast, saturation = (
        factor.to(views.dtype)[:, None, None, None]
        for factor in (changes.brightness, changes.contrast, changes.saturation)
    )
    views = (views * brightness).clamp_(0, 255)
    mean = _grey(views.mean(dim=(2, 3), keepdim=True))
    views = torch.lerp(mean, views, contrast).clamp_(0, 255)
    if views.shape[1] == len(LUMA):
        views = torch.lerp(_grey(views), views, saturation).clamp_(0, 255)
    return views


def erase(views: Tensor, boxes: Crops) -> Tensor:
    """Normalised views with a box of zeros each, which is the mean colour."""
    position = torch.arange(views.shape[2], device=views.device)
    rows, columns = (
        (position >= start[:, None]) & (position < (start + length)[:, None])
        for start, length in ((boxes.top, boxes.height), (boxes.left, boxes.width))
    )
    return views.masked_fill((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), 0)


def normalise(views: Tensor) -> Tensor:
    """From 0..255 to about mean 0 and standard deviation 1; one channel uses the mean of the three."""
    return (views / 255 - _per_channel(MEAN, views)) / channel_spread(views)


def channel_spread(views: Tensor) -> Tensor:
    """What `normalise` divides each channel by, (1, channels, 1, 1)."""
    return _per_channel(SPREAD, views)


def _per_channel(values: tuple[float, ...], views: Tensor) -> Tensor:
    """A number per channel, created on the views' device: a captured step may copy nothing from the host."""
    channels = views.shape[1]
    if channels != len(values):
        values = (sum(values) / len(values),) * channels
    options: dict[str, Any] = {"device": views.device, "dtype": views.dtype}
    return torch.cat([torch.full((1, 1, 1, 1), value, **options) for value in values], dim=1)


def _uniform(draws: Tensor, ends: tuple[float, float]) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * draws


def _log_uniform(draws: Tensor, ends: tuple[float, float]) -> Tensor:
    return torch.exp(_uniform(draws, (math.log(ends[0]), math.log(ends[1]))))


def _grey(views: Tensor) -> Tensor:
    """One channel: the luma of three, or the only one."""
    if views.shape[1] != len(LUMA):
        return views.mean(dim=1, keepdim=True)
    red, green, blue = views[:, :1], views[:, 1:2], views[:, 2:]
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _gaussian(spread: Tensor, size: int) -> Tensor:
    """(batch, size, size): weights of a Gaussian blur; the view's own pixels sum to 1, also at its border."""
    pixel = torch.arange(size, device=spread.device)
    kernel = torch.exp(-0.5 * (pixel / spread.clamp(min=0.01)[:, None]).square())  # at 0.01 the identity
    weight = kernel[:, (pixel[:, None] - pixel).abs()]
    return weight / weight.sum(dim=2, keepdim=True)


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
