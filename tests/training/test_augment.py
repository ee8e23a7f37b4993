"""The views against Pillow's, and the crops against their definition."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter

from surefoot.lab.training import augment
from surefoot.lab.training.augment import (
    ASPECT,
    DRAWS,
    MEAN,
    SPREAD,
    STRONG_DRAWS,
    Changes,
    Crops,
    centre_crops,
    erase,
    jitter,
    normalise,
    random_changes,
    resample,
    rotate,
)
from surefoot.lab.training.data import Points, images_from

ANGLE, BRIGHTNESS, CONTRAST, SATURATION, GREYSCALE, BLURRED, BLUR, ERASED = range(DRAWS, DRAWS + 8)


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


def batch(*images):
    return torch.stack([torch.from_numpy(image.copy()).permute(2, 0, 1) for image in images]).float()


def array(views):
    return views.permute(0, 2, 3, 1).numpy()


def smooth(size, seed=0):
    rng = np.random.default_rng(seed)
    return np.asarray(
        Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize((size, size), 3)
    )


def bilinear(image, down, across):
    """One pixel at a position in pixels, whose border is repeated: the definition."""
    rows, columns = image.shape[:2]
    down, across = np.clip(down, 0, rows - 1), np.clip(across, 0, columns - 1)
    top, left = int(down), int(across)
    bottom, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
    below, beside = down - top, across - left
    upper = (1 - beside) * image[top, left] + beside * image[top, right]
    lower = (1 - beside) * image[bottom, left] + beside * image[bottom, right]
    return (1 - below) * upper + below * lower


def rotated(image, degrees):
    """Anticlockwise by rotating the position of each output pixel clockwise, one at a time."""
    size = len(image)
    middle, angle = (size - 1) / 2, np.deg2rad(degrees)
    result = np.empty(image.shape)
    for row in range(size):
        for column in range(size):
            y, x = row - middle, column - middle
            down, across = np.sin(angle) * x + np.cos(angle) * y, np.cos(angle) * x - np.sin(angle) * y
            result[row, column] = bilinear(image.astype(float), middle + down, middle + across)
    return result


@pytest.mark.parametrize("degrees", [-15.0, -3.5, 0.0, 8.0, 15.0])
def test_rotation(degrees):
    image = photograph(25, 25)
    found = array(rotate(batch(image), torch.tensor([degrees])))[0]
    assert np.abs(found - rotated(image, degrees)).max() < 0.05


def test_rotation_agrees_with_pillow():
    """But for Pillow's rounding, and outside the circle where it has no pixels and we repeat the border."""
    image = photograph(64, 64)
    expected = np.asarray(Image.fromarray(image).rotate(11, Image.Resampling.BILINEAR)).astype(float)
    found = array(rotate(batch(image), torch.tensor([11.0])))[0]
    y, x = np.mgrid[:64, :64] - 31.5
    assert np.abs(found - expected)[np.hypot(x, y) < 30].max() <= 1.01


def changes(brightness=1.0, contrast=1.0, saturation=1.0, count=1):
    one = torch.ones(count)
    none = Crops(0 * one, 0 * one, 0 * one, 0 * one, one > 1)
    return Changes(0 * one, brightness * one, contrast * one, saturation * one, 0 * one, none)


def blended(image, other, factor):
    return np.clip(factor * image + (1 - factor) * other, 0, 255)


def grey(image):
    return (image @ np.array([0.2989, 0.587, 0.114]))[..., None]


@pytest.mark.parametrize("factors", [(0.6, 1, 1), (1.4, 1, 1), (1, 0.7, 1), (1, 1.4, 1), (1, 1, 0.6),
                                     (1, 1, 1.4), (1, 1, 0), (1.3, 1.2, 0.8), (0.7, 1.4, 1.4)])  # fmt: skip
