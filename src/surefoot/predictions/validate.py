"""Input arrays and their validation: each error says what, got and allowed."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from surefoot.errors import InputError
from surefoot.predictions.labels import IGNORE

SUM_TOLERANCE = 1e-3  # how far a row of probabilities may be from summing to 1
LARGEST_LOGIT = 1e100  # so that squares and sums stay finite


def _as_tensor(name: str, values: Any) -> Tensor:
    """A tensor on the CPU, sharing memory where it can: torch, anything with DLPack, numpy, lists."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    if hasattr(values, "__dlpack__") and not isinstance(values, np.ndarray):
        return from_dlpack(values).detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name} are not a rectangular array: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} have type {array.dtype}; allowed: numbers")
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # and we never write to it
        return torch.from_numpy(array)


def as_float(name: str, values: Any) -> Tensor:
    tensor = _as_tensor(name, values)
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)


def as_labels(values: Any) -> Tensor:
    tensor = _as_tensor("labels", values)
    if tensor.is_floating_point():
        whole = tensor.round()
        if not torch.equal(whole, tensor):
            row = int(torch.nonzero(whole != tensor)[0, 0])
            got = tensor[row].tolist()
            raise InputError(f"labels in row {row} are {got}; allowed: whole numbers")
    return tensor.to(torch.int64 if tensor.ndim < 2 else torch.int8 if _fits(tensor) else torch.int64)


def _fits(labels: Tensor) -> bool:
    return labels.numel() == 0 or bool(labels.min() >= -128 and labels.max() <= 127)


def as_keys(name: str, values: Any) -> NDArray[Any]:
    try:
        keys = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    except ValueError as error:
        raise InputError(f"{name}: not a plain list; allowed: a list of text or whole numbers") from error
    if keys.dtype.kind == "O" and all(isinstance(value, str) for value in keys.flat):
        keys = keys.astype(str)
    if keys.ndim != 1 or keys.dtype.kind not in "Uiub":
        raise InputError(
            f"{name} have type {keys.dtype} and shape {keys.shape}; allowed: a list of text or whole numbers"
        )
    return keys


def check_logits(logits: Tensor) -> None:
    if logits.ndim != 3 or not logits.is_floating_point():
        shape = tuple(logits.shape)
        raise InputError(
            f"logits have type {logits.dtype}, shape {shape}; allowed: float (members, n, classes)"
        )
    members, n, classes = logits.shape
    if not members or not n:
        raise InputError(f"no rows: logits have shape {tuple(logits.shape)}; allowed: at least one row")
    if classes < 2:
        raise InputError(f"{classes} class; allowed: two or more (or one logit with labels 0 and 1)")
    low, high = torch.aminmax(logits)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise InputError(f"logits hold {first_not_finite(logits[0] if members == 1 else logits)}; "
                         "allowed: finite numbers")  # fmt: skip
    if max(abs(float(low)), abs(float(high))) > LARGEST_LOGIT:
        raise InputError(f"logits from {low:g} to {high:g}; allowed: up to {LARGEST_LOGIT:g} in size")


def first_not_finite(values: Tensor) -> str:
    place = torch.nonzero(~torch.isfinite(values))[0].tolist()
    value = values[tuple(place)].item()
    names = ("member", "row", "column")[-len(place) :] if len(place) > 1 else ("row",)
    where = ", ".join(f"{name} {at}" for name, at in zip(names, place, strict=True))
    return f"{'NaN' if value != value else 'infinity'} in {where}"


def check_one_label(labels: Tensor, n: int, classes: int) -> None:
    check_length("labels", labels, n)
    if labels.ndim != 1:
        raise InputError(f"labels have shape {tuple(labels.shape)}; allowed: (n,) or (n, classes)")
    low, high = torch.aminmax(labels)
    if low < 0 or high >= classes:
        wrong = ((labels < 0) & (labels != IGNORE)) | (labels >= classes)
        _refuse_labels(labels, wrong, f"0 to {classes - 1}, or {IGNORE} for unknown")


def check_many_labels(labels: Tensor, n: int, classes: int) -> None:
    check_length("labels", labels, n)
    if labels.shape != (n, classes):
        raise InputError(
            f"labels have shape {tuple(labels.shape)} and logits ({n}, {classes}); "
            "for many labels the shapes must be equal"
        )
    wrong = (labels != 0) & (labels != 1) & (labels != IGNORE)
    _refuse_labels(labels, wrong, f"0, 1 or {IGNORE} (ignored)")


def _refuse_labels(labels: Tensor, wrong: Tensor, allowed: str) -> None:
    if wrong.any():
        place = tuple(torch.nonzero(wrong)[0].tolist())
        raise InputError(f"label {int(labels[place])} in row {place[0]} is out of range; allowed: {allowed}")


def check_class_names(names: tuple[str, ...] | None, classes: int) -> None:
    if names is None:
        return
    if len(names) != classes:
        raise InputError(f"{len(names)} class names for {classes} classes; the numbers must be equal")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"class name {twice!r} occurs twice; allowed: different names")


def check_length(name: str, values: Any, n: int) -> None:
    if values is not None and len(values) != n:
        raise InputError(f"{len(values)} {name} for {n} rows of logits; the lengths must be equal")


def check_probability_range(probs: Tensor) -> None:
    if probs.numel() == 0:
        raise InputError("no rows: probs are empty; allowed: at least one row")
    low, high = torch.aminmax(probs)
    if low >= 0 and high <= 1:
        return
    place = torch.nonzero(~((probs >= 0) & (probs <= 1)))[0].tolist()
    value = probs[tuple(place)].item()
    row = place[0] if probs.ndim < 3 else place[1]
    raise InputError(
        f"probability {value:g} in row {row} is outside [0, 1]; allowed: probabilities, not logits"
    )


def check_probability_sums(probs: Tensor) -> None:
    off = (probs.sum(dim=2, dtype=torch.float64) - 1).abs()
    if bool((off <= SUM_TOLERANCE).all()):
        return
    member, row = torch.nonzero(off > SUM_TOLERANCE)[0].tolist()
    total = probs[member, row].sum().item()
    raise InputError(f"probabilities in row {row} sum to {total:.6g}; allowed: 1 within {SUM_TOLERANCE:g}")
