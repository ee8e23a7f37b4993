"""Samples on the training device: images or points, and views of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional as F

from surefoot.lab.images.cache import Decoded
from surefoot.lab.images.decode import Size
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks.features import Encoding
from surefoot.lab.tasks.task import ImageFiles, Split, Task, decode_task, refuse_shared_rows
from surefoot.lab.training.augment import (
    DRAWS,
    STRONG_DRAWS,
    Crops,
    centre_crops,
    erase,
    jitter,
    normalise,
    random_changes,
    random_crops,
    resample,
    rotate,
)
from surefoot.runtime import derive_seed

LARGEST_FIXED_VIEWS = 2**27  # float32 numbers of views that are computed once: 512 MiB
DRAWS_PER_VIEW = {"none": 0, "inception": DRAWS, "strong": DRAWS + STRONG_DRAWS}
SHARE_OF_MEMORY = 0.4  # of a device's free memory for a split's pixels; larger ones are streamed


def generator(*parts: object, device: torch.device | str = "cpu") -> Generator:
    """A new generator, seeded from names and numbers."""
    return Generator(device=device).manual_seed(derive_seed(*parts))


@dataclass(frozen=True, eq=False)
class FeatureLayout:
    """Which numbers of a vector make a feature, and how it looks where it is unknown: all (dimensions,)."""

    positions: Tensor  # the feature that each number belongs to
    continuous: Tensor  # whether it is a number, and not the mark of a category or of a missing value
    blank: Tensor

    @staticmethod
    def of(encoding: Encoding) -> "FeatureLayout":
        """Of the rows of a table."""
        arrays = (encoding.positions(), encoding.continuous(), encoding.blank())
        return FeatureLayout(*map(torch.from_numpy, arrays))

    @staticmethod
    def plain(dimensions: int) -> "FeatureLayout":
        """Each number is a feature, and 0 where it is unknown."""
        return FeatureLayout(
            torch.arange(dimensions), torch.ones(dimensions, dtype=torch.bool), torch.zeros(dimensions)
        )

    def on(self, device: torch.device) -> "FeatureLayout":
        """The same on a device."""
        return FeatureLayout(self.positions.to(device), self.continuous.to(device), self.blank.to(device))


@dataclass(frozen=True, eq=False)
class Points:
    """Samples that are vectors, or views of images computed once.

    In training, `noise` is the deviation of Gaussian noise on their numbers, and `dropout` the share of
    features that are made unknown. Without these there are no random views.
    """

    values: Tensor  # (n, dimensions) or (n, channels, height, width), float32
    noise: float = 0.0
    dropout: float = 0.0
    layout: FeatureLayout | None = None  # needed where one of them is not 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def has_random_views(self) -> bool:
        """Whether epochs have different views."""
        return bool(self.noise or self.dropout)

    def for_recipe(self, recipe: Recipe) -> "Points":
        """With the recipe's noise and dropout of features."""
        return replace(self, noise=recipe.feature_noise, dropout=recipe.feature_dropout)

    def on(self, device: torch.device) -> "Points":
        """The same samples on a device."""
        layout = None if self.layout is None else self.layout.on(device)
        return replace(self, values=self.values.to(device), layout=layout)

    def with_fixed_views(self) -> "Points":
        """The views of every epoch, computed once."""
        return self

    def take(self, rows: Tensor) -> "Points":
        """The named rows."""
        return replace(self, values=self.values[rows])

    def fetch(self, rows: Tensor, device: torch.device) -> Tensor:
        """The raw samples of the named rows, on the device."""
        return self.values[rows.to(self.values.device)].to(device)

    def draws(self, steps: int, batch: int, random: torch.Generator) -> Tensor:
        """The random numbers of an epoch's views: (steps, numbers, batch), drawn on the host."""
        numbers = 0
        if self.has_random_views:
            assert self.layout is not None
            features = int(self.layout.positions[-1]) + 1
            numbers = (len(self.layout.blank) if self.noise else 0) + (features if self.dropout else 0)
        return torch.rand(steps, numbers, batch, generator=random)

    def training_views(self, raw: Tensor, _rows: Tensor, draws: Tensor) -> Tensor:
        """The vectors with noise on their numbers, then with some of their features unknown."""
        if not self.has_random_views:
            return raw
        assert self.layout is not None
        views = raw
        if self.noise:
            uniform, draws = draws[: raw.shape[1]].T, draws[raw.shape[1] :]
            limit = 1 - torch.finfo(torch.float32).eps
            normal = math.sqrt(2) * torch.erfinv((2 * uniform - 1).clamp(-limit, limit))
            views = torch.where(self.layout.continuous, views + self.noise * normal, views)
        if self.dropout:
            unknown = (self.dropout > draws.T)[:, self.layout.positions]
            views = torch.where(unknown, self.layout.blank, views)
        return views

    def test_views(self, raw: Tensor, _rows: Tensor) -> Tensor:  # noqa: PT019  no fixture
        """The network's inputs in testing."""
        return raw