def test_jitter(factors):
    """torchvision's functional_tensor: blend with black, with the mean grey, with each pixel's grey."""
    image = photograph(30, 30, seed=2)
    expected = blended(image.astype(float), 0, factors[0])
    expected = blended(expected, grey(expected).mean(), factors[1])
    expected = blended(expected, grey(expected), factors[2])
    found = array(jitter(batch(image), changes(*factors)))[0]
    assert np.abs(found - expected).max() < 0.01


@pytest.mark.parametrize("factor", [0.6, 1.4])
@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Color"])
def test_jitter_agrees_with_pillow(name, factor):
    """Pillow rounds the grey (its weights differ in the fourth digit), the mean and the result."""
    image = photograph(30, 30, seed=3)
    expected = np.asarray(getattr(ImageEnhance, name)(Image.fromarray(image)).enhance(factor))
    value = {"Brightness": "brightness", "Contrast": "contrast", "Color": "saturation"}[name]
    found = array(jitter(batch(image), changes(**{value: factor})))[0]
    assert np.abs(found - expected.astype(float)).max() <= 1.5


def test_jitter_of_grey_images():
    """One channel has no saturation, and three equal ones have none to change."""
    image = photograph(20, 20)[:, :, :1]
    expected = blended(image.astype(float), 0, 1.2)
    expected = blended(expected, expected.mean(), 0.8)
    for factor in (0, 0.6, 1.4):
        one = array(jitter(batch(image), changes(1.2, 0.8, factor)))[0]
        three = array(jitter(batch(image.repeat(3, axis=2)), changes(1.2, 0.8, factor)))[0]
        assert np.abs(one - expected).max() < 0.01
        assert np.abs(three - expected).max() < 255e-4 * 1.2  # the weights of grey sum to 0.9999


def blurred(image, spread):
    """Each axis one pixel at a time: a Gaussian's weights of the pixels there are."""
    for axis in (0, 1):
        image = np.moveaxis(image.astype(float), axis, 0)
        result = np.empty(image.shape)
        for pixel in range(len(image)):
            weight = np.exp(-0.5 * ((np.arange(len(image)) - pixel) / spread) ** 2)
            result[pixel] = np.tensordot(weight / weight.sum(), image, 1)
        image = np.moveaxis(result, 0, axis)
    return image


@pytest.mark.parametrize("spread", [0.2, 0.7, 2.0])
def test_blur(spread):
    image, box = photograph(60, 80), (5, 7, 30, 40)
    pixels = batch(image)
    found = array(resample(pixels, crops(box), 24, torch.tensor([spread])))[0]
    assert np.abs(found - blurred(view(image, box, 24), spread)).max() < 0.01


def test_blur_agrees_with_pillow():
    """Pillow approximates the Gaussian by three box blurs; at the border it repeats pixels."""
    image = photograph(64, 64)
    expected = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(2))).astype(float)
    found = array(resample(batch(image), crops((0, 0, 64, 64)), 64, torch.tensor([2.0])))[0]
    assert np.abs(found - expected)[8:-8, 8:-8].max() < 2.5
    assert np.abs(found - image)[8:-8, 8:-8].max() > 25


def test_erasing():
    views = torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(0))
    found = erase(views, crops((0, 0, 0, 0), (2, 3, 4, 5), (9, 0, 3, 12)))
    expected = views.clone()
    expected[1, :, 2:6, 3:8] = 0
    expected[2, :, 9:, :] = 0
    assert torch.equal(found, expected)


