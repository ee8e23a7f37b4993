"""Softmax facts and derivatives from compiled code (kernels.cpp), which several threads can run at once.

Numpy only. Where `is_available` is False, because the package was installed without a C++ compiler, callers
compute the same with torch or numpy, more slowly.
"""

import ctypes
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import local
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from surefoot.runtime import in_parallel

SOURCE = Path(__file__).with_name("kernels.cpp")
OFF = "SUREFOOT_NO_KERNELS"  # a variable of the environment
NUMBERS_AT_ONCE = 2**20  # logits that a thread reads at a time
ROWS_OF_BLOCK = 64  # in kernels.cpp
CONFIDENCES_AT_ONCE = 2**16
ROWS_STREAMED, NUMBERS_STREAMED = 512, 2**16  # rows, or logits, whose facts are added up at a time
AT_ONCE = 8  # resamples, in kernels.cpp
VECTOR_BYTES = 64  # there
MOST_RANKED = 2**24  # there
MOST_KEPT = 2**24  # bytes of each thread

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Counts = NDArray[np.uint8]
Index = NDArray[np.int64]
Floats = NDArray[np.floating]
Result = TypeVar("Result")


ADDRESS, NUMBER, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
ROWS = (ADDRESS, NUMBER, NUMBER, NUMBER)  # logits, how many rows, their classes, from row to row
Signature = tuple[tuple[type[Any], ...], type[Any] | None]  # arguments, and result
STREAM = (ADDRESS, NUMBER, *[ADDRESS] * 3, *[NUMBER] * 3, ADDRESS, NUMBER, ADDRESS, NUMBER, *[ADDRESS] * 3)
OF_EACH_TYPE: dict[str, Signature] = {
    "softmax_facts": ((*ROWS, *[ADDRESS] * 9), None),
    "top_is_label": ((*ROWS, *[ADDRESS] * 3), None),
    "softmax_slopes": ((*ROWS, ADDRESS, REAL, *[ADDRESS] * 3), None),
    "add_stream": ((*ROWS, *STREAM), None),
    "sum_of_squares": ((ADDRESS, NUMBER), REAL),
    "extremes": ((ADDRESS, NUMBER, ADDRESS), None),
}
OTHERS: dict[str, Signature] = {
    "count_in_cells": ((ADDRESS, ADDRESS, NUMBER, NUMBER, ADDRESS, ADDRESS), None),
    "rows_in_cells": ((ADDRESS, NUMBER, NUMBER, ADDRESS, ADDRESS), NUMBER),
    "count_doubts": ((ADDRESS, ADDRESS, NUMBER, NUMBER, NUMBER, ADDRESS), None),
    "spread_on_grid": ((ADDRESS, ADDRESS, NUMBER, NUMBER, ADDRESS), None),
    "products": ((ADDRESS, NUMBER, ADDRESS, NUMBER, NUMBER, ADDRESS, ADDRESS), None),
    "drawn_decisions": ((ADDRESS, ADDRESS, NUMBER, ADDRESS), None),
    "block_sums": ((ADDRESS, NUMBER, NUMBER, *[ADDRESS] * 3, NUMBER, NUMBER, *[ADDRESS] * 4), None),
    "squares": ((ADDRESS, NUMBER, NUMBER, ADDRESS), None),
    "draw_numbers": ((ADDRESS, NUMBER, NUMBER, ADDRESS, ADDRESS), None),
    "count_numbers": ((ADDRESS, NUMBER, NUMBER, ADDRESS), None),
    "rank_confidences": ((ADDRESS, NUMBER, *[ADDRESS] * 3), NUMBER),
}


def _functions() -> dict[str, Callable[..., Any]]:
    """The functions of the library of exactly this source; none without it."""
    if os.environ.get(OFF):
        return {}
    try:
        digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
        library = ctypes.CDLL(str(SOURCE.with_name(f"kernels-{digest}.native")))
    except OSError:  # it was not compiled, or not for this machine
        return {}
    typed = {f"{name}_{kind}": of for name, of in OF_EACH_TYPE.items() for kind in ("float32", "float64")}
    functions: dict[str, Callable[..., Any]] = {}
    for name, (arguments, result) in (typed | OTHERS).items():
        function = library[name]
        function.argtypes, function.restype = arguments, result
        functions[name] = function
    return functions


_FUNCTIONS = _functions()
_this_thread = local()


def is_available() -> bool:
    """Whether there is a compiled library."""
    return bool(_FUNCTIONS)


def reads(values: Floats) -> bool:
    """Whether there are functions for numbers of this type."""
    return bool(_FUNCTIONS) and values.dtype in (np.float32, np.float64)


