"""Draw leaves that are wide or tall, seen by two cameras, and a table of them, for the tutorial on images.

Camera b is tilted: its images are the unfamiliar data.

    python examples/draw_leaves.py leaves
"""

import csv
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

IMAGES = 900


def leaf(draw: random.Random, width: float, height: float, camera: str) -> Image.Image:
    """A green ellipse on noise, 48 x 48 pixels."""
    image = Image.frombytes("L", (48, 48), draw.randbytes(48 * 48)).convert("RGB")
    left, top = draw.uniform(0, 48 - 2 * width), draw.uniform(0, 48 - 2 * height)
    box = (left, top, left + 2 * width, top + 2 * height)
    ImageDraw.Draw(image).ellipse(box, fill=(60, draw.randrange(150, 250), 60))
    angle = draw.uniform(20, 40) if camera == "b" else 0
    return image.rotate(angle, fillcolor="grey")


def main(folder: Path, images: int = IMAGES) -> None:
    """Write the images and `images.csv` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, draw = [], random.Random(0)
    for number in range(images):
        camera = draw.choice("aab")
        width, height = draw.uniform(5, 15), draw.uniform(5, 15)
        leaf(draw, width, height, camera).save(folder / f"{number}.png")
        rows.append((f"{number}.png", "wide" if width > height else "tall", camera))
    with (folder / "images.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "shape", "camera"), *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
