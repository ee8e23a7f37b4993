"""Evaluate files that need not fit in memory: read once, and again only where cells must be finer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

from surefoot.defaults import RESAMPLES
from surefoot.likeness import refuse_unlike
from surefoot.metrics import METRICS, Metric
from surefoot.scores import Evaluation
from surefoot.streaming.batches import shape_of
from surefoot.streaming.files import Part, parts_of
from surefoot.streaming.local import Engine, Threads, Tick, usable_cores
from surefoot.tally import Question, Scaling, Shape, Tally, evaluation_of, tally, thresholds_of, worst_bound

TOLERANCE = 1e-4  # what ECE and all that is read from the risk-coverage curve may be off
PASSES = 4

Watch = Callable[[str, int | None], AbstractContextManager[Tick]]


@dataclass(frozen=True)
class Source:
    """Files, the parts they are read in, and what their rows look like."""

    files: tuple[Path, ...]
    parts: tuple[Part, ...]
    shape: Shape

    @staticmethod
    def of(files: Sequence[Path]) -> "Source":
        parts = tuple(part for part in parts_of(files) if part.rows != 0)
        return Source(tuple(files), parts, shape_of(parts))

    @property
    def rows(self) -> int | None:
        """How many, where the files say it before they are read."""
        known = [part.rows for part in self.parts if part.rows is not None]
        return sum(known) if len(known) == len(self.parts) else None


@dataclass(frozen=True)
class Streamed:
    """An evaluation, and what was noticed on the way."""

    evaluation: Evaluation
    readings: int  # of all rows of a side, the most
    seconds: float  # that the reading took
    one_hot: tuple[str, ...]  # sides of many labels where every row has exactly one


def silently(_doing: str, _total: int | None) -> AbstractContextManager[Tick]:
    """Show nobody how far it is."""
    return nullcontext(lambda _rows: None)


def evaluate_files(
    sources: Mapping[str, Source],
    *,
    scaling: Scaling | None = None,
    metrics: Sequence[Metric] = METRICS,
    resamples: int = RESAMPLES,
    seed: int = 0,
    engine: Engine | None = None,
    watch: Watch = silently,
) -> Streamed:
    """`scoring.evaluate` over files, in memory that does not grow with their rows."""
    refuse_unlike({side: source.shape for side, source in sources.items()})
    engine = engine or Threads(usable_cores())
    start = monotonic()
    tallies = {
        side: tally_source(source, metrics, scaling, engine, partial(_watched, watch, side))
        for side, source in sources.items()
    }
    seconds = monotonic() - start
    with watch("resampling", resamples * sum(len(t.question.versions) for t in tallies.values())) as tick:
        found = evaluation_of(tallies, metrics, resamples=resamples, seed=seed, tick=tick)
    readings = max(len(grid.zooms) + 1 for t in tallies.values() for grid in t.question.grids)
    return Streamed(found, readings, seconds, tuple(side for side, t in tallies.items() if t.one_hot))


def tally_source(
    source: Source, metrics: Sequence[Metric], scaling: Scaling | None, engine: Engine, watch: Watch
) -> Tally:
    """A side's tally, with cells so fine that the bound holds, if a few readings can make it so."""
    versions = (None,) if scaling is None else (scaling, None)
    question = Question.of(source.shape, thresholds_of(metrics), versions)
    for number in range(1, PASSES + 1):
        with watch("reading" if number == 1 else f"reading, time {number}", source.rows) as tick:
            found = engine(source.parts, source.shape, partial(tally, question=question), tick)
        closer = _closer(found)
        if closer is None:
            break
        question = closer
    return found


def _closer(found: Tally) -> Question | None:
    """The question again with finer cells where the bound is missed; None if it holds or cannot."""
    question = found.question
    grids = list(question.grids)
    for version, histogram in enumerate(found.histograms):
        if worst_bound(found, version) > TOLERANCE:
            grids[version] = histogram.closer() or grids[version]
    return replace(question, grids=tuple(grids)) if grids != list(question.grids) else None


def _watched(watch: Watch, side: str, doing: str, total: int | None) -> AbstractContextManager[Tick]:
    return watch(f"{doing} {side}", total)
