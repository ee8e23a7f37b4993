"""The choice of a recipe: by validation alone, in rungs, and the same however often it is interrupted."""

import csv
import os
import signal
import time
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_expit, log_softmax
from scipy.stats import ttest_1samp

from surefoot.errors import InputError
from surefoot.lab.experiments.search import (
    Candidate,
    Entry,
    RecipeSearch,
    Trial,
    _units,
    candidates,
    paired_difference,
    read_candidates,
)
from surefoot.lab.recipes.recipe import Protocol, Recipe, Spec
from surefoot.lab.store.store import Store
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.letters import PER_GLYPH, load_letters
from surefoot.lab.tasks.task import Split
from surefoot.lab.variants import read_recipe, variant_from
from surefoot.lab.workers.jobs import Job, WorkOrder
from surefoot.lab.workers.produce import open_context, produce
from surefoot.predictions.predictions import Predictions
from tests.cli.command import in_a_process, started, surefoot
from tests.small_images import write_task

BASE = Recipe(network="mlp", width=16, learning_rate=0.05, epochs=8)
SET = ("--set", "network=mlp", "--set", "width=16", "--set", "learning_rate=0.05", "--set", "epochs=8")
FILE = """
[plain]
[slow]
learning_rate = 1e-6
[wild]
learning_rate = 1e30
[decayed]
weight_decay = 0.001
["long"]
epochs = 16
"""


@pytest.fixture(scope="module")
def toy():
    return task_named("toy")


@pytest.fixture(scope="module")
def letters():
    return load_letters(per_glyph=dict.fromkeys(PER_GLYPH, 1))


def test_the_grid_is_every_combination_and_the_plain_recipe(letters):
    grid = candidates(Recipe(epochs=24), letters)
    assert len({each.name for each in grid}) == len({each.recipe for each in grid}) == 1 + 2 * 4 * 1 * 2
    assert grid[0] == Candidate("plain", Recipe(epochs=24))
    expected = Recipe(
        epochs=48,
        augmentation="strong",
        sharpness=0.1,
        schedule="cosine",
        weight_decay=0.0005,
        weight_average=0.99,
    )
    assert Candidate("strong, rho 0.1, cosine, 48 epochs", expected) in grid


def test_vectors_and_recipes_without_augmentation_have_no_choice_of_one(toy, letters):
    for grid in (candidates(BASE, toy), candidates(replace(BASE, augmentation="none"), letters)):
        assert len(grid) == 1 + 4 * 2
        assert {each.recipe.augmentation for each in grid} == {grid[0].recipe.augmentation}
        assert "rho 0.05, cosine, 8 epochs" in [each.name for each in grid]


def test_a_trial_has_a_share_of_the_epochs_and_predicts_only_validation():
    trial = Candidate("a", Recipe(epochs=9, schedule="cosine")).shortened(0.25)
    assert trial == Recipe(epochs=3, schedule="cosine", protocol=Protocol.SEARCH)
    assert trial.rate(3) == pytest.approx(0)


