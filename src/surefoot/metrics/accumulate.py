"""Mergeable sums and counts of predictions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from surefoot.intervals import NAN
from surefoot.metrics.calibration import SMOOTH_GRID, spread_on_grid
from surefoot.metrics.cells import Grid, Histogram, LogOdds
from surefoot.metrics.metric import Cells, Metric, PerDecision, Range
from surefoot.predictions.engines import Engine
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import outcomes_of
from surefoot.predictions.outcomes import ONE, Array, Curve
from surefoot.predictions.readers import Batch, Shape, labelled
from surefoot.predictions.scanned import ScannedPredictions
from surefoot.predictions.zeros import count_true_zeros
from surefoot.progress import Watch

Rescaling = Callable[[NDArray[np.floating], LabelKind], NDArray[np.floating]]  # of the logits of some rows


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of some facts and of all their products; a sum is two float64, head and rest."""

    head: Array  # (facts,)
    rest: Array  # what was rounded off the head
    products: Array  # (facts, facts)

    @staticmethod
    def empty(facts: int) -> "Sums":
        return Sums(np.zeros(facts), np.zeros(facts), np.zeros((facts, facts)))

    @staticmethod
    def of(facts: Array) -> "Sums":
        """Of facts (facts, rows)."""
        return Sums(facts.sum(axis=1), np.zeros(len(facts)), facts @ facts.T)

    @property
    def total(self) -> Array:
        return self.head + self.rest

    def merged(self, other: "Sums") -> "Sums":
        """The sums of both; Knuth's two-sum keeps what the addition rounds off."""
        head = self.head + other.head
        of_other = head - self.head
        lost = (self.head - (head - of_other)) + (other.head - of_other)
        return Sums(head, self.rest + other.rest + lost, self.products + other.products)


TOLERANCE = 1e-4  # what ECE and all that is read from the risk-coverage curve may be off
PASSES = 4


@dataclass(frozen=True, eq=False)
class Request:
    """What is accumulated: for which metrics, under which scalings (None is as given), in which cells."""

    shape: Shape
    metrics: tuple[Metric, ...]
    versions: tuple[Rescaling | None, ...]
    grids: tuple[Grid, ...]  # one per version

    @staticmethod
    def of(
        shape: Shape, metrics: Sequence[Metric] = (), versions: tuple[Rescaling | None, ...] = (None,)
    ) -> "Request":
        of_kind = tuple(metric.of_kind(shape.kind) for metric in metrics)
        return Request(shape, of_kind, versions, (Grid.of(shape.blocks),) * len(versions))

    @cached_property
    def summed(self) -> tuple[PerDecision, ...]:
        """What is summed in each version: numerators and denominators, metric by metric."""
        parts = (part for metric in self.metrics for part in (metric.numerator, metric.denominator))
        return tuple(part for part in parts if part is not None)

    @cached_property
    def places(self) -> dict[str, tuple[int, int | None]]:
        """Where a metric's numerator and denominator are among them; None: it is the number of decisions."""
        places: dict[str, tuple[int, int | None]] = {}
        end = 0
        for metric in self.metrics:
            if metric.numerator is not None:
                places[metric.name] = (end, None if metric.denominator is None else end + 1)
                end += 1 if metric.denominator is None else 2
        return places

    @property
    def facts(self) -> int:
        """The number of sums: the decisions, then version by version."""
        return 1 + len(self.versions) * len(self.summed)


