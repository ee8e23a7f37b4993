"""A task: samples by split, and the rules that no task may break."""

import hashlib
import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.images.cache import Decoded, decode_images, decode_readable_images
from surefoot.images.decode import Size
from surefoot.predictions.labels import IGNORE, LabelKind

T = TypeVar("T")


def shuffled(items: Sequence[T], generator: random.Random) -> list[T]:
    """A permutation by Fisher and Yates, from the one stream that Python promises never to change.

    `random.shuffle` makes no such promise. The steps are those that it took in the authors' time, so that
    their seed gives their draw.

    >>> shuffled("abcde", random.Random(1234))
    ['c', 'd', 'a', 'b', 'e']
    """
    result = list(items)
    for last in range(len(result) - 1, 0, -1):
        other = int(generator.random() * (last + 1))
        result[last], result[other] = result[other], result[last]
    return result


ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class ImageFiles:
    """Paths relative to `root`, with forward slashes; each stays inside it, links followed."""

    root: Path
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.resolve())
        for row, path in enumerate(self.paths):
            if _leaves(path):
                raise InputError(
                    f"path {path!r} in row {row} leaves the image root; allowed: paths below {self.root}"
                )
        self._refuse_links_outside()

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, row: int) -> Path:
        """Where the image of a row lies."""
        return self.root / self.paths[row]

    def files(self) -> list[str]:
        """All of them, as text: a hundred thousand Path objects take a second."""
        return [os.path.join(self.root, path) for path in self.paths]  # noqa: PTH118

    def take(self, rows: Sequence[int]) -> "ImageFiles":
        """The named rows."""
        return ImageFiles(self.root, tuple(self.paths[row] for row in rows))

    def _refuse_links_outside(self) -> None:
        """Resolve every folder once, and those files that are links themselves."""
        inside: dict[str, bool] = {}
        for row, path in enumerate(self.paths):
            folder = path.rpartition("/")[0]
            if folder not in inside:
                inside[folder] = self._holds(self.root / folder)
            file = os.path.join(self.root, path)  # noqa: PTH118
            if not inside[folder] or (os.path.islink(file) and not self._holds(Path(file))):  # noqa: PTH114
                raise InputError(
                    f"path {path!r} in row {row} leaves the image root through a link; "
                    f"allowed: paths below {self.root}"
                )

    def _holds(self, place: Path) -> bool:
        try:
            return place.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):  # a link that leads to itself
            return False


def image_paths_below(folder: Path) -> list[str]:
    """The path of every image file below a folder, in the order of their names."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; needed: a folder of images")
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        start = Path(place).relative_to(folder).as_posix()
        before = "" if start == "." else f"{start}/"
        found += [before + name for name in names if name.lower().endswith(ENDINGS) and name[0] != "."]
    if not found:
        raise InputError(f"{folder}: no images; allowed: {', '.join(ENDINGS)}")
    return sorted(found)


def _leaves(path: str) -> bool:
    """Whether a path as written is absolute, climbs, or names a drive.

    >>> [_leaves(path) for path in ("a/b.jpg", "../b.jpg", "a/../../b.jpg", "/b.jpg", "C:/b.jpg", "")]
    [False, True, True, True, True, True]
    """
    parts = PurePosixPath(path).parts
    drive = len(path) > 1 and path[1] == ":"
    return not parts or path.startswith("/") or ".." in parts or drive or "\\" in path or "\0" in path


class Split(StrEnum):
    """What samples are for. Unfamiliar ones are for testing, and for nothing else."""

    TRAIN = "train"
    VAL = "val"
    TEST_FAMILIAR = "test_familiar"
    TEST_UNFAMILIAR = "test_unfamiliar"
    UNLABELLED = "unlabelled"


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one split. What they look like is `inputs`: image files, or an array in memory."""

    ids: NDArray[np.str_]  # (n,) each its own
    labels: NDArray[np.int64]  # (n,) class index, or (n, classes) 0 / 1 / IGNORE
    inputs: ImageFiles | NDArray[Any]
    groups: NDArray[np.str_] | None = None  # (n,) the subgroup: a breed, a subclass, a font
    attributes: pa.Table | None = None  # any further columns

    def __post_init__(self) -> None:
        for name in ("labels", "inputs", "groups", "attributes"):
            values = getattr(self, name)
            assert values is None or len(values) == len(self.ids), name
        _refuse_twice(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Any) -> "Samples":
        """The named rows, by index or by mask."""
        index = np.arange(len(self))[np.asarray(rows)]
        files = self.inputs
        return replace(
            self,
            ids=self.ids[index],
            labels=self.labels[index],
            inputs=files.take(index.tolist()) if isinstance(files, ImageFiles) else files[index],
            groups=None if self.groups is None else self.groups[index],
            attributes=None if self.attributes is None else self.attributes.take(index),
        )


