"""However often a worker is killed, and wherever, the network it ends with is the same to the bit."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.store.files import State
from surefoot.lab.store.store import Store
from tests.workers.orders import PREDICTED, Nursery, order, results, specs

KILLS = 20
LONG = Recipe(
    network="mlp", width=32, epochs=6, learning_rate=0.05, dropout=0.2, sharpness=0.05, weight_average=0.9
)


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def unharmed(nursery, tmp_path_factory):
    """What a run never killed ends with."""
    wanted = order(tmp_path_factory.mktemp("unharmed"), LONG)
    nursery.start(wanted)
    assert nursery.ended() == 0
    return results(wanted)


def test_killed_twenty_times_at_random_moments(nursery, unharmed, tmp_path):
    """Every other time it has saved a checkpoint in this life; else it may be anywhere, or have hardly begun."""
    moments = random.Random(0)
    kills, midway, run, done = 0, 0, 0, False
    while kills < KILLS or not done:
        wanted, folder = order(tmp_path / str(run), LONG), tmp_path / str(run)
        before = saved(folder)
        pid, done = nursery.start(wanted), False
        if kills < KILLS:
            if kills % 2:
                _soon(lambda: saved(folder) != before or is_done(wanted))  # noqa: B023 looked at at once
            time.sleep(moments.uniform(0, 0.3))
            os.kill(pid, signal.SIGKILL)
        code = nursery.ended()
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        midway += code != 0 and bool(saved(folder))
        if code == 0:  # done sooner than it could be killed often enough: again, in a new store
            assert results(wanted) == unharmed
            run, done = run + 1, True
    assert kills == KILLS
    assert midway >= KILLS / 4, "many should have come while it was training, not while it began"


def test_two_workers_on_one_store_killed_again_and_again(nursery, tmp_path):
    """Both go through the same networks; each is killed in turn while the other goes on."""
    seeds, moments = (0, 1), random.Random(1)
    alone = order(tmp_path / "alone", LONG, seeds)
    nursery.start(alone)
    assert nursery.ended() == 0
    wanted, store, done = order(tmp_path / "killed", LONG, seeds), Store(tmp_path / "killed"), False
    with Nursery() as other:
        turns = [nursery, other]
        running = {each: each.start(wanted) for each in turns}
        codes = []
        for _ in range(12):
            time.sleep(moments.uniform(0, 0.3))
            os.kill(running[turns[0]], signal.SIGKILL)
            codes.append(turns[0].ended())
            running[turns[0]] = turns[0].start(wanted)
            turns.reverse()
        codes += [each.ended() for each in turns]
        while not done:  # what one passed over because the other had it, and was then killed
            nursery.start(wanted)
            codes.append(nursery.ended())
            done = all(store.is_done(spec) for spec in specs(wanted))
    assert set(codes) == {0, -signal.SIGKILL}
    assert results(wanted) == results(alone)
    store.verify(specs(wanted))


def saved(folder):
    """The checkpoints of unfinished networks, and when each was written."""
    found = {}
    for path in folder.glob("networks/*/*/.seed*/checkpoint-*"):
        with suppress(FileNotFoundError):
            found[path.name] = path.stat().st_mtime_ns
    return found


def is_done(wanted):
    return Store(Path(wanted.store)).state(specs(wanted)[0]) is State.DONE


def test_a_kill_leaves_a_checkpoint_to_go_on_from(nursery, unharmed, tmp_path):
    wanted = order(tmp_path, LONG)
    pid = nursery.start(wanted)
    saved = _soon(lambda: list(tmp_path.glob("networks/*/*/.seed*/checkpoint-final.safetensors")))
    os.kill(pid, signal.SIGKILL)
    assert nursery.ended() == -signal.SIGKILL
    assert Store(tmp_path).state(specs(wanted)[0]) is State.STOPPED
    assert saved[0].parent.joinpath("val.npz").is_file()
    nursery.start(wanted)
    assert nursery.ended() == 0
    assert results(wanted) == unharmed


def test_asked_to_stop_it_saves_and_goes_on_to_the_same_result(nursery, unharmed, tmp_path):
    wanted = order(tmp_path, LONG)
    for number in (signal.SIGTERM, signal.SIGINT):
        before = saved(tmp_path)
        pid = nursery.start(wanted)
        _soon(lambda: saved(tmp_path) != before)  # noqa: B023 looked at at once
        os.kill(pid, number)
        assert nursery.ended() == 3
        assert list(tmp_path.glob("networks/*/*/.seed*/checkpoint-*"))
    nursery.start(wanted)
    assert nursery.ended() == 0
    assert results(wanted) == unharmed


def test_what_was_ordered_and_not_begun_is_missing(nursery, tmp_path):
    wanted = order(tmp_path, replace(LONG, epochs=100_000), seeds=(0, 1))
    pid = nursery.start(wanted)
    _soon(lambda: [each.state for each in Store(tmp_path).networks()] == [State.RUNNING, State.MISSING])
    os.kill(pid, signal.SIGKILL)
    assert nursery.ended() == -signal.SIGKILL
    assert [(each.seed, each.state) for each in Store(tmp_path).networks()] == [
        (0, State.STOPPED),
        (1, State.MISSING),
    ]


def test_another_seed_is_another_network(nursery, tmp_path):
    wanted = order(tmp_path, replace(LONG, epochs=1), seeds=(0, 1))
    nursery.start(wanted)
    assert nursery.ended() == 0
    found = results(wanted)
    assert all(found[0, split] != found[1, split] for split in PREDICTED)


def _soon(look, seconds=60.0):
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found
