import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, log_expit, log_softmax, logit, softmax

from surefoot import (
    CALIBRATORS,
    IGNORE,
    InputError,
    Predictions,
    fit_calibration,
    fit_temperature,
    load_calibration,
    save_calibration,
)
from surefoot.calibrators.budget import BudgetTemperature, fit_budget_temperature
from surefoot.metrics import nll_unclipped
from tests.conftest import draw_many_labels, draw_one_label


def oracle_nll(predictions, temperature):
    """From the definition, by scipy."""
    logits, labels = predictions.logits[0].astype(np.float64) / temperature, predictions.labels
    if labels.ndim == 1:
        return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()
    return -log_expit(np.where(labels == 1, logits, -logits)[labels != IGNORE]).mean()


@pytest.mark.parametrize("budget", [0.001, 0.02, 0.2])
@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_agrees_with_scipy(draw, budget):
    val = draw(1000, sharpness=3, seed=5)
    fitted = fit_budget_temperature(val, budget)
    best = fit_temperature(val).temperature
    limit = (1 + budget) * oracle_nll(val, best)
    expected = brentq(lambda t: oracle_nll(val, t) - limit, best, 100 * best, xtol=1e-12, rtol=1e-12)
    assert fitted.temperature == pytest.approx(expected, rel=1e-6)
    assert fitted.best == fit_temperature(val)
    assert fitted.remarks() == fitted.best.remarks() == []
    assert fitted.nll_best == pytest.approx(oracle_nll(val, best), rel=1e-12)
    assert fitted.nll_used == pytest.approx(limit, rel=1e-6)
    assert fitted.nll_used == pytest.approx(nll_unclipped(fitted(val)), rel=1e-12)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 5), st.floats(-2, 2), st.floats(0, 0.5))
def test_keeps_within_the_budget_and_uses_all_of_it(seed, classes, log_sharpness, budget):
    val = draw_one_label(40, classes, seed=seed, sharpness=math.exp(log_sharpness))
    fitted = fit_budget_temperature(val, budget)
    assume(not fitted.best.at_bound)
    limit = (1 + budget) * fitted.nll_best
    assert fitted.temperature >= fitted.best.temperature
    assert fitted.nll_used <= limit + 1e-15
    if not fitted.at_bound and budget > 1e-4:
        assert oracle_nll(val, fitted.temperature * (1 + 1e-6)) > limit


