"""`surefoot calibrate --method`, in this process: what each method says, and that evaluate takes its file."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from surefoot import InputError, load_calibration, read_predictions, write_predictions
from surefoot.cli.app import app
from surefoot.metrics import nll
from tests.conftest import draw_one_label

WORDS = {
    "softening": "T = 1, because the fitted T = 0.5",
    "budget": "at most 2% above the least",
    "novelty": " * novelty, n = 300",
}


def surefoot(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("method", WORDS)
def test_other_methods_are_fitted_said_and_used(method, tmp_path):
    val, file = tmp_path / "val.parquet", tmp_path / "c.json"
    write_predictions(draw_one_label(sharpness=0.5, novelty=np.linspace(0, 1, 300)), val)
    printed = surefoot("calibrate", val, "-o", file, "--method", method)
    assert WORDS[method] in printed
    assert "NLL " in printed
    found = surefoot(
        "evaluate", val, "--calibration", file, "--report", tmp_path, "--format", "json", "--resamples", 5
    )
    calibrated = load_calibration(file)(read_predictions(val))
    assert json.loads(found)["familiar"]["metrics"]["nll"]["value"] == pytest.approx(nll(calibrated))
    page = (tmp_path / "report.html").read_text()
    assert f"Calibrated with {load_calibration(file).lines()[0]}" in page
    surefoot("apply", file, val, "-o", tmp_path / "out.npz")
    assert np.array_equal(read_predictions(tmp_path / "out.npz").logits, calibrated.logits)


def test_one_row_is_one(tmp_path, here):
    val, new, file = tmp_path / "val.npz", tmp_path / "new.npz", tmp_path / "c.json"
    write_predictions(draw_one_label(), val)
    write_predictions(draw_one_label().take(slice(0, 1)), new)
    here("calibrate", val, "-o", file)
    done = here("apply", file, new, "-o", tmp_path / "out.npz")
    assert done.stderr == f"calibrated predictions: {tmp_path / 'out.npz'} (1 row)\n"


def test_novelty_scaling_asks_for_novelty(tmp_path):
    write_predictions(draw_one_label(), tmp_path / "val.npz")
    with pytest.raises(InputError, match="the predictions have no novelty; needed: "):
        surefoot("calibrate", tmp_path / "val.npz", "-o", tmp_path / "c.json", "--method", "novelty")
