"""Files of weights: tensors by name, and nothing in the file is ever run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from surefoot.errors import InputError

PYTORCH = (".pth.tar", ".pth", ".pt")
SAFETENSORS = ".safetensors"
NESTED = ("state_dict", "model")  # where training scripts put the weights beside their other state
WRAPPERS = ("module.", "_orig_mod.")  # DataParallel's and torch.compile's
OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")  # names could once hold dots
FORBIDDEN = re.compile(r"GLOBAL (\S+)")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors by torchvision's names, on the CPU, in the file's own types.

    Takes Places365's `.pth.tar`, torchvision's `.pth` and `.safetensors`; wrappers' prefixes and the
    spelling of old DenseNet files are mended.
    """
    name = Path(path).name
    if name.endswith(SAFETENSORS):
        tensors = _read_safetensors(path)
    elif name.endswith(PYTORCH):
        tensors = _tensors_in(_read_pytorch(path), path)
    else:
        allowed = ", ".join((*PYTORCH, SAFETENSORS))
        raise InputError(f"weights file {path} has an unknown ending; allowed: {allowed}")
    return {_published_name(name): tensor for name, tensor in tensors.items()}


def _read_safetensors(path: str | Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from error


def _read_pytorch(path: str | Path) -> object:
    try:
        with Path(path).open("rb") as file:
            return _content(file, path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _content(file: BinaryIO, path: str | Path) -> object:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the bytes may be anything, and so may be what torch makes of them
        raise InputError(_refusal(path, str(error))) from error


def _refusal(path: str | Path, message: str) -> str:
    forbidden = FORBIDDEN.search(message)
    if forbidden:
        return (
            f"{path} holds {forbidden[1]}, and code in a weights file is never run; "
            "allowed: tensors only, as in a state_dict"
        )
    return f"{path} is no file of PyTorch weights, or is damaged; allowed: a state_dict by torch.save"


def _tensors_in(content: object, path: str | Path) -> dict[str, Tensor]:
    if isinstance(content, Mapping):
        content = next((content[key] for key in NESTED if isinstance(content.get(key), Mapping)), content)
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{path} holds {type(content).__name__}; allowed: tensors by name")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(f"{path} holds {type(value).__name__} under {name!r}; allowed: tensors by name")
    return dict(content)


def _published_name(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return OLD_DENSENET.sub(r"\1\2.", name)
