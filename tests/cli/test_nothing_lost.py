"""A command that exits with 2 leaves every file as it was, and no new one."""

import json
import os
import resource
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from surefoot.calibrators import fit_calibration, save_calibration
from surefoot.cli import main
from surefoot.errors import InputError
from surefoot.io import all_or_none, make_folder, new_folder, replacing
from surefoot.predictions.files import write_predictions
from tests.cli.command import surefoot
from tests.conftest import draw_one_label
from tests.deploy.made import ran


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with one of each input; a store, images and a bundle."""
    folder = tmp_path_factory.mktemp("prepared")
    made = ran(folder, methods=("single",))
    for name, seed in (("a", 1), ("b", 2)):
        write_predictions(draw_one_label(60, seed=seed), folder / f"{name}.npz")
    write_predictions(draw_one_label(60, seed=1, classes=5), folder / "five.npz")
    calibration = fit_calibration("temperature", draw_one_label(60))
    for name in ("c.json", "c.csv", "report.json"):
        save_calibration(calibration, folder / name)
    surefoot(
        "bundle", "tiny", "single", "-o", folder / "bundle", "--store", made.store.root, "--resamples", 0
    )
    surefoot("thresholds", folder / "a.npz", "--target-error", 0.9, "-o", folder / "t.json")
    for name in ("m.jsonl", "m2.jsonl"):
        surefoot("monitor", folder / "a.npz", folder / "a.npz", "--history", folder / name)
    (folder / "bad.npz").write_bytes((folder / "a.npz").read_bytes()[:-40])
    (folder / "bad.jsonl").write_text("{")
    (folder / "recipe.toml").write_text("epochs = 1\n")
    (folder / "afolder").mkdir()
    (folder / "withfolder" / "report.html").mkdir(parents=True)
    broken = folder / "broken"
    shutil.copytree(folder / "bundle", broken)
    (broken / "weights.safetensors").write_bytes(b"0" * 50)
    return folder


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch):
    """A copy of it, which is the current folder."""
    shutil.copytree(prepared, tmp_path / "f", symlinks=True)
    monkeypatch.chdir(tmp_path / "f")
    return tmp_path / "f"


def tree(folder):
    """Every path below the folder, with the content of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


IMAGE = "images/part0/000.png"
REFUSED = [
    # An output is an input.
    "apply c.csv a.npz -o c.csv",
    "apply c.json a.npz -o a.npz",
    "calibrate a.npz -o c.csv",
    "calibrate a.npz --method budget --budget surplus --reference b.npz -o b.npz",
    "thresholds a.npz --calibration c.json -o c.json",
    "thresholds a.npz --unfamiliar b.npz --html b.npz -o new.json",
    "thresholds a.npz -o same --html same",
    "monitor a.npz b.npz --thresholds t.json --history t.json",
    "monitor a.npz b.npz --history b.npz",
    "monitor a.npz b.npz --history new.jsonl -o new.jsonl",
    "evaluate a.npz --calibration report.json --report .",
    "predict bundle images -o " + IMAGE,
    f"predict bundle images --thresholds t.json -o {IMAGE}.csv/x.csv",
    "data check task.toml --resolved task.csv",
    "data check task.toml --resolved manifest.csv",
    f"data check task.toml --contact-sheet {IMAGE}",
    "data check task.toml --contact-sheet new.png --resolved new.txt",
    "tune task.toml --recipe recipe.toml -o recipe.toml",
    "tune task.toml -o task.toml",
    "tune task.toml --search recipe -o manifest.toml",
    # Another mistake, found after other outputs could have been written.
    "apply c.json a.npz -o new.json",
    "apply c.json five.npz -o no/such/new.npz",
    "calibrate bad.npz -o new.json",
    "calibrate a.npz --method nothing -o new.json",
    "calibrate a.npz -o afolder",
    "evaluate a.npz five.npz --report new",
    "evaluate bad.npz --report new/deep",
    "evaluate a.npz --report withfolder",
    "thresholds a.npz --unfamiliar five.npz -o t.json --html new.html",
    "thresholds a.npz -o t.json --html afolder",
    "thresholds a.npz -o t.json --html no/such/page.html",
    "thresholds a.npz -o t.json --target-error 7",
    "monitor a.npz b.npz --history m.jsonl -o afolder",
    "monitor a.npz b.npz --history m.jsonl -o no/such/page.html",
    "monitor a.npz five.npz --history m.jsonl -o new.html",
    "monitor a.npz b.npz --history m.jsonl -o new.html --alpha 0.01",
    "monitor b.npz a.npz --history m.jsonl -o new.html",
    "monitor a.npz bad.npz --history new.jsonl",
    "monitor a.npz b.npz --history bad.jsonl -o new.html",
    "monitor a.npz b.npz --history m.jsonl --format nothing",
    "bundle tiny nothing --store store -o new/deep",
    "bundle tiny single --store store -o bundle",
    "bundle tiny single --run 7 --store store -o new/deep/er",
    "bundle tiny single --store store --thresholds c.json -o new/deep",
    "predictions tiny single --run 7 --store store -o new/deep",
    "predictions tiny single --store store -o bundle",
    "predict bundle images -o t.json",
    "predict bundle images nowhere.png -o new.csv",
    "predict broken images -o new.csv",
    "predict bundle images --thresholds c.json -o new.csv",
    "export broken -o new.onnx",
    "export bundle -o new.txt",
    "export bundle -o no/such/new.pt2",
    "report nothing --store store",
    "report tiny --store store --method nothing",
    "report tiny --store store --set epochs=3",
    "compare tiny nothing --store store",
    "run nothing.toml --store new",
    "run quickstart --set epochs=-1 --store new",
    "run quickstart --engine nothing --store new",
    "train nothing --store new",
    "train toy --set nothing=1 --store new",
    "status --store new",
    "serve broken",
    "serve bundle --thresholds c.json",
]


