import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad, minimize
from scipy.special import log_expit, log_softmax

from surefoot import IGNORE, InputError, Predictions, fit_temperature
from surefoot.calibrators import novelty
from surefoot.calibrators.novelty import fit_novelty_scaling
from surefoot.metrics import nll_unclipped


def draw(n=2000, classes=4, t0=1.0, t1=2.0, *, seed=0, kind="one"):
    """Labels drawn from the logits, which are then multiplied by t0 + t1 novelty: the right answer."""
    rng = np.random.default_rng(seed)
    strange = rng.random(n)
    logits = 2 * rng.standard_normal((n, classes))
    if kind == "one":
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    else:
        labels = (logits + rng.logistic(size=logits.shape) > 0).astype(int)
        labels[rng.random(labels.shape) < 0.2] = IGNORE
    return Predictions.from_logits(logits * (t0 + t1 * strange)[:, None], labels, novelty=strange)


def oracle_nll(val, t0, t1):
    logits, labels = val.logits[0], val.labels
    logits = logits / (t0 + t1 * val.novelty)[:, None]
    if labels.ndim == 1:
        return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()
    return -log_expit(np.where(labels == 1, logits, -logits)[labels != IGNORE]).mean()


def oracle(val):
    """The best T0 and T1 by another way of search: no gradient, from several starts."""
    starts = [(0.3, 3), (3, 1)]
    found = [
        minimize(
            lambda at: oracle_nll(val, *np.exp(at)),
            np.log(start),
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-14},
        )
        for start in starts
    ]
    return np.exp(min(found, key=lambda each: each.fun).x)


@pytest.mark.parametrize("kind", ["one", "many"])
@pytest.mark.parametrize(("t0", "t1"), [(1, 2), (0.2, 4), (5, 3)])
def test_agrees_with_another_search(kind, t0, t1):
    val = draw(600, t0=t0, t1=t1, kind=kind)
    fitted = fit_novelty_scaling(val)
    assert (fitted.t0, fitted.t1) == pytest.approx(tuple(oracle(val)), rel=1e-5)
    assert fitted.remarks() == []
    assert nll_unclipped(fitted(val)) == pytest.approx(oracle_nll(val, fitted.t0, fitted.t1), rel=1e-12)


@pytest.mark.parametrize("kind", ["one", "many"])
def test_the_gradient_is_the_slope(kind):
    val = draw(100, kind=kind)
    for at in ([1.0, 0.0], [0.5, 3.0], [4.0, 0.1]):
        error = check_grad(lambda x: novelty._nll(val, x)[0], lambda x: novelty._nll(val, x)[1], at)
        assert error < 1e-6
        assert novelty._nll(val, np.array(at))[0] == pytest.approx(oracle_nll(val, *at), rel=1e-12)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 5), st.floats(0.1, 5), st.floats(0, 5), st.booleans())
def test_is_never_worse_than_one_temperature(seed, classes, t0, t1, reverse):
    val = draw(60, classes, t0, t1, seed=seed)
    if reverse:
        val = Predictions(val.logits, val.labels, val.kind, novelty=1 - val.novelty)
    fitted, plain = fit_novelty_scaling(val), fit_temperature(val)
    assert fitted.t0 > 0
    assert fitted.t1 >= 0
    assert nll_unclipped(fitted(val)) <= nll_unclipped(plain(val)) + 1e-14
    if fitted.t1 == 0:
        assert fitted.t0 == plain.temperature


def test_novelty_that_points_the_wrong_way_gets_no_weight():
    right = draw()
    wrong = Predictions(right.logits, right.labels, right.kind, novelty=1 - right.novelty)
    fitted = fit_novelty_scaling(wrong)
    assert (fitted.t0, fitted.t1) == (fit_temperature(wrong).temperature, 0)
    assert fitted.remarks() == ["the validation data gave novelty no weight: this is plain T-scaling"]
    assert np.array_equal(fitted(wrong).logits, fit_temperature(wrong)(wrong).logits)


