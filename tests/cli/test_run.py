"""`surefoot run`, `report`, `compare`, `ls` and `show` as people use them, on one small experiment."""

import csv
import io
import json
import shutil
import signal
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from surefoot import InputError, compare, load_study, run
from surefoot.calibrators import load_calibration
from surefoot.lab.experiments.experiment import EXPERIMENTS, experiment_from, experiment_named
from surefoot.lab.experiments.methods import METHODS
from surefoot.lab.experiments.run import read_folder
from surefoot.lab.store.files import State
from surefoot.lab.store.store import Store
from surefoot.lab.workers import local
from surefoot.metrics import METRICS, nll
from tests.cli.command import in_a_process, rows_of, started

TINY = """
name = "tiny"
task = "toy"
methods = ["single", "single-t", "ensemble", "distill"]
members = 2
runs = 2
folds = 2
resamples = 50
[recipe]
network = "mlp"
width = 8
epochs = 2
learning_rate = 0.05
"""
STOPPED = "stopped; the same command resumes\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder where `surefoot run tiny.toml` was run, and a second, longer experiment beside it."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny.toml").write_text(TINY)
    done = in_a_process(
        "run", folder / "tiny.toml", "--store", folder / "runs", "--device", "cpu", "--workers", 1
    )
    (folder / "said.txt").write_text(done.stdout)
    assert done.stderr == "", "nothing for the eye where nobody watches"
    sets = ("name=longer", "epochs=3", "runs=1", "methods=single,budget-t")
    longer = ["run", folder / "tiny.toml", *(word for each in sets for word in ("--set", each))]
    in_a_process(*longer, "--store", folder / "runs", "--train-only")
    return folder


@pytest.fixture
def no_training(monkeypatch):
    def refuse(*_):
        raise AssertionError("a training process was started")

    monkeypatch.setattr(local, "_start", refuse)


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes most of a report's time, and has its own tests."""
    monkeypatch.setattr("surefoot.report.study.part_figures", lambda *_: [])


def scores(folder, name="tiny"):
    text = (folder / "runs/experiments" / name / "tables/toy-wave-scores.csv").read_text()
    return {tuple(row[:4]): float(row[4]) for row in list(csv.reader(io.StringIO(text)))[1:] if row[4]}


def test_a_flipped_bit_in_stored_weights_stops_a_run_before_it_writes_or_trains(folder, no_training, here):
    store = Store(folder / "runs")
    (plan,) = read_folder(store.experiment_folder("tiny"))[1]
    folders = [store.folder(plan.spec(job)) for job in plan.jobs()]
    for weights in (folders[0] / "weights_train.safetensors", folders[-1] / "weights.safetensors"):
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
        before = contents(folder)
        command = ("run", folder / "tiny.toml", "--store", store.root, "--set", "resamples=49")
        refused = here(*command, check=2)
        after = contents(folder)
        weights.write_bytes(whole)
        assert refused.stderr == (
            f"surefoot: {weights} is damaged (its sha256 is not the one in done.json); remove its folder "
            f"({weights.parent}) and repeat 'surefoot run' or 'surefoot train', which trains this network "
            "again\n"
        )
        assert after == before


def test_doing_what_the_error_says_restores_the_same_network(folder, tmp_path):
    shutil.copytree(folder / "runs", tmp_path / "runs")
    weights = sorted((tmp_path / "runs").glob("networks/*/*/*/weights.safetensors"))[0]
    whole = weights.read_bytes()
    shutil.rmtree(weights.parent)
    in_a_process("run", folder / "tiny.toml", "--store", tmp_path / "runs", "--train-only", "--device", "cpu")
    assert weights.read_bytes() == whole


