import dataclasses
import math
from contextlib import nullcontext

import numpy as np
import pytest

from surefoot import IGNORE, InputError, Predictions, fit_calibration, fit_temperature
from surefoot.evaluation import groups as groups_module
from surefoot.evaluation.evaluate import evaluate, paired_differences
from surefoot.metrics import METRICS, Metric, ece, error_above_metric, nll
from surefoot.metrics.intervals import clopper_pearson
from surefoot.predictions.classes import reordered
from surefoot.progress import Progress
from tests.conftest import draw_many_labels, draw_one_label
from tests.evaluation.counts import sure

PAPER = [METRICS.named(name) for name in ("nll", "brier", "label_error", "ece", "e99")]


def test_values_are_the_metrics_and_lie_in_their_intervals():
    familiar, unfamiliar = draw_one_label(400, sharpness=3), draw_one_label(300, sharpness=6, seed=1)
    result = evaluate(familiar, unfamiliar, resamples=100)
    assert result.sides["familiar"].n == 400
    for metric in METRICS:
        for side, predictions in (("familiar", familiar), ("unfamiliar", unfamiliar)):
            score = result.sides[side].metrics[metric.name]
            assert score.value == pytest.approx(metric.function(predictions), nan_ok=True)
            if metric.resampled and not math.isnan(score.value):
                assert score.low <= score.value <= score.high, metric.name
        values = [result.sides[side].metrics[metric.name].value for side in ("unfamiliar", "familiar")]
        assert result.gap[metric.name].value == pytest.approx(values[0] - values[1])


def test_same_seed_same_numbers_other_seed_others():
    predictions = draw_one_label(100)
    first, again, other = (
        evaluate(predictions, resamples=50, metrics=PAPER, seed=seed) for seed in (1, 1, 2)
    )
    assert first.sides == again.sides
    assert first.sides["familiar"].metrics["nll"] != other.sides["familiar"].metrics["nll"]


def test_bootstrap_agrees_with_the_textbook_standard_error():
    predictions = draw_one_label(2000)
    score = evaluate(predictions, resamples=400, metrics=PAPER).sides["familiar"].metrics["nll"]
    losses = -np.clip(predictions.outcomes.log_p_true, math.log(0.001), math.log(0.999))
    error = losses.std() / math.sqrt(2000)
    assert score.high - score.low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_groups_widen_the_intervals():
    one = draw_one_label(100, sharpness=3)
    copies = np.repeat(np.arange(100), 9)
    alone = one.take(copies)
    grouped = dataclasses.replace(alone, groups=copies)
    narrow, wide = (
        evaluate(p, resamples=300, metrics=PAPER).sides["familiar"].metrics for p in (alone, grouped)
    )
    for name in ("nll", "brier", "label_error"):
        ratio = (wide[name].high - wide[name].low) / (narrow[name].high - narrow[name].low)
        assert ratio == pytest.approx(3, rel=0.25), name


def test_one_group_has_no_interval_and_two_a_wide_one():
    predictions = draw_one_label(400, sharpness=3)
    one = dataclasses.replace(predictions, groups=np.array(["a"] * 400))
    two = dataclasses.replace(predictions, groups=np.array(["a", "b"] * 200))
    alone, pair, free = (
        evaluate(p, resamples=200, metrics=PAPER).sides["familiar"] for p in (one, two, predictions)
    )
    assert math.isnan(alone.metrics["nll"].low)
    assert (alone.independent, pair.independent, free.independent) == (1, 2, 400)
    widths = [scores.metrics["nll"].high - scores.metrics["nll"].low for scores in (pair, free)]
    assert widths[0] > widths[1]


@pytest.mark.parametrize("resamples", [0, 20])
@pytest.mark.parametrize(
    ("familiar", "unfamiliar"),
    [((20, 100), (0, 150)), ((20, 100), (60, 150)), ((0, 43), (0, 200)), ((0, 100), (0, 100))],
)
def test_the_gap_of_proportions_is_unfamiliar_less_familiar_from_their_exact_intervals(
    familiar, unfamiliar, resamples
):
    """Also of equal counts, as the sides are other samples, and of no errors, which no resample changes."""
    gap = evaluate(sure(*familiar), sure(*unfamiliar), metrics=PAPER, resamples=resamples).gap["e99"]
    (low_f, high_f), (low_u, high_u) = clopper_pearson(*familiar), clopper_pearson(*unfamiliar)
    rate_f, rate_u = familiar[0] / familiar[1], unfamiliar[0] / unfamiliar[1]
    assert gap.value == pytest.approx(rate_u - rate_f)
    assert gap.low == pytest.approx(gap.value - math.hypot(rate_u - low_u, high_f - rate_f))
    assert gap.high == pytest.approx(gap.value + math.hypot(high_u - rate_u, rate_f - low_f))


