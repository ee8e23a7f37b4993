"""What `surefoot data check` finds, and what it does not."""

import time
from math import comb

import numpy as np
import pytest
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from surefoot import IGNORE, InputError, LabelKind
from surefoot.lab.images.decode import Size
from surefoot.lab.tasks.alike import NEAR, difference_hash, linked, near_pairs
from surefoot.lab.tasks.check import attribute_counts, inspect, label_counts
from surefoot.lab.tasks.contact_sheet import CELL, GREY, LEFT, PER_SIDE, STEP, TOP, write_contact_sheet
from surefoot.lab.tasks.letters import load_letters
from surefoot.lab.tasks.manifest import load_task
from surefoot.lab.tasks.task import Samples, Split, Task, decode_task
from surefoot.lab.tasks.toy import load_toy
from tests.tasks.trees import FACES, description, faces, picture, table

TRAIN, VAL, FAMILIAR, UNFAMILIAR = Split.TRAIN, Split.VAL, Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR


@pytest.fixture
def task(tmp_path):
    picture(tmp_path / "g" / "g.jpg")
    return load_task(faces(tmp_path, text=FACES + '[unlabelled]\nimages = "g"\n', of_a_person=1))


def file_of(task, split, row=0):
    return task.splits[split].inputs.file(row)


def named(task, split, row=0):
    return f"{split} {task.splits[split].ids[row]}"


def test_a_sound_task_has_no_findings(task):
    ticks = []
    assert inspect(task, tick=ticks.append) == []
    assert sum(ticks) == 61


def test_unreadable_images_are_serious(task):
    file_of(task, VAL, 1).unlink()
    file_of(task, UNFAMILIAR).write_bytes(b"x")
    whole = file_of(task, TRAIN).read_bytes()
    file_of(task, TRAIN).write_bytes(whole[:-100])
    (finding,) = inspect(task)
    assert (finding.name, finding.serious) == ("unreadable", True)
    assert finding.sentence == "3 images cannot be read"
    assert finding.samples[0].startswith(f"{named(task, TRAIN)} (image file is truncated")
    assert finding.samples[1:] == (
        f"{named(task, VAL, 1)} (no such file)",
        f"{named(task, UNFAMILIAR)} (not an image)",
    )


@pytest.mark.parametrize("other", [TRAIN, VAL, FAMILIAR, Split.UNLABELLED])
def test_the_same_bytes_in_two_splits_are_a_leak(task, other):
    file_of(task, other).write_bytes(file_of(task, UNFAMILIAR, 2).read_bytes())
    (finding,) = inspect(task)
    first, second = sorted((other, UNFAMILIAR), key=list(Split).index)
    assert (finding.name, finding.serious) == ("leak", True)
    assert finding.sentence.startswith(f"1 picture in both {first} and {second}: a leak; ")
    rows = {other: 0, UNFAMILIAR: 2}
    assert finding.samples == (f"{named(task, first, rows[first])} = {named(task, second, rows[second])}",)


@pytest.mark.parametrize("other", [TRAIN, VAL, Split.UNLABELLED])
def test_decoding_refuses_an_unfamiliar_picture_in_training(task, tmp_path, other):
    decode_task(task, Size(8), cache=tmp_path / "cache")
    file_of(task, other).write_bytes(file_of(task, UNFAMILIAR, 2).read_bytes())
    with pytest.raises(InputError, match=f"1 unfamiliar image also in {other}"):
        decode_task(task, Size(8), cache=tmp_path / "cache")


def test_decoding_refuses_an_unreadable_picture(task, tmp_path):
    file_of(task, VAL).write_bytes(b"x")
    with pytest.raises(InputError, match=r"1 image cannot be read"):
        decode_task(task, Size(8), cache=tmp_path / "cache")


def test_a_picture_twice_in_one_split_is_a_note(task):
    file_of(task, TRAIN, 3).write_bytes(file_of(task, TRAIN, 1).read_bytes())
    (finding,) = inspect(task)
    ids = task.splits[TRAIN].ids
    assert (finding.name, finding.serious, finding.samples) == ("repeated", False, (f"{ids[1]} = {ids[3]}",))


def save_again(image, copy):
    """Smaller and brighter; for some other pictures the hash would differ."""
    with Image.open(picture(image, seed=0)) as opened:
        opened.load()
    changed = opened.resize((40, 30)).point(lambda value: min(255, int(value * 1.1) + 5))
    changed.save(copy, quality=70)


