"""Experiments: to TOML and back, overridden, refused in a sentence, and those that come with the house."""

import dataclasses
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from surefoot.errors import InputError
from surefoot.lab.experiments.experiment import (
    EXPERIMENTS,
    HEADLINES,
    OURS,
    PAPERS,
    Experiment,
    Part,
    experiment_from,
    experiment_named,
    overridden,
    read_experiment,
    write_experiment,
)
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.experiments.paper import paper_value
from surefoot.lab.experiments.run import plans_for
from surefoot.lab.recipes.recipe import Recipe, Teachers
from surefoot.lab.tasks import TASKS
from surefoot.lab.variants import Bayesian, Distilled, HeldOut
from surefoot.metrics import METRICS
from surefoot.registry import searched_folders

RECIPE = Recipe(network="mlp", width=8, epochs=2)
ONE = Experiment(name="one", parts=(Part(task="toy", recipe=RECIPE),))
VARIANTS = (
    Bayesian(samples=7),
    HeldOut(fold=1, folds=3),
    HeldOut(fold=0, folds=2, teachers=Teachers(RECIPE, (0,))),
    Distilled(teachers=Teachers(RECIPE, (0, 3)), unlabelled=0.25),
)

OF_THE_PACKS = Path(__file__).parents[2] / "experiments"


def again(experiment, folder):
    write_experiment(experiment, folder / "file.toml")
    return read_experiment(folder / "file.toml")


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
def test_every_preset_is_the_same_when_read_again(experiment, tmp_path):
    assert again(experiment, tmp_path) == experiment
    assert again(experiment, tmp_path).digest == experiment.digest


PAPERS_TASKS = [OF_THE_PACKS / f"{name}.toml" for name in ("animals", "cat-dog", "gender", "objects")]


@pytest.mark.parametrize("path", PAPERS_TASKS, ids=lambda each: each.stem)
def test_every_experiment_on_the_packs_can_be_read_and_names_a_task_that_is_there(path):
    (part,) = read_experiment(path).parts
    assert part.paper is not None
    assert paper_value(part.recipe.network, part.paper, "Single Model", "nll", "familiar") is not None
    assert part.task in {task.name for task in TASKS} or Path(part.task).is_file()


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
def test_every_preset_names_what_there_is(experiment):
    assert experiment_named(experiment.name) is experiment
    assert experiment.about
    for part in experiment.parts:
        assert part.task.partition("/")[0] in {task.name for task in TASKS}
        if part.paper is not None:
            assert paper_value(part.recipe.network, part.paper, "Single Model", "nll", "familiar") is not None


def test_the_presets_are_those_of_the_issue():
    names = ["quickstart", "toy", "letters", "gender", "cat-dog", "animals", "objects", "paper"]
    assert [each.name for each in EXPERIMENTS] == names
    paper = experiment_named("paper")
    networks = [(part.task, part.recipe.network, part.recipe.epochs) for part in paper.parts]
    assert networks == [
        ("gender", "resnet18", 24),
        ("cat-dog", "resnet18", 128),
        ("animals", "resnet18", 64),
        ("objects", "resnet18", 32),
        ("gender", "densenet161", 96),
    ]
    assert (paper.runs, paper.members, paper.methods) == (10, 10, PAPERS)


def test_parts_and_variants_come_back_whole(tmp_path):
    parts = tuple(Part(task="toy", recipe=replace(RECIPE, variant=variant)) for variant in VARIANTS)
    experiment = replace(ONE, parts=parts, methods=("single",), metrics=("nll",), about='a "word"\nand more')
    result = again(experiment, tmp_path)
    assert result == experiment
    assert [part.recipe.variant for part in result.parts] == list(VARIANTS)


@given(
    name=st.text(min_size=1, max_size=60).filter(lambda text: not set(text) & set("/\\") and text[0] != "."),
    about=st.text(max_size=40),
    numbers=st.tuples(st.integers(1, 99), st.integers(1, 99), st.integers(2, 9), st.integers(0, 5000)),
    methods=st.lists(st.sampled_from([method.name for method in METHODS]), min_size=1, unique=True),
    metrics=st.lists(st.sampled_from([metric.name for metric in METRICS]), min_size=1, unique=True),
    rate=st.floats(1e-9, 1e3),
)
@example(name="0", about="\x7f", numbers=(1, 1, 2, 0), methods=["single"], metrics=["nll"], rate=1.0)
def test_any_values_come_back(tmp_path_factory, name, about, numbers, methods, metrics, rate):
    values = dict(zip(("members", "runs", "folds", "resamples"), numbers, strict=True))
    part = Part(task="letters", recipe=replace(RECIPE, learning_rate=rate))
    try:
        experiment = Experiment(
            name=name, parts=(part,), about=about, methods=tuple(methods), metrics=tuple(metrics), **values
        )
    except InputError:
        assert any(ord(character) < 32 for character in name)
        return
    assert again(experiment, tmp_path_factory.getbasetemp()) == experiment


