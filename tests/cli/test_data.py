"""`surefoot data` as people use it."""

import json

import pytest
from PIL import Image

from surefoot.lab.tasks import load_task, task_named
from surefoot.lab.tasks.task import Split
from tests.cli.command import in_a_new_process, rows_of, surefoot
from tests.tasks.trees import FACES, faces, pets_tree, picture


@pytest.fixture
def file(tmp_path):
    picture(tmp_path / "g" / "g.jpg")
    return faces(tmp_path, text=FACES + '[unlabelled]\nimages = "g"\n', of_a_person=1)


def test_check_a_sound_task(file, tmp_path):
    done = surefoot(
        "data", "check", file, "--contact-sheet", tmp_path / "sheet.png", "--resolved", tmp_path / "split.csv"
    )
    identity = load_task(file).identity
    assert "faces: samples per label" in done.stdout
    assert ["samples", "14", "8", "14", "24", "1"] in rows_of(done.stdout)
    assert f"split {identity}" in done.stdout
    assert done.stdout.rstrip().endswith("no problems")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
    assert load_task(tmp_path / "split.toml").identity == identity
    again = surefoot("data", "check", tmp_path / "split.toml")
    assert f"split {identity}" in again.stdout


def test_check_says_what_is_wrong_and_exits_with_1(file):
    task = load_task(file)
    twin, original = (
        task.splits[Split.TRAIN].inputs.file(0),
        task.splits[Split.TEST_UNFAMILIAR].inputs.file(0),
    )
    twin.write_bytes(original.read_bytes())
    done = surefoot("data", "check", file, check=1)
    assert "PROBLEM: 1 picture in both train and test_unfamiliar: a leak" in done.stdout
    assert f"{twin.name} = test_unfamiliar {original.name}" in done.stdout


def test_check_goes_on_without_unreadable_images_if_asked(file):
    load_task(file).splits[Split.VAL].inputs.file(0).unlink()
    assert "PROBLEM: 1 image cannot be read" in surefoot("data", "check", file, check=1).stdout
    done = surefoot("data", "check", file, "--skip-unreadable")
    assert "warning: 1 image cannot be read" in done.stdout
    assert done.stdout.endswith("no problems, but see the warnings\n")
    strict = surefoot("data", "check", file, "--skip-unreadable", "--strict", check=1)
    assert strict.stdout == done.stdout
    assert strict.stderr == "failed: with --strict warnings count as problems\n"


def test_strict_is_not_about_what_needs_no_remedy(tmp_path):
    done = surefoot("data", "check", faces(tmp_path, of_a_person=1), "--strict")
    assert "note: no unlabelled images: only G-distillation needs them" in done.stdout
    assert done.stdout.endswith("no problems, but see the notes\n")


def test_check_as_json(file):
    load_task(file).splits[Split.VAL].inputs.file(0).unlink()
    document = json.loads(surefoot("data", "check", file, "--format", "json", check=1).stdout)
    assert document["samples"] == {
        "train": 14,
        "val": 8,
        "test_familiar": 14,
        "test_unfamiliar": 24,
        "unlabelled": 1,
    }
    assert document["identity"] == load_task(file).identity
    assert document["classes"] == ["f", "m"]
    (finding,) = document["findings"]
    assert finding["name"] == "unreadable"
    assert finding["serious"] is True
    assert len(finding["samples"]) == 1
    assert document["counts"]["age"][0] == {
        "age": "10",
        "train": "0",
        "val": "0",
        "test_familiar": "0",
        "test_unfamiliar": "12",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "nowhere.toml"], "surefoot: cannot read nowhere.toml: No such file or directory\n"),
        (
            ["check", "dogs"],
            "surefoot: unknown task 'dogs'; have: toy, letters, pets, gender, cat-dog, animals, objects, or a .toml file\n",
        ),
        (
            ["check", "gender"],
            "surefoot: task 'gender' needs a root folder; see 'surefoot data show gender --root DIR'\n",
        ),
        (["show", "dogs"], "surefoot: unknown task 'dogs'"),
        (
            ["check", "toy", "--contact-sheet", "x.gif"],
            "surefoot: x.gif: unknown file type '.gif'; have: .png\n",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message):
    assert message in surefoot("data", *arguments, check=2).stderr


def test_a_path_that_leaves_the_root_is_refused(file, tmp_path):
    manifest = tmp_path / "manifest.csv"
    manifest.write_text(manifest.read_text().replace("004.jpg", "../../../etc/passwd"))
    done = surefoot("data", "check", file, check=2)
    assert "path '../../../etc/passwd' in row 4 leaves the image root" in done.stderr


def test_show_says_what_lies_where(tmp_path):
    done = surefoot("data", "show", "cat-dog", "--root", pets_tree(tmp_path, halves=False))
    assert "Oxford_IIIT_Pets/images" in done.stdout
    assert "MISSING" not in done.stdout
    assert "https://www.robots.ox.ac.uk/~vgg/data/pets/" in done.stdout
    assert "terms: CC BY-SA 4.0" in done.stdout
    missing = surefoot("data", "show", "animals", "--root", tmp_path, check=1)
    assert missing.stdout.count("MISSING") == 4
    assert "required" in surefoot("data", "show", "objects").stdout
    assert "toy/wave, toy/rings, toy/spiral, toy/checkers" in surefoot("data", "show", "toy").stdout


def test_names_cannot_write_to_the_terminal_what_they_like(file, tmp_path):
    manifest = tmp_path / "manifest.csv"
    manifest.write_text(manifest.read_text().replace("004.jpg", "\x1b[31m004.jpg"))
    done = surefoot("data", "check", file, check=1)
    assert "\\x1b[31m004.jpg (no such file)" in done.stdout
    assert "\x1b[31m" not in done.stdout


def test_tasks_are_listed():
    done = surefoot("ls", "tasks")
    tasks = ["toy", "letters", "pets", "gender", "cat-dog", "animals", "objects"]
    assert sorted(row[0] for row in rows_of(done.stdout)) == sorted(tasks)


def test_a_built_in_task_by_name():
    assert f"split {task_named('toy/rings').identity}" in surefoot("data", "check", "toy/rings").stdout


def test_in_a_process_of_its_own(file):
    """No traceback and no warning."""
    done = in_a_new_process("data", "check", file)
    assert done.stderr.strip() == ""
    assert "no problems" in done.stdout
