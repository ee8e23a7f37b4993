import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_expit, log_softmax, softmax

from surefoot import (
    IGNORE,
    InputError,
    Predictions,
    fit_calibration,
    fit_member_temperatures,
    fit_temperature,
    load_calibration,
    save_calibration,
)
from surefoot.calibrators import search as scale
from surefoot.calibrators.search import halley
from surefoot.calibrators.temperature import fit_temperature_at_least_one
from surefoot.metrics import label_error, nll_unclipped
from surefoot.metrics.intervals import few_samples_factor
from tests.conftest import draw_many_labels, draw_one_label


def oracle(predictions):
    """The best T by scipy, from the definition of the NLL, to about 1e-8."""
    logits, labels = predictions.logits[0].astype(np.float64), predictions.labels

    def softmax_nll(log_t):
        return -log_softmax(logits / math.exp(log_t), axis=1)[np.arange(len(labels)), labels].mean()

    def sigmoid_nll(log_t):
        signed = np.where(labels == 1, logits, -logits)[labels != IGNORE] / math.exp(log_t)
        return -log_expit(signed).mean()

    objective = softmax_nll if labels.ndim == 1 else sigmoid_nll
    coarse = min(np.linspace(-8, 8, 81), key=objective)
    found = minimize_scalar(
        objective, bounds=(coarse - 0.3, coarse + 0.3), method="bounded", options={"xatol": 1e-10}
    )
    return math.exp(found.x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("right", [0.05, 0.5, 1, 3, 8, 20, 50])
def test_finds_the_temperature_that_made_the_data(right, classes, dtype):
    """Labels drawn from softmax(z), logits multiplied by T: the fit for T = 1 times T, to 1e-6."""
    n = 400 if classes == 1000 else 2000
    unscaled = fit_temperature(draw_one_label(n, classes, seed=classes))
    fitted = fit_temperature(draw_one_label(n, classes, seed=classes, sharpness=right, dtype=dtype))
    assert fitted.temperature == pytest.approx(right * unscaled.temperature, rel=1e-6)
    assert fitted.low < right < fitted.high
    assert not fitted.at_bound


@pytest.mark.parametrize("sharpness", [0.1, 1, 5, 30])
@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_agrees_with_scipy(draw, sharpness):
    predictions = draw(sharpness=sharpness, seed=5)
    assert fit_temperature(predictions).temperature == pytest.approx(oracle(predictions), rel=1e-6)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(8, 60), st.floats(-3, 3))
def test_the_slope_is_zero_where_it_says(seed, classes, n, log_sharpness):
    """Whatever the data: at an inner optimum a step either way is worse; at a bound the fit says so."""
    predictions = draw_one_label(n, classes, seed=seed, sharpness=math.exp(log_sharpness))
    fitted = fit_temperature(predictions)
    assert fitted.temperature > 0
    if not fitted.at_bound:
        best = nll_unclipped(fitted(predictions))
        for factor in (0.999, 1.001):
            other = predictions.with_logits(predictions.logits / (fitted.temperature * factor))
            assert nll_unclipped(other) >= best - 1e-13
        reading = scale.read(predictions, 1 / fitted.temperature)
        newton_step = reading.slope / reading.second * fitted.temperature
        assert abs(newton_step) < 1e-6


def test_weights_of_large_data_count_rows_that_often():
    """Above FEWEST_ROWS the search starts on some rows and their weights."""
    predictions = draw_one_label(3_000, 5, sharpness=3, seed=4)
    weights = np.random.default_rng(5).integers(0, 4, size=3_000)
    repeated = predictions.take(np.repeat(np.arange(3_000), weights))
    weighted = fit_temperature(predictions, weights=weights)
    assert weighted.temperature == pytest.approx(fit_temperature(repeated).temperature, rel=1e-6)


def test_large_data_is_read_once_and_still_exact():
    """Above FEWEST_ROWS the search starts on some rows: the same T as the search on all of them."""
    predictions = draw_one_label(90_000, 3, sharpness=4, seed=2, dtype=np.float32)
    assert predictions.n > 2 * scale.FEWEST_ROWS
    assert fit_temperature(predictions).temperature == pytest.approx(oracle(predictions), rel=1e-6)