def test_a_picture_saved_again_smaller_and_brighter_is_noticed(task):
    save_again(file_of(task, FAMILIAR, 4), file_of(task, TRAIN, 2))
    (finding,) = inspect(task)
    assert (finding.name, finding.level) == ("look_alike", "warning")
    assert 'repeated_pictures in [splits] can be "alike" (use one) or "together"' in finding.sentence
    assert finding.samples == (f"{named(task, TRAIN, 2)} ~ {named(task, FAMILIAR, 4)}",)


@pytest.fixture
def alike(tmp_path, monkeypatch):
    """The file of a task whose first training image looks like one for testing; and one unlabelled, too."""
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))
    for name in ("own", "copy"):
        picture(tmp_path / "g" / f"{name}.jpg")
    file = faces(tmp_path, text=FACES + '[unlabelled]\nimages = "g"\n')
    task = load_task(file)
    of_class = {
        split: task.splits[split].inputs.paths[int(np.argmax(task.splits[split].labels))]
        for split in (TRAIN, FAMILIAR)
    }
    one, other = (tmp_path / "images" / of_class[split] for split in (FAMILIAR, TRAIN))
    save_again(one, other)
    save_again(one, tmp_path / "g" / "copy.jpg")
    assert {finding.name for finding in inspect(load_task(file))} == {"look_alike", "leak", "separated"}
    return file, one.name, other.name


def with_key(file, value, *, splits=""):
    text = file.read_text().replace("[unlabelled]", f'repeated_pictures = "{value}"\n[unlabelled]')
    file.write_text(text.replace("val = 0.2\ntest = 0.4\n", splits) if splits else text)
    return load_task(file)


def used(task):
    return {path: split for split, samples in task.splits.items() for path in samples.inputs.paths}


def test_of_pictures_that_look_alike_one_is_used(alike):
    file, one, other = alike
    before = used(load_task(file))
    task = with_key(file, "alike")
    assert [each.name for each in inspect(task)] == ["separated"]
    assert before.items() - used(task).items() == {(other, TRAIN), ("copy.jpg", Split.UNLABELLED)}
    assert used(task)[one] is FAMILIAR
    assert task.remarks == (
        "2 files whose picture, or one that looks like it, occurs elsewhere too are left out",
    )
    file.write_text(file.read_text().replace('"alike"', '"once"'))
    assert used(load_task(file))[other] is TRAIN, "their bytes differ"


def test_pictures_that_look_alike_in_one_split(alike):
    """Together also with what else is kept together: the other pictures of their persons."""
    file, one, other = alike
    images, same = file.parent / "images", next(iter(used(load_task(file))))
    equal = next(name for name in used(load_task(file)) if name not in (one, other, same))
    task = with_key(file, "together")
    assert [each.name for each in inspect(task)] == ["separated"]
    assert used(task)[one] is used(task)[other]
    assert len(used(task)) == 61
    (images / equal).write_bytes((images / same).read_bytes())
    assert len(used(load_task(file)).keys() & {equal, same}) < 2, "equal files are used once"
    picture(images / equal)
    assert task.remarks[0] == "2 pictures look like another one, and each is in the split of the other"
    file.write_text(file.read_text().replace("[unlabelled]", 'keep_together = "person"\n[unlabelled]'))
    split_of = used(load_task(file))
    partners = {f"{int(name[:3]) ^ 1:03d}.jpg" for name in (one, other)}
    sides = {split_of[name] for name in {one, other} | partners} - {UNFAMILIAR}
    assert len(sides) == 1


def test_a_column_that_separates_pictures_that_look_alike_is_refused(alike):
    file, one, other = alike
    where = used(load_task(file))
    manifest = file.with_name("manifest.csv")
    header, *lines = manifest.read_text().split()
    names = {TRAIN: "train", VAL: "val"}
    rows = [f"{line},{names.get(where[line.split(',')[0]], 'test')}" for line in lines]
    manifest.write_text("\n".join([f"{header},part", *rows]))
    with pytest.raises(
        InputError, match=f"({one}|{other}) in .* looks like ({one}|{other}) in .*, or use 'alike'"
    ):
        with_key(file, "together", splits='column = "part"\n')


def test_links_are_those_of_scipy():
    random = np.random.default_rng(0)
    for _ in range(20):
        count = int(random.integers(1, 40))
        links = random.integers(0, count, (int(random.integers(0, count)), 2))
        graph = coo_array((np.ones(len(links)), links.T), shape=(count, count))
        labels = connected_components(graph, directed=False)[1]
        assert linked(count, links.tolist()) == [int(np.argmax(labels == label)) for label in labels]


