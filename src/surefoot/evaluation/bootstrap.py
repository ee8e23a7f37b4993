"""The bootstrap: every metric of the same decisions, in resamples of whole units (groups, or else rows).

More than BLOCKS units are first put into so many blocks at random, each of nearly as many units, and blocks
are drawn instead of units: the spread is the same, but what a metric needs is summed once per block. A ratio
of sums is then a matrix product for all resamples. A metric of ranked decisions is read from curves:
decisions are put into cells of neighbouring confidence, their number and errors are counted by block and
cell, and two matrix products give the curves of all resamples. With fewer units and decisions nothing is
joined, and a resample is what drawing its rows would give. Any other function is computed from reweighted
outcomes, one resample at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.metrics import Metric
from surefoot.metrics.calibration import place_on_grid
from surefoot.metrics.intervals import NAN
from surefoot.predictions.outcomes import Array, Bools, Curve, Index, Outcomes, Ranking, spread_out
from surefoot.progress import Tick

BLOCKS = 1000  # the variance of so many has itself a standard error of 4.5%
CELLS = 512  # of neighbouring confidence
FEWEST_CELLS = 100  # per class, where there are many labels
GRID = 512  # cells in which the residuals of a resample are smoothed
AT_ONCE = 250  # resamples

Floats32 = NDArray[np.float32]


def units_of(n: int, groups: NDArray[Any] | None) -> Index:
    """The unit that each row is drawn with: itself, or its group."""
    return np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class Draw:
    """Resamples: in each, as many blocks are drawn with replacement as there are."""

    unit_of: Index  # (n,) the unit of each row,
    block_of: Index  # and the block of its unit
    blocks: int
    resamples: int
    seed: int

    @staticmethod
    def of(n: int, groups: NDArray[Any] | None, *, resamples: int, rng: np.random.Generator) -> "Draw":
        """Of rows, or of whole groups."""
        unit_of = units_of(n, groups)
        units = int(unit_of.max(initial=-1)) + 1
        block_of = unit_of if units <= BLOCKS else (rng.permutation(units) % BLOCKS)[unit_of]
        return Draw(unit_of, block_of, min(units, BLOCKS), resamples, int(rng.integers(2**63)))

    def counts(self) -> Iterator[Array]:
        """How often each block occurs, (some resamples, blocks); the same in every loop."""
        rng = np.random.default_rng(self.seed)
        for start in range(0, self.resamples, AT_ONCE):
            size = min(AT_ONCE, self.resamples - start)
            drawn = rng.integers(self.blocks, size=(size, self.blocks))
            drawn += np.arange(size)[:, None] * self.blocks
            counts = np.bincount(drawn.ravel(), minlength=drawn.size)
            yield counts.reshape(drawn.shape).astype(np.float64)


def resampled(
    outcomes: Outcomes, metrics: Sequence[Metric], draw: Draw, tick: Tick = lambda _: None
) -> Array:
    """(metrics, resamples); NaN where a metric is undefined or not resampled."""
    bootstrap, values = Bootstrap(outcomes, metrics, draw), [np.empty((len(metrics), 0))]
    for counts in draw.counts():
        values.append(bootstrap.values(counts))
        tick(len(counts))
    return np.concatenate(values, axis=1)


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Metrics of some outcomes, to be computed in any number of resamples."""

    outcomes: Outcomes
    metrics: Sequence[Metric]
    draw: Draw

    def values(self, counts: Array) -> Array:
        """(metrics, resamples) from counts (resamples, blocks)."""
        values = np.full((len(self.metrics), len(counts)), NAN)
        ratios, ranked, others = self._by_method
        if ratios:
            above, below, of_blocks = self._block_sums
            sums = counts @ of_blocks
            with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN: there are no such decisions
                values[list(ratios)] = (sums[:, above] / sums[:, below]).T
        drawn: dict[int, list[Drawn]] = {}
        for index, metric in ranked.items():
            cells = self._cells(metric.pooled, metric.by_score)
            if id(cells) not in drawn:
                drawn[id(cells)] = [of_block.drawn(counts) for of_block in cells]
            values[index] = mean_of_blocks(metric, drawn[id(cells)])
        for index, metric in (ratios | ranked).items():
            values[index] = metric.transform.values(values[index])
        for resample, of_resample in enumerate(counts if others else ()):
            outcomes = self.outcomes.reweighted(of_resample[self.draw.block_of])
            for index, metric in others.items():
                values[index, resample] = _of_resample(metric, outcomes)
        return values

    @cached_property
    def _by_method(self) -> tuple[dict[int, Metric], dict[int, Metric], dict[int, Metric]]:
        """The metrics by their number: ratios of sums, those of ranked decisions, and others."""
        metrics = {i: metric.of_kind(self.outcomes.kind) for i, metric in enumerate(self.metrics)}
        metrics = {i: metric for i, metric in metrics.items() if metric.resampled}
        ratios = {i: metric for i, metric in metrics.items() if metric.numerator is not None}
        ranked = {i: metric for i, metric in metrics.items() if metric.curve or metric.of_residuals}
        others = {i: metric for i, metric in metrics.items() if i not in ratios | ranked}
        return ratios, ranked, others

    @cached_property
    def _block_sums(self) -> tuple[list[int], list[int], Array]:
        """Of each ratio the number of its numerator and of its denominator; and these sums (blocks, sums).

        The first is the number of decisions.
        """
        block, blocks = self.draw.block_of[self.outcomes.row], self.draw.blocks
        sums = [np.bincount(block, minlength=blocks).astype(np.float64)]
        places: tuple[list[int], list[int]] = [], []
        for metric in self._by_method[0].values():
            for part, place in zip((metric.numerator, metric.denominator), places, strict=True):
                place.append(0 if part is None else len(sums))
                if part is not None:
                    sums.append(np.bincount(block, part(self.outcomes), blocks).astype(np.float64))
        return *places, np.stack(sums, axis=1)

    def _cells(self, pooled: bool, by_score: bool) -> "list[_Cells]":
        if by_score:
            return self._by_score
        return self._pooled if pooled or len(self.outcomes.blocks) == 1 else self._by_block

    @cached_property
    def _pooled(self) -> "list[_Cells]":
        everything = (slice(0, len(self.outcomes.row)),)
        return self._of_blocks(everything, (self.outcomes.pooled_ranking,), ~self.outcomes.correct)

    @cached_property
    def _by_block(self) -> "list[_Cells]":
        outcomes = self.outcomes
        return self._of_blocks(outcomes.blocks, outcomes.block_rankings, ~outcomes.correct)

    @cached_property
    def _by_score(self) -> "list[_Cells]":
        outcomes = self.outcomes
        assert outcomes.positive is not None
        return self._of_blocks(outcomes.blocks, outcomes.score_rankings, ~outcomes.positive)

    def _of_blocks(
        self, blocks: Sequence[slice], rankings: Sequence[Ranking], wrong: Bools
    ) -> "list[_Cells]":
        cells = max(FEWEST_CELLS, CELLS // len(blocks))
        confidence, block_of = self.outcomes.confidence, self.draw.block_of[self.outcomes.row]
        return [
            _Cells(ranking, confidence[part], wrong[part], block_of[part], self.draw.blocks, cells)
            for part, ranking in zip(blocks, rankings, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Drawn:
    """What is in each cell in each resample, (resamples, cells), and each cell's mean confidence."""

    number: Array
    wrong: Array
    confidence: Array

    @cached_property
    def curve(self) -> Curve:
        """Of every resample."""
        return Curve(*map(_running_sum, (self.number, self.wrong, self.number * self.confidence)))

    def residuals(self) -> Array:
        """Correct less confident, on a grid of confidence (resamples, GRID)."""
        residual = self.number * (1 - self.confidence)
        residual -= self.wrong
        place, right = place_on_grid(self.confidence, GRID)
        first = np.flatnonzero(np.diff(place, prepend=-1))  # cells are in the order of their confidence
        moved = residual * right
        residual -= moved
        spread = np.zeros((len(residual), GRID))
        spread[:, place[first]] = np.add.reduceat(residual, first, axis=1)
        spread[:, place[first] + 1] += np.add.reduceat(moved, first, axis=1)
        return spread


def mean_of_blocks(metric: Metric, drawn: Sequence[Drawn]) -> Array:
    """A metric of ranked decisions in each resample: the mean over the blocks that have any decision."""
    values = []
    for of_block in drawn:
        with np.errstate(invalid="ignore", divide="ignore"):
            total = of_block.curve.total
            if metric.curve:
                value = metric.curve(of_block.curve)
            else:
                assert metric.of_residuals is not None
                value = metric.of_residuals(of_block.residuals(), total)
        values.append(np.where(total > 0, value, NAN))
    return mean_of_defined(np.array(values), axis=0)


def mean_of_defined(values: Array, axis: int) -> Array:
    """The mean of the finite values; NaN where there are none."""
    defined = np.isfinite(values)
    number = defined.sum(axis=axis)
    total = np.where(defined, values, 0.0).sum(axis=axis)
    return np.where(number > 0, total / np.maximum(number, 1), NAN)


class _Cells:
    """Decisions in cells of neighbouring confidence: the number and the errors of each block of units."""

    def __init__(
        self, ranking: Ranking, confidence: Array, wrong: Bools, block: Index, blocks: int, cells: int
    ) -> None:
        joined = len(block) > CELLS
        ends = 1 + (ranking.ends[spread_out(ranking.ends + 1, cells)] if joined else ranking.ends)
        size = np.diff(ends, prepend=0)
        cell = np.empty(len(block), dtype=np.intp)
        cell[ranking.order] = np.repeat(np.arange(len(ends)), size)
        shape, place = (blocks, len(ends)), block * len(ends) + cell
        self.number = self._counted(place, shape)
        self.wrong = self._counted(place[wrong], shape)
        self.confidence = np.bincount(cell, confidence, len(ends)) / np.maximum(size, 1)

    @staticmethod
    def _counted(place: Index, shape: tuple[int, int]) -> Floats32:
        return np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float32)

    def drawn(self, counts: Array) -> Drawn:
        """Of every resample; a decision's confidence is the mean of its cell."""
        times = counts.astype(np.float32)
        number, wrong = ((times @ of_blocks).astype(np.float64) for of_blocks in (self.number, self.wrong))
        return Drawn(number, wrong, self.confidence)


def _running_sum(values: Array) -> Array:
    sums = np.zeros((len(values), values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def _of_resample(metric: Metric, outcomes: Outcomes) -> float:
    try:
        return metric.function(outcomes)
    except AttributeError as error:
        if error.obj is not outcomes:
            raise
        raise InputError(
            f"metric {metric.name!r} reads {error.name!r}, which resamples have not; allowed: `outcomes` "
            "alone, or resampled=False, without an interval"
        ) from error
