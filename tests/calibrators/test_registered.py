"""A calibrator from outside the package works wherever the built-in ones do."""

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import surefoot
from surefoot import InputError, fit_calibration, load_calibration, metrics, save_calibration
from surefoot.calibrators import CALIBRATORS, Calibration, Calibrator, Option
from surefoot.cli import main
from surefoot.deploy.make_bundle import chosen_method, write_bundle
from surefoot.lab.experiments.experiment import read_experiment
from surefoot.lab.experiments.methods import METHODS, Method
from surefoot.lab.recipes.recipe import Recipe
from surefoot.lab.tasks import task_named
from surefoot.lab.tasks.task import Split
from surefoot.predictions.files import read_predictions, write_predictions
from surefoot.sklearn import TemperatureScaledClassifier
from tests.conftest import draw_one_label
from tests.deploy.made import ran

NAME = "bias-corrected"
HOOK = Path(__file__).parents[2] / "docs" / "hooks" / "reference.py"
MKDOCS = ("config.defaults", "exceptions", "structure.files", "structure.pages")


class BiasModule(nn.Module):
    def __init__(self, temperature, bias):
        super().__init__()
        self.temperature = temperature
        self.register_buffer("bias", torch.tensor(bias))

    def forward(self, logits):
        return logits / self.temperature + self.bias


@dataclass(frozen=True, kw_only=True)
class BiasCorrected(Calibration):
    """Bias-corrected temperature scaling, softmax(z / T + b): Alexandari et al., ICML 2020."""

    kind: ClassVar[str] = NAME

    temperature: float
    bias: tuple[float, ...]

    def apply(self, predictions):
        bias = np.array(self.bias, dtype=predictions.logits.dtype)
        return predictions.with_logits(predictions.logits / self.temperature + bias)

    def parameters(self):
        return {"T": [self.temperature], "bias": list(self.bias)}

    def module(self):
        return BiasModule(self.temperature, self.bias)


