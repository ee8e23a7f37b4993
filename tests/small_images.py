"""A task of 120 images of 8 x 8 pixels: the letters take seconds to draw."""

import numpy as np
from PIL import Image

TASK = """
[task]
name = "tiny"
manifest = "table.csv"
images = "."
label = "label"
groups = "group"
[familiar]
group = { in = ["g0", "g1", "g2"] }
[splits]
val = 0.3
test = 0.3
seed = 0
[unlabelled]
images = "g"
"""


def pictures(folder, count, rng, brightness=0):
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = np.clip(rng.integers(0, 160, (8, 8, 3)) + brightness, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def write_task(folder):
    """Bright and dark images in five groups, two of them unfamiliar; two folders of unlabelled images."""
    rng = np.random.default_rng(0)
    lines = ["path,label,group"]
    for label, brightness in (("dark", 0), ("bright", 40)):
        pictures(folder / label, 60, rng, brightness)
        lines += [f"{label}/{number}.png,{label},g{number % 5}" for number in range(60)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    pictures(folder / "g" / "small", 10, rng, 20)
    pictures(folder / "g" / "large", 25, rng, 20)
    (folder / "task.toml").write_text(TASK)
    return folder / "task.toml"
