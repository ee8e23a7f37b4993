"""Vector, matrix, Dirichlet, Platt, beta, isotonic and histogram calibration against independent fits."""

import math
import re
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, logit
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from surefoot import InputError, fit_calibration
from surefoot.calibrators import CALIBRATORS
from surefoot.calibrators.affine import folds_of
from surefoot.calibrators.logistic import Problem
from surefoot.calibrators.one_vs_rest import log_odds_of
from surefoot.calibrators.temperature import fit_temperature
from surefoot.metrics import nll_unclipped
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.predictions import Predictions
from tests.conftest import draw_many_labels, draw_one_label

RICH = ("vector", "matrix", "dirichlet", "platt", "beta", "isotonic", "histogram")
ONE_VS_REST = ("platt", "beta", "isotonic", "histogram")


def fitted_by(name, val, **options):
    """Without its effect on the rows."""
    return CALIBRATORS.named(name).fitted(val, **options)


def skewed(n=300, classes=3, seed=0, **optional):
    """Logits that are wrong in a way that no temperature corrects."""
    drawn = draw_one_label(n, classes, sharpness=1, seed=seed, **optional)
    factors = np.linspace(0.7, 2.5, classes)
    return drawn.with_logits(drawn.logits * factors + np.linspace(0, 2, classes))


def numbers(val):
    return val.logits[0], val.labels


def objective(name, val, strength):
    """The penalised NLL as the docstrings define it, of weights and biases as one array."""
    z, labels = numbers(val)
    t, k = fit_temperature(val).temperature, val.classes
    f = log_softmax(z, axis=1) if name == "dirichlet" else z - z.mean(axis=1, keepdims=True)

    def value(flat):
        bias = flat[-k:]
        if name == "vector":
            w = flat[:k]
            scores = w * f + bias
            penalty = np.mean((w * t - np.mean(w * t)) ** 2)
        else:
            matrix = flat[:-k].reshape(k, k)
            scores = f @ matrix.T + bias
            penalty = np.mean((matrix[~np.eye(k, dtype=bool)] * t) ** 2)
        nll = -log_softmax(scores, axis=1)[np.arange(len(z)), labels].mean()
        return nll + strength * (penalty + np.mean(bias**2))

    return value


@pytest.mark.parametrize("name", ["vector", "matrix", "dirichlet"])
def test_affine_fits_are_at_the_minimum(name):
    val = skewed()
    value = objective(name, val, 0.02)
    fitted = fit_calibration(name, val, regularisation=0.02)
    ours = np.concatenate([np.ravel(fitted.weights), fitted.bias])
    theirs = minimize(value, ours + 0.1, method="BFGS", options={"gtol": 1e-9})
    assert value(ours) <= theirs.fun + 1e-9
    np.testing.assert_allclose(ours, theirs.x, atol=2e-4)
    before = fit_calibration("temperature", val).evidence
    assert fitted.evidence.nll_after < before.nll_after - 0.02
    assert fitted.evidence.nll_held_out < before.nll_held_out - 0.02


def test_vector_scaling_of_many_labels_is_at_the_minimum():
    val = draw_many_labels(sharpness=2)
    fitted = fitted_by("vector", val, regularisation=0.05)
    (z, labels), t = numbers(val), fit_temperature(val).temperature
    known = labels >= 0

    def value(flat):
        w, b = flat.reshape(2, -1)
        towards = np.where(labels == 1, 1, -1) * (w * z + b)
        penalty = np.mean((w * t - np.mean(w * t)) ** 2) + np.mean(b**2)
        return -log_expit(towards)[known].mean() + 0.05 * penalty

    ours = np.concatenate([fitted.weights[0], fitted.bias])
    theirs = minimize(value, ours + 0.1, options={"gtol": 1e-9})
    np.testing.assert_allclose(ours, theirs.x, atol=1e-4)


