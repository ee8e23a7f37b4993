"""Memory held while outcomes are computed from logits, and equal results on every processor."""

import tracemalloc

import numpy as np
import pytest

from surefoot import IGNORE, Predictions, metrics
from surefoot.runtime import one_thread
from tests.conftest import draw_one_label
from tests.metrics import oracles

N, CLASSES = 3000, 110


def with_unknown_labels(predictions):
    labels = predictions.labels.copy()
    labels[::10] = IGNORE
    return type(predictions)(predictions.logits, labels, predictions.kind)


@pytest.mark.parametrize("metric", [metrics.ece, metrics.nll, metrics.brier, metrics.label_error])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("known", [lambda given: given, with_unknown_labels], ids=["all known", "some known"])
def test_a_metric_keeps_only_a_few_numbers_per_row(metric, members, known):
    predictions = known(draw_one_label(N, CLASSES, members=members))
    with one_thread():
        tracemalloc.start()
        metric(predictions)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 20 * 8 * N < CLASSES * 8 * N / 3


@pytest.mark.parametrize("members", [1, 3])
def test_unknown_labels_are_as_if_their_rows_were_not_there(members, monkeypatch):
    monkeypatch.setattr("surefoot.predictions.logits.NUMBERS_AT_ONCE", 5000)  # several turns
    predictions = with_unknown_labels(draw_one_label(N, CLASSES, members=members, sharpness=2))
    known = np.flatnonzero(predictions.labels >= 0)
    mine, its = predictions.outcomes, predictions.take(known).outcomes
    assert np.array_equal(mine.row, known)
    for fact in ("log_p_true", "squared_error", "confidence", "correct", "entropy"):
        assert getattr(mine, fact) == pytest.approx(getattr(its, fact), rel=1e-12)


@pytest.mark.parametrize("classes", [2, 5, 60, 120])
def test_any_number_of_classes_gives_the_metrics(classes):
    predictions = draw_one_label(300, classes, sharpness=2, seed=classes)
    probs, labels = (
        [oracles.softmax(row) for row in predictions.logits[0].tolist()],
        predictions.labels.tolist(),
    )
    assert metrics.nll(predictions) == pytest.approx(oracles.nll(probs, labels), abs=1e-12)
    assert metrics.brier(predictions) == pytest.approx(oracles.brier(probs, labels), abs=1e-12)
    assert metrics.entropy(predictions) == pytest.approx(oracles.entropy(probs), abs=1e-12)


@pytest.mark.parametrize("size", [0.1, 60.0, 1e30])
def test_float32_logits_have_the_facts_of_the_same_numbers_in_float64(size):
    logits = (size * np.random.default_rng(0).standard_normal((500, 120))).astype(np.float32)
    labels = np.arange(500) % 120
    narrow, wide = (Predictions.from_logits(each, labels) for each in (logits, logits.astype(np.float64)))
    for fact in ("log_p_true", "confidence", "squared_error", "entropy", "correct"):
        assert np.array_equal(getattr(narrow.outcomes, fact), getattr(wide.outcomes, fact))


def test_rows_of_float32_logits_tie_whatever_the_order_of_their_classes():
    row = np.random.default_rng(0).standard_normal(120).astype(np.float32)
    rows = np.stack([np.random.default_rng(seed).permutation(row) for seed in range(50)])
    assert len(np.unique(Predictions.from_logits(rows, np.zeros(50, dtype=int)).outcomes.confidence)) == 1
