import json

import pytest
import torch

from surefoot import Predictions, fit_temperature, load_calibration, save_calibration
from surefoot.calibrators.temperature import fit_temperature_at_least_one
from tests.conftest import draw_many_labels, draw_one_label


@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_a_temperature_of_one_or_more_is_used_as_it_is(draw):
    val = draw(sharpness=3, members=2)
    assert fit_temperature_at_least_one(val) == fit_temperature(val)
    assert fit_temperature_at_least_one(val).declined is None


@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_a_temperature_below_one_is_declined_and_changes_nothing(draw, tmp_path):
    val = draw(sharpness=0.5, members=2)
    fitted, plain = fit_temperature_at_least_one(val), fit_temperature(val)
    assert plain.temperature < 1
    assert (fitted.temperature, fitted.declined) == (1.0, plain.temperature)
    assert (fitted.low, fitted.high) == (plain.low, plain.high)
    assert torch.equal(fitted(val).probs(), val.probs())
    assert f"T = {plain.temperature:.3g} is below 1" in fitted.remarks()[0]
    assert "declined" in fitted.remarks()[0]
    assert f"the fitted T = {plain.temperature:.5g} (95% interval" in fitted.lines()[0]
    save_calibration(fitted, tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == fitted


def test_separable_data_is_declined_and_flat_logits_are_not():
    separable = fit_temperature_at_least_one(Predictions.from_logits([[5.0, 0.0], [0.0, 5.0]], [0, 1]))
    assert separable.temperature == 1
    assert separable.declined < 0.01
    flat = fit_temperature_at_least_one(Predictions.from_logits([[2.0, 2.0], [1.0, 1.0]], [0, 1]))
    assert flat.declined is None
    assert "no T changes anything" in flat.remarks()[0]


def test_files_without_the_field_still_load(tmp_path):
    fitted = fit_temperature(draw_one_label(sharpness=2))
    save_calibration(fitted, tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    del document["declined"]
    (tmp_path / "c.json").write_text(json.dumps(document))
    assert load_calibration(tmp_path / "c.json") == fitted
