"""Richer calibrators in a model, in a graph and in an experiment."""

import numpy as np
import pytest
import torch
from torch import nn

import surefoot
from surefoot import InputError, fit_calibration, load_calibration
from surefoot.deploy.export import export_model
from surefoot.deploy.model import CalibratedBy
from surefoot.lab.experiments.methods import METHODS, calibrated_rows
from surefoot.lab.recipes.recipe import Recipe
from surefoot.predictions.predictions import Predictions
from tests.calibrators.test_richer import RICH, skewed
from tests.conftest import draw_many_labels
from tests.deploy.made import ran


@pytest.mark.parametrize("name", RICH)
def test_a_model_gives_what_the_calibration_gives(name):
    """Of three classes, of two in one logit, of many labels; in float32, in any shape."""
    val, many = skewed(200), draw_many_labels(sharpness=2)
    two = Predictions.from_logits(val.logits[0, :, 0] - val.logits[0, :, 1], (val.labels == 0).astype(int))
    log_odds = (two.logits[0, :, 1] - two.logits[0, :, 0]).astype(np.float32)
    cases = [
        (val, val.logits[0].astype(np.float32)),
        (two, log_odds),
        (two, log_odds[:, None]),
        (many, many.logits[0].astype(np.float32)),
    ]
    for predictions, logits in cases:
        if predictions is many and name in ("matrix", "dirichlet"):
            continue
        calibrated = surefoot.calibrate(nn.Identity(), (logits, predictions.labels), method=name)
        assert isinstance(calibrated, CalibratedBy)
        assert calibrated(torch.tensor(logits)).shape == logits.shape
        expected = fit_calibration(name, predictions)(predictions).probs()
        np.testing.assert_allclose(calibrated.probabilities(torch.tensor(logits)), expected, atol=2e-4)
        assert calibrated.report.nll_after <= calibrated.report.nll_before


def test_exported_graphs_agree(tmp_path):
    """Of the calibrator with the most unusual operations: comparisons and lookups."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(300, 5)
    calibrated = surefoot.calibrate(model, (x, torch.randint(3, (300,))), method="isotonic")
    parity = export_model(calibrated, (5,), tmp_path / "m.onnx", name="x", facts={})
    assert parity.probabilities < 1e-5
    surefoot.save_calibration(calibrated.report.calibration, tmp_path / "c.json")
    again = CalibratedBy(model, load_calibration(tmp_path / "c.json"))
    assert torch.equal(again.probabilities(x), calibrated.probabilities(x))


def test_rows_of_an_experiment(tmp_path):
    """Each calibrator is a row on single networks and one on the ensemble; its report has them."""
    recipe = Recipe(network="mlp", width=8, epochs=1, learning_rate=0.05)
    rows = (*calibrated_rows("vector"), *calibrated_rows("temperature"))
    assert rows == ("single-vector", "ensemble-vector", "single-t", "t-of-ensemble")
    made = ran(tmp_path, task="toy", recipe=recipe, methods=rows)
    for name in rows[:2]:
        run = made.stored(METHODS.named(name))
        assert run.calibration.kind == "vector"
        assert (len(run.specs) == 1) == name.startswith("single")
    with pytest.raises(InputError, match="unknown method 'single-spline'"):
        METHODS.named("single-spline")
    with pytest.raises(InputError, match="'novelty' needs a score of each sample"):
        calibrated_rows("novelty")
