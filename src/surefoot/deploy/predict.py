"""Predictions of image files, or of the rows of tables, written as a table batch by batch."""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from scipy.special import entr
from torch import Tensor

from surefoot.decisions.decision import Rule
from surefoot.deploy.bundle import Bundle
from surefoot.errors import InputError
from surefoot.io import real_path, replacing
from surefoot.lab.images.decode import in_parallel
from surefoot.lab.tasks.features import RawColumns, Unseen
from surefoot.lab.tasks.task import ENDINGS, image_paths_below
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import DECIMALS, Array
from surefoot.predictions.predictions import Predictions
from surefoot.predictions.tables import arrow_file, spreadsheet_table

AT_ONCE = 64  # images in a pass
ROWS_IN_A_GROUP = 64 * AT_ONCE  # rows collected before they are written
FORMATS = (".parquet", ".csv")
Rows = dict[str, list[Any]]


@dataclass(frozen=True)
class PredictedFiles:
    """How many images were given, and which of them could not be read."""

    images: int
    unreadable: tuple[str, ...]  # path and reason


def images_among(given: Sequence[str]) -> list[str]:
    """The image files given as files, folders (with everything below) and patterns; each once."""
    paths: list[str] = []
    for name in given:
        if Path(name).is_dir():
            paths += [os.path.join(name, path) for path in image_paths_below(Path(name))]  # noqa: PTH118
        elif Path(name).is_file():
            paths.append(name)
        elif glob.has_magic(name):
            matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207  as the user wrote it, also absolute
            images = [path for path in matches if path.lower().endswith(ENDINGS) and Path(path).is_file()]
            if not images:
                raise InputError(f"{name}: matches no image; allowed: {', '.join(ENDINGS)}")
            paths += images
        else:
            raise InputError(f"{name}: no such file or folder; needed: images, folders of them or a pattern")
    return list(dict.fromkeys(paths))


def predict_files(
    bundle: Bundle,
    paths: Sequence[str],
    output: Path,
    *,
    thresholds: Rule | None = None,
    probabilities: bool = False,
    features: bool = False,
    device: str = "cpu",
    tick: Callable[[int], None] = lambda _: None,
) -> PredictedFiles:
    """Write a row for every image, in order; an image that cannot be read has only its error.

    At most some hundred images are in memory at a time. The file appears when it is complete.
    """
    if bundle.preprocessing is None:
        raise InputError(
            f"the bundle ({bundle.name}) takes {bundle.taken}, not images; use "
            "surefoot.load_bundle and its probabilities"
        )
    _refuse_format(output, features=features)
    if any(path.endswith(output.name) and real_path(path) == real_path(output) for path in paths):
        raise InputError(f"the output {output} is among the images; allowed: another file")
    bundle.to(device)
    table = Table(bundle, thresholds or bundle.thresholds, probabilities, features=features)
    unreadable: list[str] = []
    with replacing(output) as temporary, _writer(temporary, table.schema, output.suffix.lower()) as write:
        views = in_parallel(bundle.preprocessing.of_file, paths)
        for rows in _grouped(table, paths, views, torch.device(device), tick):
            unreadable += [
                f"{path} ({error})" for path, error in zip(rows["path"], rows["error"], strict=True) if error
            ]
            write(pa.table(rows, schema=table.schema))
    return PredictedFiles(len(paths), tuple(unreadable))


def _refuse_format(output: Path, *, features: bool) -> None:
    if features and output.suffix.lower() == ".csv":
        raise InputError(f"{output}: a .csv holds no features; allowed: .parquet")
    if output.suffix.lower() not in FORMATS:
        raise InputError(f"{output}: unknown file type {output.suffix!r}; have: {', '.join(FORMATS)}")


def predict_rows(
    bundle: Bundle,
    rows: RawColumns,
    output: Path,
    *,
    thresholds: Rule | None = None,
    probabilities: bool = False,
    features: bool = False,
    device: str = "cpu",
    tick: Callable[[int], None] = lambda _: None,
) -> list[Unseen]:
    """Write a row for each row of a table, by its number from 0; returns values that training never had."""
    assert bundle.encoding is not None
    _refuse_format(output, features=features)
    bundle.to(device)
    table = Table(bundle, thresholds or bundle.thresholds, probabilities, key="row", features=features)
    with replacing(output) as temporary, _writer(temporary, table.schema, output.suffix.lower()) as write:
        for start in range(0, len(rows), ROWS_IN_A_GROUP):
            part = rows[start : start + ROWS_IN_A_GROUP]
            views = torch.from_numpy(bundle.encoding.encode(part))
            numbers = [str(start + row) for row in range(len(part))]
            found = table.rows(numbers, list(views), torch.device(device))
            write(pa.table(found | {"row": list(map(int, numbers))}, schema=table.schema))
            tick(len(part))
    return bundle.encoding.unseen(rows)