def test_flat_pictures_are_not_all_alike(task):
    for row in range(3):
        Image.new("RGB", (48, 36), (row, 9, 9)).save(file_of(task, TRAIN, row).with_suffix(".png"))
        file_of(task, TRAIN, row).with_suffix(".png").rename(file_of(task, TRAIN, row))
        Image.new("RGB", (48, 36), (90, row, 9)).save(file_of(task, VAL, row).with_suffix(".png"))
        file_of(task, VAL, row).with_suffix(".png").rename(file_of(task, VAL, row))
    assert inspect(task) == []


def test_no_unfamiliar_sample_is_said(tmp_path):
    task = load_task(faces(tmp_path, text=FACES.replace("at_least = 18, below = 60", "at_least = 0")))
    findings = {finding.name: finding for finding in inspect(task)}
    assert findings["no_unfamiliar"].serious
    assert "hold for all of them" in findings["no_unfamiliar"].sentence
    assert not findings["no_unlabelled"].serious


PERSONS = {
    "patient": ([i % 30 for i in range(120)], " of its 30 values are in several splits"),
    "userId": ([i // 2 for i in range(120)], "of its 60 values"),
    "person": ([f"p{i % 3}" for i in range(119)] + [""], "3 of its 3 values"),
    "source": ([f"site {i % 20}" for i in range(120)], "of its 20 values"),
    "nr": ([f"A-{i % 40}" for i in range(120)], "of its 40 values"),
}
ORDINARY = {
    "age": [20 + i % 37 for i in range(120)],
    "year": [1990 + i % 30 for i in range(120)],
    "patient_age": [20 + i % 37 for i in range(120)],
    "patients": [i % 17 for i in range(120)],
    "site": ["abcde"[i % 5] for i in range(120)],
    "city": ["city of " + "abcdefghijklmnopqrst"[i % 20] for i in range(120)],
    "day": [f"{i % 28 + 1:02d}-05-1994" for i in range(120)],
    "income": [1000.5 + i % 40 for i in range(120)],
    "visit_id": list(range(120)),
}


def with_columns(folder, columns, text=FACES):
    own = {"path": [f"{i}.jpg" for i in range(120)], "gender": ["fm"[i % 2] for i in range(120)]}
    own |= {"age": [10 if i % 10 == 0 else 30 for i in range(120)], "person": [str(i) for i in range(120)]}
    own |= columns
    table(folder / "manifest.csv", tuple(own), zip(*own.values(), strict=True))
    return load_task(description(folder, text))


@pytest.mark.parametrize("name", PERSONS)
def test_persons_in_several_splits_are_noticed(name, tmp_path):
    values, sentence = PERSONS[name]
    (finding,) = separated(with_columns(tmp_path, {name: values}))
    assert finding.level == "warning"
    assert finding.sentence.startswith(f"column {name!r} looks like an identifier")
    assert sentence in finding.sentence
    assert f'keep_together = "{name}" in [splits]' in finding.sentence
    assert " in train and " in " ".join(finding.samples)
    if len(set(values)) > 4:
        kept = FACES.replace("[splits]", f'[splits]\nkeep_together = "{name}"')
        assert not separated(with_columns(tmp_path, {name: values}, kept))


def test_ordinary_columns_are_no_persons(tmp_path):
    assert not separated(with_columns(tmp_path, ORDINARY))


def separated(task):
    return [each for each in inspect(task) if each.name == "separated"]


def test_labels_on_one_side_only_are_said(tmp_path):
    rows = [(f"{i}.jpg", "abc"[i % 3], 30, "p") for i in range(30)] + [
        (f"u{i}.jpg", "ab"[i % 2], 70, "p") for i in range(4)
    ]
    for path, *_ in rows:
        picture(tmp_path / "images" / path)
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    findings = [
        finding
        for finding in inspect(load_task(description(tmp_path, FACES)))
        if finding.name == "one_sided_label"
    ]
    assert [(f.sentence, f.samples, f.serious) for f in findings] == [
        ("1 label never seen in test_unfamiliar", ("c",), False)
    ]


def task_of(kind, names, train, test):
    """A task in memory with these labels."""
    splits = {}
    for split, labels in ((TRAIN, train), (FAMILIAR, test), (VAL, test), (UNFAMILIAR, test)):
        numbers = np.arange(len(labels)) + 10_000 * list(Split).index(split)
        ids = np.asarray([f"{n}" for n in numbers])
        splits[split] = Samples(ids, np.asarray(labels), numbers[:, None].astype(np.float64))
    return Task("t", kind, names, splits)


def different_shares(task):
    return [finding for finding in inspect(task) if finding.name == "label_shares"]


def one_label(train, test):
    names = ("a", "b", "c")[: len(train)]
    labels = [np.repeat(np.arange(len(names)), counts) for counts in (train, test)]
    return different_shares(task_of(LabelKind.ONE_LABEL, names, *labels))


def test_different_label_shares_are_a_note():
    (finding,) = one_label([300, 600, 100], [550, 320, 130])
    assert not finding.serious
    assert finding.sentence == (
        "label shares of train and test_familiar differ: b is 60.0% of train and 32.0% of test_familiar; "
        'balance = "label" in [splits] makes them equal'
    )
    assert finding.samples == ("a is 30.0% of train and 55.0% of test_familiar",)


def test_small_or_insignificant_differences_of_label_shares_are_not_reported():
    assert one_label([5_400, 4_600], [5_000, 5_000]) == []  # 4 points
    assert one_label([5, 15], [10, 10]) == []  # 25 points of 20 samples


@pytest.mark.parametrize("count", range(20, 40))
def test_label_shares_are_compared_by_the_exact_test(count):
    """Of 100 in total, `count` of 50 in train are a, and 16 of 50 in test: p by enumeration of all tables."""
    total = count + 16
    ways = {a: comb(50, a) * comb(50, total - a) for a in range(max(0, total - 50), min(50, total) + 1)}
    p = sum(each for each in ways.values() if each <= ways[count]) / comb(100, total)
    assert bool(one_label([count, 50 - count], [16, 34])) == (p < 0.001 / 2)


def test_label_shares_of_many_labels_leave_out_ignored_ones():
    train = [[1, 0]] * 100 + [[0, 1]] * 200
    test = [[1, 0]] * 200 + [[0, 1]] * 100
    (finding,) = different_shares(task_of(LabelKind.MANY_LABELS, ("a", "b"), train, test))
    assert "a is 33.3% of train and 66.7% of test_familiar; val and test as shares" in finding.sentence
    assert finding.samples == ("b is 66.7% of train and 33.3% of test_familiar",)
    train = [[1, 0]] * 100 + [[IGNORE, 1]] * 200
    test = [[1, 0]] * 200 + [[IGNORE, 1]] * 100
    (finding,) = different_shares(task_of(LabelKind.MANY_LABELS, ("a", "b"), train, test))
    assert "differ: b is 66.7% of train" in finding.sentence
    assert finding.samples == ()


def test_serious_findings_come_first(task):
    file_of(task, TRAIN, 3).write_bytes(file_of(task, TRAIN, 1).read_bytes())
    file_of(task, VAL).unlink()
    assert [finding.serious for finding in inspect(task)] == [True, False]


def test_tasks_in_memory_are_inspected_too():
    assert inspect(load_toy("spiral")) == []


def test_hashes_are_near_only_for_what_is_near():
    rng = np.random.default_rng(0)
    looks = rng.integers(0, 2**64, 400, dtype=np.uint64)
    for row in range(100):
        flips = sum(1 << int(bit) for bit in rng.choice(64, size=row % 6, replace=False))
        looks[row + 100] = looks[row] ^ np.uint64(flips)
    sides = np.asarray([0] * 100 + [1] * 300)
    expected = [
        (i, j)
        for i in range(400)
        for j in range(400)
        if sides[i] < sides[j] and bin(int(looks[i]) ^ int(looks[j])).count("1") <= NEAR
    ]
    assert near_pairs(looks, sides) == sorted(expected)
    assert len(expected) >= 60


def test_a_hundred_thousand_hashes_in_seconds():
    rng = np.random.default_rng(0)
    looks = rng.integers(0, 2**64, 100_000, dtype=np.uint64)
    looks[:500] = looks[0]  # many of one look do not make it slow
    start = time.perf_counter()
    pairs = near_pairs(looks, np.asarray([0, 1] * 50_000))
    assert time.perf_counter() - start < 20
    assert len(pairs) >= 250 * 250


def test_a_difference_hash_by_hand():
    ramp = np.repeat(np.linspace(255, 0, 48)[None, :, None], 48, axis=0).repeat(3, axis=2).astype(np.uint8)
    assert difference_hash(ramp) == 2**64 - 1
    assert difference_hash(ramp[:, ::-1]) == 0
    assert difference_hash(ramp * 0) is None


def test_counts(task):
    header, rows = label_counts(task)
    assert header == ("label", "train", "val", "test_familiar", "test_unfamiliar", "unlabelled")
    assert rows[-1] == ("samples", "14", "8", "14", "24", "1")
    assert [sum(int(row[i]) for row in rows[:-1]) for i in (1, 2, 3, 4, 5)] == [14, 8, 14, 24, 0]
    counted = attribute_counts(task)
    assert list(counted) == ["age"]
    assert counted["age"][1][-1] == ("70", "0", "0", "0", "12")


def test_a_column_of_texts_is_not_counted(tmp_path):
    rows = [(f"{i}.jpg", "ab"[i % 2], 20 + i, f"text {i}") for i in range(60)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    assert list(attribute_counts(load_task(description(tmp_path, FACES)))) == ["age"]
    counted = attribute_counts(load_task(faces(tmp_path, pictures=False)))
    assert counted["person"][1][-1][0] == "(18 others)"


def test_counts_of_numbers_with_many_values(tmp_path):
    rows = [(f"{i}.jpg", "ab"[i % 2], 20 + i % 30 if i % 10 else "", "p") for i in range(60)]
    table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
    task = load_task(description(tmp_path, FACES.replace("at_least = 18", "missing = false, at_least = 25")))
    header, counted = attribute_counts(task)["age"]
    unfamiliar = header.index("test_unfamiliar")
    assert [row[0] for row in counted] == ["lowest", "median", "highest", "(missing)"]
    assert [row[unfamiliar] for row in counted] == ["21", "22.5", "24", "6"]


def size_of(path):
    with Image.open(path) as image:
        return image.size


class TestContactSheet:
    def cells(self, path):
        with Image.open(path) as image:
            sheet = np.asarray(image)
        for label in range((sheet.shape[0] - TOP) // STEP):
            for left in LEFT:
                yield [sheet[TOP + label * STEP :, left + c * STEP :][:CELL, :CELL] for c in range(PER_SIDE)]

    def test_familiar_left_unfamiliar_right_a_row_per_label(self, tmp_path):
        colours = {
            ("f", 30): (255, 0, 0),
            ("f", 70): (0, 255, 0),
            ("m", 30): (0, 0, 255),
            ("m", 70): (255, 255, 0),
        }
        rows = []
        for i in range(80):
            label, age = "fm"[i % 2], (30, 30, 70)[i % 3]
            rows.append((f"{i}.png", label, age, "p"))
            (tmp_path / "images").mkdir(exist_ok=True)
            Image.new("RGB", (30, 20 + i), colours[label, age]).save(tmp_path / "images" / f"{i}.png")
        table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
        write_contact_sheet(load_task(description(tmp_path, FACES)), tmp_path / "sheet.png")
        rows = list(self.cells(tmp_path / "sheet.png"))
        for cells, colour in zip(rows, colours.values(), strict=True):
            assert all((cell == colour).all() for cell in cells)

    def test_unreadable_ones_are_passed_over_and_too_few_leave_grey(self, tmp_path, task):
        for row in range(len(task.splits[UNFAMILIAR]) - 3):
            file_of(task, UNFAMILIAR, row).write_bytes(b"x")
        write_contact_sheet(task, tmp_path / "sheet.png")
        cells = list(self.cells(tmp_path / "sheet.png"))
        blank = sum((cell == GREY).all() for row in cells for cell in row)
        assert blank == 2 * PER_SIDE - 3

    def test_anybody_s_text_is_drawn_as_it_is(self, tmp_path):
        names = ["$\\frac{", "\x1b[31m\n\u202e", "w" * 500, "猫"]
        rows = [(f"{i}.jpg", names[i % 4], (30, 30, 30, 30, 70)[i % 5], "p") for i in range(60)]
        for path, *_ in rows:
            picture(tmp_path / "images" / path)
        table(tmp_path / "manifest.csv", ("path", "gender", "age", "person"), rows)
        write_contact_sheet(load_task(description(tmp_path, FACES)), tmp_path / "sheet.png")
        assert size_of(tmp_path / "sheet.png") == (LEFT[1] + PER_SIDE * STEP + 16, TOP + 4 * STEP + 16)

    def test_built_in_tasks_have_one_too(self, tmp_path):
        write_contact_sheet(load_letters(per_glyph=dict.fromkeys(Split, 1)), tmp_path / "letters.png")
        assert size_of(tmp_path / "letters.png")[1] == TOP + 26 * STEP + 16
        write_contact_sheet(load_toy("checkers"), tmp_path / "toy.png")
        assert size_of(tmp_path / "toy.png") == (1000, 500)

    def test_the_same_every_time(self, tmp_path, task):
        for name in ("a.png", "b.png"):
            write_contact_sheet(task, tmp_path / name)
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()

    def test_only_png(self, tmp_path, task):
        with pytest.raises(InputError, match=r"unknown file type '.pdf'; have: .png"):
            write_contact_sheet(task, tmp_path / "sheet.pdf")
