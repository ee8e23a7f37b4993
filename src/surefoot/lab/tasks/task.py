"""A task: samples by split, and the rules that no task may break."""

import hashlib
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surefoot.errors import InputError
from surefoot.lab.images.cache import Decoded, Tick, decode_images
from surefoot.lab.images.decode import Size
from surefoot.lab.tasks.features import Encoding, Vector
from surefoot.predictions.labels import IGNORE, LabelKind
from surefoot.text import count_of

T = TypeVar("T")


def shuffled(items: Sequence[T], generator: random.Random) -> list[T]:
    """A permutation by Fisher and Yates, from `random()`, whose stream Python guarantees never to change.

    `random.shuffle` has no such guarantee. The steps are those of its version that the authors used, so that
    their seed gives their permutation.

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
    """Paths relative to `root`, with forward slashes; each is inside it, also after following links."""

    root: Path
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.resolve())
        for row, path in enumerate(self.paths):
            if _is_outside(path):
                raise InputError(
                    f"path {path!r} in row {row} leaves the image root; allowed: paths below {self.root}"
                )
        self._refuse_links_outside()

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, row: int) -> Path:
        """The path of a row's image."""
        return self.root / self.paths[row]

    def files(self) -> list[str]:
        """All paths as text: a hundred thousand Path objects take a second."""
        root = str(self.root)
        return [os.path.join(root, path) for path in self.paths]  # noqa: PTH118

    def take(self, rows: Sequence[int]) -> "ImageFiles":
        """The rows at these indices."""
        return ImageFiles(self.root, tuple(self.paths[row] for row in rows))

    def _refuse_links_outside(self) -> None:
        """Raise for a link out of the root; every folder is resolved once, and every file that is a link."""
        inside: dict[str, bool] = {}
        root = str(self.root)
        for row, path in enumerate(self.paths):
            folder = path.rpartition("/")[0]
            if folder not in inside:
                inside[folder] = self._contains(self.root / folder)
            file = os.path.join(root, path)  # noqa: PTH118
            if not inside[folder] or (os.path.islink(file) and not self._contains(Path(file))):  # noqa: PTH114
                raise InputError(
                    f"path {path!r} in row {row} leaves the image root through a link; "
                    f"allowed: paths below {self.root}"
                )

    def _contains(self, path: Path) -> bool:
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):  # a link to itself
            return False


def image_paths_below(folder: Path) -> list[str]:
    """The path of every image file below a folder, in the order of their names."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; needed: a folder of images")
    paths: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        relative = Path(parent).relative_to(folder).as_posix()
        prefix = "" if relative == "." else f"{relative}/"
        paths += [prefix + name for name in names if name.lower().endswith(ENDINGS) and name[0] != "."]
    if not paths:
        raise InputError(f"{folder}: no images; allowed: {', '.join(ENDINGS)}")
    return sorted(paths)


def _is_outside(path: str) -> bool:
    """Whether a path as written is absolute, contains `..`, or names a drive.

    >>> [_is_outside(path) for path in ("a/b.jpg", "../b.jpg", "a/../../b.jpg", "/b.jpg", "C:/b.jpg", "")]
    [False, True, True, True, True, True]
    """
    parts = set(path.split("/"))  # a PurePosixPath takes five times as long
    drive = len(path) > 1 and path[1] == ":"
    return (
        parts <= {"", "."} or path.startswith("/") or ".." in parts or drive or "\\" in path or "\0" in path
    )


class Split(StrEnum):
    """What samples are used for. Unfamiliar ones are for testing only."""

    TRAIN = "train"
    VAL = "val"
    TEST_FAMILIAR = "test_familiar"
    TEST_UNFAMILIAR = "test_unfamiliar"
    UNLABELLED = "unlabelled"


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one split; `inputs` are image files, or an array in memory."""

    ids: NDArray[np.str_]  # (n,) unique
    labels: NDArray[np.int64]  # (n,) class index, or (n, classes) 0 / 1 / IGNORE
    inputs: ImageFiles | NDArray[Any]
    groups: NDArray[np.str_] | None = None  # (n,) the subgroup: a breed, a subclass, a font
    attributes: pa.Table | None = None  # any further columns
    pictures: NDArray[np.object_] | None = None  # (n,) of vectors: encoded images to show to people

    def __post_init__(self) -> None:
        for name in ("labels", "inputs", "groups", "attributes", "pictures"):
            values = getattr(self, name)
            assert values is None or len(values) == len(self.ids), name
        names, counts = np.unique(self.ids, return_counts=True)
        if len(names) < len(self.ids):
            name = str(names[counts > 1][0])
            rows = ", ".join(str(row) for row in np.flatnonzero(self.ids == name)[:5])
            raise InputError(f"sample {name!r} occurs {counts.max()} times (rows {rows}); allowed: once")

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Any) -> "Samples":
        """The rows selected by indices or by a mask."""
        index = np.arange(len(self))[np.asarray(rows) if len(rows) else np.empty(0, np.int64)]
        inputs = self.inputs
        return replace(
            self,
            ids=self.ids[index],
            labels=self.labels[index],
            inputs=inputs.take(index.tolist()) if isinstance(inputs, ImageFiles) else inputs[index],
            groups=None if self.groups is None else self.groups[index],
            attributes=None if self.attributes is None else self.attributes.take(index),
            pictures=None if self.pictures is None else self.pictures[index],
        )


