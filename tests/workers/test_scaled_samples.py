"""T inside the samples of a Bayesian network: fitted from its weights, stored, resumed, read by its method."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from surefoot.errors import InputError
from surefoot.lab.experiments.methods import METHODS, Setup
from surefoot.lab.experiments.plan import plan_of
from surefoot.lab.experiments.results import Reader, stored_scaled_samples
from surefoot.lab.experiments.run import undone
from surefoot.lab.networks.backbones import build_network
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Split, Task
from surefoot.lab.training.data import task_inputs
from surefoot.lab.training.predict import Sampled
from surefoot.lab.variants import Bayesian
from surefoot.lab.variants.build import TaskContext
from surefoot.lab.workers import produce as module
from surefoot.lab.workers.jobs import WorkOrder
from surefoot.lab.workers.produce import complete, produce
from surefoot.predictions.labels import LabelKind
from tests.calibrators.test_before_averaging import brute_nll, probabilities

METHOD = METHODS.named("bayesian-t")
TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
RECIPE = Recipe(network="mlp", width=24, epochs=6, learning_rate=0.2)


def small(kind):
    """Toy points, some labels wrong; for many labels two columns, one label of three unknown."""
    whole, rng = task_named("toy"), np.random.default_rng(0)
    splits = {}
    for split in (Split.TRAIN, Split.VAL, *TESTED):
        samples = whole.splits[split]
        few = samples.take(range(300))
        labels = np.where(rng.random(300) < 0.1, 1 - few.labels, few.labels)
        if kind is LabelKind.MANY_LABELS:
            labels = np.stack([labels, 1 - labels, rng.integers(0, 2, 300)], axis=1)
            labels[::3, 2] = -100
        splits[split] = replace(few, labels=labels, groups=None)
    names = whole.class_names if kind is LabelKind.ONE_LABEL else ("a", "b", "c")
    return Task(f"toy/{kind}", kind, names, splits)


@pytest.fixture(scope="module", params=["head", "network", "many_labels", "holdout"])
def case(request, tmp_path_factory):
    """A store with one Bayesian network, and all that made it."""
    task = small(LabelKind.MANY_LABELS if request.param == "many_labels" else LabelKind.ONE_LABEL)
    sampled = "network" if request.param == "network" else "head"
    protocol = "holdout" if request.param == "holdout" else "paper"
    variant = Bayesian(samples=12, training_samples=3, sampled=sampled)
    recipe = replace(RECIPE, variant=variant, protocol=protocol)
    method = replace(METHOD, variant=lambda _setup, _run: variant)
    plan = plan_of(Setup(task, replace(recipe, variant=None), members=1, runs=1), [method])
    folder = tmp_path_factory.mktemp("scaled")
    store = Store(folder / "store")
    context = TaskContext(task, task_inputs(task, recipe, cache=folder), torch.device("cpu"))
    (job,) = plan.jobs()
    assert job.scaled_samples
    spec = plan.spec(job)
    produce(spec, context, store)
    assert undone(plan, store) == (job,)
    complete(spec, job, context, store)
    assert undone(plan, store) == ()
    return plan, job, spec, context, store


def drawn(case, split, weights):
    """All samples of a split's logits, from the stored weights, in one batch of other code."""
    _, _, spec, context, store = case
    network = context.restored(spec, store.weights(spec, weights))
    sampler = spec.recipe.variant.sampler(spec, context, split)
    values = context.inputs[split].values
    with torch.no_grad():
        parts = [sampler.draw(network, part) for part in torch.split(values, 256)]
    return torch.cat(parts, dim=1).double().numpy()


