"""Mergeable sums and counts of predictions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from surefoot.metrics.calibration import SMOOTH_GRID, spread_on_grid
from surefoot.metrics.cells import Grid, Histogram, LogOdds
from surefoot.metrics.intervals import NAN
from surefoot.metrics.metric import Cells, Metric, PerDecision, Range
from surefoot.predictions.engines import Engine
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import outcomes_of
from surefoot.predictions.outcomes import ONE, Array, Curve, Outcomes
from surefoot.predictions.readers import Batch, Shape, labelled
from surefoot.predictions.scanned import ScannedPredictions
from surefoot.predictions.zeros import count_true_zeros
from surefoot.progress import Watch

Scaling = Callable[[NDArray[np.floating], LabelKind], NDArray[np.floating]]  # of the logits of some rows

TOLERANCE = 1e-4  # what ECE and all that is read from the risk-coverage curve may be off
PASSES = 4


@dataclass(frozen=True, eq=False)
class Request:
    """What is accumulated: for which metrics, under which scalings (None is as given), in which cells."""

    shape: Shape
    metrics: tuple[Metric, ...]
    scalings: tuple[Scaling | None, ...]
    grids: tuple[Grid, ...]  # one per scaling

    @staticmethod
    def of(
        shape: Shape, metrics: Sequence[Metric] = (), scalings: tuple[Scaling | None, ...] = (None,)
    ) -> "Request":
        of_kind = tuple(metric.of_kind(shape.kind) for metric in metrics)
        return Request(shape, of_kind, scalings, (Grid.of(shape.blocks),) * len(scalings))

    @property
    def summed(self) -> list[PerDecision]:
        """What is summed under each scaling: numerators and denominators, metric by metric."""
        parts = (part for metric in self.metrics for part in (metric.numerator, metric.denominator))
        return [part for part in parts if part is not None]

    @cached_property
    def columns(self) -> dict[tuple[int, str], tuple[int, int]]:
        """By scaling and metric: the sums that are its numerator and denominator (0: decisions)."""
        columns, end = {}, 1
        for number in range(len(self.scalings)):
            for metric in self.metrics:
                if metric.numerator is not None:
                    below = end + 1 if metric.denominator is not None else 0
                    columns[number, metric.name] = end, below
                    end = max(end, below) + 1
        return columns


@dataclass(frozen=True, eq=False)
class Version:
    """Decisions under one scaling, in cells. When all have been added, metrics read them as outcomes."""

    histogram: Histogram
    residuals: Array  # (blocks, SMOOTH_GRID): what smooth ECE reads
    odds: LogOdds | None = None  # of many labels

    @staticmethod
    def empty(shape: Shape, grid: Grid) -> "Version":
        odds = LogOdds.empty(shape.classes) if shape.kind is LabelKind.MANY_LABELS else None
        return Version(Histogram.empty(grid, shape.blocks), np.zeros((shape.blocks, SMOOTH_GRID)), odds)

    def add(self, outcomes: Outcomes) -> None:
        """Count some decisions, in place."""
        doubt = ONE - np.rint(outcomes.confidence * ONE)
        residual = outcomes.correct - outcomes.confidence
        for block, part in enumerate(outcomes.blocks):
            self.histogram.add(block, doubt[part], ~outcomes.correct[part])
            self.residuals[block] += spread_on_grid(outcomes.confidence[part], residual[part])
            if self.odds is not None and outcomes.score is not None and outcomes.positive is not None:
                self.odds.add(block, outcomes.score[part], outcomes.positive[part])

    def merged(self, other: "Version") -> "Version":
        odds = None
        if self.odds is not None and other.odds is not None:
            odds = self.odds.merged(other.odds)
        return Version(self.histogram.merged(other.histogram), self.residuals + other.residuals, odds)

    @cached_property
    def cells(self) -> tuple[Cells, ...]:
        return self.histogram.blocks()

    @cached_property
    def pooled_cells(self) -> Cells:
        return self.cells[0] if len(self.cells) == 1 else self.histogram.pooled().blocks()[0]

    @property
    def outcomes(self) -> "Version":
        return self

    @cached_property
    def block_curves(self) -> tuple[Curve, ...]:
        return tuple(cells.curve for cells in self.cells)

    @property
    def pooled_curve(self) -> Curve:
        return self.pooled_cells.curve

    @property
    def score_curves(self) -> tuple[Curve, ...]:
        """None: scores of many labels are counted, not ranked."""
        return ()

    def mean_average_precision_range(self) -> Range:
        assert self.odds is not None
        return self.odds.mean_average_precision_range()


@dataclass(eq=False)
class Accumulator:
    """Sums and counts of some rows; two of them merge into that of all their rows."""

    request: Request
    totals: Array  # (sums,): the number of decisions, then what is summed under each scaling
    products: Array  # (sums, sums): of what a row adds to each
    versions: tuple[Version, ...]  # one per scaling
    rows: int = 0  # with at least one known label
    one_hot: bool = True  # many labels: every row has exactly one
    zeros: int = 0  # known labels whose probability is exactly 0, in the logits as given

    @staticmethod
    def empty(request: Request) -> "Accumulator":
        sums = 1 + len(request.scalings) * len(request.summed)
        versions = tuple(Version.empty(request.shape, grid) for grid in request.grids)
        one_hot = request.shape.kind is LabelKind.MANY_LABELS
        return Accumulator(request, np.zeros(sums), np.zeros((sums, sums)), versions, one_hot=one_hot)

    def add(self, batch: Batch) -> None:
        """Add some rows that have a label."""
        request, kind, n = self.request, self.request.shape.kind, len(batch.labels)
        sums = np.empty((len(self.totals), n))
        places = iter(sums[1:])
        for scaling, version in zip(request.scalings, self.versions, strict=True):
            logits = batch.logits if scaling is None else scaling(batch.logits, kind)
            outcomes = outcomes_of(logits, batch.labels, kind)
            sums[0] = np.bincount(outcomes.row, minlength=n)
            for part in request.summed:
                values = part(outcomes)
                one_each = kind is LabelKind.ONE_LABEL
                next(places)[:] = values if one_each else np.bincount(outcomes.row, values, n)
            version.add(outcomes)
        self.rows += n
        self.totals += sums.sum(axis=1)
        self.products += sums @ sums.T
        self.one_hot = self.one_hot and bool(
            (batch.labels >= 0).all() and ((batch.labels == 1).sum(axis=1) == 1).all()
        )
        self.zeros += count_true_zeros(batch.logits, batch.labels, kind)

    def merged(self, other: "Accumulator") -> "Accumulator":
        """Over the rows of both: whole numbers exactly, sums to the last digits of a float64."""
        pairs = zip(self.versions, other.versions, strict=True)
        return Accumulator(
            self.request,
            self.totals + other.totals,
            self.products + other.products,
            tuple(ours.merged(theirs) for ours, theirs in pairs),
            rows=self.rows + other.rows,
            one_hot=self.one_hot and other.one_hot,
            zeros=self.zeros + other.zeros,
        )

    def sums(self, number: int, metric: Metric) -> tuple[float, float]:
        """The sums of a metric's numerator and denominator, in the version of that number."""
        above, below = self.request.columns[number, metric.name]
        return float(self.totals[above]), float(self.totals[below])

    def ratio(self, number: int, metric: Metric) -> float:
        """The value of a metric that is a ratio of sums."""
        above, below = self.sums(number, metric)
        return metric.transform.of(above / below) if below else NAN

    def gradient(self, number: int, metric: Metric) -> Array:
        """How a ratio of sums changes with each sum, times the number of decisions."""
        above, below = self.sums(number, metric)
        if not below:
            return np.full_like(self.totals, NAN)
        columns, gradient = self.request.columns[number, metric.name], np.zeros_like(self.totals)
        scale = metric.transform.slope(above / below) * self.totals[0] / below
        gradient[columns[0]] = scale
        gradient[columns[1]] = -scale * above / below
        return gradient


