"""What people type by mistake, and what a shell and a terminal ask of a command."""

import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from surefoot import InputError, write_predictions
from surefoot.cli import doctor
from surefoot.cli.inputs import value_of
from surefoot.lab.networks.external import user_network
from tests.cli.command import surefoot
from tests.conftest import draw_one_label

NEAR = {
    "a method": (["run", "toy", "--method", "ensembel"], "unknown method 'ensembel' (did you mean 'ensemble'?); have: "),
    "another case": (["ls", "methods", "Single_T"], "unknown method 'Single_T' (did you mean 'single-t'?); have: "),
    "a metric": (["evaluate", "p.npz", "--metric", "ecee"], "unknown metric 'ecee' (did you mean 'ece'?); have: "),
    "a side": (["evaluate", "p.npz", "--fail-if", "unfamilar.e99>1"], "unknown side 'unfamilar' (did you mean 'unfamiliar'?); have: "),
    "a task": (["data", "check", "cat-dogs"], "unknown task 'cat-dogs' (did you mean 'cat-dog'?); have: "),
    "a variant": (["data", "check", "toy/waves"], "task 'toy' has no variant 'waves' (did you mean 'wave'?); have: "),
    "a value": (["train", "toy", "--set", "epoch=3"], "unknown recipe value 'epoch' (did you mean 'epochs'?); have: "),
    "an option": (["evaluate", "p.npz", "--metrics", "nll"], "--metric"),
    "a command": (["evaluat", "p.npz"], "evaluate"),
    "a column of labels": (["evaluate", "lable.csv"], "no column 'label' (did you mean 'label' instead of 'lable'?); needed: 'label'"),
    "a column": (["evaluate", "proba.csv"], "label (did you mean 'prob_cat' instead of 'proba_cat'?); needed: exactly one of 'logits'"),
    "a group": (["evaluate", "p.npz", "--group-by", "Site"], "unknown column 'Site' (did you mean 'site'?); have: site"),
    "a task for an experiment": (["run", "toy/wave"], "'toy/wave' is a task, and an experiment is needed: an experiment's .toml file with task = 'toy/wave', or 'surefoot train toy/wave'; have: quickstart"),
    "an experiment for a task": (["train", "quickstart"], "'quickstart' is an experiment, and a task is needed; 'surefoot run quickstart' runs it; its tasks: pets"),
    "its files": (["data", "show", "quickstart"], "'quickstart' is an experiment, and a task is needed; "),
    "its data": (["data", "check", "paper"], "'paper' is an experiment, and a task is needed; "),
    "a task's file": (["run", "task.toml"], "task.toml describes a task, and an experiment is needed: an experiment's file with task = 'task.toml'"),
    "an experiment's file": (["train", "experiment.toml"], "experiment.toml: this file describes an experiment, and a task is needed; 'surefoot run' runs it"),
}  # fmt: skip


@pytest.mark.parametrize("case", NEAR)
def test_a_near_name_is_suggested(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site = {"site": ["a", "b"] * 30}
    write_predictions(draw_one_label(60, attributes=site), "p.npz")
    (tmp_path / "lable.csv").write_text("prob_cat,prob_dog,lable\n0.2,0.8,dog\n")
    (tmp_path / "proba.csv").write_text("proba_cat,proba_dog,label\n0.2,0.8,dog\n")
    (tmp_path / "task.toml").write_text('[task]\nname = "own"\n')
    (tmp_path / "experiment.toml").write_text('task = "toy"\n')
    arguments, message = NEAR[case]
    assert message in surefoot(*arguments, check=2).stderr


def test_a_percentage_is_a_number():
    assert value_of("budget=5%") == ("budget", 0.05)
    assert value_of("budget=0.7 %") == ("budget", 0.007)
    assert value_of("budget=surplus") == ("budget", "surplus")


def test_a_network_that_is_not_found_says_where_it_was_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("surefoot.registry._folders", {})
    monkeypatch.chdir(tmp_path)
    surefoot("ls", "metrics")  # any command searches the current folder
    reason = f"cannot import 'mine': No module named 'mine'; searched: {tmp_path}, Python's own path"
    with pytest.raises(InputError, match=reason):
        user_network("mine:build", 2, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("typed", "completions"),
    [
        (["evaluate", "--metric", "nl"], ["nll", "nll_unclipped", "nll_minus_entropy"]),
        (["run", "qui"], ["quickstart"]),
        (["run", "sub/"], ["sub/own.toml"]),
        (["eval"], ["evaluate"]),
    ],
)
def test_the_shell_completes_names(typed, completions, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/own.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_SUREFOOT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["surefoot", *typed]))
    monkeypatch.setenv("COMP_CWORD", str(len(typed)))
    assert surefoot().stdout.split() == completions


