"""Each metric against an independent computation of it."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from surefoot import metrics
from surefoot.metrics.calibration import ece_of
from surefoot.predictions.outcomes import Curve
from tests.conftest import draw_many_labels, draw_one_label
from tests.metrics import oracles

CASES = [
    draw_one_label(n, classes, sharpness=sharpness, seed=seed)
    for seed, (n, classes, sharpness) in enumerate(
        [(7, 2, 1), (33, 3, 3), (101, 10, 0.5), (250, 4, 6), (40, 200, 2)]
    )
]


def rounded_to_ties(predictions):
    """The same with confidences that tie: logits in whole steps."""
    return predictions.with_logits((predictions.logits / 3).round())


@pytest.mark.parametrize("predictions", CASES + [rounded_to_ties(case) for case in CASES], ids=repr)
def test_one_label_metrics_agree_with_plain_loops(predictions):
    labels = predictions.labels.tolist()
    probs = [oracles.softmax(row) for row in predictions.logits[0].tolist()]
    top = predictions.logits[0].argmax(axis=1).tolist()
    correct = [y == k for y, k in zip(labels, top, strict=True)]
    confidence = predictions.outcomes.confidence
    assert confidence == pytest.approx([max(p) for p in probs], rel=1e-12)
    assert metrics.nll(predictions) == pytest.approx(oracles.nll(probs, labels), abs=1e-12)
    assert metrics.brier(predictions) == pytest.approx(oracles.brier(probs, labels), abs=1e-12)
    assert metrics.brier_true_class(predictions) == pytest.approx(
        oracles.brier_true_class(probs, labels), abs=1e-12
    )
    assert metrics.entropy(predictions) == pytest.approx(oracles.entropy(probs), abs=1e-12)
    assert metrics.label_error(predictions) == pytest.approx(1 - np.mean(correct), abs=1e-12)
    assert metrics.ece(predictions) == pytest.approx(oracles.ece(confidence, correct), abs=1e-12)
    assert metrics.aurc(predictions) == pytest.approx(oracles.aurc(confidence, correct), abs=1e-12)
    assert metrics.signed_ece(predictions) == pytest.approx(np.mean(confidence) - np.mean(correct), abs=1e-12)


@pytest.mark.parametrize("predictions", [CASES[0], CASES[1], CASES[2], CASES[4]], ids=repr)
def test_scikit_learn_agrees(predictions):
    """Where no p(true) is below 2e-16: there scikit-learn clips, and 'unclipped' would be another number."""
    labels, classes = predictions.labels, range(predictions.classes)
    expected = log_loss(labels, predictions.probs(), labels=list(classes))
    assert metrics.nll_unclipped(predictions) == pytest.approx(expected, rel=1e-9)


def test_scikit_learn_agrees_on_binary_brier():
    predictions = draw_one_label(500, 2)
    expected = brier_score_loss(predictions.labels, predictions.probs()[:, 1])
    assert metrics.brier(predictions) == pytest.approx(expected**0.5, rel=1e-12)


def test_augrc_is_its_closed_form():
    """AUGRC = (1 - AUROC) * acc * (1 - acc) + (1 - acc)^2 / 2 (Traub et al. 2024, eq. 5)."""
    for predictions in (draw_one_label(400, 5), rounded_to_ties(draw_one_label(400, 5))):
        outcomes = predictions.outcomes
        auroc = roc_auc_score(outcomes.correct, outcomes.confidence)
        accuracy = outcomes.correct.mean()
        expected = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
        assert metrics.augrc(predictions) == pytest.approx(expected, abs=1e-12)


def test_netcal_agrees_on_equal_mass_ece():
    """netcal in float64, n divisible by the bins, no ties: the same bins, the same number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ece = pytest.importorskip("netcal.metrics").ECE(bins=10, equal_intervals=False)
    for seed in range(5):
        predictions = draw_one_label(1000, 6, sharpness=2, seed=seed)
        probs, labels = predictions.probs(), predictions.labels
        found = ece.measure(probs, labels)
        # netcal's quantile edges may put a boundary row into the neighbouring bin
        assert metrics.ece(predictions) == pytest.approx(found, abs=2e-3)


@pytest.mark.parametrize("sharpness", [1, 1.5, 4])
def test_smooth_ece_agrees_with_direct_quadrature(sharpness):
    outcomes = draw_one_label(100, 3, sharpness=sharpness, seed=3).outcomes
    expected = oracles.smooth_ece(outcomes.confidence, outcomes.correct)
    assert metrics.smooth_ece(outcomes) == pytest.approx(expected, abs=2e-4)


