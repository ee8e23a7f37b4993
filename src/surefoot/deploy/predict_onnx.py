"""Predict images with a model that `surefoot export` wrote; needs onnxruntime, Pillow and NumPy alone.

python predict_onnx.py model.onnx photo.jpg ...
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def predict(session: onnxruntime.InferenceSession, path: str) -> dict[str, float]:
    """The calibrated probability of each class."""
    facts = session.get_modelmeta().custom_metadata_map
    image = read_image(path, json.loads(facts["preprocessing"])["short_side"])
    (probabilities,) = session.run(["probabilities"], {"image": image})
    return dict(zip(json.loads(facts["class_names"]), probabilities.tolist(), strict=True))


def read_image(path: str, short_side: int | None) -> Any:
    """The pixels (height, width, 3), upright; a large JPEG is decoded at a reduced size, as in training."""
    with Image.open(path) as image:
        if short_side is not None:
            image.draft(None, (2 * short_side, 2 * short_side))
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # 16 bits of grey
            upright = Image.fromarray((np.asarray(upright).astype(np.uint32) // 257).astype(np.uint8))
        if upright.has_transparency_data:
            white = Image.new("RGBA", upright.size, "white")
            upright = Image.alpha_composite(white, upright.convert("RGBA"))
        return np.asarray(upright.convert("RGB"))


def main(model: str, *paths: str) -> None:
    """Print a line for each image."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for path in paths:
        probabilities = predict(session, path)
        likely = sorted(probabilities, key=lambda name: -probabilities[name])
        texts = (path, *(f"{name} {probabilities[name]:.4f}" for name in likely))
        print(*(text if text.isprintable() else ascii(text) for text in texts), sep="\t")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
