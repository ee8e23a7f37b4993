"""The script of the distillation study, end to end on a small image task, and its numbers by plain numpy."""

import csv
import importlib
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import t as student_t

from surefoot.evaluation.comparison import Difference
from surefoot.intervals import StandardError
from surefoot.metrics import METRICS
from surefoot.store.store import Store
from surefoot.tasks.task import Split
from tests import warm
from tests.small_images import TASK, write_task

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
EXPERIMENT = """
name = "tiny"
task = "task.toml"
[recipe]
network = "mlp"
width = 8
epochs = 1
batch = 16
learning_rate = 0.05
view = 6
resize = 8
"""


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("distillation")
    finally:
        sys.path.remove(str(FOLDER))


CALL = """
import sys
sys.path.insert(0, sys.argv[1])
import distillation, distillation_evaluation
for module in (distillation, distillation_evaluation):
    module.RUNS, module.FINAL_RUNS = int(sys.argv[2]), int(sys.argv[3])
sys.exit(distillation.main(sys.argv[4:]))
"""


@pytest.fixture(scope="module")
def evaluation(script):
    return importlib.import_module("distillation_evaluation")


def words_of(folder, *more):
    words = [str(folder / "tiny.toml"), "--store", str(folder / "runs"), "--cache", str(folder / "cache")]
    return [*words, "--device", "cpu", "--workers", "2", "--members", "2", *more]


@pytest.fixture(scope="module")
def study(script, evaluation, tmp_path_factory):
    """A study whose first command was killed once the first student was done, and called again."""
    folder = tmp_path_factory.mktemp("study")
    write_task(folder)
    (folder / "tiny.toml").write_text(EXPERIMENT)
    process = warm.Process(CALL, [FOLDER, 3, 10, "grid", *words_of(folder)], new_session=True)
    end = time.monotonic() + 300
    while not any((folder / "runs" / "lessons").glob("*/*.npy")) and time.monotonic() < end:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done_after_kill = sorted((folder / "runs" / "networks").glob("*/*/seed*/done.json"))
    before = {path: path.stat().st_mtime_ns for path in done_after_kill}
    with pytest.MonkeyPatch.context() as patch:
        for module in (script, evaluation):
            patch.setattr(module, "RUNS", 2)
            patch.setattr(module, "FINAL_RUNS", 3)
        table = ["table", "--store", str(folder / "runs"), "--out", str(folder / "out"), "--resamples"]
        for kind, sentence, resamples in (
            ("grid", "Preliminary: 2 of 3 runs.", "10"),
            ("final", "tiny: ", "10"),
            ("options", "tiny: ", "1000"),  # the table that is tested
        ):
            done = warm.run(CALL, FOLDER, 2, 3, kind, *words_of(folder))
            assert done.returncode == 0, done.stderr
            assert script.main([*table, resamples]) == 0
            first = (folder / "out" / "distillation-tables.md").read_text().splitlines()[0]
            assert sentence in first
            assert ("Preliminary" in first) == (kind == "grid")
        yield folder, before


def lines_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def listed(folder, kind):
    return json.loads((folder / "runs" / "distillation" / f"{kind}-tiny.json").read_text())


def test_killed_it_resumes_and_trains_nothing_twice(study):
    folder, before = study
    assert len(before) >= 2, "the teachers were done"
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    store = Store(folder / "runs")
    states = {str(entry.state) for entry in store.networks() if entry.seed < 2}
    assert "running" not in states
    assert len(listed(folder, "grid")) == 10 * 2
    assert len(listed(folder, "final")) == 2 * 3
    assert len(listed(folder, "options")) == 7 * 2


def test_all_students_have_the_same_teachers_and_the_grid_is_complete(study):
    folder, _ = study
    rows = [row["recipe"] for row in listed(folder, "grid")]
    assert len({json.dumps(row["variant"]["teachers"]) for row in rows}) == 1
    assert {row["protocol"] for row in rows} == {"holdout"}
    seen = {(r["variant"]["unlabelled"], r["variant"]["unlabelled_folder"], r["epochs"]) for r in rows}
    with_g = {(share, name, n) for share in (0.25, 1.0) for name in ("small", "large") for n in (1, 4)}
    assert seen == {(0.0, "", 1), (0.0, "", 4)} | with_g
    options = [row["recipe"] for row in listed(folder, "options")]
    assert {row["variant"]["separate_batches"] for row in options} == {False, True}
    teachers = [p for p in (folder / "runs" / "networks").glob("*/*/*seed*") if (p / "done.json").is_file()]
    plain = [p for p in teachers if "variant" not in json.loads((p / "spec.json").read_text())["recipe"]]
    assert len(plain) == 2


