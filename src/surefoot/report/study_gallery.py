"""The single network's surest mistakes on unfamiliar images, and what another method makes of them."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surefoot.decoding.images import read_pixels
from surefoot.decoding.pixels import Size
from surefoot.errors import InputError
from surefoot.report.gallery import (
    THUMBNAIL,
    Card,
    Mistake,
    gallery_cards,
    gallery_png,
    most_confident_mistakes,
)
from surefoot.results import Result
from surefoot.runner import PartStudy
from surefoot.tasks import task_named
from surefoot.tasks.base import Samples, Split
from surefoot.tasks.images import ImageFiles

COUNT = 12
UNFAMILIAR = Split.TEST_UNFAMILIAR
Pixels = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Gallery:
    """Cards with their pictures, or a sentence why there are none."""

    cards: tuple[Card, ...] = ()
    png: bytes | None = None
    before: str = ""  # whose mistakes they are
    after: str | None = None  # whose confidence stands beside theirs
    absent: str | None = None


def part_gallery(part: PartStudy, recommended: str | None) -> Gallery | None:
    """The gallery of a task of images; None where the samples are no images or none is unfamiliar."""
    results = {result.method.name: result for result in part.results if _is_tested(result)}
    first = results.get("single") or next(iter(results.values()), None)
    if first is None or part.part.task.partition("/")[0] == "toy":
        return None
    after = results.get(recommended or "")
    after = None if after is first else after
    mistakes = _mistakes(first, after)
    if not mistakes:
        return Gallery(absent="There are no mistakes on unfamiliar images to show.")
    try:
        samples = _samples(part)
    except InputError as error:
        return Gallery(absent=f"No pictures, as the images are not there any more: {error}")
    if not isinstance(samples.inputs, ImageFiles) and samples.inputs.ndim < 3:
        return None
    return _gallery(mistakes, samples, first, after)


def _gallery(mistakes: list[Mistake], samples: Samples, first: Result, after: Result | None) -> Gallery:
    said = first.runs[0].after[UNFAMILIAR]
    names = [str(row) for row in samples.ids] if said.ids is None else said.ids.astype(str).tolist()
    place = {name: row for row, name in enumerate(samples.ids.tolist())}
    found = [(m, _pixels(samples, place[names[m.row]])) for m in mistakes if names[m.row] in place]
    there = [(mistake, pixels) for mistake, pixels in found if pixels is not None]
    if not there:
        return Gallery(absent="No pictures, as none of the image files can be read any more.")
    shown, images = [mistake for mistake, _ in there], [pixels for _, pixels in there]
    return Gallery(
        cards=tuple(gallery_cards(images, shown)),
        png=gallery_png(images, shown),
        before=first.method.title,
        after=None if after is None else after.method.title,
    )


def _is_tested(result: Result) -> bool:
    return bool(result.runs) and UNFAMILIAR in result.runs[0].after


def _mistakes(first: Result, after: Result | None) -> list[Mistake]:
    """The first method's mistakes, with the other's confidence in the same answers where there is another."""
    said = first.runs[0].after[UNFAMILIAR]
    if after is None:
        return most_confident_mistakes(said, COUNT)
    other = after.runs[0].after[UNFAMILIAR]
    found = most_confident_mistakes(said, COUNT, uncalibrated=other)
    return [
        replace(each, confidence=each.before, before=each.confidence)
        for each in found
        if each.before is not None
    ]


def _samples(part: PartStudy) -> Samples:
    task = task_named(part.part.task, root=None if part.part.root is None else Path(part.part.root))
    if task.identity != part.plan.task_identity:
        raise InputError("the task's samples have changed since the networks were trained")
    return task.splits[UNFAMILIAR]


def _pixels(samples: Samples, row: int) -> Pixels | None:
    """A picture of a row with three colours; None if its file cannot be read."""
    if isinstance(samples.inputs, ImageFiles):
        found = read_pixels(str(samples.inputs.file(row)), Size(THUMBNAIL))
        return None if isinstance(found, str) else found
    pixels = np.asarray(samples.inputs[row], dtype=np.uint8)
    return np.stack([pixels] * 3, axis=-1) if pixels.ndim == 2 else pixels
