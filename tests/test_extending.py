"""docs/extending.md as written, with the files it names: in every command, in workers and on Ray."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from surefoot import InputError, Metric, register, write_predictions
from surefoot.registry import load_plugins, plugin_path
from tests import warm
from tests.cli.command import STRICT
from tests.conftest import draw_one_label

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's plugin and experiment, and predictions."""
    folder = tmp_path_factory.mktemp("extending")
    for name in ("my_plugin.py", "my_experiment.toml"):
        shutil.copy(FILES / name, folder)
    rng = np.random.default_rng(0)
    for name in ("val", "familiar", "unfamiliar"):
        np.savez(folder / f"{name}.npz", logits=rng.normal(size=(200, 4)), labels=rng.integers(0, 4, 200))
    return folder


def surefoot(folder, *words):
    return warm.run(warm.SUREFOOT, *words, cwd=folder)


def output(folder, *words):
    finished = surefoot(folder, *words)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_what_the_page_shows_is_in_the_file():
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert shown in (FILES / "my_plugin.py").read_text()


def test_the_commands_of_the_page(folder):
    commands = [line.split()[1:] for line in PAGE.splitlines() if line.startswith("surefoot --plugin")]
    assert [words[2] for words in commands] == ["ls", "evaluate", "calibrate"]
    listed, evaluated, _ = (output(folder, *words) for words in commands)
    assert "half_sure" in listed
    assert "Below 50% confidence" in evaluated
    fitted = json.loads((folder / "calibration.json").read_text())
    assert fitted["kind"] == "doubled"
    again = output(
        folder, "--plugin", "my_plugin", "evaluate", "familiar.npz", "--calibration", "calibration.json",
        "--metric", "half_sure", "--metric", "nll", "--format", "json", "--resamples", "20",
    )  # fmt: skip
    logits = np.load(folder / "familiar.npz")["logits"] / fitted["temperature"]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    value = json.loads(again)["familiar"]["metrics"]["half_sure"]["value"]
    assert value == pytest.approx((probabilities.max(axis=1) < 0.5).mean())


RUN = ("run", "my_experiment.toml")
# With one CPU, so that one process of Ray's loads torch and the plugin.
ON_RAY = """
import json, sys
from surefoot.predictions import ray_cluster
from surefoot.cli import main
ray_cluster.usable_cores = lambda: 1
from surefoot.lab.workers.ray import Cluster
with Cluster().connected() as ray:
    assert ray.get_runtime_context().gcs_address.startswith("127.0.0.1:")
    for words in json.loads(sys.argv[1]):
        sys.argv[1:] = words
        try:
            main()
        except SystemExit as ended:
            assert not ended.code
"""


@pytest.fixture(scope="module")
def printed(folder):
    """What the page's experiment prints when it is run."""
    done = warm.run(
        warm.SUREFOOT,
        *RUN,
        "--store",
        "runs",
        "--workers",
        1,
        cwd=folder,
        environment=STRICT,
        new_workers=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_in_worker_processes_and_the_report(folder, printed):
    assert "report:" in printed
    written = folder / "runs" / "experiments" / "my_experiment"
    report = json.loads((written / "report.json").read_text())
    assert [part["task"] for part in report["parts"]] == ["blobs", "toy/wave"]
    for name in ("blobs", "toy-wave"):
        scores = (written / "tables" / f"{name}-scores.csv").read_text()
        assert scores.count("half_sure") == 3 * 2 * 2  # methods, runs, sides
        assert "smoothed-doubled,1,unfamiliar,half_sure" in scores
    page = (written / "report.html").read_text()
    assert "Label smoothing + 2T" in page
    assert "Below 50% confidence" in page
    assert "plugins = [" in output(folder, "ls", "runs", "my_experiment", "--store", "runs")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra 'ray'")
def test_on_ray(folder, printed):
    """Two commands on a cluster that is started here: networks are the same to the bit, and so are metrics."""
    (folder / "parts").mkdir()
    for seed in range(3):
        write_predictions(draw_one_label(300, sharpness=3, seed=seed), folder / f"parts/{seed}.parquet")
    evaluate = ("evaluate", "parts", "--resamples", "0", "--format", "json")
    train = (*RUN, "--store", "ray-runs", "--train-only", "--set", "runs=1")
    commands = [[*words, "--engine", "ray"] for words in (evaluate, train)]
    no_spare = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
    done = warm.run(ON_RAY, json.dumps(commands), cwd=folder, environment={**STRICT, **no_spare})
    assert done.returncode == 0, done.stderr
    scores, _ = json.JSONDecoder().raw_decode(done.stdout)
    here = json.loads(output(folder, *evaluate))["familiar"]["metrics"]
    assert here.keys() == scores["familiar"]["metrics"].keys()
    for name, score in here.items():
        on_ray = scores["familiar"]["metrics"][name]
        assert [on_ray.get(key) for key in ("k", "n", "bound")] == [
            score.get(key) for key in ("k", "n", "bound")
        ]
        assert on_ray["value"] == pytest.approx(score["value"], rel=1e-12)

    def logits(store):
        files = sorted((folder / store / "networks").rglob("test_*.npz"))
        return {str(file.relative_to(folder / store)): np.load(file)["logits"].tobytes() for file in files}

    here, on_ray = logits("runs"), logits("ray-runs")
    assert (len(here), len(on_ray)) == (2 * 4 * 2, 2 * 2 * 2)  # tasks, networks, sides
    assert on_ray.items() <= here.items()


def test_installed_packages_announce_plugins(folder, tmp_path):
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[surefoot.plugins]\noutside = my_plugin\n")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(folder)!r}]\n"
        "from surefoot.cli import main; sys.argv = ['surefoot', 'ls', 'metrics']; main()"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "half_sure" in finished.stdout, finished.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1/0", "cannot load the plugin '{path}' (ZeroDivisionError: division by zero)"),
        ("import surefoot; surefoot.register(3)", "cannot register 3; allowed: a Metric, Calibrator, Method"),
        (
            "import no_such",
            "cannot load the plugin '{path}' (ModuleNotFoundError: No module named 'no_such')",
        ),
    ],
)
def test_a_plugin_that_fails_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "wrong.py").write_text(text)
    finished = surefoot(tmp_path, "--plugin", "wrong", "ls", "metrics")
    assert finished.returncode == 2
    assert sentence.format(path=tmp_path / "wrong.py") in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_plugin_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"the plugin .*gone\.py does not exist"):
        load_plugins([str(tmp_path / "gone.py")])
    assert plugin_path("gone", tmp_path) == "gone"
    assert surefoot(tmp_path, "--plugin", "no_such_module", "ls", "metrics").returncode == 2


def test_a_name_can_be_registered_once():
    with pytest.raises(InputError, match="there is a metric 'nll' already"):
        register(Metric("nll", "Other", "-", "-", function=lambda _: 0.0))
