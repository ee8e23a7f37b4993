"""What a network may learn from: never val where it is held out, and never anything it is tested on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from surefoot.errors import InputError
from surefoot.lab.recipes.recipe import Protocol, Recipe, Spec, Teachers
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Split, Task
from surefoot.lab.training.data import task_inputs
from surefoot.lab.variants import Averaged, Bayesian, Distilled, HeldOut
from surefoot.lab.variants.build import TaskContext, phases
from surefoot.lab.workers.produce import produce
from tests.small_images import write_task

CPU = torch.device("cpu")
TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


@pytest.fixture(scope="module")
def task():
    """The toy, smaller, with groups."""
    whole = task_named("toy")
    splits = {split: samples.take(range(300)) for split, samples in whole.splits.items()}
    groups = np.asarray([f"g{row % 7}" for row in range(300)])
    splits = {split: replace(samples, groups=groups) for split, samples in splits.items()}
    return Task("toy/small", whole.kind, whole.class_names, splits)


def changed(task, split, **values):
    """The same task with other samples in one split."""
    return replace(task, splits={**task.splits, split: replace(task.splits[split], **values)})


def trained(task, folder, protocol, **values):
    recipe = Recipe(network="mlp", width=16, epochs=2, learning_rate=0.1, protocol=protocol, **values)
    spec, store = Spec(task.name, task.identity, recipe, 0), Store(folder)
    inputs = task_inputs(task, recipe, cache=folder / "cache")
    produce(spec, TaskContext(task, inputs, torch.device("cpu")), store)
    return store, spec


def weights(made, name="weights"):
    store, spec = made
    return load_file(store.folder(spec) / f"{name}.safetensors")


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in left.keys() | right.keys())


def test_holdout_never_learns_from_val(task, tmp_path):
    wrong = changed(task, Split.VAL, labels=1 - task.splits[Split.VAL].labels)
    found = [trained(each, tmp_path / name, "holdout") for name, each in (("a", task), ("b", wrong))]
    assert same(weights(found[0]), weights(found[1]))
    files = {path.name for path in found[0][0].folder(found[0][1]).glob("*.safetensors")}
    assert files == {"weights.safetensors"}


def test_the_paper_s_first_training_never_learns_from_val_and_its_second_does(task, tmp_path):
    wrong = changed(task, Split.VAL, labels=1 - task.splits[Split.VAL].labels)
    right, other = (trained(each, tmp_path / name, "paper") for name, each in (("a", task), ("b", wrong)))
    assert same(weights(right, "weights_train"), weights(other, "weights_train"))
    assert not same(weights(right), weights(other))
    said = [store.predictions(spec, Split.VAL).logits for store, spec in (right, other)]
    assert np.array_equal(*said)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_nothing_tested_on_reaches_a_weight(task, tmp_path, protocol):
    before = trained(task, tmp_path / "before", protocol)
    spoilt = task
    for split in TESTED:
        samples = task.splits[split]
        spoilt = changed(spoilt, split, labels=1 - samples.labels, inputs=samples.inputs[::-1] * 100)
    after = trained(spoilt, tmp_path / "after", protocol)
    assert same(weights(before), weights(after))
    if protocol is Protocol.SEARCH:  # which predicts only val
        assert not any(
            (store.folder(spec) / f"{split}.npz").exists() for split in TESTED for store, spec in [after]
        )
        return
    for split in TESTED:
        assert not np.array_equal(*(store.predictions(spec, split).logits for store, spec in (before, after)))


def test_unfamiliar_logits_are_kept_with_ids_groups_and_labels(task, tmp_path):
    store, spec = trained(task, tmp_path, "holdout")
    for split in (Split.VAL, *TESTED):
        said, samples = store.predictions(spec, split), task.splits[split]
        assert list(said.ids) == samples.ids.tolist()
        assert list(said.groups) == samples.groups.tolist()
        assert np.array_equal(np.asarray(said.labels), samples.labels)
        assert said.class_names == task.class_names
        assert np.isfinite(said.logits).all()


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_task_without_tests_still_ends_with_its_final_weights_which_are_verified_later(
    task, tmp_path, protocol
):
    bare = replace(task, splits={split: task.splits[split] for split in (Split.TRAIN, Split.VAL)})
    store, spec = trained(bare, tmp_path, protocol)
    weights = store.weights_file(spec)
    whole = weights.read_bytes()
    assert not (store.folder(spec) / "test_familiar.npz").exists()
    trained(bare, tmp_path, protocol)
    assert weights.read_bytes() == whole
    weights.write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
    with pytest.raises(InputError, match=r"is damaged .*; remove its folder .* and repeat"):
        trained(bare, tmp_path, protocol)


def test_a_task_without_val_is_refused(task):
    bare = replace(task, splits={Split.TRAIN: task.splits[Split.TRAIN]})
    with pytest.raises(InputError, match="has no val split; needed: one, to calibrate on"):
        phases(Protocol.PAPER, bare)


def test_divergence_names_epoch_rate_and_a_way_out(task, tmp_path):
    recipe = Recipe(network="mlp", width=16, epochs=4, learning_rate=1e30)
    spec = Spec(task.name, task.identity, recipe, 0)
    context = TaskContext(task, task_inputs(task, recipe, cache=tmp_path), torch.device("cpu"))
    said = (
        r"diverged in epoch 1 of 4: the loss is \S+ at learning rate 1e\+30; try a lower one, such as 1e\+29"
    )
    with pytest.raises(InputError, match=said):
        produce(spec, context, Store(tmp_path))


def test_networks_of_one_order_have_their_own_augmentation(tmp_path):
    """One context, as a worker opens it for all jobs of an order, trains what a context of its own does."""
    task = task_named(str(write_task(tmp_path)))
    plain = Recipe(network="mlp", width=4, epochs=1, view=8, resize=8, augmentation="none")
    augmented = replace(plain, augmentation="inception")
    shared, store = TaskContext(task, task_inputs(task, plain, cache=tmp_path), torch.device("cpu")), {}
    for name, recipe, context in (
        ("shared", augmented, shared),
        ("own", augmented, replace(shared, inputs=task_inputs(task, augmented, cache=tmp_path))),
    ):
        spec = Spec(task.name, task.identity, recipe, 0)
        produce(spec, context, Store(tmp_path / name))
        store[name] = weights((Store(tmp_path / name), spec))
    assert same(store["shared"], store["own"])


STEPS = {
    "sharpness": 0.1,
    "schedule": "cosine",
    "weight_average": 0.9,
    "regmixup": 5.0,
    "label_smoothing": 0.1,
}


@pytest.mark.parametrize("kind", [Bayesian, Distilled, HeldOut, Averaged])
def test_every_variant_is_trained_with_the_options_of_its_recipe(task, tmp_path, kind):
    def made(name, **values):
        members = Recipe(network="mlp", width=16, epochs=2, learning_rate=0.1, protocol="holdout", **values)
        for seed in (0, 1):
            spec = Spec(task.name, task.identity, members, seed)
            produce(
                spec,
                TaskContext(task, task_inputs(task, members, cache=tmp_path), CPU),
                Store(tmp_path / name),
            )
        variant = {
            Bayesian: Bayesian(),
            Distilled: Distilled(teachers=Teachers(members, (0, 1))),
            HeldOut: HeldOut(fold=0, folds=3),
            Averaged: Averaged(teachers=Teachers(members, (0, 1))),
        }[kind]
        return trained(task, tmp_path / name, "holdout", variant=variant, **values)

    store, spec = made("plain")
    other = made("other", **STEPS)
    split = "held_out" if kind is HeldOut else Split.TEST_UNFAMILIAR
    assert other[1].recipe.sharpness == 0.1
    assert not np.array_equal(
        store.predictions(spec, split).logits, other[0].predictions(other[1], split).logits
    )
    assert np.isfinite(other[0].predictions(other[1], split).logits).all()
