"""Code that can only draw from torch's global generators, made to follow a generator that is an argument."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, nn

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@contextmanager
def following(generator: Generator, device: torch.device) -> Iterator[None]:
    """Inside, global draws on the CPU and on `device` follow `generator`; afterwards they go on as before.

    Knows CUDA's generators and the CPU's.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed every other device too
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def sampling_dropout(network: nn.Module, generator: Generator) -> Iterator[None]:
    """Inside, every dropout layer drops and all else stays in its mode: BatchNorm keeps its statistics.

    Monte Carlo dropout for networks that drop in every layer: call the network once per sample
    (Gal & Ghahramani, ICML 2016).
    """
    layers = [module for module in network.modules() if isinstance(module, DROPOUTS)]
    modes = [layer.training for layer in layers]
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    try:
        for layer in layers:
            layer.train()
        with following(generator, device):
            yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.train(mode)
