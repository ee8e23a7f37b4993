"""From an experiment to its results: folders, what is missing, reports without the data, the same numbers again."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from surefoot.errors import InputError
from surefoot.lab.experiments import run as runner
from surefoot.lab.experiments.changes import Opened, experiment_change
from surefoot.lab.experiments.experiment import Experiment, Part, read_experiment
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.experiments.plan import MethodPlan
from surefoot.lab.experiments.run import (
    open_folder,
    order_for,
    plans_for,
    read_folder,
    resolved,
    study,
    undone,
    with_methods,
)
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.store.store import Store
from surefoot.metrics import METRICS
from tests.report.studies import trained

CHOSEN = ("single", "single-t", "ensemble", "novelty", "held-out-t")
RECIPE = Recipe(network="mlp", width=8, epochs=2)
TOY = Experiment(name="toy", parts=(Part(task="toy", recipe=RECIPE),), members=2, runs=2, methods=CHOSEN)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("store"), methods=CHOSEN)


@pytest.fixture
def copy(made, tmp_path):
    """A store to break."""
    shutil.copytree(made.store.root, tmp_path / "store")
    return replace(made, store=Store(tmp_path / "store"))


def few(made):
    """The study of the methods that are quickly fitted."""
    experiment, plans = with_methods(made.experiment, [made.plan], ["single", "single-t", "ensemble"])
    return study(replace(experiment, resamples=0), plans, made.store)


def means(result):
    (part,) = result.parts
    return {
        (method.name, *place): cell.mean
        for method in part.comparison.methods
        for place, cell in method.cells.items()
    }


def test_nothing_is_left_to_do_when_all_is_done(made):
    assert undone(made.plan, made.store) == ()
    order = order_for(
        made.experiment.parts[0], made.plan, store=made.store, cache=made.store.root, device="cpu"
    )
    assert order.jobs == ()


def test_what_is_missing_is_ordered_and_nothing_else(copy):
    jobs = copy.plan.jobs()
    gone = jobs[1]
    shutil.rmtree(copy.store.folder(copy.plan.spec(gone)))
    (copy.store.folder(copy.plan.spec(jobs[0])) / "novelty-odin-v2.npz").unlink()
    assert undone(copy.plan, copy.store) == (jobs[0], gone), "also scores that a network lacks"


def test_missing_networks_are_named_and_never_averaged_in(copy, made):
    shutil.rmtree(copy.store.folder(copy.plan.spec(copy.plan.jobs()[1])))
    (part,) = few(copy).parts
    result = {method.name: method for method in part.comparison.methods}
    name = "plain network of toy/small, seed 1"
    assert result["single"].missing == (name,)
    assert [run.run for run in result["single"].runs] == [0]
    assert (result["ensemble"].runs, result["ensemble"].missing) == ((), (name,))
    whole = {method.name: method for method in few(made).parts[0].comparison.methods}
    left = {method.name: method for method in part.comparison.methods}
    place = ("unfamiliar", "nll")
    assert left["single"].cells[place].mean == whole["single"].cells[place].runs[0].value
    assert left["ensemble"].cells.get(place) is None or left["ensemble"].cells[place].defined == 0
    assert left["single"].missing == (name,)


def opened(made, **runs):
    """An experiment of these methods, each with the networks of its runs: `single=[0, 1]` has two runs."""
    specs = [
        run[0] for planned in made.plan.methods if planned.method.name == "single" for run in planned.runs
    ]
    methods = tuple(
        MethodPlan(METHODS.named(name.replace("_", "-")), tuple((specs[place],) for place in places))
        for name, places in runs.items()
    )
    plan = replace(made.plan, methods=methods)
    experiment = replace(made.experiment, methods=tuple(each.method.name for each in methods))
    return Opened(made.store.root, experiment, (plan,), made.store)


def unfamiliar_nll(method):
    (result,) = [c for c in method.changes if (c.side, c.metric.name) == ("unfamiliar", "nll")]
    return result


def nll_of(made, place):
    (single,) = [planned for planned in made.plan.methods if planned.method.name == "single"]
    return METRICS.named("nll").function(made.store.predictions(single.runs[place][0], "test_unfamiliar"))


def test_runs_and_methods_that_only_the_later_experiment_has(made):
    """Runs that both have are compared; a method in one only is named."""
    before = opened(made, single_t=[0], single=[0, 0])
    after = opened(made, oracle_t=[0], single=[1, 0, 1], single_t=[0])
    (task,) = experiment_change(before, after, resamples=10).tasks
    assert [method.name for method in task.methods] == ["single-t", "single"]
    assert (task.only_before, task.only_after, task.missing) == ((), ("oracle-t",), ())
    change = unfamiliar_nll(task.methods[1])
    first, second = nll_of(made, 0), nll_of(made, 1)
    assert change.before == pytest.approx(first)
    assert change.after == pytest.approx((second + first) / 2), "without its third run"
    assert (change.runs, change.difference.pairs) == (2, 2)
    (mirror,) = experiment_change(after, before, resamples=10).tasks
    assert (mirror.only_before, mirror.only_after) == (("oracle-t",), ())
    assert unfamiliar_nll(mirror.methods[0]).difference.value == pytest.approx(-change.difference.value)


def test_networks_that_only_the_later_store_has_are_named_and_left_out(made, copy):
    shutil.rmtree(copy.store.folder(copy.plan.spec(copy.plan.jobs()[1])))
    before, after = (opened(each, single=[0, 1, 0], single_t=[0, 1]) for each in (copy, made))
    (task,) = experiment_change(before, after, resamples=10).tasks
    assert task.missing == ("plain network of toy/small, seed 1",), "once, though two methods lack it"
    single, _ = task.methods
    change = unfamiliar_nll(single)
    assert change.before == change.after == pytest.approx(nll_of(made, 0)), "runs 0 and 2, which both have"
    assert change.runs == 2


def test_metrics_are_those_that_either_experiment_asks_for(made):
    one = opened(made, single=[0])
    few, other = (
        replace(one, experiment=replace(one.experiment, metrics=names))
        for names in (("nll",), ("brier", "nll"))
    )
    for pair in ((few, other), (other, few)):
        (task,) = experiment_change(*pair, resamples=0).tasks
        assert {change.metric.name for change in task.methods[0].changes} == {"nll", "brier"}


def test_tasks_that_only_one_experiment_has_are_named_with_their_network(made):
    one = opened(made, single=[0])
    plan = one.plans[0]
    other = replace(plan, recipe=replace(plan.recipe, network="resnet18"))
    elsewhere = replace(plan, task="toy/elsewhere")
    part = one.experiment.parts[0]
    three = replace(
        one,
        plans=(elsewhere, other, replace(plan)),
        experiment=replace(one.experiment, parts=(part, part, part)),
    )
    result = experiment_change(one, three, resamples=0)
    assert [task.task for task in result.tasks] == ["toy/small"]
    assert (result.only_before, result.only_after) == ((), ("toy/elsewhere (mlp)", "toy/small (resnet18)"))
    mirror = experiment_change(three, one, resamples=0)
    assert (mirror.only_before, mirror.only_after) == (result.only_after, ())


def test_the_folder_has_the_values_and_the_plans(made, tmp_path):
    folder = open_folder(made.experiment, [made.plan], Store(tmp_path))
    assert folder == tmp_path / "experiments" / "tiny"
    experiment, plans = read_folder(folder)
    assert (experiment, plans) == (made.experiment, (made.plan,))
    assert open_folder(made.experiment, [made.plan], Store(tmp_path)) == folder, (
        "the same again, the same folder"
    )
    assert Store.containing(folder).root == tmp_path


def test_another_experiment_of_the_same_name_is_kept(made, tmp_path):
    store = Store(tmp_path)
    folder = open_folder(made.experiment, [made.plan], store)
    before = (folder / "experiment.toml").read_bytes()
    other = replace(made.experiment, resamples=21)
    second = open_folder(other, [made.plan], store)
    assert second.name == f"tiny-{other.digest}"
    assert (folder / "experiment.toml").read_bytes() == before
    assert read_experiment(second / "experiment.toml") == other
    assert open_folder(other, [made.plan], store) == second
    assert [each.name for each in store.experiments()] == sorted([folder.name, second.name])


def test_a_report_needs_no_data_and_has_the_same_numbers(made, tmp_path, monkeypatch):
    folder = open_folder(made.experiment, [made.plan], Store(tmp_path))

    def gone(*_, **__):
        raise AssertionError("the data were requested")

    monkeypatch.setattr(runner, "task_named", gone)
    experiment, plans = read_folder(folder)
    assert means(few(replace(made, experiment=experiment, plan=plans[0]))) == means(few(made))


def test_the_resolved_file_plans_the_same_networks(tmp_path):
    first = resolved(TOY)
    folder = open_folder(first, plans_for(first), Store(tmp_path))
    again = resolved(read_experiment(folder / "experiment.toml"))
    assert again == first
    assert [plan.jobs() for plan in plans_for(again)] == [plan.jobs() for plan in read_folder(folder)[1]]
    assert open_folder(again, plans_for(again), Store(tmp_path)) == folder


def test_ensembles_asked_for_are_planned():
    two = replace(TOY, methods=("single", "ensemble"), members=2, runs=3, ensembles=2)
    (plan,) = plans_for(two)
    assert sorted(job.seed for job in plan.jobs()) == [0, 1, 2, 3]
    (plan,) = plans_for(replace(two, ensembles=1))
    assert sorted(job.seed for job in plan.jobs()) == [0, 1, 2]


def test_weights_are_known_by_their_hash(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"anything")
    part = replace(TOY.parts[0], weights=str(tmp_path / "w.safetensors"))
    first = resolved(replace(TOY, parts=(part,)))
    assert first.parts[0].recipe.pretrained is not None
    assert resolved(first) == first
    (tmp_path / "w.safetensors").write_bytes(b"something else")
    with pytest.raises(InputError, match="the recipe was made with"):
        resolved(first)
    gone = replace(first, parts=(replace(first.parts[0], weights=None),))
    with pytest.raises(InputError, match="needed: --weights FILE"):
        resolved(gone)


def test_a_task_whose_data_are_absent_says_what_is_needed():
    absent = replace(TOY, parts=(replace(TOY.parts[0], task="cat-dog"),))
    with pytest.raises(
        InputError, match="task 'cat-dog' needs a root folder; see 'surefoot data show cat-dog"
    ):
        plans_for(absent)


def test_no_method_that_can_be_used_is_said_before_training():
    with pytest.raises(InputError, match="no method can be used on task 'toy': Ensemble needs two members"):
        plans_for(replace(TOY, methods=("ensemble",), members=1))


def test_other_methods_from_the_same_networks(made):
    experiment, plans = with_methods(made.experiment, [made.plan], ["oracle-t", "budget-t", "t-of-ensemble"])
    assert experiment.methods == ("oracle-t", "budget-t", "t-of-ensemble")
    (part,) = study(experiment, plans, made.store).parts
    assert [(method.name, len(method.runs)) for method in part.comparison.methods] == [
        ("oracle-t", 2),
        ("budget-t", 2),
        ("t-of-ensemble", 1),
    ]
    with pytest.raises(
        InputError, match="experiment 'tiny' has no networks for 'distill'; it was run with: single, "
    ):
        with_methods(made.experiment, [made.plan], ["single", "distill"])


def test_a_part_without_any_of_the_methods_is_left_out(made):
    bare = replace(made.plan, methods=made.plan.methods[:1])  # plain networks alone
    two = replace(
        made.experiment, parts=(made.experiment.parts[0], replace(made.experiment.parts[0], task="letters"))
    )
    experiment, plans = with_methods(two, [bare, made.plan], ["ensemble"])
    assert [part.task for part in experiment.parts] == ["letters"]
    assert [len(plan.methods) for plan in plans] == [1]


@pytest.mark.parametrize("text", ["", "{", "3", "{}", "[]", "[3]", "[{}, {}]", '["x"]', "null"])
def test_damaged_plans_are_named(made, tmp_path, text):
    folder = open_folder(made.experiment, [made.plan], Store(tmp_path))
    (folder / "plans.json").write_text(text)
    with pytest.raises(InputError, match=r"plans\.json is damaged"):
        read_folder(folder)


def test_a_task_whose_name_no_folder_can_have_is_named_as_damage(made, tmp_path):
    folder = open_folder(made.experiment, [replace(made.plan, task="x" * 256)], Store(tmp_path))
    with pytest.raises(InputError, match=r"plans\.json is damaged: .*too long for a folder; .*'surefoot run"):
        read_folder(folder)


def test_a_plan_with_a_class_name_too_few_says_how_to_recover(made):
    plan = replace(made.plan, class_names=made.plan.class_names[1:])
    named, classes = len(plan.class_names), len(made.plan.class_names)
    with pytest.raises(
        InputError, match=f"the plan has {named} class names for networks of {classes} classes; repeat '"
    ):
        study(made.experiment, [plan], made.store)


@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
@pytest.mark.parametrize("name", ["plans.json", "experiment.toml"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_on(made, tmp_path, name, put):
    folder = open_folder(made.experiment, [made.plan], Store(tmp_path))
    (folder / name).unlink()
    put(folder / name)
    with pytest.raises(InputError, match=rf"cannot read .*{name}: a (pipe|device); .*surefoot run"):
        read_folder(folder)


def test_a_folder_without_an_experiment_says_so(made, tmp_path):
    with pytest.raises(
        InputError, match=r"cannot read .*plans.json: No such file or directory; .*surefoot run"
    ):
        read_folder(tmp_path)
    (tmp_path / "plans.json").write_text(json.dumps([made.plan.as_dict()]))
    with pytest.raises(InputError, match=r"cannot read .*experiment\.toml"):
        read_folder(tmp_path)