def contents(folder):
    """The bytes of every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rows_of_further_calibrators_are_added_without_training(
    folder, no_training, no_figures, here, tmp_path
):
    shutil.copytree(folder / "runs", tmp_path / "runs")
    command = ("run", folder / "tiny.toml", "--store", tmp_path / "runs", "--method", "single")
    printed = here(*command, "--set", "runs=1", "--calibrators", "temperature,vector,isotonic").stdout
    added = {"Single + T", "Single + vector", "Single + isotonic", "Ensemble + vector", "Ensemble + isotonic"}
    assert {row[0] for row in rows_of(printed)} >= {"Single", *added}
    page = Path(printed.rpartition("report: ")[2].strip())
    text = page.read_text()
    assert all(title in text for title in added)
    (table,) = page.parent.glob("tables/*-scores.csv")
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    nlls = {
        row["method"]: row["value"] for row in rows if (row["side"], row["metric"]) == ("familiar", "nll")
    }
    assert len({nlls[name] for name in ("single", "single-t", "single-vector", "single-isotonic")}) == 4


def test_it_ends_with_the_table_and_the_report(folder):
    printed = (folder / "said.txt").read_text()
    page = folder / "runs/experiments/tiny/report.html"
    assert printed.endswith(f"report: {page}\n")
    assert page.stat().st_size > 10_000
    assert printed.startswith("On toy/wave, ")
    rows = {row[0]: row[1:] for row in rows_of(printed)}
    assert rows.keys() >= {"Single", "Single + T", "Ensemble", "Distill"}
    assert "From 2 runs" in printed
    single = [
        value
        for key, value in scores(folder).items()
        if key[0] == "single" and key[2:] == ("familiar", "nll")
    ]
    assert rows["Single"][0].rstrip("*()") == f"{np.mean(single):.3f}"


def test_the_quickstart_ends_with_a_short_summary(here, no_figures, tmp_path):
    """Its networks are fewer and smaller here; the photographs are those of the package."""
    sets = ("epochs=1", "width=8", "members=2", "runs=2", "resamples=0")
    methods = ("single", "single-t", "ensemble", "ensemble-of-t", "t-of-ensemble", "g-distill", "g-distill-t")
    words = [word for each in sets for word in ("--set", each)]
    words += [word for each in (*methods, "budget-t", "novelty") for word in ("--method", each)]
    done = here("run", "quickstart", *words, "--store", tmp_path, "--device", "cpu", "--workers", 1)
    verdict, table, end, following = done.stdout.split("\n\n")
    assert "\nNLL" not in verdict
    assert max(map(len, (verdict + table).splitlines())) <= 80
    shown = [METHODS.named(name).title for name in (*methods, "budget-t", "novelty")]
    assert len([row for row in rows_of(table) if row[0] in shown]) == 8
    page = tmp_path / "experiments/quickstart/report.html"
    assert end == f"report: {page}"
    assert following.startswith("What to try next:\n")
    assert f"surefoot report quickstart --store {tmp_path} --set" in done.stdout
    assert page.read_text().count("data:image/png;base64,") == 12  # thumbnails of confident mistakes
    assert (tmp_path / "experiments/quickstart/figures/pets-gallery.png").is_file()


def test_a_second_run_trains_nothing_and_says_the_same(folder, here, no_training, no_figures):
    before = scores(folder)
    resolved = folder / "runs/experiments/tiny/experiment.toml"
    done = here("run", resolved, "--store", folder / "runs", "--device", "cpu")
    assert scores(folder) == before
    assert done.stdout == (folder / "said.txt").read_text()
    assert len(before) > 50


def test_a_store_at_a_url_is_fetched_and_gets_the_report(
    folder, here, tmp_path, no_training, no_figures, monkeypatch
):
    bucket, cache = tmp_path / "bucket", tmp_path / "cache"
    shutil.copytree(folder / "runs/networks", bucket / "networks")
    monkeypatch.setenv("SUREFOOT_CACHE", str(cache))
    done = here("run", folder / "tiny.toml", "--store", f"file://{bucket}", "--device", "cpu")
    table = (folder / "said.txt").read_text().partition("report: ")[0]
    assert done.stdout.startswith(table)
    (page,) = cache.glob("stores/*/experiments/tiny/report.html")
    assert f"report: {page}\nall results are in file://{bucket}; " in done.stdout
    assert (bucket / "experiments/tiny/report.html").read_bytes() == page.read_bytes()


def test_a_report_with_other_metrics_and_methods(folder, here, tmp_path, no_training, no_figures):
    """By the experiment's path, so that its own store is read and not the one of this folder."""
    shutil.copytree(folder / "runs", tmp_path / "runs")
    kept = tmp_path / "runs/experiments/tiny/experiment.toml"
    before = kept.read_bytes()
    methods = ("--method", "t-of-ensemble", "--method", "single")
    done = here("report", kept.parent, *methods, "--set", "metrics=nll,smooth_ece", "--set", "resamples=0")
    listed = [row[0] for row in rows_of(done.stdout)]
    assert sorted(listed[:2]) == ["Single", "T-scaled ensemble"]
    assert "Distill" not in listed
    assert "Smooth ECE" in done.stdout, "what was asked for is in the table"
    own = next(kept.parent.glob("report-*"))
    assert f"report: {own / 'report.html'}" in done.stdout, "and the full report stays as it was"
    assert scores(tmp_path) == scores(folder)
    found, of_run = scores(tmp_path, f"tiny/{own.name}"), scores(folder)
    assert {key[0] for key in found} == {"single", "t-of-ensemble"}
    assert "smooth_ece" in {key[3] for key in found}
    same = [key for key in found if key in of_run]
    assert len(same) > 10
    assert all(found[key] == of_run[key] for key in same)
    assert kept.read_bytes() == before, "the run itself was not changed"
    alone = here("report", kept.parent, "--method", "single", "--set", "resamples=0").stdout
    assert "On toy/wave only Single was run: its unfamiliar NLL is " in alone


