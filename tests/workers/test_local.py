"""The engine on this machine: workers share the seeds, and never a network."""

import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest

from surefoot.errors import InputError
from surefoot.lab.experiments.experiment import read_experiment
from surefoot.lab.store.files import State
from surefoot.lab.store.store import Store
from surefoot.lab.workers.local import execute
from surefoot.registry import search_in
from tests import warm
from tests.small_images import write_task
from tests.workers.orders import SMALL, epochs_logged, events_of, order, results, specs, started


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """Three networks by two workers, and the events."""
    wanted, events = order(tmp_path_factory.mktemp("two"), seeds=(0, 1, 2)), []
    execute(wanted, workers=2, on_event=events.append)
    return wanted, events


def test_events_tell_of_every_epoch_and_network(by_two):
    _, events = by_two
    counts = Counter(event["event"] for event in events)
    assert counts == {"ready": 2, "start": 3, "epoch": 3 * 2 * 2, "done": 3}
    assert {event["seed"] for event in events if "seed" in event} == {0, 1, 2}


def test_one_worker_and_two_give_the_same_to_the_bit(by_two, tmp_path):
    wanted = order(tmp_path, seeds=(0, 1, 2))
    events_of(started(wanted))
    assert results(wanted) == results(by_two[0])


def test_what_is_done_is_not_trained_again(by_two):
    wanted = by_two[0]
    before = epochs_logged(wanted)
    events = events_of(started(wanted))
    assert [event["event"] for event in events] == ["ready"] + ["start", "done"] * 3
    assert epochs_logged(wanted) == before


def test_two_engines_on_one_store_train_each_network_once(by_two, tmp_path):
    wanted = order(tmp_path, seeds=(0, 1, 2))
    backwards = replace(wanted, jobs=wanted.jobs[::-1])
    engines = [started(each) for each in (wanted, backwards)]
    for engine in engines:
        events_of(engine)
    assert results(wanted) == results(by_two[0])
    assert Counter(epochs_logged(wanted)) == Counter(set(epochs_logged(by_two[0])))


def test_a_worker_ends_when_the_engine_was_killed(tmp_path):
    """Nobody is left to stop it, so it must see for itself; and it keeps what it has."""
    wanted = order(tmp_path, replace(SMALL, epochs=100_000))
    spec, store = specs(wanted)[0], Store(tmp_path)
    with started(wanted) as engine:
        _soon(lambda: any("epoch" in entry for found in store.networks() for entry in found.log))
        assert store.state(spec) is State.RUNNING
        engine.kill()
    _soon(lambda: store.state(spec) is State.STOPPED)
    assert list(tmp_path.glob("networks/*/*/.seed*/checkpoint-train.safetensors"))


def test_a_network_is_found_beside_its_experiment_and_what_it_prints_is_no_event(tmp_path, monkeypatch):
    (tmp_path / "talkative.py").write_text(
        "import os, torch\n"
        "from surefoot.lab.networks.backbones import build_network\n"
        "os.write(1, b'loading')\n"
        "def build(*arguments, **options):\n"
        "    print('building', arguments, options)\n"
        "    raise SystemExit(7)\n"
    )
    (tmp_path / "own.toml").write_text('task = "letters"\n')
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("surefoot.registry._folders", {})
    read_experiment(tmp_path / "own.toml")
    wanted = replace(
        order(tmp_path, replace(SMALL, network="talkative:build", view=8, resize=8)),
        task=str(write_task(tmp_path)),
    )
    monkeypatch.setattr(subprocess, "Popen", warm.Popen.__base__)  # started from nothing
    with pytest.raises(InputError, match="a training process ended with code 7; finished networks are saved"):
        execute(wanted, workers=1, on_event=lambda _: None)


def test_an_error_of_a_users_network_comes_with_its_traceback(tmp_path, monkeypatch):
    (tmp_path / "breaking.py").write_text("def build(classes):\n    return [0][classes]\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("surefoot.registry._folders", {})
    search_in(tmp_path)
    own = replace(SMALL, network="breaking:build", view=8, resize=8)
    wanted = replace(order(tmp_path, own), task=str(write_task(tmp_path)))
    monkeypatch.setattr(subprocess, "Popen", warm.Popen.__base__)  # started from nothing
    with pytest.raises(RuntimeError, match=r"training process failed \(IndexError: list index out") as failed:
        execute(wanted, workers=1, on_event=lambda _: None)
    assert "in build" in failed.value.__notes__[0]


def _soon(look, seconds=30.0):
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)
