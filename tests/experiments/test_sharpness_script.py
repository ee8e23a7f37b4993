"""The script of the sharpness-aware study, end to end on small tasks, and its numbers against plain numpy."""

import csv
import importlib
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from surefoot.errors import InputError
from surefoot.evaluation.bootstrap import Draw
from surefoot.experiments.methods import Setup
from surefoot.experiments.run import open_folder
from surefoot.metrics import METRICS
from surefoot.predictions.labels import LabelKind
from surefoot.recipes.recipe import Protocol, Recipe
from surefoot.store.store import Store
from surefoot.tasks.task import Split
from surefoot.training.data import task_inputs
from surefoot.variants.build import TaskContext
from surefoot.workers.produce import produce
from tests import warm
from tests.experiments.test_methods import RECIPE as SMALL
from tests.experiments.test_methods import small_task
from tests.metrics import oracles
from tests.report.studies import trained

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
TINY = """
name = "tiny"
task = "toy"
[recipe]
network = "mlp"
width = 8
epochs = 1
learning_rate = 0.05
[sharpness_aware]
sharpness = 0.05
schedule = "cosine"
weight_decay = 0.0005
weight_average = 0.9
epochs = 2
"""


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("sharpness")
    finally:
        sys.path.remove(str(FOLDER))


CALL = """
import sys
sys.path.insert(0, sys.argv[1])
import sharpness
sharpness.SEEDS = range(int(sys.argv[2]))
sys.exit(sharpness.main(sys.argv[3:]))
"""


def called(*words, seeds=3):
    """The script in a process that trains."""
    done = warm.run(CALL, FOLDER, seeds, *words)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def evaluation(script):
    return importlib.import_module("sharpness_evaluation")


