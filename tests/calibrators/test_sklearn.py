"""The scikit-learn estimator: scikit-learn's own checks, and an independent cross-fit."""

import numpy as np
import pytest
import sklearn
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from surefoot import InputError
from surefoot.calibrators import CALIBRATORS
from surefoot.sklearn import TemperatureScaledClassifier


@pytest.fixture(scope="module")
def rows():
    x, y = make_classification(240, 6, n_informative=4, n_classes=3, flip_y=0.2, random_state=0)
    return x, np.array(["a", "b", "c"])[y]


def least(value):
    return float(np.exp(minimize_scalar(value, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}).x))


@pytest.mark.filterwarnings("default")  # scikit-learn's checks give warnings of their own
@pytest.mark.parametrize("method", ["temperature", "matrix", "beta", "isotonic"])  # one of each kind
def test_scikit_learn_s_own_checks(method):
    estimator = TemperatureScaledClassifier(method=method, cv=2)
    for result in check_estimator(estimator, on_skip=None):
        assert result["status"] == "passed" or result["check_name"] == "check_array_api_input", result


@pytest.mark.parametrize("weighted", [False, True])
def test_temperature_is_fitted_on_out_of_fold_logits(rows, weighted):
    x, y = rows
    weights = np.random.default_rng(0).random(240) if weighted else None
    model = TemperatureScaledClassifier(LinearSVC(C=10), cv=4).fit(x, y, sample_weight=weights)
    params = {} if weights is None else {"sample_weight": weights}
    out_of_fold = cross_val_predict(LinearSVC(C=10), x, y, cv=4, method="decision_function", params=params)
    index = np.searchsorted(["a", "b", "c"], y)
    t = least(
        lambda log_t: np.average(
            -log_softmax(out_of_fold / np.exp(log_t), axis=1)[np.arange(240), index], weights=weights
        )
    )
    assert model.calibration_.temperature == pytest.approx(t, rel=1e-5)
    z = LinearSVC(C=10).fit(x, y, **params).decision_function(x)
    np.testing.assert_allclose(model.predict_proba(x), softmax(z / t, axis=1), atol=1e-5)
    np.testing.assert_allclose(softmax(model.decision_function(x), axis=1), model.predict_proba(x))
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert (model.predict(x) == model.classes_[z.argmax(axis=1)]).all()


@pytest.mark.filterwarnings("ignore:.*exactly 0, as trees")
def test_a_frozen_estimator_is_not_trained_again(rows):
    x, y = rows
    fitted = RandomForestClassifier(20, random_state=0).fit(x[:120], y[:120])
    model = TemperatureScaledClassifier(FrozenEstimator(fitted)).fit(x[120:], y[120:])
    p = fitted.predict_proba(x)
    z = np.log(np.maximum(p, p[120:][p[120:] > 0].min() / 2))
    index = np.searchsorted(["a", "b", "c"], y[120:])
    t = least(lambda log_t: -log_softmax(z[120:] / np.exp(log_t), axis=1)[np.arange(120), index].mean())
    np.testing.assert_allclose(model.predict_proba(x), softmax(z / t, axis=1), atol=1e-4)
    with pytest.raises(InputError, match="label 'd' is not a class of the estimator; have: a, b, c"):
        TemperatureScaledClassifier(FrozenEstimator(fitted)).fit(x[:2], ["a", "d"])


def test_what_the_calibration_notes_is_a_warning(rows):
    x, y = rows
    forest = RandomForestClassifier(5, random_state=0)
    with pytest.warns(UserWarning, match=r"exactly 0, as trees .* reads them as 0\.1, half") as caught:
        TemperatureScaledClassifier(forest).fit(x, y)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"the fitted T = .* is uncertain .*: probabilities are not changed"):
        model = TemperatureScaledClassifier(cv=2).fit(x[:12, :1], ["a", "b"] * 6)
    np.testing.assert_allclose(model.predict_proba(x[:, :1]), model.estimator_.predict_proba(x[:, :1]))


