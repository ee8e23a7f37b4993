"""Memory held while outcomes are computed from logits, and equal results on every processor."""

import gc

import numpy as np
import pytest
from torch import Tensor

from surefoot import IGNORE, metrics
from surefoot.predictions import logits as logits_module
from surefoot.runtime import one_thread
from tests.conftest import draw_one_label
from tests.metrics import oracles

N, CLASSES = 3000, 60


def held():
    """Bytes of all tensors that are alive."""
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if type(thing) is Tensor)
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def with_unknown_labels(predictions):
    labels = predictions.labels.clone()
    labels[::10] = IGNORE
    return type(predictions)(predictions.logits, labels, predictions.kind)


@pytest.mark.parametrize("metric", [metrics.ece, metrics.nll, metrics.brier, metrics.label_error])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("known", [lambda given: given, with_unknown_labels], ids=["all known", "some known"])
def test_a_metric_keeps_only_a_few_numbers_per_row(metric, members, known):
    predictions = known(draw_one_label(N, CLASSES, members=members))
    with one_thread():
        metric(predictions.take(slice(None)))  # the scratch space of a thread stays, and is used again
        before = held()
        metric(predictions)
    assert held() - before < 10 * 8 * N < CLASSES * 8 * N / 3


@pytest.mark.parametrize("members", [1, 3])
def test_unknown_labels_are_as_if_their_rows_were_not_there(members, monkeypatch):
    monkeypatch.setattr("surefoot.predictions.logits.NUMBERS_AT_ONCE", 5000)  # several turns
    predictions = with_unknown_labels(draw_one_label(N, CLASSES, members=members, sharpness=2))
    known = np.flatnonzero(predictions.labels >= 0)
    mine, its = predictions.outcomes, predictions.take(known).outcomes
    assert np.array_equal(mine.row, known)
    for fact in ("log_p_true", "squared_error", "confidence", "correct", "entropy"):
        assert getattr(mine, fact) == pytest.approx(getattr(its, fact), rel=1e-12)


@pytest.mark.parametrize("has_avx512", [True, False])
@pytest.mark.parametrize("classes", [2, 5, 60])
def test_both_exponentials_give_the_metrics(has_avx512, classes, monkeypatch):
    monkeypatch.setattr(logits_module, "HAS_AVX512", has_avx512)
    predictions = draw_one_label(300, classes, sharpness=2, seed=classes)
    probs, labels = (
        [oracles.softmax(row) for row in predictions.logits[0].tolist()],
        predictions.labels.tolist(),
    )
    assert metrics.nll(predictions) == pytest.approx(oracles.nll(probs, labels), abs=1e-12)
    assert metrics.brier(predictions) == pytest.approx(oracles.brier(probs, labels), abs=1e-12)
    assert metrics.entropy(predictions) == pytest.approx(oracles.entropy(probs), abs=1e-12)