def test_it_is_the_numpy_computation_on_the_same_samples(case):
    _, _, spec, context, store = case
    kind = str(context.task.kind)
    paper = spec.recipe.protocol == "paper"
    logits, labels = drawn(case, Split.VAL, "weights_train" if paper else "weights"), context.task.splits
    val = labels[Split.VAL].labels
    best = minimize_scalar(
        lambda x: brute_nll(logits, val, kind, math.exp(x)), bounds=(-3, 3), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    assert abs(best.x) > 0.02  # else T would not show
    for split in (Split.VAL, *TESTED):
        predictions, fitted = stored_scaled_samples(spec, store, split)
        assert fitted.temperature == pytest.approx(math.exp(best.x), rel=1e-4)
        assert fitted.members == 12
        if split is not Split.VAL:
            logits = drawn(case, split, "weights")
        expected = probabilities(logits, kind, fitted.temperature)
        np.testing.assert_allclose(predictions.probs(), expected, atol=2e-5)
        plain = store.predictions(spec, split)  # the average of the same samples at T = 1
        np.testing.assert_allclose(plain.probs(), probabilities(logits, kind, 1.0), atol=2e-5)
        assert list(predictions.ids) == list(plain.ids)
        assert np.array_equal(predictions.labels, plain.labels)


def test_the_method_reads_it(case):
    plan, _, spec, _, store = case
    (run,) = Reader(store).result(plan.methods[0]).runs
    for split in TESTED:
        predictions, fitted = stored_scaled_samples(spec, store, split)
        assert run.calibration == fitted
        assert np.array_equal(run.after[split].logits, predictions.logits)
        assert np.array_equal(run.before[split].logits, store.predictions(spec, split).logits)
        assert not np.array_equal(run.after[split].logits, run.before[split].logits)
    assert run.outer_calibration is None


def test_only_averages_are_stored(case):
    _, _, spec, _, store = case
    arrays = store.scaled_samples(spec)
    assert set(arrays) == {"calibration", Split.VAL, *TESTED}
    for split in (Split.VAL, *TESTED):
        assert arrays[split].dtype == np.float32
        assert arrays[split].shape == tuple(store.predictions(spec, split).logits.shape[1:])


@pytest.fixture
def copy(case, tmp_path):
    """The same with a store of its own."""
    *rest, store = case
    shutil.copytree(store.root, tmp_path / "store")
    return (*rest, Store(tmp_path / "store"))


def test_it_is_computed_again_from_the_weights_and_is_the_same(copy):
    """As in a store of a version without it, and after a kill between the two."""
    plan, job, spec, context, store = copy
    before = store.scaled_samples(spec)
    (store.folder(spec) / "scaled-samples.npz").unlink()
    assert undone(plan, store) == (job,)
    result = Reader(store).result(plan.methods[0])
    assert result.runs == ()
    assert result.missing == (
        f"T inside the samples of bayesian network of {spec.task}, seed 0, which 'surefoot run' computes from "
        "its weights (networks stored before T was inside have none; 't-of-bayesian' has T after averaging)",
    )
    trained = store.weights_file(spec).stat().st_mtime_ns
    produce(spec, context, store)
    complete(spec, job, context, store)
    assert store.weights_file(spec).stat().st_mtime_ns == trained
    after = store.scaled_samples(spec)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_without_weights_it_says_what_to_do(copy):
    _, job, spec, context, store = copy
    (store.folder(spec) / "scaled-samples.npz").unlink()
    for path in store.folder(spec).glob("*.safetensors"):
        path.unlink()
    message = r"has no weights\w*.safetensors, from which T inside its samples would be computed; remove the "
    with pytest.raises(InputError, match=message + "folder to train this network again"):
        complete(spec, job, context, store)


@pytest.mark.parametrize("wrong", [{"calibration": np.array("{}")}, {"calibration": np.array("x")}, {}])
def test_a_damaged_file_says_what_to_do(copy, wrong):
    _, _, spec, _, store = copy
    store.save_scaled_samples(spec, {Split.VAL: store.scaled_samples(spec)[Split.VAL], **wrong})
    with pytest.raises(InputError, match=r"scaled-samples\.npz is damaged .*; remove it to compute it again"):
        stored_scaled_samples(spec, store, Split.VAL)


def test_too_many_samples_for_memory_are_thinned(copy, monkeypatch):
    _, job, spec, context, store = copy
    logits = drawn(copy, Split.VAL, "weights_train" if spec.recipe.protocol == "paper" else "weights")
    monkeypatch.setattr(module, "LARGEST_DRAW", 12 * 50 * logits.shape[2])
    (store.folder(spec) / "scaled-samples.npz").unlink()
    complete(spec, job, context, store)
    _, fitted = stored_scaled_samples(spec, store, Split.VAL)
    labels = context.task.splits[Split.VAL].labels[::6]
    assert fitted.n == 50
    losses = [
        brute_nll(logits[:, ::6], labels, str(context.task.kind), temperature)
        for temperature in (fitted.temperature, *np.geomspace(1e-3, 1e3, 500))
    ]
    assert losses[0] <= min(losses) + 1e-7


def test_orders_carry_it(case):
    _, job, *_ = case
    order = WorkOrder(task="toy", root=None, jobs=(job,), store="s")
    assert WorkOrder.from_json(order.as_json()).jobs == (job,)


def test_a_sampler_divides_each_sample():
    make = torch.Generator().manual_seed
    network = build_network("mlp", 3, generator=make(0), hidden=(8,), head="gaussian", head_dropout=0.5)
    views = torch.randn(20, 2, generator=make(1))
    for kind in LabelKind:
        with torch.no_grad():
            logits = Sampled(kind, 30, make(2)).draw(network.eval(), views)
            found = Sampled(kind, 30, make(2), temperature=2.5)(network, views)
        probs = found.softmax(1) if kind is LabelKind.ONE_LABEL else found.sigmoid()
        np.testing.assert_allclose(probs, probabilities(logits.numpy(), str(kind), 2.5), atol=1e-6)
