"""Streamed scores are those in memory: the in-memory metrics are the oracle here, with oracles of their own."""

from dataclasses import replace

import numpy as np
import pytest

from surefoot import IGNORE, InputError, Predictions, evaluate, fit_member_temperatures, fit_temperature
from surefoot.calibrators.streamed import Rescaling
from surefoot.evaluation.evaluate import evaluation_of
from surefoot.evaluation.streamed import scored_accumulators
from surefoot.metrics import METRICS, error_above_metric
from tests.conftest import draw_many_labels, draw_one_label
from tests.streaming.made import accumulated

CHOSEN = (*METRICS, error_above_metric(0.8))
FLOORS = ("ece_floor", "ece_floor_95")  # drawn at random, apart
SETS = {
    "one label": draw_one_label(3000, sharpness=2),
    "float32": draw_one_label(3000, 7, sharpness=3, dtype=np.float32),
    "members": draw_one_label(2000, 3, sharpness=2, members=3),
    "binary": draw_one_label(2000, 2, sharpness=9),
    "unknown labels": Predictions.from_logits(
        np.random.default_rng(0).normal(size=(500, 3)), np.random.default_rng(1).choice([IGNORE, 0, 1, 2], 500)
    ),
    "ties": Predictions.from_probs([[0.7, 0.3]] * 30 + [[0.5, 0.5]] * 10, [0, 1] * 20),
    "certain": Predictions.from_probs([[1.0, 0.0]] * 12, [0, 0, 1] * 4),
    "few": draw_one_label(3),
    "many labels": draw_many_labels(1500, sharpness=2),
    "many labels, members": draw_many_labels(700, 3, members=2, ignored=0.5),
    "a class never present": Predictions.from_logits(np.eye(4)[[0, 1, 2, 3] * 9] * 3, np.eye(4, dtype=int)[[0, 1, 2, 2] * 9]),
}  # fmt: skip


def finished(found, resamples=0, metrics=CHOSEN, **sides):
    accumulators = {"familiar": found, **sides}
    sides = scored_accumulators(accumulators, metrics, resamples=resamples, seed=0, tick=lambda _: None)
    return evaluation_of(sides, metrics, resamples)


def assert_alike(ours, theirs, *, rounding=1e-12):
    for metric in CHOSEN:
        mine, its = ours.metrics[metric.name], theirs.metrics[metric.name]
        if metric.name in FLOORS:
            assert mine.value == pytest.approx(its.value, rel=0.25, abs=1e-9), metric.name
        elif metric.name == "debiased_l2":
            assert mine.value == pytest.approx(its.value, abs=2e-3, nan_ok=True)
        else:
            off = rounding + (mine.bound or 0.0)
            assert mine.value == pytest.approx(its.value, rel=0, abs=off, nan_ok=True), metric.name
            assert mine.bound is None or mine.bound <= 1e-3
        if mine.k is not None:
            assert (mine.k, mine.n) == (its.k, its.n), metric.name
            assert (mine.low, mine.high) == pytest.approx((its.low, its.high), nan_ok=True, abs=0.02)
    assert (ours.n, ours.members, ours.classes, ours.kind) == (
        theirs.n,
        theirs.members,
        theirs.classes,
        theirs.kind,
    )


@pytest.mark.parametrize("name", SETS)
def test_every_metric_is_that_of_the_rows_in_memory(name):
    whole = evaluate(SETS[name], metrics=CHOSEN, resamples=0).sides["familiar"]
    for parts in (1, 3):
        assert_alike(finished(accumulated(SETS[name], CHOSEN, parts=parts)).sides["familiar"], whole)


@pytest.mark.parametrize("name", ["one label", "many labels"])
def test_parts_merge_exactly_where_numbers_are_whole_and_to_1e_12_elsewhere(name):
    once, apart = (accumulated(SETS[name], CHOSEN, parts=parts) for parts in (1, 11))
    (ours,), (theirs,) = once.versions, apart.versions
    for numbers in ("count", "wrong", "offset", "mixed"):
        assert np.array_equal(getattr(ours.histogram, numbers), getattr(theirs.histogram, numbers))
    if name == "many labels":
        assert np.array_equal(ours.odds.count, theirs.odds.count)
        assert np.array_equal(ours.odds.present, theirs.odds.present)
    assert apart.totals == pytest.approx(once.totals, rel=1e-12)
    assert apart.rows == once.rows


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        ("one label", fit_temperature),
        ("float32", fit_temperature),
        ("members", fit_member_temperatures),
        ("many labels", fit_temperature),
    ],
)
def test_calibrated_and_as_given_from_one_reading(name, fit):
    fitted = fit(SETS[name])
    scaling = Rescaling.of(fitted, SETS[name])
    whole = evaluate(SETS[name], calibration=fitted, metrics=CHOSEN, resamples=0)
    found = finished(accumulated(SETS[name], CHOSEN, (scaling, None), parts=2))
    assert_alike(found.sides["familiar"], whole.sides["familiar"])
    assert_alike(found.uncalibrated["familiar"], whole.uncalibrated["familiar"])
    for metric in CHOSEN[:4]:
        ours, theirs = found.change["familiar"][metric.name], whole.change["familiar"][metric.name]
        assert ours.value == pytest.approx(theirs.value, abs=1e-12)


