"""A standard training loop: a DataLoader with 16 workers, torchvision's transforms, float32 with TF32.

As a PyTorch loop and as a Lightning module. Needs a GPU and torchvision; Lightning only for its own row.
"""

import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from surefoot.lab.tasks import Split, Task

GPU = torch.device("cuda")


def photographs(task: Task, view: int, workers: int = 16) -> DataLoader[Any]:
    """Random crops and flips of a task's training images."""
    from PIL import Image
    from torchvision import transforms

    samples = task.splits[Split.TRAIN]
    files = samples.inputs.files()
    chain = transforms.Compose(
        [
            transforms.RandomResizedCrop(view),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )

    class Photographs(Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, row: int) -> Any:
            return chain(Image.open(files[row]).convert("RGB")), int(samples.labels[row])

    return DataLoader(
        Photographs(),
        128,
        shuffle=True,
        num_workers=workers,
        pin_memory=True,
        drop_last=True,
        persistent_workers=True,
    )


def allow_tf32() -> None:
    """With the usual settings of tutorials."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def loop_epochs(loader: DataLoader[Any], epochs: int) -> Iterator[float]:
    """Seconds of each epoch of ResNet-18 in a plain loop."""
    from torchvision import models

    allow_tf32()
    network = models.resnet18(num_classes=2).to(GPU)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    for _ in range(epochs):
        start = time.perf_counter()
        for pictures, truth in loader:
            loss = nn.functional.cross_entropy(network(pictures.to(GPU)), truth.to(GPU))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        torch.cuda.synchronize()
        yield time.perf_counter() - start


def lightning_epochs(loader: DataLoader[Any], epochs: int) -> Iterator[float]:
    """Seconds of each epoch of the same as a Lightning module, without its logger and checkpoints."""
    import pytorch_lightning as lightning
    from torchvision import models

    ends: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = models.resnet18(num_classes=2)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            pictures, truth = batch
            return nn.functional.cross_entropy(self.network(pictures), truth)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

        def on_train_epoch_start(self) -> None:
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

        def on_train_end(self) -> None:
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    allow_tf32()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader)
    yield from (b - a for a, b in pairwise(ends))


def steady(seconds: Iterator[float]) -> float:
    """The median epoch, without the first two, in which workers start and files are cached."""
    return median(list(seconds)[2:])
