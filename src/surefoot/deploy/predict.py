"""Predictions of image files, as a table that is written while the images are read."""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from surefoot.deploy.bundle import Bundle
from surefoot.deploy.decision import Rule
from surefoot.errors import InputError
from surefoot.images.decode import in_parallel
from surefoot.io import replacing
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.outcomes import DECIMALS
from surefoot.predictions.predictions import Predictions
from surefoot.tasks.task import ENDINGS, image_paths_below

AT_ONCE = 64  # images in a pass
ROWS_IN_A_GROUP = 64 * AT_ONCE  # rows held before they are written
FORMATS = (".parquet", ".csv")
Rows = dict[str, list[Any]]


@dataclass(frozen=True)
class Counted:
    """How many images there were, and how many of them could not be read."""

    images: int
    unreadable: tuple[str, ...]  # path and reason


def images_among(given: Sequence[str]) -> list[str]:
    """Every image file that is meant: files as they are, folders with all below them, patterns; each once."""
    found: list[str] = []
    for name in given:
        if Path(name).is_dir():
            found += [os.path.join(name, path) for path in image_paths_below(Path(name))]  # noqa: PTH118
        elif Path(name).is_file():
            found.append(name)
        else:
            found += _matching(name)
    return list(dict.fromkeys(found))


def _matching(pattern: str) -> list[str]:
    if not glob.has_magic(pattern):
        raise InputError(f"{pattern}: no such file or folder; needed: images, folders of them or a pattern")
    matching = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  as the user wrote it, also absolute
    found = [name for name in matching if name.lower().endswith(ENDINGS) and Path(name).is_file()]
    if not found:
        raise InputError(f"{pattern}: matches no image; allowed: {', '.join(ENDINGS)}")
    return found


def predict_files(
    bundle: Bundle,
    paths: Sequence[str],
    output: Path,
    *,
    thresholds: Rule | None = None,
    probabilities: bool = False,
    device: str = "cpu",
    tick: Callable[[int], None] = lambda _: None,
) -> Counted:
    """Write a row for every image, in order: one that cannot be read has an error and nothing else.

    At no time are more than some hundred images in memory. The file appears when it is whole.
    """
    if bundle.preprocessing is None:
        raise InputError(
            f"the bundle ({bundle.name}) takes points of shape {bundle.shape}, not images; use "
            "surefoot.load_bundle and its probabilities"
        )
    if output.suffix.lower() not in FORMATS:
        raise InputError(f"{output}: unknown file type {output.suffix!r}; have: {', '.join(FORMATS)}")
    if any(path.endswith(output.name) and Path(path).resolve() == output.resolve() for path in paths):
        raise InputError(f"the output {output} is among the images; allowed: another file")
    bundle.to(device)
    table = Table(bundle, thresholds or bundle.thresholds, probabilities)
    unreadable: list[str] = []
    with replacing(output) as temporary, _writer(temporary, table.schema, output.suffix.lower()) as write:
        seen = in_parallel(bundle.preprocessing.of_file, paths)
        for rows in _grouped(table, paths, seen, torch.device(device), tick):
            unreadable += [
                f"{path} ({error})" for path, error in zip(rows["path"], rows["error"], strict=True) if error
            ]
            write(pa.table(rows, schema=table.schema))
    return Counted(len(paths), tuple(unreadable))


@dataclass(frozen=True)
class Table:
    """The columns, and what stands in them."""

    bundle: Bundle
    thresholds: Rule | None
    probabilities: bool

    @property
    def schema(self) -> pa.Schema:
        """Their names and types."""
        number, text = pa.float64(), pa.string()
        columns = [("path", text), ("label", text), ("confidence", number), ("entropy", number)]
        columns += [("novelty", number)]
        columns += [("decision", text)] if self.thresholds is not None else []
        columns += (
            [(f"prob_{name}", number) for name in self.bundle.class_names] if self.probabilities else []
        )
        return pa.schema([*columns, ("error", text)])

    def rows(self, paths: Sequence[str], seen: Sequence[Tensor | str], device: torch.device) -> Rows:
        """A row for each path, whether its image could be read or not."""
        readable = [i for i, each in enumerate(seen) if not isinstance(each, str)]
        rows: Rows = {name: [None] * len(paths) for name in self.schema.names}
        rows["path"] = [os.fsencode(path).decode(errors="replace") for path in paths]
        rows["error"] = [each if isinstance(each, str) else None for each in seen]
        if readable:
            views = torch.stack([each for each in seen if isinstance(each, Tensor)])
            said = self._said(self.bundle.says(views.to(device)))
            for name, values in said.items():
                for row, value in zip(readable, values, strict=True):
                    rows[name][row] = value
        return rows

    def _said(self, predictions: Predictions) -> Rows:
        probs, names = predictions.probs(), self.bundle.class_names
        assert predictions.novelty is not None
        confidence, entropy = confidence_and_entropy(probs, predictions.kind)
        if predictions.kind is LabelKind.ONE_LABEL:
            labels = [names[index] for index in probs.argmax(dim=1).tolist()]
        else:
            chosen = (probs >= 0.5).tolist()
            labels = [";".join(n for n, has in zip(names, row, strict=True) if has) for row in chosen]
        said: Rows = {
            "label": labels,
            "confidence": confidence.tolist(),
            "entropy": entropy.tolist(),
            "novelty": predictions.novelty.tolist(),
        }
        if self.thresholds is not None:
            said["decision"] = [self.thresholds.decide(each) for each in said["confidence"]]
        if self.probabilities:
            said |= {f"prob_{name}": column.tolist() for name, column in zip(names, probs.T, strict=True)}
        return said


def confidence_and_entropy(probs: Tensor, kind: LabelKind) -> tuple[Tensor, Tensor]:
    """One label: the top probability, -sum p log p. Many: the least max(p, 1 - p), the sum over labels.

    Confidences are rounded as the metrics round them, so that thresholds chosen on those hold here.
    """
    if kind is LabelKind.ONE_LABEL:
        return probs.amax(dim=1).round(decimals=DECIMALS), torch.special.entr(probs).sum(dim=1)
    both = torch.special.entr(probs) + torch.special.entr(1 - probs)
    return torch.maximum(probs, 1 - probs).amin(dim=1).round(decimals=DECIMALS), both.sum(dim=1)


def _grouped(
    table: Table,
    paths: Sequence[str],
    seen: Iterator[Tensor | str],
    device: torch.device,
    tick: Callable[[int], None],
) -> Iterator[Rows]:
    """Rows in groups that are worth writing, predicted some images at a time."""
    held: Rows = {name: [] for name in table.schema.names}
    for start in range(0, len(paths), AT_ONCE):
        some = paths[start : start + AT_ONCE]
        for name, values in table.rows(some, list(islice(seen, len(some))), device).items():
            held[name] += values
        tick(len(some))
        if len(held["path"]) >= ROWS_IN_A_GROUP:
            yield held
            held = {name: [] for name in table.schema.names}
    if held["path"]:
        yield held


@contextmanager
def _writer(path: Path, schema: pa.Schema, suffix: str) -> Iterator[Callable[[pa.Table], None]]:
    """Takes the table part by part."""
    if suffix == ".csv":
        with pyarrow.csv.CSVWriter(path, schema) as csv:
            yield csv.write_table
    else:
        with pyarrow.parquet.ParquetWriter(path, schema, write_page_checksum=True) as parquet:
            yield parquet.write_table
