"""How the time of an exported graph grows with the image: processor time, best of five, sizes in turn.

surefoot export BUNDLE -o model.onnx
python benchmarks/onnx_sizes.py model.onnx
"""

import sys
import time

import numpy as np
import onnxruntime

SIZES = ((750, 1000), (1500, 2000), (3000, 4000))
ROUNDS = 5


def main() -> None:
    """Print each size's time relative to the first's."""
    session = onnxruntime.InferenceSession(sys.argv[1])
    images = [np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES]
    best = [np.inf] * len(images)
    for _ in range(ROUNDS):
        for place, image in enumerate(images):
            start = time.process_time()
            session.run(["probabilities"], {"image": image})
            best[place] = min(best[place], time.process_time() - start)
    for (height, width), seconds in zip(SIZES, best, strict=True):
        pixels, ratio = height * width / 1e6, seconds / best[0]
        print(f"{width} x {height}, {pixels:.2g} megapixels: {ratio:.1f} times as long as the first")


if __name__ == "__main__":
    main()
