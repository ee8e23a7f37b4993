"""A bundle's weights give the predictions that its metrics come from, also where a store has no digests."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

import surefoot
from surefoot import InputError
from surefoot.deploy.make_bundle import chosen_method, write_bundle
from surefoot.lab.recipes.recipe import Recipe
from tests.deploy.made import ran

POINTS = Recipe(network="mlp", width=8, epochs=2, learning_rate=0.05)


@pytest.fixture(scope="module", params=["images", "points"])
def made(request, tmp_path_factory):
    """An experiment on image files, or on a built-in task."""
    options = {} if request.param == "images" else {"task": "toy", "recipe": POINTS}
    return ran(tmp_path_factory.mktemp("made"), methods=("ensemble-of-t",), **options)


def bundle_of(made, folder):
    chosen = chosen_method(made.opened, "ensemble-of-t", task=None, network=None)
    write_bundle(chosen, folder, resamples=0)
    return json.loads((folder / "bundle.json").read_text())


def test_rows_of_the_test_sets_are_compared_with_the_stored_predictions(made, tmp_path):
    about = bundle_of(made, tmp_path / "b")
    assert about["checked"]["rows"] == 8
    assert 0 <= about["checked"]["largest_difference"] < 1e-5


def test_other_weights_are_noticed_in_a_store_without_digests(made, tmp_path):
    """A store of an older version: only the predictions can say that these are not their weights."""
    spec = chosen_method(made.opened, "ensemble-of-t", task=None, network=None).planned.runs[0][1]
    folder, kept = made.store.folder(spec), tmp_path / "kept"
    shutil.copytree(folder, kept)
    weights = load_file(folder / "weights.safetensors")
    last = sorted(name for name in weights if name.endswith("bias"))[0]
    save_file(weights | {last: weights[last] + 8}, folder / "weights.safetensors")
    facts = json.loads((folder / "done.json").read_text())
    del facts["sha256"]
    (folder / "done.json").write_text(json.dumps(facts))
    try:
        with pytest.raises(InputError) as error:
            bundle_of(made, tmp_path / "new" / "b")
    finally:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
    assert f"{folder / 'weights.safetensors'} does not give the stored predictions: a probab" in str(
        error.value
    )
    assert str(error.value).endswith("which trains this network again")
    assert not (tmp_path / "new").exists()


def test_without_the_data_a_bundle_is_written_and_says_that_it_was_not_compared(made, tmp_path):
    if not made.images.exists():  # the points of a built-in task are always there, and are compared
        assert bundle_of(made, tmp_path / "b")["checked"]["rows"] > 0
        return
    made.images.rename(tmp_path / "elsewhere")
    try:
        about = bundle_of(made, tmp_path / "b")
    finally:
        (tmp_path / "elsewhere").rename(made.images)
    assert about["checked"]["rows"] == 0
    assert about["checked"]["reason"]
    surefoot.load_bundle(tmp_path / "b")


def test_networks_that_give_something_else_than_when_they_were_bundled_are_refused(made, tmp_path):
    """As after a change in the code that builds them: here the record is changed, not the code."""
    about = bundle_of(made, tmp_path / "b")
    assert len(about["fixed_probabilities"]) == 2
    about["fixed_probabilities"][1][0] += 0.01
    (tmp_path / "b" / "bundle.json").write_text(json.dumps(about))
    with pytest.raises(
        InputError, match=r"do not reproduce the bundle's stored predictions: .* differs by 0\.01"
    ):
        surefoot.load_bundle(tmp_path / "b")
    for wrong in ([], [[0.5]], "text", None, [[float("nan")] * 9]):
        about["fixed_probabilities"] = wrong
        (tmp_path / "b" / "bundle.json").write_text(json.dumps(about))
        if wrong is None:
            surefoot.load_bundle(tmp_path / "b")
        else:
            with pytest.raises(InputError):
                surefoot.load_bundle(tmp_path / "b")
