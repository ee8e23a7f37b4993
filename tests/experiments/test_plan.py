"""Plans: each network once and teachers first, to JSON and back, for other methods, and refused when damaged."""

import json
from dataclasses import replace

import pytest

from surefoot.errors import InputError
from surefoot.lab.experiments.methods import METHODS, Setup
from surefoot.lab.experiments.plan import plan_from, plan_of, replanned
from surefoot.lab.tasks.task import Split
from surefoot.lab.variants import Averaged, Bayesian, Distilled, HeldOut
from surefoot.predictions.labels import LabelKind
from tests.experiments.test_methods import RECIPE, small_task


@pytest.fixture(scope="module")
def setup():
    return Setup(small_task(LabelKind.ONE_LABEL, groups=False), RECIPE, members=3, runs=2, folds=2)


@pytest.fixture(scope="module")
def plan(setup):
    return plan_of(setup, METHODS)


def named(*names):
    return [METHODS.named(name) for name in names]


def test_every_network_is_made_once(plan):
    jobs = plan.jobs()
    keys = [plan.spec(job).key for job in jobs]
    assert len(set(keys)) == len(keys)
    kinds = [type(job.recipe.variant) for job in jobs]
    # 3 members of each recipe; 2 runs distilled on F and 2 on F and G; 2 Bayesian; one average of 3; 2 folds
    counts = {type(None): 6, Distilled: 4, Bayesian: 2, Averaged: 1, HeldOut: 2}
    assert {kind: kinds.count(kind) for kind in kinds} == counts


def test_a_job_makes_every_network_that_a_method_reads(plan):
    made = {plan.spec(job) for job in plan.jobs()}
    for planned in plan.methods:
        assert set(planned.specs()) <= made, planned.method.name


def test_teachers_come_first(plan):
    seen = set()
    for job in plan.jobs():
        spec = plan.spec(job)
        assert set(spec.needs()) <= seen
        seen.add(spec)
    assert any(spec.needs() for spec in seen), "so that this can fail"


def test_a_student_alone_brings_its_teachers(setup):
    jobs = plan_of(setup, named("distill")).jobs()
    assert [(job.recipe.variant is None, job.seed) for job in jobs] == [
        (True, 0),
        (True, 1),
        (True, 2),
        (False, 0),
        (False, 1),
    ]


def test_novelty_scores_are_asked_of_the_networks_that_need_them(setup):
    jobs = plan_of(setup, named("novelty", "novelty-knn", "ensemble")).jobs()
    assert [job.novelty for job in jobs] == [("odin", "knn"), ("odin", "knn"), ()]


def test_the_runs_of_each_method(setup, plan):
    for planned in plan.methods:
        networks = (
            3 if planned.method.name.startswith(("ensemble", "t-of-ensemble", "oracle-ensemble")) else 1
        )
        assert {len(run) for run in planned.runs} == {networks}
        assert len(planned.runs) == (1 if planned.method.is_ensemble else 2)
    four = plan_of(replace(setup, members=2, runs=4), named("ensemble")).methods[0]
    assert [[spec.seed for spec in run] for run in four.runs] == [[0, 1], [2, 3]], "no two share a member"


def test_it_comes_back_from_json(plan):
    again = plan_from(json.loads(json.dumps(plan.as_dict())))
    assert again == plan
    assert again.jobs() == plan.jobs()


def test_a_recipe_is_written_once(plan):
    text = json.dumps(plan.as_dict())
    assert len(plan.as_dict()["recipes"]) == 8, "two plain, two distilled, Bayesian, average, two folds"
    assert len(text) < 25_000


def test_a_method_that_does_not_apply_is_left_out_and_why_is_said(setup):
    splits = {s: each for s, each in setup.task.splits.items() if s is not Split.UNLABELLED}
    bare = replace(setup, task=replace(setup.task, splits=splits))
    plan = plan_of(bare, named("single", "g-distill"))
    assert [planned.method.name for planned in plan.methods] == ["single"]
    assert plan.skipped == ("G-distill needs unlabelled samples, and task 'toy/small' has none",)
    assert plan_from(plan.as_dict()).skipped == plan.skipped


def test_other_methods_of_the_same_networks_can_be_had(setup):
    plan = plan_of(setup, named("single", "ensemble"))
    other, without = replanned(plan, named("t-of-ensemble", "budget-t", "distill", "held-out-t", "single"))
    assert without == ("distill", "held-out-t")
    assert other.methods == plan_of(setup, named("t-of-ensemble", "budget-t", "single")).methods