def test_hard_cases():
    heavy = np.random.default_rng(0).standard_t(1.2, size=(3000, 4)) * 50  # tails that overflow a plain exp
    labels = (heavy + np.random.default_rng(1).gumbel(size=heavy.shape) * 60).argmax(axis=1)
    predictions = Predictions.from_logits(heavy, labels)
    assert fit_temperature(predictions).temperature == pytest.approx(oracle(predictions), rel=1e-6)
    usual = fit_temperature(draw_one_label(500, 3)).temperature
    for size in (1e-9, 1e9, 1e80, 1e97):
        scaled = fit_temperature(draw_one_label(500, 3, sharpness=size))
        assert scaled.temperature == pytest.approx(size * usual, rel=1e-6)


def test_interval_covers_the_truth_at_its_stated_rate():
    fits = [fit_temperature(draw_one_label(400, 4, sharpness=2, seed=seed)) for seed in range(300)]
    covered = np.mean([fit.low <= 2 <= fit.high for fit in fits])
    assert 0.91 < covered < 0.985


def test_interval_is_wider_when_rows_come_in_groups():
    one = draw_one_label(100, 4, seed=1)
    copies = np.repeat(np.arange(100), 9)
    alone, grouped = (
        one.take(copies),
        Predictions.from_logits(one.logits[:, copies], one.labels[copies], groups=copies),
    )
    narrow, wide = fit_temperature(alone), fit_temperature(grouped)
    assert wide.temperature == pytest.approx(narrow.temperature)
    ratio = math.log(wide.high / wide.low) / math.log(narrow.high / narrow.low)
    assert ratio == pytest.approx(3 * few_samples_factor(100) / few_samples_factor(900), rel=1e-6)


def test_one_group_or_one_row_says_nothing_of_the_interval():
    one_group = draw_one_label(400, groups=["a"] * 400, sharpness=2)
    for predictions in (one_group, Predictions.from_logits([[2.0, 2.0, 2.0, -1.0]], [[1, 1, 0, 0]])):
        fitted = fit_temperature(predictions)
        assert (fitted.low, fitted.high) == (0, math.inf)
    assert "unknown" in fitted.remarks()[-1]


def test_rows_whose_slopes_cancel_are_not_separable():
    """The same row again and again: each row's own slope is zero at the optimum, up to rounding."""
    for size in (0.3, 1, 3, 7):
        fitted = fit_temperature(
            Predictions.from_logits([[2.0 * size, 2.0 * size, 2.0 * size, -1.0 * size]], [[1, 1, 0, 0]])
        )
        assert not fitted.separable
        assert fitted.temperature / size == pytest.approx(2.0136574, rel=1e-6)
    assert not fit_temperature(
        Predictions.from_logits([[3.0, 1.0, 0.5, -1.0]] * 300, [[1, 0, 1, 0]] * 300)
    ).separable


def test_logits_that_say_nothing_get_a_temperature_of_one():
    fitted = fit_temperature(Predictions.from_logits(np.zeros((9, 3)), [0, 1, 2] * 3))
    assert fitted.temperature == 1
    assert "T has no effect" in fitted.remarks()[0]


def test_separable_data_ends_at_a_bound_and_says_so():
    predictions = Predictions.from_logits(np.eye(3) * 5, [0, 1, 2])
    fitted = fit_temperature(predictions)
    assert fitted.at_bound
    assert fitted.separable
    assert 0 < fitted.temperature < 0.01
    assert "every label is predicted correctly" in fitted.remarks()[0]


def test_logits_against_the_labels_end_at_a_bound_and_say_so():
    predictions = Predictions.from_logits(np.eye(3) * 5, [1, 2, 0])
    fitted = fit_temperature(predictions)
    assert fitted.at_bound
    assert not fitted.separable
    assert fitted.temperature > 100
    assert "do not help to predict the labels" in fitted.remarks()[0]


def test_remarks_on_low_temperature_and_few_rows():
    assert fit_temperature(draw_one_label(5000, sharpness=2)).remarks() == []
    assert "below 1" in fit_temperature(draw_one_label(5000, sharpness=0.5)).remarks()[0]
    close = fit_temperature(draw_one_label(1000, 4, sharpness=0.98, seed=4))
    assert close.temperature < 1 < close.high
    assert close.remarks() == []
    assert "rows are few" in fit_temperature(draw_one_label(50, sharpness=2)).remarks()[-1]