def test_changes_are_distributed_as_stated():
    n, size = 100_000, 56
    found = random_changes(torch.rand(STRONG_DRAWS, n, generator=torch.Generator().manual_seed(0)), size)

    def uniform(values, low, high):
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() <= high
        assert values.mean() == pytest.approx((low + high) / 2, abs=0.01 * (high - low))

    uniform(found.angle, -15, 15)
    uniform(found.brightness, 0.6, 1.4)
    uniform(found.contrast, 0.6, 1.4)
    uniform(found.saturation[found.saturation > 0], 0.6, 1.4)
    uniform(found.blur[found.blur > 0], 0.05, 1.0)  # half of the standard deviations at 112 pixels
    assert (found.saturation == 0).float().mean() == pytest.approx(0.1, abs=0.005)
    assert (found.blur > 0).float().mean() == pytest.approx(0.2, abs=0.005)
    erased = found.erased
    some = erased.height > 0
    assert some.float().mean() == pytest.approx(0.25, abs=0.005)
    assert torch.equal(some, erased.width > 0)
    for start, length in ((erased.top, erased.height), (erased.left, erased.width)):
        assert (start >= 0).all()
        assert (start + length <= size).all()
        assert (start + length == size).any()
    area = (erased.height * erased.width)[some] / size**2
    assert 0.015 < area.min() < 0.025
    assert 0.19 < area.max() < 0.21
    assert area.mean() == pytest.approx(0.11, abs=0.002)
    ratio = (erased.height / erased.width)[some].log()
    assert ratio.mean() == pytest.approx(np.log(0.3 * 3.3) / 2, abs=0.02)
    assert ratio.max() == pytest.approx(np.log(3.3), abs=0.15)
    assert ratio.min() == pytest.approx(np.log(0.3), abs=0.15)


def test_changes_are_independent():
    found = random_changes(torch.rand(STRONG_DRAWS, 50_000, generator=torch.Generator().manual_seed(0)), 64)
    erased = found.erased
    values = [found.angle, found.brightness, found.contrast, found.saturation, found.blur,
              erased.height * erased.width, erased.top, erased.left]  # fmt: skip
    correlation = np.corrcoef(torch.stack(values))
    correlation[5:, 5:] = 0  # all zero where nothing is erased
    assert np.abs(correlation - np.diag(np.diag(correlation))).max() < 0.03


def neutral(count, seed=0):
    """Random crops that are not changed."""
    draws = torch.rand(DRAWS + STRONG_DRAWS, count, generator=torch.Generator().manual_seed(seed))
    draws[[ANGLE, BRIGHTNESS, CONTRAST, SATURATION]] = 0.5
    draws[[GREYSCALE, BLURRED, ERASED]] = 0.999
    return draws


def inputs(augmentation, channels=3, shapes=((40, 60), (64, 48), (30, 30), (50, 64)), size=24):
    images = [photograph(*shape, seed=seed)[:, :, :channels] for seed, shape in enumerate(shapes)]
    return images_from(images, view=size, resize=size, augmentation=augmentation)


def strong(samples, draws, rows):
    return samples.training_views(samples.pixels[rows], rows, draws[:, rows])


@pytest.mark.parametrize("channels", [1, 3])
def test_neutral_numbers_give_the_inception_view(channels):
    draws, rows = neutral(4), torch.arange(4)
    expected = strong(inputs("inception", channels), draws, rows)
    found = strong(inputs("strong", channels), draws, rows)
    assert torch.allclose(found, expected, atol=0.002)
    assert found.shape == (4, channels, 24, 24)


def test_a_strong_view_is_its_operations_in_order():
    """All at once, against the oracles: blur, rotation, jitter, erasing."""
    draws, rows = neutral(4), torch.arange(4)
    draws[[ANGLE, BRIGHTNESS, CONTRAST, SATURATION]] = torch.tensor([[0.9], [0.8], [0.3], [0.7]])
    draws[[BLURRED, BLUR, ERASED]] = torch.tensor([[0.1], [0.9], [0.1]])
    draws[ERASED + 1 :] = torch.tensor([[0.5], [0.5], [0.3], [0.6]])
    spread, height = (0.1 + 0.9 * 1.9) * 24 / 112, round((24**2 * 0.11 * (0.3 * 3.3) ** 0.5) ** 0.5)
    width = round((24**2 * 0.11 / (0.3 * 3.3) ** 0.5) ** 0.5)
    top, left = int(0.3 * (25 - height)), int(0.6 * (25 - width))
    plain = array(strong(inputs("inception"), draws, rows)) * SPREAD + MEAN
    for found, image in zip(array(strong(inputs("strong"), draws, rows)), plain * 255, strict=True):
        expected = blended(rotated(blurred(image, spread), 12), 0, 1.24)
        expected = blended(expected, grey(expected).mean(), 0.84)
        expected = (blended(expected, grey(expected), 1.16) / 255 - MEAN) / SPREAD
        expected[top : top + height, left : left + width] = 0
        assert np.abs(found - expected).max() < 0.01