def test_one_task_needs_no_parts_and_defaults_are_the_classs(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('task = "toy"\nruns = 3\n[recipe]\nwidth = 8\nnetwork = "mlp"\n')
    result = read_experiment(path)
    assert (result.name, result.runs, result.members) == ("mine", 3, 10)
    assert (result.methods, result.metrics) == (OURS, HEADLINES)
    assert result.parts == (Part(task="toy", recipe=Recipe(network="mlp", width=8)),)


def test_files_lie_relative_to_the_experiment_s(tmp_path, monkeypatch):
    text = 'task = "own/task.toml"\nroot = "data"\nweights = "../w.pth"\n'
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "e.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    (part,) = read_experiment(Path("there/e.toml")).parts
    assert (part.task, part.root, part.weights) == ("there/own/task.toml", "there/data", "there/../w.pth")
    write_experiment(read_experiment(Path("there/e.toml")), tmp_path / "copy.toml")
    monkeypatch.chdir("/")
    (part,) = read_experiment(tmp_path / "copy.toml").parts
    assert part.root == str(tmp_path / "there/data"), "in full, so that it is found from anywhere"


def test_a_finished_run_finds_the_network_next_to_its_task(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("surefoot.registry._folders", {})
    (tmp_path / "run").mkdir()
    file = tmp_path / "run/experiment.toml"
    file.write_text(f'task = "{tmp_path}/there/task.toml"\n[recipe]\nnetwork = "own:build"\n')
    read_experiment(file)
    assert searched_folders() == (str(tmp_path / "run"), str(tmp_path / "there"))


def test_values_are_replaced_in_every_part():
    two = replace(
        ONE, parts=(ONE.parts[0], replace(ONE.parts[0], recipe=replace(ONE.parts[0].recipe, width=128)))
    )
    result = overridden(two, {"runs": 1, "epochs": 2, "root": "x", "methods": "single, ensemble"})
    assert (result.runs, result.methods) == (1, ("single", "ensemble"))
    assert {(part.recipe.epochs, part.root) for part in result.parts} == {(2, "x")}
    assert [part.recipe.width for part in result.parts] == [ONE.parts[0].recipe.width, 128], "the rest stays"
    assert overridden(ONE, {"metrics": ["nll", "ece"]}).metrics == ("nll", "ece")
    assert overridden(ONE, {}) == ONE


def test_the_digest_is_of_every_value():
    changed = {
        "name": "two",
        "methods": ("single",),
        "members": 3,
        "runs": 3,
        "ensembles": 3,
        "folds": 3,
        "metrics": ("nll",),
        "resamples": 3,
        "budget": 0.05,
        "about": "x",
        "plugins": ("x",),
        "parts": (replace(ONE.parts[0], root="x"),),
    }
    assert set(changed) == {field.name for field in dataclasses.fields(Experiment)}
    digests = [replace(ONE, **{name: value}).digest for name, value in changed.items()]
    own = replace(ONE.parts[0], sharpness_aware={"sharpness": 0.2})
    assert len({ONE.digest, replace(ONE, parts=(own,)).digest, *digests}) == len(changed) + 2


def test_what_is_not_said_is_not_written_and_leaves_the_digest():
    assert not {"budget", "plugins"} & set(ONE.as_dict())
    assert "sharpness_aware" not in ONE.as_dict()["parts"][0]


def sharpness_aware_of(experiment):
    (plan,) = plans_for(replace(experiment, methods=("sharpness-aware",), runs=1))
    return plan.methods[0].runs[0][0].recipe


def test_the_sharpness_aware_recipe_is_the_plain_one_with_changes():
    augmented = sharpness_aware_of(ONE)
    changes = {"sharpness": 0.1, "schedule": "cosine", "weight_average": 0.99, "weight_decay": 0.0005}
    assert augmented == replace(RECIPE, **changes, augmentation="strong")
    for augmentation in ("none", "strong"):
        recipe = replace(RECIPE, augmentation=augmentation)
        part = replace(ONE.parts[0], recipe=recipe)
        assert sharpness_aware_of(replace(ONE, parts=(part,))) == replace(recipe, **changes)
        part = replace(part, sharpness_aware={"sharpness": 0.2, "epochs": 3})
        assert sharpness_aware_of(replace(ONE, parts=(part,))) == replace(recipe, sharpness=0.2, epochs=3)


@pytest.mark.parametrize("table", [{"sharpness": 0.2, "schedule": "cosine"}, {}, None])
def test_its_changes_come_back_from_a_file(tmp_path, table):
    experiment = replace(ONE, parts=(replace(ONE.parts[0], sharpness_aware=table),) * 2, budget="surplus")
    result = again(experiment, tmp_path)
    assert (result, result.digest) == (experiment, experiment.digest)
    assert result.parts[0].sharpness_aware == table
    one = 'task = "toy"\nbudget = 0.05\n[recipe]\nwidth = 8\n[sharpness_aware]\nsharpness = 0.3\n'
    (tmp_path / "one.toml").write_text(one)
    read = read_experiment(tmp_path / "one.toml")
    assert (read.parts[0].sharpness_aware, read.budget) == ({"sharpness": 0.3}, 0.05)


def test_a_replaced_recipe_value_holds_for_both_recipes():
    for own in (None, {"weight_decay": 0.001, "sharpness": 0.2}):
        part = replace(ONE.parts[0], sharpness_aware=own)
        experiment = overridden(replace(ONE, parts=(part,)), {"epochs": 5, "weight_decay": 0.3})
        before, after = sharpness_aware_of(replace(ONE, parts=(part,))), sharpness_aware_of(experiment)
        assert after == replace(before, epochs=5, weight_decay=0.3), "the other changes stay"
        assert experiment.parts[0].recipe == replace(RECIPE, epochs=5, weight_decay=0.3)
    for augmentation in ("none", "inception"):
        assert (
            sharpness_aware_of(overridden(ONE, {"augmentation": augmentation})).augmentation == augmentation
        )
    for values in ({"epochs": 5}, {"augmentation": "none"}, {"budget": 0.1}):
        assert overridden(ONE, values).parts[0].sharpness_aware is None, "still the default changes"
    table = overridden(ONE, {"sharpness_aware": {"sharpness": 0.2}, "epochs": 5})
    assert sharpness_aware_of(table) == replace(RECIPE, epochs=5, sharpness=0.2)


MISTAKES = {
    "no task": ({}, "an experiment's part has no task; needed: task = NAME or a .toml file"),
    "task is no text": ({"task": 3}, "an experiment's part has no task"),
    "unknown": ({"task": "toy", "run": 3}, "unknown experiment value 'run' (did you mean 'runs'?); have: "),
    "unknown in a part": ({"parts": [{"task": "toy", "runs": 3}]}, "unknown value of a part 'runs'; have: "),
    "unknown in a recipe": ({"task": "toy", "recipe": {"lr": 1}}, "unknown recipe value 'lr'; have: "),
    "task next to parts": ({"task": "toy", "parts": [{"task": "toy"}]}, "unknown experiment value next to its parts 'task'"),
    "parts are no list": ({"parts": 3}, "parts is 3; allowed: tables under [[parts]]"),
    "a part is no table": ({"parts": [3]}, "an experiment's part has no task"),
    "no parts": ({"parts": []}, "experiment 'e' has no task; needed: one or more"),
    "recipe is no table": ({"task": "toy", "recipe": 3}, "recipe is 3; allowed: a table under [recipe]"),
    "root is no text": ({"task": "toy", "root": 3}, "root is 3; allowed: text"),
    "weights are empty": ({"task": "toy", "weights": ""}, "weights is ''; allowed: text"),
    "unknown method": ({"task": "toy", "methods": ["magic"]}, "unknown method 'magic'; have: single, "),
    "method is a number": ({"task": "toy", "methods": [1]}, "unknown method 1; have: "),
    "methods are a number": ({"task": "toy", "methods": 1}, "methods is 1; needed: a list of one or more names"),
    "methods are a word": ({"task": "toy", "methods": "single"}, "methods is 'single'; needed: a list"),
    "no methods": ({"task": "toy", "methods": []}, "methods is (); needed: a list of one or more names"),
    "a method twice": ({"task": "toy", "methods": ["single", "single"]}, "methods has 'single' twice; allowed: once"),
    "unknown metric": ({"task": "toy", "metrics": ["luck"]}, "unknown metric 'luck'; have: "),
    "no metrics": ({"task": "toy", "metrics": []}, "metrics is (); needed: a list"),
    "a metric twice": ({"task": "toy", "metrics": ["nll", "nll"]}, "metrics has 'nll' twice; allowed: once"),
    "no members": ({"task": "toy", "members": 0}, "members is 0; allowed: a whole number of at least 1"),
    "half a run": ({"task": "toy", "runs": 2.5}, "runs is 2.5; allowed: a whole number of at least 1"),
    "runs are true": ({"task": "toy", "runs": True}, "runs is True; allowed: a whole number of at least 1"),
    "no ensembles": ({"task": "toy", "ensembles": 0}, "ensembles is 0; allowed: a whole number of at least 1"),
    "one fold": ({"task": "toy", "folds": 1}, "folds is 1; allowed: a whole number of at least 2"),
    "resamples": ({"task": "toy", "resamples": -1}, "resamples is -1; allowed: a whole number of at least 0"),
    "name is a number": ({"task": "toy", "name": 3}, "the experiment's name is 3; allowed: "),
    "name is a path": ({"task": "toy", "name": "../x"}, "the experiment's name is '../x'; allowed: "),
    "name is a path inside": ({"task": "toy", "name": "a/b"}, "the experiment's name is 'a/b'; allowed: "),
    "name is hidden": ({"task": "toy", "name": ".x"}, "the experiment's name is '.x'; allowed: "),
    "name is empty": ({"task": "toy", "name": ""}, "the experiment's name is ''; allowed: "),
    "name is long": ({"task": "toy", "name": "x" * 61}, "; allowed: a word that can be a folder's name"),
    "about is a number": ({"task": "toy", "about": 3}, "about is 3; allowed: text"),
    "bad recipe": ({"task": "toy", "recipe": {"epochs": "many"}}, "epochs is 'many'; allowed: "),
    "bad budget": ({"task": "toy", "budget": "all"}, "budget is 'all'; allowed: a number from 0 or 'surplus'"),
    "budget below 0": ({"task": "toy", "budget": -0.1}, "budget is -0.1; allowed: a number from 0"),
    "budget is true": ({"task": "toy", "budget": True}, "budget is True; allowed: a number from 0"),
    "changes are no table": ({"task": "toy", "sharpness_aware": 0.1}, "sharpness_aware is 0.1; allowed: a table of recipe values"),
    "unknown change": ({"task": "toy", "sharpness_aware": {"rho": 0.1}}, "unknown value of sharpness_aware 'rho'; have: "),
    "another network": ({"parts": [{"task": "toy", "sharpness_aware": {"view": 8}}]}, "unknown value of sharpness_aware 'view'; have: "),
    "a bad change": ({"task": "toy", "sharpness_aware": {"sharpness": -1}}, "sharpness is -1; allowed: at least 0"),
    "no test data": ({"task": "toy", "recipe": {"protocol": "search"}}, "protocol is 'search', which predicts no test data; allowed: paper, holdout"),
    "bad variant": ({"task": "toy", "recipe": {"variant": {"kind": "x"}}}, "unknown training variant 'x'; have: distilled, "),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence(case):
    values, message = MISTAKES[case]
    with pytest.raises(InputError) as raised:
        experiment_from(values, name="e")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"recipe": 1}, "unknown experiment value 'recipe'; have: "),
        ({"parts": 1}, "unknown experiment value 'parts'; have: "),
        ({"methods": 3}, "methods is 3; needed"),
        ({"methods": "single,,"}, "unknown method ''; have: "),
        ({"task": 3}, "task is 3; allowed: a name or a .toml file"),
        ({"paper": 3}, "paper is 3; allowed: text"),
        ({"epochs": 0}, "epochs is 0; allowed: "),
    ],
)
def test_a_mistaken_override_is_one_sentence(values, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        overridden(ONE, values)


def test_a_file_s_mistake_names_the_file(tmp_path):
    for text, message in (("runs = ", "is not TOML"), ("runs = 3", "part has no task")):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(InputError, match=message) as raised:
            read_experiment(tmp_path / "bad.toml")
        assert str(raised.value).count("bad.toml") == 1
    with pytest.raises(InputError, match=r"cannot read .*none.toml: No such file"):
        experiment_named(str(tmp_path / "none.toml"))
    with pytest.raises(
        InputError,
        match=r"unknown experiment 'quick' \(did you mean 'quickstart'\?\); have: quickstart, .*paper, or a .toml file",
    ):
        experiment_named("quick")
