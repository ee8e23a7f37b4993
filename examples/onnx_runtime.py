"""ONNX Runtime: calibrate the saved logits of an exported model; no torch at inference.

python examples/onnx_runtime.py        (needs: pip install 'surefoot[export]')
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from clusters import CLASSES, draw
from pytorch_loop import train

import surefoot


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities (n, classes)."""
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def main() -> tuple[np.ndarray, np.ndarray]:
    """Export, run, save the logits, calibrate them; then apply T in NumPy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        example = (torch.from_numpy(draw("val")[0]),)
        torch.onnx.export(
            train(), example, folder / "model.onnx", input_names=["points"], output_names=["logits"],
            dynamo=True, dynamic_shapes=({0: torch.export.Dim("rows")},), verbose=False,
        )  # fmt: skip
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        for part in ("val", "unfamiliar"):
            points, labels = draw(part)
            (logits,) = session.run(["logits"], {"points": points})
            np.savez(folder / f"{part}.npz", logits=logits, labels=np.array(CLASSES)[labels], classes=CLASSES)
        calibration = surefoot.fit_temperature(surefoot.read_predictions(folder / "val.npz"))
        surefoot.save_calibration(calibration, folder / "calibration.json")

        # Where it is used: the file is JSON, and T is all that is needed.
        temperature = json.loads((folder / "calibration.json").read_text())["temperature"]
        points, _ = draw("unfamiliar")
        (logits,) = session.run(["logits"], {"points": points})
        probabilities = softmax(logits / temperature)
        expected = calibration(surefoot.read_predictions(folder / "unfamiliar.npz")).probs()
    print(calibration)
    print("first row:", probabilities[0].round(3))
    return probabilities, expected


if __name__ == "__main__":
    main()
