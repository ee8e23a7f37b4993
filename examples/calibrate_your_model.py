"""Calibrate your own model in three lines, build an ensemble, save it and load it again.

Three overlapping clusters of points in eight dimensions. The networks overfit their training points, so
they are overconfident on others. Unfamiliar points have a larger spread. Takes a few seconds.

    python examples/calibrate_your_model.py
"""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import surefoot

CLASSES, DIMENSIONS = 3, 8


def draw(rows: int, spread: float, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points around three centres, and which centre."""
    labels = torch.randint(CLASSES, (rows,), generator=random)
    centres = 1.5 * torch.eye(CLASSES, DIMENSIONS)
    return centres[labels] + spread * torch.randn(rows, DIMENSIONS, generator=random), labels


def network() -> nn.Module:
    """Any module that returns logits; BatchNorm and dropout show that calibration does not change them."""
    return nn.Sequential(
        nn.Linear(DIMENSIONS, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, CLASSES)
    )


def train(points: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """Train until the network overfits."""
    torch.manual_seed(seed)
    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        for rows in torch.randperm(len(points)).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(points[rows]), labels[rows]).backward()
            optimiser.step()
    return model


def nll(probabilities: Tensor, labels: Tensor) -> float:
    """The mean of -log p(true), clipped as in the paper."""
    return surefoot.metrics.nll(surefoot.Predictions.from_probs(probabilities, labels))


def main() -> None:
    """Train three networks; compare one uncalibrated, one calibrated, and the ensemble."""
    random = torch.Generator().manual_seed(0)
    train_points, val = draw(600, 0.9, random), TensorDataset(*draw(600, 0.9, random))
    tests = {"familiar": draw(2000, 0.9, random), "unfamiliar": draw(2000, 1.5, random)}
    models = [train(*train_points, seed) for seed in range(3)]
    val_loader = DataLoader(val, batch_size=128)

    # Calibration in three lines.
    model = models[0]
    calibrated = surefoot.calibrate(model, val_loader)
    print(calibrated.report)

    ensemble = surefoot.Ensemble([surefoot.calibrate(each, val_loader) for each in models])
    print(f"members' temperatures: {', '.join(f'{t:.2f}' for t in ensemble.temperature.tolist())}\n")

    print(f"{'NLL':<22}{'familiar':>10}{'unfamiliar':>12}")
    rows = {
        "the model as it is": surefoot.Calibrated(model),  # T = 1
        "calibrated": calibrated,
        "ensemble of calibrated": ensemble,
    }
    for name, module in rows.items():
        scores = {side: nll(module.probabilities(x), y) for side, (x, y) in tests.items()}
        print(f"{name:<22}{scores['familiar']:>10.4f}{scores['unfamiliar']:>12.4f}")

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "ensemble.safetensors")
        save_model(ensemble, file)
        again = surefoot.Ensemble([network() for _ in models], kind="one_label")
        load_model(again, file)
    x, _ = tests["unfamiliar"]
    same = torch.equal(again.probabilities(x), ensemble.probabilities(x))
    print(f"\nsaved, loaded, and the same: {same}")


if __name__ == "__main__":
    main()