@dataclass(frozen=True, eq=False)
class Images:
    """Samples that are images, padded to one shape; a view is a crop, resized, augmented, normalised."""

    pixels: Tensor  # (n, channels, height, width) uint8, the image at the top left
    heights: Tensor  # (n,)
    widths: Tensor
    view: int
    share: float  # of the short side that is in the test crop
    augmentation: str

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def has_random_views(self) -> bool:
        """Whether epochs have different views."""
        return self.augmentation != "none"

    def for_recipe(self, recipe: Recipe) -> "Images":
        """With the recipe's augmentation."""
        return replace(self, augmentation=recipe.augmentation)

    def on(self, device: torch.device) -> "Images":
        """On the device where they fit; else pinned on the host, to be streamed."""
        pixels = self.pixels
        if pixels.device.type != device.type:
            free, _ = torch.cuda.mem_get_info(device)
            fits = pixels.numel() <= SHARE_OF_MEMORY * free
            pixels = pixels.to(device) if fits else pixels.pin_memory()
        return replace(
            self,
            pixels=pixels,
            heights=self.heights.to(device),
            widths=self.widths.to(device),
        )

    def with_fixed_views(self) -> "Points | Images":
        """Views computed once where every epoch has the same ones, and they are not too large."""
        size = len(self) * self.pixels.shape[1] * self.view**2
        if self.has_random_views or self.pixels.is_cuda or size > LARGEST_FIXED_VIEWS:
            return self
        parts = torch.split(torch.arange(len(self)), 256)
        return Points(torch.cat([self.test_views(self.pixels[rows], rows) for rows in parts]))

    def take(self, rows: Tensor) -> "Images":
        """The named rows."""
        return replace(self, pixels=self.pixels[rows], heights=self.heights[rows], widths=self.widths[rows])

    def fetch(self, rows: Tensor, device: torch.device) -> Tensor:
        """The raw pixels of the named rows, on the device."""
        if self.pixels.device.type == device.type:
            return self.pixels[rows.to(device)]
        return self.pixels[rows.cpu()].pin_memory().to(device, non_blocking=True)

    def draws(self, steps: int, batch: int, random: torch.Generator) -> Tensor:
        """The random numbers of an epoch's views: (steps, numbers, batch), drawn on the host."""
        return torch.rand(steps, DRAWS_PER_VIEW[self.augmentation], batch, generator=random)

    def training_views(self, raw: Tensor, rows: Tensor, draws: Tensor) -> Tensor:
        """Random crops, changed where augmentation is strong; centre crops without augmentation."""
        if not self.has_random_views:
            return self.test_views(raw, rows)
        crops = random_crops(self.heights[rows], self.widths[rows], draws[:DRAWS])
        box = (crops.top, crops.left, crops.height, crops.width, crops.mirrored)
        if self.augmentation == "strong":
            make = _fused(_strong_views) if raw.is_cuda else _strong_views
            return make(raw, *box, draws, self.view)
        make = _fused(_plain_views) if raw.is_cuda else _plain_views
        return make(raw, *box, self.view)

    def test_views(self, raw: Tensor, rows: Tensor) -> Tensor:
        """Centre crops."""
        crops = centre_crops(self.heights[rows], self.widths[rows], self.share)
        return _plain_views(raw, crops.top, crops.left, crops.height, crops.width, crops.mirrored, self.view)