def test_a_strong_view_depends_on_its_own_image_and_numbers_only():
    samples = inputs("strong")
    draws = samples.draws(1, 4, torch.Generator().manual_seed(5))[0]
    together = strong(samples, draws, torch.arange(4))
    for row in range(4):
        alone = strong(samples, draws, torch.tensor([row]))
        assert torch.allclose(alone[0], together[row], atol=1e-4)
    assert torch.equal(strong(samples, draws, torch.arange(4)), together)


def test_padding_never_shows_in_a_strong_view():
    draws = torch.rand(DRAWS + STRONG_DRAWS, 4, generator=torch.Generator().manual_seed(6))
    samples, other = inputs("strong"), inputs("strong")
    for row, (height, width) in enumerate(zip(other.heights, other.widths, strict=True)):
        other.pixels[row, :, height:] = 255
        other.pixels[row, :, :, width:] = 255
    assert not torch.equal(other.pixels, samples.pixels)
    assert torch.equal(strong(other, draws, torch.arange(4)), strong(samples, draws, torch.arange(4)))


def test_greyscale_views_are_grey():
    draws, rows = neutral(4), torch.arange(4)
    draws[GREYSCALE] = 0.05
    views = array(strong(inputs("strong"), draws, rows)) * SPREAD + MEAN
    plain = array(strong(inputs("inception"), draws, rows)) * SPREAD + MEAN
    assert np.abs(views - grey(plain)).max() < 0.001


def test_numbers_per_view():
    for augmentation, count in (("none", 0), ("inception", 23), ("strong", 35)):
        drawn = inputs(augmentation).draws(3, 4, torch.Generator().manual_seed(1))
        assert torch.equal(drawn, torch.rand(3, count, 4, generator=torch.Generator().manual_seed(1)))
    assert Points(torch.zeros(5, 2)).draws(3, 4, torch.Generator()).shape == (3, 0, 4)


def test_numbers_after_a_view_s_own_are_ignored():
    """A training may append its own, such as mixup's."""
    for augmentation in ("inception", "strong"):
        samples, rows = inputs(augmentation), torch.arange(4)
        draws = samples.draws(1, 4, torch.Generator().manual_seed(2))[0]
        more = torch.cat([draws, torch.rand(2, 4)])
        assert torch.equal(strong(samples, more, rows), strong(samples, draws, rows))


def test_half_precision():
    """As on a GPU: within a few of 255 levels of the views in single precision."""
    pixels = batch(photograph(64, 64, seed=1), photograph(64, 64, seed=2))
    found = random_changes(torch.rand(STRONG_DRAWS, 2, generator=torch.Generator().manual_seed(2)), 48)
    boxes = crops((3, 5, 50, 40), (0, 0, 64, 64))
    single, half = (
        jitter(rotate(resample(values, boxes, 48, found.blur), found.angle), found)
        for values in (pixels, pixels.half())
    )
    assert half.dtype == torch.float16
    assert (half.float() - single).abs().max() < 1


@pytest.mark.parametrize("augmentation", ["inception", "strong"])
def test_views_never_read_a_value_on_the_host(augmentation):
    """Tensors without values: a captured step may neither wait for one nor let it decide a shape."""
    samples = inputs(augmentation)
    draws = samples.draws(1, 4, torch.Generator())[0]
    values = {name: getattr(samples, name).to("meta") for name in ("pixels", "heights", "widths")}
    without = replace(samples, **values)
    found = without.training_views(without.pixels, torch.arange(4, device="meta"), draws.to("meta"))
    assert found.shape == (4, 3, 24, 24)