def fits(logits: Floats) -> bool:
    """Whether the functions below can read these logits (rows, classes)."""
    rows, classes = logits.strides
    return reads(logits) and classes == logits.itemsize and rows >= 0 and rows % classes == 0


class Facts(NamedTuple):
    """Of each row, and sums over rows."""

    facts: Array  # (4, n): log p(true), confidence, squared error, entropy
    correct: Bools  # whether the top class is the label
    sums: Array  # of `parts.SUMMED`


def softmax_facts(
    logits: Floats, labels: Index, rows: Index | None, limits: tuple[float, float, float] = (0.0, 0.0, 0.0)
) -> Facts:
    """Of the numbered rows, whose labels these are, or of all. Logits are finite and labels in range.

    The `limits` are those that sums depend on: the lowest and highest log p(true), and the confidence above
    which predictions are counted.
    """
    facts, correct = np.empty((4, len(labels))), np.empty(len(labels), dtype=np.bool_)
    read, bounds = _FUNCTIONS[f"softmax_facts_{logits.dtype}"], np.array(limits)

    def compute(part: slice) -> Array:
        place, *others = _some(logits, labels, rows, part)
        sums = np.empty(7)
        read(
            *place,
            *others,
            _address(bounds),
            *map(_address, facts[:, part]),
            _address(correct[part]),
            _address(sums),
        )
        return sums

    of_parts = _in_parts(compute, len(labels), logits.shape[1])
    return Facts(facts, correct, np.sum(of_parts, axis=0))


def top_is_label(logits: Floats, labels: Index, rows: Index | None) -> Bools:
    """Whether the first class with the highest logit is the label."""
    correct = np.empty(len(labels), dtype=np.bool_)
    read = _FUNCTIONS[f"top_is_label_{logits.dtype}"]

    def compute(part: slice) -> None:
        place, *others = _some(logits, labels, rows, part)
        read(*place, *others, _address(correct[part]))

    _in_parts(compute, len(labels), logits.shape[1])
    return correct


class Slopes(NamedTuple):
    """Sums over rows of the NLL's derivatives in the scale that logits are multiplied by."""

    slope: float
    second: float
    third: float
    squared: float  # of the first
    largest: float  # of any row's first


def softmax_slopes(
    logits: Floats, labels: Index, scale: float, weights: Array | None, of_rows: Array | None = None
) -> Slopes:
    """The derivatives, weighted if weights are given; `of_rows` is filled with the first of each row."""
    read = _FUNCTIONS[f"softmax_slopes_{logits.dtype}"]

    def compute(part: slice) -> Array:
        totals = np.empty(len(Slopes._fields))
        place, _, of_labels = _some(logits, labels, None, part)
        sides = (None if array is None else _address(array[part]) for array in (weights, of_rows))
        read(*place, of_labels, scale, *sides, _address(totals))
        return totals

    found = np.stack(_in_parts(compute, len(labels), logits.shape[1]))
    slope, second, third, squared, _ = found.sum(axis=0).tolist()
    return Slopes(slope, second, third, squared, float(found[:, 4].max()))


def sum_of_squares(values: Floats) -> float:
    """Of contiguous numbers, in float64."""
    return float(_FUNCTIONS[f"sum_of_squares_{values.dtype}"](_address(values), values.size))


def extremes(values: Floats) -> tuple[float, float]:
    """The lowest and the highest of contiguous numbers."""
    flat, find = values.reshape(-1), _FUNCTIONS[f"extremes_{values.dtype}"]

    def compute(part: slice) -> Array:
        ends = np.empty(2)
        find(_address(flat[part]), part.stop - part.start, _address(ends))
        return ends

    low, high = np.stack(_in_parts(compute, flat.size, 1)).T
    return float(low.min()), float(high.max())


def products(counts: Counts, values: Array) -> Array:
    """counts @ values.T, of counts (resamples, units) and values (sums, units)."""
    (resamples, units), sums = counts.shape, len(values)
    result, space = np.empty((resamples, sums)), _space(units * AT_ONCE)
    for first in range(0, resamples, AT_ONCE):
        some, into = counts[first : first + AT_ONCE], result[first : first + AT_ONCE]
        sizes = (_address(values), sums, units)
        _FUNCTIONS["products"](_address(some), len(some), *sizes, _address(space), _address(into))
    return result


def squares(facts: Array) -> Array:
    """facts @ facts.T."""
    result = np.zeros((len(facts), len(facts)))
    _FUNCTIONS["squares"](_address(facts), *facts.shape, _address(result))
    return result