@pytest.fixture(scope="module")
def store(script, tmp_path_factory):
    """A store with the networks of both trainings, of two seeds."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.toml").write_text(TINY)
    words = [str(folder / "tiny.toml"), "--store", str(folder / "runs"), "--device", "cpu", "--workers", "2"]
    called("ablation", *words, seeds=2)
    called("rotations", *words)
    return Store(folder / "runs"), words


def lines_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def nll(logits, labels, temperature, *, least=0.0):
    """Mean -log p of the label, by numpy."""
    scaled = logits.astype(np.float64) / temperature
    top = scaled.max(axis=1, keepdims=True)
    log_p = scaled - top - np.log(np.exp(scaled - top).sum(axis=1, keepdims=True))
    p = np.exp(log_p[np.arange(len(labels)), labels])
    return float(np.mean(-np.log(np.clip(p, least, 1 - least) if least else p)))


def best_temperature(logits, labels):
    found = minimize_scalar(
        lambda log_t: nll(logits, labels, np.exp(log_t)),
        bounds=(-6, 6),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(np.exp(found.x))


def arrays(store, spec, split):
    predictions = store.predictions(spec, split)
    return predictions.logits[0], predictions.labels


PLAIN = Recipe(epochs=4, learning_rate=0.1)
FULL = replace(
    PLAIN,
    epochs=8,
    learning_rate=0.05,
    sharpness=0.1,
    schedule="cosine",
    weight_decay=0.0005,
    weight_average=0.99,
    augmentation="strong",
)


def test_strong_augmentation_is_an_addition_where_the_search_did_not_choose_it(script):
    full = replace(FULL, augmentation=PLAIN.augmentation)
    recipes = script.ablated(PLAIN, full)
    assert "full without strong augmentation" not in recipes
    assert recipes["full + strong augmentation"] == replace(full, augmentation="strong")
    assert recipes["plain + strong augmentation"] == replace(recipes["plain"], augmentation="strong")


def test_ablated_recipes_differ_by_one_ingredient(script):
    recipes = script.ablated(PLAIN, FULL)
    assert recipes.pop("plain, own length") == PLAIN
    assert {recipe.epochs for recipe in recipes.values()} == {8}
    assert recipes["full"] == FULL
    assert recipes["plain"] == replace(PLAIN, epochs=8)
    ingredients = {
        "sharpness": {"sharpness"},
        "strong augmentation": {"augmentation"},
        "cosine, weight decay": {"schedule", "weight_decay"},
        "weight average": {"weight_average"},
        "learning rate": {"learning_rate"},  # not an ingredient of its own, but the recipes differ in it
        "mixup 0.2": {"mixup"},
        "RegMixup 10": {"regmixup"},
        "label smoothing 0.1": {"label_smoothing"},
    }

    def differing(one, other):
        return {name for name, value in one.as_dict().items() if other.as_dict()[name] != value}

    for label, values in ingredients.items():
        assert differing(recipes.pop(f"plain + {label}"), recipes["plain"]) == values
        from_full = "without" if label in list(ingredients)[:5] else "+"
        assert differing(recipes.pop(f"full {from_full} {label}"), FULL) == values
    radii = [recipes.pop(f"full, rho {radius}") for radius in ("0.05", "0.1", "0.2", "0.4")]
    assert radii == [replace(FULL, sharpness=radius) for radius in (0.05, 0.1, 0.2, 0.4)]
    assert set(recipes) == {"plain", "full"}


def test_the_cost_of_a_step(script):
    assert script.step_cost(Recipe(view=112)) == 1
    assert script.step_cost(Recipe(view=224, sharpness=0.1, regmixup=10.0)) == pytest.approx(4 * 2.1 * 2)


def test_a_run_that_is_not_done_is_named(evaluation, finished, capsys):
    made, _ = finished
    [spec] = next(p for p in made.plan.methods if p.method.name == evaluation.OURS).runs[1]
    done = made.store.folder(spec) / "done.json"
    done.rename(done.with_suffix(".away"))
    try:
        with pytest.raises(InputError, match=r"'ensemble-of-sharpness-aware-t' was not run or is not done"):
            evaluation.contenders(made.plan, made.store)
    finally:
        done.with_suffix(".away").rename(done)
    assert (
        f"sharpness-aware network of toy/small, seed {spec.seed}, which is not done"
        in capsys.readouterr().out
    )


def test_a_second_call_trains_nothing(script, store, capsys):
    opened, words = store
    before = {path: path.stat().st_mtime_ns for path in opened.root.rglob("done.json")}
    called("rotations", *words)
    assert {path: path.stat().st_mtime_ns for path in opened.root.rglob("done.json")} == before
    assert script.main(["rotations", "--dry-run", *words]) == 0
    assert "| all | 0 | 0.00 | 0.0 |" in capsys.readouterr().out


def test_ablation_networks_are_trained_on_train_only(script, store):
    [rows] = script.read_rows("ablation", store[0]).values()
    assert {row.spec.recipe.protocol for row in rows} == {Protocol.HOLDOUT}
    assert {row.spec.seed for row in rows} == {0, 1}
    assert all(row.label != "plain" or row.spec.recipe.epochs == 2 for row in rows)


def test_ablation_takes_other_values_of_rho(script, tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(TINY)
    words = ["ablation", str(tmp_path / "tiny.toml"), "--store", str(tmp_path / "runs"), "--dry-run"]
    assert script.main([*words, "--rho", "0.3", "--rho", "0.5"]) == 0
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if "rho" in row] == ["| full, rho 0.3", "| full, rho 0.5"]
    assert script.main([*words, "--rho", "-1"]) == 2
    assert "sharpness is -1.0; allowed: at least 0" in capsys.readouterr().err


def test_ablation_table_has_the_scores_at_own_temperature(script, store, tmp_path):
    opened, _ = store
    assert script.main(["ablation-table", "--store", str(opened.root), "--out", str(tmp_path)]) == 0
    [rows] = script.read_rows("ablation", opened).values()
    expected = []
    for row in (row for row in rows if row.label == "full without sharpness"):
        temperature = best_temperature(*arrays(opened, row.spec, Split.VAL))
        expected.append(nll(*arrays(opened, row.spec, Split.TEST_UNFAMILIAR), temperature, least=0.001))
    [line] = [
        line
        for line in lines_of(tmp_path / "ablation.csv")
        if (line["recipe"], line["side"], line["metric"]) == ("full without sharpness", "unfamiliar", "nll")
    ]
    assert [float(value) for value in line["values"].split()] == pytest.approx(expected, rel=1e-4)
    assert float(line["mean"]) == pytest.approx(np.mean(expected), rel=1e-4)
    assert float(line["standard_error"]) == pytest.approx(abs(np.subtract(*expected)) / 2, rel=1e-2)
    assert "mean over tasks of the change from plain" in (tmp_path / "ablation.md").read_text()
    assert "full without sharpness" in (tmp_path / "ablation.svg").read_text()


def test_rules_are_fitted_on_familiar_data_and_scored_on_held_out_data(script, store, tmp_path, capsys):
    opened, _ = store
    assert script.main(["rules", "--store", str(opened.root), "--out", str(tmp_path)]) == 0
    lines = lines_of(tmp_path / "rules.csv")
    [rows] = script.read_rows("rotations", opened).values()
    folds = len(rows) // 2
    assert len(lines) == folds * len(script.RULES)
    by_fold = {(row.label, row.spec.recipe.variant.fold): row.spec for row in rows}
    for line in lines:
        fold = int(line["fold"])
        val = arrays(opened, by_fold["sharpness-aware", fold], "held_out_familiar")
        plain = arrays(opened, by_fold["plain", fold], "held_out_familiar")
        own = nll(*val, best_temperature(*val))
        reference = nll(*plain, best_temperature(*plain))
        used = float(line["temperature"])
        assert float(line["familiar"]) == pytest.approx(nll(*val, used))
        assert float(line["reference"]) == pytest.approx(reference)
        held_out = arrays(opened, by_fold["sharpness-aware", fold], "held_out")
        assert float(line["held_out"]) == pytest.approx(nll(*held_out, used, least=0.001))
        limit = {"own T": own, "2%": 1.02 * own, "5%": 1.05 * own, "10%": 1.1 * own}
        # However large T is, the NLL is at most that of equal probabilities.
        expected = min(limit.get(line["rule"], max(own, reference)), np.log(2))
        assert float(line["familiar"]) == pytest.approx(expected, rel=1e-3)
    assert "Chosen: " in capsys.readouterr().out


def test_many_labels_and_clusters_of_features(script, tmp_path):
    """As on objects: sigmoids, and subgroups that are clusters of the first plain network's features."""
    task = small_task(LabelKind.MANY_LABELS, groups=False)
    setup = Setup(task, SMALL, members=1, runs=1, folds=2)
    opened = Store(tmp_path)
    context = TaskContext(task, task_inputs(task, SMALL, cache=tmp_path), torch.device("cpu"))
    rotations, ablation = script.rotation_rows(setup), script.ablation_rows(setup)
    for spec in dict.fromkeys(s for row in (*rotations, *ablation) for s in (*row.spec.needs(), row.spec)):
        produce(spec, context, opened)
    assert {row.spec.needs() for row in rotations} == {(setup.spec(SMALL, 0),)}
    scores = list(script.rule_scores(rotations, opened))
    assert len(scores) == 2 * len(script.RULES)
    spec = next(row.spec for row in rotations if row.label == "sharpness-aware")
    held_out = opened.predictions(spec, "held_out")
    for score in (score for score in scores if score.fold == 0):
        scaled = held_out.with_logits(held_out.logits / score.temperature)
        assert score.held_out == pytest.approx(naive("nll", scaled, np.arange(held_out.n)), rel=1e-5)
    for values in script.ablation_scores(ablation, opened).values():
        assert all(np.isfinite(each).all() and len(each) == 3 for each in values.values())


