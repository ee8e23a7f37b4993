"""Files that need not fit in memory, from the command line."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from surefoot import load_calibration, write_predictions
from surefoot.cli.app import app
from surefoot.errors import InputError
from tests.conftest import draw_many_labels, draw_one_label

CODE = "from surefoot.cli import main; main()"
TORCHLESS = f"""
import sys
class Refuse:
    def find_spec(name, *_):
        assert name != "torch"
sys.meta_path.insert(0, Refuse)
{CODE}
"""


def surefoot(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def output_of(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def scores(text):
    return json.loads(text)["familiar"]["metrics"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name in ("familiar", "unfamiliar", "many"):
        (folder / name).mkdir()
    for seed in range(3):
        write_predictions(draw_one_label(300, sharpness=3, seed=seed), folder / f"familiar/{seed}.parquet")
        write_predictions(
            draw_one_label(200, sharpness=6, seed=9 - seed), folder / f"unfamiliar/{seed}.parquet"
        )
        write_predictions(draw_many_labels(100, 3, seed=seed), folder / f"many/{seed}.csv")
    return folder


def test_a_pattern_and_a_folder_are_streamed_and_say_the_same_as_in_memory(folder, tmp_path):
    pattern = f"{folder}/familiar/*.parquet"
    surefoot("calibrate", pattern, "-o", tmp_path / "c.json")
    surefoot("calibrate", pattern, "-o", tmp_path / "again.json", "--no-stream")
    fitted, again = (load_calibration(tmp_path / name).temperature for name in ("c.json", "again.json"))
    assert fitted == pytest.approx(again, rel=1e-6)
    options = ("--calibration", tmp_path / "c.json", "--format", "json", "--resamples", 20)
    streamed = surefoot("evaluate", pattern, folder / "unfamiliar", *options)
    assert "streamed 1,500 rows in " in streamed.stderr
    whole = surefoot("evaluate", pattern, folder / "unfamiliar", *options, "--no-stream")
    assert "streamed" not in whole.stderr
    for ours, theirs in zip(*(json.loads(done.stdout)["unfamiliar"]["metrics"].items() for done in (streamed, whole)), strict=True):  # fmt: skip
        assert ours[0] == theirs[0]
        if ours[0] not in ("ece_floor", "ece_floor_95", "debiased_l2"):
            assert ours[1]["value"] == pytest.approx(theirs[1]["value"], abs=1e-4)
    assert {"gap", "change"} <= set(json.loads(streamed.stdout))


def test_tables_and_conditions_of_what_is_streamed(folder):
    done = surefoot("evaluate", folder / "familiar", "--resamples", 20, "--error-above", 0.8)
    assert "Error above 0.8" in done.stdout
    assert "On familiar data the model is wrong" in done.stdout
    failed = CliRunner().invoke(app, ["evaluate", str(folder / "familiar"), "--fail-if", "familiar.ece>0.01"])
    assert failed.exit_code == 1


def test_one_small_file_is_streamed_where_asked(folder):
    options = ("evaluate", folder / "familiar/0.parquet", "--format", "json", "--resamples", 0)
    streamed, whole = surefoot(*options, "--stream"), surefoot(*options)
    assert "streamed 300 rows" in streamed.stderr
    assert "streamed" not in whole.stderr
    assert scores(streamed.stdout)["nll"]["value"] == pytest.approx(
        scores(whole.stdout)["nll"]["value"], rel=1e-12
    )


def test_streaming_many_labels_from_csv_needs_no_torch(folder):
    words = ("evaluate", folder / "many", "--format", "json", "--resamples", "5")
    command = [sys.executable, "-c", TORCHLESS, *map(str, words)]
    output = output_of(subprocess.run(command, capture_output=True, text=True, check=False))
    whole = surefoot("evaluate", folder / "many", "--format", "json", "--resamples", 0, "--no-stream")
    for name in ("nll", "brier", "e99"):
        assert scores(output)[name]["value"] == pytest.approx(scores(whole.stdout)[name]["value"], rel=1e-12)


def test_several_npz_are_read_whole(folder, tmp_path):
    for seed in range(3):
        write_predictions(draw_one_label(300, sharpness=3, seed=seed), tmp_path / f"{seed}.npz")
    options = ("--format", "json", "--resamples", 0)
    whole, streamed = (
        surefoot("evaluate", name, *options) for name in (f"{tmp_path}/*.npz", folder / "familiar")
    )
    assert "streamed" not in whole.stderr
    assert scores(whole.stdout)["nll"]["value"] == pytest.approx(
        scores(streamed.stdout)["nll"]["value"], rel=1e-12
    )


REFUSED = {
    "groups": (["evaluate", "familiar", "--group-by", "site"], "--group-by needs all rows in memory"),
    "a report": (["evaluate", "familiar", "--report", "r"], "--report needs all rows in memory"),
    "Ray in memory": (["evaluate", "familiar", "--engine", "ray", "--no-stream"], "--engine ray streams"),
    "another method": (["calibrate", "familiar", "-o", "x.json", "--method", "budget"], "'budget' cannot be streamed"),
    "no match": (["evaluate", "none*.parquet"], "no file matches this pattern"),
    "over the input": (["calibrate", "familiar", "-o", "familiar/0.parquet"], "is a file name for predictions"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_streamed_is_one_sentence(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    arguments, output = REFUSED[name]
    with pytest.raises(InputError, match=output):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


ADDRESSES = {
    "127.0.0.1:1": "no Ray cluster at '127.0.0.1:1': Connection refused",
    f"{'h' * 70}:1": "no Ray cluster at 'hhh",
    "there": "allowed: HOST:PORT as printed by 'ray start --head', ray://HOST:PORT, or auto",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_without_a_cluster_is_one_sentence(address, folder, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=ADDRESSES[address]):
        CliRunner().invoke(
            app, ["evaluate", str(folder / "familiar"), "--engine", "ray"], catch_exceptions=False
        )