def accumulate(batches: Iterable[Batch], request: Request) -> Accumulator:
    """The sums and counts of all rows of the batches, each read once and forgotten."""
    result = Accumulator.empty(request)
    for batch in map(labelled, batches):
        if len(batch.labels):
            result.add(batch)
    return result


def accumulate_source(
    source: ScannedPredictions,
    metrics: Sequence[Metric],
    scaling: Scaling | None,
    engine: Engine,
    watch: Watch,
) -> Accumulator:
    """A side's sums and cells, in cells so fine that the bound holds, if a few readings can make it so."""
    scalings = (None,) if scaling is None else (scaling, None)
    request = Request.of(source.shape, metrics, scalings)
    for time in range(1, PASSES + 1):
        with watch("reading" if time == 1 else f"reading, time {time}", source.rows) as tick:
            result = engine(source.parts, source.shape, partial(accumulate, request=request), tick)
        grids = list(request.grids)
        for number, version in enumerate(result.versions):
            if worst_bound(version, request.metrics) > TOLERANCE:
                grids[number] = version.histogram.refined() or grids[number]
        if grids == list(request.grids):
            break
        request = replace(request, grids=tuple(grids))
    return result


def worst_bound(version: Version, metrics: Sequence[Metric]) -> float:
    """How far any metric of a curve can be from the truth, of those whose range is known."""
    estimates = [metric.from_cells(version) for metric in metrics if metric.curve is not None]
    bounds = [farthest(value, ends) for value, ends in estimates if ends is not None]
    return max((bound for bound in bounds if np.isfinite(bound)), default=0.0)


def farthest(value: float, ends: Range) -> float:
    """How far the value can be from the truth."""
    return float(max(value - ends[0], ends[1] - value, 0.0)) if np.isfinite(ends).all() else NAN