def test_strong_regularisation_is_one_temperature():
    val = skewed()
    expected = fit_temperature(val)(val).probs()
    found = fitted_by("vector", val, regularisation=1e9)(val).probs()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_cross_validation_chooses_what_is_best_on_rows_left_out():
    """By a plain loop over the grid and the folds; groups are not divided."""
    val = skewed(100, groups=np.repeat(np.arange(20), 5))
    fitted = fitted_by("dirichlet", val)
    folds = list(folds_of(val.n, val.groups))
    assert all(len({*val.groups[fold]} & {*val.groups[~fold]}) == 0 for fold in folds)

    def held_out(strength):
        """In units of the T of all rows."""
        t = fit_temperature(val).temperature
        total = 0.0
        for fold in folds:
            z, labels = numbers(val.take(~fold))
            f, k = log_softmax(z, axis=1) / t, val.classes

            def value(flat, f=f, labels=labels, k=k):
                matrix, bias = flat[:-k].reshape(k, k), flat[-k:]
                log_p, off = log_softmax(f @ matrix.T + bias, axis=1), 1 - np.eye(k)
                nll = -log_p[np.arange(len(f)), labels].mean()
                penalty = np.sum(off * matrix**2) / off.sum() + np.mean(bias**2)
                wrong = (np.exp(log_p) - np.eye(k)[labels]) / len(f)
                slopes = wrong.T @ f + strength * 2 * off * matrix / off.sum()
                gradient = np.append(slopes.ravel(), wrong.sum(axis=0) + strength * 2 * bias / k)
                return nll + strength * penalty, gradient

            flat = minimize(value, np.append(np.eye(k).ravel(), np.zeros(k)), jac=True).x
            z, labels = numbers(val.take(fold))
            scores = log_softmax(z, axis=1) / t @ flat[:-k].reshape(k, k).T + flat[-k:]
            total += -log_softmax(scores, axis=1)[np.arange(len(z)), labels].sum()
        return total

    grid = [1.0, 0.1, 0.01]
    assert fitted.regularisation == min(grid, key=held_out)
    assert fitted.cross_validated


def test_platt_is_scikit_learn_s():
    val = skewed(classes=2)
    (z, labels) = numbers(val)
    peer = _SigmoidCalibration().fit(z[:, 1] - z[:, 0], labels)
    fitted = fitted_by("platt", val)
    np.testing.assert_allclose(fitted(val).probs()[:, 1], peer.predict(z[:, 1] - z[:, 0]), atol=1e-5)


def test_isotonic_is_scikit_learn_s_between_the_limits():
    val = skewed(classes=2)
    z, labels = numbers(val)
    z = np.round(z[:, 1] - z[:, 0], 1)  # with ties
    tied = Predictions.from_logits(z, labels)
    peer = IsotonicRegression(out_of_bounds="clip").fit(z, labels)
    new = np.linspace(-9, 9, 500)
    found = fitted_by("isotonic", tied)(Predictions.from_logits(new, np.zeros(500, int))).probs()[:, 1]
    limited = np.clip(peer.y_thresholds_, 1 / 302, 1 - 1 / 302)
    np.testing.assert_allclose(found, np.interp(new, peer.X_thresholds_, limited), atol=1e-9)


def test_histogram_is_the_share_in_each_bin():
    val = skewed(n=295, classes=2)
    z, labels = numbers(val)
    z = z[:, 1] - z[:, 0]
    bin_of = np.searchsorted(np.sort(z)[np.ceil(np.arange(1, 10) * 29.5).astype(int)], z, side="right")
    shares = np.bincount(bin_of, labels) / np.bincount(bin_of)
    found = fitted_by("histogram", val)(val).probs()[:, 1]
    np.testing.assert_allclose(found, np.clip(shares, 1 / 297, 1 - 1 / 297)[bin_of], atol=1e-9)
    tied = Predictions.from_logits(np.repeat([1.0, -1.0], 50), np.arange(100) % 2)
    assert fitted_by("histogram", tied, bins=3)(tied).probs()[:, 1].tolist() == [0.5] * 100


def test_many_values_find_their_piece_as_few_do():
    fitted = fitted_by("isotonic", skewed(n=300, classes=3))
    values = np.random.default_rng(0).normal(0, 9, (3, 20_000))
    for row, points in zip(values, fitted.scores, strict=True):
        row[: len(points)] = points  # exactly on a point
    few = [fitted.shares(part.copy()) for part in np.array_split(values, 400, axis=1)]
    many = fitted.shares(values.copy())
    np.testing.assert_array_equal(many, np.concatenate(few, axis=1))
    torch = pytest.importorskip("torch")
    from surefoot.deploy.modules import module_of

    module = module_of(fitted, torch.float64).shares(torch.from_numpy(values))
    np.testing.assert_allclose(many, module.numpy(), rtol=1e-12)


