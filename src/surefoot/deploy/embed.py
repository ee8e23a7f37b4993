"""Embeddings of image files by a frozen network, written as a Parquet file; a killed run is resumed."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from surefoot import __version__
from surefoot.deploy.bundle import Preprocessing
from surefoot.errors import InputError, one_line, require_whole
from surefoot.io import ClaimedError, digest_of, locked, make_folder, real_path, refuse_special, replacing
from surefoot.lab.images.cache import Unreadable, unreadable_text
from surefoot.lab.images.decode import in_parallel
from surefoot.lab.networks.backbones import BACKBONES, build_network
from surefoot.lab.networks.external import INSTALL
from surefoot.lab.networks.weights import load_weights
from surefoot.lab.tasks.task import ImageFiles, image_paths_below
from surefoot.lab.training.augment import MEAN, SPREAD
from surefoot.lab.training.data import generator
from surefoot.lab.training.initial import weights_digest
from surefoot.predictions.columns import refuse_repeated
from surefoot.predictions.tables import CSV_PARSING, decoding, read_parquet, validated

EMBEDDING, ID, PATH = "embedding", "id", "path"  # columns
TYPES = {"float32": pa.float32(), "float16": pa.float16()}
HUGGING_FACE, TIMM = "hf", "timm"  # prefixes of names whose weights the library itself finds
AT_ONCE = 64  # images in a pass
ROWS_IN_A_PART = 8 * AT_ONCE  # a killed run loses at most these
METADATA = b"surefoot"
Tick = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen network from views of images to vectors, and the values that decide these."""

    name: str
    weights: str  # the digest of its weights
    preprocessing: Preprocessing
    vectors: Callable[[Tensor], Tensor]  # of views (n, 3, view, view)
    module: nn.Module
    mean: tuple[float, ...] = MEAN  # of the colours that the network expects, 0 to 1
    spread: tuple[float, ...] = SPREAD

    def as_dict(self) -> dict[str, Any]:
        """What the vectors depend on."""
        return {
            "network": self.name,
            "weights": self.weights,
            "view": self.preprocessing.view,
            "resize": self.preprocessing.resize,
            "mean": list(self.mean),
            "std": list(self.spread),
        }

    def __call__(self, views: Tensor) -> Tensor:
        """Vectors (n, width) in float32 on the host, of views as `Preprocessing` makes them."""
        if (self.mean, self.spread) != (MEAN, SPREAD):
            ours, theirs = (
                [torch.tensor(values).reshape(1, -1, 1, 1).to(views) for values in each]
                for each in ((MEAN, SPREAD), (self.mean, self.spread))
            )
            views = (views * ours[1] + ours[0] - theirs[0]) / theirs[1]
        with torch.inference_mode():
            vectors = self.vectors(views)
        if not isinstance(vectors, Tensor) or vectors.ndim != 2 or len(vectors) != len(views):
            got = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
            raise InputError(
                f"network {self.name!r} gives {got} for {len(views)} images; needed: one vector each"
            )
        return vectors.float().cpu()


def encoder_named(
    name: str, weights: Path | None, *, view: int = 224, resize: int = 256, device: str = "cpu"
) -> Encoder:
    """The network of that name with its weights, frozen.

    The built-in networks and those of torchvision need a file of weights. `timm:NAME` without a file and
    `hf:NAME` have the weights that the library finds for the name.
    """
    require_whole("view", view, 1)
    require_whole("resize", resize, 1)
    preprocessing = Preprocessing(view, resize, resize)
    source, _, rest = name.partition(":")
    if source == HUGGING_FACE:
        if weights is not None:
            raise InputError(f"network {name!r} has its own weights, got --weights {weights}; allowed: none")
        encoder = _hugging_face(name, rest, preprocessing)
    elif source == TIMM and weights is None:
        encoder = _pretrained_timm(name, rest, preprocessing)
    else:
        encoder = _built(name, weights, preprocessing)
    for parameter in encoder.module.parameters():
        parameter.requires_grad = False
    encoder.module.to(device).eval()
    return encoder


def _built(name: str, weights: Path | None, preprocessing: Preprocessing) -> Encoder:
    """A network that `build_network` knows; its last layer, which is not used, is random."""
    if ":" not in name and "channels" not in BACKBONES.named(name).options:
        raise InputError(f"network {name!r} takes vectors; needed: one that takes images, such as resnet18")
    is_own = ":" in name and not name.startswith(("timm:", "torchvision:"))
    if weights is None and not is_own:
        raise InputError(f"network {name!r} has random weights; needed: --weights FILE")
    network = build_network(name, 2, generator=generator("embed", name))
    if weights is not None:
        load_weights(network, weights)
    digest = _digest(network) if weights is None else weights_digest(weights)
    return Encoder(name, digest, preprocessing, network.features, network)


