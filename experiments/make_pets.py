"""Makes the file of the built-in task `pets` from the photographs, the same to the byte each time.

    python experiments/make_pets.py --root DATA --weights resnet18_animalfree.safetensors \\
        -o src/surefoot/lab/tasks/pets_data/pets.parquet

DATA has Oxford-IIIT Pets in its published layout, with the authors' train.txt and val.txt. A row per
photograph of the task cat-dog: id, split, label, breed, the embedding in float16, and for test photographs a
thumbnail. The unlabelled rows (G) are made from training photographs alone, so that nothing of validation or
test data is in them: half are mixtures of two photographs, half are magnified patches of one.
"""

import argparse
import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image

from surefoot.deploy.embed import AT_ONCE, EMBEDDING, METADATA, Encoder, embedded, encoder_named
from surefoot.errors import InputError
from surefoot.io import refuse_unwritable, replacing
from surefoot.lab.images.cache import read_pixels
from surefoot.lab.images.decode import Size, in_parallel
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import ImageFiles, Samples, Split, Task
from surefoot.runtime import one_thread

VIEW, RESIZE = 144, 160  # pixels: of the network's input, and of the short side before the crop
THUMBNAIL = 48  # pixels a side
QUALITY = 50  # of a thumbnail, a WebP file
MIXTURES = PATCHES = 360  # G: a half of the training set, each kind a quarter
SHARE = (0.35, 0.65)  # of the first photograph in a mixture
SIDE = (0.25, 0.5)  # of a patch, as a share of the short side
TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


def made_table(task: Task, encoder: Encoder) -> pa.Table:
    """A row for each photograph, and for each of G."""
    parts = []
    for split in (Split.TRAIN, Split.VAL, *TESTED):
        samples = task.splits[split]
        vectors = vectors_of(samples, encoder)
        pictures = thumbnails(samples) if split in TESTED else [None] * len(samples)
        names = [task.class_names[label] for label in samples.labels.tolist()]
        assert samples.groups is not None
        parts.append(rows(split, samples.ids.tolist(), names, samples.groups.tolist(), vectors, pictures))
        print(f"{split}: {len(samples)}", flush=True)
    ids, views = unlabelled_views(task.splits[Split.TRAIN], encoder)
    vectors = np.concatenate([encoder(batch).numpy() for batch in torch.split(views, AT_ONCE)])
    print(f"{Split.UNLABELLED}: {len(ids)}", flush=True)
    none = [None] * len(ids)
    return pa.concat_tables([*parts, rows(Split.UNLABELLED, ids, none, none, vectors, none)])


def vectors_of(samples: Samples, encoder: Encoder) -> np.ndarray:
    """The embedding of each photograph of a split: what the network's last layer gets."""
    assert isinstance(samples.inputs, ImageFiles)
    parts = []
    for _, vectors, reasons in embedded(encoder, samples.inputs.files()):
        for row, reason in reasons.items():
            raise InputError(f"{samples.inputs.file(row)}: {reason}; needed: images that can be read")
        parts.append(vectors)
    return np.concatenate(parts)


def rows(
    split: Split, ids: list, labels: list, breeds: list, vectors: np.ndarray, pictures: list
) -> pa.Table:
    """The columns of the file."""
    return pa.table(
        {
            "id": pa.array(ids, pa.string()),
            "split": pa.array([str(split)] * len(ids), pa.string()),
            "label": pa.array(labels, pa.string()),
            "breed": pa.array(breeds, pa.string()),
            EMBEDDING: pa.array(list(vectors.astype(np.float16)), pa.list_(pa.float16())),
            "thumbnail": pa.array(pictures, pa.binary()),
        }
    )


def thumbnails(samples: Samples) -> list[bytes]:
    """The centre square of each photograph, small, as WebP."""
    assert isinstance(samples.inputs, ImageFiles)
    return list(in_parallel(thumbnail, samples.inputs.files()))


def thumbnail(file: str) -> bytes:
    """One photograph."""
    pixels = np.asarray(read_pixels(file, Size(THUMBNAIL)))
    top, left = ((side - THUMBNAIL) // 2 for side in pixels.shape[:2])
    square = Image.fromarray(pixels[top : top + THUMBNAIL, left : left + THUMBNAIL])
    out = io.BytesIO()
    square.save(out, format="WEBP", quality=QUALITY, method=6)
    return out.getvalue()


def unlabelled_views(train: Samples, encoder: Encoder) -> tuple[list[str], torch.Tensor]:
    """G: mixtures of two training photographs, and patches of one, with names that say which."""
    assert isinstance(train.inputs, ImageFiles)
    random = np.random.default_rng(0)
    ids, views = [], []
    for _ in range(MIXTURES):
        one, other = random.choice(len(train), 2, replace=False).tolist()
        share = random.uniform(*SHARE)
        first, second = (encoder.preprocessing.of_file(train.inputs.file(row)) for row in (one, other))
        views.append(share * first + (1 - share) * second)  # type: ignore[operator]
        ids.append(f"mixture/{train.ids[one]}+{train.ids[other]}")
    for row in random.choice(len(train), PATCHES, replace=False).tolist():
        pixels = np.asarray(read_pixels(str(train.inputs.file(row)), Size(RESIZE)))
        side = round(random.uniform(*SIDE) * RESIZE)
        top, left = (int(random.integers(0, length - side + 1)) for length in pixels.shape[:2])
        patch = Image.fromarray(pixels[top : top + side, left : left + side])
        enlarged = patch.resize((VIEW, VIEW), Image.Resampling.BICUBIC)
        whole = encoder.preprocessing.__class__(VIEW, VIEW, VIEW)  # nothing more is cut off
        views.append(whole.of_pixels(np.asarray(enlarged)))
        ids.append(f"patch/{train.ids[row]}")
    return ids, torch.stack(views)


def main(words: list[str] | None = None) -> int:
    """Write the file; 2 for a user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="the folder of Oxford-IIIT Pets")
    parser.add_argument("--weights", type=Path, required=True, help="of a ResNet-18")
    parser.add_argument("-o", "--output", type=Path, required=True)
    chosen = parser.parse_args(words)
    try:
        refuse_unwritable(chosen.output)
        with one_thread():
            encoder = encoder_named("resnet18", chosen.weights, view=VIEW, resize=RESIZE)
            table = made_table(task_named("cat-dog", root=chosen.root), encoder)
        table = table.replace_schema_metadata({METADATA: json.dumps(encoder.as_dict())})
        with replacing(chosen.output) as temporary:
            pyarrow.parquet.write_table(
                table,
                temporary,
                compression="zstd",
                compression_level=19,
                use_dictionary=["split", "label", "breed"],
                column_encoding={f"{EMBEDDING}.list.element": "BYTE_STREAM_SPLIT"},
            )
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{chosen.output} ({chosen.output.stat().st_size / 1e6:.2f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
