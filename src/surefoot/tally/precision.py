"""Fine cells of log odds, class by class: average precision, for what does not fit in memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.outcomes import Array, Index
from surefoot.tally.judge import Whole

CELLS = 2**20  # of all classes together
FINEST_BITS = 12
UNIT = 2.0**20  # log odds are told apart to a millionth near 0
OCTAVES = 27  # and up to 128, beyond which a probability differs from 0 or 1 by 1e-56


@dataclass(frozen=True, eq=False)
class LogOdds:
    """Per class and cell of log odds, from the lowest: how many labels, and how many present."""

    bits: int
    count: Index  # (classes, cells)
    present: Index
    one: Array  # the log odds of one of them, NaN where there is none
    mixed: NDArray[np.bool_]  # whether there are others

    @staticmethod
    def empty(classes: int) -> "LogOdds":
        bits = FINEST_BITS
        while bits > 4 and classes * _size(bits) > CELLS:
            bits -= 1
        size = (classes, _size(bits))
        count, present = np.zeros((2, *size), dtype=np.int64)
        return LogOdds(bits, count, present, np.full(size, np.nan), np.zeros(size, dtype=bool))

    def add(self, score: Array, labels: Whole) -> None:
        """Count some labels in place, from log odds and labels (classes, rows)."""
        for block, (of_class, label) in enumerate(zip(score, labels, strict=True)):
            known, size = label >= 0, self.count.shape[1]
            values = of_class[known]
            cell = self._cell(values)
            self.count[block] += np.bincount(cell, minlength=size)
            self.present[block] += np.bincount(cell[label[known] == 1], minlength=size)
            one = self.one[block]
            before = one[cell]
            one[cell] = values
            self.mixed[block, cell[(before != values) & ~np.isnan(before) | (one[cell] != values)]] = True

    def merged(self, other: "LogOdds") -> "LogOdds":
        """Both together."""
        both = ~np.isnan(self.one) & ~np.isnan(other.one)
        mixed = self.mixed | other.mixed | (both & (self.one != other.one))
        one = np.fmax(self.one, other.one)
        return LogOdds(self.bits, self.count + other.count, self.present + other.present, one, mixed)

    def mean_average_precision_range(self) -> tuple[float, float]:
        """The least and the largest that the mean average precision can be; NaN where no class is present."""
        ranges = [
            _precision_range(count[::-1], present[::-1], mixed[::-1])
            for count, present, mixed in zip(self.count, self.present, self.mixed, strict=True)
            if present.any()
        ]
        low, high = np.mean(ranges, axis=0) if ranges else (np.nan, np.nan)
        return float(low), float(high)

    def _cell(self, score: Array) -> Index:
        size = np.minimum(np.floor(np.abs(score) * UNIT), 2.0**OCTAVES - 1)
        leading = (size.view(np.int64) >> (52 - self.bits)) - ((1022 + self.bits) << self.bits)
        found = np.where(size < 2**self.bits, size.astype(np.int64), leading)
        half = _size(self.bits) // 2
        return np.where(score >= 0, half + found, half - 1 - found)


def _size(bits: int) -> int:
    return (2 * (OCTAVES - bits + 1)) << bits


def _precision_range(count: Index, present: Index, mixed: NDArray[np.bool_]) -> tuple[float, float]:
    """Interpolated average precision with each mixed cell's present labels last, then first.

    Last is the same as tied: within a cell the precision then only rises, so its end is what counts.
    """
    filled = count > 0
    count, present = count[filled], present[filled]
    found, seen = np.cumsum(present), np.cumsum(count)
    best = np.where(mixed[filled], seen - count + present, seen)
    last, first = found / seen, found / best.clip(min=1)
    ends = [np.maximum.accumulate(precision[::-1])[::-1] @ present / found[-1] for precision in (last, first)]
    return float(ends[0]), float(ends[1])
