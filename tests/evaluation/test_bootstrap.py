import numpy as np
import pytest

from surefoot.evaluation.bootstrap import Draw, resampled
from surefoot.metrics import METRICS
from surefoot.predictions.labels import LabelKind
from tests.conftest import draw_many_labels, draw_one_label

RESAMPLES = 6
GROUPS = np.arange(120) % 9
CASES = {
    "one label": draw_one_label(120, sharpness=4),
    "two classes": draw_one_label(120, 2, sharpness=4, members=3),
    "ties": draw_one_label(120, 3, sharpness=1e-30),
    "groups": draw_one_label(120, sharpness=4, groups=GROUPS),
    "many labels": draw_many_labels(120, sharpness=4),
    "many labels, groups": draw_many_labels(120, ignored=0.6, groups=GROUPS),
    "never sure": draw_one_label(120, sharpness=0.01),
}


def drawn(predictions, seed=0):
    rng = np.random.default_rng(seed)
    return Draw.of(predictions.n, predictions.groups, resamples=RESAMPLES, rng=rng)


@pytest.mark.parametrize("case", CASES)
def test_same_as_one_resample_at_a_time(case):
    predictions = CASES[case]
    draw = drawn(predictions)
    weighted = [predictions.outcomes.reweighted(counts[draw.unit_of]) for counts in draw.counts]
    expected = [[m.function(each) if m.resampled else np.nan for each in weighted] for m in METRICS]
    result = resampled(predictions.outcomes, METRICS, draw, slow_resamples=RESAMPLES)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)
    assert np.isnan(result[[m.name for m in METRICS].index("e99")]).all() == (case in ("ties", "never sure"))


@pytest.mark.parametrize("name", ["nll", "brier", "label_error", "ece", "e99", "entropy"])
@pytest.mark.parametrize("case", ["one label", "groups", "many labels"])
def test_same_as_writing_the_drawn_rows_out(case, name):
    predictions, metric = CASES[case], METRICS.named(name)
    draw = drawn(predictions)
    result = resampled(predictions.outcomes, [metric], draw, slow_resamples=RESAMPLES)[0]
    for counts, value in zip(draw.counts, result, strict=True):
        rows = np.repeat(np.arange(predictions.n), counts[draw.unit_of].astype(int))
        assert value == pytest.approx(metric.function(predictions.take(rows)), rel=1e-9)


def test_whole_groups_are_drawn():
    draw = drawn(CASES["groups"])
    assert draw.counts.shape == (RESAMPLES, 9)
    assert (draw.counts.sum(axis=1) == 9).all()
    assert draw.unit_of.tolist() == GROUPS.tolist()


def test_metrics_that_are_not_ratios_stop_early():
    predictions = CASES["one label"]
    metrics = [METRICS.named("nll"), METRICS.named("ece"), METRICS.named("aurc")]
    draw = drawn(predictions)
    few = resampled(predictions.outcomes, metrics, draw, slow_resamples=4)
    everything = resampled(predictions.outcomes, metrics, draw, slow_resamples=RESAMPLES)
    assert np.isfinite(everything).all()
    np.testing.assert_array_equal(few[:, :4], everything[:, :4])
    assert np.isfinite(few[0]).all()
    assert np.isnan(few[1:, 4:]).all()
    assert np.isnan(resampled(predictions.outcomes, metrics, draw, slow_resamples=0)[1:]).all()


def test_which_are_ratios_of_sums():
    assert METRICS.named("label_error").is_ratio(LabelKind.ONE_LABEL)
    assert not METRICS.named("label_error").is_ratio(LabelKind.MANY_LABELS)
    assert not METRICS.named("ece").is_ratio(LabelKind.ONE_LABEL)
