"""Every method keeps the contract: sound probabilities, nothing learnt from tests, the same again, saved and loaded."""

import json
import shutil
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from surefoot.calibrators import load_calibration, save_calibration
from surefoot.calibrators.budget import fit_budget_temperature
from surefoot.calibrators.temperature import fit_temperature
from surefoot.errors import InputError
from surefoot.lab.experiments.methods import METHODS, Setup, held_out_networks, obstacle
from surefoot.lab.experiments.plan import plan_from, plan_of
from surefoot.lab.experiments.results import Reader
from surefoot.lab.recipes.recipe import Recipe, Teachers
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Split, Task
from surefoot.lab.training.data import task_inputs
from surefoot.lab.variants import Bayesian, Distilled, HeldOut
from surefoot.lab.variants.build import TaskContext
from surefoot.lab.workers.produce import complete, produce
from surefoot.metrics import nll_unclipped
from surefoot.predictions.labels import IGNORE, LabelKind

RECIPE = Recipe(network="mlp", width=8, epochs=2, learning_rate=0.05, batch=64)
TESTED = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)
HONEST = [method for method in METHODS if not method.oracle]
names = [method.name for method in METHODS]


def small_task(kind, *, groups):
    """The toy, smaller; for many labels three of them, some ignored."""
    whole = task_named("toy")
    splits = {split: samples.take(range(200)) for split, samples in whole.splits.items()}
    if kind is LabelKind.MANY_LABELS:
        splits = {split: replace(each, labels=_many(split, each)) for split, each in splits.items()}
    if groups:
        cells = {split: (each.inputs > 0).astype(int) @ [1, 2] for split, each in splits.items()}
        splits = {
            s: replace(each, groups=np.char.add("cell ", cells[s].astype(str))) for s, each in splits.items()
        }
    classes = whole.class_names if kind is LabelKind.ONE_LABEL else ("right", "up", "far")
    return Task("toy/small", kind, classes, splits)


def _many(split, samples):
    x = samples.inputs
    labels = np.stack([x[:, 0] > 0.1, x[:, 1] > 0, np.abs(x).max(axis=1) > 0.4], axis=1).astype(np.int64)
    labels[::7, 2] = IGNORE
    return np.full_like(labels, IGNORE) if split is Split.UNLABELLED else labels


def carried_out(task, folder, *, recipe=RECIPE):
    """A reader over a store where all that the methods need was made."""
    setup = Setup(task, recipe, members=2, runs=2, folds=2)
    context = TaskContext(task, task_inputs(task, recipe, cache=folder / "cache"), torch.device("cpu"))
    store = Store(folder)
    for job in plan_of(setup, METHODS).jobs():
        produce(setup.spec(job.recipe, job.seed), context, store)
        complete(setup.spec(job.recipe, job.seed), job, context, store)
    return Made(setup, Reader(store))


@dataclass(frozen=True)
class Made:
    """What was set up, and a reader of the store that it went to."""

    setup: Setup
    reader: Reader
    results: dict = field(default_factory=dict)  # fitted once

    @property
    def store(self):
        return self.reader.store

    def result(self, method):
        if method not in self.results:
            plan = plan_from(json.loads(json.dumps(plan_of(self.setup, [method]).as_dict())))
            self.results[method] = self.reader.result(plan.methods[0])
        return self.results[method]


@pytest.fixture(scope="module", params=["one label", "one label, with groups", "many labels"])
def made(request, tmp_path_factory):
    kind = LabelKind.MANY_LABELS if "many" in request.param else LabelKind.ONE_LABEL
    task = small_task(kind, groups="groups" in request.param)
    return task, carried_out(task, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", names)
def test_probabilities_are_sound_for_every_run(made, name):
    task, reader = made
    result = reader.result(METHODS.named(name))
    assert not result.missing
    assert len(result.runs) == METHODS.named(name).count(reader.setup) >= 1
    for run in result.runs:
        for split in TESTED:
            probs = run.after[split].probs()
            assert probs.shape == (len(task.splits[split]), len(task.class_names))
            assert ((probs >= 0) & (probs <= 1)).all()
            if task.kind is LabelKind.ONE_LABEL:
                np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-9)
            assert (run.after[split].labels == task.splits[split].labels).all()


