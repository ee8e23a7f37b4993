"""The most confident mistakes of a method, with their images."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from surefoot.errors import InputError
from surefoot.experiments.run import PartStudy
from surefoot.images.cache import read_pixels
from surefoot.images.decode import Fit, Size, decode
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions
from surefoot.report.style import SMALL, WIDTH, finished, plain_text
from surefoot.tasks import task_named
from surefoot.tasks.task import ImageFiles, Samples, Split
from surefoot.text import confidence_text

THUMBNAIL = 160  # pixels along the longer side
SMALL_IMAGE = 64  # up to here an image is not compressed, but written as PNG
ACROSS = 6
COUNT = 12
UNFAMILIAR = Split.TEST_UNFAMILIAR
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction. The text is as the user's file has it: escape it."""

    row: int
    true: str
    predicted: str
    confidence: float
    before: float | None = None  # the other predictions' confidence in the same label


@dataclass(frozen=True)
class Card:
    """A mistake with its image as a data URI."""

    image: str
    mistake: Mistake


@dataclass(frozen=True, eq=False)
class Gallery:
    """Cards, or the reason why there are none."""

    cards: tuple[Card, ...] = ()
    png: bytes | None = None
    before: str = ""  # the method whose mistakes they are
    after: str | None = None  # the method whose confidence is given as well
    absent: str | None = None


def most_confident_mistakes(
    predictions: Predictions, count: int, *, other: Predictions | None = None
) -> list[Mistake]:
    """The wrong predictions with the highest confidence, ties by row."""
    outcomes = predictions.outcomes
    wrong = np.flatnonzero(~outcomes.correct)
    chosen = wrong[np.lexsort((outcomes.row[wrong], -outcomes.confidence[wrong]))][:count]
    block_of = np.repeat(np.arange(len(outcomes.blocks)), [b.stop - b.start for b in outcomes.blocks])
    describe = _one_label if predictions.kind is LabelKind.ONE_LABEL else _many_labels
    return [
        describe(predictions, other, int(outcomes.row[i]), int(block_of[i]), float(outcomes.confidence[i]))
        for i in chosen
    ]


def gallery_png(images: Sequence[Pixels], mistakes: Sequence[Mistake], *, dpi: int = 150) -> bytes:
    """All of them in one PNG, the most confident first."""
    rows = -(-len(mistakes) // ACROSS)
    with rc_context(SMALL):
        figure = Figure(figsize=(WIDTH, 0.4 + 1.75 * rows), layout="constrained")
        panels: Any = figure.subplots(rows, ACROSS, squeeze=False)
        for axes in panels.flat:
            axes.set_axis_off()
        for axes, image, mistake in zip(panels.flat, images, mistakes, strict=False):
            _panel(axes, image, mistake)
        title = "The most confident mistakes: the predicted label, the true label, and the confidence."
        return finished(figure, "gallery", title).png(dpi=dpi)


def data_uri(image: Pixels) -> str:
    """A thumbnail to put into a page: PNG for small pictures, JPEG for others."""
    picture = _thumbnail(image)
    out = io.BytesIO()
    if max(image.shape[:2]) <= SMALL_IMAGE:
        picture.save(out, format="PNG", optimize=True)
        kind = "png"
    else:
        picture.save(out, format="JPEG", quality=80, optimize=True)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode('ascii')}"


def _one_label(
    predictions: Predictions, other: Predictions | None, row: int, _: int, confidence: float
) -> Mistake:
    label = int(predictions.take([row]).probs()[0].argmax())
    before = None if other is None else float(other.take([row]).probs()[0, label])
    true = int(predictions.labels[row])
    return Mistake(row, _name(predictions, true), _name(predictions, label), confidence, before)


def _many_labels(
    predictions: Predictions, other: Predictions | None, row: int, label: int, confidence: float
) -> Mistake:
    name = _name(predictions, label)
    present, absent = f"{name} is there", f"no {name}"
    true, predicted = (present, absent) if int(predictions.labels[row, label]) == 1 else (absent, present)
    before = None
    if other is not None:
        p = float(other.take([row]).probs()[0, label])
        before = p if predicted == present else 1 - p
    return Mistake(row, true, predicted, confidence, before)


