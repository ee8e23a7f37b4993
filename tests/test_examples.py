"""The examples run with the real packages where these are installed, and give what they promise."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from surefoot import metrics

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """The `main` of an example; skipped where the package that it is about is missing."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name, *packages):
        for package in packages:
            pytest.importorskip(package, reason=f"examples/{name}.py needs the package {package}")
        return importlib.import_module(name).main

    return load


def assert_less_overconfident(result):
    """Calibration on validation data helps on familiar and on unfamiliar data."""
    for side in ("familiar", "unfamiliar"):
        assert result.change[side]["nll"].high < 0
        assert result.uncalibrated[side].metrics["signed_ece"].value > 0


def test_plain_pytorch_loop(example):
    assert_less_overconfident(example("pytorch_loop")())


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_onnx_runtime(example):
    probabilities, expected = example("onnx_runtime", "onnxruntime", "onnxscript")()
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)


def test_xgboost(example):
    assert_less_overconfident(example("xgboost_model", "xgboost")())


@pytest.mark.filterwarnings("ignore")  # of the library, about the names of features
def test_lightgbm(example):
    assert_less_overconfident(example("lightgbm_model", "lightgbm")())


@pytest.mark.filterwarnings("ignore")  # of the library, about few workers and short epochs
def test_lightning(example):
    fitted, loaded = example("lightning_callback", "pytorch_lightning")()
    assert loaded == fitted
    assert fitted.n == 600
    assert fitted.low > 1


@pytest.mark.filterwarnings("ignore")  # of the library
def test_hugging_face_trainer(example):
    before, after, calibration = example("hugging_face_trainer", "transformers", "accelerate")()
    np.testing.assert_allclose(after.logits, calibration(before).logits, rtol=1e-5, atol=1e-6)
    assert metrics.nll_unclipped(after) < metrics.nll_unclipped(before)


@pytest.mark.filterwarnings("ignore")  # of the library
def test_timm(example):
    calibrated = example("timm_model", "torchvision", "timm")()
    assert calibrated.report.nll_after <= calibrated.report.nll_before
