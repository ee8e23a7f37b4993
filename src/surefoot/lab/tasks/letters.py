"""The 26 letters in the fonts that matplotlib ships: images with a real shift, without a download."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from surefoot.lab.tasks.layouts import TaskEntry
from surefoot.lab.tasks.task import Samples, Split, Task, unlabelled_labels
from surefoot.predictions.labels import LabelKind

CLASS_NAMES = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
OTHER_GLYPHS = tuple("abcdefghijklmnopqrstuvwxyz0123456789") + CLASS_NAMES
SIDE = 32  # pixels
FINE = 2  # letters are drawn this many times larger, and then reduced
STENCIL, CAPITALS = 112, 56  # pixels: the side of a stencil, and the height of its capitals

FAMILIAR_FACES = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold")
UNFAMILIAR_FACES = (
    "DejaVuSerif",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "STIXGeneralBolIta",
    "cmr10",
    "cmti10",
    "cmtt10",
    "cmb10",
)
UNLABELLED_FACES = (
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
)
PER_GLYPH: Mapping[Split, int] = {
    Split.TRAIN: 160,
    Split.VAL: 40,
    Split.TEST_FAMILIAR: 80,
    Split.TEST_UNFAMILIAR: 80,
    Split.UNLABELLED: 20,
}


@dataclass(frozen=True)
class Rendering:
    """How one letter is drawn."""

    height: float  # of the letters, as a share of the image
    shift: tuple[float, float]  # as a share of the image
    angle: float  # degrees
    ink: float
    paper: float  # grey values 0 to 255
    noise: float  # standard deviation, grey values


def load_letters(*, seed: int = 0, per_glyph: Mapping[Split, int] = PER_GLYPH) -> Task:
    """Letters A to Z: sans serif faces are familiar; serif, italic and typewriter faces are not.

    Position, size, rotation, contrast and noise vary in the same way in familiar and unfamiliar images. The
    unlabelled images are letters of both cases and digits in the oblique faces, which are neither.
    """
    faces: dict[Split, tuple[str, ...]] = dict.fromkeys(Split, FAMILIAR_FACES)
    faces |= {Split.TEST_UNFAMILIAR: UNFAMILIAR_FACES, Split.UNLABELLED: UNLABELLED_FACES}
    return Task(
        name="letters",
        kind=LabelKind.ONE_LABEL,
        class_names=CLASS_NAMES,
        splits={split: _samples(split, faces[split], per_glyph[split], seed) for split in Split},
    )


def _samples(split: Split, faces: tuple[str, ...], per_glyph: int, seed: int) -> Samples:
    generator = np.random.default_rng([seed, *split.encode()])  # a separate stream for every split
    glyphs = OTHER_GLYPHS if split is Split.UNLABELLED else CLASS_NAMES
    count = len(glyphs) * per_glyph
    stencils = {face: _stencils(face, glyphs) for face in faces}
    images = np.empty((count, SIDE, SIDE, 3), dtype=np.uint8)
    for row in range(count):
        glyph, face = glyphs[row % len(glyphs)], faces[row // len(glyphs) % len(faces)]
        images[row] = _draw(stencils[face][glyph], _rendering(generator), generator)
    labels = np.arange(count, dtype=np.int64) % len(glyphs)
    if split is Split.UNLABELLED:
        labels = unlabelled_labels(count, LabelKind.ONE_LABEL, len(CLASS_NAMES))
    return Samples(
        ids=np.asarray([f"{split}-{seed}-{row:05d}" for row in range(count)], dtype=np.str_),
        labels=labels,
        inputs=images,
        groups=np.asarray([faces[row // len(glyphs) % len(faces)] for row in range(count)], dtype=np.str_),
    )


def _rendering(generator: np.random.Generator) -> Rendering:
    ink, paper = generator.uniform(0, 90), generator.uniform(165, 255)
    if generator.random() < 0.5:
        ink, paper = paper, ink
    return Rendering(
        height=generator.uniform(0.45, 0.75),
        shift=(generator.uniform(-0.12, 0.12), generator.uniform(-0.12, 0.12)),
        angle=generator.uniform(-20, 20),
        ink=ink,
        paper=paper,
        noise=generator.uniform(4, 20),
    )


def _draw(stencil: Image.Image, rendering: Rendering, generator: np.random.Generator) -> NDArray[np.uint8]:
    """A stencil resized, rotated, shifted, and drawn with noise."""
    side = SIDE * FINE
    ratio = CAPITALS / (rendering.height * side)  # stencil pixels per pixel of the fine image
    turn = math.radians(rendering.angle)
    across, up = ratio * math.cos(turn), ratio * math.sin(turn)
    x, y = (side * (0.5 + shift) for shift in rendering.shift)
    middle = STENCIL / 2
    back = (across, -up, middle - across * x + up * y, up, across, middle - up * x - across * y)
    fine = stencil.transform((side, side), Image.Transform.AFFINE, back, Image.Resampling.BILINEAR)
    cover = np.asarray(fine.reduce(FINE), dtype=np.float64)[:, :, None] / 255
    grey = rendering.paper + (rendering.ink - rendering.paper) * cover
    grey = grey + rendering.noise * generator.standard_normal((SIDE, SIDE, 1))
    return np.broadcast_to(np.clip(np.rint(grey), 0, 255).astype(np.uint8), (SIDE, SIDE, 3))


def _stencils(face: str, glyphs: tuple[str, ...]) -> dict[str, Image.Image]:
    """Every glyph of a face in white on black, capitals CAPITALS pixels high."""
    size = CAPITALS / 0.72  # capitals are about 0.72 of a face's size
    font = ImageFont.truetype(font_file(face), size=size, layout_engine=ImageFont.Layout.BASIC)
    stencils = {}
    for glyph in glyphs:
        stencils[glyph] = Image.new("L", (STENCIL, STENCIL))
        middle = (STENCIL / 2, STENCIL / 2)
        ImageDraw.Draw(stencils[glyph]).text(middle, glyph, fill=255, font=font, anchor="mm")
    return stencils


def font_file(face: str) -> Path:
    """The file of a font that matplotlib ships."""
    from matplotlib import get_data_path

    return Path(get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"


LETTERS = TaskEntry(
    "letters",
    "Letters",
    "A to Z; sans serif faces are familiar, serif and italic ones are not",
    lambda *_: load_letters(),
)
