"""A plain PyTorch loop: train, collect validation logits with a generator, calibrate, evaluate.

python examples/pytorch_loop.py
"""

from collections.abc import Iterator

import torch
from clusters import CLASSES, DIMENSIONS, draw
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import surefoot


def loader(part: str, *, shuffle: bool = False) -> DataLoader[tuple[Tensor, ...]]:
    """The points of a part in batches."""
    points, labels = draw(part)
    rows = TensorDataset(torch.from_numpy(points), torch.from_numpy(labels))
    return DataLoader(rows, batch_size=100, shuffle=shuffle)


def train() -> nn.Module:
    """Train until the network is overconfident."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIMENSIONS, 64), nn.ReLU(), nn.Linear(64, len(CLASSES)))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(20):
        for points, labels in loader("train", shuffle=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(points), labels).backward()
            optimiser.step()
    return model.eval()


@torch.no_grad()
def outputs(model: nn.Module, part: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and labels, batch by batch."""
    for points, labels in loader(part):
        yield model(points), labels


def main() -> surefoot.Evaluation:
    """Everything, in the order in which it happens."""
    model = train()
    predictions = {
        part: surefoot.Predictions.from_batches(outputs(model, part), class_names=CLASSES)
        for part in ("val", "familiar", "unfamiliar")
    }
    calibration = surefoot.fit_calibration("temperature", predictions["val"])
    result = surefoot.evaluate(
        predictions["familiar"], predictions["unfamiliar"], calibration=calibration, resamples=100
    )
    print(calibration, result, sep="\n\n")
    return result


if __name__ == "__main__":
    main()
