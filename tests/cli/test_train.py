"""`surefoot train`, `tune` and `ls networks` as people use them: processes, their output, their exit codes."""

import re
import signal
import time

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from surefoot.cli import progress
from surefoot.lab.recipes.recipe import Recipe, Spec
from surefoot.lab.store.files import State
from surefoot.lab.store.store import Store
from surefoot.lab.tasks.task import Split
from surefoot.lab.variants import read_recipe
from surefoot.lab.workers.jobs import Job, WorkOrder
from tests.cli.command import in_a_process, rows_of, started

SMALL = ("--set", "network=mlp", "--set", "width=16", "--device", "cpu")


def states(folder):
    return [found.state for found in Store(folder).networks()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two networks in `runs`, by the recipe that tune wrote."""
    folder = tmp_path_factory.mktemp("train")
    found = in_a_process(
        "tune", "toy", *SMALL, "--rate", 0.1, "--rate", 1e30, "--most-epochs", 3, "-o", folder / "r.toml"
    )
    (folder / "tuned.txt").write_text(found.stdout)
    made = in_a_process(
        "train", "toy", "--recipe", folder / "r.toml", "--members", 2, "--store", folder / "runs"
    )
    (folder / "trained.txt").write_text(made.stdout + made.stderr)
    return folder


def test_tune_reports_each_rate_and_writes_a_recipe(folder):
    printed, recipe = (folder / "tuned.txt").read_text(), read_recipe(folder / "r.toml")
    assert "learning rate 0.1: " in printed
    assert "learning rate 1e+30: diverged" in printed
    assert f"best: learning rate 0.1, {recipe.epochs} epochs; recipe: {folder / 'r.toml'}" in printed
    assert "this is the lowest rate tried; --rate 0.03 may be better" in printed
    assert (recipe.network, recipe.width, recipe.learning_rate) == ("mlp", 16, 0.1)
    assert "# learning rate 1e+30: diverged" in (folder / "r.toml").read_text()


def test_tune_names_the_rates_within_a_standard_error_of_the_best(tmp_path):
    the_same_twice = ("--rate", 0.1, "--rate", 0.1, "--rate", 1e-9, "--most-epochs", 2)
    printed = in_a_process("tune", "toy", *SMALL, *the_same_twice, "-o", tmp_path / "r.toml").stdout
    error = float(re.search(r"learning rate 0.1: .*error (\S+),", printed)[1])
    found = re.search(
        r"standard error of the best \((\S+) of error on 1,200 .+\): learning rate (.+)\n", printed
    )
    assert float(found[1]) == pytest.approx((error * (1 - error) / 1200) ** 0.5, abs=1e-4)
    assert found[2] == "0.1"


def test_the_tuned_recipe_trains(folder):
    assert (folder / "trained.txt").read_text() == f"2 networks of toy in {folder / 'runs'}\n"
    assert states(folder / "runs") == [State.DONE, State.DONE]
    paths = sorted((folder / "runs").glob("networks/toy-wave/mlp-*/seed*"))
    assert [path.name[:8] for path in paths] == ["seed000-", "seed001-"]
    for path in paths:
        for split in (Split.VAL, Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR):
            assert (path / f"{split}.npz").is_file()


def test_the_logits_go_straight_into_calibrate_and_evaluate(folder, here):
    path = next((folder / "runs").glob("networks/*/*/seed000-*"))
    here("calibrate", path / "val.npz", "-o", folder / "c.json")
    done = here("evaluate", path / "test_familiar.npz", path / "test_unfamiliar.npz", "--calibration", folder / "c.json", "--resamples", 0)  # fmt: skip
    assert "NLL" in done.stdout


def test_status_shows_what_is_done(folder, here):
    printed = here("ls", "networks", "--store", folder / "runs").stdout
    epochs = read_recipe(folder / "r.toml").epochs
    rows = [line for line in printed.splitlines() if "toy/wave" in line]
    assert len(rows) == 2
    assert all(" done " in row and f" final {epochs}/{epochs} " in row for row in rows)
    assert printed.splitlines()[-1] == "2 networks: 2 done"


def test_status_shows_what_was_ordered_and_never_begun(tmp_path, here):
    store = Store(tmp_path)
    specs = [Spec("toy/wave", "0" * 64, Recipe(network="mlp"), seed) for seed in range(3)]
    store.request(specs)
    with store.claim(specs[1]):
        rows, last = shown(here("ls", "networks", "--store", tmp_path).stdout)
    assert [(row[2], row[3]) for row in rows] == [("0", "missing"), ("1", "running"), ("2", "missing")]
    assert {row[1] for row in rows} == {f"mlp-{specs[0].recipe.digest}"}
    assert rows[0][4:] == ["", "", ""], "it has taken no seconds"
    assert last == "3 networks: 1 running, 2 missing"


def test_status_of_an_empty_store(tmp_path, here):
    assert shown(here("ls", "networks", "--store", tmp_path).stdout) == ([], "0 networks")


def shown(printed):
    """The cells of each row, and the last line."""
    return rows_of(printed), printed.splitlines()[-1]


def test_ctrl_c_says_that_the_same_command_goes_on_and_it_does(tmp_path, here):
    """An order too long to be done meanwhile: begun, looked at, tried by another, stopped, gone on with, stopped."""
    store = tmp_path / "runs"
    arguments = (
        "train",
        "toy",
        *SMALL,
        "--set",
        "epochs=100000",
        "--set",
        "learning_rate=0.05",
        "--store",
        store,
    )
    with started(*arguments) as process:
        _soon(lambda: epochs(store))
        assert "running" in here("ls", "networks", "--store", store).stdout
        with started(*arguments) as other:
            waiting = other.stderr.readline()
            stop(other)
        stop(process)
    assert waiting == "waiting for another process: seed 0\n"
    assert "stopped" in here("ls", "networks", "--store", store).stdout
    before = epochs(store)
    with started(*arguments) as process:
        _soon(lambda: len(epochs(store)) > len(before))
        stop(process)
    assert epochs(store) == list(range(1, len(epochs(store)) + 1)), "no epoch left out, none done again"


def epochs(store):
    return [entry["epoch"] for found in Store(store).networks() for entry in found.log if "epoch" in entry]


def stop(process):
    """Ctrl-C."""
    process.send_signal(signal.SIGINT)
    printed, warned = process.communicate()
    assert process.returncode == 130
    assert warned == "stopped; the same command resumes\n"
    assert printed == ""


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory):
    """A folder to make mistakes in."""
    folder = tmp_path_factory.mktemp("mistakes")
    save_file({"a": torch.zeros(1)}, folder / "a.safetensors")
    (folder / "pretrained.toml").write_text(
        '[recipe]\nnetwork = "mlp"\nwidth = 16\npretrained = "0123456789abcdef"\n'
    )
    (folder / "file").write_text("in the way")
    return folder


MISTAKES = {
    "unknown network": (["train", "toy", "--set", "network=resnet19", "--store", "s"], "unknown network 'resnet19' (did you mean 'resnet18'?); have: "),
    "several of a mistake": (["train", "toy", "--set", "network=resnet19", "--members", "3", "--workers", "1", "--store", "s"], "unknown network 'resnet19' (did you mean 'resnet18'?); have: "),
    "images on points": (["train", "toy", "--store", "s"], "network 'resnet18' takes images, and task 'toy/wave' has vectors; allowed: mlp, linear, residual-mlp"),
    "no weights": (["train", "toy", "--recipe", "pretrained.toml", "--store", "s"], "the recipe begins with pretrained weights 0123456789abcdef; needed: --weights FILE"),
    "other weights": (["train", "toy", "--recipe", "pretrained.toml", "--weights", "a.safetensors", "--store", "s"], "; the recipe was made with 0123456789abcdef"),
    "missing weights": (["train", "toy", "--weights", "none.pth", "--store", "s"], "none.pth: No such file or directory"),
    "unknown device": (["train", "toy", "--device", "tpu", "--store", "s"], "device is 'tpu'; allowed: auto, cpu, cuda"),
    "unknown value": (["train", "toy", "--set", "lr=1", "--store", "s"], "unknown recipe value 'lr'; have: "),
    "no equals": (["train", "toy", "--set", "epochs", "--store", "s"], "--set 'epochs' has no '='; allowed: NAME=VALUE, such as epochs=12"),
    "bad value": (["train", "toy", "--set", "epochs=many", "--store", "s"], "epochs is 'many'; allowed: "),
    "unwritable store": (["train", "toy", *SMALL, "--store", "file/s"], "cannot write file/s/wanted: Not a directory"),
    "no folder to write to": (["tune", "toy", *SMALL, "-o", "no/r.toml"], "cannot write no/r.toml: no folder no"),
    **{
        f"rate {rate}": (["tune", "nothing", "--rate", "0.1", "--rate", rate, "-o", "no/r.toml"], f"--rate is {value}; allowed: a positive number")
        for rate, value in (("0", "0.0"), ("-1", "-1.0"), ("nan", "nan"), ("inf", "inf"), ("1e999", "inf"))
    },
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(case, mistaken):
    arguments, message = MISTAKES[case]
    done = in_a_process(*arguments, cwd=mistaken, check=2)
    assert message in done.stderr
    assert done.stderr.startswith("surefoot: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert Store(mistaken / "s").networks() == [], "a mistake leaves no network behind"


def test_divergence_names_epoch_rate_and_a_way_out(tmp_path):
    values = ("--set", "epochs=3", "--set", "learning_rate=1e30")
    done = in_a_process("train", "toy", *SMALL, *values, "--store", tmp_path, check=2)
    assert done.stderr.startswith("surefoot: training diverged in epoch 1 of 3: the loss is ")
    assert done.stderr.endswith(" at learning rate 1e+30; try a lower one, such as 1e+29\n")


def _soon(look, seconds=30.0):
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


JOBS = tuple(Job(Recipe(network="mlp", epochs=4, protocol="holdout"), seed) for seed in range(2))
ORDER = WorkOrder(task="toy", root=None, jobs=JOBS, store="runs")


def epoch(number, job=0):
    return {"event": "epoch", "job": job, "phase": "train", "epoch": number, "epochs": 4, "loss": 0.25}


def watch(events):
    with progress.watch(ORDER, title="toy") as on_event:
        for event in events:
            on_event(event)


def test_a_log_gets_lines_with_the_time_left_once_it_can_be_known(monkeypatch, capsys):
    """The first epoch ends after 1000 seconds, each other one takes 5: neither the start nor one epoch tells."""
    monkeypatch.setattr("surefoot.cli.notebook.SECONDS_BETWEEN_LINES", 0)
    seconds = iter([0, 1000, 1005, 1010, 1015, 1020, 1025])
    now = [0]
    monkeypatch.setattr(progress, "notes", lambda: Console(stderr=True, width=200, get_time=lambda: now[0]))

    def in_time(events):
        for event in events:
            now[0] = next(seconds)
            yield event

    done = {"event": "done", "job": 0}
    watch(in_time([{"event": "ready"}, *(epoch(number) for number in (1, 2, 3, 4)), done, epoch(1, job=1)]))
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 7
    assert printed[2] == "toy: 0 of 2 networks; seed 0: epoch 2 of 4, loss 0.2500"
    assert not any("left" in line for line in printed[:5])
    assert printed[5] == "toy: 1 of 2 networks; seed 0: epoch 4 of 4, loss 0.2500; 0:25 left"
    assert printed[6] == "toy: 1 of 2 networks; seed 1: epoch 1 of 4, loss 0.2500; 0:20 left"


@pytest.mark.parametrize("events", [1, 4])
def test_but_not_for_every_epoch(events, capsys):
    watch([epoch(number + 1) for number in range(events)])
    assert capsys.readouterr().err == ""
