"""experiments/session.py, the script of the sessions on a GPU."""

import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from surefoot.deploy.features import projected
from surefoot.predictions.labels import LabelKind
from surefoot.training.data import task_inputs
from surefoot.variants.build import TaskContext
from tests.report.studies import small_task, trained

SCRIPTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def session(monkeypatch, tmp_path):
    """The script, with experiments of its own."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import session

    monkeypatch.setattr(session, "HERE", tmp_path)
    (tmp_path / "gender.toml").write_text('task = "gender"\n[recipe]\nepochs = 3\n')
    (tmp_path / "animals.toml").write_text('task = "animals"\n[recipe]\nepochs = 2\n')
    return session


def chosen(session, tmp_path, what, *words):
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    return session.parsed(
        [what, "--packs", "packs", "--store", str(tmp_path / "runs"), "--out", str(out), *words]
    )


def test_the_recipe_of_the_search_is_added_to_the_experiment(session, tmp_path):
    options = chosen(session, tmp_path, "run", "gender")
    assert session.experiment_file("gender", options) == tmp_path / "gender.toml"
    found = '[recipe]\nepochs = 6\n[sharpness_aware]\nepochs = 6\nsharpness = 0.1\naugmentation = "strong"\n'
    (options.out / "search-gender.toml").write_text(found)
    extended = tomllib.loads(session.experiment_file("gender", options).read_text())
    assert extended["recipe"] == {"epochs": 3}
    assert extended["sharpness_aware"] == {"epochs": 6, "sharpness": 0.1, "augmentation": "strong"}
    with (tmp_path / "gender.toml").open("a") as file:
        file.write("[sharpness_aware]\nsharpness = 0.4\n")
    assert session.experiment_file("gender", options) == tmp_path / "gender.toml"


def test_steps_follow_each_other_and_a_failure_ends_its_task_only(session, tmp_path, monkeypatch):
    def command(what):
        failing = "import sys; print(sys.argv[1:]); sys.exit(sys.argv[1:] == ['rotations', 'gender'])"
        return lambda name, _: [sys.executable, "-c", failing, what, name]

    monkeypatch.setattr(session, "COMMANDS", {what: command(what) for what in session.COMMANDS})
    options = chosen(
        session, tmp_path, "rotations,run", "--device", "cpu", "--at-once", "2", "gender", "animals"
    )
    with pytest.raises(SystemExit) as ended:
        session.execute(options)
    assert ended.value.code == 1
    logs = {path.name for path in options.out.iterdir()}
    assert logs == {"rotations-gender.log", "rotations-animals.log", "run-animals.log"}


def test_a_process_is_interrupted_when_the_time_is_over(session):
    sleeping = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("saved")
"""
    with subprocess.Popen([sys.executable, "-c", sleeping], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        assert session.exit_code(process, end=time.monotonic()) == 0
        assert process.stdout.read() == b"saved\n"


def test_nothing_starts_after_the_time(session, tmp_path):
    options = chosen(session, tmp_path, "run", "--device", "cpu", "--minutes", "0", "gender")
    session.execute(options)
    assert not list(options.out.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["walk", "gender"], "unknown command 'walk'; have: tune, run, rotations, ablation, collect"),
        (["run", "faces"], "unknown task 'faces'; have: gender"),
        (["run", "gender", "--workers", "0"], "--workers is 0; allowed: at least 1"),
    ],
)
def test_wrong_words_are_refused(session, tmp_path, capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        chosen(session, tmp_path, *words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_features_of_stored_networks_are_those_of_their_last_layer(session, tmp_path, monkeypatch, capsys):
    import features
    import torch

    made = trained(tmp_path / "runs", methods=("single",))
    task = small_task(LabelKind.ONE_LABEL, groups=True)
    monkeypatch.setattr(features, "HERE", tmp_path)
    monkeypatch.setattr(features, "task_named", lambda *_, **__: task)
    (tmp_path / "gender.toml").write_text('task = "toy"\n')
    words = ["--packs", str(tmp_path), "--store", str(made.store.root), "--networks", "1", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["features.py", *words, "gender"])
    features.main()
    assert '"networks": 1' in capsys.readouterr().out
    features.main()
    assert '"networks": 0' in capsys.readouterr().out

    ((spec,), *_) = made.plan.methods[0].runs
    inputs = task_inputs(task, spec.recipe, cache=tmp_path)
    network = TaskContext(task, inputs, torch.device("cpu")).restored(spec, made.store.weights(spec))
    with np.load(made.store.folder(spec) / features.FEATURES) as stored:
        for split in ("test_familiar", "test_unfamiliar"):
            points = torch.from_numpy(np.asarray(task.splits[split].inputs)).float()
            expected = projected([network.features(points).detach()]).numpy()
            np.testing.assert_allclose(stored[split], expected, rtol=2e-3, atol=2e-3)
    packed = [str(path.relative_to(made.store.root)) for path in session.results(made.store.root)]
    assert sum(path.endswith(features.FEATURES) for path in packed) == 1
