"""Small data sets on disk: a user's table, and each of the published layouts, with real files throughout."""

import csv
import json

import h5py
import numpy as np
from PIL import Image
from scipy.io import savemat

from surefoot.lab.tasks.objects import COCO_NAMES


def picture(path, seed=None):
    """A small picture of noise, a different one for every path unless a seed is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([*str(path).encode()] if seed is None else seed)
    Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((48, 36)).save(path, quality=90)
    return path


def table(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def description(folder, text):
    (folder / "images").mkdir(parents=True, exist_ok=True)
    file = folder / "task.toml"
    file.write_text(text, encoding="utf-8")
    return file


FACES = """
[task]
name = "faces"
manifest = "manifest.csv"
images = "images"
label = "gender"
groups = "person"
[familiar]
age = { at_least = 18, below = 60 }
[splits]
val = 0.2
test = 0.4
"""


def faces(folder, count=60, text=FACES, pictures=True, of_a_person=2):
    """Faces: of every five, one is a child and one is old; every two (`of_a_person`) are of one person."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(count):
        age = (10, 30, 40, 50, 70)[i % 5]
        rows.append((f"{i:03d}.jpg", "fm"[i // 3 % 2], age, f"p{i // of_a_person}"))
        if pictures:
            picture(folder / "images" / f"{i:03d}.jpg")
    table(folder / "manifest.csv", ("path", "gender", "age", "person"), rows)
    return description(folder, text)


def pets_tree(root, halves=True):
    """Two pictures of each of 37 breeds, one for trainval and one for test; two for the first dog breeds."""
    lines = {"trainval": ["# a remark"], "test": []}
    breeds = [(1, breed) for breed in range(1, 13)] + [(2, breed) for breed in range(1, 26)]
    for number, (species, breed) in enumerate(breeds, start=1):
        name = f"{'Cat' if species == 1 else 'dog'}_{breed}"
        for split, copies in (("trainval", 2), ("test", 1)):
            for copy in range(copies):
                lines[split].append(f"{name}_{split}{copy} {number} {species} {breed}")
    if halves:
        lines["train"], lines["val"] = lines["trainval"][1::2], lines["trainval"][2::2]
    home = root / "Oxford_IIIT_Pets"
    (home / "annotations").mkdir(parents=True)
    for split, listed in lines.items():
        (home / "annotations" / f"{split}.txt").write_text("\n".join(listed) + "\n")
        for line in listed:
            if not line.startswith("#"):
                (home / "images").mkdir(exist_ok=True)
                (home / "images" / f"{line.split()[0]}.jpg").touch()
    return root


def lfw_tree(root, folds, attributes=("age", "gender", "race")):
    """`lfw+_labels.mat` as MATLAB 7.3 writes it: cells are references, text is numbers, rows are columns."""
    home = root / "LFW+_Release"
    (home / "lfw+_jpg24").mkdir(parents=True)
    with h5py.File(home / "lfw+_labels.mat", "w") as file:
        cells = file.create_group("#refs#")

        def cell(values):
            name = f"c{len(cells)}"
            return cells.create_dataset(name, data=values).ref

        def text(words):
            return cell(np.array([[ord(c)] for c in words], dtype=np.uint16))

        def references(targets):
            return np.array([[each] for each in targets], dtype=h5py.ref_dtype)

        file["AttrName"] = references([text(name) for name in attributes])
        names, labels = [], []
        for fold in folds:
            names.append(cell(references([text(name) for name, *_ in fold]).T))
            labels.append(cell(np.array([values for _, *values in fold], dtype=np.float64).T))
        file["image_list_5fold"], file["label"] = references(names), references(labels)
    return root


# A small forest with the devkit's numbers: an internal node each, leaves of their own, one leaf reached twice.
NODES = {
    1204: ("n1204", [1, 2, 1205]),
    1205: ("n1205", [2, 3]),
    1274: ("n1274", [10, 11]),
    1322: ("n1322", [20]),
    1358: ("n1358", [21, 22]),
    1365: ("n1365", [31, 30]),
} | {leaf: (f"w{99 - leaf:02d}", []) for leaf in (1, 2, 3, 10, 11, 20, 21, 22, 30, 31)}


def imagenet_tree(root, per_leaf=10):
    """The devkit's `meta.mat`, a folder of training images per leaf, and validation images with a list."""
    home = root / "ILSVRC2012"
    data = home / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    fields = [
        ("ILSVRC2012_ID", object),
        ("WNID", object),
        ("words", object),
        ("num_children", object),
        ("children", object),
    ]
    synsets = np.zeros((len(NODES), 1), dtype=fields)
    for row, (number, (wnid, children)) in enumerate(NODES.items()):
        synsets[row, 0] = (
            float(number),
            wnid,
            f"the {wnid}",
            float(len(children)),
            np.array([children], dtype=float),
        )
    savemat(data / "meta.mat", {"synsets": synsets})
    leaves = [(number, wnid) for number, (wnid, children) in NODES.items() if not children]
    truth = []
    (home / "ILSVRC2012_img_val").mkdir()
    for number, wnid in leaves:
        folder = home / "ILSVRC2012_img_train" / wnid
        folder.mkdir(parents=True)
        for index in range(per_leaf):
            (folder / f"{wnid}_{index}.JPEG").touch()
            truth.append(number)
            (home / "ILSVRC2012_img_val" / f"ILSVRC2012_val_{len(truth):08d}.JPEG").touch()
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(map(str, truth)) + "\n")
    return root


def voc_tree(root, train, val):
    """VOC's lists and XML; each picture is (name, [(object, difficult), ...])."""
    home = root / "VOCdevkit" / "VOC2012"
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (home / folder).mkdir(parents=True)
    for split, pictures in (("train", train), ("val", val)):
        (home / "ImageSets" / "Main" / f"{split}.txt").write_text(
            "".join(f"{name}\n" for name, _ in pictures)
        )
        for name, things in pictures:
            objects = "".join(
                f"<object><name>{thing}</name><difficult>{int(hard)}</difficult><part><name>head</name></part></object>"
                for thing, hard in things
            )
            (home / "Annotations" / f"{name}.xml").write_text(f"<annotation>{objects}</annotation>")
            (home / "JPEGImages" / f"{name}.jpg").touch()
    return root


def coco_tree(root, pictures):
    """COCO's instances; each picture is (number, [(category, area), ...])."""
    categories = [*COCO_NAMES.values(), "zebra"]
    numbers = {name: 2 * place + 1 for place, name in enumerate(categories)}
    home = root / "MSCOCO"
    (home / "annotations").mkdir(parents=True)
    (home / "val2014").mkdir()
    document = {
        "categories": [{"id": number, "name": name} for name, number in numbers.items()],
        "images": [{"id": number, "file_name": f"COCO_val2014_{number:012d}.jpg"} for number, _ in pictures],
        "annotations": [
            {"image_id": number, "category_id": numbers[name], "area": area}
            for number, things in pictures
            for name, area in things
        ],
    }
    (home / "annotations" / "instances_val2014.json").write_text(json.dumps(document))
    for number, _ in pictures:
        (home / "val2014" / f"COCO_val2014_{number:012d}.jpg").touch()
    return root
