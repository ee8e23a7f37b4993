"""Everything about predictions works without torch: in a new process, in which it cannot be imported."""

import ast
import importlib
import os
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from surefoot.errors import TORCH as REFUSED

CORE = ("predictions", "metrics", "calibrators", "evaluation", "decisions", "monitoring", "plots")
MODULES = ("errors", "io", "progress", "registry", "results", "runtime", "sklearn", "text")


def test_predictions_need_no_torch(tmp_path):
    code = "from tests.test_light import refuse, run_all; refuse(); run_all()"
    environment = {**os.environ, "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[1]
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["modules", "python", "commands", "needs_torch"]


def test_no_module_of_the_core_imports_torch_not_even_lazily():
    from tests.test_structure import SOURCE, imported, module_name, nodes

    files = {module_name(path): path for path in SOURCE.rglob("*.py")}
    left = [name for name in files if name.removeprefix("surefoot.").partition(".")[0] in CORE]
    left += [f"surefoot.{name}" for name in MODULES]
    reached = set(left)
    while left:
        found = {name for name in imported(files[left.pop()]) if name in files} - reached
        reached |= found
        left += found
    wrong = []
    for name in reached:
        for node in nodes(files[name]):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            wrong += [f"{name} imports {each}" for each in modules if each.partition(".")[0] in REFUSED]
    assert not wrong


@pytest.mark.skipif(find_spec("torch") is not None, reason="where torch is not installed")
def test_doctor_says_that_torch_is_missing_and_nothing_is_broken(tmp_path, monkeypatch):
    from tests.cli.command import surefoot

    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    printed = surefoot("doctor", "--store", tmp_path).stdout
    assert "missing  torch: networks" in printed
    assert "(no torch, safetensors, h5py, fsspec)\n         -> pip install 'surefoot[torch]'\n" in printed
    assert "ok       processor: " in printed
    assert "problem" not in printed


class Refuse:
    """Nothing of these packages can be imported."""

    def find_spec(self, name, *_):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def refuse():
    sys.meta_path.insert(0, Refuse())


def run_all():
    """In the current folder: each part, and its name once it is done."""
    for part in (modules, python, commands, needs_torch):
        part()
        sys.stdout.write(f"{part.__name__}\n")


def modules():
    for name in (*CORE, "report", "cli"):
        package = importlib.import_module(f"surefoot.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in MODULES:
        importlib.import_module(f"surefoot.{name}")


def python():
    import matplotlib as mpl
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    import surefoot
    from surefoot import plots
    from surefoot.calibrators import CALIBRATORS
    from tests.conftest import draw_many_labels, draw_one_label

    mpl.use("agg")
    features = {
        "novelty": np.linspace(0, 1, 400),
        "class_names": ["a", "b", "c"],
        "groups": np.arange(400) % 40,
    }
    val = draw_one_label(400, 3, sharpness=3, **features)
    other = draw_one_label(400, 3, sharpness=8, seed=1, **features)
    for name in ("val.csv", "val.npz", "val.parquet"):
        surefoot.write_predictions(val, name)
        assert np.allclose(surefoot.read_predictions(name).logits, val.logits)
    surefoot.write_predictions(other, "other.npz")
    surefoot.write_predictions(draw_many_labels(sharpness=3), "many.npz")
    for name in [each.name for each in CALIBRATORS]:
        fitted = surefoot.fit_calibration(name, val)
        surefoot.save_calibration(fitted, "c.json")
        assert np.allclose(surefoot.load_calibration("c.json")(other).probs().sum(axis=1), 1)
    for unfamiliar in (other, None):
        evaluation = surefoot.evaluate(val, unfamiliar, calibration=fitted, resamples=10)
        assert "NLL" in repr(evaluation)
        evaluation.save_report(f"report-{unfamiliar is None}")
    scanned = surefoot.scan_predictions("val.parquet")
    surefoot.evaluate(scanned, resamples=10)
    surefoot.fit_calibration("temperature", scanned)
    thresholds = surefoot.choose_thresholds(val, target_error=0.4, unfamiliar=other)
    sets = surefoot.choose_sets(val)
    check = surefoot.monitor(val, other, thresholds=thresholds)
    for result in (thresholds, sets, check):
        assert repr(result)
        assert result._repr_html_()
    for draw in (plots.reliability, plots.confidence_histogram, plots.risk_coverage, plots.temperature_curve):
        draw({"familiar": val, "unfamiliar": other})
    plots.nll_familiar_vs_unfamiliar(val, other)
    plots.compare_methods({"before": val, "after": fitted(val)}, resamples=10)
    plots.calibration_map(fitted)
    rows = np.random.default_rng(0).standard_normal((60, 2))
    model = surefoot.sklearn.TemperatureScaledClassifier(LogisticRegression(), cv=2)
    assert model.fit(rows, rows[:, 0] + rows[:, 1] > 0).predict_proba(rows).shape == (60, 2)


COMMANDS = (
    "calibrate val.npz -o t.json",
    "calibrate many.npz -o many.json --method vector",
    "apply t.json other.npz -o applied.csv",
    "evaluate val.npz other.npz --calibration t.json --resamples 10 --report evaluated",
    "evaluate val.csv --resamples 10 --group-by groups",
    "evaluate val.parquet --stream --resamples 10",
    "evaluate many.npz --resamples 10 --report evaluated-many",
    "thresholds val.npz --unfamiliar other.npz --target-error 0.4 -o thresholds.json --html thresholds.html",
    "sets val.npz --unfamiliar other.npz -o sets.json",
    "monitor val.npz val.npz --history history.jsonl -o monitor.html --calibration t.json",
    "ls metrics",
    "ls calibrators",
)


def commands():
    from tests.cli.command import surefoot

    for words in COMMANDS:
        surefoot(*words.split())


NETWORKS = (
    "run quickstart",
    "train pets",
    "tune pets -o tuned.toml",
    "embed images --network resnet18 -o vectors.parquet",
    "predict bundle images -o predicted.csv",
    "export bundle -o exported.pt2",
)


def needs_torch():
    import surefoot as package
    from tests.cli.command import surefoot

    sentence = "this needs torch, which is not installed: pip install 'surefoot[torch]'"
    Path("images").mkdir()
    Path("bundle").mkdir()
    Path("bundle/bundle.json").write_text("{}")
    for words in NETWORKS:
        said = surefoot(*words.split(), check=2).stderr
        assert said == f"surefoot: {sentence}\n", f"{words}: {said}"
    for call in (
        lambda: package.calibrate(None, None),
        lambda: package.load_bundle("bundle"),
        lambda: package.run("quickstart"),
    ):
        with pytest.raises(package.InputError) as refused:
            call()
        assert str(refused.value) == sentence
