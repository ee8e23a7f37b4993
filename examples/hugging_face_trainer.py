"""Hugging Face: predictions of a Trainer, and a calibrated model inside a Trainer.

python examples/hugging_face_trainer.py        (needs: pip install transformers accelerate)
"""

import tempfile
from typing import Any

import numpy as np
import torch
from clusters import CLASSES, DIMENSIONS, draw
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

import surefoot


class Classifier(PreTrainedModel):
    """In place of AutoModelForSequenceClassification or AutoModelForImageClassification."""

    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.network = nn.Sequential(nn.Linear(DIMENSIONS, 64), nn.ReLU(), nn.Linear(64, len(CLASSES)))
        self.post_init()

    def forward(self, points: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        logits = self.network(points)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class ForTrainer(nn.Module):
    """A calibrated model with the outputs that a Trainer expects."""

    def __init__(self, calibrated: surefoot.Calibrated) -> None:
        super().__init__()
        self.calibrated = calibrated

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.calibrated(points=points)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def dataset(part: str) -> list[dict[str, Any]]:
    """The rows of a part; a dataset of the `datasets` package works as well."""
    points, labels = draw(part)
    return [{"points": torch.from_numpy(x), "labels": int(y)} for x, y in zip(points, labels, strict=True)]


def main() -> tuple[surefoot.Predictions, surefoot.Predictions, surefoot.Calibration]:
    """Train, calibrate on validation data, and predict with the calibrated model."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=15,
            learning_rate=0.02,
            per_device_train_batch_size=100,
            per_device_eval_batch_size=100,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(Classifier(PretrainedConfig()), settings, train_dataset=dataset("train"))
        trainer.train()
        before = surefoot.Predictions.from_prediction_output(trainer.predict(dataset("val")))
        calibration = surefoot.fit_temperature(before)
        calibrated = surefoot.Calibrated(trainer.model, calibration.temperature)
        after = surefoot.Predictions.from_prediction_output(
            Trainer(ForTrainer(calibrated), settings).predict(dataset("val"))
        )
    print(calibration)
    print("largest difference from z / T:", float(np.abs(after.logits - calibration(before).logits).max()))
    return before, after, calibration


if __name__ == "__main__":
    main()
