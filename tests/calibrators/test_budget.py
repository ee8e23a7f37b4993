import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_expit, log_softmax

from surefoot import IGNORE, InputError, Predictions, fit_temperature
from surefoot.calibrators.temperature import fit_budget_temperature
from surefoot.metrics import nll_unclipped
from tests.conftest import draw_many_labels, draw_one_label


def oracle_nll(predictions, temperature):
    """From the definition, by scipy."""
    logits, labels = predictions.logits[0].double().numpy() / temperature, predictions.labels.numpy()
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
    single = double.with_logits(double.logits.float())
    found = [
        fit_budget_temperature(val).temperature
        for val in (single, single.with_logits(single.logits.double()))
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
    assert "no budget used" in fitted.remarks()[0]
    assert fitted.remarks()[1].startswith(remark)


def test_averages_members_and_applies_everywhere():
    val = draw_one_label(400, sharpness=3, members=3)
    fitted = fit_budget_temperature(val)
    assert fitted == fit_budget_temperature(val.average())
    expected = val.average().logits / fitted.temperature
    assert torch.equal(fitted(val).logits, expected)
    assert torch.equal(fitted.scale(val.average().logits), expected)
    assert torch.allclose(fitted.module()(val.average().logits), expected, rtol=1e-6)
    with pytest.raises(InputError, match="4 classes, but the predictions are one_label with 3"):
        fitted(draw_one_label(classes=3))


@pytest.mark.parametrize("budget", [-0.01, math.nan, math.inf])
def test_refuses_budgets(budget):
    with pytest.raises(InputError, match=r"budget is .*; allowed: a number from 0"):
        fit_budget_temperature(draw_one_label(), budget)