def _pretrained_timm(name: str, rest: str, preprocessing: Preprocessing) -> Encoder:
    timm = _library("timm", name)
    with _reporting(name):
        model = timm.create_model(rest, pretrained=True, num_classes=0)
    expected = model.default_cfg
    encoder = Encoder(name, _digest(model), preprocessing, model, model)
    return replace(encoder, mean=tuple(expected["mean"]), spread=tuple(expected["std"]))


def _hugging_face(name: str, rest: str, preprocessing: Preprocessing) -> Encoder:
    """A model of the Hugging Face hub, or of a local folder: its image features, or pooled tokens."""
    transformers = _library("transformers", name)
    with _reporting(name):
        model = transformers.AutoModel.from_pretrained(rest)
        expected = transformers.AutoImageProcessor.from_pretrained(rest)
    encoder = Encoder(name, _digest(model), preprocessing, lambda views: _pooled(model, views), model)
    return replace(encoder, mean=tuple(expected.image_mean), spread=tuple(expected.image_std))


def _pooled(model: Any, views: Tensor) -> Tensor:
    """CLIP's image features; else the pooled output; else the mean over tokens or pixels."""
    if hasattr(model, "get_image_features"):
        outputs = model.get_image_features(pixel_values=views)
    else:
        outputs = model(pixel_values=views)
    pooled: Tensor | None = (
        outputs if isinstance(outputs, Tensor) else getattr(outputs, "pooler_output", None)
    )
    if pooled is not None:
        return pooled.flatten(1)
    hidden: Tensor = outputs.last_hidden_state
    return hidden.mean(dim=1) if hidden.ndim == 3 else hidden.flatten(2).mean(dim=2)