@pytest.mark.parametrize("name", names)
def test_saved_and_loaded_it_says_the_same(made, name, tmp_path):
    _, reader = made
    run = reader.result(METHODS.named(name)).runs[0]
    if run.calibration is None:
        assert run.after is run.before
        return
    save_calibration(run.calibration, tmp_path / "fitted.json")
    loaded = load_calibration(tmp_path / "fitted.json")
    assert loaded == run.calibration
    if METHODS.named(name).scales_samples:  # the samples that it divides are not stored
        with pytest.raises(InputError, match="fitted for 100 members, but the predictions have 1"):
            loaded(run.before[TESTED[0]])
        return
    for split in TESTED:
        assert np.array_equal(loaded(run.before[split]).logits, run.after[split].logits)


def values(reader, methods):
    """Every fitted value and every weight."""
    fitted = {
        (method.name, run.run): run.calibration for method in methods for run in reader.result(method).runs
    }
    weights = {}
    for job in plan_of(reader.setup, METHODS).jobs():
        spec = reader.setup.spec(job.recipe, job.seed)
        if not isinstance(job.recipe.variant, HeldOut):
            weights |= {(job, name): value for name, value in reader.store.weights(spec).items()}
    return fitted, weights


def test_trained_again_all_is_the_same_whatever_is_tested_on(made, tmp_path):
    """Every fitted value, weight and prediction, where the test data are others."""
    task, reader = made
    splits = dict(task.splits)
    for split in TESTED:
        wrong = np.where(splits[split].labels == IGNORE, IGNORE, 1 - splits[split].labels)
        splits[split] = replace(splits[split], labels=wrong)
    strange = splits[Split.TEST_UNFAMILIAR]
    splits[Split.TEST_UNFAMILIAR] = replace(strange, inputs=strange.inputs[::-1] * 50 + 1)
    other = carried_out(replace(task, splits=splits), tmp_path)
    (fitted, weights), (fitted_too, weights_too) = values(reader, HONEST), values(other, HONEST)
    assert fitted == fitted_too
    assert len(weights) == len(weights_too) > 20
    assert all(torch.equal(value, weights_too[key]) for key, value in weights.items())
    for method in HONEST:
        for ours, theirs in zip(reader.result(method).runs, other.result(method).runs, strict=True):
            familiar, too = (run.after[Split.TEST_FAMILIAR].logits for run in (ours, theirs))
            assert np.array_equal(familiar, too), method.name
    cheats = [method for method in METHODS if method.oracle and method.novelty is None]
    assert values(reader, cheats)[0] != values(other, cheats)[0]  # so the comparison can fail


@pytest.mark.parametrize("name", names)
def test_another_seed_gives_something_else(made, name):
    _, reader = made
    runs = reader.result(METHODS.named(name)).runs
    if len(runs) > 1:
        assert not np.array_equal(*(run.after[Split.TEST_FAMILIAR].logits for run in runs[:2]))


def test_an_ensemble_is_the_mean_of_its_members(made):
    _, reader = made
    singles = reader.result(METHODS.named("single")).runs
    ensemble = reader.result(METHODS.named("ensemble")).runs[0]
    for split in TESTED:
        mean = np.mean([run.after[split].probs() for run in singles], axis=0)
        np.testing.assert_allclose(ensemble.after[split].probs(), mean, atol=1e-6)
        assert ensemble.after[split].members == 2


def test_the_barrier_between_members_is_kept(made):
    _, reader = made
    (spec,) = reader.result(METHODS.named("averaged-t")).runs[0].specs
    result = reader.store.facts(spec)["interpolation"]
    assert len(result["val_nll"]) == len(result["at"]) == 5
    line = np.interp(result["at"], [0, 1], [result["val_nll"][0], result["val_nll"][-1]])
    assert result["barrier"] == pytest.approx(max(np.array(result["val_nll"]) - line))


def test_distillation_needs_its_teachers(made, tmp_path):
    task, _ = made
    setup = Setup(task, RECIPE, members=2, runs=1)
    context = TaskContext(task, task_inputs(task, RECIPE, cache=tmp_path), torch.device("cpu"))
    student = replace(RECIPE, variant=Distilled(teachers=Teachers(RECIPE, (0, 1))))
    with pytest.raises(InputError, match="needs the one of toy/small with seed 0 first"):
        produce(setup.spec(student, 0), context, Store(tmp_path))
    assert not list(tmp_path.glob("networks/*/*/*"))