@dataclass(frozen=True, eq=False)
class Task:
    """A classification task with familiar and unfamiliar samples.

    The constructor enforces: no sample, and no file, in two splits (so nothing unfamiliar is in train, val
    or unlabelled); every class has training samples; the unlabelled have no labels. Whether two files hold
    the same image is known only when they are read: `refuse_shared_content`.
    """

    name: str
    kind: LabelKind
    class_names: tuple[str, ...]
    splits: Mapping[Split, Samples]
    remarks: tuple[str, ...] = ()  # notes for people on how the splits were made
    encoding: Encoding | None = None  # from the rows of a table to the inputs, which are vectors
    contents: str = ""  # a hash of these rows; part of the identity

    def __post_init__(self) -> None:
        splits = {split: self.splits[split] for split in Split if len(self.splits.get(split, ()))}
        object.__setattr__(self, "splits", MappingProxyType(splits))
        if len(self.class_names) < 2:
            raise InputError(f"task {self.name!r} has classes {list(self.class_names)}; needed: two or more")
        for split, samples in splits.items():
            self._check_labels(split, samples)
        _refuse_shared("sample", {split: samples.ids.tolist() for split, samples in splits.items()})
        files = {s: each.inputs.files() for s, each in splits.items() if isinstance(each.inputs, ImageFiles)}
        real = {s: [os.path.realpath(f) if os.path.islink(f) else f for f in files[s]] for s in files}  # noqa: PTH114
        _refuse_shared("file", real)
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
        notes = "".join(f"; note: {remark}" for remark in self.remarks)
        if Split.TRAIN not in self.splits:
            sizes = ", ".join(f"{len(each):,} in {split}" for split, each in self.splits.items()) or "none"
            raise InputError(
                f"task {self.name!r} has no training samples ({sizes}); needed: some of every class{notes}"
            )
        counts = self.class_counts(Split.TRAIN)
        empty = [name for name, count in zip(self.class_names, counts, strict=True) if not count]
        if not empty:
            return
        elsewhere = []
        for split, samples in self.splits.items():
            has_label = self.has_label(samples, self.class_names.index(empty[0]))
            if has_label.any():
                elsewhere.append(f"{int(has_label.sum())} in {split}, such as {samples.ids[has_label][0]}")
        raise InputError(
            f"class {empty[0]!r} has no training samples ({'; '.join(elsewhere) or 'nor any others'}); "
            f"needed: some of every class{notes}"
        )

    def has_label(self, samples: Samples, label: int) -> NDArray[np.bool_]:
        """Which samples have the class with that index."""
        labels = samples.labels if self.kind is LabelKind.ONE_LABEL else samples.labels[:, label]
        return np.asarray(labels == (label if self.kind is LabelKind.ONE_LABEL else 1))

    def class_counts(self, split: Split) -> NDArray[np.int64]:
        """Samples per class; with many labels a sample counts for each that it has."""
        labels = self.splits[split].labels
        if self.kind is LabelKind.MANY_LABELS:
            return np.asarray((labels == 1).sum(axis=0), dtype=np.int64)
        return np.bincount(labels[labels != IGNORE], minlength=len(self.class_names)).astype(np.int64)

    def label_text(self, split: Split, row: int) -> tuple[str, str]:
        """The names of a row's classes with `;` between them, and of those ignored."""
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

        The same on every machine and for any order of the manifest's rows. The content of the images is no
        part of it: the cache of decoded images checks that. The content of the rows of a table is.
        """
        return self._digest(tuple(self.splits), self.contents)

    @cached_property
    def training_identity(self) -> str:
        """The same for train alone: the random numbers in training depend on nothing else."""
        return self._digest((Split.TRAIN,), "")

    def _digest(self, splits: tuple[Split, ...], contents: str) -> str:
        digest = hashlib.sha256()
        digest.update(_line([str(self.kind), *self.class_names]))
        if contents:
            digest.update(_line(["features", contents]))
        for split in splits:
            samples = self.splits.get(split)
            if samples is None:
                continue
            ids = samples.ids.tolist()
            groups = [""] * len(ids) if samples.groups is None else samples.groups.tolist()
            for row in np.argsort(samples.ids, kind="stable").tolist():
                digest.update(_line([split, str(ids[row]), *self.label_text(split, row), str(groups[row])]))
        return digest.hexdigest()


def refuse_shared_content(
    task: Task, contents: Mapping[Split, list[str]], *, noun: str = "unfamiliar image"
) -> None:
    """Raise if an unfamiliar sample is also in train, val or unlabelled, by the hash of its content."""
    unfamiliar = contents.get(Split.TEST_UNFAMILIAR, [])
    row_of = {content: row for row, content in enumerate(unfamiliar) if content}  # "" cannot be opened
    for split in (Split.TRAIN, Split.VAL, Split.UNLABELLED):
        shared = [(row, row_of[c]) for row, c in enumerate(contents.get(split, [])) if c in row_of]
        if shared:
            row, unfamiliar_row = shared[0]
            raise InputError(
                f"{count_of(len(shared), noun)} also in {split}, such as "
                f"{task.splits[Split.TEST_UNFAMILIAR].ids[unfamiliar_row]} = {task.splits[split].ids[row]}; "
                "allowed: none (see 'surefoot data check')"
            )


def refuse_shared_rows(task: Task) -> None:
    """The same for vectors of a user's task. Columns of a table may be equal by chance: not refused."""
    if task.encoding is None or not any(isinstance(each, Vector) for each in task.encoding.features):
        return
    contents = {
        split: [hashlib.sha256(row.tobytes()).hexdigest() for row in np.asarray(samples.inputs)]
        for split, samples in task.splits.items()
    }
    refuse_shared_content(task, contents, noun="unfamiliar row")