def states(printed):
    """By what was checked."""
    lines = [line for line in printed.splitlines() if not line.startswith(" ")]
    return {line[8:].partition(":")[0].strip(): line.split()[0] for line in lines}


def test_doctor_says_what_is_missing_and_what_is_broken(tmp_path, monkeypatch):
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    monkeypatch.setitem(doctor.EXTRAS, "ray", (("no_such_module",), "clusters"))
    printed = surefoot("doctor", "--store", tmp_path / "new/runs").stdout
    found = states(printed)
    assert found.pop("ray") == "missing"
    assert "missing  ray: clusters (no no_such_module)\n         -> pip install 'surefoot[ray]'\n" in printed
    assert {"version", "torch", "processor", "store", "image cache", "memory"} <= found.keys()
    assert {state for what, state in found.items() if what not in doctor.EXTRAS} == {"ok"}
    assert f"torch: {sys.modules['torch'].__version__}" in printed
    assert f"{tmp_path / 'new/runs'}, to be created in {tmp_path}: files can be written and locked" in printed
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    (tmp_path / "file").touch()
    monkeypatch.setattr(doctor, "LIBRARIES", ("numpy", "no_such_library"))
    broken = surefoot("doctor", "--store", tmp_path / "file", check=1).stdout
    assert [what for what, state in states(broken).items() if state == "problem"] == [
        "no_such_library",
        "store",
    ]
    assert broken.count("         -> ") >= 2


def test_python_m_and_its_version():
    done = subprocess.run(
        [sys.executable, "-m", "surefoot", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("surefoot ")


def in_a_terminal(*arguments, **environment):
    """What the command writes to a terminal, in a fork of this process."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ.update({"COLUMNS": "80", "TERM": "xterm-256color", **environment})
        try:
            surefoot_here(*arguments)
        finally:
            os._exit(0)
    written = b""
    while True:
        try:
            some = os.read(terminal, 4096)
        except OSError:  # the end, on Linux
            break
        if not some:
            break
        written += some
    os.waitpid(pid, 0)
    os.close(terminal)
    return written.decode()


def surefoot_here(*arguments):
    """The command with the file descriptors of the process, whatever pytest does with sys.stdout."""
    from surefoot.cli import main

    sys.argv = ["surefoot", *map(str, arguments)]
    sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
    try:
        main()
    except SystemExit:
        sys.stdout.flush()


def test_progress_and_colours_are_for_terminals_that_show_them(tmp_path):
    write_predictions(draw_one_label(60), tmp_path / "p.npz")
    words = ("evaluate", tmp_path / "p.npz", "--metric", "nll", "--resamples", 20)
    surefoot(*words)  # imports everything, for the forks
    usual = in_a_terminal(*words)
    assert "resampling" in usual
    assert "\x1b[1m" in usual
    quiet = in_a_terminal(*words, "--quiet")
    assert "resampling" not in quiet
    assert "NLL" in quiet
    assert "resampling" not in in_a_terminal(*words, SUREFOOT_QUIET="1")
    assert "\x1b" not in in_a_terminal(*words, TERM="dumb")
    colours = [f"\x1b[{code}m" for code in (*range(30, 38), *range(90, 98))]
    assert any(each in usual for each in colours)
    assert not any(each in in_a_terminal(*words, NO_COLOR="1") for each in colours)


def test_an_export_without_its_packages_is_refused_before_the_bundle_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as if it were not installed
    (tmp_path / "bundle.json").write_text("{}")  # reading it would be an error, too
    refused = surefoot("export", tmp_path, "-o", tmp_path / "a.onnx", check=2)
    assert (
        refused.stderr == "surefoot: an .onnx needs onnxscript; install it: pip install 'surefoot[export]'\n"
    )