def test_a_report_with_another_rule_for_t(folder, here, tmp_path, no_training, no_figures):
    shutil.copytree(folder / "runs", tmp_path / "runs")
    run = tmp_path / "runs/experiments/longer"
    before = (run / "experiment.toml").read_bytes()
    limits = {}
    for budget in ("0.02", "0.1", "surplus"):
        printed = here("report", run, "--set", f"budget={budget}", "--set", "resamples=0").stdout
        own = Path(printed.strip().splitlines()[-1].removeprefix("report: ")).parent
        (file,) = (own / "calibrations").glob("*budget-t*.json")
        limits[budget] = load_calibration(file)
    assert [each.budget for each in limits.values()] == [0.02, 0.1, "surplus"]
    surplus = limits["surplus"]
    assert surplus.nll_limit == surplus.nll_best, "a plain network has no surplus on itself"
    assert surplus.temperature == limits["0.1"].best.temperature
    assert (run / "experiment.toml").read_bytes() == before, "the run itself was not changed"
    assert "budget is 'x'; allowed: " in here("report", run, "--set", "budget=x", check=2).stderr


def epochs(store):
    return [
        (entry["phase"], entry["epoch"])
        for found in Store(store).networks()
        for entry in found.log
        if "epoch" in entry
    ]


def test_scores_alone_make_the_tables_again(folder, here, tmp_path):
    made = folder / "runs/experiments/tiny/tables"
    printed = here("report", made / "toy-wave-scores.csv", "--paper", "animals", "-o", tmp_path / "again")
    first, again = ((f / "toy-wave-tables.md").read_text() for f in (made, tmp_path / "again"))
    for name in ("md", "tex", "html"):
        assert f"written: {tmp_path / 'again' / f'toy-wave-tables.{name}'}" in printed.stdout
    means = [
        value
        for (method, _, side, metric), value in scores(folder).items()
        if (method, side, metric) == ("single", "unfamiliar", "nll")
    ]
    assert f"{np.mean(means):.4f}" in printed.stdout
    assert "(paper" in again
    assert "(paper" not in first
    here("report", made / "toy-wave-scores.csv", "-o", tmp_path / "bare")
    tables = (tmp_path / "bare/toy-wave-tables.md").read_text().split("**\n\n")[1:]
    assert len(tables) >= 3
    for table in tables:
        rows = table.split("\n\n")[0]
        assert rows.startswith("| method")
        assert rows in first, "the same as the run's own, to the last digit"


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("--paper", "birds"), "the paper has no task 'birds'; have: gender, cat-dog, animals, objects"),
        (
            ("--method", "distil"),
            "has no method 'distil' (did you mean 'distill'?); have: single, single-t, ensemble, distill",
        ),
        (("--set", "metrics=nll"), "--set is for an experiment"),
    ],
)
def test_scores_with_a_mistake(folder, here, words, printed):
    path = folder / "runs/experiments/tiny/tables/toy-wave-scores.csv"
    assert printed in here("report", path, *words, check=2).stderr


