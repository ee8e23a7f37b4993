"""Cat or dog from vectors: the features of a frozen network, and the task that they make.

    python experiments/pets_embeddings.py --root Oxford_IIIT_Pets --weights resnet18_animalfree.safetensors \\
        -o FOLDER/pets-embeddings.npz
    surefoot run experiments/pets-embeddings.toml --root FOLDER

The script embeds the test view of each photograph: a vector is the input of the network's last layer.
As a plugin, this file registers the task `pets-embeddings`, which reads FOLDER/pets-embeddings.npz. It has
the samples, splits, classes and breeds of cat-dog. Oxford-IIIT Pets is under CC BY-SA 4.0, and so are its
embeddings.
"""

import argparse
import sys
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

import surefoot
from surefoot.deploy.embed import Encoder, embedded, encoder_named
from surefoot.errors import InputError
from surefoot.io import refuse_unwritable, replacing
from surefoot.predictions.labels import LabelKind
from surefoot.tasks import task_named
from surefoot.tasks.layouts import PETS, Layout, Place
from surefoot.tasks.task import ImageFiles, Samples, Split, Task

NAME = "pets-embeddings"
FILE = Place(PETS, "embeddings", (f"{NAME}.npz",))
COLUMNS = ("ids", "splits", "labels", "groups", "vectors")  # a row per sample


def embed(task: Task, encoder: Encoder) -> dict[str, np.ndarray]:
    """The columns of a task of images, and `class_names`; a vector is what the last layer gets."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    for split, samples in task.splits.items():
        vectors = vectors_of(samples, encoder)
        groups = np.full(len(samples), "") if samples.groups is None else samples.groups
        values = (samples.ids, np.full(len(samples), str(split)), samples.labels, groups, vectors)
        for name, value in zip(COLUMNS, values, strict=True):
            found[name].append(value)
        print(f"{split}: {len(samples)} vectors of {vectors.shape[1]} numbers", flush=True)
    columns = {name: np.concatenate(parts) for name, parts in found.items()}
    return columns | {"class_names": np.asarray(task.class_names)}


def vectors_of(samples: Samples, encoder: Encoder) -> np.ndarray:
    """The embedding of each image of a split; all of them must be readable."""
    assert isinstance(samples.inputs, ImageFiles)
    parts = []
    for _, vectors, reasons in embedded(encoder, samples.inputs.files()):
        for row, reason in reasons.items():
            raise InputError(f"{samples.inputs.file(row)}: {reason}; needed: images that can be read")
        parts.append(vectors)
    return np.concatenate(parts)


def load_embeddings(file: Path, name: str) -> Task:
    """The task of the file that the script wrote."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            columns = {each: stored[each] for each in (*COLUMNS, "class_names")}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise InputError(
            f"{file}: no embeddings ({error}); needed: the output of {Path(__file__).name}"
        ) from error
    vectors, labels, of_split = (columns[each] for each in ("vectors", "labels", "splits"))
    lengths = {each: len(columns[each]) for each in COLUMNS}
    if len(set(lengths.values())) > 1 or vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise InputError(
            f"{file}: columns of {lengths} rows, vectors of shape {vectors.shape}; "
            "needed: a row per sample, finite numbers"
        )
    if unknown := set(of_split.tolist()) - set(Split):
        raise InputError(f"{file}: split {min(unknown)!r}; allowed: {', '.join(Split)}")
    known = np.isin(labels, np.arange(len(columns["class_names"])))
    if not (known | (of_split == Split.UNLABELLED)).all():
        raise InputError(f"{file}: labels {np.unique(labels).tolist()}; allowed: an index of class_names")
    splits = {}
    for split in Split:
        chosen = columns["splits"] == split
        ids, _, labels, groups, inputs = (columns[each][chosen] for each in COLUMNS)
        splits[split] = Samples(ids=ids, labels=labels, inputs=inputs.astype(np.float32), groups=groups)
    return Task(name, LabelKind.ONE_LABEL, tuple(columns["class_names"].tolist()), splits)


surefoot.register(
    surefoot.TaskEntry(
        NAME,
        "Cat vs. dog, embeddings",
        "cat-dog as vectors: features of a frozen network",
        lambda root, _: load_embeddings(FILE.require(root), NAME),
        layout=Layout((FILE,)),
    )
)


def main(words: list[str] | None = None) -> int:
    """Write the embeddings of cat-dog; 2 for a user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="the folder of Oxford-IIIT Pets")
    parser.add_argument("--weights", type=Path, required=True, help="of a ResNet-18")
    parser.add_argument("--view", type=int, default=144, help="side of the network's input in pixels")
    parser.add_argument("--resize", type=int, default=160, help="short side of the decoded images")
    parser.add_argument("-o", "--output", type=Path, required=True, help=f"FOLDER/{NAME}.npz")
    chosen = parser.parse_args(words)
    try:
        refuse_unwritable(chosen.output)
        encoder = encoder_named("resnet18", chosen.weights, view=chosen.view, resize=chosen.resize)
        columns = embed(task_named("cat-dog", root=chosen.root), encoder)
        with replacing(chosen.output) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **columns)  # type: ignore[arg-type]
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