def choice_of(script, scores):
    """From each rule's held-out and familiar NLL on two tasks; the plain network's familiar NLL is 1."""
    own = scores["own T"][0]
    return script.RuleChoice(
        {
            (task, rule): [
                script.RuleScore(
                    task, fold, rule, 1.0, held_out[place], own[place], familiar[place], 1.0, 9, 9
                )
                for fold in range(2)
            ]
            for rule, (held_out, familiar) in scores.items()
            for place, task in enumerate("ab")
        }
    )


def test_a_rule_above_the_plain_network_on_one_task_is_not_chosen(script):
    scores = {
        "own T": ([1.0, 2.0], [0.9, 0.9]),
        "2%": ([0.9, 1.9], [0.92, 0.92]),
        "5%": ([0.8, 1.8], [0.95, 0.95]),
        "10%": ([0.5, 1.0], [0.99, 1.01]),
        "surplus": ([0.7, 1.9], [1.0, 1.0]),
    }
    choice = choice_of(script, scores)
    assert [rule for rule in scores if choice.is_eligible(rule)] == ["own T", "2%", "5%", "surplus"]
    assert choice.mean_log_ratio("surplus") == pytest.approx((np.log(0.7) + np.log(1.9 / 2)) / 2)
    assert choice.best == "surplus"  # log: -0.20; of 5%: -0.16
    assert choice_of(script, scores | {"surplus": ([0.9, 1.9], [1.0, 1.0])}).best == "5%"
    none = choice_of(script, {rule: (held_out, [1.1, 1.1]) for rule, (held_out, _) in scores.items()})
    assert none.best == "surplus"
    assert "no rule is eligible" in none.sentence


