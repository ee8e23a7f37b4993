"""One network from several: the mean of their weights, with BatchNorm statistics taken anew."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surefoot.training.batches import Inputs, fetched
from surefoot.training.predict import ROWS_AT_ONCE, evaluating

Weights = dict[str, Tensor]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def mixed(states: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """sum_m share_m * w_m for every tensor of floating point; others are the first's."""
    return {
        name: sum(
            (share * state[name].double() for share, state in zip(shares, states, strict=True)),
            torch.zeros((), dtype=torch.float64),
        ).to(first.dtype)
        if first.is_floating_point()
        else first
        for name, first in states[0].items()
    }


def averaged(states: Sequence[Weights]) -> Weights:
    """The mean of every tensor."""
    return mixed(states, [1 / len(states)] * len(states))


def refresh_statistics(network: nn.Module, inputs: Inputs, device: torch.device) -> None:
    """Take BatchNorm's means and variances anew over the samples: those of averaged weights are no average.

    Averaged over batches of one size, all else in evaluation mode.
    """
    norms = [module for module in network.modules() if isinstance(module, NORMS)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    inputs = inputs.on(device)
    batches = torch.split(torch.arange(len(inputs)), ROWS_AT_ONCE)
    whole = [rows for rows in batches if len(rows) == len(batches[0])]
    network.to(device)
    with torch.no_grad(), evaluating([network]):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
            norm.train()
        for rows, raw in fetched(inputs, whole, device):
            network(inputs.test_views(raw, rows.to(device)).float())
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