@pytest.mark.parametrize(
    "method", [each.name for each in CALIBRATORS if each.one_model and "weights" in each.option_names]
)
def test_every_method_gives_probabilities(method, rows):
    x, y = rows
    for labels in (y, y == "a"):
        model = TemperatureScaledClassifier(LinearSVC(), method=method, cv=2).fit(x, labels)
        p = model.predict_proba(x)
        np.testing.assert_allclose(p.sum(axis=1), 1)
        assert (model.predict(x) == model.classes_[p.argmax(axis=1)]).all()
        assert model.decision_function(x).shape == ((240, 3) if labels is y else (240,))
        assert model.score(x, labels) > 0.6


@pytest.mark.filterwarnings("ignore:the fitted T = .* is uncertain")
def test_in_pipelines_and_searches(rows):
    x, y = rows
    inside = TemperatureScaledClassifier(make_pipeline(StandardScaler(), LogisticRegression()), cv=3)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), inside),
        {
            "temperaturescaledclassifier__estimator__logisticregression__C": [1e-4, 1.0],
            "temperaturescaledclassifier__method": ["temperature", "vector"],
        },
        cv=2,
        scoring="neg_log_loss",
    ).fit(x, y)
    assert search.best_params_["temperaturescaledclassifier__estimator__logisticregression__C"] == 1.0
    assert clone(search.best_estimator_).get_params().keys() == search.best_estimator_.get_params().keys()


@pytest.mark.parametrize("routing", [False, True])
def test_groups_reach_the_splitter(rows, routing):
    x, y = rows
    groups = np.repeat(np.arange(24), 10)
    with sklearn.config_context(enable_metadata_routing=routing):
        model = TemperatureScaledClassifier(cv=GroupKFold(3)).fit(x, y, groups=groups)
        folds = list(GroupKFold(3).split(x, y, groups))
        assert model.calibration_.temperature == pytest.approx(
            TemperatureScaledClassifier(cv=folds).fit(x, y).calibration_.temperature
        )
        if routing:
            weights = np.linspace(0, 1, 240)
            both = TemperatureScaledClassifier(cv=GroupKFold(3)).fit(
                x, y, groups=groups, sample_weight=weights
            )
            assert both.calibration_.temperature != pytest.approx(model.calibration_.temperature)


@pytest.mark.filterwarnings("ignore:the fitted T = .* is uncertain")
def test_classes_that_a_fold_was_not_trained_on_are_left_out(rows):
    x, y = rows
    order = np.argsort(y, kind="stable")  # a class in each fold
    model = TemperatureScaledClassifier(cv=KFold(3)).fit(x[order], y[order])
    assert 0 < model.calibration_.n < 240
    few = np.concatenate([np.flatnonzero(y != "c"), np.flatnonzero(y == "c")[:3]])
    assert TemperatureScaledClassifier().fit(x[few], y[few]).calibration_.n == len(few), "with three folds"


def test_refuses(rows):
    x, y = rows
    for options, says in (
        ({"estimator": []}, "estimator has type list; allowed: a scikit-learn classifier"),
        ({"method": np.zeros((2, 2))}, r"method is array\(.*; allowed: temperature, "),
        ({"estimator": LinearSVC}, "estimator is the class LinearSVC; allowed: an instance of it"),
        ({"estimator": LinearRegression()}, "estimator is a LinearRegression; allowed: a scikit-learn class"),
        ({"cv": 0}, "cv is 0; allowed: a whole number of at least 2"),
    ):
        with pytest.raises(InputError, match=says):
            TemperatureScaledClassifier(**options).fit([[0.0], [1.0]] * 4, [0, 1] * 4)
    with pytest.raises(InputError, match="method is 'sigmoid'; allowed: temperature, "):
        TemperatureScaledClassifier(method="sigmoid").fit(x, y)
    with pytest.raises(InputError, match="SVC gives a score for each pair of classes"):
        TemperatureScaledClassifier(SVC(decision_function_shape="ovo")).fit(x, y)
    with pytest.raises(InputError, match="FrozenEstimator has neither decision_function nor predict_proba"):
        TemperatureScaledClassifier(FrozenEstimator(StandardScaler().fit(x))).fit(x, y)
    with pytest.warns(UserWarning, match="takes no sample_weight: only the calibration is weighted"):
        TemperatureScaledClassifier(_Unweighted()).fit(x, y, sample_weight=np.ones(240))


class _Unweighted(RidgeClassifier):
    def fit(self, X, y):  # noqa: N803
        return super().fit(X, y)
