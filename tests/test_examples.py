"""The examples run with the real packages where these are installed, and give what they promise."""

import ast
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

from surefoot import metrics
from tests.optional import optional

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """The `main` of an example; skipped where the package that it is about is missing."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name, *packages):
        for package in packages:
            optional(package)
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


@pytest.mark.filterwarnings("ignore")  # of LightGBM, about the names of features
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_boosted_trees(example, library):
    assert_less_overconfident(example("boosted_trees", library)(library))


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


def run_cells(path):
    """Execute the code cells in order; the value of each one's last expression, as a notebook shows it."""
    names, shown = {}, []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, path.name, "exec"), names)
            if last is not None:
                shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), names))
    return names, shown


PROGRESS = """
import numpy, surefoot
drawn = surefoot.Predictions.from_logits(numpy.eye(3)[[0, 1, 2] * 50], [0, 1, 2, 2, 1, 0] * 25)
surefoot.write_predictions(drawn, "drawn.parquet")
result = surefoot.evaluate(surefoot.scan_predictions("drawn.parquet"), metrics=["nll"], progress=True)
"""


@pytest.mark.filterwarnings("ignore")  # of Jupyter
def test_progress_in_a_notebook_is_one_line_that_is_empty_in_the_end(tmp_path):
    client = optional("nbclient")
    optional("ipykernel")
    cell = {"cell_type": "code", "id": "c", "metadata": {}, "outputs": [], "source": PROGRESS}
    document = {
        "cells": [{**cell, "execution_count": None}],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    notebook = importlib.import_module("nbformat").from_dict(document)
    shown = []

    class Client(client.NotebookClient):
        def process_message(self, message, *rest):
            shown.append(message["content"].get("data", {}).get("text/plain"))
            return super().process_message(message, *rest)

    Client(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "reading familiar: 100%" in shown
    line, streamed = notebook.cells[0].outputs
    assert line["data"] == {"text/plain": ""}
    assert streamed["text"].startswith("streamed 150 rows in ")


def test_the_notebook_leads_to_a_decision(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    names, shown = run_cells(EXAMPLES / "decision.ipynb")
    assert all(repr(value) for value in shown)
    assert names["after"].change["unfamiliar"]["nll"].high < 0
    nll = {name: metrics.nll(method(names["unfamiliar"])) for name, method in names["methods"].items()}
    assert nll["vector"] == pytest.approx(nll["temperature"], rel=1e-3)  # as the text says
    assert nll["temperature"] < nll["isotonic"] < nll["network"]
    assert names["thresholds"].measured["unfamiliar"]["accept"].error.low > 0.1
    assert names["decision"].startswith("the data has shifted")
    assert {"calibration.json", "thresholds.json", "report"} == {path.name for path in tmp_path.iterdir()}
    pyplot.close("all")
