"""The store on a real disk, with real processes: what is there is complete, whatever happened to its makers."""

import json
import signal
import subprocess

import numpy as np
import pytest
import torch

from surefoot.errors import InputError
from surefoot.io import ClaimedError
from surefoot.lab.store.files import State
from surefoot.lab.store.store import Store
from surefoot.lab.tasks.task import Split
from tests import warm
from tests.conftest import draw_one_label
from tests.store.made import OTHER, SPEC, checkpoint, make


def test_what_is_finished_is_there_and_what_is_not_is_not(store):
    assert store.state(SPEC) is State.MISSING
    assert not store.root.exists(), "to look is not to write"
    with store.claim(SPEC) as draft:
        draft.save_predictions(Split.VAL, draw_one_label(20))
        assert store.state(SPEC) is State.RUNNING
        assert not store.folder(SPEC).exists()
        assert [found.state for found in store.networks()] == [State.RUNNING]
    assert store.state(SPEC) is State.STOPPED
    make(store)
    assert store.state(SPEC) is State.DONE
    assert {path.name for path in store.folder(SPEC).iterdir()} == {
        "spec.json",
        "log.jsonl",
        "weights.safetensors",
        "val.npz",
        "done.json",
    }
    assert store.folder(SPEC).name.startswith("seed003-")
    assert np.array_equal(store.predictions(SPEC, Split.VAL).logits, draw_one_label(20).logits)
    assert not list(store.folder(SPEC).parent.glob(".*"))


def test_found_lists_all_in_order(store):
    make(store, OTHER)
    with store.claim(SPEC) as draft:
        draft.log({"phase": "train", "epoch": 4, "epochs": 9, "loss": 0.5, "seconds": 2.0})
    found = store.networks()
    assert [(each.seed, each.state, each.seconds) for each in found] == [
        (3, State.STOPPED, None),
        (11, State.DONE, 2.0),
    ]
    assert found[0].task == "toy/wave"
    assert found[0].recipe == f"mlp-{SPEC.recipe.digest}"
    assert found[0].log[-1]["epoch"] == 4


def test_a_maker_killed_just_before_or_just_after_the_rename(store):
    """Before: done.json lies in a draft, which is no finished network. After: a new draft beside a finished one."""
    make(store)
    draft = store.folder(SPEC).with_name(f".{store.folder(SPEC).name}")
    store.folder(SPEC).rename(draft)
    assert store.state(SPEC) is State.STOPPED
    assert [each.state for each in store.networks()] == [State.STOPPED]
    draft.rename(store.folder(SPEC))
    with store.claim(SPEC):
        assert [each.state for each in store.networks()] == [State.DONE]
    assert [each.state for each in store.networks()] == [State.DONE]


def test_a_checkpoint_comes_back_to_the_bit(store):
    with store.claim(SPEC) as draft:
        assert draft.checkpoint("train") is None
        draft.save_checkpoint("train", checkpoint())
        assert draft.checkpoint("final") is None
    with store.claim(SPEC) as draft:
        found, expected = draft.checkpoint("train"), checkpoint()
    assert (found.epoch, found.step, found.loss) == (2, 5, 0.1 + 0.2)
    assert torch.equal(found.weights["layer.weight"], expected.weights["layer.weight"])
    assert torch.equal(found.momentum[0], expected.momentum[0])
    assert torch.equal(found.average["layer.weight"], expected.average["layer.weight"])
    assert [len(each) for each in (found.weights, found.momentum, found.average)] == [1, 1, 1]


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_checkpoint_is_named(store, damage):
    with store.claim(SPEC) as draft:
        draft.save_checkpoint("train", checkpoint())
        path = draft.folder / "checkpoint-train.safetensors"
        whole = path.read_bytes()
        path.write_bytes(
            {"cut": whole[:-7], "empty": b"", "other": whole.replace(b'"epoch"', b'"epoxy"')}[damage]
        )
        with pytest.raises(
            InputError, match=r"is damaged .* remove it to train this network again"
        ) as caught:
            draft.checkpoint("train")
    assert str(path) in str(caught.value)


def test_a_damaged_log_line_is_passed_over_and_costs_no_other(store):
    with store.claim(SPEC) as draft:
        draft.log({"epoch": 1, "seconds": 1.0})
        with (draft.folder / "log.jsonl").open("a") as file:
            for line in (
                "5",
                "[" * 9000,
                '{"seconds": "x"}',
                f'{{"seconds": {"9" * 5000}}}',
                '{"epoch": 2, "sec',
            ):
                file.write(f"\n{line}")
        draft.log({"epoch": 3, "seconds": 2.0})
        assert draft.logged("seconds") == 3.0
    assert [entry["epoch"] for entry in store.networks()[0].log] == [1, 3]


def test_files_half_written_by_a_killed_process_are_swept(store):
    with store.claim(SPEC) as draft:
        (draft.folder / ".weights.safetensors.x1y2.safetensors").write_bytes(b"half")
    with store.claim(SPEC) as draft:
        assert {path.name for path in draft.folder.iterdir()} == {"spec.json"}


def test_a_mistake_before_anything_was_made_leaves_nothing(store):
    with pytest.raises(InputError), store.claim(SPEC):
        raise InputError("unknown network")
    assert store.state(SPEC) is State.MISSING
    assert store.networks() == []


