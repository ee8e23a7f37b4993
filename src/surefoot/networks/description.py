"""What a network costs."""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from surefoot.networks.network import Network


@dataclass(frozen=True)
class Description:
    """A network's size and the work of one forward pass."""

    name: str
    parameters: int
    trained_parameters: int  # those that are not frozen
    weight_bytes: int  # parameters and buffers as they are now
    shape: tuple[int, ...]  # of the one input that the work is counted for
    multiply_adds: int  # of convolutions and matrix products; the paper's "FLOPs" are these


def describe(network: Network, shape: tuple[int, ...]) -> Description:
    """Count parameters and work for one input of that shape, without computing anything."""
    parameters = list(network.parameters())
    held = [*parameters, *network.buffers()]
    return Description(
        name=network.name,
        parameters=sum(parameter.numel() for parameter in parameters),
        trained_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in held),
        shape=shape,
        multiply_adds=_multiply_adds(network, shape),
    )


def _multiply_adds(network: nn.Module, shape: tuple[int, ...]) -> int:
    shadow = copy.deepcopy(network).to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        shadow(torch.empty((1, *shape), device="meta"))
    flops: int = counter.get_total_flops()
    return flops // 2  # a multiplication and an addition are two