def drawn_decisions(counts: Counts, unit: Index) -> Counts:
    """(resamples, decisions): how often each is drawn with its unit."""
    drawn = np.empty((len(counts), len(unit)), dtype=np.uint8)
    for count, into in zip(counts, drawn, strict=True):
        _FUNCTIONS["drawn_decisions"](_address(count), _address(unit), len(unit), _address(into))
    return drawn


def block_sums(
    counts: Counts, unit: Index, block_of: NDArray[np.int32], residual: Array, blocks: int
) -> Array:
    """(2, resamples, blocks + 1): before each block of decisions and after the last, how many were drawn with
    their units, and the sum of their residuals. Unit, block and residual are those of each decision."""
    resamples, units = counts.shape
    result, space = np.empty((2, resamples, blocks + 1)), _space(units * AT_ONCE)
    sums = _aligned(2 * blocks * AT_ONCE)
    for first in range(0, resamples, AT_ONCE):
        some, into = counts[first : first + AT_ONCE], result[:, first : first + AT_ONCE]
        of_decisions = _address(unit), _address(block_of), _address(residual), len(unit), blocks
        arrays = (_address(array) for array in (space, sums, *into))
        _FUNCTIONS["block_sums"](_address(some), len(some), units, *of_decisions, *arrays)
    return result


def _space(size: int) -> Counts:
    """So many bytes of this thread that may hold anything.

    Up to a size they are kept, because new memory costs as much as what is done in it.
    """
    space: Counts | None = getattr(_this_thread, "space", None)
    if space is None or len(space) < size:
        space = np.empty(size, dtype=np.uint8)
        _this_thread.space = space if size <= MOST_KEPT else None
    return space


def _aligned(size: int) -> Array:
    """So many numbers at a place that compiled vectors can be at."""
    numbers = np.empty(size + AT_ONCE)
    start = -numbers.ctypes.data % VECTOR_BYTES // numbers.itemsize
    return numbers[start : start + size]


def rank_confidences(confidence: Array) -> tuple[Index, Index] | None:
    """The numbers of the confidences from the highest to the lowest, and where runs of equal ones end.

    None where they are too many, or not all rounded to `outcomes.DECIMALS` and from 0 to 1.
    """
    n = len(confidence)
    if not (_FUNCTIONS and confidence.flags.c_contiguous and 0 < n <= MOST_RANKED):
        return None
    order, ends, space = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(2 * n, np.uint64)
    runs = _FUNCTIONS["rank_confidences"](
        _address(confidence), n, _address(space), _address(order), _address(ends)
    )
    return (order, ends[:runs]) if runs else None


def can_draw(rng: np.random.Generator) -> bool:
    """Whether there is compiled code for draws from this generator."""
    return bool(_FUNCTIONS) and isinstance(rng.bit_generator, np.random.PCG64)


