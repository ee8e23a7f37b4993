"""A calibration that makes logits too large is refused by every route."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from surefoot import (
    Predictions,
    evaluate,
    fit_calibration,
    read_predictions,
    scan_predictions,
    write_predictions,
)
from surefoot.calibrators import calibration_document
from surefoot.cli.app import app
from tests.conftest import draw_one_label


def calibration(method, **changed):
    document = calibration_document(fit_calibration(method, draw_one_label(classes=3)))
    return json.dumps(document | changed)


CASES = {
    "float32, T < 1": (np.array([[3e38, 0, 0]], np.float32), calibration("temperature", temperature=0.5)),
    "float64, T < 1": (np.array([[1e60, 0, 0]]), calibration("temperature", temperature=1e-50)),
    "smallest T": (np.array([[1.0, 0, 0]]), calibration("temperature", temperature=5e-324)),
    "vector": (np.array([[1e90, 0, 0]]), calibration("vector", weights=[1e200] * 3, bias=[0.0] * 3)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("members", [1, 2])
def test_a_calibration_that_overflows_is_refused_by_every_route(case, members, tmp_path):
    logits, document = CASES[case]
    logits = np.repeat(logits, 40, axis=0) * np.where(np.arange(40) < 20, 1, -1)[:, None].astype(logits.dtype)
    logits = np.stack([logits] * members)
    write_predictions(Predictions.from_logits(logits, [0, 1] * 20), tmp_path / "test.parquet")
    (tmp_path / "calibration.json").write_text(document)
    told = set()
    for stream in ("--stream", "--no-stream"):
        arguments = [
            "evaluate",
            str(tmp_path / "test.parquet"),
            "--calibration",
            str(tmp_path / "calibration.json"),
        ]
        result = CliRunner().invoke(app, [*arguments, stream, "--resamples", "0"])
        told.add((result.exit_code, type(result.exception).__name__))
        assert "nan" not in result.output.lower()
    averaged = members == 2 and "float32" in case  # an average is float64, where these are not too large
    assert told == ({(0, "NoneType")} if averaged else {(1, "InputError")})


def test_an_average_of_members_has_the_same_entropy_by_every_route(tmp_path):
    """In float32 the logarithm of the mean probability would overflow: -6e38."""
    logits = np.array([[[3e38, -3e38]] * 40] * 2, np.float32)
    write_predictions(Predictions.from_logits(logits, [0, 1] * 20), tmp_path / "test.parquet")
    fitted = replace(fit_calibration("temperature", draw_one_label(classes=2)), temperature=1e40)
    found = [
        evaluate(read(tmp_path / "test.parquet"), calibration=fitted, resamples=0).sides["familiar"].metrics
        for read in (read_predictions, scan_predictions)
    ]
    assert found[0]["entropy"].value == pytest.approx(found[1]["entropy"].value)


@pytest.mark.parametrize("classes", [2, 10, 200])
@pytest.mark.parametrize("members", [1, 2])
def test_the_entropy_of_huge_logits_is_finite(members, classes, tmp_path):
    rng = np.random.default_rng(0)
    logits = (3e38 * rng.uniform(-1, 1, (members, 30, classes))).astype(np.float32)
    predictions = Predictions.from_logits(logits, rng.integers(0, classes, 30))
    write_predictions(predictions, tmp_path / "test.parquet")
    for given in (predictions, scan_predictions(tmp_path / "test.parquet")):
        entropy = evaluate(given, metrics=["entropy"], resamples=0).sides["familiar"].metrics["entropy"]
        assert 0 <= entropy.value <= np.log(members) + 1e-9
