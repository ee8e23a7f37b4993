"""Prediction files larger than memory, which are read in batches."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from surefoot.errors import InputError, one_of, require_whole
from surefoot.predictions.arguments import checked
from surefoot.predictions.engines import Engine, RayTasks, Threads
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.paths import files_named
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.readers import (
    FIRST_ROWS,
    IN_MEMORY,
    Part,
    Shape,
    parts_of,
    predictions_in,
    shape_of,
)
from surefoot.progress import Progress
from surefoot.runtime import usable_cores
from surefoot.text import count_of

ENGINES = ("local", "ray")


@checked
@dataclass(frozen=True, eq=False)
class ScannedPredictions:
    """Prediction files that are read in batches whenever something is computed from them."""

    files: tuple[Path, ...]
    workers: int | None = None
    engine: str = "local"
    address: str | None = None
    unlabelled: LabelKind | None = None  # the kind of labels, where files may have none
    group_by: str | None = None  # a column

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What is read apart from the others."""
        return tuple(part for part in parts_of(self.files) if part.rows != 0)

    @cached_property
    def shape(self) -> Shape:
        """From the first rows."""
        return shape_of(self.parts, self.unlabelled)

    @property
    def rows(self) -> int | None:
        """How many, where the files say it before they are read."""
        known = [part.rows for part in self.parts if part.rows is not None]
        return sum(known) if len(known) == len(self.parts) else None

    @property
    def kind(self) -> LabelKind:
        """Of the labels."""
        return self.shape.kind

    @property
    def classes(self) -> int:
        """How many."""
        return self.shape.classes

    @property
    def members(self) -> int:
        """How many."""
        return self.shape.members

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Of the first file that has any."""
        return self.shape.class_names

    @checked
    def grouped_by(self, column: str) -> "ScannedPredictions":
        """The same files with a column, or `ids`, as groups, for thresholds and the monitor."""
        return replace(self, group_by=column)

    def predictions_in(self, part: Part, *, rows: int = FIRST_ROWS) -> Iterator[Predictions]:
        """The rows of a part, so many at a time, with all their columns."""
        return predictions_in(part, self.unlabelled, self.group_by, rows=rows)

    def __repr__(self) -> str:
        rows = "unknown" if self.rows is None else self.rows
        files = count_of(len(self.files), "file")
        return (
            f"ScannedPredictions({self.kind}, members={self.members}, n={rows}, classes={self.classes}, "
            f"{files})"
        )

    @contextmanager
    def reader(self, progress: Progress) -> Iterator[Engine]:
        """What reads outputs and labels; a Ray cluster is connected for as long as it is used."""
        if self.group_by is not None:
            raise InputError(
                f"groups ({self.group_by!r}) of streamed rows are for thresholds and the monitor; allowed "
                f"here: {IN_MEMORY}"
            )
        if self.engine == "local":
            yield Threads(self.workers or usable_cores())
            return
        from surefoot.predictions.ray_cluster import connected

        with ExitStack() as stack:
            with progress.busy("starting Ray"):
                ray = stack.enter_context(connected(self.address))
            yield RayTasks(ray)


@checked
def scan_predictions(
    path: str | Path | Sequence[str | Path],
    *,
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    unlabelled: LabelKind | None = None,
) -> ScannedPredictions:
    """Predictions in files larger than memory: for `evaluate`, `fit_calibration`, thresholds and the monitor.

    `path` is a .parquet or .csv file, a folder of them, a pattern such as 'val/*.parquet', or several.
    They are read in batches by so many `workers` (threads; one per core by default), or by the tasks of a
    Ray cluster if `engine` is 'ray': that at `address`, else one that is started here. `unlabelled` is the
    kind of the labels, for the monitor, where files may have none.

    >>> evaluate(scan_predictions("familiar/*.parquet"), progress=True)  # doctest: +SKIP
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    files = tuple(file for each in paths for file in files_named(each))
    if not files:
        raise InputError("the list of prediction files is empty; needed: at least one")
    one_of("engine", engine, ENGINES)
    if address is not None and engine == "local":
        raise InputError("the address is that of a Ray cluster; allowed: with the engine 'ray'")
    if workers is not None:
        require_whole("workers", workers, 1)
    return ScannedPredictions(files, workers, engine, address, unlabelled)
