"""Fine cells of confidence and of log odds, with whole-number counts.

1 - confidence is a multiple of 1e-12. Above 0.034 cells are 8e-6 wide; below, each octave has 4096 of
them (many labels: fewer, but separate for every class). A cell holds integers: its decisions, its
errors, the sum of its confidences, and whether they are all tied. So partial results merge exactly, in
any order.

Let C(m) and E(m) be the summed confidence and the errors of the m most confident decisions, known
exactly at every cell boundary and within a tie. At a cut that takes the top a of the n decisions in a
cell with e errors, E increases by max(0, a - (n - e)) to min(a, e), and C by a times the cell's mean to
what its edges allow. AURC, AUGRC and risk at a coverage increase with E(m): they lie between their
values with each cell's errors placed last and first. Coverage at a risk lies between the last cell
boundary that keeps the risk and the most favourable order.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from surefoot.metrics.metric import Cells, Range
from surefoot.predictions.outcomes import ONE, Array, Bools, Index

BITS = 12
EVEN = 35  # from 2^35 doubts on, cells are of one width
CELLS = 2**21  # of all blocks together
ZOOMED_CELLS = 2**19
HEAVY = 1e-5  # of all decisions: a cell with a larger share may be divided


@dataclass(frozen=True, eq=False)
class Zoom:
    """Some cells of a grid cut into `parts` each, which come after all cells there were."""

    slot: NDArray[np.int32]  # per cell so far: its place among the chosen, or -1
    parts: int


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells of doubt; where zoomed into, a cell is left empty and its parts are filled instead."""

    bits: int
    starts: Index  # the least doubt of each cell
    widths: Index  # how many doubts there are in it
    zooms: tuple[Zoom, ...] = ()

    @staticmethod
    def of(blocks: int, bits: int = BITS) -> "Grid":
        """A grid for so many blocks, coarser where they are many."""
        while bits > 4 and blocks * ((EVEN - bits) * 2**bits + (ONE >> (EVEN - bits))) > CELLS:
            bits -= 1
        fine = np.arange(2**bits)
        octaves = [(2**bits + fine) << shift for shift in range(EVEN - bits)]
        even = np.arange(2**EVEN, ONE + 1, 2 ** (EVEN - bits))
        starts = np.concatenate([fine, *octaves, even])
        return Grid(bits, starts, np.diff(starts, append=ONE + 1))

    def __len__(self) -> int:
        return len(self.starts)

    def index(self, doubts: Array) -> Index:
        """The cell of each doubt, a whole number held as float64, whose leading bits say which."""
        whole = doubts.astype(np.int64)
        leading = doubts.view(np.int64) >> (52 - self.bits)
        leading -= (1022 + self.bits) << self.bits
        even = (whole >> (EVEN - self.bits)) + ((EVEN - self.bits) << self.bits)
        result = np.where(whole < 2**self.bits, whole, np.where(whole < 2**EVEN, leading, even))
        first = len(self) - sum(int(zoom.slot.max() + 1) * zoom.parts for zoom in self.zooms)
        for zoom in self.zooms:
            slot = zoom.slot[result]
            chosen = np.flatnonzero(slot >= 0)
            cell = result[chosen]
            part = (whole[chosen] - self.starts[cell]) * zoom.parts // self.widths[cell]
            result[chosen] = first + slot[chosen] * zoom.parts + part
            first += int(zoom.slot.max() + 1) * zoom.parts
        return result

    def zoomed(self, chosen: Index, parts: int) -> "Grid":
        """The same with the chosen cells cut into parts."""
        slot = np.full(len(self), -1, dtype=np.int32)
        slot[chosen] = np.arange(len(chosen))
        cuts = -(-np.arange(parts) * self.widths[chosen, None] // parts)
        starts = (self.starts[chosen, None] + cuts).reshape(-1)
        widths = np.diff(cuts, append=self.widths[chosen, None], axis=1).reshape(-1)
        return replace(
            self,
            starts=np.append(self.starts, starts),
            widths=np.append(self.widths, widths),
            zooms=(*self.zooms, Zoom(slot, parts)),
        )


NONE, SEVERAL = 0, -1  # in the place of a cell's only doubt plus 1, so that unused memory need not be written


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts per block and cell of a grid. The numbers of a cell are together: a decision reads one place."""

    grid: Grid
    numbers: Index  # (blocks, cells, 4)

    @staticmethod
    def empty(grid: Grid, blocks: int) -> "Histogram":
        return Histogram(grid, np.zeros((blocks, len(grid), 4), dtype=np.int64))

    @property
    def count(self) -> Index:
        return self.numbers[..., 0]

    @property
    def wrong(self) -> Index:
        return self.numbers[..., 1]

    @property
    def offset(self) -> Index:
        """The sum of the doubts, each less the start of its cell."""
        return self.numbers[..., 2]

    @property
    def doubt(self) -> Index:
        """The doubt plus 1, if all are equal; NONE or SEVERAL if there are none or others."""
        return self.numbers[..., 3]

    @property
    def mixed(self) -> Bools:
        return np.asarray(self.doubt == SEVERAL)

    def add(self, block: int, doubts: Array, wrong: Bools) -> None:
        """Count some decisions of a block, in place."""
        cell, size = self.grid.index(doubts), len(self.grid)
        self.count[block] += np.bincount(cell, minlength=size)
        self.wrong[block] += np.bincount(cell[wrong], minlength=size)
        offset = np.bincount(cell, doubts - self.grid.starts[cell], size)  # whole numbers below 2^53
        self.offset[block] += offset.astype(np.int64)
        one, whole = self.doubt[block], doubts.astype(np.int64) + 1
        before = one[cell]
        one[cell] = whole
        one[cell[((before != NONE) & (before != whole)) | (one[cell] != whole)]] = SEVERAL

    def merged(self, other: "Histogram") -> "Histogram":
        """The counts of both."""
        numbers = self.numbers + other.numbers
        ours, theirs = self.doubt, other.doubt
        both = np.where(ours == theirs, ours, SEVERAL)
        numbers[..., 3] = np.where(ours == NONE, theirs, np.where(theirs == NONE, ours, both))
        return Histogram(self.grid, numbers)

    def pooled(self) -> "Histogram":
        """All blocks as one."""
        numbers = self.numbers.sum(axis=0, keepdims=True)
        lowest = np.where(self.doubt == NONE, ONE + 2, self.doubt).min(axis=0)  # SEVERAL is below any doubt
        highest = self.doubt.max(axis=0)
        numbers[0, :, 3] = np.where(lowest == highest, highest, np.where(lowest > ONE + 1, NONE, SEVERAL))
        return Histogram(self.grid, numbers)

    def blocks(self) -> tuple[Cells, ...]:
        """The filled cells of each block."""
        result = []
        for block, count in enumerate(self.count):
            filled = np.flatnonzero(count)
            if self.grid.zooms:  # the parts of a cell come after all others
                filled = filled[np.argsort(self.grid.starts[filled], kind="stable")]
            cells = Cells(
                count=count[filled].astype(np.float64),
                wrong=self.wrong[block, filled].astype(np.float64),
                offset=self.offset[block, filled].astype(np.float64),
                start=self.grid.starts[filled].astype(np.float64),
                width=self.grid.widths[filled].astype(np.float64),
                mixed=self.doubt[block, filled] == SEVERAL,
            )
            result.append(cells)
        return tuple(result)

    def refined(self) -> Grid | None:
        """A grid that divides the cells with many decisions; None where there is nothing to divide."""
        totals = np.maximum(1, self.count.sum(axis=1, keepdims=True))
        heavy = (self.mixed & (self.count > HEAVY * totals)).any(axis=0)
        chosen = np.flatnonzero(heavy & (self.grid.widths > 1))
        if not len(chosen):
            return None
        parts = min(ZOOMED_CELLS // (len(chosen) * len(self.count)), int(self.grid.widths[chosen].max()))
        return self.grid.zoomed(chosen, parts) if parts > 1 else None


PRECISION_CELLS = 2**20  # of all classes together
FINEST_BITS = 12
UNIT = 2.0**20  # near 0, log odds that differ by a millionth are in different cells
OCTAVES = 27  # and up to 128, beyond which a probability differs from 0 or 1 by 1e-56


@dataclass(frozen=True, eq=False)
class LogOdds:
    """Per class and cell of log odds, from the lowest: how many labels, and how many present."""

    bits: int
    count: Index  # (classes, cells)
    present: Index
    one: Array  # the log odds of one of them, NaN where there is none
    mixed: Bools  # whether there are others

    @staticmethod
    def empty(classes: int) -> "LogOdds":
        bits = FINEST_BITS
        while bits > 4 and classes * _size(bits) > PRECISION_CELLS:
            bits -= 1
        size = (classes, _size(bits))
        count, present = np.zeros((2, *size), dtype=np.int64)
        return LogOdds(bits, count, present, np.full(size, np.nan), np.zeros(size, dtype=bool))

    def add(self, block: int, values: Array, positive: Bools) -> None:
        """Count some labels of a class in place, from their log odds."""
        cell, size = self._cell(values), self.count.shape[1]
        self.count[block] += np.bincount(cell, minlength=size)
        self.present[block] += np.bincount(cell[positive], minlength=size)
        one = self.one[block]
        before = one[cell]
        one[cell] = values
        self.mixed[block, cell[(before != values) & ~np.isnan(before) | (one[cell] != values)]] = True

    def merged(self, other: "LogOdds") -> "LogOdds":
        """The counts of both."""
        both = ~np.isnan(self.one) & ~np.isnan(other.one)
        mixed = self.mixed | other.mixed | (both & (self.one != other.one))
        one = np.fmax(self.one, other.one)
        return LogOdds(self.bits, self.count + other.count, self.present + other.present, one, mixed)

    def mean_average_precision_range(self) -> Range:
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
        result = np.where(size < 2**self.bits, size.astype(np.int64), leading)
        half = _size(self.bits) // 2
        return np.where(score >= 0, half + result, half - 1 - result)


def _size(bits: int) -> int:
    return (2 * (OCTAVES - bits + 1)) << bits


def _precision_range(count: Index, present: Index, mixed: Bools) -> Range:
    """Interpolated average precision with each mixed cell's present labels last, then first.

    Last is the same as tied: within a cell the precision then only rises, so its end is what counts.
    """
    filled = count > 0
    count, present = count[filled], present[filled]
    positives, seen = np.cumsum(present), np.cumsum(count)
    best = np.where(mixed[filled], seen - count + present, seen)
    last, first = positives / seen, positives / best.clip(min=1)
    ends = [
        np.maximum.accumulate(precision[::-1])[::-1] @ present / positives[-1] for precision in (last, first)
    ]
    return float(ends[0]), float(ends[1])