@dataclass(frozen=True, eq=False)
class Task:
    """A classification task with familiar and unfamiliar samples.

    Building one enforces: no sample, and no file, in two splits (so nothing unfamiliar is in train, val or
    among the unlabelled); every class has training samples; the unlabelled carry no labels. Whether two
    files hold the same picture is seen when they are opened: `refuse_shared_content`.
    """

    name: str
    kind: LabelKind
    class_names: tuple[str, ...]
    splits: Mapping[Split, Samples]
    remarks: tuple[str, ...] = ()  # what a person should know of how the splits came about

    def __post_init__(self) -> None:
        kept = {split: self.splits[split] for split in Split if len(self.splits.get(split, ()))}
        object.__setattr__(self, "splits", MappingProxyType(kept))
        if len(self.class_names) < 2:
            raise InputError(f"task {self.name!r} has classes {list(self.class_names)}; needed: two or more")
        for split, samples in kept.items():
            self._check_labels(split, samples)
        _refuse_shared("sample", {split: samples.ids.tolist() for split, samples in kept.items()})
        _refuse_shared("file", {split: _real_files(samples) for split, samples in kept.items()})
        self._refuse_empty_classes()

    def _check_labels(self, split: Split, samples: Samples) -> None:
        shape = (len(samples),) if self.kind is LabelKind.ONE_LABEL else (len(samples), len(self.class_names))
        assert samples.labels.shape == shape, (split, samples.labels.shape, shape)
        if split is Split.UNLABELLED:
            assert (samples.labels == IGNORE).all()
        elif self.kind is LabelKind.ONE_LABEL:
            assert ((samples.labels >= 0) & (samples.labels < len(self.class_names))).all()
        else:
            assert np.isin(samples.labels, (0, 1, IGNORE)).all()

    def _refuse_empty_classes(self) -> None:
        train = self.splits.get(Split.TRAIN)
        if train is None:
            raise InputError(f"task {self.name!r} has no training samples; needed: some of every class")
        counts = self.class_counts(Split.TRAIN)
        empty = [name for name, count in zip(self.class_names, counts, strict=True) if not count]
        if empty:
            raise InputError(
                f"class {empty[0]!r} has no training samples ({self._whereabouts(empty[0])}); "
                "needed: some of every class"
            )

    def _whereabouts(self, name: str) -> str:
        label, found = self.class_names.index(name), []
        for split, samples in self.splits.items():
            labels = samples.labels
            has = labels == label if self.kind is LabelKind.ONE_LABEL else labels[:, label] == 1
            if has.any():
                found.append(f"{int(has.sum())} in {split}, such as {samples.ids[has][0]}")
        return "; ".join(found) or "nor any others"

    def class_counts(self, split: Split) -> NDArray[np.int64]:
        """Samples per class; of many labels, those that have it."""
        labels = self.splits[split].labels
        if self.kind is LabelKind.MANY_LABELS:
            return np.asarray((labels == 1).sum(axis=0), dtype=np.int64)
        return np.bincount(labels[labels != IGNORE], minlength=len(self.class_names)).astype(np.int64)

    def label_text(self, split: Split, row: int) -> tuple[str, str]:
        """A row's label or labels in words, `;` between them, and those ignored."""
        labels = self.splits[split].labels
        if self.kind is LabelKind.ONE_LABEL:
            label = int(labels[row])
            return ("" if label == IGNORE else self.class_names[label]), ""
        if split is Split.UNLABELLED:
            return "", ""
        present, ignored = (np.flatnonzero(labels[row] == value) for value in (1, IGNORE))
        return ";".join(self.class_names[i] for i in present), ";".join(self.class_names[i] for i in ignored)

    @cached_property
    def identity(self) -> str:
        """sha256 of the resolved split: kind, class names, and (split, id, labels, ignored, group) by id.

        The same on every machine and for any order of the manifest's rows. What the pictures look like is
        no part of it: the cache of decoded images goes by their content.
        """
        return self._digest(tuple(self.splits))

    @cached_property
    def training_identity(self) -> str:
        """The same over train alone: what is drawn by lot in training depends on nothing else."""
        return self._digest((Split.TRAIN,))

    def _digest(self, splits: tuple[Split, ...]) -> str:
        digest = hashlib.sha256()
        digest.update(_line([str(self.kind), *self.class_names]))
        for split in splits:
            samples = self.splits.get(split)
            if samples is None:
                continue
            for row in np.argsort(samples.ids, kind="stable").tolist():
                group = "" if samples.groups is None else str(samples.groups[row])
                digest.update(_line([split, str(samples.ids[row]), *self.label_text(split, row), group]))
        return digest.hexdigest()


