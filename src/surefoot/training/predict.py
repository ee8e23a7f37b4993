"""What networks say of samples: each sample is read once, however many the networks are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from surefoot.training.batches import Inputs, fetched

ROWS_AT_ONCE = 256


def predict(networks: Sequence[nn.Module], inputs: Inputs, device: torch.device) -> Tensor:
    """Logits (members, n, classes) in float32 on the host; networks are left in the mode they were in."""
    with torch.inference_mode(), evaluating(networks):
        parts = [
            torch.stack([network(views).float() for network in networks]).cpu()
            for views in batches_seen(inputs, device, ROWS_AT_ONCE)
        ]
    return torch.cat(parts, dim=1)


def batches_seen(inputs: Inputs, device: torch.device, rows_at_once: int) -> Iterator[Tensor]:
    """What networks see of the samples in testing, in order, some rows at a time."""
    inputs = inputs.on(device)
    rows = torch.split(torch.arange(len(inputs)), rows_at_once)
    for some, raw in fetched(inputs, rows, device):
        yield inputs.test_views(raw, some.to(device)).float()


@contextmanager
def evaluating(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, networks are in evaluation mode; afterwards every part is in the mode it was in."""
    modes = [[(module, module.training) for module in network.modules()] for network in networks]
    for network in networks:
        network.eval()
    try:
        yield
    finally:
        for module, training in (pair for of_network in modes for pair in of_network):
            module.training = training