def test_log_odds_are_those_of_the_module():
    torch = pytest.importorskip("torch")
    from surefoot.deploy.modules import log_odds

    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, (500, 4)) * 10.0 ** rng.integers(-2, 4, (500, 1))
    logits[:50, 1] = logits[:50, 0]
    logits[50:60] = 3.0
    for kind in LabelKind:
        theirs = log_odds(torch.from_numpy(logits), kind).numpy()
        np.testing.assert_allclose(log_odds_of(logits, kind), theirs, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_beta_is_the_best_with_slopes_of_zero_or_more(seed):
    """Also where a slope would be negative: seeds 1 and 3 are such."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.standard_normal(200)
    labels = (rng.random(200) < expit(0.3 * np.abs(z) * (1 if seed else z))).astype(int)
    val = Predictions.from_logits(z, labels)
    positives = labels.sum()
    targets = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (200 - positives + 2))

    def value(at):
        odds = at[0] * log_expit(z) - at[1] * log_expit(-z) + at[2]
        return -np.mean(targets * log_expit(odds) + (1 - targets) * log_expit(-odds))

    theirs = minimize(value, [1, 1, 0], bounds=[(0, None), (0, None), (None, None)], tol=1e-12)
    fitted = fitted_by("beta", val)
    ours = [fitted.slopes_above[0], fitted.slopes_below[0], fitted.intercepts[0]]
    assert min(ours[:2]) >= 0
    assert (min(ours[:2]) == 0) == bool(seed)
    assert value(ours) <= theirs.fun + 1e-9


@pytest.mark.parametrize("name", ONE_VS_REST)
def test_classes_and_labels_are_fitted_one_by_one(name):
    """Of more classes: each against the others, then divided by the sum; of many labels: each alone."""
    fit = partial(fitted_by, name)
    val = skewed(classes=3)
    p = val.probs()
    alone = [Predictions.from_probs(p[:, k], (val.labels == k).astype(int)) for k in range(3)]
    shares = np.stack([fit(each)(each).probs()[:, 1] for each in alone], axis=1)
    found = fit(val)(val).probs()
    np.testing.assert_allclose(found, shares / shares.sum(axis=1, keepdims=True), atol=1e-7)
    many = draw_many_labels(100, 3, sharpness=2)
    z, labels = numbers(many)
    for k in range(3):
        rows = labels[:, k] >= 0
        own = Predictions.from_logits(z[rows, k], labels[rows, k])
        np.testing.assert_allclose(
            fit(many)(many).probs()[rows, k], fit(own)(own).probs()[:, 1], atol=1e-7, err_msg=f"label {k}"
        )


@pytest.mark.parametrize("name", RICH)
def test_probabilities_and_logits_give_the_same(name):
    """What a softmax ignores changes nothing: a level of each row, and so logits or their log softmax."""
    val = skewed(120)
    shifted = val.with_logits(val.logits + np.linspace(-30, 30, 120)[:, None])
    ours, theirs = (fit_calibration(name, each)(each).probs() for each in (val, shifted))
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


@pytest.mark.parametrize("name", RICH)
def test_row_weights_are_copies_of_rows(name):
    val = skewed(60)
    copies = np.random.default_rng(0).integers(0, 3, 60)
    fit = CALIBRATORS.named(name).fit
    options = {"regularisation": 0.1} if name in RICH[:3] else {}
    copied = fit(val.take(np.repeat(np.arange(60), copies)), **options)
    weighted = fit(val, weights=copies, **options)
    np.testing.assert_allclose(weighted(val).probs(), copied(val).probs(), atol=1e-5)


@pytest.mark.parametrize("many", [False, True], ids=["one label", "many labels"])
def test_a_weighted_temperature_is_that_of_copies(many):
    val = draw_many_labels(80, sharpness=3) if many else skewed(80)
    copies = np.random.default_rng(0).integers(0, 4, 80)
    expected = fit_temperature(val.take(np.repeat(np.arange(80), copies)))
    found = fit_temperature(val, weights=copies)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-6)
    assert found.n == (copies > 0).sum()
    halved = fit_temperature(val, weights=copies / 2)  # only their ratios count
    assert (halved.temperature, halved.low) == pytest.approx((found.temperature, found.low))
    alone = fit_temperature(val, weights=np.arange(80) < 40)
    assert alone.temperature == pytest.approx(fit_temperature(val.take(np.arange(40))).temperature)


def test_weights_from_a_column_count_in_the_fit_and_on_rows_left_out():
    drawn = skewed(200)
    counts = np.where(drawn.labels == 0, 5.0, 1.0)
    val = Predictions.from_logits(
        drawn.logits[0], drawn.labels, attributes={"w": counts, "name": ["x"] * 200}
    )
    for name in ("temperature", "vector", "isotonic"):
        fitted = fit_calibration(name, val, weights="w")
        assert fitted == fit_calibration(name, val, weights=counts)
        plain = fit_calibration(name, val)
        assert fitted.evidence.nll_after > plain.evidence.nll_after  # of rows that count once
        assert fitted.evidence.nll_held_out != plain.evidence.nll_held_out
        assert "the rows were weighted in the fit" in " ".join(fitted.notes())
    with pytest.raises(InputError, match="unknown column 'v'; have: w, name"):
        fit_calibration("temperature", val, weights="v")
    with pytest.raises(InputError, match="column 'name' of weights has type string; allowed: numbers"):
        fit_calibration("temperature", val, weights="name")
    with pytest.raises(
        InputError, match="unknown option of method budget: 'weights'; have: budget, reference"
    ):
        fit_calibration("budget", val, weights="w")


@pytest.mark.parametrize("name", RICH)
@pytest.mark.parametrize("case", ["all correct", "equal logits", "one class", "one row", "huge", "tiny"])
def test_whatever_the_rows_are_probabilities_stay_probabilities(name, case):
    z, labels = numbers(skewed(40))
    z, labels = {
        "all correct": (5 * np.eye(3)[labels], labels),
        "equal logits": (np.zeros((40, 3)), labels),
        "one class": (z, np.zeros(40, int)),
        "one row": (z[:1], labels[:1]),
        "huge": (1e20 * z, labels),
        "tiny": (1e-20 * z, labels),
    }[case]
    val = Predictions.from_logits(z, labels)
    fitted = fit_calibration(name, val)
    after = fitted(val)
    assert np.isfinite(after.logits).all()
    assert nll_unclipped(after) < 1e3
    assert fitted.lines()


def test_settings_are_refused_in_a_sentence():
    val = skewed()
    for options, says in (
        ({"regularisation": -1.0}, "regularisation is -1.0; allowed: a number from 0"),
        ({"regularisation": "much"}, "regularisation is 'much'; allowed"),
    ):
        with pytest.raises(InputError, match=says):
            fit_calibration("vector", val, **options)
    with pytest.raises(InputError, match="bins is 0; allowed: a whole number of at least 1"):
        fit_calibration("histogram", val, bins=0)
    with pytest.raises(InputError, match="weights have shape"):
        fitted_by("platt", val, weights=np.ones(3))


@pytest.mark.parametrize("method", [each.name for each in CALIBRATORS if "weights" in each.option_names])
def test_weights_of_any_allowed_size_give_finite_probabilities(method):
    val = draw_one_label(60, classes=3)
    for weights in ([1e-100] * 60, [1e100] * 60, [1e-100, 1e100] * 30):
        fitted = fit_calibration(method, val, weights=weights)
        assert np.isfinite(fitted(val).probs()).all()


def test_remarks_name_what_is_wrong_with_the_logits():
    rng = np.random.default_rng(0)
    z, labels = numbers(skewed())
    p = np.exp(log_softmax(z, axis=1))
    cases = {
        "look like probabilities": p,
        "look like standardised logits": (z - z.mean(axis=0)) / z.std(axis=0),
        "look clipped": np.clip(z, -2, 2),
        "logits are exactly -690.776: they look clipped": np.log(np.maximum(np.where(p < 0.1, 0, p), 1e-300)),
    }
    for says, values in cases.items():
        (found,) = fit_calibration("temperature", Predictions.from_logits(values, labels)).evidence.remarks[
            :1
        ]
        assert says in found, (says, found)
    assert "every log odds is between 0 and 1" in str(
        fit_calibration("temperature", Predictions.from_logits(p[:, 0], labels == 0)).evidence.remarks
    )
    many = draw_many_labels()
    given = many.with_logits(expit(many.logits))
    assert "look like probabilities" in fit_calibration("temperature", given).evidence.remarks[0]
    for fine in (
        skewed(),
        many,
        Predictions.from_probs(p, labels),
        Predictions.from_logits(logit(p[:, 0]), labels == 0),
    ):
        assert fit_calibration("temperature", fine).evidence.remarks == ()
    few_trees = np.round(5 * p) / 5  # few different numbers, many of them 0
    few_trees = Predictions.from_probs(few_trees / few_trees.sum(axis=1, keepdims=True), labels)
    says = (
        r"probabilities are exactly 0, as trees .*, \d+ true labels among them; the fit reads them as 0\.\d+"
    )
    assert re.search(says, str(fit_calibration("temperature", few_trees).notes()))
    assert re.search(says, str(fit_calibration("isotonic", few_trees).notes()))
    noise = Predictions.from_logits(0.01 * rng.standard_normal((60, 8)), rng.integers(8, size=60))
    assert "on rows left out of the fit, calibration raises the " in str(
        fit_calibration("isotonic", noise).notes()
    )


OF_THREE_MEMBERS = [
    [[1.6698, -0.3607, 0.9643], [-0.6005, -1.6887, 2.0723]],
    [[-0.3012, -0.1275, -0.8132], [0.1693, 0.6780, -3.5784]],
    [[-2.6816, -2.8465, -1.7664], [1.2059, -2.0377, -0.7123]],
]
OF_THREE_ROWS = [
    [0.8909066872967295, 0.2426199900262871, 0.061885217391719836],
    [-1.30139155705941, -1.036272682176116, 0.5977037317157708],
    [0.7110751281929852, -0.3199824550956248, 0.13749590402261072],
]


@pytest.mark.parametrize(("logits", "labels"), [(OF_THREE_MEMBERS, [0, 2]), (OF_THREE_ROWS, [0, 2, 0])])
def test_a_fit_without_a_minimum_takes_no_step_that_overflows(logits, labels):
    """Rows that can be separated perfectly: the curvature falls to 0. Found by the fuzzer."""
    given = Predictions.from_logits(logits, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = fit_calibration("vector", given)
    assert all(math.isfinite(number) for numbers in fitted.parameters().values() for number in numbers)


@pytest.mark.parametrize("name", ["vector", "matrix", "dirichlet"])
def test_labels_that_are_predicted_perfectly_end_the_fit_at_once(name, monkeypatch):
    labels = np.arange(300) % 30
    logits = np.random.default_rng(0).normal(size=(300, 30)) + 9 * np.eye(30)[labels]
    evaluated, losses = [], Problem.losses
    monkeypatch.setattr(Problem, "losses", lambda *given: evaluated.append(given) or losses(*given))
    fitted = CALIBRATORS.named(name).fit(Predictions.from_logits(logits, labels))
    # At most once for each fold and strength, and for its rows left out; and a few of all rows.
    assert len(evaluated) <= 11 * 5 * 2 + 5
    assert "no fit is the best" in fitted.remarks()[0]
    logits[0] = 0  # the label has the highest logit, but not alone
    tied = CALIBRATORS.named(name).fit(Predictions.from_logits(logits, labels))
    assert np.isfinite(np.ravel(tied.weights)).all()


@pytest.mark.parametrize("name", ["platt", "beta"])
@pytest.mark.parametrize("slopes", [(1e307, 1e307), (1e307, 1e306), (-1e307, 1e307)])
def test_slopes_that_overflow_are_refused_without_a_warning(name, slopes):
    val = draw_one_label(50, 2, sharpness=20.0)
    fitted = replace(fit_calibration(name, val), slopes_above=slopes[:1], slopes_below=slopes[1:])
    with pytest.raises(InputError, match="logits hold infinity in row 1"):
        fitted(val)  # a warning is an error in every test
