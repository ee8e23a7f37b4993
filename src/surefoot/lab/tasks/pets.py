"""Cat or dog from frozen embeddings of photographs that are in the package; some breeds are unfamiliar."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from surefoot.lab.tasks.features import Encoding, Vector
from surefoot.lab.tasks.layouts import TaskEntry
from surefoot.lab.tasks.task import Samples, Split, Task, unlabelled_labels
from surefoot.predictions.labels import LabelKind

FILE = Path(__file__).parent / "pets_data" / "pets.parquet"  # its README.md has the terms: CC BY-SA 4.0
CLASS_NAMES = ("dog", "cat")
COLUMNS = ("id", "split", "label", "breed", "embedding", "thumbnail")


def load_pets() -> Task:
    """Oxford-IIIT Pets in the authors' split, as vectors of 512 numbers, by breed.

    The unlabelled vectors are of mixtures and patches of training photographs.
    """
    from pyarrow.parquet import ParquetFile  # slow to import; `read_table` would import pandas

    table = ParquetFile(FILE).read()
    assert tuple(table.column_names) == COLUMNS
    of_row = table["split"].to_pylist()  # the rows of a split are next to each other
    splits = {s: _samples(s, table.slice(of_row.index(s), of_row.count(s))) for s in Split}
    vectors = np.concatenate([np.asarray(samples.inputs) for samples in splits.values()])
    return Task(
        name="pets",
        kind=LabelKind.ONE_LABEL,
        class_names=CLASS_NAMES,
        splits=splits,
        remarks=("Oxford-IIIT Pets, CC BY-SA 4.0: Parkhi et al., CVPR 2012",),
        encoding=Encoding((Vector("embedding", vectors.shape[1]),)),  # bundles take rows of 'surefoot embed'
        contents=hashlib.sha256(vectors.tobytes()).hexdigest(),
    )


def _samples(split: Split, table: pa.Table) -> Samples:
    ids = [f"{split}/{name}" if split is Split.UNLABELLED else name for name in table["id"].to_pylist()]
    vectors = table["embedding"].combine_chunks()
    width = len(vectors.values) // len(vectors)
    assert (np.diff(np.from_dlpack(vectors.offsets)) == width).all()  # `to_numpy` would import pandas
    labels = unlabelled_labels(len(ids), LabelKind.ONE_LABEL, len(CLASS_NAMES))
    if split is not Split.UNLABELLED:
        labels = np.asarray([CLASS_NAMES.index(name) for name in table["label"].to_pylist()], dtype=np.int64)
    pictures = np.asarray(table["thumbnail"].to_pylist(), dtype=np.object_)
    return Samples(
        ids=np.asarray(ids, dtype=np.str_),
        labels=labels,
        inputs=np.from_dlpack(vectors.flatten()).reshape(-1, width).astype(np.float32),
        groups=np.asarray([name or "" for name in table["breed"].to_pylist()], dtype=np.str_),
        pictures=None if None in pictures else pictures,
    )


PETS = TaskEntry(
    "pets",
    "Pets",
    "cat or dog, frozen embeddings of photographs; eight breeds are unfamiliar",
    lambda *_: load_pets(),
)