def test_a_mistake_later_keeps_what_was_made(store):
    with store.claim(SPEC) as draft:
        draft.save_checkpoint("train", checkpoint())
    with pytest.raises(InputError), store.claim(SPEC):
        raise InputError("training diverged")
    with store.claim(SPEC) as draft:
        assert draft.checkpoint("train") is not None


HOLD = """
import json, sys, time
from pathlib import Path
from surefoot.lab.recipes.recipe import Recipe, Spec
from surefoot.lab.store.store import Store
spec = Spec("toy/wave", "0" * 64, Recipe(network="mlp", width=16), 3)
with Store(Path(sys.argv[1])).claim(spec):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_never_make_the_same_network(store):
    with warm.Process(HOLD, [store.root]) as holder:
        assert holder.stdout.readline() == "held\n"
        assert store.state(SPEC) is State.RUNNING
        with pytest.raises(ClaimedError), store.claim(SPEC):
            pass
        with store.claim(OTHER):
            pass
        holder.send_signal(signal.SIGKILL)
    assert store.state(SPEC) is State.STOPPED
    make(store)
    assert store.state(SPEC) is State.DONE


def test_to_look_at_a_network_never_keeps_it_from_being_made(store):
    make(store, OTHER)
    with store.claim(SPEC):
        pass
    looking = [store.networks() for _ in range(50)]
    with store.claim(SPEC):
        assert all(found[0].state is State.STOPPED for found in looking)


def test_to_look_writes_nothing(store):
    make(store)
    with store.claim(OTHER):
        pass
    for lock in (store.root / "locks").iterdir():
        lock.unlink()
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    assert [each.state for each in store.networks()] == [State.DONE, State.STOPPED]
    assert store.state(OTHER) is State.STOPPED
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before


def test_an_unwritable_store_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file" / "store")
    assert store.state(SPEC) is State.MISSING
    assert store.networks() == []
    with (
        pytest.raises(InputError, match=r"cannot write .*file/store/locks: Not a directory"),
        store.claim(SPEC),
    ):
        pass


FILL = """
import resource, sys
from pathlib import Path
from surefoot.errors import InputError
from surefoot.lab.store.store import Store
from surefoot.lab.tasks.task import Split
from tests.conftest import draw_one_label
from tests.store.made import OTHER, checkpoint
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
steps = {
    "checkpoint": lambda draft: draft.save_checkpoint("train", checkpoint(1, 400_000)),
    "weights": lambda draft: draft.save_weights("weights", checkpoint(1, 400_000).weights),
    "predictions": lambda draft: draft.save_predictions(Split.VAL, draw_one_label(100_000)),
    "log": lambda draft: [draft.log({"line": "x" * 5000}) for _ in range(400)],
}
for name, step in steps.items():
    try:
        with Store(Path(sys.argv[1])).claim(OTHER) as draft:
            if name == "checkpoint":
                draft.save_checkpoint("train", checkpoint(0))
            step(draft)
    except InputError as error:
        print(error, flush=True)
"""
PARTS = ("checkpoint-train.safetensors", "weights.safetensors", "val.npz", "log.jsonl")


def fill(store, how):
    """Try to write more than fits; what the tries said, which must be a sentence each."""
    make(store)
    done = warm.run(FILL, store.root, how)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(PARTS), done.stdout
    for sentence, part in zip(said, PARTS, strict=True):
        assert sentence.startswith(f"cannot write {store.folder(OTHER).parent}/.")
        assert f"/{part}: " in sentence
    return said


def still_whole(store):
    """What was complete is, and the checkpoint before the full disk is the one to go on from."""
    assert np.array_equal(store.predictions(SPEC, Split.VAL).logits, draw_one_label(20).logits)
    assert json.loads((store.folder(SPEC) / "done.json").read_text())["seconds"] == 2.0
    assert [each.state for each in store.networks()] == [State.DONE, State.STOPPED]
    with store.claim(OTHER) as draft:
        assert torch.equal(draft.checkpoint("train").momentum[0], checkpoint(0).momentum[0])
        assert not draft.has("weights.safetensors")
        assert not draft.has("val.npz")
        assert not list(draft.folder.glob(".*"))


def test_a_file_too_large_for_the_disk_loses_nothing(store):
    said = fill(store, "limit")
    assert "File too large" in said[2]
    still_whole(store)


def test_a_full_disk_loses_nothing(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        store = Store(mount / "store")
        said = fill(store, "disk")
        assert all("No space left on device" in sentence for sentence in said)
        for log in mount.glob("store/networks/*/*/.seed*/log.jsonl"):
            log.unlink()
        still_whole(store)
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_checkpoint_keeps_weights_and_momentum_apart(store):
    with store.claim(SPEC) as draft:
        draft.save_checkpoint("train", checkpoint())
        found = draft.checkpoint("train")
    assert list(found.weights) == ["layer.weight"]
    assert len(found.momentum) == 1


def test_folders_are_below_the_root(store):
    assert store.experiment_folder("a") == store.root / "experiments" / "a"
    assert store.teacher_folder("b") == store.root / "lessons" / "b"
    assert Store.containing(store.experiment_folder("a")).root == store.root.absolute()
    assert store.weights_file(SPEC) == store.folder(SPEC) / "weights.safetensors"
    assert store.experiments() == []
    store.experiment_folder("b").mkdir(parents=True)
    store.experiment_folder("a").mkdir()
    (store.root / "experiments" / "file").touch()
    assert [folder.name for folder in store.experiments()] == ["a", "b"]