@dataclass(frozen=True, eq=False)
class Accumulator:
    """Sums and counts of some rows; two of them merge into that of all their rows."""

    request: Request
    rows: int  # with at least one known label
    sums: Sums
    histograms: tuple[Histogram, ...]  # one per version
    residuals: Array  # (versions, blocks, SMOOTH_GRID): what smooth ECE reads
    odds: tuple[LogOdds, ...]  # one per version; none for one label
    one_hot: bool = True  # many labels: every row has exactly one
    zeros: int = 0  # known labels whose probability is exactly 0, in the logits as given

    @staticmethod
    def empty(request: Request) -> "Accumulator":
        shape, versions = request.shape, len(request.versions)
        many = shape.kind is LabelKind.MANY_LABELS
        return Accumulator(
            request=request,
            rows=0,
            sums=Sums.empty(request.facts),
            histograms=tuple(Histogram.empty(grid, shape.blocks) for grid in request.grids),
            residuals=np.zeros((versions, shape.blocks, SMOOTH_GRID)),
            odds=tuple(LogOdds.empty(shape.classes) for _ in range(versions)) if many else (),
        )

    @cached_property
    def scored(self) -> "tuple[Version, ...]":
        """The versions as metrics read them, when all rows have been added."""
        return tuple(Version(self, number) for number in range(len(self.request.versions)))

    def merged(self, other: "Accumulator") -> "Accumulator":
        """Over the rows of both: whole numbers exactly, sums to the last digits of a float64."""
        pairs = zip(self.histograms, other.histograms, strict=True)
        return Accumulator(
            request=self.request,
            rows=self.rows + other.rows,
            sums=self.sums.merged(other.sums),
            histograms=tuple(ours.merged(theirs) for ours, theirs in pairs),
            residuals=self.residuals + other.residuals,
            odds=tuple(ours.merged(theirs) for ours, theirs in zip(self.odds, other.odds, strict=True)),
            one_hot=self.one_hot and other.one_hot,
            zeros=self.zeros + other.zeros,
        )


@dataclass(frozen=True, eq=False)
class Version:
    """One version of what was accumulated, as metrics read it."""

    accumulator: Accumulator
    number: int

    @property
    def one_label(self) -> bool:
        return self.accumulator.request.shape.kind is LabelKind.ONE_LABEL

    @property
    def is_as_given(self) -> bool:
        return self.accumulator.request.versions[self.number] is None

    @property
    def decisions(self) -> float:
        return float(self.accumulator.sums.total[0])

    @cached_property
    def cells(self) -> tuple[Cells, ...]:
        return self.accumulator.histograms[self.number].blocks()

    @cached_property
    def pooled_cells(self) -> Cells:
        if self.one_label:
            return self.cells[0]
        return self.accumulator.histograms[self.number].pooled().blocks()[0]

    @property
    def outcomes(self) -> "Version":
        return self

    @cached_property
    def block_curves(self) -> tuple[Curve, ...]:
        return tuple(cells.curve for cells in self.cells)

    @cached_property
    def pooled_curve(self) -> Curve:
        return self.pooled_cells.curve

    @property
    def score_curves(self) -> tuple[Curve, ...]:
        """None: scores of many labels are counted, not ranked."""
        return ()

    @property
    def residuals(self) -> Array:
        return np.asarray(self.accumulator.residuals[self.number])

    def mean_average_precision_range(self) -> Range:
        return self.accumulator.odds[self.number].mean_average_precision_range()

    def sums(self, metric: Metric) -> tuple[float, float]:
        """The sums of a metric's numerator and denominator."""
        totals = self.accumulator.sums.total
        above, below = self._columns(metric)
        return float(totals[above]), float(totals[below])

    def ratio(self, metric: Metric) -> float:
        """The value of a metric that is a ratio of sums."""
        above, below = self.sums(metric)
        return metric.transform.of(above / below) if below else NAN

    def gradient(self, metric: Metric) -> Array:
        """How a ratio of sums changes with each sum, times the number of decisions."""
        gradient = np.zeros(self.accumulator.request.facts)
        above, below = self.sums(metric)
        if not below:
            return np.full_like(gradient, NAN)
        scale = metric.transform.slope(above / below) * self.decisions / below
        columns = self._columns(metric)
        gradient[columns[0]] = scale
        gradient[columns[1]] = -scale * above / below
        return gradient

    def _columns(self, metric: Metric) -> tuple[int, int]:
        request = self.accumulator.request
        above, below = request.places[metric.name]
        first = 1 + self.number * len(request.summed)
        return first + above, 0 if below is None else first + below