def nll(logits, labels, temperature, least=0.0):
    scaled = logits.astype(np.float64) / temperature
    log_p = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
    p = np.exp(log_p[np.arange(len(labels)), labels])
    return float(np.mean(-np.log(np.clip(p, least, 1 - least) if least else p)))


def test_scores_are_those_of_students_with_a_temperature_of_at_least_one(evaluation, study):
    folder, _ = study
    store = Store(folder / "runs")
    lines = lines_of(folder / "out" / "distillation-scores.csv")
    temperatures = []
    for spec in evaluation.read_lists(store)["tiny"]:
        val, test = (store.predictions(spec, split) for split in (Split.VAL, Split.TEST_UNFAMILIAR))
        arrays = val.logits[0], val.labels
        found = minimize_scalar(
            lambda log_t, arrays=arrays: nll(*arrays, np.exp(log_t)), bounds=(-7, 7), method="bounded"
        )
        t = max(1.0, float(np.exp(found.x)))
        temperatures.append(t)
        setting = evaluation.Setting.of(spec)
        own = [
            line
            for line in lines
            if (float(line["share"]), line["folder"], int(line["length"]), int(line["run"]))
            == (setting.share, setting.folder, setting.length, spec.seed)
            and int(line["separate_batches"]) == setting.separate_batches
            and int(line["teacher_temperatures"]) == setting.teacher_temperatures
        ]
        values = {(line["side"], line["metric"]): float(line["value"]) for line in own}
        assert len(values) == len(own) == 6
        assert values["validation", "nll_unclipped"] == pytest.approx(nll(*arrays, t), abs=1e-4)
        expected = nll(test.logits[0], test.labels, t, least=0.001)
        assert values["unfamiliar", "nll"] == pytest.approx(expected, abs=2e-3)
    assert len(temperatures) * 6 == len(lines)
    assert min(temperatures) == 1.0, "the case has a T that is declined"


def test_the_choice_prefers_more_g_within_a_standard_error(evaluation):
    low, high = evaluation.Setting(0.25, "small", 1), evaluation.Setting(1.0, "large", 4)
    others = [setting for setting in evaluation.WITH_G if setting not in (low, high)]

    def chosen(of_high):
        values = dict.fromkeys(others, (0.9, 1.0, 1.1)) | {low: [0.4, 0.5, 0.6], high: of_high}
        choice = evaluation.Choice(values)
        assert choice.standard_error == pytest.approx(np.sqrt(2 * 0.01 / 3))  # 0.0816
        return choice.best

    assert chosen([0.48, 0.58, 0.68]) == high
    assert chosen([0.49, 0.59, 0.69]) == low
    assert evaluation.Choice(dict.fromkeys(evaluation.WITH_G, (0.5, 0.6))).best == high


def test_the_choice_reads_no_test_data(evaluation, study, monkeypatch):
    folder, _ = study
    store = Store(folder / "runs")
    original = Store.predictions
    monkeypatch.setattr(
        Store,
        "predictions",
        lambda self, spec, split: (split == Split.VAL or pytest.fail(split)) and original(self, spec, split),
    )
    specs = [
        spec
        for spec in evaluation.read_lists(store)["tiny"]
        if evaluation.Setting.of(spec) in evaluation.WITH_G
    ]
    assert evaluation.choice(specs, store).best in evaluation.WITH_G


def test_the_primary_comparison_is_unpaired_over_runs(evaluation, study):
    folder, _ = study
    store = Store(folder / "runs")
    found = evaluation.results(evaluation.read_lists(store)["tiny"], store)
    lines = lines_of(folder / "out" / "distillation-comparisons.csv")
    [line] = [each for each in lines if (each["kind"], each["outcome"]) == ("primary", "unfamiliar nll")]
    assert line["setting"] == found.chosen.label
    assert (line["runs"], line["less_runs"]) == ("3", "3")
    ours, others = (
        np.array(found.values(setting, "unfamiliar", "nll"))
        for setting in (found.chosen, found.chosen.without_g)
    )
    assert float(line["difference"]) == pytest.approx(ours.mean() - others.mean())
    parts = np.array([ours.var(ddof=1) / 3, others.var(ddof=1) / 3])
    freedom = parts.sum() ** 2 / (parts**2 / 2).sum()
    margin = student_t.ppf(0.975, freedom) * np.sqrt(parts.sum())
    assert float(line["margin_runs"]) == pytest.approx(margin)
    assert float(line["low"]) < float(line["low_groups"]) < float(line["difference"]) < float(line["high"])