def test_the_time_limit_interrupts_and_is_removed(script):
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(KeyboardInterrupt), script.time_limit(0.001):
        time.sleep(5)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_is_missing_is_said_in_a_sentence(script, store, tmp_path, capsys):
    out = ["--out", str(tmp_path)]
    assert script.main(["rules", "--store", str(tmp_path), *out]) == 2
    assert "has no networks of rotations" in capsys.readouterr().err
    opened, _ = store
    listed = opened.root / "sharpness" / "ablation-toy-wave.json"
    rows = json.loads(listed.read_text())
    (tmp_path / "sharpness").mkdir()
    (tmp_path / "sharpness" / listed.name).write_text(json.dumps(rows))
    assert script.main(["ablation-table", "--store", str(tmp_path), *out]) == 2
    assert "not done; needed: all" in capsys.readouterr().err
    assert script.main(["rotations", "gender", "--store", str(tmp_path)]) == 2
    assert "needs --packs" in capsys.readouterr().err


@pytest.fixture(scope="module", params=list(LabelKind))
def finished(request, evaluation, tmp_path_factory):
    """An experiment that was run: two runs, ensembles of two."""
    made = trained(tmp_path_factory.mktemp("finished"), request.param, methods=evaluation.EVALUATED)
    return made, open_folder(made.experiment, [made.plan], made.store)


def naive(name, ensemble, rows):
    """A metric of the mean of the members' probabilities over rows drawn with repetition, by numpy."""
    logits, labels = ensemble.logits.astype(np.float64)[:, rows], ensemble.labels[rows]
    if ensemble.kind is LabelKind.ONE_LABEL:
        top = logits.max(axis=2, keepdims=True)
        p = np.exp(logits - top)
        p = (p / p.sum(axis=2, keepdims=True)).mean(axis=0)
        confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels
        true = p[np.arange(len(rows)), labels]
    else:
        known = labels >= 0
        p = (1 / (1 + np.exp(-logits))).mean(axis=0)[known]
        labels = labels[known]
        confidence, correct = np.maximum(p, 1 - p), (p > 0.5) == (labels == 1)
        true = np.where(labels == 1, p, 1 - p)
    if name == "nll":
        return np.mean(-np.log(np.clip(true, 0.001, 0.999)))
    return oracles.aurc(confidence, correct)


