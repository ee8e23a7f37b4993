"""From the arrays that users give to ones that nobody else can change. Does not need torch.

Predictions keep a copy, whatever happens to the arrays later. Only a numpy array that is read-only, and a
view of nothing that can be written to, is kept as it is: that is how large logits are given without a copy.
"""

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.predictions.arguments import is_tensor
from surefoot.predictions.memory import refuse_larger_than_memory
from surefoot.predictions.validate import as_floats, as_keys, as_labels

if TYPE_CHECKING:
    import pyarrow as pa

LARGE = 2**28  # bytes


def as_numpy(name: str, values: Any) -> Any:
    """Tensors, on a GPU too, and anything with DLPack, as an array that shares memory where it can."""
    refuse_masked(name, values)
    if is_tensor(values):
        return _of_tensor(name, values)
    is_arrow = type(values).__module__.partition(".")[0] == "pyarrow"
    if isinstance(values, np.ndarray) or is_arrow or not hasattr(values, "__dlpack__"):
        return values
    try:
        return np.from_dlpack(values)
    except (BufferError, RuntimeError, TypeError, ValueError):  # such as text: numpy reads what it can
        return values


def _of_tensor(name: str, tensor: Any) -> NDArray[Any]:
    try:
        plain = tensor.detach().cpu().to_dense().resolve_conj().resolve_neg()
        array: NDArray[Any] = (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()
        return array
    except (NotImplementedError, RuntimeError, TypeError):
        kind = "nested" if tensor.is_nested else f"{tensor.device.type} {str(tensor.dtype)[6:]}"
        raise InputError(f"{name} are a {kind} tensor; allowed: a tensor of numbers that has data") from None


def refuse_masked(name: str, values: Any) -> None:
    """Raise for a masked array in which something is masked: numpy would read what is behind the mask."""
    parts = values if isinstance(values, list | tuple) else [values]
    for row, part in enumerate(parts):
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
            row = row if parts is values else int(np.argwhere(np.ma.getmaskarray(part))[0][0])
            raise InputError(f"{name} are masked in row {row}; allowed: a value in every row")


def own(name: str, values: Any) -> NDArray[Any]:
    """What Predictions hold under that name, as an array that nobody else can write to."""
    if name in ("groups", "ids"):
        return own_keys(name, values)
    array = as_numpy(name, values)
    return frozen(as_labels(array) if name == "labels" else as_floats(name, array))


def own_keys(name: str, keys: Any) -> NDArray[Any]:
    """Groups or ids as such an array."""
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


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """An array that nobody else has, so that Predictions need no copy of it."""
    whole: Any = array
    while isinstance(whole, np.ndarray):  # it may be another shape of one
        whole.flags.writeable = False
        whole = whole.base
    return array


def is_frozen(array: Any) -> bool:
    """Whether neither the array nor anything that it is a view of can be written to."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or (isinstance(array, mmap.mmap) and memoryview(array).readonly)


def frozen_table(table: "pa.Table") -> "pa.Table":
    """A copy of an Arrow table, which may be made of the memory of numpy arrays."""
    import pyarrow as pa  # here, so that commands which only list calibrators do not wait for it

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()