def accumulate(batches: Iterable[Batch], request: Request) -> Accumulator:
    """The sums and counts of all rows of the batches, each read once and forgotten."""
    result = Accumulator.empty(request)
    for batch in batches:
        result = _with_batch(result, labelled(batch))
    return result


def _with_batch(accumulator: Accumulator, batch: Batch) -> Accumulator:
    """The accumulator with a batch added. Its arrays of counts are not shared, and are filled in place."""
    request, n = accumulator.request, len(batch.labels)
    shape = request.shape
    if not n:
        return accumulator
    logits = [batch.logits if v is None else v(batch.logits, shape.kind) for v in request.versions]
    many = shape.kind is LabelKind.MANY_LABELS
    facts = np.empty((request.facts, n))
    places = iter(facts[1:])
    for version, of_version in enumerate(logits):
        outcomes = outcomes_of(of_version, batch.labels, shape.kind)
        facts[0] = np.bincount(outcomes.row, minlength=n)
        for fact in request.summed:
            values = fact(outcomes)
            next(places)[:] = np.bincount(outcomes.row, values, n) if many else values
        doubt = ONE - np.rint(outcomes.confidence * ONE)
        residual = outcomes.correct - outcomes.confidence
        for block, part in enumerate(outcomes.blocks):
            accumulator.histograms[version].add(block, doubt[part], ~outcomes.correct[part])
            accumulator.residuals[version, block] += spread_on_grid(outcomes.confidence[part], residual[part])
            if outcomes.score is not None and outcomes.positive is not None:
                accumulator.odds[version].add(block, outcomes.score[part], outcomes.positive[part])
    one_hot = accumulator.one_hot and many
    return replace(
        accumulator,
        rows=accumulator.rows + n,
        sums=accumulator.sums.merged(Sums.of(facts)),
        one_hot=one_hot and bool((batch.labels >= 0).all() and ((batch.labels == 1).sum(axis=1) == 1).all()),
        zeros=accumulator.zeros + count_true_zeros(batch.logits, batch.labels, shape.kind),
    )


def accumulate_source(
    source: ScannedPredictions,
    metrics: Sequence[Metric],
    scaling: Rescaling | None,
    engine: Engine,
    watch: Watch,
) -> Accumulator:
    """A side's sums and cells, in cells so fine that the bound holds, if a few readings can make it so."""
    versions = (None,) if scaling is None else (scaling, None)
    request = Request.of(source.shape, metrics, versions)
    for number in range(1, PASSES + 1):
        with watch("reading" if number == 1 else f"reading, time {number}", source.rows) as tick:
            result = engine(source.parts, source.shape, partial(accumulate, request=request), tick)
        grids = list(request.grids)
        for version, histogram in enumerate(result.histograms):
            if worst_bound(result.scored[version], request.metrics) > TOLERANCE:
                grids[version] = histogram.refined() or grids[version]
        if grids == list(request.grids):
            break
        request = replace(request, grids=tuple(grids))
    return result


def worst_bound(version: Version, metrics: Sequence[Metric]) -> float:
    """How far any metric of a curve can be from the truth, of those whose range is known."""
    on_curves = [metric for metric in metrics if metric.curve is not None] if version.decisions else []
    estimates = [metric.from_cells(version) for metric in on_curves]
    bounds = [farthest(value, ends) for value, ends in estimates if ends is not None]
    return max((bound for bound in bounds if np.isfinite(bound)), default=0.0)


def farthest(value: float, ends: Range) -> float:
    """How far the value can be from the truth."""
    return float(max(value - ends[0], ends[1] - value, 0.0)) if np.isfinite(ends).all() else NAN
