"""PyTorch Lightning: a callback that fits a temperature at each validation and saves it with the checkpoint.

python examples/lightning_callback.py        (needs: pip install pytorch-lightning)
"""

import tempfile
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from clusters import CLASSES, DIMENSIONS, draw
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import surefoot


class Calibrate(lightning.Callback):
    """Collects what `validation_step` returns, and fits a temperature on it."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor]] = []
        self.calibration: surefoot.Temperature | None = None

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, *batch: Any, **named: Any
    ) -> None:
        if not trainer.sanity_checking:
            self.batches.append((outputs["logits"].cpu(), outputs["labels"].cpu()))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.batches:
            self.calibration = surefoot.fit_temperature(surefoot.Predictions.from_batches(self.batches))
            self.batches = []

    def state_dict(self) -> dict[str, Any]:  # saved in each checkpoint, as plain values
        return {} if self.calibration is None else self.calibration.to_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.calibration = surefoot.Temperature.from_dict(state_dict) if state_dict else None


class Classifier(lightning.LightningModule):
    """Your own module; only `validation_step` has to return logits and labels."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(DIMENSIONS, 64), nn.ReLU(), nn.Linear(64, len(CLASSES)))

    def forward(self, points: Tensor) -> Tensor:
        return self.network(points)

    def training_step(self, batch: Any, _index: int) -> Tensor:
        points, labels = batch
        return nn.functional.cross_entropy(self(points), labels)

    def validation_step(self, batch: Any, _index: int) -> dict[str, Tensor]:
        points, labels = batch
        return {"logits": self(points), "labels": labels}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


def loader(part: str) -> Any:
    """The points of a part in batches."""
    points, labels = draw(part)
    return DataLoader(TensorDataset(torch.from_numpy(points), torch.from_numpy(labels)), batch_size=100)


def main() -> tuple[surefoot.Temperature, surefoot.Temperature]:
    """Train, save, and load the temperature with the weights."""
    lightning.seed_everything(0, verbose=False)
    callback, again = Calibrate(), Calibrate()
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=15, accelerator="cpu", callbacks=[callback], default_root_dir=folder, **quiet
        )
        trainer.fit(Classifier(), loader("train"), loader("val"))
        path = Path(folder) / "model.ckpt"
        trainer.save_checkpoint(path)
        checkpoint = torch.load(path, weights_only=True)
    model = Classifier()
    model.load_state_dict(checkpoint["state_dict"])
    again.load_state_dict(checkpoint["callbacks"]["Calibrate"])
    assert callback.calibration is not None
    assert again.calibration is not None
    calibrated = surefoot.Calibrated(model, again.calibration.temperature)
    points, _ = draw("unfamiliar")
    print(again.calibration, calibrated.probabilities(points)[0], sep="\n\n")
    return callback.calibration, again.calibration


if __name__ == "__main__":
    main()
