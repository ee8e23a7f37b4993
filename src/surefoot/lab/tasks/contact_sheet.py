"""An image of a task: familiar and unfamiliar samples of every label, as in the paper's figure 2."""

import io
import random
from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from surefoot.errors import InputError
from surefoot.io import replacing
from surefoot.lab.images.cache import read_pixels
from surefoot.lab.images.decode import Size
from surefoot.lab.tasks.letters import font_file
from surefoot.lab.tasks.task import ImageFiles, Samples, Split, Task, shuffled

PER_SIDE = 6
MOST_LABELS = 40
CELL, GAP, MARGIN, TITLE = 80, 4, 16, 150  # pixels
STEP, TOP = CELL + GAP, MARGIN + 28
LEFT = (MARGIN + TITLE, MARGIN + TITLE + PER_SIDE * STEP + 24)  # of the familiar and of the unfamiliar side
WIDTH = LEFT[1] + PER_SIDE * STEP + MARGIN
SIDES = {"familiar": (Split.TEST_FAMILIAR, Split.TRAIN), "unfamiliar": (Split.TEST_UNFAMILIAR,)}
INK, GREY, PAPER = (20, 20, 20), (225, 225, 225), (255, 255, 255)


def write_contact_sheet(task: Task, path: str | Path, *, seed: int = 0) -> None:
    """Write a PNG: a row of random samples per label, or a scatter plot if the samples are points."""
    if Path(path).suffix.lower() != ".png":
        raise InputError(f"{path}: unknown file type {Path(path).suffix!r}; have: .png")
    inputs = task.splits[Split.TRAIN].inputs
    are_points = not isinstance(inputs, ImageFiles) and inputs.ndim == 2
    if are_points and (task.encoding is not None or inputs.shape[1] != 2):  # type: ignore[union-attr]
        raise InputError(
            f"task {task.name!r} has vectors; a contact sheet shows images, or points in a plane"
        )
    sheet = _scatter_plot(task) if are_points else _sheet(task, seed)
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG")


def _sheet(task: Task, seed: int) -> Image.Image:
    names = task.class_names[:MOST_LABELS]
    more = len(task.class_names) - len(names)
    sheet = Image.new("RGB", (WIDTH, TOP + len(names) * STEP + MARGIN + (STEP if more else 0)), PAPER)
    draw = ImageDraw.Draw(sheet)
    for label, name in enumerate(names):
        _write(draw, (MARGIN, TOP + label * STEP + CELL // 2 - 9), name, TITLE - GAP)
    if more:
        _write(draw, (MARGIN, TOP + len(names) * STEP + GAP), f"and {more} more labels", WIDTH)
    for left, (title, splits) in zip(LEFT, SIDES.items(), strict=True):
        _write(draw, (left, MARGIN), title, PER_SIDE * STEP)
        samples = next((task.splits[split] for split in splits if split in task.splits), None)
        for label in range(len(names)):
            cells = [] if samples is None else _cells(task, samples, label, seed)
            blanks = repeat(Image.new("RGB", (CELL, CELL), GREY))
            for column, cell in enumerate(islice(chain(cells, blanks), PER_SIDE)):
                sheet.paste(cell, (left + column * STEP, TOP + label * STEP))
    return sheet


def _cells(task: Task, samples: Samples, label: int, seed: int) -> Iterator[Image.Image]:
    """Images that have a label, in random order, cropped to the square in the middle."""
    rows = np.flatnonzero(task.has_label(samples, label)).tolist()
    for row in shuffled(rows, random.Random(f"surefoot sheet {seed} {label}")):
        if isinstance(samples.inputs, ImageFiles):
            pixels = read_pixels(str(samples.inputs.file(row)), Size(CELL))
            if isinstance(pixels, str):
                continue  # it cannot be read
        else:
            pixels = np.asarray(samples.inputs[row], dtype=np.uint8)
        height, width = pixels.shape[:2]
        short = min(height, width)
        top, left = (height - short) // 2, (width - short) // 2
        middle = Image.fromarray(np.ascontiguousarray(pixels[top : top + short, left : left + short]))
        yield middle.resize((CELL, CELL), Image.Resampling.BICUBIC)


def _write(draw: ImageDraw.ImageDraw, position: tuple[int, int], text: str, width: int) -> None:
    """One line of text, shortened to the width; characters that cannot be printed become `?`."""
    font = ImageFont.truetype(font_file("DejaVuSans"), size=15, layout_engine=ImageFont.Layout.BASIC)
    line = "".join(character if character.isprintable() else "?" for character in text[:200])
    while draw.textlength(line, font=font) > width:
        line = line.removesuffix("…")[:-1] + "…"
    draw.text(position, line, fill=INK, font=font)


def _scatter_plot(task: Task) -> Image.Image:
    """Training points on the left, test points on the right; unfamiliar ones are pale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    panels: Any = figure.subplots(1, 2, sharex=True, sharey=True)
    colours = np.asarray(["#0072b2", "#d55e00"])
    for axes, splits in zip(
        panels, ((Split.TRAIN,), (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)), strict=True
    ):
        for split in splits:
            samples = task.splits[split]
            points = np.asarray(samples.inputs)
            alpha = 0.25 if split is Split.TEST_UNFAMILIAR else 1
            axes.scatter(*points.T, s=3, c=colours[samples.labels], alpha=alpha, linewidths=0)
        axes.set(aspect="equal", title=", pale: ".join(splits), xlim=(-1, 1), ylim=(-1, 1))
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)
    return Image.open(out)