def refuse_shared_content(task: Task, contents: Mapping[Split, list[str]]) -> None:
    """Raise if the very picture of an unfamiliar sample is also in train, val or among the unlabelled."""
    unfamiliar = contents.get(Split.TEST_UNFAMILIAR, [])
    place = {content: row for row, content in enumerate(unfamiliar) if content}  # "": it cannot be opened
    for split in (Split.TRAIN, Split.VAL, Split.UNLABELLED):
        shared = [(row, place[c]) for row, c in enumerate(contents.get(split, [])) if c in place]
        if shared:
            ours, theirs = shared[0]
            raise InputError(
                f"{len(shared)} unfamiliar pictures are also in {split}, such as "
                f"{task.splits[Split.TEST_UNFAMILIAR].ids[theirs]} = {task.splits[split].ids[ours]}; "
                "allowed: none (see 'surefoot data check')"
            )


def unlabelled_labels(count: int, kind: LabelKind, classes: int) -> NDArray[np.int64]:
    """Labels that say nothing."""
    return np.full((count,) if kind is LabelKind.ONE_LABEL else (count, classes), IGNORE, dtype=np.int64)


def _line(values: list[str]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def _real_files(samples: Samples) -> list[str]:
    if not isinstance(samples.inputs, ImageFiles):
        return []
    return [os.path.realpath(file) if os.path.islink(file) else file for file in samples.inputs.files()]  # noqa: PTH114


def _refuse_twice(ids: NDArray[np.str_]) -> None:
    names, counts = np.unique(ids, return_counts=True)
    if len(names) < len(ids):
        name = names[counts > 1][0]
        rows = ", ".join(str(row) for row in np.flatnonzero(ids == name)[:5])
        raise InputError(f"sample {str(name)!r} occurs {counts.max()} times (rows {rows}); allowed: once")


def _refuse_shared(what: str, names: Mapping[Split, list[str]]) -> None:
    seen: dict[str, Split] = {}
    for split, here in names.items():
        for name in here:
            if seen.setdefault(name, split) is not split:
                raise InputError(f"{what} {name!r} is in both {seen[name]} and {split}; allowed: one split")


Tick = Callable[[int], None]
Decode = Callable[..., Decoded]


def decode_task(task: Task, size: Size, *, cache: Path, tick: Tick | None = None) -> Mapping[Split, Decoded]:
    """Every split's images; an error if one cannot be read, or if an unfamiliar one is also trained on.

    Samples that are arrays in memory need no decoding, and their splits are not among the result.
    """
    return _decode(task, size, decode_images, cache=cache, tick=tick)


def decode_readable_task(
    task: Task, size: Size, *, cache: Path, tick: Tick | None = None
) -> Mapping[Split, Decoded]:
    """The same, going on without the images that cannot be read."""
    return _decode(task, size, decode_readable_images, cache=cache, tick=tick)


def _decode(
    task: Task, size: Size, decode: Decode, *, cache: Path, tick: Tick | None
) -> Mapping[Split, Decoded]:
    decoded = {
        split: decode(samples.inputs.files(), size, cache=cache, tick=tick)
        for split, samples in task.splits.items()
        if isinstance(samples.inputs, ImageFiles)
    }
    refuse_shared_content(task, {split: list(each.contents) for split, each in decoded.items()})
    return decoded