WRONG_FILES = {
    "no candidates": ("", "has no candidates; needed: at least one table"),
    "a value": ("epochs = 3", "epochs is 3; allowed: a table of recipe values, [epochs]"),
    "an unknown value": ("[a]\nrho = 1", "candidate 'a': unknown value of a candidate 'rho'; have: learning_rate"),
    "another network": ('[a]\nnetwork = "mlp"', "candidate 'a': unknown value of a candidate 'network'"),
    "a wrong value": ("[a]\nsharpness = -1", "candidate 'a': sharpness is -1; allowed: at least 0"),
    "one recipe twice": ("[a]\n[b]\nepochs = 8", "'a' and 'b' are the same recipe; allowed: one"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_wrong_file_of_candidates_is_refused(text, message, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(InputError) as refused:
        read_candidates(tmp_path / "c.toml", BASE)
    assert message in str(refused.value)


def best_scaled(losses_at):
    """The losses per decision at the T with the least mean, by another optimiser."""
    found = minimize_scalar(lambda log_t: losses_at(np.exp(log_t)).mean(), bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})  # fmt: skip
    return np.exp(found.x), losses_at(np.exp(found.x))


def test_the_score_is_the_nll_at_the_best_temperature_with_one_label():
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(300, 4)) * 3, random.integers(4, size=300)
    logits[np.arange(300), labels] += 2
    temperature, losses = best_scaled(lambda t: -log_softmax(logits / t, axis=1)[np.arange(300), labels])
    trial = Trial.of(Spec("toy", "0", BASE, 0), Predictions.from_logits(logits, labels))
    assert trial.temperature == pytest.approx(temperature, rel=1e-4)
    assert trial.losses == pytest.approx(losses, rel=1e-3)
    assert trial.nll == pytest.approx(losses.mean(), rel=1e-8)
    plain = -log_softmax(logits, axis=1)[np.arange(300), labels]
    assert trial.plain_nll == pytest.approx(plain.mean())
    assert trial.error == (logits.argmax(axis=1) != labels).mean()


def test_the_score_is_the_nll_at_the_best_temperature_with_many_labels():
    random = np.random.default_rng(1)
    labels = random.integers(2, size=(200, 3))
    logits = random.normal(size=(200, 3)) * 3 + 2 * (2 * labels - 1)
    labels[::7, 1] = -100
    known, sign = labels >= 0, 2 * labels - 1
    _, losses = best_scaled(lambda t: -log_expit(sign * logits / t)[known])
    predictions = Predictions.from_logits(logits, labels, groups=np.arange(200) // 4)
    trial = Trial.of(Spec("toy", "0", BASE, 0), predictions)
    assert trial.nll == pytest.approx(losses.mean(), rel=1e-8)
    rows, columns = np.nonzero(known)
    assert _units(predictions).tolist() == (rows[np.argsort(columns, kind="stable")] // 4).tolist()


def test_differences_are_those_of_a_paired_t_test():
    ours, theirs = np.random.default_rng(2).normal(size=(2, 40))
    difference, margin = paired_difference(ours, theirs, np.arange(40))
    interval = ttest_1samp(ours - theirs, 0).confidence_interval(0.95)
    assert (difference - margin, difference + margin) == pytest.approx((interval.low, interval.high))


def test_differences_are_clustered():
    ours, theirs = np.random.default_rng(3).normal(size=(2, 12))
    unit = np.arange(12) % 4
    expected = ttest_1samp((ours - theirs).reshape(3, 4).mean(axis=0), 0).confidence_interval(0.95)
    difference, margin = paired_difference(ours, theirs, unit)
    assert (difference - margin, difference + margin) == pytest.approx((expected.low, expected.high))
    repeated = paired_difference(np.tile(ours, 9), np.tile(theirs, 9), np.tile(unit, 9))
    assert repeated == pytest.approx((difference, margin)), "copies of decisions are no new evidence"
    assert paired_difference(ours, theirs, np.zeros(12, int))[1] == np.inf


def search(folder):
    """The words of a command that searches among the candidates in a folder."""
    words = ("--search", folder / "c.toml", "--store", folder / "runs")
    return ("tune", "toy", *SET, *words, "--device", "cpu", "-o", folder / "r.toml")


def written(folder):
    return (folder / "r.toml").read_text(), (folder / "r.csv").read_text()


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    (folder / "c.toml").write_text(FILE)
    (folder / "printed.txt").write_text(in_a_process(*search(folder)).stdout)
    return folder


def lines(folder):
    with (folder / "r.csv").open() as file:
        return list(csv.DictReader(file))


def test_each_rung_keeps_the_better_half(searched):
    rungs = {n: [line for line in lines(searched) if line["rung"] == n] for n in "123"}
    assert [len({line["candidate"] for line in rungs[n]}) for n in "123"] == [5, 3, 2]
    assert [sorted({line["seed"] for line in rungs[n]}) for n in "123"] == [["0"], ["0"], ["0", "1"]]
    for n, following in (("1", "2"), ("2", "3")):
        ordered = [line["candidate"] for line in rungs[n]]
        kept = {line["candidate"] for line in rungs[following]}
        assert kept == set(ordered[: len(kept)])
        scores = [float(line["nll"]) for line in rungs[n] if line["nll"]]
        assert scores == sorted(scores)
    assert {line["epochs"] for line in rungs["1"] if line["candidate"] == "long"} == {"4"}


def test_a_candidate_that_diverges_is_reported_and_dropped(searched):
    wild = [line for line in lines(searched) if line["candidate"] == "wild"]
    assert [(line["rung"], line["verdict"], line["nll"]) for line in wild] == [("1", "diverged", "")]


def test_differences_are_to_the_best_of_the_rung(searched):
    for n in "123":
        first, *others = [line for line in lines(searched) if line["rung"] == n]
        assert (first["verdict"], float(first["difference"]), float(first["margin"])) == ("best", 0, 0)
        for line in others:
            if line["verdict"] == "diverged":
                assert (line["difference"], line["margin"]) == ("", "")
            elif n != "3":  # one network: its NLL is the candidate's
                expected = float(line["nll"]) - float(first["nll"])
                assert float(line["difference"]) == pytest.approx(expected, abs=1e-9)
                worse = float(line["difference"]) > float(line["margin"]) > 0
                assert line["verdict"] == ("worse" if worse else "not significantly worse")


def test_the_numbers_are_those_of_the_networks_in_the_store(searched, toy):
    recipes = {each.name: each for each in read_candidates(searched / "c.toml", BASE)}
    last = [line for line in lines(searched) if line["rung"] == "3"]
    means = {}
    for line in last:
        recipe = replace(recipes[line["candidate"]].recipe, protocol="search")
        spec = Spec(toy.name, toy.identity, recipe, int(line["seed"]))
        trial = Trial.of(spec, Store(searched / "runs").predictions(spec, Split.VAL))
        assert float(line["nll"]) == trial.nll
        assert line["network"] == spec.key
        means.setdefault(line["candidate"], []).append(trial.nll)
    best = min(means, key=lambda name: np.mean(means[name]))
    assert f"best: {best}; recipe: " in (searched / "printed.txt").read_text()


def test_the_file_has_the_winning_recipe_and_its_changes(searched):
    recipe, document = read_recipe(searched / "r.toml"), tomllib.loads((searched / "r.toml").read_text())
    assert recipe.protocol is Protocol.PAPER
    assert replace(BASE, **document["sharpness_aware"]) == recipe
    assert recipe in [each.recipe for each in read_candidates(searched / "c.toml", BASE)]
    changed = {name for name, value in recipe.as_dict().items() if value != BASE.as_dict()[name]}
    assert set(document["sharpness_aware"]) == changed
    assert "# | 1 | wild | 2 | 1 |" in (searched / "r.toml").read_text()


def test_only_validation_data_are_predicted(searched):
    predicted = {path.name for path in (searched / "runs").glob("networks/*/*/*/*.npz")}
    assert predicted == {"val.npz"}


def test_a_killed_search_resumes_to_the_same_table(searched, tmp_path):
    (tmp_path / "c.toml").write_text(FILE)
    with started(*search(tmp_path)) as process:
        while len(list((tmp_path / "runs").glob("networks/*/*/seed*"))) < 2:
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "r.toml").exists()
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/networks/*/*/seed*/done.json")}
    in_a_process(*search(tmp_path))
    assert written(tmp_path) == written(searched)
    assert {path: path.stat().st_mtime_ns for path in trained} == trained, "what was done is not done again"


def test_where_every_candidate_diverges_one_sentence_says_so(tmp_path):
    (tmp_path / "c.toml").write_text("[a]\nlearning_rate = 1e30\n[b]\nlearning_rate = 1e29\n")
    said = in_a_process(*search(tmp_path), check=2)
    assert (
        said.stderr
        == "surefoot: training diverged with every candidate (a; b); try --set learning_rate=1e+28\n"
    )
    assert not (tmp_path / "r.toml").exists()


def test_jobs_of_one_order_are_trained_with_their_own_augmentation(tmp_path):
    plain = Recipe(network="mlp", width=8, epochs=1, view=8, resize=8, augmentation="none", protocol="search")
    random = replace(plain, augmentation="inception")
    task, logits = str(write_task(tmp_path)), []
    for first in (plain, random):
        store = Store(tmp_path / first.augmentation)
        order = WorkOrder(
            task=task,
            root=None,
            jobs=(Job(first, 0), Job(random, 0)),
            store=str(store.root),
            cache=str(tmp_path / "cache"),
        )
        context = open_context(order)
        spec = Spec(context.task.name, context.task.identity, random, 0)
        produce(spec, context, store)
        logits.append(store.predictions(spec, Split.VAL).logits)
    assert np.array_equal(logits[0], logits[1])


def test_a_single_candidate_is_trained_to_the_end_at_once(toy, tmp_path):
    only = Candidate("only", replace(BASE, epochs=1))
    order = WorkOrder(task="toy", root=None, jobs=(Job(only.shortened(1), 0),), store=str(tmp_path))
    produce(Spec(toy.name, toy.identity, only.shortened(1), 0), open_context(order), Store(tmp_path))
    rungs = RecipeSearch(toy, [only], order, runs=1).run(workers=1, watch=None)  # nothing is left to train
    assert [[(entry.rung, entry.candidate, entry.verdict) for entry in rung] for rung in rungs] == [
        [(3, only, "best")]
    ]


def entry(name, nll, plain, losses=(1.0,), **values):
    spec = Spec("toy", "0", BASE, 0)
    trial = Trial(spec, 1.0, nll, plain, 0.1, None if losses is None else np.array(losses))
    return Entry(1, Candidate(name, BASE), (trial,), **values)


def test_ties_are_broken_by_the_nll_without_t_and_the_diverged_come_last():
    entries = [entry("a", np.nan, np.nan, None), entry("b", 0.2, 0.1), entry("c", 0.1, 0.4), entry("d", 0.1, 0.3)]  # fmt: skip
    assert "".join(each.candidate.name for each in sorted(entries, key=lambda each: each.rank)) == "dcba"


def test_verdicts():
    compared = [(0.0, 0.0), (0.1, 0.1), (0.11, 0.1), (0.5, np.inf)]
    verdicts = [entry("a", 1.0, 1.0, difference=d, margin=m).verdict for d, m in compared]
    assert verdicts == [
        "not significantly worse",
        "not significantly worse",
        "worse",
        "not significantly worse",
    ]
    assert entry("a", np.nan, np.nan, None).verdict == "diverged"


def test_a_search_needs_validation_data_and_plain_training(toy):
    order = WorkOrder(task="toy", root=None, jobs=(), store="runs")
    bare = replace(toy, splits={Split.TRAIN: toy.splits[Split.TRAIN]})
    with pytest.raises(InputError, match="has no val split; needed: one, to search on"):
        RecipeSearch(bare, [Candidate("plain", BASE)], order)
    bayesian = replace(BASE, variant=variant_from({"kind": "bayesian"}))
    with pytest.raises(InputError, match="the recipe has the variant 'bayesian'; allowed: plain training"):
        RecipeSearch(toy, [Candidate("plain", bayesian)], order)


MISTAKES = {
    "--rate 0.1": "--rate is not used by --search recipe; allowed: with --search rate",
    "--most-epochs 96": "--most-epochs is not used by --search recipe; allowed: with --search rate",
    "--search gone.toml": "gone.toml: No such file",
    "--search recipes": "unknown search 'recipes' (did you mean 'recipe'?); have: rate, recipe, a .toml file",
    "-o r.csv": "the output is r.csv, where the trials are written; allowed: another suffix",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_sentence(words, searched, monkeypatch):
    monkeypatch.chdir(searched)
    arguments = ("-o", "s.toml", *words.split())
    said = surefoot("tune", "toy", *SET, "--search", "recipe", *arguments, check=2)
    assert MISTAKES[words] in said.stderr
    assert said.stderr.count("\n") == 1


def test_options_of_the_recipe_search_are_refused_by_the_other(tmp_path):
    for option in ("--runs", "--workers"):
        said = surefoot("tune", "toy", option, "1", "-o", tmp_path / "r.toml", check=2)
        assert f"{option} is not used by --search rate; allowed: with --search recipe" in said.stderr
