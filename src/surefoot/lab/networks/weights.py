"""Pretrained weights: reading files safely, loading them into a network, and a report of what was loaded."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from surefoot.errors import InputError
from surefoot.io import refuse_special
from surefoot.lab.networks.network import Network

PYTORCH = (".pth.tar", ".pth", ".pt")
SAFETENSORS = ".safetensors"
NESTED = ("state_dict", "model")  # keys under which training scripts store the weights
WRAPPERS = ("module.", "_orig_mod.")  # DataParallel's and torch.compile's
OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")  # old files have dots in these names
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
WHOLES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)  # of counters and masks
FORBIDDEN = re.compile(r"GLOBAL (\S+)")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors by torchvision's names, on the CPU, in the file's own types.

    Takes Places365's `.pth.tar`, torchvision's `.pth` and `.safetensors`; prefixes of wrappers are removed,
    and names of old DenseNet files are translated.
    """
    name = Path(path).name
    if not name.endswith((*PYTORCH, SAFETENSORS)):
        allowed = ", ".join((*PYTORCH, SAFETENSORS))
        raise InputError(f"weights file {path} has an unknown ending; allowed: {allowed}")
    try:
        refuse_special(path)
        tensors = load_file(path) if name.endswith(SAFETENSORS) else _read_pytorch(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from error
    for key, tensor in tensors.items():
        if (kind := _not_plain(tensor)) is not None:
            raise InputError(f"{path} holds a {kind} tensor under {key!r}; allowed: dense tensors of numbers")
    return {_published_name(name): tensor for name, tensor in tensors.items()}


def _not_plain(tensor: Tensor) -> str | None:
    """What a tensor is that does not simply hold its numbers; else None."""
    kinds = {"meta": tensor.is_meta, "quantised": tensor.is_quantized, "nested": tensor.is_nested}
    sparse = {str(tensor.layout).removeprefix("torch."): tensor.layout is not torch.strided}
    return next((kind for kind, holds in (kinds | sparse).items() if holds), None)


def _read_pytorch(path: str | Path) -> dict[str, Tensor]:
    with Path(path).open("rb") as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # arbitrary bytes make torch.load raise anything
            reason = "is not a file of PyTorch weights, or is damaged; allowed: a state_dict by torch.save"
            if forbidden := FORBIDDEN.search(str(error)):
                reason = (
                    f"holds {forbidden[1]}, and code in a weights file is never run; "
                    "allowed: tensors only, as in a state_dict"
                )
            raise InputError(f"{path} {reason}") from error
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


LEAST_MATCHED = 0.9  # the share of the names in file and backbone that must match in name and shape
COUNTER = "num_batches_tracked"  # files from before PyTorch 0.4.1 have none, and nothing here reads it


@dataclass(frozen=True)
class Mismatch:
    """A tensor that both have, in different shapes."""

    name: str
    in_file: tuple[int, ...]
    in_network: tuple[int, ...]


@dataclass(frozen=True)
class WeightsReport:
    """Which tensors were loaded and which were not; names as in published files."""

    path: str
    matched: tuple[str, ...]  # loaded
    left_out: tuple[str, ...]  # the file's last layer, if it was not requested
    missing: tuple[str, ...]  # in the backbone, not in the file: left as initialised
    unexpected: tuple[str, ...]  # in the file only
    mismatched: tuple[Mismatch, ...]  # left as initialised

    def sentence(self) -> str:
        """The report in one line."""
        parts = [f"{self.path}: {len(self.matched)} tensors loaded"]
        for title, names in (
            ("left out", self.left_out),
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("of another shape", tuple(mismatch.name for mismatch in self.mismatched)),
        ):
            if names:
                parts.append(f"{len(names)} {title} ({_some(names)})")
        return ", ".join(parts)


def load_weights(network: Network, path: str | Path) -> WeightsReport:
    """Put the file's backbone into the network; the last layer stays as initialised."""
    tensors = read_weights(path)
    backbone = {  # the tensors themselves, not copies, by published name
        name.removeprefix(network.published_prefix): tensor
        for name, tensor in network.state_dict().items()
        if not _is_under(network.head_name, name)
    }
    report = _compare(str(path), tensors, backbone, network.published_head)
    _refuse_wrong_file(network, report)
    converted = {
        name: _converted(report.path, name, tensors[name], backbone[name]) for name in report.matched
    }
    with torch.no_grad():
        for name, tensor in converted.items():
            backbone[name].copy_(tensor)
    return report


def _converted(path: str, name: str, tensor: Tensor, target: Tensor) -> Tensor:
    """In the target's type, on its device; types that hold other kinds of numbers are refused."""
    kinds = (FLOATS, WHOLES, (target.dtype,))
    if not any(tensor.dtype in kind and target.dtype in kind for kind in kinds):
        got, needed = (str(each.dtype).removeprefix("torch.") for each in (tensor, target))
        allowed = ", ".join(str(each).removeprefix("torch.") for each in FLOATS)
        raise InputError(f"{path}: {name} is {got} for {needed} weights; allowed: {allowed}")
    converted = tensor.to(target)
    if not torch.isfinite(converted).all():  # a damaged file would look like a training that diverges
        raise InputError(f"{path}: {name} holds NaN or infinity; allowed: numbers")
    return converted


def _compare(
    path: str, tensors: dict[str, Tensor], targets: dict[str, Tensor], last_layer: str
) -> WeightsReport:
    both = [name for name in tensors if name in targets]
    extra = [name for name in tensors if name not in targets]
    matched = [name for name in both if tensors[name].shape == targets[name].shape]
    return WeightsReport(
        path=path,
        matched=tuple(matched),
        left_out=tuple(name for name in extra if _is_under(last_layer, name)),
        missing=tuple(name for name in targets if name not in tensors and not name.endswith(COUNTER)),
        unexpected=tuple(name for name in extra if not _is_under(last_layer, name)),
        mismatched=tuple(
            Mismatch(name, tuple(tensors[name].shape), tuple(targets[name].shape))
            for name in both
            if tensors[name].shape != targets[name].shape
        ),
    )


def _refuse_wrong_file(network: Network, report: WeightsReport) -> None:
    """Raise for another architecture's file. Extra names count: ResNet-34 has all names of ResNet-18."""
    matched = sum(not name.endswith(COUNTER) for name in report.matched)
    others = (
        *report.missing,
        *(mismatch.name for mismatch in report.mismatched),
        *(name for name in report.unexpected if not name.endswith(COUNTER)),
    )
    if matched < LEAST_MATCHED * (matched + len(others)):
        raise InputError(
            f"{report.path} does not fit network {network.name!r}: {matched} of {matched + len(others)} "
            f"tensors match, not {_some(others)}; allowed: weights of the same architecture"
        )


def _is_under(module: str, name: str) -> bool:
    return module != "" and name.startswith(f"{module}.")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
