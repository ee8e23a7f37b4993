"""What must hold of every metric, whatever the predictions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot import IGNORE, Predictions, metrics
from surefoot.metrics import METRICS
from surefoot.metrics.intervals import clopper_pearson
from tests.conftest import draw_one_label


@st.composite
def predictions(draw):
    """Small predictions of either kind, full of ties and of confidences at or next to 1."""
    n, classes = draw(st.integers(1, 25)), draw(st.integers(2, 4))
    value = st.sampled_from([-800.0, -40.0, -3.0, -1.0, 0.0, 0.5, 1.0, 3.0, 40.0, 800.0])
    logits = draw(st.lists(st.lists(value, min_size=classes, max_size=classes), min_size=n, max_size=n))
    if draw(st.booleans()):
        return Predictions.from_logits(
            logits, draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n))
        )
    label = st.sampled_from([0, 1, IGNORE])
    labels = draw(st.lists(st.lists(label, min_size=classes, max_size=classes), min_size=n, max_size=n))
    return Predictions.from_logits(logits, labels)


def same(a, b, tolerance=1e-9):
    return (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, abs=tolerance)


@settings(max_examples=60)
@given(predictions(), st.randoms())
def test_values_are_in_bounds_and_do_not_depend_on_row_order(given_predictions, random):
    order = list(range(given_predictions.n))
    random.shuffle(order)
    shuffled = given_predictions.take(order)
    for metric in METRICS:
        value = metric.function(given_predictions)
        assert math.isnan(value) or metric.bounds[0] - 1e-12 <= value <= metric.bounds[1] + 1e-12, metric.name
        assert same(value, metric.function(shuffled)), metric.name


@settings(max_examples=40)
@given(predictions(), st.randoms())
def test_counting_a_row_twice_is_having_it_twice(given_predictions, random):
    counts = np.array([random.randint(0, 3) for _ in range(given_predictions.n)], dtype=float)
    counts[0] += 1
    repeated = given_predictions.take(np.repeat(np.arange(given_predictions.n), counts.astype(int)))
    for metric in METRICS:
        if metric.resampled:
            counted = metric.function(given_predictions.outcomes.reweighted(counts))
            assert same(counted, metric.function(repeated)), metric.name


def test_adding_a_constant_to_softmax_logits_changes_nothing():
    given_predictions = draw_one_label()
    moved = given_predictions.with_logits(given_predictions.logits + 17.0)
    for metric in METRICS:
        assert same(metric.function(given_predictions), metric.function(moved), 1e-8), metric.name


def test_perfect_predictions():
    perfect = Predictions.from_probs(np.eye(3), [0, 1, 2])
    for name in (
        "nll_unclipped",
        "brier",
        "brier_true_class",
        "label_error",
        "ece",
        "e99",
        "entropy",
        "aurc",
        "augrc",
    ):
        assert getattr(metrics, name)(perfect) == pytest.approx(0, abs=1e-12), name
    assert metrics.nll(perfect) == pytest.approx(-math.log(0.999))
    assert metrics.coverage_at_1(perfect) == 1
    many = Predictions.from_probs(np.eye(3), np.eye(3, dtype=int))
    assert metrics.label_error(many) == 0
    assert metrics.ece(many) == pytest.approx(0, abs=1e-12)


def test_confidence_of_exactly_one_has_no_bin_of_its_own():
    """torchmetrics once put it into a hidden one: ten sure rows, five wrong, ECE one half."""
    probs = np.tile([1.0, 0.0], (10, 1))
    sure = Predictions.from_probs(probs, [0] * 5 + [1] * 5)
    assert metrics.ece(sure) == pytest.approx(0.5)
    assert metrics.e99_count(sure).k == 5
    assert metrics.nll(sure) == pytest.approx((5 * -math.log(0.999) + 5 * -math.log(0.001)) / 10)


def test_uniform_predictions():
    uniform = Predictions.from_logits(np.zeros((8, 4)), [0, 0, 1, 1, 2, 2, 3, 3])
    assert metrics.nll(uniform) == pytest.approx(math.log(4))
    assert metrics.entropy(uniform) == pytest.approx(math.log(4))
    assert metrics.label_error(uniform) == 0.75
    assert metrics.ece(uniform) == pytest.approx(0, abs=1e-12)


def test_ties_count_with_the_mean_of_their_run():
    """Twenty rows of one confidence, half of them right: no order makes a bin of right rows only."""
    tied = Predictions.from_probs(np.tile([0.5 + 1e-9, 0.5 - 1e-9], (20, 1)), [0] * 10 + [1] * 10)
    assert metrics.ece(tied) == pytest.approx(0, abs=1e-8)
    assert metrics.aurc(tied) == pytest.approx(0.5)


def test_probabilities_that_are_equal_on_paper_tie():
    """Through a logarithm and back 0.7 comes out as two numbers; here every row has confidence 0.7."""
    rows = [
        [0.7, 0.2, 0.1],
        [0.7, 0.1, 0.2],
        [0.2, 0.7, 0.1],
        [0.1, 0.7, 0.2],
        [0.3, 0.0, 0.7],
        [0.7, 0.3, 0.0],
    ]
    predictions = Predictions.from_probs(np.repeat(rows, 10, axis=0), np.repeat([0, 1, 1, 0, 2, 1], 10))
    assert metrics.ece(predictions) == pytest.approx(0.2)
    assert metrics.aurc(predictions) == pytest.approx(0.5)
    assert metrics.error_above_count(predictions, 0.7).n == 0
    for classes in range(2, 12):
        share = np.full((1, classes), 0.01 / (classes - 1))
        share[0, 0] = 0.99
        assert metrics.e99_count(Predictions.from_probs(share, [0])).n == 0


def test_debiasing_takes_a_run_of_ties_as_one_bin():
    tied = Predictions.from_probs(np.tile([0.9, 0.1], (1000, 1)), [0] * 850 + [1] * 150)
    assert metrics.debiased_l2(tied) == pytest.approx(math.sqrt(0.05**2 - 0.85 * 0.15 / 999))


def test_e99_is_undefined_not_zero_when_nothing_is_sure():
    unsure = Predictions.from_probs([[0.6, 0.4]], [0])
    count = metrics.e99_count(unsure)
    assert count.n == 0
    assert math.isnan(count.value)
    assert math.isnan(metrics.e99(unsure))


def test_e99_is_strictly_above_and_counts_exactly():
    probs = [[0.99, 0.01], [0.9901, 0.0099], [0.995, 0.005], [0.2, 0.8]]
    count = metrics.e99_count(Predictions.from_probs(np.array(probs), [1, 1, 0, 0]))
    assert (count.k, count.n) == (1, 2)
    assert (count.low, count.high) == clopper_pearson(1, 2)


def test_ignored_labels_are_in_neither_numerator_nor_denominator():
    probs = np.array([[0.9, 0.3], [0.2, 0.6], [0.7, 0.8]])
    labels = np.array([[1, IGNORE], [0, 1], [IGNORE, 1]])
    expected = np.mean(-np.log([0.9, 0.8, 0.6, 0.8]))
    assert metrics.nll(Predictions.from_probs(probs, labels)) == pytest.approx(expected)
    changed = probs.copy()
    changed[labels == IGNORE] = 0.123
    for metric in METRICS:
        before = metric.function(Predictions.from_probs(probs, labels))
        assert same(before, metric.function(Predictions.from_probs(changed, labels))), metric.name


def test_a_class_without_positives_or_without_labels_is_left_out_of_the_mean():
    probs = np.array([[0.9, 0.3, 0.5], [0.2, 0.6, 0.5]])
    labels = np.array([[1, 0, IGNORE], [0, 0, IGNORE]])
    found = Predictions.from_probs(probs, labels)
    assert metrics.mean_average_precision(found) == 1.0
    only_first = Predictions.from_probs(probs[:, :2], labels[:, :2])
    assert metrics.ece(found) == pytest.approx(metrics.ece(only_first))


def test_brier_definitions_agree_for_two_classes_only():
    assert metrics.brier(draw_one_label(classes=2)) == pytest.approx(
        metrics.brier_true_class(draw_one_label(classes=2))
    )
    assert metrics.brier(draw_one_label(classes=5)) < metrics.brier_true_class(draw_one_label(classes=5))


def test_float32_logits_give_float64_scores():
    exact = draw_one_label(2000, 10, sharpness=3)
    single = exact.with_logits(exact.logits.astype(np.float32))
    for metric in METRICS:
        assert same(metric.function(exact), metric.function(single), 1e-5), metric.name


def test_registry_is_complete_and_documented():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert names[:7] == ["nll", "nll_unclipped", "brier", "brier_true_class", "label_error", "ece", "e99"]
    for metric in METRICS:
        assert metric.function is getattr(metrics, metric.name)
        assert metric.formula
        assert metric.reference
        assert metric.function.__doc__
    with pytest.raises(ValueError, match="unknown metric 'acc'; have: nll, "):
        metrics.METRICS.named("acc")


@pytest.mark.parametrize("classes", [3, 40])
@pytest.mark.parametrize("members", [1, 2])
def test_among_equal_logits_the_first_class_is_the_answer(classes, members):
    rng = np.random.default_rng(classes)
    logits = np.repeat(rng.integers(0, 3, (1, 500, classes)).astype(np.float32), members, axis=0)
    labels = rng.integers(0, classes, 500)
    expected = np.mean(logits[0].argmax(axis=1) != labels)
    assert metrics.label_error(Predictions.from_logits(logits, labels)) == expected


@pytest.mark.parametrize("name", ["ece", "signed_ece", "debiased_l2"])
@pytest.mark.parametrize("what", ["spread", "next to 1", "few values", "one value"])
def test_bins_are_the_same_whether_all_confidences_are_sorted_or_few(name, what):
    """Counts of one each go by the sorted curve, no counts by the one that is exact at the edges alone."""
    rng = np.random.default_rng(0)
    drawn = {
        "spread": rng.uniform(0.5, 1, 3001),
        "next to 1": 1 - 10 ** rng.uniform(-9, -2, 3001),
        "few values": rng.choice([0.6, 0.7, 0.95], 3001),
        "one value": np.full(3001, 0.8),
    }[what]
    labels = (rng.random(3001) > 0.9 * drawn).astype(int)
    outcomes = Predictions.from_probs(np.stack([drawn, 1 - drawn], axis=1), labels).outcomes
    metric = getattr(metrics, name)
    assert metric(outcomes) == pytest.approx(metric(outcomes.reweighted(np.ones(3001))), abs=1e-12)
