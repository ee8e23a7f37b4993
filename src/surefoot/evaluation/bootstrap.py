"""The bootstrap: every metric of the same decisions, resample by resample.

A ratio of sums over decisions takes one matrix product for all resamples. Metrics that are read from a curve
or from residuals on a grid share what is summed for several resamples at once. Any other function is computed
from reweighted outcomes, one resample at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot import kernels
from surefoot.intervals import NAN
from surefoot.metrics import Metric
from surefoot.metrics.calibration import SMOOTH_GRID, ece_of, ece_of_edges, edges_of, place_on_grid
from surefoot.predictions.outcomes import Array, Curve, Index, Outcomes, Ranking
from surefoot.runtime import in_parallel

Counts = NDArray[np.uint8] | Array  # how often units are drawn: never 256 times; fewer bytes stay in cache

AT_ONCE = 100_000  # decisions times resamples that are summed at a time, so that they stay in cache
SHORT = 30_000  # decisions; more are not all summed where a curve is read at a few places only
BLOCK, BLOCK_OF_LONG = 16, 64  # decisions that are summed together there, if they are short or not,
MOST_BLOCKS = 2**13  # or so many that the sums of all blocks stay in cache
DRAWN_AT_ONCE = 2**20  # numbers, while other threads wait
CONVERTED = 2**17  # counts that are converted to float64 at a time, so that they stay in cache
BLAS_NUMBERS = 8192  # of a matrix; from about 9,000 on BLAS divides a product


def units_of(n: int, groups: NDArray[Any] | None) -> Index:
    """The unit that each row is drawn with: itself, or its group."""
    return np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class Draw:
    """How often each unit (a group, or a row where there are no groups) occurs in each resample."""

    counts: Counts  # (resamples, units)
    unit_of: Index  # (n,) the unit of each row

    @staticmethod
    def of(n: int, groups: NDArray[Any] | None, *, resamples: int, rng: np.random.Generator) -> "Draw":
        """As many units as there are, with replacement; with groups, whole groups are drawn."""
        return Draw.of_units(units_of(n, groups), resamples=resamples, rng=rng)

    @staticmethod
    def of_units(unit_of: Index, *, resamples: int, rng: np.random.Generator) -> "Draw":
        draws = Draws(unit_of, rng)
        _, counts = draws.take(resamples)
        draws.write_back()
        return Draw(counts, unit_of)

    @property
    def resamples(self) -> int:
        return len(self.counts)


class Draws:
    """Resamples, drawn one after the other: the same numbers whatever thread takes them."""

    def __init__(self, unit_of: Index, rng: np.random.Generator) -> None:
        self.units = int(unit_of.max(initial=-1)) + 1
        self._generator = kernels.Generator(rng) if kernels.can_draw(rng) else _Generator(rng)
        self._drawing, self._next = Lock(), 0
        self._unused: list[NDArray[np.uint8]] = []  # new memory would cost more than the draws

    def take(self, resamples: int) -> tuple[list[int], NDArray[np.uint8]]:
        """The numbers of the next resamples, and how often each unit occurs in them: (resamples, units)."""
        unused = self._unused.pop() if self._unused else None
        if unused is None or len(unused) < resamples:
            unused = np.empty((resamples, self.units), dtype=np.uint8)
        numbers: list[int] = []
        counts, at_once = unused[:resamples], max(1, DRAWN_AT_ONCE // max(1, self.units))
        for start in range(0, resamples, at_once):
            some = counts[start : start + at_once]
            with self._drawing:
                numbers += range(self._next, self._next + len(some))
                self._next += len(some)
                count = self._generator.draw(some)
            count()
        return numbers, counts

    def give_back(self, counts: NDArray[np.uint8]) -> None:
        """Counts that nobody reads any more, to be overwritten."""
        self._unused.append(counts)

    def write_back(self) -> None:
        """Leave the generator where the last draw has left it."""
        self._generator.write_back()


class _Generator:
    """Without compiled code."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def draw(self, counts: NDArray[np.uint8]) -> Callable[[], None]:
        """As that of `kernels.Generator`."""
        units = counts.shape[1]
        drawn = [self._rng.integers(units, size=units, dtype=np.uint32) for _ in counts]

        def count() -> None:
            for of_resample, numbers in zip(counts, drawn, strict=True):
                of_resample[:] = np.bincount(numbers, minlength=units)

        return count

    def write_back(self) -> None:
        """It is there already."""