def test_no_resamples_no_intervals_but_exact_ones():
    metrics = evaluate(draw_one_label(sharpness=8), resamples=0).sides["familiar"].metrics
    assert math.isnan(metrics["nll"].low)
    assert metrics["e99"].low >= 0


def test_calibration_is_compared_on_the_same_resamples():
    """A paired interval is far narrower than two apart: the label error cannot change at all."""
    familiar, unfamiliar = draw_one_label(1000, sharpness=3), draw_one_label(800, sharpness=3, seed=4)
    fitted = fit_temperature(draw_one_label(1000, sharpness=3, seed=9))
    result = evaluate(familiar, unfamiliar, calibration=fitted, resamples=200)
    assert result.sides["familiar"].metrics["nll"].value == pytest.approx(nll(fitted(familiar)))
    assert result.uncalibrated["familiar"].metrics["nll"].value == pytest.approx(nll(familiar))
    change = result.change["familiar"]
    assert change["nll"].high < 0
    assert change["label_error"] == dataclasses.replace(change["label_error"], value=0.0, low=0.0, high=0.0)
    apart = result.sides["familiar"].metrics["nll"]
    assert change["brier"].high - change["brier"].low < apart.high - apart.low


def test_two_models_on_the_same_samples():
    sure = draw_one_label(1000, sharpness=3)
    fitted = fit_temperature(draw_one_label(1000, sharpness=3, seed=9))
    result = paired_differences(fitted(sure), sure, metrics=PAPER, resamples=100)
    assert result == evaluate(sure, calibration=fitted, metrics=PAPER, resamples=100).change["familiar"]
    assert paired_differences(sure, sure, metrics=PAPER, resamples=20)["nll"].high == 0
    with pytest.raises(InputError, match="same rows in the same order"):
        paired_differences(sure, draw_one_label(1000, seed=5))


@pytest.mark.parametrize("draw", [draw_one_label, draw_many_labels])
@pytest.mark.parametrize("at_once", [16, 2**18])
def test_the_scores_of_a_group_are_those_of_its_rows_alone(monkeypatch, draw, at_once):
    names = tuple(metric.name for metric in METRICS)
    monkeypatch.setattr(groups_module, "GROUP_METRICS", names)
    monkeypatch.setattr(groups_module, "AT_ONCE", at_once)
    drawn = draw(150, sharpness=4)
    labels = drawn.labels.copy()
    labels[::7] = IGNORE
    group_of = (np.sqrt(np.arange(150)) * 1.5).astype(int)  # from 1 row to 16
    tied = dataclasses.replace(drawn, logits=drawn.logits.round(), labels=labels, groups=group_of)
    scores = groups_module.group_scores(tied, METRICS)
    parts = [tied.take(group_of == group) for group in np.unique(group_of)]
    parts = [part for part in parts if part.outcomes.total]
    assert len(scores) == len(parts) > 15
    for of_group, part in zip(scores, parts, strict=True):
        assert of_group.group == str(part.groups[0])
        assert of_group.n == len(np.unique(part.outcomes.row))
        assert len(of_group.metrics) > 12
        for name, score in of_group.metrics.items():
            metric = METRICS.named(name).of_kind(tied.kind)
            assert score.value == pytest.approx(metric.function(part), rel=1e-12, abs=1e-12, nan_ok=True), (
                name
            )
            count = metric.count(part) if metric.count and metric.numerator else None
            if count is not None:
                counted = (score.k, score.n, score.low, score.high)
                assert counted == pytest.approx((count.k, count.n, count.low, count.high), nan_ok=True)