@pytest.mark.parametrize("command", REFUSED)
def test_a_refused_command_leaves_all_files_as_they_were(prepared, command, monkeypatch):
    monkeypatch.chdir(prepared)
    before = tree(prepared)
    refused = surefoot(*command.split(), check=2)
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1 or "Usage:" in refused.stderr, "one sentence"
    assert tree(prepared) == before


ANY_SIZE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("command", "size"),
    [
        ("monitor a.npz b.npz --history m.jsonl -o page.html", 4000),
        ("monitor a.npz b.npz --history m.jsonl", 200),
        ("thresholds a.npz --target-error 0.9 -o t.json --html page.html", 6000),
        ("thresholds a.npz --target-error 0.9 -o t.json --html page.html", 100),
        ("evaluate a.npz b.npz --report afolder --resamples 0", 9000),
        ("apply c.json a.npz -o new.npz", 100),
        ("calibrate a.npz -o c.json", 100),
        ("predict bundle images -o new.csv", 100),
        ("predictions tiny single --store store -o new/deep", 100),
        ("bundle tiny single --store store -o new/deep --resamples 0", 3000),
        ("report tiny --store store --set resamples=0", 20000),
        ("export bundle -o new.pt2", 3000),
        ("export bundle -o new.onnx", 3000),
        ("thresholds a.npz --target-error 0.9 -o t.json --html /dev/full", ANY_SIZE),
        ("thresholds a.npz --target-error 0.9 -o /dev/full --html new.html", ANY_SIZE),
        ("monitor a.npz b.npz --history m.jsonl -o /dev/full", ANY_SIZE),
        ("data check task.toml --contact-sheet new.png --resolved full.csv", ANY_SIZE),
    ],
)
def test_a_full_disk_spends_nothing(folder, command, size):
    """The limit is on the size of a file, or one output is a full device: the others could be written."""
    (folder / "full.csv").symlink_to("/dev/full")
    before = tree(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        refused = surefoot(*command.split(), check=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot write" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert tree(folder) == before


@pytest.mark.parametrize(
    "command",
    [
        "calibrate a.npz -o new.json",
        "evaluate a.npz b.npz --report new --resamples 0",
        "thresholds a.npz --target-error 0.9 -o new.json --html new.html",
        "sets a.npz -o new.json",
        "monitor a.npz b.npz --history m.jsonl -o new.html",
        "monitor a.npz b.npz --history new.jsonl --format json",
    ],
)
def test_where_nothing_can_be_printed_nothing_is_written(folder, command, monkeypatch, capsys):
    """As with `> /dev/full`."""
    before = tree(folder)
    monkeypatch.setattr("sys.argv", ["surefoot", *command.split()])
    full = Path("/dev/full").open("w")  # noqa: SIM115 its end fails
    monkeypatch.setattr("sys.stdout", full)
    with pytest.raises(SystemExit) as ended:
        main()
    with suppress(OSError):
        full.close()
    assert ended.value.code == 2
    assert "No space left" in capsys.readouterr().err
    assert tree(folder) == before


def test_an_error_leaves_no_file_of_the_block_and_no_folder(tmp_path):
    (tmp_path / "old").write_text("old")

    def write(*names):
        with all_or_none():
            for name in names:
                make_folder((tmp_path / name).parent)
                with replacing(tmp_path / name) as temporary:
                    temporary.write_text(name)

    before = tree(tmp_path)
    (tmp_path / "late").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*late: it is a folder"):
        write("replaced", "old", "new/deep/file", "late")
    (tmp_path / "late").rmdir()
    assert tree(tmp_path) == before
    write("replaced", "old", "new/deep/file")
    texts = {name: text for name, text in tree(tmp_path).items() if text is not None}
    assert texts == {name: name.encode() for name in ("replaced", "old", "new/deep/file")}


def test_a_recorded_check_has_its_page_and_no_lock_is_left(folder):
    surefoot("monitor", "a.npz", "a.npz", "--history", "m.jsonl", "-o", "page.html")
    assert [json.loads(line)["look"] for line in (folder / "m.jsonl").read_text().splitlines()] == [1, 2]
    assert (folder / "page.html").stat().st_size > 4000
    assert not list(folder.glob(".*"))


def test_names_of_the_greatest_length_can_be_written(folder):
    for name in ("n" * 250 + ".json", "é" * 100 + ".json"):
        surefoot("calibrate", "a.npz", "-o", name)
        assert (folder / name).is_file()
    page, history = "p" * 250 + ".html", "h" * 255
    surefoot("monitor", "a.npz", "a.npz", "--history", history, "-o", page)
    assert (folder / page).is_file()
    assert (folder / history).is_file()


def test_everything_that_is_written_has_the_modes_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with new_folder(tmp_path / "new") as new, replacing(tmp_path / "file") as temporary:
            temporary.write_text("")
            (new / "deep" / "er").mkdir(parents=True)
            (new / "deep" / "er" / "file").write_text("")
            with replacing(new / "replaced") as inside:
                inside.write_text("")
        with all_or_none(), replacing(tmp_path / "file") as temporary:  # for the second time
            temporary.write_text("")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()}
    assert modes == {0o750}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()} == {0o640}
