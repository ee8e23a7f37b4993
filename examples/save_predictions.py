"""Train a small classifier, and save its predictions on familiar and unfamiliar data.

Four classes of twelve subgroups each (clusters of points in 12 dimensions). The network is trained on six
subgroups of each class; the others are unfamiliar: the same labels, a shifted distribution. Takes a few
seconds.

    python examples/save_predictions.py predictions
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from surefoot import Predictions, write_predictions

CLASSES = ("beech", "birch", "maple", "oak")
SUBGROUPS = 12
FAMILIAR = range(6)
UNFAMILIAR = range(6, 12)
DIMENSIONS = 12


def draw(
    subgroups: range, each: int, centres: Tensor, random: torch.Generator
) -> tuple[Tensor, Tensor, list[str]]:
    """`each` points from every named subgroup of every class: points, labels, subgroup names."""
    points, labels, names = [], [], []
    for label, name in enumerate(CLASSES):
        for subgroup in subgroups:
            cloud = torch.randn(each, DIMENSIONS, generator=random)
            points.append(centres[label, subgroup] + cloud)
            labels += [label] * each
            names += [f"{name} {subgroup}"] * each
    return torch.cat(points), torch.tensor(labels), names


def train(points: Tensor, labels: Tensor) -> nn.Module:
    """A standard network, trained until it is overconfident."""
    network = nn.Sequential(
        nn.Linear(DIMENSIONS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
    )
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(200):
        for batch in torch.randperm(len(points)).split(128):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(points[batch]), labels[batch]).backward()
            optimiser.step()
    return network


def main(folder: Path) -> None:
    """Write val, familiar and unfamiliar predictions into the folder."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for such small batches more threads only wait for one another
    random = torch.Generator().manual_seed(1)
    class_centres = torch.randn(len(CLASSES), 1, DIMENSIONS, generator=random)
    centres = class_centres + 1.1 * torch.randn(len(CLASSES), SUBGROUPS, DIMENSIONS, generator=random)
    network = train(*draw(FAMILIAR, 40, centres, random)[:2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, subgroups, each in (
        ("val", FAMILIAR, 40),
        ("familiar", FAMILIAR, 100),
        ("unfamiliar", UNFAMILIAR, 100),
    ):
        points, labels, subgroup = draw(subgroups, each, centres, random)
        with torch.no_grad():
            logits = network(points)
        predictions = Predictions.from_logits(
            logits, labels, class_names=CLASSES, attributes={"subgroup": subgroup}
        )
        write_predictions(predictions, folder / f"{name}.parquet")
        print(f"{folder / name}.parquet: {predictions.n} predictions")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "predictions"))
