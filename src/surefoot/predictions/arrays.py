"""From the arrays that users give to ones that nobody else can change.

Predictions keep a copy, whatever happens to the arrays later. Only a numpy array that is read-only, and a
view of nothing that can be written to, is kept as it is: that is how large logits are given without a copy.
"""

import mmap
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from surefoot.errors import InputError
from surefoot.predictions.memory import refuse_larger_than_memory
from surefoot.predictions.validate import as_floats, as_keys, as_labels

OWN = "surefoot_own"  # an attribute of tensors: the address of memory that nobody else writes to
LARGE = 2**28  # bytes


def as_numpy(name: str, values: Any) -> Any:
    """Tensors, and anything with DLPack, as an array on the CPU that shares memory where it can."""
    refuse_masked(name, values)
    if not isinstance(values, Tensor):
        if isinstance(values, np.ndarray | pa.Array) or not hasattr(values, "__dlpack__"):
            return values
        try:
            values = from_dlpack(values)
        except (BufferError, RuntimeError, TypeError, ValueError):  # such as text: numpy reads what it can
            return values
    try:
        tensor = values.detach().cpu().to_dense().resolve_conj().resolve_neg()
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    except (NotImplementedError, RuntimeError, TypeError):
        kind = "nested" if values.is_nested else f"{values.device.type} {str(values.dtype)[6:]}"
        raise InputError(f"{name} are a {kind} tensor; allowed: a tensor of numbers that has data") from None


def refuse_masked(name: str, values: Any) -> None:
    """Raise for a masked array in which something is masked: numpy would read what is behind the mask."""
    parts = values if isinstance(values, list | tuple) else [values]
    for row, part in enumerate(parts):
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
            row = row if parts is values else int(np.argwhere(np.ma.getmaskarray(part))[0][0])
            raise InputError(f"{name} are masked in row {row}; allowed: a value in every row")


def is_on_device(values: Any) -> bool:
    """Whether it is a tensor of numbers on a GPU."""
    is_plain = isinstance(values, Tensor) and not (values.is_complex() or values.is_quantized)
    return is_plain and values.device.type not in ("cpu", "meta")


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor that shares the array's memory."""
    if min(array.strides, default=0) < 0:  # of length 1: it counts as contiguous, but torch refuses it
        array = frozen(array.copy()) if is_frozen(array) else array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # and we never write to it
        tensor = torch.from_numpy(array)
    return _marked(tensor) if is_frozen(array) else tensor


def own(name: str, tensor: Tensor) -> Tensor:
    """A contiguous copy of a type that is computed with; the tensor itself if it is one already."""
    if tensor.__dict__.get(OWN) == tensor.data_ptr():  # a deep copy has the attribute, and other memory
        return tensor
    if not is_on_device(tensor):
        array = as_numpy(name, tensor)
        return as_tensor(frozen(as_labels(array) if name == "labels" else as_floats(name, array)))
    return _marked(tensor.detach().clone(memory_format=torch.contiguous_format))


def _marked(tensor: Tensor) -> Tensor:
    tensor.__dict__[OWN] = tensor.data_ptr()
    return tensor


def own_keys(name: str, keys: Any) -> NDArray[Any]:
    """Groups or ids as an array that nobody else can write to."""
    return frozen(as_keys(name, as_numpy(name, keys)))


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only copy; the array itself if it is read-only."""
    if is_frozen(array):
        return array
    if array.nbytes > LARGE:
        refuse_larger_than_memory("a copy of an array that is not read-only", array.nbytes)
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


def is_frozen(array: Any) -> bool:
    """Whether neither the array nor anything that it is a view of can be written to."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or (isinstance(array, mmap.mmap) and memoryview(array).readonly)


def frozen_table(table: pa.Table) -> pa.Table:
    """A copy of an Arrow table, which may be made of the memory of numpy arrays."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()