def test_a_surplus_brings_the_plain_network_of_each_run_s_first_seed(setup):
    four = replace(setup, members=2, runs=4)
    method = METHODS.named("sharpness-aware-budget-t").with_budget("surplus")
    (planned,) = plan_of(four, [method]).methods
    assert [run[0].recipe for run in planned.runs] == [setup.sharpness_aware] * 4
    assert [planned.reference(run) for run in planned.runs] == [setup.spec(RECIPE, seed) for seed in range(4)]
    jobs = plan_of(four, [method]).jobs()
    assert sorted((job.recipe.sharpness, job.seed) for job in jobs) == [
        (rho, seed) for rho in (0.0, 0.1) for seed in range(4)
    ]
    of_ensembles = replace(METHODS.named("ensemble-of-sharpness-aware-t"), fit="budget").with_budget(
        "surplus"
    )
    (planned,) = plan_of(four, [of_ensembles]).methods
    assert [planned.reference(run) for run in planned.runs] == [setup.spec(RECIPE, seed) for seed in (0, 2)]
    (planned,) = plan_of(four, [METHODS.named("sharpness-aware-budget-t").with_budget(0.05)]).methods
    assert (planned.plain, len(list(planned.specs()))) == (None, 4), "a share needs no other network"


def test_the_rule_for_t_comes_back_from_json_and_a_plan_without_one_has_the_method_s_own(setup):
    rows = named("budget-t", "single", "sharpness-aware-budget-t")
    plan = plan_of(setup, [method.with_budget(0.05) for method in rows])
    document = json.loads(json.dumps(plan.as_dict()))
    assert plan_from(document) == plan
    assert [planned.method.budget for planned in plan_from(document).methods] == [0.05, None, 0.05]
    for each in document["methods"]:
        each.pop("budget", None)  # as plans were written before there was a choice
    assert plan_from(document) == plan_of(setup, rows)


def test_a_plan_with_another_rule_for_t_reads_the_same_networks(setup):
    rows = named("budget-t", "single", "sharpness-aware-budget-t")
    plan = plan_of(setup, rows)
    for budget in (0.1, "surplus"):
        assert plan.with_budget(budget) == plan_of(setup, [method.with_budget(budget) for method in rows])
    stored = plan.with_budget(0.1)
    again, _ = replanned(stored, rows)
    assert [planned.method.budget for planned in again.methods] == [0.1, None, 0.1], (
        "the rule it was run with"
    )


def test_sharpness_aware_networks_are_not_taken_for_plain_ones(setup):
    plan = plan_of(setup, named("single", "sharpness-aware"))
    rows = named("single-t", "sharpness-aware-budget-t", "ensemble-of-sharpness-aware-t")
    other, without = replanned(plan, rows)
    assert without == ("ensemble-of-sharpness-aware-t",)
    assert other.methods == plan_of(setup, rows[:2]).methods


def _damage(plan, change):
    document = json.loads(json.dumps(plan.as_dict()))
    return change(document) or document


DAMAGES = {
    "a number": lambda _: 3,
    "a list": lambda _: [1],
    "no task": lambda d: d.pop("task") and None,
    "no recipes": lambda d: d.update(recipes={}),
    "recipes are a list": lambda d: d.update(recipes=[1]),
    "unknown method": lambda d: d["methods"][0].update(name="magic"),
    "no runs": lambda d: d["methods"][0].pop("runs") and None,
    "runs of numbers": lambda d: d["methods"][0].update(runs=[[1]]),
    "a run without networks": lambda d: d["methods"][0].update(runs=[[]]),
    "an empty class name": lambda d: d["class_names"].__setitem__(0, ""),
    "a seed in words": lambda d: d["methods"][0]["runs"][0][0].update(seed="one"),
    "unknown kind": lambda d: d.update(kind="some labels"),
    "a bad budget": lambda d: next(m for m in d["methods"] if "budget" in m).update(budget="all of it"),
    "a bad recipe": lambda d: d["recipe"].update(epochs=-1),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_one_is_refused_in_a_sentence(plan, case):
    with pytest.raises(InputError) as raised:
        plan_from(_damage(plan, DAMAGES[case]))
    assert "\n" not in str(raised.value)