class Generator:
    """Draws as many units as there are, as `rng.integers(units, dtype=uint32)` of numpy's PCG64 does."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._bits = rng.bit_generator
        self._before: Any = self._bits.state
        words = [word for value in self._before["state"].values() for word in divmod(value, 2**64)]
        self._words = np.array(
            [*words, self._before["has_uint32"], self._before["uinteger"]], dtype=np.uint64
        )

    def draw(self, counts: Counts) -> Callable[[], None]:
        """Draw, which one thread after the other must do; the result then fills counts (resamples, units)."""
        numbers, (resamples, units) = _space(4 * counts.size), counts.shape
        arrays = (_address(self._words), resamples, units, _address(numbers), _address(counts))
        _FUNCTIONS["draw_numbers"](*arrays)
        return lambda: _FUNCTIONS["count_numbers"](_address(numbers), resamples, units, _address(counts))

    def write_back(self) -> None:
        """Leave the generator of numpy where its own draws would."""
        high, low, _, _, has_left, left = self._words.tolist()
        state = {**self._before["state"], "state": high << 64 | low}
        self._bits.state = {**self._before, "state": state, "has_uint32": has_left, "uinteger": left}


def count_in_cells(confidence: Array, correct: Bools, cells: int) -> tuple[NDArray[np.int16], Array]:
    """The cell of 1 / `cells` that each confidence is in, the most confident first; and sums, (cells, 3).

    Of each cell: the number, the errors, and the sum of the confidences.
    """
    count, cell = _FUNCTIONS["count_in_cells"], np.empty(len(correct), dtype=np.int16)

    def compute(part: slice) -> Array:
        sums, some, size = np.zeros((cells, 3)), confidence[part], part.stop - part.start
        count(_address(some), _address(correct[part]), size, cells, _address(cell[part]), _address(sums))
        return sums

    return cell, np.sum(_in_parts(compute, len(correct), NUMBERS_AT_ONCE // CONFIDENCES_AT_ONCE), axis=0)


def rows_in_cells(cell: NDArray[np.int16], chosen: Bools) -> Index:
    """The numbers of the rows whose cell is chosen."""
    find = _FUNCTIONS["rows_in_cells"]

    def compute(part: slice) -> Index:
        rows = np.empty(part.stop - part.start, dtype=np.int64)
        found = find(_address(cell[part]), part.start, len(rows), _address(chosen), _address(rows))
        return rows[:found]

    return np.concatenate(_in_parts(compute, len(cell), NUMBERS_AT_ONCE // CONFIDENCES_AT_ONCE))


def count_doubts(doubts: Array, correct: Bools, bits: int, even: int, cells: Index) -> None:
    """Count doubts in cells, in place: `Histogram.add` without zooms."""
    of_doubts = (_address(doubts), _address(correct), len(doubts))
    _FUNCTIONS["count_doubts"](*of_doubts, bits, even, _address(cells))


def add_stream(
    logits: Floats,
    labels: Index,
    temperatures: Sequence[float | None],
    chosen: Sequence[int],
    limits: tuple[float, float, float],
    bits: int,
    even: int,
    cells: Sequence[Index],
    grids: Sequence[Array],
) -> tuple[Array, Array]:
    """Sums of facts of all rows, and of all products of two of these facts.

    Facts are a 1 and, of each version, the chosen ones of `parts.SUMMED`. A version is the logits divided by
    a temperature, or as they are. Its cells and its grid are filled as by the functions above and below.
    """
    (n, classes), facts = logits.shape, 1 + len(temperatures) * len(chosen)
    at_once = ROWS_OF_BLOCK * max(1, min(ROWS_STREAMED, NUMBERS_STREAMED // classes) // ROWS_OF_BLOCK)
    space = _space(at_once * (8 * (5 + facts) + logits.itemsize * classes))
    sums, products = np.zeros(facts), np.zeros((facts, facts))
    numbers = np.array(chosen, dtype=np.int64)
    scales, bounds = np.array([t or 0.0 for t in temperatures]), np.array(limits)
    places = [np.array([_address(each) for each in arrays], dtype=np.uint64) for arrays in (cells, grids)]
    place, _, of_labels = _some(logits, labels, None, slice(0, n))
    _FUNCTIONS[f"add_stream_{logits.dtype}"](
        *(
            *place,
            of_labels,
            len(scales),
            _address(scales),
            _address(bounds),
            _address(numbers),
            len(numbers),
        ),
        *(bits, even, _address(places[0]), len(grids[0]), _address(places[1])),
        *(at_once, _address(space), _address(sums), _address(products)),
    )
    return sums, products


def spread_on_grid(confidence: Array, residual: Array, cells: int) -> Array:
    """Each residual, shared between the two cells that are nearest to its confidence."""
    grid = np.zeros(cells)
    x, y = (np.ascontiguousarray(each, dtype=np.float64) for each in (confidence, residual))
    _FUNCTIONS["spread_on_grid"](_address(x), _address(y), len(x), cells, _address(grid))
    return grid


def _address(array: NDArray[Any]) -> int:
    """Of an array that somebody else holds on to until the function has returned."""
    assert array.flags.c_contiguous
    return array.ctypes.data


def _some(
    logits: Floats, labels: Index, rows: Index | None, part: slice
) -> tuple[tuple[int, ...], int | None, int]:
    """The arguments for some of the labels: the logits' place, the rows' numbers, and the labels."""
    assert labels.dtype == np.int64
    labels = labels[part]
    chosen = logits[part] if rows is None else logits
    place = (chosen.ctypes.data, len(labels), logits.shape[1], logits.strides[0] // logits.itemsize)
    return place, None if rows is None else _address(rows[part]), _address(labels)


def _in_parts(compute: Callable[[slice], Result], n: int, numbers: int) -> list[Result]:
    """`compute` of 0 to n, on several threads, where each row has so many numbers.

    There are a multiple of four parts, which two or four threads share evenly.
    """
    parts = -(-n * numbers // NUMBERS_AT_ONCE)
    parts = parts if parts <= 1 else 4 * -(-parts // 4)
    size = ROWS_OF_BLOCK * max(1, -(-n // (ROWS_OF_BLOCK * max(1, parts))))
    slices = [slice(start, min(start + size, n)) for start in range(0, max(1, n), size)]
    return in_parallel(compute, slices, numbers=n * numbers)