def test_rows_without_a_label_do_not_count():
    predictions = draw_one_label(400, sharpness=3)
    half = predictions.labels.copy()
    half[::2] = IGNORE
    partly = Predictions(predictions.logits, half, predictions.kind)
    only = predictions.take(np.arange(1, 400, 2))
    assert fit_temperature(partly) == fit_temperature(only)
    with pytest.raises(InputError, match="no labels to fit"):
        fit_temperature(Predictions.from_logits([[1.0, 2.0]], [IGNORE]))


def test_calibrating_keeps_every_answer_and_lowers_the_nll():
    predictions = draw_one_label(1000, sharpness=4)
    calibrated = fit_temperature(predictions)(predictions)
    assert label_error(calibrated) == label_error(predictions)
    assert nll_unclipped(calibrated) < nll_unclipped(predictions)


def test_a_member_each_and_after_averaging():
    rng = np.random.default_rng(0)
    base = draw_one_label(4000, 4)
    members = (base.logits + rng.standard_normal((3, 4000, 4))) * np.array([1.0, 2.0, 4.0]).reshape(3, 1, 1)
    ensemble = base.with_logits(members)
    fitted = fit_member_temperatures(ensemble)
    for index, temperature in enumerate(fitted.members):
        assert temperature == fit_temperature(ensemble.member(index))
    calibrated = fitted(ensemble)
    assert calibrated.members == 3
    each = [softmax(members[i] / t.temperature, axis=1) for i, t in enumerate(fitted.members)]
    np.testing.assert_allclose(calibrated.probs(), np.mean(each, axis=0), atol=1e-12)
    assert np.array_equal(fitted.scale(members), calibrated.logits)
    after = fit_temperature(ensemble)
    assert after == fit_temperature(ensemble.average())
    assert after(ensemble).members == 1
    assert nll_unclipped(after(ensemble)) <= nll_unclipped(ensemble)
    with pytest.raises(InputError, match="fitted for 3 members, but the predictions have 1"):
        fitted(base)
    torch = pytest.importorskip("torch")
    from surefoot.deploy.modules import module_of

    given = torch.from_numpy(members)
    assert np.array_equal(fitted.scale(given), calibrated.logits)
    np.testing.assert_allclose(module_of(fitted)(given), calibrated.logits, rtol=1e-6)


def test_applies_to_arrays_tensors_and_as_a_module():
    torch = pytest.importorskip("torch")
    from surefoot.deploy.modules import module_of

    predictions = draw_one_label(500, sharpness=2)
    fitted = fit_temperature(predictions)
    logits = torch.tensor(predictions.logits[0])
    expected = fitted(predictions).logits[0]
    assert torch.equal(fitted.scale(logits), torch.tensor(expected))
    assert np.array_equal(fitted.scale(predictions.logits[0]), expected)
    module = module_of(fitted)
    np.testing.assert_allclose(module(logits), expected, rtol=1e-6)
    assert module(logits.half()).dtype == torch.float16
    assert list(module.state_dict()) == ["temperature"]
    assert list(module.parameters()) == []


def test_refuses_predictions_of_another_kind():
    fitted = fit_temperature(draw_one_label(classes=4))
    with pytest.raises(
        InputError, match="one_label with 4 classes, but the predictions are one_label with 3 classes"
    ):
        fitted(draw_one_label(classes=3))
    with pytest.raises(InputError, match="many_labels"):
        fitted(draw_many_labels(classes=4))


def test_a_few_labels_without_probability_do_not_decide_the_temperature():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet((1.0, 1.0, 1.0), 500)
    labels = (rng.random(500)[:, None] > probs.cumsum(axis=1)).sum(axis=1)
    without = fit_temperature(Predictions.from_probs(probs, labels))
    for row in range(3):
        probs[row, labels[row]] = 0
    probs /= probs.sum(axis=1, keepdims=True)
    fitted = fit_calibration("temperature", Predictions.from_probs(probs, labels))
    assert fitted.lowest_probability == pytest.approx(probs[probs > 0].min() / 2)
    assert fitted.temperature == pytest.approx(without.temperature, rel=0.2)  # with 2e-308 it was 1000
    assert "3 true labels among them" in " ".join(fitted.notes())