def test_effects_are_differences_of_means_over_the_grid(evaluation, study):
    folder, _ = study
    store = Store(folder / "runs")
    found = evaluation.results(evaluation.read_lists(store)["tiny"], store)
    every = {(each.name, each.side, each.metric): each for each in evaluation.effects(found)}
    aurc = METRICS.named("aurc").function

    def mean(setting):
        return np.mean([aurc(each.sides["unfamiliar"]) for each in found.students[setting][:2]])

    large, small = (
        [mean(setting) for setting in evaluation.WITH_G if setting.folder == name]
        for name in ("large", "small")
    )
    effect = every["G large less small", "unfamiliar", "aurc"]
    assert effect.value == pytest.approx(np.mean(large) - np.mean(small))
    without = [mean(evaluation.Setting(length=length)) for length in (1, 4)]
    effect = every["G (all settings) less without G", "unfamiliar", "aurc"]
    assert effect.value == pytest.approx(np.mean([*large, *small]) - np.mean(without))
    within = [
        np.var([aurc(e.sides["unfamiliar"]) for e in found.students[s][:2]], ddof=1) for s in evaluation.GRID
    ]
    # 8 settings of weight 1/8 and 2 of weight 1/2, two runs each
    expected = student_t.ppf(0.975, 10) * np.sqrt(np.mean(within) / 2 * (8 / 64 + 2 / 4))
    assert effect.margin == pytest.approx(expected)


def test_the_estimate_counts_images_and_teachers_outputs(script, study, capsys, tmp_path):
    folder, _ = study
    words = words_of(folder, "--dry-run")
    words[2] = str(tmp_path / "empty")
    assert script.main(["grid", *words]) == 0
    printed = capsys.readouterr().out
    assert "| teachers | 2 |" in printed
    assert "| G large, share 1, x4 | 2 |" in printed
    assert not (tmp_path / "empty").exists(), "a dry run writes nothing"
    assert script.main(["grid", *words_of(folder, "--dry-run")]) == 0
    assert "| all |  | 0 |" in capsys.readouterr().out


def test_what_is_missing_is_said_in_a_sentence(script, study, capsys, tmp_path):
    folder, _ = study
    words = words_of(folder)
    words[2] = str(tmp_path / "empty")
    assert script.main(["final", *words]) == 2
    assert "20 networks of the grid not done; needed: all, to choose a setting" in capsys.readouterr().err
    assert script.main(["table", "--store", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "has no networks of this study" in capsys.readouterr().err
    (folder / "task.toml").write_text(TASK.replace('images = "g"', 'images = "g/small"'))
    try:
        assert script.main(["grid", *words]) == 2
    finally:
        (folder / "task.toml").write_text(TASK)
    assert "has no unlabelled images in a folder 'small'; needed: small and large" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "nll", "aurc", "expected"),
    [
        (
            "cat-dog",
            (-0.1, -0.13, -0.07),
            (-0.01, -0.02, 0.0),
            "cat-dog: G helps; unfamiliar NLL -20.0% [-27.2, ",
        ),
        ("tiny", (-0.1, -0.13, -0.07), (0.05, 0.04, 0.06), "tiny: inconclusive; unfamiliar NLL -20.0% ["),
        ("tiny", (0.1, 0.07, 0.13), (0.0, -0.1, 0.1), "tiny: G harms; unfamiliar NLL +20.0% ["),
        ("cat-dog", (0.0, -0.03, 0.03), (0, -1, 1), "[-7.2, +7.2]; the paper's -7% is not excluded."),
        ("cat-dog", (0.01, -0.02, 0.02), (0, -1, 1), "; the paper's -7% is excluded."),
    ],
    ids=str,
)
def test_the_answer_follows_the_protocol(evaluation, task, nll, aurc, expected):
    """Margins over runs of 0.02 widen the intervals over groups."""
    gaps = [Difference(*values, over_runs=StandardError.of_margin(0.02, math.inf)) for values in (nll, aurc)]
    assert expected in evaluation.answer(task, *gaps, 0.5)