def test_g_distillation_and_whole_network_sampling_work_too(made, tmp_path):
    task, _ = made
    setup = Setup(task, RECIPE, members=2, runs=1)
    context = TaskContext(task, task_inputs(task, RECIPE, cache=tmp_path), torch.device("cpu"))
    store = Store(tmp_path)
    teachers = Teachers(RECIPE, (0, 1))
    for seed in teachers.seeds:
        produce(setup.spec(RECIPE, seed), context, store)
    outputs = []
    for variant in (
        Distilled(teachers=teachers),
        Distilled(teachers=teachers, unlabelled=0.25),
        Bayesian(sampled="network", samples=5),
    ):
        spec = setup.spec(replace(RECIPE, variant=variant), 0)
        produce(spec, context, store)
        outputs.append(store.predictions(spec, Split.TEST_FAMILIAR).logits)
    assert all(np.isfinite(each).all() for each in outputs)
    assert not np.array_equal(outputs[0], outputs[1])


@pytest.mark.parametrize(
    ("numbers", "networks", "ensembles"),
    [
        ({"members": 3, "runs": 2}, 3, 1),
        ({"members": 3, "runs": 7}, 7, 2),  # what the runs leave over makes no third
        ({"members": 3, "runs": 2, "ensembles": 2}, 6, 2),
        ({"members": 3, "runs": 7, "ensembles": 3}, 9, 3),
        ({"members": 3, "runs": 10, "ensembles": 2}, 10, 3),
    ],
)
def test_ensembles_are_as_many_as_asked_for_and_share_no_network(numbers, networks, ensembles):
    setup = Setup(small_task(LabelKind.ONE_LABEL, groups=False), RECIPE, **numbers)
    method = METHODS.named("ensemble")
    seeds = [{seed for _, seed in method.networks(setup, run)} for run in range(method.count(setup))]
    assert setup.networks == networks
    assert [len(each) for each in seeds] == [3] * ensembles
    assert set.union(*seeds) == set(range(3 * ensembles))
    assert METHODS.named("single").count(setup) == METHODS.named("distill").count(setup) == setup.runs
    plain = plan_of(setup, [METHODS.named("single"), method]).jobs()
    assert sorted(job.seed for job in plan_of(setup, [method]).jobs()) == list(range(3 * ensembles))
    assert sorted(job.seed for job in plain) == list(range(max(3 * ensembles, setup.runs)))


def test_held_out_networks_predict_every_group_that_can_be_spared(made):
    task, reader = made
    result = []
    for recipe, seed in held_out_networks(reader.setup):
        outputs = reader.store.predictions(reader.setup.spec(recipe, seed), "held_out")
        result += outputs.ids.tolist()
        familiar = set(task.splits[Split.TRAIN].ids.tolist()) | set(task.splits[Split.VAL].ids.tolist())
        assert set(outputs.ids.tolist()) <= familiar
    assert len(result) == len(set(result)) > 100


def test_held_out_networks_predict_the_rest_of_val_too(made):
    task, reader = made
    val = task.splits[Split.VAL]
    for recipe, seed in held_out_networks(reader.setup):
        spec = reader.setup.spec(recipe, seed)
        held_out, familiar = (
            reader.store.predictions(spec, name) for name in ("held_out", "held_out_familiar")
        )
        rest = [row for row in val.ids.tolist() if row not in set(held_out.ids.tolist())]
        assert familiar.ids.tolist() == rest
        assert not set(familiar.groups.tolist()) & set(held_out.groups.tolist())
        labels = dict(zip(val.ids.tolist(), val.labels.tolist(), strict=True))
        assert familiar.labels.tolist() == [labels[row] for row in rest]


def test_both_recipes_have_the_same_folds():
    for groups in (False, True):
        setup = Setup(small_task(LabelKind.ONE_LABEL, groups=groups), RECIPE, members=2, runs=2, folds=2)
        plain, aware = held_out_networks(setup), held_out_networks(setup, sharpness_aware=True)
        assert [(recipe.variant, seed) for recipe, seed in plain] == [(r.variant, seed) for r, seed in aware]
        assert {replace(recipe, variant=None) for recipe, _ in aware} == {setup.sharpness_aware}
        if not groups:
            assert {recipe.variant.teachers for recipe, _ in aware} == {Teachers(RECIPE, (0,))}


