"""The public functions from Python: typed for users, and the same results as the commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import surefoot
from surefoot import InputError, choose_thresholds, fit_calibration, load_thresholds, monitor, save_thresholds
from tests.conftest import draw_one_label

USER = """
from typing import assert_type

import surefoot

val = surefoot.Predictions.from_logits([[0.0, 1.0]] * 4, [0, 1, 1, 0], class_names=["a", "b"])
calibration = surefoot.fit_calibration("temperature", val)
assert_type(calibration, surefoot.Calibration)
result = surefoot.evaluate(val, calibration=calibration, metrics=["nll"])
assert_type(result, surefoot.Evaluation)
assert_type(result.sides["familiar"].metrics["nll"].value, float)
assert_type(surefoot.choose_thresholds(val), surefoot.Thresholds | surefoot.Unreachable)
assert_type(surefoot.monitor(val, val).alarm, bool)
assert_type(surefoot.load_study("quickstart"), surefoot.Study)
assert_type(surefoot.metrics.nll(val), float)
assert_type(surefoot.evaluate(surefoot.scan_predictions("val/*.parquet"), progress=True), surefoot.Evaluation)
print(result.save_report("folder").name, surefoot.fit_temperature(val).temperature + 1)
surefoot.plots.reliability({"val": val})
surefoot.run("quickstart", epochs=3)
surefoot.Predictions.from_logits([1.0], [1], group=["a"])
surefoot.evaluate("val.npz")
surefoot.gone
"""
# As installed: errors inside packages are not the user's, and large ones need not be read to check the rest.
SETTINGS = """
[mypy]
strict = True
[mypy-surefoot.*]
ignore_errors = True
[mypy-torch.*,numpy.*,scipy.*,matplotlib.*,PIL.*,rich.*,jinja2.*,ray.*]
follow_imports = skip
follow_imports_for_stubs = True
"""


def test_a_user_s_script_is_checked_by_mypy(tmp_path):
    source = Path(surefoot.__file__).parent
    assert (source / "py.typed").exists()  # without it, installed types are not used
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "user.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(source.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 4, done.stdout
    for error, expected in zip(
        errors,
        (
            'Unexpected keyword argument "epochs" for "run"',
            'Unexpected keyword argument "group" for "from_logits"',
            'Argument 1 to "evaluate" has incompatible type "str"; expected "Predictions | ScannedPredictions"',
            'Module has no attribute "gone"',
        ),
        strict=True,
    ):
        assert expected in error


def test_thresholds_measure_further_data_and_are_saved_with_it(tmp_path):
    val, test, far = (draw_one_label(400, sharpness=s, seed=i) for i, s in enumerate((1, 1, 4)))
    chosen = choose_thresholds(val, target_error=0.3, familiar_test=test, unfamiliar=far, split=0.25, seed=3)
    assert chosen.n == 300
    assert chosen.calibration.n == 100
    save_thresholds(chosen, tmp_path / "t.json")
    saved = json.loads((tmp_path / "t.json").read_text())
    assert list(saved["measured"]) == ["val", "familiar test", "unfamiliar"]
    confident = chosen.calibration(far).outcomes.confidence >= chosen.accept
    assert saved["measured"]["unfamiliar"]["coverage"]["k"] == confident.sum()
    assert load_thresholds(tmp_path / "t.json").accept == chosen.accept
    with pytest.raises(InputError, match="both calibration and split"):
        choose_thresholds(val, calibration=chosen.calibration, split=0.5)
    with pytest.raises(InputError, match=r"split is 2; allowed: above 0 and below 1"):
        choose_thresholds(val, split=2)


def test_each_check_of_a_history_spends_its_part_of_alpha(tmp_path):
    reference, current = draw_one_label(300), draw_one_label(300, seed=1)
    checks = [monitor(reference, current, history=tmp_path / "h.jsonl", source="today") for _ in range(2)]
    assert [check.budget.number for check in checks] == [1, 2]
    lines = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()]
    assert [line["level"] for line in lines] == [check.budget.level for check in checks]
    assert lines[0]["source"] == "today"
    assert monitor(reference, current).budget.level == 0.05
    fitted = fit_calibration("temperature", reference)
    thresholds = choose_thresholds(reference, target_error=0.3, calibration=fitted)
    assert "coverage" in [each.name for each in monitor(reference, current, thresholds=thresholds).findings]
    with pytest.raises(InputError, match="the thresholds already contain a calibration"):
        monitor(reference, current, thresholds=thresholds, calibration=fitted)
    with pytest.raises(InputError, match="alpha is 2; allowed: above 0 and below 1"):
        monitor(reference, current, alpha=2)


def test_arguments_of_another_type_are_refused_by_name():
    val = draw_one_label(50)
    calibration = fit_calibration("temperature", val)
    for call, says in (
        (lambda: surefoot.fit_temperature([[1.0, 0.0]]), "val has type list; allowed: Predictions"),
        (lambda: surefoot.fit_member_temperatures(None), "val is None; allowed: Predictions"),
        (lambda: calibration(val.logits), "predictions has type ndarray; allowed: Predictions"),
        (lambda: choose_thresholds("val.npz"), "val has type str; allowed: Predictions"),
        (lambda: choose_thresholds(val, unfamiliar=3), "unfamiliar has type int; allowed: Predictions"),
        (lambda: surefoot.choose_sets("val.npz"), "val has type str; allowed: Predictions"),
        (lambda: monitor(val, "new.npz"), "current has type str; allowed: Predictions"),
        (lambda: surefoot.paired_differences(val, 3), "second has type int; allowed: Predictions"),
        (lambda: surefoot.evaluate(val, calibration=2.5), "calibration has type float; allowed: Calibration"),
        (lambda: surefoot.evaluate(val, resamples="many"), "resamples is 'many'; allowed: a whole number"),
        (lambda: surefoot.evaluate(val, metrics=[]), "metrics are empty; allowed: names of METRICS"),
        (
            lambda: surefoot.run("quickstart", workers=0),
            "workers is 0; allowed: a whole number of at least 1",
        ),
        (lambda: surefoot.run("quickstart", values=3), "values has type int; allowed: a dict or None"),
        (lambda: surefoot.calibrate(None, val), "type Predictions; .*; for Predictions: fit_calibration"),
        (lambda: val.member(9), "there is no member 9; allowed: 0 to 0"),
        (
            lambda: fit_calibration("temperature", val, weights=[-1] * 50),
            "the weight of row 0 is -1; allowed",
        ),
        (
            lambda: fit_calibration("temperature", val, weights=[1] * 49 + [5e-324]),
            r"the weight of row 49 is 4.94066e-324; allowed: 50 numbers that are 0 or from 1e-100 to 1e\+100",
        ),
        (lambda: surefoot.scan_predictions(3), "path is 3; allowed: a path or a list of paths"),
        (lambda: surefoot.plots.reliability(3), "or a dict of Predictions$"),
    ):
        with pytest.raises(InputError, match=says):
            call()


def test_a_traceback_has_no_second_part_that_says_the_same(tmp_path):
    for call in (
        lambda: surefoot.load_calibration(tmp_path / "gone.json"),
        lambda: surefoot.read_predictions(tmp_path / "gone.npz"),
        lambda: surefoot.save_thresholds(None, tmp_path),
        lambda: surefoot.Predictions.from_frame(3, logits=["a"]),
        lambda: surefoot.Predictions.from_logits([[1.0], [1.0, 2.0]], [0, 1]),
        lambda: surefoot.evaluate(draw_one_label(10), metric="nll"),
    ):
        with pytest.raises((InputError, TypeError)) as raised:
            call()
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_an_evaluation_of_probabilities_as_logits_says_so():
    val = draw_one_label(100)
    mistaken = surefoot.Predictions.from_logits(val.probs(), val.labels)
    says = "On unfamiliar data every row is between 0 and 1 and sums to 1: these look like probabilities"
    assert says in " ".join(repr(surefoot.evaluate(val, mistaken, resamples=2)).split())
    assert "look like" not in repr(surefoot.evaluate(val, resamples=2))


def test_registries_know_names_and_modules_list_what_is_public():
    assert surefoot.METRICS["nll"] is surefoot.METRICS[0]
    assert "nll" in surefoot.METRICS
    assert surefoot.METRICS[0] in surefoot.METRICS
    assert "zebra" not in surefoot.METHODS
    with pytest.raises(InputError, match="unknown metric 'nil'; have: nll"):
        surefoot.METRICS["nil"]
    for module in (surefoot, surefoot.metrics, surefoot.plots):
        assert dir(module) == sorted(module.__all__)
    with pytest.raises(AttributeError) as raised:
        surefoot.Prediction  # noqa: B018
    assert (raised.value.name, raised.value.obj) == ("Prediction", surefoot)


def test_predictions_of_a_model_over_a_loader_or_a_generator():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5))  # in training mode, on purpose
    x, y = torch.randn(10, 4), torch.arange(10) % 3
    expected = model[0](x).detach()
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    for batches in (
        loader,
        ((a, b) for a, b in loader),
        ({"input": a, "labels": b} for a, b in loader),
        (x, y),
    ):
        found = surefoot.predictions_of(model, batches)
        np.testing.assert_allclose(found.logits[0], expected, rtol=1e-6)
        assert np.array_equal(found.labels, y)
    assert model.training
