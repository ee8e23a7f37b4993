"""The arrays of an .npz file, checked in full before anything is allocated. Does not need torch."""

import math
import warnings
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError, one_line, refuse_unknown
from surefoot.predictions.memory import refuse_larger_than_memory
from surefoot.text import bytes_text

COMPRESSIONS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}  # and how much smaller they can make data
ENCRYPTED = 0x1  # a flag of a zip member
LONGEST_HEADER = 10_000  # characters of the header of an array, as in numpy
AT_ONCE = 2**20  # bytes
LAST_CODE_POINT, SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)


def read_arrays(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file, which may have these names; nothing is unpickled."""
    if not zipfile.is_zipfile(path):
        raise zipfile.BadZipFile("not a zip archive, or a truncated one")
    with zipfile.ZipFile(path) as archive:
        members = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in members:
                raise InputError(f"array {name!r} occurs twice; allowed: different names")
            members[name] = member
        refuse_unknown("array", sorted(members), names)
        for name, member in members.items():
            _check_member(name, member)
        size = sum(member.file_size for member in members.values())
        refuse_larger_than_memory("the arrays, and as much again for what is computed from them,", 2 * size)
        for name, member in members.items():  # all, before the data of the first are read
            with archive.open(member) as file:
                _checked_header(name, member, file)
        return {name: _read_member(name, member, archive) for name, member in members.items()}


def _check_member(name: str, member: zipfile.ZipInfo) -> None:
    if member.flag_bits & ENCRYPTED:
        raise InputError(f"array {name!r} is encrypted; allowed: arrays without a password")
    if member.compress_type not in COMPRESSIONS:
        raise InputError(
            f"array {name!r} is compressed by method {member.compress_type}; allowed: not compressed, or "
            "deflated"
        )
    most = COMPRESSIONS[member.compress_type] * member.compress_size
    if member.file_size > most:
        raise InputError(
            f"array {name!r} announces {bytes_text(member.file_size)} in {bytes_text(member.compress_size)}; "
            f"allowed: what fits into them, {bytes_text(most)}"
        )


def _checked_header(
    name: str, member: zipfile.ZipInfo, file: IO[bytes]
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    shape, in_columns, dtype = _read_header(name, file)
    if dtype.hasobject:
        raise InputError(f"array {name!r} holds Python objects; allowed: numbers and text")
    if dtype.kind not in "biufU":
        raise InputError(f"array {name!r} has type {dtype}; allowed: numbers and text")
    size, have = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
    if min(shape, default=0) < 0 or size != have:
        raise InputError(
            f"array {name!r} has shape {shape} of {dtype}, {bytes_text(size)}, but {bytes_text(have)} of "
            "data; the numbers must be equal"
        )
    return shape, in_columns, dtype


def _read_member(name: str, member: zipfile.ZipInfo, archive: zipfile.ZipFile) -> NDArray[Any]:
    with archive.open(member) as file:
        shape, in_columns, dtype = _checked_header(name, member, file)
        array = np.empty(shape, dtype, order="F" if in_columns else "C")
        data = array.reshape(-1, order="A").view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
        filled = 0
        while piece := file.read(AT_ONCE):  # the last one, which is empty, verifies the checksum
            data[filled : filled + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            filled += len(piece)
    if filled != array.nbytes:
        raise InputError(f"array {name!r} ends after {filled:,} of {array.nbytes:,} bytes")
    array.flags.writeable = False  # so that predictions need no copy
    if dtype.kind == "U":
        refuse_invalid_text(name, array)
    return array


def _read_header(name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header of Python 2
            return read(file, max_header_size=LONGEST_HEADER)
    except KeyError as error:
        raise InputError(f"array {name!r} has format {error}; allowed: format 1.0 or 2.0 of numpy") from error
    except Exception as error:  # a damaged header can make numpy's parser raise nearly anything
        reason = one_line(error) or type(error).__name__
        raise InputError(f"array {name!r} has a header that cannot be read ({reason})") from error


def refuse_invalid_text(name: str, array: NDArray[Any]) -> None:
    """Raise if an array of text holds numbers that are no characters, halves of them, or null characters."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    codes = plain.reshape(-1).view(np.uint32)
    if not codes.size:
        return
    columns = codes.reshape(array.size, -1)
    if ((columns[:, :-1] == 0) & (columns[:, 1:] != 0)).any():  # those at the end fill it up
        raise InputError(f"array {name!r} holds null characters; allowed: text without them")
    if codes.max() >= SURROGATES[0]:
        halves = (codes >= SURROGATES[0]) & (codes <= SURROGATES[1])
        if halves.any() or codes.max() > LAST_CODE_POINT:
            raise InputError(f"array {name!r} holds text that is not Unicode; allowed: valid characters")