MEANS = [
    metric for metric in CHOSEN if metric.name in ("nll", "brier", "entropy", "nll_minus_entropy", "e99")
]
RANKED = [
    metric
    for metric in CHOSEN
    if metric.name in ("ece", "aurc", "augrc", "smooth_ece", "signed_ece", "risk_at_80")
]


@pytest.mark.parametrize(
    ("predictions", "other", "metrics"),
    [
        (draw_one_label(2000, sharpness=2), draw_one_label(1500, sharpness=4, seed=5), MEANS + RANKED),
        (draw_many_labels(800, 3, sharpness=4), draw_many_labels(700, 3, sharpness=3, seed=5), MEANS),
    ],
    ids=["one label", "many labels"],
)
def test_intervals_are_those_of_the_bootstrap(predictions, other, metrics):
    """Normal and binned intervals against the bootstrap over rows: as wide, within what 300 resamples tell."""
    whole = evaluate(predictions, other, metrics=metrics, resamples=300)
    found = finished(accumulated(predictions, metrics), 300, metrics, unfamiliar=accumulated(other, metrics))
    pairs = [(found.sides["familiar"].metrics, whole.sides["familiar"].metrics), (found.gap, whole.gap)]
    for ours, theirs in pairs:
        for name, mine in ours.items():
            assert mine.low < mine.value < mine.high
            assert mine.high - mine.low == pytest.approx(theirs[name].high - theirs[name].low, rel=0.3), name


def test_rankings_of_many_labels_have_no_interval():
    scores = finished(accumulated(SETS["many labels"], CHOSEN), 50).sides["familiar"].metrics
    assert all(np.isnan(scores[name].low) for name in ("ece", "aurc", "label_error", "risk_at_80"))


def test_a_paired_change_has_the_paired_interval():
    predictions = SETS["one label"]
    fitted = fit_temperature(predictions)
    whole = evaluate(predictions, calibration=fitted, metrics=MEANS, resamples=300).change["familiar"]
    versions = (Rescaling.of(fitted, predictions), None)
    found = finished(accumulated(predictions, CHOSEN, versions)).change["familiar"]
    for name in whole:
        width = whole[name].high - whole[name].low
        assert found[name].high - found[name].low == pytest.approx(width, rel=0.3), name
    assert np.isnan(found["ece"].low)


@pytest.mark.parametrize("wrong", [0, 40])
def test_a_change_from_none_or_all_wrong_is_that_of_the_rows_in_memory(wrong):
    """Of the first 40 rows, which are sure as given; sharpened, 20 more are, and they are right."""
    margins = np.repeat([[5.0], [3.0], [1.0]], [40, 20, 40], axis=0)
    logits = np.hstack([margins, np.zeros((100, 1))])
    predictions = Predictions.from_logits(logits, [1] * wrong + [0] * (100 - wrong))
    metrics = [metric for metric in METRICS if metric.name == "e99"]
    sharpened = replace(fit_temperature(predictions), temperature=0.5)
    whole = evaluate(predictions, calibration=sharpened, metrics=metrics, resamples=50)
    found = finished(
        accumulated(predictions, metrics, (Rescaling.of(sharpened, predictions), None)), metrics=metrics
    )
    scores = (found.sides["familiar"].metrics["e99"], found.uncalibrated["familiar"].metrics["e99"])
    assert [(score.k, score.n) for score in scores] == [(wrong, 60), (wrong, 40)]
    ours, theirs = found.change["familiar"]["e99"], whole.change["familiar"]["e99"]
    assert ours.low < ours.value < ours.high
    assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high))


def test_no_labels_at_all_is_refused():
    unlabelled = Predictions.from_logits(np.eye(3), None, kind="one_label")
    with pytest.raises(InputError, match="the familiar predictions have no labels"):
        finished(accumulated(unlabelled, CHOSEN))


@pytest.mark.parametrize("members", [2, 3, 4, 5])
def test_members_that_are_sure_of_opposites_are_counted_as_in_memory(members):
    """Log odds of the mean are then close to 0, and which side of it they are on is the decision."""
    rng = np.random.default_rng(members)
    said = Predictions.from_logits(
        45 * rng.standard_normal((members, 2000, 3)), rng.integers(0, 2, size=(2000, 3))
    )
    found = accumulated(said, parts=3).versions[0].histogram
    wrong = int((~said.outcomes.correct).sum())
    last_bits = 2 if members == 4 else 0  # decide it where two are against two
    assert int(found.wrong.sum()) == pytest.approx(wrong, abs=last_bits)


def test_log_odds_of_two_sure_members_keep_their_sign():
    said = Predictions.from_logits([[[42.75, -50.0]], [[-63.82, -50.0]]], [[0, 0]])
    assert accumulated(said).versions[0].histogram.wrong.sum() == 0
