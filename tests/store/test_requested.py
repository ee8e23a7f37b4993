"""What was ordered is known, begun or not."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot.errors import InputError
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.store.files import State
from surefoot.lab.store.store import Store
from tests.store.made import OTHER, SPEC, make

ORDER = [replace(SPEC, seed=seed) for seed in (11, 0, 3)]


def listed(store):
    return [(found.task, found.seed, found.state) for found in store.networks()]


def files(store):
    return sorted(path.name for path in (store.root / "wanted").glob("*"))


def test_a_network_ordered_and_never_begun_is_missing(store):
    store.request(ORDER)
    assert listed(store) == [("toy/wave", seed, State.MISSING) for seed in (0, 3, 11)]
    assert {found.recipe for found in store.networks()} == {f"mlp-{SPEC.recipe.digest}"}
    assert all(found.seconds is None and found.log == () for found in store.networks())
    assert files(store) == sorted(f"{spec.key}.json" for spec in ORDER)
    for spec in ORDER:
        document = json.loads((store.root / "wanted" / f"{spec.key}.json").read_text())
        assert document == spec.as_dict() | {"recipe": {"network": "mlp", "width": 16}}


def test_a_network_is_listed_once_in_one_order_however_far_it_is(store):
    """Two tasks and two recipes, so that what is missing has to be sorted in between."""
    specs = [
        replace(SPEC, task=task, task_identity=task, recipe=Recipe(network=network), seed=seed)
        for task in ("b/c", "a")
        for network in ("resnet18", "mlp")
        for seed in (2, 1)
    ]
    expected = [
        (task, network, seed) for task in ("a", "b/c") for network in ("mlp", "resnet18") for seed in (1, 2)
    ]

    def order():
        return [(found.task, found.recipe.split("-")[0], found.seed) for found in store.networks()]

    store.request(specs)
    assert order() == expected
    for spec in specs[::3]:
        make(store, spec)
        assert order() == expected
    with store.claim(specs[1]):
        assert order() == expected
        states = [found.state for found in store.networks()]
    assert {state: states.count(state) for state in states} == {
        State.DONE: 3,
        State.RUNNING: 1,
        State.MISSING: 4,
    }


def test_what_is_done_is_not_ordered_again_and_shows_once(store):
    store.request([OTHER])
    make(store)
    make(store, OTHER)
    store.request([SPEC, OTHER])
    assert files(store) == [f"{OTHER.key}.json"]
    assert listed(store) == [("toy/wave", 3, State.DONE), ("toy/wave", 11, State.DONE)]


def test_a_finished_folder_that_was_removed_is_missing_again(store):
    store.request([SPEC])
    make(store)
    store.folder(SPEC).rename(store.root / "elsewhere")
    assert listed(store) == [("toy/wave", 3, State.MISSING)]


def test_to_order_again_writes_nothing(store):
    store.request(ORDER)
    before = {path: path.stat().st_mtime_ns for path in (store.root / "wanted").iterdir()}
    store.request(ORDER)
    assert {path: path.stat().st_mtime_ns for path in (store.root / "wanted").iterdir()} == before


def changed(**values):
    return json.dumps({**SPEC.as_dict(), **values}).encode()


DAMAGE = {
    "empty": b"",
    "cut": changed()[:-40],
    "not text": b"\xff\xfe\x00",
    "no object": b"[1, 2]",
    "nothing in it": b"{}",
    "too deep": b"[" * 100_000,
    "another seed": changed(seed=4),
    "a seed in words": changed(seed="three"),
    "no task": changed(task=None),
    "another recipe": changed(recipe={**SPEC.recipe.as_dict(), "epochs": 1}),
    "a recipe of nothing": changed(recipe=None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_order_is_passed_over_and_mended_by_the_next(store, damage):
    store.request([SPEC, OTHER])
    (store.root / "wanted" / f"{SPEC.key}.json").write_bytes(DAMAGE[damage])
    assert listed(store) == [("toy/wave", 11, State.MISSING)]
    store.request([SPEC])
    assert listed(store) == [("toy/wave", 3, State.MISSING), ("toy/wave", 11, State.MISSING)]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=5)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(st.sampled_from(["task", "task_identity", "recipe", "seed"]), inner),
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_whatever_an_order_holds_there_is_no_traceback(tmp_path, content):
    store = Store(tmp_path)
    (store.root / "wanted").mkdir(exist_ok=True)
    (store.root / "wanted" / f"{SPEC.key}.json").write_bytes(content)
    assert store.networks() == []


def test_half_an_order_of_a_killed_process_and_a_folder_are_no_orders(store):
    store.request([SPEC])
    whole = store.root / "wanted" / f"{SPEC.key}.json"
    (store.root / "wanted" / f".{SPEC.key}.json.x1y2.json").write_bytes(whole.read_bytes())
    (store.root / "wanted" / "folder.json").mkdir()
    assert listed(store) == [("toy/wave", 3, State.MISSING)]


def test_a_mistake_before_the_first_network_of_a_recipe_forgets_its_order_and_no_other(store):
    elsewhere = replace(SPEC, recipe=Recipe(network="mlp", width=8))
    store.request([*ORDER, elsewhere])
    with pytest.raises(InputError), store.claim(SPEC):
        raise InputError("unknown network")
    assert files(store) == [f"{elsewhere.key}.json"]


def test_a_mistake_after_the_first_network_of_a_recipe_forgets_nothing(store):
    make(store, OTHER)
    store.request(ORDER)
    with pytest.raises(InputError), store.claim(SPEC):
        raise InputError("training diverged in epoch 1")
    assert listed(store) == [
        ("toy/wave", 0, State.MISSING),
        ("toy/wave", 3, State.MISSING),
        ("toy/wave", 11, State.DONE),
    ]


def test_an_order_that_cannot_be_kept_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"^cannot write .*file/wanted: Not a directory$"):
        Store(tmp_path / "file").request([SPEC])
