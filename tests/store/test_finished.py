"""What is known of a finished network: its facts, its weights, and arrays kept beside them."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from surefoot.errors import InputError
from surefoot.lab.store.files import State
from surefoot.lab.store.store import Store
from surefoot.lab.tasks.task import Split
from tests.store.made import OTHER, SPEC, make

SCORES = {"scores": np.linspace(0, 1, 7), "file": np.array(["a", "é"]), "step.1": np.int64(3) * np.ones(())}


def same(found, expected):
    return list(found) == list(expected) and all(
        np.array_equal(found[name], array) and found[name].dtype == array.dtype
        for name, array in expected.items()
    )


def test_facts_and_weights_come_back(store):
    make(store)
    assert store.facts(SPEC)["seconds"] == 2.0
    found = store.weights(SPEC)
    assert list(found) == ["layer.weight"]
    assert torch.equal(found["layer.weight"], torch.arange(3.0))


def test_arrays_beside_come_back_also_to_numpy(store):
    make(store)
    assert not store.has_novelty(SPEC, "odin")
    assert store.novelty(SPEC, "odin") is None
    store.save_novelty(SPEC, "odin", SCORES)
    assert store.has_novelty(SPEC, "odin")
    assert same(store.novelty(SPEC, "odin"), SCORES)
    with np.load(store.folder(SPEC) / "novelty-odin-v2.npz", allow_pickle=False) as file:
        assert same({name: file[name] for name in file.files}, SCORES)
    store.save_novelty(SPEC, "odin", {})
    assert store.novelty(SPEC, "odin") == {}
    assert [each.state for each in store.networks()] == [State.DONE]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrays=st.dictionaries(
        st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True) | st.sampled_from(["file", "a", "a.npy"]),
        hnp.arrays(
            st.sampled_from(["<f4", "<f8", "<i8", ">f4", "?", "u1", "<U3"]),
            hnp.array_shapes(min_dims=0, min_side=0),
        ),
        max_size=3,
    ),
    fortran=st.booleans(),
)
def test_any_arrays_come_back(tmp_path, arrays, fortran):
    store = Store(tmp_path)
    if not store.is_done(SPEC):
        make(store)
    given_arrays = {name: array.T if fortran else array for name, array in arrays.items()}
    store.save_novelty(SPEC, "some", given_arrays)
    found = store.novelty(SPEC, "some")
    assert list(found) == list(given_arrays)
    for name, array in given_arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_each_byte_changed_is_seen_or_does_no_harm(store):
    make(store)
    arrays = {"scores": np.arange(5.0), "n": np.array(3)}
    store.save_novelty(SPEC, "odin", arrays)
    path = store.folder(SPEC) / "novelty-odin-v2.npz"
    whole, named = path.read_bytes(), 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            assert same(store.novelty(SPEC, "odin"), arrays)
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017
            named += 1
    assert named > 350, "most bytes matter; a date does not"


def test_each_cut_is_seen(store):
    make(store)
    store.save_novelty(SPEC, "odin", SCORES)
    path = store.folder(SPEC) / "novelty-odin-v2.npz"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(
            InputError, match=r"odin-v2\.npz is damaged \(.*\); remove it to compute it again"
        ):
            store.novelty(SPEC, "odin")


def test_objects_are_neither_written_nor_read(store):
    make(store)
    with pytest.raises(InputError, match=r"^array 'o' contains Python objects; allowed: numbers and text$"):
        store.save_novelty(SPEC, "odin", {"o": np.array([{}])})
    assert not store.has_novelty(SPEC, "odin")
    np.savez(store.folder(SPEC) / "novelty-odin-v2.npz", o=np.array([{}]))
    with pytest.raises(InputError, match=r"odin-v2\.npz is damaged \(Object arrays cannot be loaded"):
        store.novelty(SPEC, "odin")


@pytest.mark.parametrize("name", ["", "../odin", "a/b", "a.b"])
def test_a_name_that_would_lie_elsewhere_is_refused(store, name):
    make(store)
    before = sorted(store.root.rglob("*"))
    with pytest.raises(
        InputError, match=r"^the novelty score's name is .*; allowed: letters, digits, - and _$"
    ):
        store.save_novelty(SPEC, name, SCORES)
    assert sorted(store.root.rglob("*")) == before
    with pytest.raises(InputError, match=r"^array name is '\.\./a/b'; allowed: "):
        store.save_novelty(SPEC, "odin", {"../a/b": np.zeros(1)})


def test_a_score_with_the_name_of_a_split_leaves_the_predictions(store):
    make(store)
    store.save_novelty(SPEC, "val", SCORES)
    assert same(store.novelty(SPEC, "val"), SCORES)
    assert store.predictions(SPEC, Split.VAL).n == 20


def test_writing_that_fails_keeps_the_arrays_before(store, monkeypatch):
    make(store)
    store.save_novelty(SPEC, "odin", SCORES)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"^cannot write .*odin-v2\.npz: No space left on device$"):
        store.save_novelty(SPEC, "odin", {"scores": np.zeros(3)})
    assert same(store.novelty(SPEC, "odin"), SCORES)
    assert not list(store.folder(SPEC).glob(".*"))


@pytest.mark.parametrize("state", ["missing", "stopped"])
def test_of_a_network_that_is_not_done_nothing_is_said(store, state):
    if state == "stopped":
        with store.claim(SPEC) as draft:
            draft.save_weights("weights", {"layer.weight": torch.arange(3.0)})
    for ask in (
        store.facts,
        store.weights,
        lambda spec: store.novelty(spec, "odin"),
        lambda spec: store.save_novelty(spec, "odin", SCORES),
    ):
        with pytest.raises(InputError, match=rf"^network toy/wave seed 3 is {state} in .*; needed: done$"):
            ask(SPEC)
    assert not store.has_novelty(SPEC, "odin")


def test_parameters_are_counted_without_running_statistics(store):
    assert store.parameters(SPEC) is None
    with store.claim(SPEC) as draft:
        weights = {
            "layer.weight": torch.zeros(4, 5),
            "layer.bias": torch.zeros(4),
            "norm.running_mean": torch.zeros(9),
        }
        draft.save_weights("weights", weights)
        draft.finish({})
    assert store.parameters(SPEC) == 24
    store.weights_file(SPEC).write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"/weights\.safetensors is damaged"):
        store.parameters(SPEC)


def test_weights_that_are_missing_or_damaged_are_named(store):
    make(store)
    with pytest.raises(
        InputError, match=r"^cannot read .*/weights_train\.safetensors: No such file.*; remove its"
    ):
        store.weights(SPEC, "weights_train")
    path = store.weights_file(SPEC)
    whole = path.read_bytes()
    for damage in (b"", whole[:5], whole[:-1], whole[:20] + b"\xff" + whole[21:], b"\xff" * 100):
        path.write_bytes(damage)
        with pytest.raises(InputError, match=r"/weights\.safetensors is damaged .* remove its folder"):
            store.weights(SPEC)


def test_done_json_holds_the_sha256_of_each_file_of_weights(store):
    with store.claim(SPEC) as draft:
        for name in ("weights", "weights_train"):
            draft.save_weights(name, {"layer.weight": torch.randn(5)})
        draft.finish({"seconds": 1.0})
    folder = store.folder(SPEC)
    names = ("weights.safetensors", "weights_train.safetensors")
    expected = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    assert json.loads((folder / "done.json").read_text()) == {"seconds": 1.0, "sha256": expected}


def test_every_flipped_bit_of_the_weights_is_noticed_and_the_error_says_what_to_do(store):
    """Also a bit of a number, which leaves a valid file of other weights."""
    make(store)
    path = store.weights_file(SPEC)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        for read in (lambda: store.weights(SPEC), lambda: store.verify([OTHER, SPEC])):
            with pytest.raises(InputError) as error:
                read()
            assert str(error.value) == (
                f"{path} is damaged (its sha256 is not the one in done.json); remove its folder "
                f"({store.folder(SPEC)}) and repeat 'surefoot run' or 'surefoot train', which trains this "
                "network again"
            )
    path.write_bytes(whole)
    store.verify([OTHER, SPEC])


def test_a_network_without_digests_of_an_older_version_is_read(store):
    make(store)
    done = store.folder(SPEC) / "done.json"
    done.write_text('{"seconds": 2.0}')
    store.verify([SPEC])
    assert torch.equal(store.weights(SPEC)["layer.weight"], torch.arange(3.0))
    for damage in ("3", '{"../x": "0"}'):
        done.write_text(f'{{"sha256": {damage}}}')
        with pytest.raises(
            InputError, match=r"done\.json is damaged \(sha256 holds no digests by file name\)"
        ):
            store.verify([SPEC])


def test_weights_that_were_removed_are_noticed(store):
    make(store)
    store.weights_file(SPEC).unlink()
    with pytest.raises(InputError, match=r"^cannot read .*: No such file or directory; remove its folder"):
        store.verify([SPEC])


def test_damaged_predictions_say_what_to_do(store):
    make(store)
    path = store.folder(SPEC) / "val.npz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=rf"; remove its folder \({store.folder(SPEC)}\) and repeat"):
        store.predictions(SPEC, Split.VAL)


@pytest.mark.parametrize("damage", [b"", b'{"seconds": 2', b"\xff", b"[]", b"[" * 100_000])
def test_damaged_facts_are_named(store, damage):
    make(store)
    (store.folder(SPEC) / "done.json").write_bytes(damage)
    for ask in (lambda: store.facts(SPEC), store.networks):
        with pytest.raises(
            InputError, match=r"/done\.json is damaged \(.*\); remove its folder \(.*\) and repeat"
        ):
            ask()


def test_a_damaged_spec_of_a_finished_network_is_named_and_of_a_draft_passed_over(store):
    with store.claim(OTHER) as draft:
        draft.write("spec.json", "")
        assert store.networks() == []
    make(store)
    for damage in ("", "{}", '{"task": "toy", "seed": "three"}'):
        (store.folder(SPEC) / "spec.json").write_text(damage)
        with pytest.raises(InputError, match=r"/spec\.json is damaged"):
            store.networks()


def test_a_finished_network_is_on_the_disk_before_it_is_renamed_and_its_name_after(store, monkeypatch):
    """What is synced, seen at the system call: the paths are those that the kernel has for the handles."""
    done, sync, rename = [], os.fsync, Path.rename

    def watched_sync(handle):
        done.append(Path(f"/proc/self/fd/{handle}").readlink())
        sync(handle)

    def watched_rename(path, target):
        done.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "rename", watched_rename)
    make(store)
    draft = store.folder(SPEC).with_name(f".{store.folder(SPEC).name}")
    before, after = done[: done.index("renamed")], done[done.index("renamed") + 1 :]
    assert {draft / path.name for path in store.folder(SPEC).iterdir()} <= set(before)
    assert before[-1] == draft
    recipe = store.folder(SPEC).parent
    assert after == [recipe, recipe.parent, store.root / "networks", store.root]


def test_novelty_of_a_network_that_is_not_done_does_not_count(store):
    make(store)
    store.save_novelty(SPEC, "more", SCORES)
    assert store.has_novelty(SPEC, "more")
    assert not store.has_novelty(SPEC, "other")
    (store.folder(SPEC) / "done.json").unlink()
    assert not store.has_novelty(SPEC, "more")


def test_scores_of_an_older_definition_are_not_read(store):
    """ODIN's step had another unit in files without a version: they are computed again, not mixed in."""
    make(store)
    store.save_novelty(SPEC, "odin", SCORES)
    path = store.folder(SPEC) / "novelty-odin-v2.npz"
    path.rename(path.with_name("novelty-odin.npz"))
    assert not store.has_novelty(SPEC, "odin")
    assert store.novelty(SPEC, "odin") is None
    store.save_novelty(SPEC, "energy", SCORES)
    assert (store.folder(SPEC) / "novelty-energy.npz").is_file()


@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("done.json", lambda store: store.facts(SPEC)),
        ("weights.safetensors", lambda store: store.weights(SPEC)),
        ("weights.safetensors", lambda store: store.verify([SPEC])),
        ("novelty-odin-v2.npz", lambda store: store.novelty(SPEC, "odin")),
    ],
    ids=["facts", "weights", "verified", "novelty"],
)
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_on(store, name, read, put):
    make(store)
    store.save_novelty(SPEC, "odin", SCORES)
    (store.folder(SPEC) / name).unlink()
    put(store.folder(SPEC) / name)
    with pytest.raises(InputError, match=rf"(cannot read .*{name}: a (pipe|device);|is missing in)"):
        read(store)
