"""timm: calibrate a model of the library on a loader of validation images.

python examples/timm_model.py        (needs: pip install timm)
"""

import timm
import torch
from torch.utils.data import DataLoader, TensorDataset

import surefoot


def main() -> surefoot.Calibrated:
    """A small untrained model on random images: replace both by yours (`pretrained=True`, your loader)."""
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=3).eval()
    images, labels = torch.randn(32, 3, 64, 64), torch.randint(3, (32,))
    calibrated = surefoot.calibrate(model, DataLoader(TensorDataset(images, labels), batch_size=16))
    print(calibrated.report)
    print(calibrated.probabilities(images[:2]))
    return calibrated


if __name__ == "__main__":
    main()