def test_ctrl_c_is_a_sentence_and_the_same_command_goes_on(folder, tmp_path, here):
    store = tmp_path / "runs"
    sets = ("epochs=60", "runs=1", "members=1", "methods=single")
    arguments = [
        "run",
        folder / "tiny.toml",
        *(w for s in sets for w in ("--set", s)),
        "--store",
        store,
        "--device",
        "cpu",
        "--train-only",
    ]
    with started(*arguments) as process:
        end = time.monotonic() + 60
        while not epochs(store):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, warned = process.communicate()
    assert (process.returncode, printed, warned) == (130, "", STOPPED)
    assert [found.state for found in Store(store).networks()] == [State.STOPPED]
    begun = len(epochs(store))
    assert 0 < begun < 120
    listed = here("ls", "runs", "--store", store).stdout
    assert rows_of(listed) == [["tiny", "toy/wave", "0", "1", "no"]]
    done = in_a_process(*arguments)
    assert done.stdout == f"trained; 'surefoot report tiny --store {store}' writes the report\n"
    assert epochs(store) == [(phase, epoch) for phase in ("train", "final") for epoch in range(1, 61)]


def test_ctrl_c_while_scoring_is_a_sentence_too(folder, here, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("surefoot.lab.experiments.workflow.study", interrupted)
    done = here("run", folder / "tiny.toml", "--store", folder / "runs", "--device", "cpu", check=130)
    assert (done.stdout, done.stderr) == ("", STOPPED)


def test_the_same_from_python(folder):
    again = run(folder / "tiny.toml", store=folder / "runs", device="cpu")  # all networks are there
    assert again.folder == folder / "runs" / "experiments" / "tiny"
    values = [nll(each.sides["unfamiliar"]) for each in again.parts[0].comparison.method("single").runs]
    frame = again.to_frame().set_index(["method", "side", "metric"])
    assert frame.loc[("single", "unfamiliar", "nll"), "mean"] == pytest.approx(np.mean(values))
    few = load_study("tiny", store=folder / "runs", methods=["single"], values={"resamples": 0})
    assert set(few.to_frame()["method"]) == {"single"}
    with pytest.raises(InputError, match="a report cannot change 'epochs'"):
        load_study(again.folder, values={"epochs": 3})
    change = compare("tiny", "longer", store=folder / "runs", resamples=0)
    assert {"nll", "ece"} <= set(change.to_frame()["metric"])


def test_compare_says_what_changed_with_intervals(folder, here):
    store = ("--store", folder / "runs")
    found = json.loads(
        here("compare", "tiny", "longer", *store, "--resamples", 50, "--format", "json").stdout
    )
    values = {each["name"]: (each["before"], each["after"]) for each in found["values"]}
    assert values["runs"] == ("2", "1")
    assert values["toy/wave: recipe.epochs"] == ("2", "3")
    assert values["methods only here"] == ("single-t, ensemble, distill", "budget-t")
    (task,) = found["tasks"]
    assert (task["only_before"], task["only_after"]) == (["single-t", "ensemble", "distill"], ["budget-t"])
    changed = {(each["side"], each["metric"]): each for each in task["methods"]["single"]}
    before = scores(folder)
    for side in ("familiar", "unfamiliar"):
        nll = changed[side, "nll"]
        assert nll["before"] == pytest.approx(np.mean([before["single", run, side, "nll"] for run in "01"]))
        assert nll["difference"] == pytest.approx(nll["after"] - nll["before"])
        assert nll["low"] < nll["difference"] < nll["high"]
        assert nll["paired"]
    lines = list(
        csv.DictReader(
            io.StringIO(here("compare", "tiny", "longer", *store, "--resamples", 0, "--format", "csv").stdout)
        )
    )
    assert [float(line["before"]) for line in lines if line["metric"] == "nll"] == [
        changed[side, "nll"]["before"] for side in ("familiar", "unfamiliar")
    ]
    assert {line["low"] for line in lines} == {""}
    words = ("compare", folder / "runs/experiments/tiny", "longer", *store, "--resamples", 0, "--format")
    assert r"\toprule" in here(*words, "latex").stdout
    printed = here(*words, "markdown").stdout
    assert "- toy/wave, methods only after: budget-t." in printed
    assert f"| Single | NLL | F | {changed['familiar', 'nll']['before']:.4f} |" in printed


def test_compare_with_itself_finds_nothing(folder, here):
    printed = here("compare", "longer", "longer", "--store", folder / "runs", "--resamples", 20).stdout
    assert "The values of both experiments are the same." in printed
    assert "0 of 20 differences" in printed
    assert "There is one run" in printed


def test_ls_runs(folder, here):
    printed = here("ls", "runs", "--store", folder / "runs").stdout
    assert rows_of(printed) == [["longer", "toy/wave", "1", "0", "no"], ["tiny", "toy/wave", "4", "0", "yes"]]


def test_ls_methods_and_experiments(here):
    printed = here("ls", "methods").stdout
    sections = {}
    for name, formula, *_ in rows_of(printed):
        if not formula:
            label, sections[name] = name, []
        else:
            sections[label].append(name)
    origins = ("the paper", "not in the paper", "oracle: tuned on the test sets")
    for (label, names), origin in zip(sections.items(), origins, strict=True):
        assert origin.startswith(label)
        assert names == [method.name for method in METHODS if method.origin == origin]
    printed = here("ls", "experiments").stdout
    assert [row[0] for row in rows_of(printed)] == [each.name for each in EXPERIMENTS]
    assert "toy/wave, toy/rings" in printed


def test_show_an_experiment_is_toml_that_runs(here):
    printed = here("ls", "experiments", "letters").stdout
    assert printed.startswith("# experiment letters, as it would run\n")
    assert experiment_from(tomllib.loads(printed), name="x") == experiment_named("letters")


def test_show_a_task_a_metric_and_a_calibrator(here):
    printed = here("ls", "tasks", "cat-dog").stdout
    assert printed.startswith("Cat vs. dog: Oxford-IIIT Pets")
    assert "terms:" in printed
    e99 = METRICS.named("e99")
    assert here("ls", "metrics", "e99").stdout.splitlines()[0] == f"metric e99: {e99.title}"
    assert "options:           budget, reference\n" in here("ls", "calibrators", "budget").stdout


@pytest.mark.parametrize("method", METHODS, ids=lambda each: each.name)
def test_show_a_method(here, method):
    printed = here("ls", "methods", method.name).stdout
    for text in (method.title, method.formula, method.reference, method.training, method.fitted_on):
        assert text in printed
    assert ("oracle: " in printed) == method.oracle


def test_show_a_run(folder, here):
    printed = here("ls", "runs", "tiny", "--store", folder / "runs").stdout
    files = [folder / f"runs/experiments/tiny/calibrations/toy-wave-single-t-run{run}.json" for run in (0, 1)]
    fitted = ", ".join(f"{load_calibration(file).temperature:.4g}" for file in files)
    assert ["toy-wave-single-t", "T", fitted] in rows_of(printed)
    assert printed.endswith(
        f"networks: 4 done, 0 missing\nreport: {folder / 'runs/experiments/tiny/report.html'}\n"
    )
    assert '"single-t",\n    "ensemble",\n    "distill",\n]' in printed
    assert (
        "report: none; 'surefoot report longer"
        in here("ls", "runs", "longer", "--store", folder / "runs").stdout
    )


MISTAKES = {
    "absent data": (["run", "cat-dog"], "task 'cat-dog' needs a root folder; see 'surefoot data show cat-dog --root DIR'"),
    "unknown experiment": (["run", "quick"], "unknown experiment 'quick' (did you mean 'quickstart'?); have: quickstart, "),
    "no such file": (["run", "none.toml"], "cannot read none.toml: No such file or directory"),
    "no equals": (["run", "toy", "--set", "runs"], "--set 'runs' has no '='; allowed: NAME=VALUE"),
    "unknown value": (["run", "toy", "--set", "run=3"], "unknown experiment value 'run' (did you mean 'runs'?); have: "),
    "bad value": (["run", "toy", "--set", "runs=many"], "runs is 'many'; allowed: a whole number of at least 1"),
    "bad recipe value": (["run", "toy", "--set", "epochs=0"], "epochs is 0; allowed: "),
    "unknown method": (["run", "toy", "--method", "magic"], "unknown method 'magic'; have: single, "),
    "method twice": (["run", "toy", "--method", "single", "--method", "single"], "methods has 'single' twice"),
    "no method applies": (["run", "toy", "--method", "ensemble", "--set", "members=1"], "no method can be used on task 'toy/wave'"),
    "unknown device": (["run", "toy", "--device", "tpu"], "device is 'tpu'; allowed: auto, cpu, cuda"),
    "ray's option without ray": (["run", "toy", "--gpus-per-network", "0.5"], "gpus per network is 0.5 and the engine is 'local'; needed: the engine 'ray'"),
    "bad share": (["run", "toy", "--engine", "ray", "--gpus-per-network", "1.5"], "GPUs per network are 1.5; allowed: up to 1, or a whole number"),
    "unknown URL": (["run", "toy", "--store", "nosuch://runs"], "cannot reach the store at nosuch://runs: Protocol not known: nosuch"),
    "missing weights": (["run", "toy", "--weights", "none.pth"], "none.pth: No such file or directory"),
    "never run": (["report", "toy", "--store", "empty"], "no experiment 'toy' was run in empty; have: none yet"),
    "compare what was never run": (["compare", "a", "b", "--store", "empty"], "no experiment 'a' was run in empty"),
    "no store": (["ls", "runs", "--store", "nowhere"], "no store at nowhere; allowed: a folder that 'surefoot run' created"),
    "a method of another name": (["ls", "methods", "toy"], "unknown method 'toy'; have: single, "),
    "one network": (["ls", "networks", "a"], "networks have no names, got 'a'; allowed: 'surefoot ls networks'"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(case, tmp_path, here, monkeypatch, no_training):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    arguments, message = MISTAKES[case]
    done = here(*arguments, check=2)
    assert message in done.stderr
    assert done.stderr.startswith("surefoot: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--set", "epochs=3"],
            "a report cannot change 'epochs'; it can change: methods, metrics, resamples, budget",
        ),
        (
            ["--method", "bayesian"],
            "experiment 'tiny' has no networks for 'bayesian'; it was run with: single, ",
        ),
        (["--set", "metrics=luck"], "unknown metric 'luck'; have: "),
    ],
)
def test_a_report_cannot_change_what_was_trained(folder, here, arguments, message):
    done = here("report", "tiny", "--store", folder / "runs", *arguments, check=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
