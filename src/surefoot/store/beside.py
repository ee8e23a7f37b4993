"""Further arrays about a finished network, as .npz files that numpy reads too. Never pickled."""

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.files import replacing
from surefoot.recipes import digest_of
from surefoot.tasks.base import Split

Arrays = dict[str, NDArray[Any]]
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
PLAIN_WITH_DOTS = re.compile(r"[A-Za-z0-9_.-]+")


def checked_name(name: str) -> str:
    """A name for a file of arrays: a plain word, and none that a split's predictions have."""
    if not PLAIN.fullmatch(name) or name in set(Split):
        raise InputError(f"name is {name!r}; allowed: letters, digits, - and _, but no split's name")
    return name


def write_arrays(arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write arrays by name, whole or not at all."""
    for name, array in arrays.items():
        if not PLAIN_WITH_DOTS.fullmatch(name):
            raise InputError(f"array name is {name!r}; allowed: letters, digits, '.', - and _")
        if array.dtype.hasobject:
            raise InputError(f"array {name!r} holds Python objects; allowed: numbers and text")
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():  # not numpy's savez, which keeps names such as 'file' for itself
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array(file, array, allow_pickle=False)
        archive.comment = _names_hash(arrays)


def read_arrays(path: Path) -> Arrays:
    """Read arrays by name, each checked against its checksum first; a damaged file is named."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {name.removesuffix(".npy"): _array(archive.read(name)) for name in archive.namelist()}
            if archive.comment != _names_hash(arrays):  # zipfile does not see that its list was cut short
                raise ValueError("not the arrays that were saved")
            return arrays
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # the bytes may be anything, and so may be what zipfile makes of them
        raise InputError(f"{path} is damaged ({error}); remove it to have it made anew") from error


def _names_hash(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return digest_of(list(arrays)).encode()


def _array(content: bytes) -> NDArray[Any]:
    return npy.read_array(io.BytesIO(content), allow_pickle=False)