def test_a_temperature_that_the_data_say_nothing_about_is_not_used(tmp_path):
    few = Predictions.from_logits([[4.0, 0.0]] * 4, [0, 0, 0, 1])
    fitted = fit_calibration("temperature", few)
    plain = fit_temperature(few)
    assert plain.high > 100 * plain.low
    assert (fitted.temperature, fitted.declined) == (1, plain.temperature)
    assert "the fitted T = 3.64 was not used, as its 95% interval is " in fitted.remarks()[0]
    assert fitted.remarks()[0].endswith("use more validation data, or force=True to use it")
    assert np.array_equal(fitted(few).logits, few.logits)
    assert fit_calibration("temperature", few, force=True).temperature == plain.temperature
    assert fit_calibration("member-temperatures", few).temperatures == (1,)
    correct = fit_calibration("temperature", Predictions.from_logits([[5.0, 0.0]], [0]))
    assert "was not used, as every label is predicted correctly (n = 1)" in correct.remarks()[0]
    for each in (fitted, correct):
        save_calibration(each, tmp_path / "c.json")
        assert load_calibration(tmp_path / "c.json") == each


def test_few_rows_that_are_all_right_do_not_mislead_the_search():
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((5000, 3))
    labels = logits.argmax(axis=1)
    labels[1:5000:100] = rng.integers(0, 3, 50)  # none of the rows that are looked at first
    predictions = Predictions.from_logits(logits, labels)
    first = predictions.take(slice(None, None, predictions.n // scale.FEWEST_ROWS))
    assert label_error(first) == 0 < label_error(predictions)
    fitted = fit_temperature(predictions)
    assert not fitted.at_bound
    assert fitted.temperature == pytest.approx(oracle(predictions), rel=1e-6)


def test_a_few_huge_rows_that_are_not_looked_at_first_may_rule_the_fit():
    rng = np.random.default_rng(0)
    margins = rng.standard_normal(10_000)
    labels = (margins + rng.logistic(size=10_000) > 0).astype(int)
    huge = np.arange(1, 10_000, 1000)  # eight of them right, two wrong
    margins[huge], labels[huge] = 1e7, [1] * 8 + [0] * 2
    fitted = fit_temperature(Predictions.from_logits(margins, labels))
    assert fitted.temperature == pytest.approx(1e7 / math.log(4), rel=0.05)
    assert not fitted.at_bound


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
    assert np.array_equal(fitted(val).probs(), val.probs())
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
    assert "T has no effect" in flat.remarks()[0]


def test_files_without_the_field_still_load(tmp_path):
    fitted = fit_temperature(draw_one_label(sharpness=2))
    save_calibration(fitted, tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    del document["declined"]
    (tmp_path / "c.json").write_text(json.dumps(document))
    assert load_calibration(tmp_path / "c.json") == fitted


def test_halley_s_step():
    """-2 f f' / (2 f'^2 - f f''); none where the curve bends away."""
    assert halley(1.0, 2.0, 3.0) == pytest.approx(-2 * 2 / (2 * 4 - 3))
    assert halley(-1.0, 2.0, 3.0) == pytest.approx(2 * 2 / (2 * 4 + 3))
    assert math.isnan(halley(1.0, 1.0, 2.0))
    assert math.isnan(halley(1.0, 0.0, 0.0))


def test_a_single_member_is_described_as_one_temperature():
    fitted = fit_member_temperatures(draw_one_label(members=1))
    assert fitted.lines() == fitted.members[0].lines()
    assert fitted.lines()[0].startswith("T")


@pytest.mark.parametrize(
    "predictions",
    [
        draw_one_label(80, 2),
        draw_one_label(80, 4),
        draw_one_label(80, 3, members=2),
        draw_many_labels(80, 3),
        draw_many_labels(80, 3, members=2),
    ],
    ids=["two classes", "four classes", "members", "many labels", "many labels of members"],
)
def test_derivatives_are_those_of_the_loss(predictions, monkeypatch):
    for name in ("NUMBERS_AT_ONCE", "FEWEST_AT_ONCE"):  # so that they are summed over several chunks
        monkeypatch.setattr(f"surefoot.predictions.logits.{name}", 20)
    at, step = 0.7, 1e-4

    def nll(scale_at):
        return scale.mean_nll(predictions, scale_at) * scale.known_labels(predictions)

    reading = scale.read(predictions, at)
    low, high = (scale.read(predictions, at + sign * step) for sign in (-1, 1))
    assert reading.slope == pytest.approx((nll(at + step) - nll(at - step)) / (2 * step), rel=1e-5)
    assert reading.second == pytest.approx((high.slope - low.slope) / (2 * step), rel=1e-5)
    assert reading.third == pytest.approx((high.second - low.second) / (2 * step), rel=1e-4)