def _name(predictions: Predictions, label: int) -> str:
    return f"class {label}" if predictions.class_names is None else predictions.class_names[label]


def _thumbnail(image: Pixels) -> Image.Image:
    picture = Image.fromarray(np.ascontiguousarray(image))
    picture.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return picture


def _panel(axes: Axes, image: Pixels, mistake: Mistake) -> None:
    pixels = np.asarray(_thumbnail(image))
    height, width = pixels.shape[:2]
    side = max(height, width)
    axes.imshow(pixels, extent=(-width / side, width / side, -height / side, height / side))
    axes.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", anchor="N")
    before = "" if mistake.before is None else f"before: {confidence_text(mistake.before)}"
    lines = (
        f"as {plain_text(mistake.predicted, 18)}",
        f"is {plain_text(mistake.true, 18)}",
        f"confidence {confidence_text(mistake.confidence)}",
        before,
    )
    axes.set_title("\n".join(lines), fontsize=7, loc="left", y=-0.02, va="top", pad=0)


def part_gallery(part: PartStudy, recommended: str | None) -> Gallery | None:
    """The gallery of a task of images; None where the samples are no images or none is unfamiliar.

    Mistakes of the single network (or the first method), with the recommended method's confidence.
    """
    methods = {m.name: m for m in part.comparison.methods if m.runs and UNFAMILIAR in m.runs[0].after}
    first = methods.get("single") or next(iter(methods.values()), None)
    if first is None or part.part.task.partition("/")[0] == "toy":
        return None
    after = methods.get(recommended or "")
    after = None if after is first else after
    predictions = first.runs[0].after[UNFAMILIAR]
    other = None if after is None else after.runs[0].after[UNFAMILIAR]
    mistakes = [
        mistake
        if mistake.before is None  # else `before` is the other method's confidence, which comes second
        else replace(mistake, confidence=mistake.before, before=mistake.confidence)
        for mistake in most_confident_mistakes(predictions, COUNT, other=other)
    ]
    if not mistakes:
        return Gallery(absent="There are no mistakes on unfamiliar images to show.")
    try:
        samples = _samples(part)
    except InputError as error:
        return Gallery(absent=f"No pictures, as the images are not available any more: {error}")
    if not isinstance(samples.inputs, ImageFiles) and samples.inputs.ndim < 3 and samples.pictures is None:
        return None
    ids = (samples.ids if predictions.ids is None else predictions.ids).astype(str).tolist()
    row_of = {name: row for row, name in enumerate(samples.ids.tolist())}
    images = [(m, _pixels(samples, row_of[ids[m.row]])) for m in mistakes if ids[m.row] in row_of]
    readable = [(mistake, pixels) for mistake, pixels in images if pixels is not None]
    if not readable:
        return Gallery(absent="No pictures, as none of the image files can be read any more.")
    drawn, pictures = [mistake for mistake, _ in readable], [pixels for _, pixels in readable]
    return Gallery(
        cards=tuple(map(Card, map(data_uri, pictures), drawn)),
        png=gallery_png(pictures, drawn),
        before=first.title,
        after=None if after is None else after.title,
    )


def _samples(part: PartStudy) -> Samples:
    task = task_named(part.part.task, root=None if part.part.root is None else Path(part.part.root))
    if task.identity != part.plan.task_identity:
        raise InputError("the task's samples have changed since the networks were trained")
    return task.splits[UNFAMILIAR]


def _pixels(samples: Samples, row: int) -> Pixels | None:
    """The image of a row with three colours; None if its file cannot be read."""
    if isinstance(samples.inputs, ImageFiles):
        pixels = read_pixels(str(samples.inputs.file(row)), Size(THUMBNAIL))
        return None if isinstance(pixels, str) else pixels
    if samples.pictures is not None:
        return decode(samples.pictures[row], Size(THUMBNAIL, Fit.AS_IT_IS))
    pixels = np.asarray(samples.inputs[row], dtype=np.uint8)
    return np.stack([pixels] * 3, axis=-1) if pixels.ndim == 2 else pixels