def test_debiased_error_is_right_on_average_where_the_plain_one_is_not():
    """On calibrated predictions the squared debiased error averages to 0; the plug-in one does not."""
    from surefoot.metrics.calibration import binned, debiased_squared_of

    debiased, plain = [], []
    for seed in range(200):
        curve = draw_one_label(200, 4, seed=seed).outcomes.block_curves[0]
        number, confidence, accuracy = binned(curve)
        debiased.append(debiased_squared_of(curve))
        plain.append(number @ (confidence - accuracy) ** 2 / curve.total)
    error = np.std(debiased) / np.sqrt(len(debiased))
    assert abs(np.mean(debiased)) < 3 * error
    assert np.mean(plain) > 10 * error


@pytest.mark.parametrize("predictions", [CASES[2], rounded_to_ties(CASES[3])], ids=["no ties", "ties"])
def test_floor_is_the_mean_of_one_draw_after_another(predictions):
    outcomes = predictions.outcomes
    (ranking,), (curve,) = outcomes.block_rankings, outcomes.block_curves
    confidence, rng, values = outcomes.confidence[ranking.order], np.random.default_rng(0), []
    for _ in range(1000):
        summed = np.cumsum(rng.random(len(confidence)) >= confidence)[ranking.ends]
        values.append(ece_of(Curve(curve.mass, np.append(0.0, summed), curve.confidence)))
    error = np.std(values) / np.sqrt(200)  # of the mean of as many draws as the metric makes
    assert metrics.ece_floor(SimpleNamespace(outcomes=outcomes)) == pytest.approx(
        np.mean(values), abs=3 * error
    )
    high = metrics.ece_floor_95(SimpleNamespace(outcomes=outcomes))
    assert high == pytest.approx(np.percentile(values, 95), abs=6 * error)


def test_floor_is_what_calibrated_models_show():
    found = [metrics.ece(draw_one_label(500, 4, seed=seed)) for seed in range(200)]
    floors = [metrics.ece_floor(draw_one_label(500, 4, seed=seed)) for seed in range(5)]
    assert np.mean(found) == pytest.approx(np.mean(floors), rel=0.1)
    above = np.mean([value > metrics.ece_floor_95(draw_one_label(500, 4, seed=1)) for value in found])
    assert 0.01 < above < 0.12


@pytest.mark.parametrize("members", [1, 3])
def test_many_label_metrics_agree_with_plain_loops(members):
    predictions = draw_many_labels(120, 4, sharpness=2, members=members)
    probs, labels = predictions.probs(), predictions.labels
    cells = [
        (p, y, k)
        for row, true in zip(probs, labels, strict=True)
        for k, (p, y) in enumerate(zip(row, true, strict=True))
        if y >= 0
    ]
    p_true = np.array([p if y else 1 - p for p, y, _ in cells])
    assert metrics.nll(predictions) == pytest.approx(
        np.mean(-np.log(np.clip(p_true, 0.001, 0.999))), abs=1e-12
    )
    assert metrics.brier(predictions) == pytest.approx(np.sqrt(np.mean((1 - p_true) ** 2)), abs=1e-12)
    eces, precisions = [], []
    for k in range(4):
        of_class = [(p, y) for p, y, c in cells if c == k]
        confidence = [max(p, 1 - p) for p, _ in of_class]
        eces.append(oracles.ece(confidence, [(p >= 0.5) == y for p, y in of_class]))
        precisions.append(oracles.average_precision(*zip(*of_class, strict=True)))
    assert metrics.ece(predictions) == pytest.approx(np.mean(eces), abs=1e-12)
    assert metrics.label_error(predictions) == pytest.approx(1 - np.mean(precisions), abs=1e-12)
    sure = [(p, y) for p, y, _ in cells if max(p, 1 - p) > 0.99]
    count = metrics.e99_count(predictions)
    assert (count.k, count.n) == (sum((p >= 0.5) != y for p, y in sure), len(sure))


def test_selective_metrics_on_a_case_done_by_hand():
    from surefoot import Predictions

    confidence = np.array([0.95, 0.9, 0.8, 0.7, 0.6])
    right = [1, 1, 0, 1, 0]
    probs = np.stack([confidence, 1 - confidence], axis=1)
    predictions = Predictions.from_probs(probs, [0 if r else 1 for r in right])
    assert metrics.aurc(predictions) == pytest.approx((0 + 0 + 1 / 3 + 1 / 4 + 2 / 5) / 5)
    assert metrics.risk_at_80(predictions) == pytest.approx(1 / 4)
    assert metrics.risk_at_90(predictions) == pytest.approx(2 / 5)
    assert metrics.coverage_at_1(predictions) == pytest.approx(2 / 5)
    assert metrics.coverage_at_risk(predictions, 0.25) == pytest.approx(4 / 5)
    assert metrics.error_above(predictions, 0.75) == pytest.approx(1 / 3)