def test_replicates_are_those_of_resampled_rows_and_networks(evaluation, finished):
    made, _ = finished
    by_name = evaluation.contenders(made.plan, made.store)["unfamiliar"]
    metrics = [METRICS.named(name) for name in ("nll", "aurc")]
    rng = np.random.default_rng(3)
    for name in (evaluation.OURS, evaluation.PAPER_ENSEMBLE, "sharpness-aware, 10%"):
        contender = by_name[name]
        groups = contender.runs[0].groups
        names, unit_of = np.unique(groups, return_inverse=True)
        drawn = [rng.integers(len(names), size=len(names)) for _ in range(3)]
        counts = np.stack([np.bincount(units, minlength=len(names)) for units in drawn]).astype(float)
        picks = rng.integers(2, size=(3, 2))
        got = contender.replicates(metrics, Draw(unit_of, unit_of, len(names), 3, 0), counts, picks)
        members = [run.member(i) for run in contender.runs for i in range(run.members)]
        for resample in range(3):
            rows = np.concatenate([np.flatnonzero(unit_of == unit) for unit in drawn[resample]])
            picked = [members[pick] for pick in picks[resample]]
            if name == evaluation.PAPER_ENSEMBLE:
                joined = picked[0].with_logits(np.concatenate([each.logits for each in picked]))
                expected = [naive(metric.name, joined, rows) for metric in metrics]
            else:
                expected = [np.mean([naive(m.name, each, rows) for each in picked]) for m in metrics]
            assert got[resample, 0] == pytest.approx(expected[0], rel=1e-6)
            assert got[resample, 1] == pytest.approx(expected[1], rel=1e-3)  # its curve is read in cells


def test_methods_of_the_same_networks_share_picks(evaluation, finished):
    made, _ = finished
    by_name = evaluation.contenders(made.plan, made.store)["familiar"]
    assert by_name[evaluation.OURS].specs == by_name[evaluation.OWN_ENSEMBLE].specs
    assert by_name[evaluation.OURS].specs != by_name[evaluation.PAPER_ENSEMBLE].specs
    picks = evaluation.picked_networks([c.specs for c in by_name.values()], 50, np.random.default_rng(0))
    assert len(picks) == 2
    assert {each.shape for each in picks.values()} == {(50, 2)}
    assert {int(pick) for each in picks.values() for pick in each.flat} == {0, 1}


def test_a_method_differs_from_itself_by_nothing_and_intervals_contain_the_value(evaluation, finished):
    made, _ = finished
    by_side = evaluation.contenders(made.plan, made.store)
    changed = {
        side: {**methods, evaluation.OURS: methods[evaluation.PAPER_ENSEMBLE]}
        for side, methods in by_side.items()
    }
    gaps = list(evaluation.gaps("small", changed, resamples=30))
    same = [gap for gap in gaps if (gap.method, gap.other) == (evaluation.OURS, evaluation.PAPER_ENSEMBLE)]
    assert len(same) == 8
    for gap in same:
        undefined = np.isnan(gap.value)  # E99 where no prediction is that confident
        assert gap.verdict == ("undefined" if undefined else "met")
        assert undefined or (gap.difference, gap.low, gap.high) == (0, 0, 0)
    for gap in (gap for gap in gaps if np.isfinite(gap.low)):
        assert gap.low <= gap.value - gap.other_value <= gap.high
        assert gap.difference == gap.value - gap.other_value
        assert gap.limit == (1 if gap.other == evaluation.PAPER_ENSEMBLE else 1.02)


