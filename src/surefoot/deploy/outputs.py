"""What a model was asked and what it answered, whichever library it is from."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.errors import InputError


def logits_of(output: Any) -> Tensor:
    """The logits in a model's answer, (n,), (n, 1) or (n, classes): a tensor, or what holds one as `logits`.

    Half precision becomes float32: a temperature and a sum of probabilities need the digits.
    """
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = f"a tensor of {logits.dtype}" if isinstance(logits, Tensor) else type(output).__name__
        raise InputError(f"the model answered {got}; allowed: logits, or an output that has .logits")
    if logits.ndim not in (1, 2):
        shape = tuple(logits.shape)
        raise InputError(f"the model's logits have shape {shape}; allowed: (n, classes), (n, 1) or (n,)")
    return logits if logits.dtype is torch.float64 else logits.float()


def is_one_logit(logits: Tensor) -> bool:
    """Whether there is one number for each sample: the log odds of class 1."""
    return logits.ndim == 1 or logits.shape[1] == 1


def device_of(model: nn.Module) -> torch.device | None:
    """Where a model's first weights are; None where it has none."""
    held = next(chain(model.parameters(), model.buffers()), None)
    return None if held is None else held.device


def moved(value: Any, device: torch.device | None) -> Any:
    """Tensors and arrays, also in lists, tuples and mappings, as tensors on the device; all else as it is."""
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        return value if device is None else value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: moved(each, device) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [moved(each, device) for each in value]
    return value


def asked(model: nn.Module, question: Any) -> Any:
    """The model's answer; a mapping is handed over by name, several inputs in order."""
    if isinstance(question, Mapping):
        return model(**question)
    return model(*question) if isinstance(question, list) else model(question)