def test_a_surplus_is_measured_from_the_plain_network_of_the_same_seed(made):
    """Reversed, the runs of a plan have the same T: the reference goes with the network, not with its place."""
    _, reader = made
    method = METHODS.named("sharpness-aware-budget-t").with_budget("surplus")
    (planned,) = plan_of(reader.setup, [method]).methods
    result = reader.reader.result(planned)
    for run in result.runs:
        plain = reader.store.predictions(reader.setup.spec(RECIPE, run.run), Split.VAL)
        own = reader.store.predictions(reader.setup.spec(reader.setup.sharpness_aware, run.run), Split.VAL)
        assert run.calibration == fit_budget_temperature(own, "surplus", reference=plain)
        least = fit_temperature(plain)(plain)
        assert run.calibration.nll_limit == pytest.approx(nll_unclipped(least))
    reverse = reader.reader.result(replace(planned, runs=planned.runs[::-1]))
    fitted = [run.calibration for run in result.runs]
    assert [run.calibration for run in reverse.runs] == fitted[::-1]
    assert fitted[0].nll_limit != fitted[1].nll_limit, "so that this can fail"
    shares = [reader.result(method.with_budget(budget)).runs[0].calibration for budget in (0.02, 0.1)]
    assert [each.budget for each in shares] == [0.02, 0.1]
    seconds = {each: reader.result(method.with_budget(each)).seconds_training for each in (0.02, "surplus")}
    assert seconds["surplus"] > seconds[0.02], "with the plain network's training"


def test_a_surplus_needs_the_plain_network(made, tmp_path):
    _, reader = made
    store = Store(tmp_path)
    aware = reader.setup.spec(reader.setup.sharpness_aware, 0)
    shutil.copytree(reader.store.folder(aware), store.folder(aware))
    lacking = Made(replace(reader.setup, runs=1), Reader(store))
    method = METHODS.named("sharpness-aware-budget-t")
    result = lacking.result(method.with_budget("surplus"))
    assert (result.runs, result.missing) == ((), ("plain network of toy/small, seed 0",))
    assert len(lacking.result(method.with_budget(0.02)).runs) == 1
    empty = Made(lacking.setup, Reader(Store(tmp_path / "empty")))
    assert empty.result(method.with_budget(0.02)).missing == ("sharpness-aware network of toy/small, seed 0",)


def test_the_formula_and_the_cost_follow_the_rule_for_t():
    method = METHODS.named("sharpness-aware-budget-t")
    rules = {budget: method.with_budget(budget) for budget in (0.05, "surplus", 0.02)}
    ends = {budget: each.formula.partition("<= ")[2] for budget, each in rules.items()}
    assert ends == {
        0.05: "1.05 min NLL_val",
        "surplus": "the plain network's min NLL_val",
        0.02: "1.02 min NLL_val",
    }
    assert {budget: each.training for budget, each in rules.items()} == {
        0.05: "2",
        "surplus": "2 + 1",
        0.02: "2",
    }
    assert rules["surplus"].with_budget(0.02) == rules[0.02]
    assert METHODS.named("budget-t").with_budget("surplus").training == "1", "it is the plain network itself"
    assert METHODS.named("single-t").with_budget(0.05) is METHODS.named("single-t")
    assert method.with_budget(None) is method
    with pytest.raises(InputError, match="budget is -1; allowed: a number from 0"):
        method.with_budget(-1)


def test_a_student_of_sharpness_aware_teachers_has_their_recipe():
    setup = Setup(small_task(LabelKind.ONE_LABEL, groups=False), RECIPE, members=2, runs=2)
    student = replace(METHODS.named("distill"), sharpness_aware=True)
    ((recipe, seed),) = student.networks(setup, 1)
    assert (replace(recipe, variant=None), seed) == (setup.sharpness_aware, 1)
    assert recipe.variant.teachers == Teachers(setup.sharpness_aware, (0, 1))


def test_missing_networks_are_named_and_not_averaged_in(made, tmp_path):
    _, reader = made
    empty = Made(reader.setup, Reader(Store(tmp_path)))
    result = empty.result(METHODS.named("ensemble-of-t"))
    assert result.runs == ()
    assert result.missing == tuple(f"plain network of toy/small, seed {seed}" for seed in (0, 1))


def test_a_method_that_does_not_apply_says_why():
    task = small_task(LabelKind.ONE_LABEL, groups=False)
    bare = replace(task, splits={s: each for s, each in task.splits.items() if s is not Split.UNLABELLED})
    setup = Setup(bare, RECIPE, members=1, runs=1)
    assert "has none" in obstacle(METHODS.named("g-distill"), setup)
    assert "two members" in obstacle(METHODS.named("ensemble"), setup)
    assert obstacle(METHODS.named("single"), setup) is None
    own = replace(setup, recipe=replace(RECIPE, network="some.where:build"))
    assert "gives logits only" in obstacle(METHODS.named("bayesian"), own)
    with pytest.raises(InputError, match="unknown method 'x'; have: single,"):
        METHODS.named("x")