@pytest.mark.parametrize(
    ("value", "limit", "excess_low", "verdict"),
    [
        (0.5, 1.0, -0.2, "met"),
        (0.4, 1.0, -0.2, "met"),
        (0.505, 1.02, -0.2, "met"),
        (0.52, 1.0, -0.1, "not met by 4.0%, not significant"),
        (0.52, 1.0, 0.01, "not met"),
        (0.561, 1.02, -0.1, "not met by 10.0%, not significant"),
    ],
)
def test_verdicts(evaluation, value, limit, excess_low, verdict):
    numbers = (value, 0.5, value - 0.5, 0.0, 0.0, value / 0.5, 0.0, 0.0, limit, excess_low)
    assert evaluation.Gap("task", "ours", "other", "familiar", "nll", *numbers).verdict == verdict


def test_evaluation_and_cost_are_written(script, evaluation, finished, tmp_path, capsys):
    made, folder = finished
    out = ["--out", str(tmp_path)]
    assert script.main(["evaluate", str(folder), "--resamples", "20", *out]) == 0
    lines = lines_of(tmp_path / "evaluation.csv")
    assert len(lines) == 2 * 6 * 8  # ensembles; the method and five rules; outcomes
    comparison = made.study().parts[0].comparison
    for line in (line for line in lines if line["method"] == evaluation.OURS and line["metric"] == "nll"):
        for name, column in ((evaluation.OURS, "value"), (line["other"], "other_value")):
            cell = comparison.method(name).cells[line["side"], "nll"]
            assert float(line[column]) == pytest.approx(cell.mean)
    by_rule = {
        line["method"]: line for line in lines if (line["side"], line["metric"]) == ("familiar", "nll")
    }
    assert by_rule["sharpness-aware, 2%"]["value"] == by_rule[evaluation.OURS]["value"]  # the default rule
    text = (tmp_path / "evaluation.md").read_text()
    assert text.count("**toy/small: one network and ensembles**") == 1
    goal = [
        x["verdict"]
        for x in lines
        if x["method"] == evaluation.OURS and x["other"] == evaluation.PAPER_ENSEMBLE
    ]
    met = all(goal[place] == "met" for place in (0, 1, 6))
    assert f"AURC and familiar NLL: on {int(met)} of 1 task" in text
    assert "compared with ensemble-of-t; to be reached: no higher" in text
    assert script.main(["scores", str(folder), *out]) == 0
    for line in lines_of(tmp_path / "scores.csv"):
        if line["method"] not in (
            "budget-t",
            "ensemble-budget-t",
        ):  # which were not among the experiment's rows
            cell = comparison.method(line["method"]).cells["unfamiliar", "nll"]
            assert float(line["unfamiliar_nll"]) == pytest.approx(cell.mean), line["method"]
    assert (tmp_path / "sharpness-aware.svg").read_text().startswith("<svg")
    assert script.main(["cost", str(folder), *out]) == 0
    costs = {line["method"]: line for line in lines_of(tmp_path / "cost.csv")}
    assert list(costs) == list(evaluation.COSTED)
    assert [costs[name]["networks"] for name in evaluation.COSTED] == ["1", "1", "2", "2"]
    seconds = [made.store.facts(spec)["seconds"] for [spec] in made.plan.methods[0].runs]
    assert float(costs["single"]["training_seconds"]) == pytest.approx(np.median(seconds))
    assert costs["single"]["training_mib"] == "nan"  # memory is logged on a GPU only


def test_peak_memory_is_read_from_the_logs(evaluation, finished):
    made, _ = finished
    [spec] = made.plan.methods[0].runs[1]
    log = made.store.folder(spec) / "log.jsonl"
    before = log.read_text()
    log.write_text(f'{before}{{"training_memory": {3 * 2**20}}}\n{{"prediction_memory": {2**20}}}\n')
    try:
        lines = {line[1]: line[-2:] for line in evaluation.cost_lines(made.plan, made.store)}
    finally:
        log.write_text(before)
    assert lines["single"] == lines["ensemble-of-t"] == (3.0, 1.0)
