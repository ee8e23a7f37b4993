"""`surefoot calibrate --method`, in this process: what each method says, and that evaluate takes its file."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from surefoot import InputError, fit_calibration, load_calibration, read_predictions, write_predictions
from surefoot.cli.app import app
from surefoot.metrics import nll, nll_unclipped
from surefoot.predictions.predictions import Predictions
from tests.conftest import draw_one_label

WORDS = {
    "softening": "T = 1, because the fitted T = 0.5",
    "budget": "at most 2% above the lowest",
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


@pytest.fixture
def two_models(tmp_path, monkeypatch):
    """Validation files of a good model and of a plain one, and other rows; in the current folder."""
    monkeypatch.chdir(tmp_path)
    good, plain = draw_one_label(sharpness=2), draw_one_label(sharpness=2)
    noise = np.random.default_rng(1).standard_normal(plain.logits.shape)
    write_predictions(good, "good.npz")
    write_predictions(plain.with_logits(plain.logits + 2 * noise), "plain.parquet")
    write_predictions(draw_one_label(seed=1), "other.npz")


FIT = ("calibrate", "good.npz", "-o", "c.json")
BUDGET = (*FIT, "--method", "budget")


@pytest.mark.parametrize(
    ("text", "share"), [("2%", 0.02), ("5%", 0.05), ("10%", 0.1), ("0.05", 0.05), ("0", 0)]
)
def test_a_budget_is_a_percentage_or_a_share(text, share, two_models):
    printed = surefoot(*BUDGET, "--budget", text)
    assert f"at most {100 * share:g}% above the lowest" in printed
    expected = fit_calibration("budget", read_predictions("good.npz"), budget=share)
    assert load_calibration("c.json") == expected


def test_the_surplus_over_a_reference_is_a_budget(two_models):
    printed = surefoot(*BUDGET, "--budget", "surplus", "--reference", "plain.parquet")
    assert "at most the reference's least, " in printed
    good, plain = read_predictions("good.npz"), read_predictions("plain.parquet")
    fitted = load_calibration("c.json")
    assert fitted == fit_calibration("budget", good, budget="surplus", reference=plain)
    assert fitted.temperature > fitted.best.temperature
    surefoot("calibrate", "plain.parquet", "-o", "plain.json")
    limit = load_calibration("plain.json").evidence.nll_after
    assert nll_unclipped(fitted(good)) == pytest.approx(limit, rel=1e-6)
    found = surefoot("evaluate", "good.npz", "--calibration", "c.json", "--format", "json", "--resamples", 0)
    assert json.loads(found)["familiar"]["metrics"]["nll"]["value"] == pytest.approx(nll(fitted(good)))
    surefoot("apply", "c.json", "good.npz", "-o", "out.npz")
    assert np.array_equal(read_predictions("out.npz").logits, fitted(good).logits)


ALLOWED = "allowed: a percentage such as 5%, a share from 0 to 1 such as 0.05, or surplus"
REFUSED = {
    "no percentage": ((*BUDGET, "--budget", "5"), f"budget is '5'; {ALLOWED}"),
    "negative": ((*BUDGET, "--budget=-1%"), f"budget is '-1%'; {ALLOWED}"),
    "a word": ((*BUDGET, "--budget", "all"), f"budget is 'all'; {ALLOWED}"),
    "without end": ((*BUDGET, "--budget", "inf%"), f"budget is 'inf%'; {ALLOWED}"),
    "not a number": ((*BUDGET, "--budget", "nan"), f"budget is 'nan'; {ALLOWED}"),
    "another method": (
        (*FIT, "--budget", "5%"),
        "unknown option of method temperature: 'budget'; have: weights",
    ),
    "no reference": ((*BUDGET, "--budget", "surplus"), "budget is 'surplus' without a reference; needed: "),
    "no surplus": (
        (*BUDGET, "--reference", "plain.parquet"),
        "a reference is given and budget is 0.02; allowed",
    ),
    "no file": ((*BUDGET, "--budget", "surplus", "--reference", "gone.npz"), "gone.npz: No such file"),
    "other rows": (
        (*BUDGET, "--budget", "surplus", "--reference", "other.npz"),
        "the reference has other labels than the predictions; needed: the same rows in the same order",
    ),
    "streamed": (
        ("calibrate", "plain.parquet", *BUDGET[2:], "--budget", "5%", "--stream"),
        "method 'budget' cannot be streamed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_in_one_sentence(case, two_models, here):
    arguments, message = REFUSED[case]
    done = here(*arguments, check=2)
    assert message in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert done.stdout == ""
    assert not Path("c.json").exists()


RICHER = {
    "vector": (("--regularisation", "0.1"), {"regularisation": 0.1}),
    "histogram": (("--bins", "5"), {"bins": 5}),
    "platt": (("--weights", "w"), {"weights": "w"}),
    "isotonic": ((), {}),
}


def test_richer_calibrators(here, tmp_path):
    val, file, drawn = tmp_path / "val.npz", tmp_path / "c.json", draw_one_label(sharpness=2)
    drawn = replace(drawn, attributes=pa.table({"w": np.linspace(1, 3, drawn.n)}))
    write_predictions(drawn, val)
    for name, (options, named) in RICHER.items():
        done = here("calibrate", val, "--method", name, *options, "-o", file)
        assert "on rows left out of the fit: NLL " in done.stdout
        fitted = load_calibration(file)
        assert fitted == fit_calibration(name, drawn, **named)
    here("apply", file, val, "-o", tmp_path / "after.npz")
    assert np.array_equal(read_predictions(tmp_path / "after.npz").logits, fitted(drawn).logits)
    found = here("evaluate", val, "--calibration", file, "--format", "json", "--resamples", 0)
    nll = json.loads(found.stdout)["familiar"]["metrics"]["nll_unclipped"]["value"]
    assert nll == pytest.approx(fitted.evidence.nll_after)
    refused = here("calibrate", val, "--bins", "5", "-o", file, check=2)
    assert "unknown option of method temperature: 'bins'; have: weights" in refused.stderr


def test_an_uncertain_temperature_is_used_by_force_only(here, tmp_path):
    val, file = tmp_path / "val.npz", tmp_path / "c.json"
    write_predictions(Predictions.from_logits([[4.0, 0.0]] * 4, [0, 0, 0, 1]), val)
    done = here("calibrate", val, "-o", file)
    assert done.stdout.startswith("T = 1, because the fitted T = 3.641 (95% interval ")
    assert "note: the fitted T = 3.64 was not used" in done.stderr
    assert "use more validation data, or --force to use it" in " ".join(done.stderr.split())
    assert here("calibrate", val, "-o", file, "--force").stdout.startswith("T = 3.641 (95% interval ")