def fit_bias_corrected(val, *, strength):
    def calibration(x):
        facts = {"n": val.n, "label_kind": val.kind, "classes": val.classes}
        return BiasCorrected(temperature=float(np.exp(x[0])), bias=(*x[1:].tolist(), 0.0), **facts)

    def loss(x):
        return metrics.nll_unclipped(calibration(x)(val)) + strength * np.square(x[1:]).sum()

    found = minimize(loss, np.zeros(val.classes))
    return calibration(found.x)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The calibrator and a method with it, for this test only."""
    for registry in (CALIBRATORS, METHODS):
        monkeypatch.setattr(registry, "_entries", list(registry))
    CALIBRATORS.add(
        Calibrator(
            NAME,
            "Bias-corrected temperature",
            "softmax(z / T + b)",
            "Alexandari et al., ICML 2020",
            kind=BiasCorrected.kind,
            fit=fit_bias_corrected,
            read=BiasCorrected.from_dict,
            options=(Option("strength", float, 0.0, "how strongly the bias is held to 0", low=0),),
        )
    )
    METHODS.add(
        Method(
            name="single-bias",
            title="Single + bias-corrected T",
            fit=NAME,
            reference="Alexandari et al., ICML 2020",
            page="single",
            formula="softmax(z / T + b)",
            training="1",
            inference="1",
        )
    )


@pytest.fixture
def command(capsys, monkeypatch):
    def run(*arguments, check=0):
        monkeypatch.setattr(sys, "argv", ["surefoot", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert (ended.value.code or 0) == check, captured.err
        return captured

    return run


def biased(seed=0):
    """Logits that are too large, and too large for class 0."""
    drawn = draw_one_label(classes=3, sharpness=2, seed=seed)
    return drawn.with_logits(drawn.logits + np.array([3.0, 0.0, 0.0]))


def test_fitted_saved_and_loaded(tmp_path):
    val = biased()
    fitted = fit_calibration(NAME, val)
    assert fitted.evidence.nll_after < fit_calibration("temperature", val).evidence.nll_after - 0.01
    assert fitted.temperature == pytest.approx(2, rel=0.2)
    assert fitted.bias[0] == pytest.approx(-1.5, abs=0.4)
    save_calibration(fitted, tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text())["kind"] == NAME
    assert load_calibration(tmp_path / "c.json") == fitted
    with pytest.raises(InputError, match="fitted for one_label with 3 classes, but"):
        fitted(draw_one_label(classes=4))


def test_from_the_command_line(command, tmp_path):
    val, test, file = biased(), biased(seed=1), tmp_path / "c.json"
    write_predictions(val, tmp_path / "val.npz")
    write_predictions(test, tmp_path / "test.npz")
    assert NAME in command("ls", "calibrators").out
    done = command("calibrate", tmp_path / "val.npz", "--method", NAME, "-o", file)
    assert done.out.startswith("T = ")
    assert "n = 300\n" in done.out
    fitted = load_calibration(file)
    assert fitted == fit_calibration(NAME, val)
    command("apply", file, tmp_path / "test.npz", "-o", tmp_path / "after.npz")
    assert np.array_equal(read_predictions(tmp_path / "after.npz").logits, fitted(test).logits)
    evaluated = ("evaluate", tmp_path / "test.npz", "--calibration", file, "--resamples", 0)
    document = json.loads(command(*evaluated, "--format", "json").out)
    nll = document["familiar"]["metrics"]["nll"]["value"]
    assert nll == pytest.approx(metrics.nll(fitted(test)))
    command(*evaluated, "--report", tmp_path / "report")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["calibration"]["kind"] == NAME
    write_predictions(test, tmp_path / "test.parquet")
    streamed = command("evaluate", tmp_path / "test.parquet", *evaluated[2:], "--stream", "--format", "json")
    value = json.loads(streamed.out)["familiar"]["metrics"]["nll"]["value"]
    assert value == pytest.approx(nll, rel=1e-9)


def test_as_the_fit_of_a_method_that_is_run_reported_and_bundled(command, monkeypatch, tmp_path):
    recipe = Recipe(network="mlp", width=8, epochs=1, learning_rate=0.05)
    made = ran(tmp_path, task="toy", recipe=recipe, methods=("single-bias",))
    run = made.stored(METHODS.named("single-bias"))
    assert isinstance(run.calibration, BiasCorrected)
    command("report", made.folder)
    assert "Single + bias-corrected T" in (made.folder / "report.html").read_text()
    (file,) = (made.folder / "calibrations").iterdir()
    assert load_calibration(file) == run.calibration
    assert "bias" in command("ls", "runs", made.folder).out
    chosen = chosen_method(made.opened, "single-bias", task=None, network=None)
    write_bundle(chosen, tmp_path / "bundle", resamples=0)
    assert (
        f"T = {run.calibration.temperature:.4g}; bias = " in (tmp_path / "bundle" / "README.md").read_text()
    )
    bundle = surefoot.load_bundle(tmp_path / "bundle")
    assert bundle.calibration == run.calibration
    points = torch.from_numpy(task_named("toy").splits[Split.TEST_FAMILIAR].inputs)
    expected = run.after[Split.TEST_FAMILIAR].probs()
    np.testing.assert_allclose(bundle.predict(points).probs(), expected, atol=1e-5)
    np.testing.assert_allclose(bundle.probabilities(points), expected, atol=1e-5)
    monkeypatch.delattr(BiasCorrected, "module")
    with pytest.raises(InputError, match="a bias-corrected calibration has no torch module"):
        write_bundle(chosen, tmp_path / "other", resamples=0)
    assert not (tmp_path / "other").exists()


def test_its_option_is_the_same_in_python_on_the_command_line_and_in_the_estimator(command, tmp_path):
    val = biased()
    held = fit_calibration(NAME, val, strength=2)
    assert abs(held.bias[0]) < abs(fit_calibration(NAME, val).bias[0]) / 2
    with pytest.raises(InputError, match="strength is -1; allowed: a number from 0"):
        fit_calibration(NAME, val, strength=-1)
    write_predictions(val, tmp_path / "val.npz")
    fit = ("calibrate", tmp_path / "val.npz", "--method", NAME, "-o", tmp_path / "c.json")
    command(*fit, "--strength", "2")
    assert load_calibration(tmp_path / "c.json") == held
    for given, message in REFUSED.items():
        assert message in command(*fit, *given, check=2).err
    x, y = np.random.default_rng(0).normal(size=(100, 2)), np.arange(100) % 2
    free, kept = (
        TemperatureScaledClassifier(method=NAME, options=options).fit(x, y).calibration_
        for options in (None, {"strength": 100})
    )
    assert abs(kept.bias[0]) < abs(free.bias[0]) / 10
    with pytest.raises(InputError, match="unknown option of method bias-corrected: 'weight'"):
        TemperatureScaledClassifier(method=NAME, options={"weight": 1}).fit(x, y)


REFUSED = {
    ("--strength", "-1"): "strength is -1.0; allowed: a number from 0",
    ("--strength", "much"): "strength is 'much'; allowed: a number from 0",
    ("--bins", "2"): f"unknown option of method {NAME}: 'bins'; have: strength",
}


def test_its_option_in_an_experiment(tmp_path):
    rows = f"single-{NAME}", f"single-{NAME}(strength=2)"
    (tmp_path / "mine.toml").write_text(
        f'task = "toy"\nmethods = ["single"]\ncalibrators = ["{NAME}", "{NAME}(strength=2)"]\n'
    )
    assert read_experiment(tmp_path / "mine.toml").methods[1::2] == rows
    recipe = Recipe(network="mlp", width=8, epochs=1, learning_rate=0.05)
    made = ran(tmp_path, task="toy", recipe=recipe, methods=rows)
    free, held = (made.stored(METHODS.named(row)).calibration for row in rows)
    assert abs(held.bias[0]) < abs(free.bias[0]) / 2
    with pytest.raises(InputError, match=r"strength is -1\.0; allowed: a number from 0"):
        METHODS.named(f"single-{NAME}(strength=-1)")


@pytest.fixture
def reference(monkeypatch):
    """What writes the pages of the docs; it needs no more of mkdocs than names of types."""
    for name in MKDOCS:
        monkeypatch.setitem(sys.modules, f"mkdocs.{name}", MagicMock())
    found = importlib.util.spec_from_file_location("reference_pages", HOOK)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_option_is_a_flag_and_in_the_help_and_in_the_docs(command, reference):
    shown = " ".join(command("calibrate", "--help").out.replace("│", " ").split())
    for calibrator in CALIBRATORS:
        page = reference.calibrator_page(calibrator)
        for option in calibrator.options:
            assert f"--{option.name} " in shown
            assert f"option `{option.name}`" in page
            assert option.help in page
    assert f"With --method {NAME}: how" in shown


def test_a_model_is_calibrated_by_it():
    val = biased()
    for options in ({}, {"strength": 2}, {"strength": None}):
        calibrated = surefoot.calibrate(nn.Identity(), (val.logits[0], val.labels), method=NAME, **options)
        given = {name: value for name, value in options.items() if value is not None}
        expected = fit_calibration(NAME, val, **given)(val).probs()
        np.testing.assert_allclose(calibrated.probabilities(val.logits[0]), expected, atol=1e-6)