def test_groups_have_values_and_a_worst():
    groups = np.array(["good", "bad"])[(np.arange(400) % 4 == 0).astype(int)]
    labels_wrong = draw_one_label(400, sharpness=4, groups=groups)
    labels = labels_wrong.labels.copy()
    labels[groups == "bad"] = (labels[groups == "bad"] + 1) % 4
    result = evaluate(dataclasses.replace(labels_wrong, labels=labels), resamples=10).sides["familiar"]
    assert [(group.group, group.n) for group in result.groups] == [("bad", 100), ("good", 300)]
    worst = result.worst("label_error")
    assert (worst.group, worst.n) == ("bad", 100)
    assert worst.metrics["label_error"].k / 100 == worst.metrics["label_error"].value > 0.5
    expected = ece(dataclasses.replace(labels_wrong, labels=labels).take(groups == "good"))
    assert result.groups[1].metrics["ece"].value == pytest.approx(expected)


def test_many_labels():
    result = evaluate(draw_many_labels(sharpness=3), draw_many_labels(seed=2, sharpness=5), resamples=30)
    e99 = result.sides["familiar"].metrics["e99"]
    low, high = clopper_pearson(e99.k, e99.n)
    assert e99.low <= low
    assert e99.high >= high


def test_error_above_any_threshold():
    result = evaluate(draw_one_label(sharpness=4), metrics=[error_above_metric(0.75)], resamples=10)
    score = result.sides["familiar"].metrics["error_above_0.75"]
    assert score.value == score.k / score.n
    with pytest.raises(InputError, match="confidence threshold 1; allowed: at least 0 and below 1"):
        error_above_metric(1.0)


def test_refuses_sides_that_do_not_match():
    with pytest.raises(InputError, match="classes differ: familiar 4, unfamiliar 3; must be equal"):
        evaluate(draw_one_label(classes=4), draw_one_label(classes=3))
    with pytest.raises(InputError, match="have a class 'c'; the classes of 'familiar' are a, b, and must be"):
        evaluate(
            draw_one_label(classes=2, class_names=["a", "b"]),
            draw_one_label(classes=2, class_names=["b", "c"]),
        )
    with pytest.raises(InputError, match="the unfamiliar predictions have no labels"):
        evaluate(draw_one_label(classes=2), Predictions.from_logits([[1.0, 2.0]], [IGNORE]))


def test_sides_with_their_classes_in_another_order_are_the_same():
    familiar = draw_one_label(classes=3, class_names=["a", "b", "c"])
    unfamiliar = draw_one_label(classes=3, class_names=["a", "b", "c"], sharpness=3)
    calibration = fit_calibration("vector", familiar)
    expected = evaluate(familiar, unfamiliar, calibration=calibration, resamples=10)
    other = evaluate(familiar, reordered(unfamiliar, (2, 0, 1)), calibration=calibration, resamples=10)
    assert other.gap["nll"].value == pytest.approx(expected.gap["nll"].value, abs=1e-12)
    after, before = other.sides["unfamiliar"].metrics["nll"], expected.sides["unfamiliar"].metrics["nll"]
    assert after.value == pytest.approx(before.value, abs=1e-12)


@pytest.mark.parametrize("versions", [1, 2])
def test_tick_counts_every_resample(versions):
    ticks, totals = [], []

    def bar(_, total):
        totals.append(total)
        return nullcontext(ticks.append)

    shown = Progress(bar=bar)
    calibration = fit_temperature(draw_one_label(50)) if versions == 2 else None
    sides = draw_one_label(50), draw_one_label(50)
    evaluate(*sides, calibration=calibration, resamples=7, metrics=PAPER, progress=shown)
    assert [sum(ticks)] == totals == [14 * versions]


def test_a_metric_of_what_resamples_have_not_is_refused():
    """A user's function of predictions, where it is to have an interval."""

    def margin(predictions):
        return float(np.diff(np.sort(predictions.probs())[:, -2:]).mean())

    rows = draw_one_label(classes=3)
    metric = Metric("margin", "Margin", "mean difference of the two highest", "-", function=margin)
    with pytest.raises(
        InputError, match=r"metric 'margin' reads 'probs', which resamples have not; allowed: "
    ):
        evaluate(rows, metrics=[metric])
    alone = dataclasses.replace(metric, resampled=False)
    assert evaluate(rows, metrics=[alone]).sides["familiar"].metrics["margin"].value == margin(rows)