def unlabelled_labels(count: int, kind: LabelKind, classes: int) -> NDArray[np.int64]:
    """Labels that are all IGNORE."""
    return np.full((count,) if kind is LabelKind.ONE_LABEL else (count, classes), IGNORE, dtype=np.int64)


_as_json = json.JSONEncoder(ensure_ascii=False).encode


def _line(values: list[str]) -> bytes:
    """The values as JSON; `json.dumps` would make an encoder for each line."""
    return f"[{', '.join(map(_as_json, values))}]\n".encode()


def _refuse_shared(what: str, names: Mapping[Split, list[str]]) -> None:
    seen: dict[str, Split] = {}
    for split, own in names.items():
        for name in own:
            if seen.setdefault(name, split) is not split:
                raise InputError(f"{what} {name!r} is in both {seen[name]} and {split}; allowed: one split")


def decode_task(task: Task, size: Size, *, cache: Path, tick: Tick | None = None) -> Mapping[Split, Decoded]:
    """The images of every split; an error if one cannot be read, or if an unfamiliar one is in training.

    Samples that are arrays in memory need no decoding, and their splits are not in the result.
    """
    decoded = {
        split: decode_images(samples.inputs.files(), size, cache=cache, tick=tick)
        for split, samples in task.splits.items()
        if isinstance(samples.inputs, ImageFiles)
    }
    refuse_shared_content(task, {split: list(each.contents) for split, each in decoded.items()})
    return decoded
