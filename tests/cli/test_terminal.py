"""User text in the terminal is shown as text: escape sequences, line ends and Rich markup are never run."""

import os
import unicodedata

import numpy as np
import pytest

from surefoot import Predictions, write_predictions
from tests.cli.command import surefoot

NAMES = ["a\x1b[31mb", "[bold red]x[/]", "[/]", "a\nsurefoot: all is well", "\u202eabc", "\x9b31m", ":smile:"]


def predictions(name):
    rng = np.random.default_rng(0)
    return Predictions.from_logits(
        3 * rng.normal(size=(60, 3)),
        rng.integers(0, 3, 60),
        class_names=[name, "q", "r"],
        groups=[name, "k"] * 30,
        ids=[f"{name}{i}" for i in range(60)],
    )


def refuse_control(said):
    for text in (said.stdout, said.stderr):
        assert all(unicodedata.category(each) not in ("Cc", "Cf") for each in text.replace("\n", ""))
        assert "\nsurefoot: all is well" not in text


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files_groups_and_classes_are_text(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = f"{name.replace('/', '_')}.npz"
    write_predictions(predictions(name), file)
    refuse_control(surefoot("calibrate", file, "-o", f"{file}.json"))
    said = surefoot("evaluate", file, file, "--calibration", f"{file}.json", "--resamples", "20")
    refuse_control(said)
    refuse_control(surefoot("apply", f"{file}.json", file, "-o", f"again-{file}"))
    for arguments in (
        ("evaluate", f"none-{file}"),
        ("evaluate", file, "--group-by", name),
        ("evaluate", file, "--metric", name),
        ("thresholds", file, "--for-class", name),
        ("run", name),
        ("ls", "methods", name),
        ("data", "check", name),
    ):
        said = surefoot(*arguments, check=2)
        refuse_control(said)
        assert said.stderr.startswith("surefoot: ")
        assert said.stderr.count("\n") == 1


def test_a_long_name_is_one_short_sentence(tmp_path):
    for arguments in (("ls", "methods", "x" * 5000), ("evaluate", "x" * 5000), ("run", "x" * 5000)):
        assert len(surefoot(*arguments, check=2).stderr) < 1100


@pytest.mark.parametrize("special", ["pipe", "device"])
def test_a_history_that_never_ends_is_refused_at_once(special, tmp_path):
    write_predictions(predictions("a"), tmp_path / "p.npz")
    history = tmp_path / "history.jsonl"
    if special == "pipe":
        os.mkfifo(history)
    else:
        history.symlink_to("/dev/zero")
    said = surefoot("monitor", tmp_path / "p.npz", tmp_path / "p.npz", "--history", history, check=2)
    assert f"a {special}; allowed: a regular file" in said.stderr
