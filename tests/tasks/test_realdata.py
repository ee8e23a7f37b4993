"""The real images, where they are: SUREFOOT_DATA names the folder with the packs (*.tar.gz)."""

import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import pytest

from surefoot.lab.images.cache import decode_images
from surefoot.lab.images.decode import Size
from surefoot.lab.tasks import Split, task_named
from surefoot.lab.tasks.check import inspect
from surefoot.lab.tasks.task import decode_task

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKS = Path(os.environ.get("SUREFOOT_DATA", "no such folder"))

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(
        not (PACKS / "pets160.tar.gz").is_file(), reason="SUREFOOT_DATA names no folder with the packs"
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The packs, unpacked next to a copy of the examples, as their comments describe."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("pets160", "utkface96", "animals64", "objects96", "unlabelled"):
        with tarfile.open(PACKS / f"{name}.tar.gz") as pack:
            pack.extractall(folder / "data", filter="data")
    for example in EXAMPLES.glob("*.toml"):
        shutil.copy(example, folder)
    script = [
        sys.executable,
        EXAMPLES / "pets_manifest.py",
        folder / "data" / "Oxford_IIIT_Pets",
        folder / "data" / "pets.csv",
    ]
    subprocess.run(script, check=True, capture_output=True)
    return folder


def sizes(task):
    return [len(task.splits[split]) for split in Split]


def serious(task):
    return [finding.sentence for finding in inspect(task) if finding.serious]


def test_cat_dog_has_the_paper_s_sizes(data):
    task = task_named("cat-dog", root=data / "data")
    assert sizes(task)[:4] == [1441, 1440, 2881, 788]
    assert len(set(task.splits[Split.TEST_FAMILIAR].groups.tolist())) == 29
    assert len(set(task.splits[Split.TEST_UNFAMILIAR].groups.tolist())) == 8
    assert serious(task) == []
    lists = [data / "data" / "Oxford_IIIT_Pets" / "annotations" / f"{half}.txt" for half in ("train", "val")]
    try:
        for each in lists:
            each.rename(each.with_suffix(".away"))
        assert sizes(task_named("cat-dog", root=data / "data"))[:4] == [1441, 1440, 2881, 788]
    finally:
        for each in lists:
            each.with_suffix(".away").rename(each)


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("cat-dog-pets", [1441, 1440, 2881, 788, 1000]),
        ("gender-utkface", [3555, 1780, 3574, 2977, 1200]),
        ("animals64", [2048, 512, 800, 800, 800]),
        ("objects96", [4007, 1004, 4952, 3000, 800]),
    ],
)
def test_the_examples_work_on_the_packs(data, example, expected):
    task = task_named(str(data / f"{example}.toml"))
    assert sizes(task) == expected
    findings = inspect(task)
    assert not [finding for finding in findings if finding.serious or finding.name == "label_shares"]


def test_animals_are_balanced_and_would_be_reported_otherwise(data):
    task = task_named(str(data / "animals64.toml"))
    for split, each in ((Split.TRAIN, 512), (Split.VAL, 128), *((s, 200) for s in list(Split)[2:4])):
        assert task.class_counts(split).tolist() == [each] * 4
        mammals = task.splits[split].groups[task.splits[split].labels == 0]
        counts = Counter(mammals.tolist()).values()
        assert max(counts) - min(counts) == 1
    text = (data / "animals64.toml").read_text()
    (data / "unbalanced.toml").write_text(text.replace('balance = "label"', ""))
    (finding,) = inspect(task_named(str(data / "unbalanced.toml")))
    assert "mammal is 35.4% of train and 63.6% of test_familiar" in finding.sentence


def test_the_example_s_pets_are_the_built_in_ones(data):
    one, other = task_named("cat-dog", root=data / "data"), task_named(str(data / "cat-dog-pets.toml"))
    for split in (Split.TRAIN, Split.VAL, Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR):
        ids = {Path(path).stem for path in other.splits[split].inputs.paths}
        assert ids == set(one.splits[split].ids.tolist())
        assert one.class_counts(split).tolist() == other.class_counts(split).tolist()


def test_pets_are_decoded_in_time_and_then_at_once(data, tmp_path):
    files = [str(file) for file in sorted((data / "data" / "Oxford_IIIT_Pets" / "images").glob("*.jpg"))]
    start = time.perf_counter()
    first = decode_images(files, Size(160), cache=tmp_path)
    assert len(first) == 7390
    assert time.perf_counter() - start < 25
    start = time.perf_counter()
    second = decode_images(files, Size(160), cache=tmp_path)
    assert time.perf_counter() - start < 1
    assert second.buffer.shape == first.buffer.shape
    assert (first.heights.clip(max=first.widths) == 160).all()


def test_an_unfamiliar_face_in_training_is_found(data, tmp_path):
    """UTKFace holds some faces twice, with different ages; the example leaves them out."""
    text = (data / "gender-utkface.toml").read_text()
    (data / "as-given.toml").write_text(text.replace('repeated_pictures = "once"', ""))
    task = task_named(str(data / "as-given.toml"))
    assert any("in both train and test_unfamiliar" in sentence for sentence in serious(task))
    with pytest.raises(ValueError, match=r"unfamiliar images? also in train"):
        decode_task(task, Size(16), cache=tmp_path)
    decode_task(task_named(str(data / "gender-utkface.toml")), Size(16), cache=tmp_path)