@contextmanager
def _reporting(name: str) -> Iterator[None]:
    """Turn whatever a library raises while it loads a model into one sentence."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"network {name!r} cannot be loaded ({reason}); see its library") from error


def _library(library: str, name: str) -> Any:
    try:
        return import_module(library)
    except ImportError as error:
        install = INSTALL if library == "timm" else f"pip install {library}"
        raise InputError(f"network {name!r} needs {library}, got: {error}; install it: {install}") from error


def _digest(module: nn.Module) -> str:
    """The start of a sha256 of all weights by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Images, and a table with a row for each of them."""

    images: ImageFiles
    columns: pa.Table


def read_images(given: Path, *, root: Path | None = None, column: str = PATH) -> ImageTable:
    """All images below a folder, or those that a manifest names in a column; `root` is their folder.

    The table has the column `id`: the path, unless the manifest has its own.
    """
    if given.is_dir():
        if root is not None:
            raise InputError(
                f"--root is {root} and the images are a folder, {given}; allowed: with a manifest"
            )
        images = ImageFiles(given, tuple(image_paths_below(given)))
        return ImageTable(images, pa.table({ID: list(images.paths)}))
    try:
        table = _read_manifest(given, column)
        if column not in table.column_names:
            raise InputError(f"no column {column!r}; have: {', '.join(table.column_names)}")
        paths = [str(each or "") for each in table[column].to_pylist()]
        if "" in paths:
            raise InputError(
                f"column {column!r} is empty in row {paths.index('')}; allowed: a path in every row"
            )
        if EMBEDDING in table.column_names:
            raise InputError(f"it has a column {EMBEDDING!r} already; allowed: a manifest without one")
        images = ImageFiles(given.parent if root is None else root, tuple(paths))
    except InputError as error:
        raise InputError(f"{given}: {error}") from error
    return ImageTable(images, table if ID in table.column_names else table.add_column(0, ID, [paths]))


def _read_manifest(file: Path, column: str) -> pa.Table:
    with decoding("data"):
        if file.suffix.lower() not in (".csv", ".parquet"):
            raise InputError(f"unknown file type {file.suffix!r}; have: a folder, .csv, .parquet")
        refuse_special(file)
        if file.suffix.lower() == ".parquet":
            table = read_parquet(file)
        else:
            texts = pyarrow.csv.ConvertOptions(column_types={column: pa.string(), ID: pa.string()})
            table = validated(pyarrow.csv.read_csv(file, convert_options=texts, parse_options=CSV_PARSING))
    if not table.num_rows:
        raise InputError("no rows; needed: a path per row")
    refuse_repeated(table.column_names)
    return table


def embedded(
    encoder: Encoder, files: Sequence[str], *, device: str = "cpu", tick: Tick = lambda _: None
) -> Iterator[tuple[list[int], NDArray[np.float32], dict[int, str]]]:
    """For each part of the files: the rows that could be read, their vectors, and why others could not.

    At most some hundred images are in memory. A vector does not depend on where in the files its part is.
    """
    views = in_parallel(encoder.preprocessing.of_file, files)
    for start in range(0, len(files), AT_ONCE):
        rows = range(start, min(start + AT_ONCE, len(files)))
        batch = dict(zip(rows, islice(views, len(rows)), strict=True))
        readable = {row: view for row, view in batch.items() if isinstance(view, Tensor)}
        vectors = np.zeros((0, 0), dtype=np.float32)
        if readable:
            vectors = encoder(torch.stack(list(readable.values())).to(device)).numpy()
        tick(len(rows))
        yield list(readable), vectors, {row: v for row, v in batch.items() if isinstance(v, str)}


@dataclass(frozen=True)
class Embedded:
    """What was written."""

    rows: int
    width: int
    unreadable: tuple[Unreadable, ...]


def write_embeddings(
    given: ImageTable,
    encoder: Encoder,
    output: Path,
    *,
    number_type: str = "float32",
    skip_unreadable: bool = False,
    device: str = "cpu",
    tick: Tick = lambda _: None,
) -> Embedded:
    """Write the table with a list column `embedding`, image by image in its order.

    Parts are saved in a hidden folder next to the output as they are computed; the same call after a kill
    uses those whose settings and files are the same, and the file is the same to the byte.
    """
    if number_type not in TYPES:
        raise InputError(f"the type is {number_type!r}; allowed: {', '.join(TYPES)}")
    target = real_path(output)
    parts = target.parent / f".{target.name}.parts"
    make_folder(parts)
    try:
        with locked(parts / "lock"):
            result = _write(given, encoder, output, parts, TYPES[number_type], skip_unreadable, device, tick)
            shutil.rmtree(parts, ignore_errors=True)
            return result
    except ClaimedError as error:
        raise InputError(f"another process is writing {output}; allowed: one at a time") from error


def _write(
    given: ImageTable,
    encoder: Encoder,
    output: Path,
    parts: Path,
    kind: pa.DataType,
    skip_unreadable: bool,
    device: str,
    tick: Tick,
) -> Embedded:
    settings = {**encoder.as_dict(), "type": str(kind), "surefoot": __version__, "device": device}
    files = given.images.files()
    starts = range(0, len(files), ROWS_IN_A_PART)
    paths = []
    for start in starts:
        of_part = files[start : start + ROWS_IN_A_PART]
        path = parts / f"{start:09d}-{digest_of([settings, [_state(file) for file in of_part]])}.parquet"
        if path.is_file():
            tick(len(of_part))
        else:
            _write_part(path, encoder, of_part, kind, device, tick)
        paths.append(path)
    read = [pyarrow.parquet.read_table(path, columns=["row", "error"]) for path in paths]
    unreadable = tuple(
        Unreadable(files[start + row], reason)
        for start, part in zip(starts, read, strict=True)
        for row, reason in zip(part["row"].to_pylist(), part["error"].to_pylist(), strict=True)
        if reason is not None
    )
    if len(unreadable) == len(files) or (unreadable and not skip_unreadable):
        raise InputError(unreadable_text(unreadable))
    width = _joined(given.columns, paths, output, settings, kind)
    return Embedded(len(files) - len(unreadable), width, unreadable)


def _state(file: str) -> list[Any]:
    """Path, length and time of change: enough to know that a file has not changed."""
    try:
        state = os.stat(file)  # noqa: PTH116
        return [file, state.st_size, state.st_mtime_ns]
    except OSError:
        return [file]


def _write_part(
    path: Path, encoder: Encoder, files: Sequence[str], kind: pa.DataType, device: str, tick: Tick
) -> None:
    """A part as a table: row, embedding or error."""
    vectors: list[list[float] | None] = [None] * len(files)
    errors: list[str | None] = [None] * len(files)
    for rows, found, reasons in embedded(encoder, files, device=device, tick=tick):
        numbers = found.astype(kind.to_pandas_dtype())
        for row, vector in zip(rows, numbers, strict=True):
            if not np.isfinite(vector).all():
                raise InputError(
                    f"the {kind} embedding of {files[row]} has NaN or infinity; allowed: numbers"
                )
            vectors[row] = vector
        for row, reason in reasons.items():
            errors[row] = reason
    table = pa.table(
        {
            "row": pa.array(range(len(files)), pa.int64()),
            EMBEDDING: pa.array(vectors, pa.list_(kind)),
            "error": pa.array(errors, pa.string()),
        }
    )
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)


def _joined(
    columns: pa.Table, paths: Sequence[Path], output: Path, settings: dict[str, Any], kind: pa.DataType
) -> int:
    """Write all parts next to their columns, one after another; returns the width of the vectors."""
    facts = {name: value for name, value in settings.items() if name != "device"}
    schema = columns.schema.append(pa.field(EMBEDDING, pa.list_(kind)))
    schema = schema.with_metadata({**(columns.schema.metadata or {}), METADATA: json.dumps(facts)})
    start, width = 0, 0
    with (
        replacing(output) as temporary,
        pyarrow.parquet.ParquetWriter(temporary, schema, write_page_checksum=True) as writer,
    ):
        for path in paths:
            part = pyarrow.parquet.read_table(path)
            table = columns.slice(start, len(part)).append_column(EMBEDDING, part[EMBEDDING])
            start += len(part)
            table = table.filter(part["error"].is_null())
            width = width or (len(table[EMBEDDING][0]) if len(table) else 0)
            writer.write_table(table.cast(schema))
    return width