def test_single_precision_logits_are_divided_in_double():
    double = draw_one_label(500, sharpness=3)
    single = double.with_logits(double.logits.astype(np.float32))
    found = [
        fit_budget_temperature(val).temperature
        for val in (single, single.with_logits(single.logits.astype(np.float64)))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_no_budget_is_the_best_temperature():
    val = draw_one_label(sharpness=2)
    assert fit_budget_temperature(val, 0).temperature == fit_temperature(val).temperature


def test_a_budget_that_allows_any_temperature_says_so():
    fitted = fit_budget_temperature(draw_one_label(sharpness=2), 100)
    assert fitted.at_bound
    assert fitted.temperature > 1000
    assert fitted.nll_used == pytest.approx(math.log(4), rel=1e-3)
    assert "any T, however large" in fitted.remarks()[0]


NO_BEST = {
    "separable": (np.eye(3) * 5, [0, 1, 2], "best T: every label is predicted correctly"),
    "flat": (np.zeros((3, 3)), [0, 1, 2], "best T: the logits of every row are equal"),
    "against the labels": (np.eye(3) * 5, [1, 2, 0], "best T: T = "),
}


@pytest.mark.parametrize("case", NO_BEST)
def test_without_a_best_temperature_the_fitted_one_is_taken(case):
    logits, labels, remark = NO_BEST[case]
    val = Predictions.from_logits(logits, labels)
    fitted = fit_budget_temperature(val)
    assert fitted.temperature == fit_temperature(val).temperature
    assert fitted.nll_used == fitted.nll_best
    assert "without a budget" in fitted.remarks()[0]
    assert fitted.remarks()[1].startswith(remark)


def test_a_budget_above_an_unknown_temperature_is_not_used_without_force():
    rng = np.random.default_rng(0)
    noise = Predictions.from_logits(rng.normal(size=(40, 3)), rng.integers(3, size=40))
    unused = fit_calibration("budget", noise)
    assert (unused.temperature, unused.kind) == (1, "temperature")
    assert unused.notes()[0].endswith("use more validation data, or force=True to use it")
    assert fit_calibration("budget", noise, force=True).temperature > 10
    members = noise.with_logits(noise.logits.repeat(2, axis=0))
    evidence = fit_calibration("member-temperatures", members).evidence
    assert evidence.nll_after == evidence.nll_before
    assert evidence.nll_held_out is None


def test_averages_members_and_applies_everywhere():
    val = draw_one_label(400, sharpness=3, members=3)
    fitted = fit_budget_temperature(val)
    assert fitted == fit_budget_temperature(val.average())
    expected = val.average().logits / fitted.temperature
    assert np.array_equal(fitted(val).logits, expected)
    assert np.array_equal(fitted.scale(val.average().logits), expected)
    with pytest.raises(InputError, match="4 classes, but the predictions are one_label with 3"):
        fitted(draw_one_label(classes=3))
    torch = pytest.importorskip("torch")
    from surefoot.deploy.modules import module_of

    given = torch.tensor(val.average().logits)
    np.testing.assert_allclose(module_of(fitted)(given), expected, rtol=1e-6)


def averaged(predictions):
    """The mean of the members' probabilities as one member's logits, in numpy."""
    logits = predictions.logits.astype(np.float64)
    if predictions.labels.ndim == 1:
        return predictions.with_logits(np.log(softmax(logits, axis=2).mean(axis=0))[None])
    return predictions.with_logits(logit(expit(logits).mean(axis=0))[None])


def oracle_least(predictions):
    """The lowest NLL over T, by scipy: the best of a grid, then refined around it."""
    grid = np.linspace(-7, 7, 57)
    start = min(grid, key=lambda log_t: oracle_nll(predictions, math.exp(log_t)))
    found = minimize_scalar(
        lambda log_t: oracle_nll(predictions, math.exp(log_t)),
        bounds=(start - 0.5, start + 0.5),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return found.fun


def oracle_largest(predictions, limit):
    """The largest T within the limit on a grid of log T, then refined by grids of the interval above it."""
    low, high = -7.0, 14.0
    for _ in range(8):
        grid = np.linspace(low, high, 50)
        within = [oracle_nll(predictions, math.exp(log_t)) <= limit for log_t in grid]
        assert any(within)
        assert not within[-1]
        last = max(index for index, holds in enumerate(within) if holds)
        low, high = grid[last], grid[last + 1]
    return math.exp(low)


def noisier(val, noise, seed=1):
    """The same rows with noise on the logits: a worse model."""
    rng = np.random.default_rng(seed)
    return val.with_logits(val.logits + noise * rng.standard_normal(val.logits.shape))


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_surplus_agrees_with_a_search_by_brute_force(draw, members):
    val = draw(400, sharpness=3, seed=5, members=members)
    plain = noisier(val, 4)
    fitted = fit_budget_temperature(val, "surplus", reference=plain)
    limit = oracle_least(averaged(plain))
    assert fitted.nll_limit == pytest.approx(limit, rel=1e-9)
    assert fitted.temperature == pytest.approx(oracle_largest(averaged(val), limit), rel=1e-6)
    assert fitted.nll_best == pytest.approx(oracle_least(averaged(val)), rel=1e-9)
    assert fitted.nll_used == pytest.approx(nll_unclipped(fitted(val)), rel=1e-9)
    assert fitted.temperature > 1.1 * fitted.best.temperature
    assert fitted.remarks() == [f"best T: {remark}" for remark in fitted.best.remarks()]


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.booleans(),
    st.integers(1, 60),
    st.floats(-2, 2),
    st.floats(0, 6),
    st.floats(0, 6),
)
def test_surplus_is_the_largest_temperature_within_the_limit(
    seed, many, n, log_sharpness, noise, plain_noise
):
    draw = draw_many_labels if many else draw_one_label
    drawn = draw(n, 3, seed=seed, sharpness=math.exp(log_sharpness))
    assume((drawn.labels >= 0).any())
    val, plain = noisier(drawn, noise), noisier(drawn, plain_noise, seed=2)
    fitted = fit_budget_temperature(val, "surplus", reference=plain)
    if fitted.nll_best >= fitted.nll_limit:
        assert fitted.temperature == fitted.best.temperature == fit_temperature(val).temperature
        assert "there is no surplus" in fitted.remarks()[0]
        return
    assert fitted.temperature >= fitted.best.temperature
    assert oracle_nll(val, fitted.temperature) <= fitted.nll_limit * (1 + 1e-12)
    if fitted.at_bound:
        assert "any T, however large" in fitted.remarks()[0]
    else:
        assert oracle_nll(val, fitted.temperature * (1 + 1e-4)) > fitted.nll_limit


@pytest.mark.parametrize("budget", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_surplus_is_the_budget_that_gives_the_same_limit(draw, budget):
    """The noise of the reference is such that its lowest NLL is (1 + budget) times that of `val`."""
    val = draw(300, sharpness=2, seed=3)
    wanted = (1 + budget) * oracle_least(val)
    noise = brentq(lambda noise: oracle_least(noisier(val, noise)) - wanted, 0.01, 10, xtol=1e-13)
    fitted = fit_budget_temperature(val, "surplus", reference=noisier(val, noise))
    assert fitted.temperature == pytest.approx(fit_budget_temperature(val, budget).temperature, rel=1e-6)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
def test_surplus_over_itself_or_over_a_better_model_is_the_best_temperature(draw, members):
    val = draw(300, sharpness=2, members=members)
    best = fit_temperature(val)
    worse = noisier(val, 3)
    for ours, reference in ((val, val), (val, val.average()), (worse, val)):
        fitted = fit_budget_temperature(ours, "surplus", reference=reference)
        assert fitted.temperature == fit_temperature(ours).temperature
        assert fitted.nll_used == fitted.nll_best
        assert fitted.nll_limit == pytest.approx(oracle_nll(averaged(val), best.temperature), rel=1e-9)
        assert "is not below the reference's" in fitted.remarks()[0]
        assert "the lowest, not below the reference's lowest" in fitted.lines()[0]


def one_in_four_wrong(rows):
    """Two classes, T does not change the order: the lowest NLL is the entropy of 1/4."""
    labels = [0, 0, 0, 1] * (rows // 4)
    return Predictions.from_logits([[4.0, 0.0]] * rows, labels)


def test_surplus_of_separable_predictions_is_within_the_limit():
    plain = one_in_four_wrong(8)
    right = plain.with_logits(2 * np.eye(2)[plain.labels][None])
    fitted = fit_budget_temperature(right, "surplus", reference=plain)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert fitted.nll_limit == pytest.approx(entropy, rel=1e-9)
    # Each row's NLL is log(1 + exp(-2 / T)).
    assert fitted.temperature == pytest.approx(-2 / math.log(math.expm1(entropy)), rel=1e-6)
    assert fitted.remarks()[0].startswith("best T: every label is predicted correctly")
    reverse = fit_budget_temperature(plain, "surplus", reference=right)
    assert reverse.temperature == fit_temperature(plain).temperature
    assert "there is no surplus" in reverse.remarks()[0]


def test_surplus_of_one_row():
    right, unsure = (Predictions.from_logits([[size, 0.0]], [0]) for size in (3.0, 0.0))
    fitted = fit_budget_temperature(right, "surplus", reference=unsure)  # each T is better than log 2
    assert fitted.at_bound
    assert fitted.nll_used < math.log(2) == pytest.approx(fitted.nll_limit)
    assert "any T, however large, has an NLL of at most the reference's" in fitted.remarks()[0]


def test_surplus_of_equal_logits_leaves_them():
    plain = one_in_four_wrong(8)
    flat, wrong = (plain.with_logits(logits) for logits in (np.zeros_like(plain.logits), -plain.logits))
    for val, reference in ((flat, plain), (flat, flat), (flat, wrong)):
        fitted = fit_budget_temperature(val, "surplus", reference=reference)
        assert fitted.temperature == 1
        assert any("the logits of every row are equal" in remark for remark in fitted.remarks())
    fitted = fit_budget_temperature(plain, "surplus", reference=flat)
    assert fitted.nll_limit == pytest.approx(math.log(2), rel=1e-12)
    assert fitted.at_bound  # above the best T, the NLL reaches log 2 only in the limit


def test_surplus_is_read_as_it_was_written(tmp_path):
    val = draw_many_labels(sharpness=2)
    fitted = fit_calibration("budget", val, budget="surplus", reference=noisier(val, 2))
    save_calibration(fitted, tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == fitted
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["budget"] == "surplus"
    assert document["nll_limit"] == fitted.nll_limit
    assert f"at most the reference's least, {fitted.nll_limit:.5g}" in fitted.lines()[0]
    assert list(fitted.details().values()) == [fitted.best.temperature, fitted.nll_best, fitted.nll_limit]
    for changed, message in (
        ({"nll_limit": None}, "budget is 'surplus' without an nll_limit"),
        ({"nll_limit": -1}, "nll_limit is -1.0; allowed: a number from 0"),
        ({"budget": 0.02}, "budget is 0.02 with an nll_limit; allowed: 'surplus'"),
        ({"budget": "all", "nll_limit": None}, "could not convert"),
    ):
        (tmp_path / "wrong.json").write_text(json.dumps(document | changed))
        with pytest.raises(InputError, match=message):
            load_calibration(tmp_path / "wrong.json")


def test_a_number_is_written_as_before():
    fitted = fit_calibration("budget", draw_one_label(sharpness=2), budget=0.05)
    assert fitted.budget == 0.05
    assert "at most 5% above the lowest" in fitted.lines()[0]
    assert list(fitted.to_dict()) == [
        "kind", "temperature", "best", "budget", "nll_best", "nll_used", "at_bound", "evidence", "remarks"
    ]  # fmt: skip
    assert BudgetTemperature.from_dict(fitted.to_dict()) == fitted


VAL = draw_one_label(20, ids=np.arange(20))
REFUSED = {
    "no reference": ({"budget": "surplus"}, "budget is 'surplus' without a reference; needed: the plain"),
    "a number": ({"reference": VAL}, "a reference is given and budget is 0.02; allowed: only with 'surplus'"),
    "another word": ({"budget": "all"}, "budget is 'all'; allowed: a number from 0.*or 'surplus'"),
    "below 0": ({"budget": -0.01}, "budget is -0.01; allowed: a number from 0"),
    "undefined": ({"budget": math.nan}, "budget is nan; allowed: a number from 0"),
    "without end": ({"budget": math.inf}, "budget is inf; allowed: a number from 0"),
    "not a number": ({"budget": True}, "budget is True; allowed: a number from 0"),
    "an unknown option": ({"limit": 1}, "unknown option of method budget: 'limit'; have: budget, reference"),
}
OTHER_ROWS = {
    "rows": (VAL.take(slice(0, 19)), "rows are 19 in the reference, 20 in the predictions; must be equal"),
    "kind": (
        draw_many_labels(20, 4),
        "labels are many_labels in the reference, one_label in the predictions",
    ),
    "classes": (draw_one_label(20, 3), "classes are 3 in the reference, 4 in the predictions"),
    "ids": (replace(VAL, ids=VAL.ids[::-1]), "the reference has other ids than the predictions"),
    "labels": (replace(VAL, labels=3 - VAL.labels), "the reference has other labels than the predictions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_options(case):
    options, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        fit_calibration("budget", VAL, **options)


@pytest.mark.parametrize("case", OTHER_ROWS)
def test_refuses_a_reference_of_other_rows(case):
    reference, message = OTHER_ROWS[case]
    with pytest.raises(InputError, match=message):
        fit_budget_temperature(VAL, "surplus", reference=reference)


def test_a_reference_without_ids_is_compared_by_its_labels():
    without = fit_budget_temperature(VAL, "surplus", reference=replace(VAL, ids=None))
    assert without == fit_budget_temperature(VAL, "surplus", reference=VAL)


@pytest.mark.parametrize("name", [each.name for each in CALIBRATORS if each.name != "budget"])
def test_other_methods_have_no_budget(name):
    with pytest.raises(InputError, match=f"unknown option of method {name}: 'budget'; have: "):
        fit_calibration(name, VAL, budget=0.05)
