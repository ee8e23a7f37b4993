"""What a model was asked and what it answered, whichever library it is from."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.errors import InputError

NUMBERS = "biuf"  # kinds of arrays that torch knows


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


def float_type_of(model: nn.Module) -> torch.dtype | None:
    """The type of a model's first weights that are floats; None where it has none."""
    return next((each.dtype for each in model.parameters() if each.is_floating_point()), None)


def moved(value: Any, model: nn.Module) -> Any:
    """Tensors and arrays, also in lists, tuples and mappings, on the model's device; all else as it is."""
    if isinstance(value, Tensor):
        device = device_of(model)
        return value if device is None else value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: moved(each, model) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [moved(each, model) for each in value]
    return from_array(value, model)


def from_array(value: Any, model: nn.Module) -> Any:
    """An array of numbers as a tensor on the model's device, floats in its type; all else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in NUMBERS:
        return value
    own = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])  # others torch refuses, or warns of
    dtype = float_type_of(model) if own.dtype.kind == "f" else None
    return torch.as_tensor(own, dtype=dtype, device=device_of(model))


def asked(model: nn.Module, question: Any) -> Any:
    """The model's answer; a mapping is handed over by name, several inputs in order."""
    if isinstance(question, Mapping):
        return model(**question)
    return model(*question) if isinstance(question, list) else model(question)