def resampled(
    outcomes: Outcomes, metrics: Sequence[Metric], draw: Draw, *, slow_resamples: int | None = None
) -> Array:
    """(metrics, resamples); metrics that are not ratios of sums may stop after the first few resamples."""
    return Bootstrap(outcomes, metrics, draw.unit_of).values(draw.counts, slow_resamples=slow_resamples)


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Metrics of some outcomes, to be computed in any number of resamples."""

    outcomes: Outcomes
    metrics: Sequence[Metric]
    unit_of: Index

    def values(self, counts: Counts, *, slow_resamples: int | None = None) -> Array:
        """(metrics, resamples) from counts (resamples, units); NaN where a metric is not computed."""
        values = np.full((len(self.metrics), len(counts)), NAN)
        ratios, on_curves, others = self._by_method
        if ratios:
            above, below, of_units = self._unit_sums
            sums = _products(counts, of_units)
            with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN: there are no such decisions
                values[list(ratios)] = (sums[:, above] / sums[:, below]).T
        few = counts[:slow_resamples]
        if on_curves:
            values[list(on_curves), : len(few)] = self._curve_values(list(on_curves.values()), few)
        for index, metric in (ratios | on_curves).items():
            values[index] = metric.transform.values(values[index])
        for resample, of_resample in enumerate(few if others else ()):
            outcomes = self.outcomes.reweighted(of_resample[self.unit_of])
            for index, metric in others.items():
                values[index, resample] = metric.function(outcomes)
        return values

    def prepare(self) -> None:
        """Compute what all resamples share, before several threads ask for it; the ranking meanwhile."""
        ratios, on_curves, _ = self._by_method
        needed: list[Callable[[], object]] = []
        if any(metric.pooled or len(self.outcomes.blocks) == 1 for metric in on_curves.values()):
            needed.append(lambda: self._pooled)
        elif on_curves:
            needed.append(lambda: self._blocks)
        if ratios:
            needed.append(lambda: self._unit_sums)
        in_parallel(lambda compute: compute(), needed, numbers=len(needed) * len(self.outcomes.row))

    @cached_property
    def _by_method(self) -> tuple[dict[int, Metric], dict[int, Metric], dict[int, Metric]]:
        """The metrics by their number: ratios of sums, those read from curves or residuals, and others."""
        metrics = {i: metric.of_kind(self.outcomes.kind) for i, metric in enumerate(self.metrics)}
        metrics = {i: metric for i, metric in metrics.items() if metric.resampled}
        ratios = {i: metric for i, metric in metrics.items() if metric.numerator is not None}
        on_curves = {i: metric for i, metric in metrics.items() if metric.curve or metric.of_residuals}
        others = {i: metric for i, metric in metrics.items() if i not in ratios | on_curves}
        return ratios, on_curves, others

    @cached_property
    def _unit_sums(self) -> tuple[list[int], list[int], Array]:
        """Of each ratio the number of its numerator and of its denominator; and these sums (sums, units).

        Each is over the decisions of a unit. The first is their number.
        """
        unit = self.unit_of[self.outcomes.row]
        units = int(self.unit_of.max(initial=-1)) + 1
        is_one_each = len(unit) == units and bool((unit == np.arange(units)).all())
        sums = [np.ones(units) if is_one_each else np.bincount(unit, minlength=units).astype(np.float64)]
        places: tuple[list[int], list[int]] = [], []
        for metric in self._by_method[0].values():
            for part, place in zip((metric.numerator, metric.denominator), places, strict=True):
                if part is None:
                    place.append(0)
                    continue
                place.append(len(sums))
                each = part(self.outcomes).astype(np.float64, copy=False)
                of_units = each if is_one_each else np.bincount(unit, each, units)
                sums.append(of_units.astype(np.float64, copy=False))
        return *places, np.stack(sums)

    def _curve_values(self, metrics: Sequence[Metric], counts: Counts) -> Array:
        """Values on the curve of all decisions, or their mean over the blocks that have any."""
        blocks = self.outcomes.blocks
        pooled = np.array([metric.pooled or len(blocks) == 1 for metric in metrics])
        values = np.empty((len(metrics), len(counts)))
        if pooled.any():
            chosen = [metric for metric in metrics if metric.pooled or len(blocks) == 1]
            values[pooled] = _on_curve(self._pooled, chosen, counts)
        if not pooled.all():
            chosen = [metric for metric in metrics if not metric.pooled]
            by_block = np.stack([_on_curve(block, chosen, counts) for block in self._blocks])
            number = np.isfinite(by_block).sum(axis=0)
            total = np.where(np.isfinite(by_block), by_block, 0.0).sum(axis=0)
            values[~pooled] = np.where(number > 0, total / np.maximum(number, 1), NAN)
        return values

    @cached_property
    def _pooled(self) -> "_RankedDecisions":
        everything = slice(0, self.outcomes.blocks[-1].stop)
        return _RankedDecisions(self.outcomes, everything, self.outcomes.pooled_ranking, self.unit_of)

    @cached_property
    def _blocks(self) -> "list[_RankedDecisions]":
        pairs = zip(self.outcomes.blocks, self.outcomes.block_rankings, strict=True)
        return [_RankedDecisions(self.outcomes, *pair, self.unit_of) for pair in pairs]


def _is_compiled(counts: Counts) -> bool:
    """Whether there is compiled code for them."""
    return kernels.is_available() and counts.dtype == np.uint8


def _bytes(counts: Counts) -> NDArray[np.uint8]:
    return np.ascontiguousarray(counts, dtype=np.uint8)


def _products(counts: Counts, sums: Array) -> Array:
    """counts @ sums.T, in blocks so small that BLAS does not divide them between threads."""
    if _is_compiled(counts):
        return kernels.products(_bytes(counts), sums)
    (size, units), width = counts.shape, len(sums)
    rows = max(1, BLAS_NUMBERS // max(width, size))
    step = rows * max(1, CONVERTED // (rows * max(1, size)))
    total = np.zeros((size, width))
    for start in range(0, units, step):
        some, of_some = counts[:, start : start + step].astype(np.float64), sums[:, start : start + step]
        end = some.shape[1] // rows * rows
        left, right = (each[:, :end].reshape(len(each), -1, rows) for each in (some, of_some))
        blocks = left.swapaxes(0, 1) @ right.transpose(1, 2, 0)
        total += blocks.sum(axis=0) + some[:, end:] @ of_some[:, end:].T
    return total


class _RankedDecisions:
    """Some decisions, most confident first. What only some metrics read is computed when they do."""

    def __init__(self, outcomes: Outcomes, part: slice, ranking: Ranking, unit_of: Index) -> None:
        self.confidence = outcomes.confidence[part][ranking.order]
        self.ends = ranking.ends
        self.unit = unit_of[outcomes.row[part]][ranking.order]
        self.wrong = (~outcomes.correct[part])[ranking.order]
        self.residual = self.confidence - 1 + self.wrong
        # For sums over blocks of decisions: the last block is filled up with decisions that count nothing.
        number = len(self.unit)
        block = BLOCK if number <= SHORT else max(BLOCK_OF_LONG, -(-number // MOST_BLOCKS))
        self.blocks = np.zeros((-(-number // block), block))  # the residuals
        self.blocks.reshape(-1)[:number] = self.residual
        self.block_unit = np.append(self.unit, np.zeros(self.blocks.size - number, dtype=np.intp))
        # The same in the order of the rows, in which counts are read one after another.
        self.unit_by_row = unit_of[outcomes.row[part]]
        self.residual_by_row = outcomes.confidence[part] - outcomes.correct[part]
        self.block_by_row = np.empty(number, dtype=np.int32)
        self.block_by_row[ranking.order] = np.arange(number) // block

    @cached_property
    def grid(self) -> tuple[Index, list[tuple[Index, Array]]]:
        """For residuals on a grid: where each cell begins; the cells on both sides, and shares."""
        cell, right = place_on_grid(self.confidence)
        starts = np.flatnonzero(np.diff(cell, prepend=-1))
        to_right = self.residual * right
        return starts, [(cell[starts], self.residual - to_right), (cell[starts] + 1, to_right)]

    @cached_property
    def ties(self) -> tuple[Index, Index]:
        """Where each run of ties begins and ends."""
        after = self.ends + 1
        return (np.append(0, after[:-1]) if len(after) else after), after

    @cached_property
    def runs(self) -> list[Index] | None:
        """Where the run of ties of each decision begins and ends; None without ties."""
        if len(self.ends) == len(self.unit):
            return None
        before, after = self.ties
        return [np.repeat(side, after - before) for side in (before, after)]

    @cached_property
    def errors(self) -> tuple[Index, Index, Index, Index]:
        """The wrong decisions, the first of each run of them, and where these runs begin and end."""
        wrong_at = np.flatnonzero(self.wrong)
        run = np.searchsorted(self.ends, wrong_at)
        first = np.flatnonzero(np.diff(run, prepend=-1))
        before, after = self.ties
        return wrong_at, first, before[run[first]], after[run[first]]


@dataclass(frozen=True, eq=False)
class _RunningSums:
    """What curves are made of, (resamples, knots) each; made when a metric reads it.

    Memory is that of the resamples before, where there are as many: new memory costs more than the sums.
    """

    decisions: _RankedDecisions
    counts: Counts
    memory: dict[str, Array]
    compiled: Array | None  # `_block_sums` by compiled code

    @cached_property
    def drawn(self) -> Counts:
        """(resamples, decisions): how often each was drawn, in all blocks."""
        if _is_compiled(self.counts):
            return kernels.drawn_decisions(_bytes(self.counts), self.decisions.block_unit)
        counts: Array = self.counts  # type: ignore[assignment] # of either type; numpy's stubs lose it
        return np.take(counts, self.decisions.block_unit, axis=1, mode="clip")

    @cached_property
    def block_weight(self) -> Array:
        weight = self._memory("weight", self.drawn.shape)
        weight[:] = self.drawn
        return weight.reshape(len(weight), *self.decisions.blocks.shape)

    @property
    def weight(self) -> Array:
        return self.block_weight.reshape(len(self.counts), -1)[:, : len(self.decisions.unit)]

    @cached_property
    def totals(self) -> Array:
        return np.asarray(self.weight.sum(axis=1) if self.compiled is None else self.compiled[0, :, -1])

    @cached_property
    def reached(self) -> Array:
        """(resamples, decisions + 1): the mass after each decision, from 0."""
        number = len(self.decisions.unit)
        sums = self._memory("reached", (len(self.drawn), number + 1))
        sums[:, 0] = 0
        for of_row, drawn in zip(sums, self.drawn, strict=True):
            of_row[1:] = _running_sum(drawn[:number])
        return sums

    @property
    def mass(self) -> Array:
        if self.decisions.runs is None:
            return self.reached
        return self.reached[:, np.append(0, self.decisions.ends + 1)]

    @cached_property
    def errors(self) -> Array:
        return self._from_zero(self.drawn[:, : len(self.decisions.unit)] * self.decisions.wrong, "errors")

    @cached_property
    def residual(self) -> Array:
        """Of confidence less correctness."""
        return self._from_zero(self._weighted(self.decisions.residual), "residual")

    @cached_property
    def confidence(self) -> Array:
        return self.residual - self.errors + self.mass

    @cached_property
    def on_grid(self) -> Array:
        """Residuals as `spread_on_grid` gives them, with the other sign."""
        grid, (starts, sides) = np.zeros((len(self.weight), SMOOTH_GRID)), self.decisions.grid
        for cells, share in sides:
            for row, weighted in zip(grid, self._weighted(share), strict=True):  # as in `_running_sum`
                row[cells] += np.add.reduceat(weighted, starts)
        return grid

    def run_end(self, row: int, mass: Array) -> Array:
        """The mass of one resample after the run of ties in which so much is reached."""
        reached, runs = self.reached[row], self.decisions.runs
        last = np.searchsorted(reached, mass)
        end = last if runs is None else runs[1][np.maximum(last - 1, 0)]
        return np.where(last > 0, reached[end], 0.0)

    def residual_at(self, mass: Array, rows: slice = slice(None)) -> Array:
        """The residual of some resamples at so much mass, (resamples, places).

        It takes sums over blocks, and over decisions only in the blocks in which the places are.
        """
        before, residual = self._block_sums[:, rows]
        block = np.maximum(_first_at_least(mass, before) - 1, 0)
        weight, residuals = self._in_block(block, rows)
        rest = (mass - np.take_along_axis(before, block, axis=1))[..., None]
        reached = np.cumsum(weight, axis=2)
        if self.decisions.runs is None:
            taken = np.clip(rest - reached + weight, 0.0, weight)
            inside = np.einsum("rpd,rpd->rp", taken, residuals)
            return np.asarray(np.take_along_axis(residual, block, axis=1) + inside)
        place = block * weight.shape[2] + (reached < rest).sum(axis=2)
        place = np.minimum(place, len(self.decisions.unit) - 1)
        knots = np.concatenate([run[place] for run in self.decisions.runs], axis=1)
        (start, end), (at_start, at_end) = (np.split(sums, 2, axis=1) for sums in self._before(knots, rows))
        inside = (mass - start) / np.where(end > start, end - start, 1.0)  # within a run it is straight
        return np.asarray(at_start + (at_end - at_start) * inside)

    def _before(self, place: Index, rows: slice) -> list[Array]:
        """The mass and the residual of all decisions before each place."""
        blocks, size = self.decisions.blocks.shape
        block = np.minimum(place // size, blocks - 1)
        weight, residuals = self._in_block(block, rows)
        weight *= np.arange(size) < (place - block * size)[..., None]
        inside = weight.sum(axis=2), np.einsum("rpd,rpd->rp", weight, residuals)
        return [
            np.take_along_axis(sums, block, axis=1) + within
            for sums, within in zip(self._block_sums[:, rows], inside, strict=True)
        ]

    def _in_block(self, block: Index, rows: slice) -> tuple[Array, Array]:
        """The weights and residuals of the decisions in some blocks of each resample."""
        unit = self.decisions.block_unit.reshape(self.decisions.blocks.shape)[block]
        counts = self.counts[rows]
        weight = counts[np.arange(len(counts))[:, None, None], unit].astype(np.float64)
        return weight, self.decisions.blocks[block]

    @cached_property
    def _block_sums(self) -> Array:
        """(2, resamples, blocks + 1): the mass and the residual of all decisions before each block."""
        if self.compiled is not None:
            return self.compiled
        weight, residual = self.block_weight, self.decisions.blocks
        sums = np.zeros((2, len(weight), len(residual) + 1))
        of_blocks = np.einsum("rbd->rb", weight), np.einsum("rbd,bd->rb", weight, residual)
        for into, each in zip(sums.reshape(-1, sums.shape[2]), np.concatenate(of_blocks), strict=True):
            np.cumsum(each, out=into[1:])
        return sums

    def error_steps(self, row: int) -> Array:
        """`Curve.error_steps` of one resample: errors are added where a decision is wrong and was drawn."""
        reached = self.reached[row]
        wrong_at, first, error_start, error_end = self.decisions.errors
        errors = self.drawn[row, wrong_at]
        if len(first) < len(errors):
            errors = np.add.reduceat(errors, first, dtype=np.float64)
        drawn = np.flatnonzero(errors != 0)
        errors = errors[drawn]
        after = _running_sum(errors)
        start = reached[error_start[drawn]]
        end = start + errors if self.decisions.runs is None else reached[error_end[drawn]]
        return np.stack([start, end, after - errors, after])

    def _memory(self, name: str, shape: tuple[int, int]) -> Array:
        """An array that may hold anything."""
        if name not in self.memory or self.memory[name].shape != shape:
            self.memory[name] = np.empty(shape)
        return self.memory[name]

    def _weighted(self, values: Array) -> Array:
        """Each decision's value times its weight; until the next call."""
        return np.multiply(self.weight, values, out=self._memory("weighted", self.weight.shape))

    def _from_zero(self, values: Counts, name: str) -> Array:
        """Running sums, read where a run of ties ends."""
        ends = self.decisions.ends
        sums = self._memory(name, (len(values), len(ends) + 1))
        sums[:, 0] = 0
        for of_row, row in zip(sums, values, strict=True):
            running = _running_sum(row)
            of_row[1:] = running if len(ends) == len(running) else running[ends]
        return sums


