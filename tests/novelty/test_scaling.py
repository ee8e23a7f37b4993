import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from surefoot import InputError
from surefoot.novelty import Scale, auroc, fit_scale

SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def test_percentiles_go_to_nought_and_one():
    scores = np.random.default_rng(0).standard_normal(1001) * 1e-7 - 0.3334  # as close together as ODIN's
    scale = fit_scale(scores)
    ordered = np.sort(scores)
    assert (scale.low, scale.high) == (ordered[50], ordered[950])
    found = scale(ordered)
    assert (found[:51] == 0).all()
    assert (found[950:] == 1).all()
    assert found[500] == pytest.approx((ordered[500] - ordered[50]) / (ordered[950] - ordered[50]))
    assert scale([-9, 9]).tolist() == [0, 1]


@given(SCORES, SCORES)
def test_always_between_nought_and_one_and_never_out_of_order(reference, scores):
    found = fit_scale(reference)(sorted(scores))
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()


def test_equal_percentiles_give_nought():
    assert fit_scale([2.0, 2.0, 2.0]) == Scale(2.0, 2.0)
    assert Scale(2.0, 2.0)([1.0, 2.0, 3.0]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("scores", [[], [1.0, math.nan], [math.inf]])
def test_refuses_scores(scores):
    with pytest.raises(InputError, match="allowed: one or more finite numbers"):
        fit_scale(scores)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30), st.lists(st.integers(0, 6), min_size=1, max_size=30)
)
def test_auroc_is_scikit_learn_s_with_ties(familiar, unfamiliar):
    expected = roc_auc_score([0] * len(familiar) + [1] * len(unfamiliar), familiar + unfamiliar)
    assert auroc(familiar, unfamiliar) == pytest.approx(expected, abs=1e-12)


def test_auroc_of_nothing_is_undefined():
    assert math.isnan(auroc([], [1.0]))
    assert math.isnan(auroc([1.0], []))
    assert auroc([0.0, 1.0], [2.0, 3.0]) == 1
