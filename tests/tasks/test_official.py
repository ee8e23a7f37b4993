"""The paper's four tasks from small trees in their published layouts: the exact rules."""

import random

import numpy as np
import pytest

from surefoot import IGNORE, InputError, LabelKind
from surefoot.lab.tasks.animals import load_animals, read_synsets, subclasses
from surefoot.lab.tasks.cat_dog import load_cat_dog
from surefoot.lab.tasks.gender import load_gender
from surefoot.lab.tasks.objects import CLASS_NAMES, load_objects
from surefoot.lab.tasks.task import Split, shuffled
from tests.tasks.trees import coco_tree, imagenet_tree, lfw_tree, pets_tree, picture, voc_tree

TRAIN, VAL, FAMILIAR, UNFAMILIAR = Split.TRAIN, Split.VAL, Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR


def ids(task, split):
    return sorted(task.splits[split].ids.tolist())


FOLDS = [
    [
        (f"a{fold}.jpg", 18, 0, 1),
        (f"b{fold}.jpg", 59, 1, 1),
        (f"c{fold}.jpg", 17, 1, 2),
        (f"d{fold}.jpg", 60, 0, 1),
    ]
    for fold in range(1, 6)
]


class TestGender:
    def test_folds_and_ages(self, tmp_path):
        task = load_gender(lfw_tree(tmp_path, FOLDS))
        assert task.class_names == ("female", "male")
        assert ids(task, TRAIN) == ["a1.jpg", "a2.jpg", "b1.jpg", "b2.jpg"]
        assert ids(task, VAL) == ["a3.jpg", "b3.jpg"]
        assert ids(task, FAMILIAR) == ["a4.jpg", "a5.jpg", "b4.jpg", "b5.jpg"]
        assert ids(task, UNFAMILIAR) == ["c4.jpg", "c5.jpg", "d4.jpg", "d5.jpg"]
        assert task.remarks == ("6 unfamiliar faces of folds 1 to 3 are left out",)
        unfamiliar = task.splits[UNFAMILIAR]
        assert dict(zip(unfamiliar.ids.tolist(), unfamiliar.labels.tolist(), strict=True)) == {
            "c4.jpg": 1,
            "d4.jpg": 0,
            "c5.jpg": 1,
            "d5.jpg": 0,
        }
        assert unfamiliar.groups.tolist() == ["10 to 19", "60 to 69"] * 2
        assert unfamiliar.attributes["age"].to_pylist() == [17, 60, 17, 60]
        assert unfamiliar.inputs.file(0) == (tmp_path / "LFW+_Release/lfw+_jpg24/c4.jpg").resolve()

    def test_columns_go_by_their_names(self, tmp_path):
        folds = [[(name, race, gender, age) for name, age, gender, race in fold] for fold in FOLDS]
        one = load_gender(lfw_tree(tmp_path / "a", FOLDS))
        other = load_gender(lfw_tree(tmp_path / "b", folds, attributes=("Race", "Gender", "Age")))
        assert one.identity == other.identity

    def test_celeba_is_unlabelled(self, tmp_path):
        picture(tmp_path / "CelebA" / "img_align_celeba" / "000001.jpg")
        task = load_gender(lfw_tree(tmp_path, FOLDS))
        assert ids(task, Split.UNLABELLED) == ["unlabelled/000001.jpg"]

    def test_what_is_not_as_published_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"no labels; needed: LFW\+_Release/lfw\+_labels.mat"):
            load_gender(tmp_path)
        with pytest.raises(InputError, match=r"gender of a1.jpg is 2; allowed: 0 and 1"):
            load_gender(lfw_tree(tmp_path / "a", [[(n, a, 2, r) for n, a, _, r in fold] for fold in FOLDS]))
        unknown = [[(n, float("nan"), g, r) for n, _, g, r in fold] for fold in FOLDS]
        with pytest.raises(InputError, match=r"age of a1.jpg is NaN; needed: a number"):
            load_gender(lfw_tree(tmp_path / "f", unknown))
        with pytest.raises(InputError, match=r"4 folds; needed: 5"):
            load_gender(lfw_tree(tmp_path / "b", FOLDS[:4]))
        with pytest.raises(InputError, match=r"labels.mat: not as published \(KeyError: 'age'\)"):
            load_gender(lfw_tree(tmp_path / "c", FOLDS, attributes=("years", "gender", "race")))
        lfw_tree(tmp_path / "d", FOLDS)
        (tmp_path / "d/LFW+_Release/lfw+_labels.mat").write_bytes(b"no HDF5")
        with pytest.raises(InputError, match=r"labels.mat: not as published"):
            load_gender(tmp_path / "d")
        with pytest.raises(InputError, match=r"leaves the image root"):
            load_gender(
                lfw_tree(tmp_path / "e", [[(f"../{n}", a, g, r) for n, a, g, r in fold] for fold in FOLDS])
            )


