"""The views against Pillow's, and the crops against their definition."""

import numpy as np
import pytest
import torch
from PIL import Image

from surefoot.training import augment
from surefoot.training.augment import ASPECT, DRAWS, Crops, centre_crops, normalise, resample


def random_crops(heights, widths, generator):
    return augment.random_crops(heights, widths, torch.rand(DRAWS, len(heights), generator=generator))


def photograph(height, width, seed=0):
    """Something with coarse and fine detail."""
    rng = np.random.default_rng(seed)
    coarse = np.asarray(
        Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height), 3)
    )
    return np.clip(coarse.astype(int) + rng.integers(-40, 40, (height, width, 3)), 0, 255).astype(np.uint8)


def crops(*boxes, mirrored=False):
    top, left, height, width = (
        torch.tensor(values, dtype=torch.float32) for values in zip(*boxes, strict=True)
    )
    return Crops(top, left, height, width, torch.full((len(boxes),), mirrored))


def view(image, box, size, *, mirrored=False):
    pixels = torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0).float()
    return resample(pixels, crops(box, mirrored=mirrored), size)[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    "box", [(0, 0, 60, 80), (5, 7, 20, 30), (10, 0, 50, 37), (0, 40, 9, 8), (3, 3, 32, 32)]
)
@pytest.mark.parametrize("size", [16, 32, 48])
def test_agrees_with_pillow(box, size):
    """Enlarged and reduced, any box: the same pixels, but for Pillow's rounding to whole numbers."""
    image = photograph(60, 80)
    top, left, height, width = box
    cut = Image.fromarray(image).crop((left, top, left + width, top + height))
    expected = np.asarray(cut.resize((size, size), Image.Resampling.BILINEAR)).astype(float)
    found = view(image, box, size)
    assert np.abs(found - expected).max() <= 1.01
    assert abs((found - expected).mean()) < 0.3  # Pillow rounds halves up


def test_a_mirrored_view_is_the_view_mirrored():
    image = photograph(40, 50)
    assert np.allclose(
        view(image, (2, 3, 30, 40), 24, mirrored=True), view(image, (2, 3, 30, 40), 24)[:, ::-1], atol=1e-3
    )


def test_padding_outside_an_image_never_shows():
    image = photograph(30, 30)
    padded = np.full((64, 64, 3), 255, dtype=np.uint8)
    padded[:30, :30] = image
    assert np.array_equal(view(image, (0, 0, 30, 30), 16), view(padded, (0, 0, 30, 30), 16))


def test_crops_are_inception_s():
    heights, widths = torch.full((20_000,), 150), torch.full((20_000,), 200)
    found = random_crops(heights, widths, torch.Generator().manual_seed(0))
    assert (found.top >= 0).all()
    assert (found.left >= 0).all()
    assert (found.top + found.height <= 150).all()
    assert (found.left + found.width <= 200).all()
    share = found.height * found.width / (150 * 200)
    assert share.min() > 0.075
    aspect = found.width / found.height
    assert aspect.min() > ASPECT[0] * 0.97
    assert aspect.max() < ASPECT[1] * 1.03
    assert found.mirrored.float().mean() == pytest.approx(0.5, abs=0.02)


def test_crop_statistics_agree_with_drawing_one_at_a_time():
    """The rule as torchvision's documentation states it, in a plain loop."""
    rng = np.random.default_rng(0)
    expected = []
    for _ in range(20_000):
        for _ in range(10):
            area, aspect = 150 * 200 * rng.uniform(0.08, 1), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
            width, height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
            if width <= 200 and height <= 150:
                break
        else:
            width, height = 200, 150
        expected.append((height, width))
    expected = np.array(expected, dtype=float)
    found = random_crops(
        torch.full((20_000,), 150), torch.full((20_000,), 200), torch.Generator().manual_seed(0)
    )
    for mine, theirs in ((found.height, expected[:, 0]), (found.width, expected[:, 1])):
        assert mine.mean() == pytest.approx(theirs.mean(), rel=0.01)
        assert mine.std() == pytest.approx(theirs.std(), rel=0.03)


def test_an_image_that_no_crop_fits_gives_its_middle():
    found = random_crops(torch.tensor([10]), torch.tensor([1000]), torch.Generator().manual_seed(0))
    assert found.height.item() == 10
    assert found.width.item() <= 14


def test_centre_crop_is_resize_then_crop():
    """Pillow's two steps, each rounding, against our one."""
    image = photograph(128, 192)
    resized = Image.fromarray(image).resize((96, 64), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((20, 4, 76, 60))).astype(float)
    box = centre_crops(torch.tensor([128]), torch.tensor([192]), 56 / 64)
    pixels = torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0).float()
    found = resample(pixels, box, 56)[0].permute(1, 2, 0).numpy()
    inner = (slice(2, -2), slice(2, -2))  # at the rim Pillow sees pixels beyond the crop
    assert np.abs(found[inner] - expected[inner]).max() <= 1.01


def test_same_generator_same_views():
    pixels = torch.from_numpy(photograph(40, 40)).permute(2, 0, 1).unsqueeze(0).float().repeat(8, 1, 1, 1)
    sides = torch.full((8,), 40)
    first, again = (
        resample(pixels, random_crops(sides, sides, torch.Generator().manual_seed(3)), 20) for _ in range(2)
    )
    assert torch.equal(first, again)


def test_normalised_pixels():
    assert normalise(torch.full((1, 3, 1, 1), 255 * 0.485))[0, 0, 0, 0] == pytest.approx(0, abs=1e-6)
    assert normalise(torch.zeros(1, 1, 2, 2)).shape == (1, 1, 2, 2)