@dataclass(frozen=True)
class Table:
    """The columns and their values; the first, `key`, is a path, or the number of a row."""

    bundle: Bundle
    thresholds: Rule | None
    probabilities: bool
    key: str = "path"
    features: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Their names and types."""
        number, text = pa.float64(), pa.string()
        first = (self.key, text if self.key == "path" else pa.int64())
        columns = [first, ("label", text), ("confidence", number), ("entropy", number)]
        columns += [("novelty", number)]
        columns += [("decision", text)] if self.thresholds is not None else []
        columns += (
            [(f"prob_{name}", number) for name in self.bundle.class_names] if self.probabilities else []
        )
        columns += [("features", pa.list_(pa.float32()))] if self.features else []
        return pa.schema([*columns, ("error", text)])

    def rows(self, paths: Sequence[str], views: Sequence[Tensor | str], device: torch.device) -> Rows:
        """A row for each path; in place of a view there may be the reason why it could not be read."""
        readable = [i for i, view in enumerate(views) if not isinstance(view, str)]
        rows: Rows = {name: [None] * len(paths) for name in self.schema.names}
        rows[self.key] = [os.fsencode(path).decode(errors="replace") for path in paths]
        rows["error"] = [view if isinstance(view, str) else None for view in views]
        if readable:
            batch = torch.stack([view for view in views if isinstance(view, Tensor)])
            predictions = self.bundle.predict(batch.to(device), features=self.features)
            for name, values in self.columns(predictions).items():
                for row, value in zip(readable, values, strict=True):
                    rows[name][row] = value
        return rows

    def columns(self, predictions: Predictions) -> Rows:
        """The values of a bundle's predictions, all but the first column's."""
        probs, names = predictions.probs(), self.bundle.class_names
        assert predictions.novelty is not None
        confidence, entropy = confidence_and_entropy(probs, predictions.kind)
        if predictions.kind is LabelKind.ONE_LABEL:
            labels = [names[index] for index in probs.argmax(axis=1).tolist()]
        else:
            chosen = (probs >= 0.5).tolist()
            labels = [";".join(n for n, has in zip(names, row, strict=True) if has) for row in chosen]
        columns: Rows = {
            "label": labels,
            "confidence": confidence.tolist(),
            "entropy": entropy.tolist(),
            "novelty": predictions.novelty.tolist(),
        }
        if self.thresholds is not None:
            columns["decision"] = [self.thresholds.decide(each) for each in columns["confidence"]]
        if self.probabilities:
            columns |= {f"prob_{name}": column.tolist() for name, column in zip(names, probs.T, strict=True)}
        if self.features:
            assert predictions.features is not None
            columns["features"] = predictions.features.tolist()
        return columns


def confidence_and_entropy(probs: Array, kind: LabelKind) -> tuple[Array, Array]:
    """One label: the top probability, -sum p log p. Many: the least max(p, 1 - p), the sum over labels.

    Confidences are rounded as in the metrics, so that thresholds chosen on those are valid here.
    """
    if kind is LabelKind.ONE_LABEL:
        return probs.max(axis=1).round(DECIMALS), entr(probs).sum(axis=1)
    both = entr(probs) + entr(1 - probs)
    return np.maximum(probs, 1 - probs).min(axis=1).round(DECIMALS), both.sum(axis=1)


def _grouped(
    table: Table,
    paths: Sequence[str],
    views: Iterator[Tensor | str],
    device: torch.device,
    tick: Callable[[int], None],
) -> Iterator[Rows]:
    """Rows in groups of a size to write, predicted batch by batch."""
    group: Rows = {name: [] for name in table.schema.names}
    for start in range(0, len(paths), AT_ONCE):
        batch = paths[start : start + AT_ONCE]
        for name, values in table.rows(batch, list(islice(views, len(batch))), device).items():
            group[name] += values
        tick(len(batch))
        if len(group["path"]) >= ROWS_IN_A_GROUP:
            yield group
            group = {name: [] for name in table.schema.names}
    if group["path"]:
        yield group


@contextmanager
def _writer(path: Path, schema: pa.Schema, suffix: str) -> Iterator[Callable[[pa.Table], None]]:
    """A function that writes the table part by part."""
    if suffix == ".csv":
        header = spreadsheet_table(schema.empty_table()).schema
        with arrow_file(path, "wb") as file, pyarrow.csv.CSVWriter(file, header) as csv:
            yield lambda table: csv.write_table(spreadsheet_table(table))
    else:
        with (
            arrow_file(path, "wb") as file,
            pyarrow.parquet.ParquetWriter(file, schema, write_page_checksum=True) as parquet,
        ):
            yield parquet.write_table