Inputs = Points | Images


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Parts of one task, in this order; images are padded to the largest shape."""
    points = [part for part in parts if isinstance(part, Points)]
    images = [part for part in parts if isinstance(part, Images)]
    if points:
        assert not images, "points and images in one task"
        return replace(points[0], values=torch.cat([part.values for part in points]))
    pixels = [part.pixels for part in images]
    height, width = (max(part.shape[axis] for part in pixels) for axis in (2, 3))
    padded = [F.pad(part, (0, width - part.shape[3], 0, height - part.shape[2])) for part in pixels]
    return replace(
        images[0],
        pixels=torch.cat(padded),
        heights=torch.cat([part.heights for part in images]),
        widths=torch.cat([part.widths for part in images]),
    )


def fetched(
    inputs: Inputs, batches: Iterable[Tensor], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each batch's rows and raw samples; streamed ones are fetched while the previous batch is processed."""
    stored = inputs.values if isinstance(inputs, Points) else inputs.pixels
    if stored.device.type == device.type:
        for rows in [rows.to(device, non_blocking=True) for rows in batches]:
            yield rows, inputs.fetch(rows, device)
        return
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for rows in batches:
            following = (rows, pool.submit(inputs.fetch, rows, device))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def images_from(images: Decoded | NDArray[Any], *, view: int, resize: int, augmentation: str) -> Images:
    """Decoded images, or an array (n, height, width, channels), padded to one shape.

    An image longer than twice its short side is cropped to that, about its middle: the longest image decides
    the padding, and no crop of the recipe is as long.
    """
    cut = []
    for image in (images[row] for row in range(len(images))):
        longest = 2 * min(image.shape[:2])
        top, left = (max(0, (side - longest) // 2) for side in image.shape[:2])
        cut.append(image[top : top + longest, left : left + longest])
    height, width = (max(image.shape[axis] for image in cut) for axis in (0, 1))
    pixels = torch.zeros(len(cut), cut[0].shape[2], height, width, dtype=torch.uint8)
    for into, image in zip(pixels, cut, strict=True):
        into[:, : image.shape[0], : image.shape[1]] = torch.from_numpy(image.copy()).permute(2, 0, 1)
    heights, widths = (torch.tensor([image.shape[axis] for image in cut]) for axis in (0, 1))
    return Images(pixels, heights, widths, view, min(1.0, view / resize), augmentation)


def _plain_views(
    raw: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, mirrored: Tensor, view: int
) -> Tensor:
    """Crops of raw pixels, ready for the network."""
    views = normalise(resample(_floating(raw), Crops(top, left, height, width, mirrored), view))
    return views.contiguous(memory_format=torch.channels_last)


def _strong_views(
    raw: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    mirrored: Tensor,
    draws: Tensor,
    view: int,
) -> Tensor:
    """The same with the changes of strong augmentation, from the numbers that follow the crop's."""
    changes = random_changes(draws[DRAWS : DRAWS + STRONG_DRAWS], view)
    views = resample(_floating(raw), Crops(top, left, height, width, mirrored), view, changes.blur)
    views = normalise(jitter(rotate(views, changes.angle), changes))
    return erase(views, changes.erased).contiguous(memory_format=torch.channels_last)


def _floating(raw: Tensor) -> Tensor:
    """Half precision holds 0..255 exactly, and is what the matrix units of a GPU take."""
    return raw.to(torch.float16 if raw.is_cuda else torch.float32)


@cache
def _fused(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same fused into a few kernels on a GPU, for each batch's size."""
    return cast(Callable[..., Tensor], torch.compile(make, dynamic=False))


def _points(values: NDArray[Any], task: Task) -> Points:
    encoding = task.encoding
    layout = FeatureLayout.plain(values.shape[1]) if encoding is None else FeatureLayout.of(encoding)
    return Points(torch.from_numpy(values).float(), layout=layout)


def task_inputs(
    task: Task, recipe: Recipe, *, cache: Path, tick: Callable[[int], None] | None = None
) -> Mapping[Split, Inputs]:
    """Every split's samples: images decoded to the recipe's size, arrays as they are."""
    decoded = decode_task(task, Size(recipe.resize), cache=cache, tick=tick)
    refuse_shared_rows(task)
    inputs: dict[Split, Inputs] = {}
    for split, samples in task.splits.items():
        if not isinstance(samples.inputs, ImageFiles) and samples.inputs.ndim == 2:
            inputs[split] = _points(samples.inputs, task).for_recipe(recipe)
            continue
        images = decoded[split] if isinstance(samples.inputs, ImageFiles) else samples.inputs
        inputs[split] = images_from(
            images, view=recipe.view, resize=recipe.resize, augmentation=recipe.augmentation
        )
    return inputs