class TestCatDog:
    def test_breeds_and_the_authors_halves(self, tmp_path):
        task = load_cat_dog(pets_tree(tmp_path))
        assert task.class_names == ("dog", "cat")
        sizes = {split.value: len(samples) for split, samples in task.splits.items()}
        assert sizes == {"train": 29, "val": 29, "test_familiar": 29, "test_unfamiliar": 8}
        assert set(task.splits[UNFAMILIAR].groups.tolist()) == {
            "Cat_10", "Cat_11", "Cat_12", "dog_21", "dog_22", "dog_23", "dog_24", "dog_25",
        }  # fmt: skip
        for samples in task.splits.values():
            assert samples.labels.tolist() == [int(name.startswith("Cat")) for name in samples.ids.tolist()]
        assert all(name.endswith("trainval0") for name in ids(task, TRAIN))
        assert all(name.endswith("trainval1") for name in ids(task, VAL))
        assert task.remarks == ("16 trainval images of unfamiliar breeds are left out",)

    def test_without_them_a_fixed_stratified_half(self, tmp_path):
        task = load_cat_dog(pets_tree(tmp_path, halves=False))
        assert task.class_counts(TRAIN).tolist() == task.class_counts(VAL).tolist() == [20, 9]
        assert not set(ids(task, TRAIN)) & set(ids(task, VAL))
        assert task.identity == load_cat_dog(tmp_path).identity

    def test_bad_lists_are_refused(self, tmp_path):
        lists = pets_tree(tmp_path) / "Oxford_IIIT_Pets" / "annotations"
        (lists / "test.txt").write_text("x 1 3 1\n")
        with pytest.raises(InputError, match=r"species 3 in line 1; allowed: 1 and 2"):
            load_cat_dog(tmp_path)
        (lists / "test.txt").write_text("x 1 1\n")
        with pytest.raises(InputError, match=r"test.txt: not as published"):
            load_cat_dog(tmp_path)
        (lists / "test.txt").write_text("Cat_1_trainval0 1 1 1\n")
        with pytest.raises(InputError, match=r"'Cat_1_trainval0' is in both train and test_familiar"):
            load_cat_dog(tmp_path)


class TestAnimals:
    def test_leaves_are_walked_and_sorted_by_number(self, tmp_path):
        synsets = read_synsets(imagenet_tree(tmp_path) / "ILSVRC2012/ILSVRC2012_devkit_t12/data/meta.mat")
        numbers = {
            name: [leaf.number for leaf in subclasses(synsets, name)]
            for name in ("mammal", "bird", "herptile", "fish")
        }
        assert numbers == {"mammal": [1, 2, 3], "bird": [10, 11], "herptile": [20, 21, 22], "fish": [30, 31]}

    def test_first_half_rounded_up_is_familiar_and_draws_are_even(self, tmp_path):
        task = load_animals(imagenet_tree(tmp_path))
        assert task.class_names == ("mammal", "bird", "herptile", "fish")
        sizes = {split: task.class_counts(split).tolist() for split in task.splits}
        assert sizes == {TRAIN: [8] * 4, VAL: [2] * 4, FAMILIAR: [10] * 4, UNFAMILIAR: [10] * 4}
        wnids = {split: set(samples.groups.tolist()) for split, samples in task.splits.items()}
        number = {f"w{99 - leaf:02d}": leaf for leaf in range(100)}
        assert {number[w] for w in wnids[FAMILIAR]} == {1, 2, 10, 20, 21, 30}
        assert {number[w] for w in wnids[UNFAMILIAR]} == {3, 11, 22, 31}
        assert wnids[TRAIN] | wnids[VAL] == wnids[FAMILIAR]

    def test_the_draw_is_the_authors(self, tmp_path):
        """Their loop, step by step: superclass after superclass from one generator of seed 1234, then again."""
        task = load_animals(imagenet_tree(tmp_path))
        wnid = {leaf: f"w{99 - leaf:02d}" for leaf in range(100)}
        generator, drawn = random.Random(1234), []
        for leaves in ((1, 2), (10,), (20, 21), (30,)):
            files = [f"{w}/{w}_{i}.JPEG" for w in sorted(wnid[leaf] for leaf in leaves) for i in range(10)]
            drawn.append(shuffled(files, generator)[:10])
        generator, train = random.Random(1234), []
        for files in drawn:
            train += shuffled(files, generator)[:8]
        assert task.splits[TRAIN].inputs.paths == tuple(train)

    def test_validation_labels_follow_the_names(self, tmp_path):
        task = load_animals(imagenet_tree(tmp_path))
        lines = (
            (tmp_path / "ILSVRC2012/ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt")
            .read_text()
            .split()
        )
        for split in (FAMILIAR, UNFAMILIAR):
            samples = task.splits[split]
            for path, wnid in zip(samples.inputs.paths, samples.groups.tolist(), strict=True):
                assert wnid == f"w{99 - int(lines[int(path[-13:-5]) - 1]):02d}"

    def test_what_is_missing_is_said(self, tmp_path):
        imagenet_tree(tmp_path)
        (tmp_path / "ILSVRC2012/ILSVRC2012_img_val/ILSVRC2012_val_00000001.JPEG").unlink()
        with pytest.raises(InputError, match=r"99 images for the 100 labels"):
            load_animals(tmp_path)
        meta = tmp_path / "ILSVRC2012/ILSVRC2012_devkit_t12/data/meta.mat"
        meta.write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
        with pytest.raises(InputError, match=r"meta.mat: not as published"):
            load_animals(tmp_path)
        meta.unlink()
        with pytest.raises(
            InputError, match=r"no hierarchy; needed: ILSVRC2012/ILSVRC2012_devkit_t12/data/meta.mat"
        ):
            load_animals(tmp_path)


