"""The built-in photographs: the authors' split, and what the package may hold of them."""

import io

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from surefoot.lab.tasks import Split, task_named
from surefoot.lab.tasks.pets import FILE


@pytest.fixture(scope="module")
def pets():
    return task_named("pets")


def test_it_is_the_authors_split_by_breed(pets):
    counts = {str(split): len(samples) for split, samples in pets.splits.items()}
    tested = {"test_familiar": 2881, "test_unfamiliar": 788}
    assert counts == {"train": 1441, "val": 1440, **tested, "unlabelled": 720}
    breeds = {split: set(samples.groups.tolist()) for split, samples in pets.splits.items()}
    assert breeds[Split.TRAIN] == breeds[Split.VAL] == breeds[Split.TEST_FAMILIAR]
    assert (len(breeds[Split.TRAIN]), len(breeds[Split.TEST_UNFAMILIAR])) == (29, 8)
    assert not breeds[Split.TRAIN] & breeds[Split.TEST_UNFAMILIAR]
    for split in (Split.TRAIN, Split.TEST_UNFAMILIAR):
        samples = pets.splits[split]
        named = [name.rpartition("_")[0] for name in samples.ids.tolist()]
        assert named == samples.groups.tolist()
        # The data set writes the names of cats with a capital letter.
        assert [name[0].isupper() for name in named] == (samples.labels == 1).tolist()


def test_the_vectors_are_distinct_features(pets):
    every = np.concatenate([samples.inputs for samples in pets.splits.values()])
    assert every.dtype == np.float32
    assert every.shape == (7270, 512)
    assert every.min() >= 0  # means of a rectified layer
    familiar = np.concatenate([pets.splits[s].inputs for s in Split if s is not Split.TEST_UNFAMILIAR])
    rows = {row.tobytes() for row in familiar}
    assert not rows & {row.tobytes() for row in pets.splits[Split.TEST_UNFAMILIAR].inputs}


def test_the_unlabelled_are_made_of_training_photographs(pets):
    train = set(pets.splits[Split.TRAIN].ids.tolist())
    for name in pets.splits[Split.UNLABELLED].ids.tolist():
        kind, parts = name.removeprefix("unlabelled/").split("/")
        assert kind in ("mixture", "patch")
        assert set(parts.split("+")) <= train


def test_test_photographs_have_thumbnails(pets):
    for split, samples in pets.splits.items():
        assert (samples.pictures is not None) == split.startswith("test")
    for picture in pets.splits[Split.TEST_UNFAMILIAR].take([0, 787]).pictures:
        with Image.open(io.BytesIO(picture)) as image:
            assert (image.format, image.size) == ("WEBP", (48, 48))
            assert np.asarray(image).std() > 10


def test_the_file_is_small_and_says_what_it_is():
    assert FILE.stat().st_size < 8_000_000
    assert b'"weights": "780341b01e2746bb"' in pq.read_schema(FILE).metadata[b"surefoot"]
    terms = (FILE.parent / "README.md").read_text()
    assert "Parkhi" in terms
    assert "CC BY-SA 4.0" in terms
    assert "Attribution-ShareAlike 4.0 International" in (FILE.parent / "LICENSE.txt").read_text()