def _running_sum(values: Counts) -> NDArray[Any]:
    """Of one row, since numpy lets no other thread run while it adds up several; of whole numbers as such,
    which takes a sixth of the time."""
    return np.cumsum(values, dtype=np.float64 if values.dtype == np.float64 else np.int64)


def _first_at_least(places: Array, knots: Array) -> Index:
    """The first of each row's ascending knots, which begin with 0, that is at least each of its places."""
    rows, number = knots.shape
    apart = (np.arange(rows) * (float(knots[:, -1].max()) + 1))[:, None]  # one ascending sequence
    found = np.searchsorted((knots + apart).ravel(), (places + apart).ravel())
    return np.asarray(found.reshape(places.shape) - np.arange(rows)[:, None] * number)


class _ResampledCurve(Curve):
    """The curve of one resample; whole arrays are summed only if a metric reads them."""

    sums: _RunningSums
    row: int

    def __init__(self, sums: _RunningSums, row: int) -> None:
        self.__dict__.update(sums=sums, row=row)

    @cached_property
    def mass(self) -> Array:
        return np.asarray(self.sums.mass[self.row])

    @property
    def errors(self) -> Array:
        return np.asarray(self.sums.errors[self.row])

    @property
    def confidence(self) -> Array:
        return np.asarray(self.sums.confidence[self.row])

    @property
    def total(self) -> float:
        return float(self.sums.totals[self.row])

    @cached_property
    def error_steps(self) -> Array:
        return self.sums.error_steps(self.row)

    @property
    def total_errors(self) -> float:
        return float(self.error_steps[3, -1:].sum())

    @property
    def _is_short(self) -> bool:
        """Whether summing everything takes less time than finding out what is needed."""
        return len(self.sums.decisions.unit) <= SHORT

    def errors_at(self, mass: Array) -> Array:
        if self._is_short:
            return super().errors_at(mass)
        ends = self.error_steps[1]
        if not len(ends):
            return np.zeros_like(mass)
        step = np.minimum(np.searchsorted(ends, mass), len(ends) - 1)  # the first that ends there or later
        start, end, errors, after = self.error_steps[:, step]
        return np.asarray(errors + np.clip((mass - start) / (end - start), 0.0, 1.0) * (after - errors))

    def run_ends(self, mass: Array) -> Array:
        return self.sums.run_end(self.row, mass)

    def residual_at(self, mass: Array) -> Array:
        if self._is_short:
            return np.asarray(np.interp(mass, self.mass, self.sums.residual[self.row]))
        return np.asarray(self.sums.residual_at(mass[None], slice(self.row, self.row + 1))[0])