EVERY = [(name, False) for name in CLASS_NAMES]


class TestObjects:
    @pytest.fixture
    def root(self, tmp_path):
        train = [(f"t{i}", EVERY) for i in range(9)]
        val = [
            ("v0", [("person", True)]),
            ("v1", [("person", True), ("person", False), ("tvmonitor", False)]),
            ("v2", []),
        ]
        voc_tree(tmp_path, train, val)
        return coco_tree(
            tmp_path,
            [
                (7, [("tv", 49.9), ("couch", 50), ("dining table", 4000)]),
                (
                    3,
                    [
                        ("airplane", 10),
                        ("airplane", 60),
                        ("zebra", 900),
                        ("motorcycle", 1),
                        ("potted plant", 1),
                    ],
                ),
                (5, []),
            ],
        )

    def labels(self, task, split):
        samples = task.splits[split]
        return {
            str(name): {CLASS_NAMES[i]: int(v) for i, v in enumerate(row) if v}
            for name, row in zip(samples.ids, samples.labels, strict=True)
        }

    def test_voc_is_familiar_and_difficult_alone_is_ignored(self, root):
        task = load_objects(root)
        assert task.kind is LabelKind.MANY_LABELS
        assert len(task.class_names) == 20
        assert self.labels(task, FAMILIAR) == {
            "voc/v0": {"person": IGNORE},
            "voc/v1": {"person": 1, "tvmonitor": 1},
            "voc/v2": {},
        }

    def test_coco_is_unfamiliar_and_small_alone_is_ignored(self, root):
        task = load_objects(root)
        assert self.labels(task, UNFAMILIAR) == {
            "coco/COCO_val2014_000000000003.jpg": {
                "aeroplane": 1,
                "motorbike": IGNORE,
                "pottedplant": IGNORE,
            },
            "coco/COCO_val2014_000000000005.jpg": {},
            "coco/COCO_val2014_000000000007.jpg": {"tvmonitor": IGNORE, "sofa": 1, "diningtable": 1},
        }

    def test_voc_train_is_cut_by_the_authors_lot(self, root):
        task = load_objects(root)
        order = shuffled([f"voc/t{i}" for i in range(9)], random.Random(1234))
        assert task.splits[TRAIN].ids.tolist() == order[:8]  # ceil(0.8 * 9)
        assert task.splits[VAL].ids.tolist() == order[8:]

    def test_places_is_unlabelled(self, root):
        picture(root / "Places365" / "a" / "abbey" / "1.jpg")
        labels = load_objects(root).splits[Split.UNLABELLED].labels
        assert labels.shape == (1, 20)
        assert np.all(labels == IGNORE)

    def test_what_is_not_as_published_is_refused(self, root):
        annotations = root / "VOCdevkit/VOC2012/Annotations"
        (annotations / "v0.xml").write_text("<annotation><object><name>unicorn</name></object></annotation>")
        with pytest.raises(InputError, match=r"v0.xml: object 'unicorn'; allowed: aeroplane"):
            load_objects(root)
        (annotations / "v0.xml").write_text("<annotation>")
        with pytest.raises(InputError, match=r"v0.xml: not as published \(ParseError"):
            load_objects(root)
        (annotations / "v0.xml").unlink()
        with pytest.raises(InputError, match=r"v0.xml: No such file"):
            load_objects(root)
        (root / "MSCOCO/annotations/instances_val2014.json").write_text('{"images": []}')
        with pytest.raises(
            InputError, match=r"instances_val2014.json: not as published \(KeyError: 'categories'\)"
        ):
            load_objects(root)