def test_constant_novelty_is_plain_scaling_in_effect():
    val = draw(t1=0)
    for constant in (0.0, 1.0):
        same = Predictions(val.logits, val.labels, val.kind, novelty=np.full(val.n, constant))
        fitted = fit_novelty_scaling(same)
        assert fitted.t0 + constant * fitted.t1 == pytest.approx(fit_temperature(val).temperature, rel=1e-5)


def test_a_weight_that_gains_nothing_is_not_kept(monkeypatch):
    """All novelty is 1, so only T0 + T1 counts, and a search from elsewhere ends with some T1."""
    val = draw(t1=0)
    same = Predictions(val.logits, val.labels, val.kind, novelty=np.ones(val.n))
    monkeypatch.setattr(novelty, "_best_of_grid", lambda *_: np.array([0.3, 0.3]))
    fitted = fit_novelty_scaling(same)
    assert (fitted.t0, fitted.t1) == (fit_temperature(val).temperature, 0)


def test_large_data_starts_on_some_rows_and_is_still_exact():
    val = draw(52_000, 8, 0.5, 6)
    assert val.n * val.classes > 2 * novelty.LOGITS_ON_THE_GRID
    fitted = fit_novelty_scaling(val)
    _, slope = novelty._nll(val, np.array([fitted.t0, fitted.t1]))
    assert np.abs(slope).max() < 1e-7
    assert (fitted.t0, fitted.t1) == pytest.approx((0.5, 6), rel=0.05)


def test_members_are_averaged_and_rows_without_labels_left_out():
    val = draw(600)
    members = np.concatenate([val.logits, val.logits + 1.5, val.logits * 0.5])
    several = val.with_logits(members)
    assert fit_novelty_scaling(several) == fit_novelty_scaling(several.average())
    assert fit_novelty_scaling(several)(several).members == 1
    labels = val.labels.copy()
    labels[::3] = IGNORE
    partly = Predictions(val.logits, labels, val.kind, novelty=val.novelty)
    assert fit_novelty_scaling(partly) == fit_novelty_scaling(val.take(np.flatnonzero(labels >= 0)))


def test_where_the_familiar_are_all_right_the_search_ends_and_says_so():
    """Rows of no novelty are all right, the others say nothing: T0 falls to its bound."""
    logits = np.tile([[2.0, 0.0]], (400, 1))
    labels = np.r_[np.zeros(200, int), np.arange(200) % 3 == 0]
    fitted = fit_novelty_scaling(Predictions.from_logits(logits, labels, novelty=np.repeat([0, 1], 200)))
    assert fitted.at_bound
    assert fitted.t0 < 0.05
    assert fitted.t0 + fitted.t1 == pytest.approx(2 / math.log(133 / 67), rel=0.01)
    assert "is the end of the search range" in fitted.remarks()[0]


def test_flat_and_separable_are_plain_and_say_so():
    strange = [0.0, 0.5, 1.0]
    flat = fit_novelty_scaling(Predictions.from_logits(np.zeros((3, 3)), [0, 1, 2], novelty=strange))
    assert (flat.t0, flat.t1) == (1, 0)
    assert "T has no effect" in flat.remarks()[1]
    separable = fit_novelty_scaling(Predictions.from_logits(np.eye(3) * 5, [0, 1, 2], novelty=strange))
    assert separable.t1 == 0
    assert "every label is predicted correctly" in separable.remarks()[1]


def test_refuses_novelty_that_is_missing_or_out_of_range():
    val = draw(50)
    fitted = fit_novelty_scaling(val)
    bare = Predictions(val.logits, val.labels, val.kind)
    high = Predictions(val.logits, val.labels, val.kind, novelty=val.novelty + 0.5)
    for use in (fit_novelty_scaling, fitted):
        with pytest.raises(InputError, match="the predictions have no novelty; needed: "):
            use(bare)
        with pytest.raises(InputError, match=r"novelty from 0\.5\d* to 1\.\d*; allowed: from 0 to 1"):
            use(high)
    with pytest.raises(InputError, match="4 classes, but the predictions are one_label with 3"):
        fitted(draw(50, 3))


def test_only_novelty_scaling_needs_novelty():
    val = draw(50)
    assert fit_novelty_scaling(val).needs_novelty
    assert not fit_temperature(val).needs_novelty