def _on_curve(decisions: _RankedDecisions, metrics: Sequence[Metric], counts: Counts) -> Array:
    """Values on the curve of some decisions, resample by resample; NaN where it has none of them."""
    values = np.full((len(metrics), len(counts)), NAN)
    on_grids = {index: metric.of_residuals for index, metric in enumerate(metrics) if metric.of_residuals}
    grids, totals = np.zeros((len(counts), SMOOTH_GRID if on_grids else 0)), np.zeros(len(counts))
    step = max(1, AT_ONCE // max(1, len(decisions.unit)))
    memory: dict[str, Array] = {}
    of_blocks: Array | None = None
    if _is_compiled(counts) and len(decisions.unit):
        of_blocks = kernels.block_sums(
            _bytes(counts),
            decisions.unit_by_row,
            decisions.block_by_row,
            decisions.residual_by_row,
            len(decisions.blocks),
        )
    for start in range(0, len(counts) if len(decisions.unit) else 0, step):
        some = slice(start, start + step)
        sums = _RunningSums(
            decisions, counts[some], memory, None if of_blocks is None else of_blocks[:, some]
        )
        totals[start : start + step] = total = sums.totals
        curves: list[_ResampledCurve] = []
        if on_grids:
            grids[start : start + step] = sums.on_grid
        for of_metric, metric in zip(values[:, start : start + step], metrics, strict=True):
            if metric.curve is ece_of:
                with np.errstate(invalid="ignore"):  # NaN where a resample has none of the decisions
                    of_metric[:] = ece_of_edges(sums.residual_at(edges_of(total)), total)
            elif metric.curve is not None:
                curves = curves or [_ResampledCurve(sums, row) for row in range(len(total))]
                of_metric[:] = [metric.curve(curve) if curve.total else NAN for curve in curves]
    for index, of_residuals in on_grids.items():
        values[index] = of_residuals(grids, totals)
    return values
