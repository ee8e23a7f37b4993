"""Fine cells of confidence: whole numbers only, so that tallies merge exactly, whatever the order.

A confidence is rounded to twelve decimals (see `outcomes`), so its *doubt* 1 - confidence is a whole number
of 1e-12. Doubts below 2^bits have a cell each; above, every octave has 2^bits cells; from a doubt of 0.034 on
all cells are as wide as there, 2^(35 - bits). What lies close to certainty, where networks put most of their
answers, is so told apart as well as what does not.

Each cell knows its decisions, how many of them are wrong, the sum of their doubts, and whether they are all
one tie. Running sums are therefore exact wherever a cell ends; within a cell of ties they are exact too.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from surefoot.outcomes import DECIMALS, Array, Curve, Index

ONE = 10**DECIMALS  # the doubt of a confidence of 0
BITS = 12
EVEN = 35  # from 2^35 doubts on, cells are of one width
CELLS = 2**21  # of all blocks together
ZOOMED_CELLS = 2**19
HEAVY = 1e-5  # of all decisions: a cell with a larger share is worth a closer look


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
        found = np.where(whole < 2**self.bits, whole, np.where(whole < 2**EVEN, leading, even))
        first = len(self) - sum(int(zoom.slot.max() + 1) * zoom.parts for zoom in self.zooms)
        for zoom in self.zooms:
            slot = zoom.slot[found]
            chosen = np.flatnonzero(slot >= 0)
            cell = found[chosen]
            part = (whole[chosen] - self.starts[cell]) * zoom.parts // self.widths[cell]
            found[chosen] = first + slot[chosen] * zoom.parts + part
            first += int(zoom.slot.max() + 1) * zoom.parts
        return found

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


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts per block and cell of a grid, in arrays (blocks, cells)."""

    grid: Grid
    count: Index
    wrong: Index
    beyond: Index  # the sum of the doubts, each less the start of its cell
    doubt: Index  # one of the doubts, -1 where there is none
    mixed: NDArray[np.bool_]  # whether there are others

    @staticmethod
    def empty(grid: Grid, blocks: int) -> "Histogram":
        count, wrong, beyond = np.zeros((3, blocks, len(grid)), dtype=np.int64)
        doubt = np.full((blocks, len(grid)), -1)
        return Histogram(grid, count, wrong, beyond, doubt, np.zeros((blocks, len(grid)), dtype=bool))

    def add(self, block: int, doubts: Array, wrong: NDArray[np.bool_]) -> None:
        """Count some decisions of a block, in place."""
        cell, size = self.grid.index(doubts), len(self.grid)
        self.count[block] += np.bincount(cell, minlength=size)
        self.wrong[block] += np.bincount(cell[wrong], minlength=size)
        beyond = np.bincount(cell, doubts - self.grid.starts[cell], size)  # whole numbers below 2^53
        self.beyond[block] += beyond.astype(np.int64)
        one, whole = self.doubt[block], doubts.astype(np.int64)
        before = one[cell]
        one[cell] = whole
        self.mixed[block, cell[((before >= 0) & (before != whole)) | (one[cell] != whole)]] = True

    def merged(self, other: "Histogram") -> "Histogram":
        """Both together."""
        clash = (self.doubt >= 0) & (other.doubt >= 0) & (self.doubt != other.doubt)
        mixed = self.mixed | other.mixed | clash
        return Histogram(
            self.grid,
            self.count + other.count,
            self.wrong + other.wrong,
            self.beyond + other.beyond,
            np.where(mixed, 0, np.maximum(self.doubt, other.doubt)),  # which one no longer matters
            mixed,
        )

    def pooled(self) -> "Histogram":
        """All blocks as one."""
        if len(self.count) == 1:
            return self
        lowest = np.where(self.doubt >= 0, self.doubt, ONE + 1).min(axis=0)
        highest = self.doubt.max(axis=0)
        mixed = self.mixed.any(axis=0) | ((highest >= 0) & (lowest != highest))
        count, wrong, beyond = (
            array.sum(axis=0, keepdims=True) for array in (self.count, self.wrong, self.beyond)
        )
        return Histogram(self.grid, count, wrong, beyond, highest[None], mixed[None])

    def blocks(self) -> "tuple[Column, ...]":
        """What each block holds, from the most confident cell to the least; empty cells are left out."""
        return tuple(self._column(block) for block in range(len(self.count)))

    def closer(self) -> Grid | None:
        """A grid that cuts up the cells with much in them; None where there is nothing to cut."""
        totals = np.maximum(1, self.count.sum(axis=1, keepdims=True))
        heavy = (self.mixed & (self.count > HEAVY * totals)).any(axis=0)
        chosen = np.flatnonzero(heavy & (self.grid.widths > 1))
        if not len(chosen):
            return None
        parts = min(ZOOMED_CELLS // (len(chosen) * len(self.count)), int(self.grid.widths[chosen].max()))
        return self.grid.zoomed(chosen, parts) if parts > 1 else None

    def _column(self, block: int) -> "Column":
        filled = np.flatnonzero(self.count[block])
        filled = filled[np.argsort(self.grid.starts[filled], kind="stable")]
        return Column(
            count=self.count[block, filled].astype(np.float64),
            wrong=self.wrong[block, filled].astype(np.float64),
            beyond=self.beyond[block, filled].astype(np.float64),
            start=self.grid.starts[filled].astype(np.float64),
            width=self.grid.widths[filled].astype(np.float64),
            mixed=self.mixed[block, filled],
        )


@dataclass(frozen=True, eq=False)
class Column:
    """The filled cells of one block, most confident first."""

    count: Array
    wrong: Array
    beyond: Array
    start: Array
    width: Array
    mixed: NDArray[np.bool_]

    @property
    def confidence(self) -> Array:
        """The sum of the confidences in each cell."""
        return np.asarray(self.count - (self.count * self.start + self.beyond) / ONE)

    def curve(self) -> Curve:
        """As if each cell were a tie: right wherever a cell ends."""
        sums = (self.count, self.wrong, self.confidence)
        return Curve(*(np.append(0.0, np.cumsum(values)) for values in sums))

    def wrong_first(self) -> Curve:
        """The most errors that can be among the most confident: those of a mixed cell come first."""
        return self._arranged(np.where(self.mixed, self.wrong, self.count), self.wrong)

    def wrong_last(self) -> Curve:
        """The fewest errors that can be among the most confident."""
        right = self.count - self.wrong
        return self._arranged(np.where(self.mixed, right, self.count), np.where(self.mixed, 0.0, self.wrong))

    def _arranged(self, count: Array, wrong: Array) -> Curve:
        """Each cell in two steps: first so many decisions with so many wrong, then the rest."""
        first = np.stack([count, wrong])
        steps = np.stack([first, np.stack([self.count, self.wrong]) - first], axis=2).reshape(2, -1)
        mass, errors = np.concatenate([np.zeros((2, 1)), np.cumsum(steps, axis=1)], axis=1)
        return Curve(mass, errors, np.zeros_like(mass))
