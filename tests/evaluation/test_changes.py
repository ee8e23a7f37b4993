"""Before and after: the same samples are resampled together, others each by themselves."""

from dataclasses import replace

import numpy as np
import pytest

from surefoot import InputError, Predictions
from surefoot.evaluation.evaluate import paired_differences
from surefoot.lab.comparison.comparison import MethodRun, MethodRuns
from surefoot.lab.experiments.changes import changes
from surefoot.metrics import METRICS
from tests.conftest import draw_one_label
from tests.evaluation.counts import upper

METRICS = [METRICS.named(name) for name in ("nll", "label_error", "ece", "e99")]


def method(*outputs):
    return MethodRuns("m", "M", tuple(MethodRun.of_sides(run, *each) for run, each in enumerate(outputs)))


def by_place(result):
    return {(change.side, change.metric.name): change for change in result}


OLD, NEW = draw_one_label(sharpness=3.0), draw_one_label(sharpness=1.0)  # the same labels
OTHER = draw_one_label(250, seed=7)


def test_paired_differences_are_those_of_the_library():
    result = by_place(changes(method((OLD,)), method((NEW,)), METRICS, resamples=400))
    expected = paired_differences(NEW, OLD, metrics=METRICS, resamples=400)
    for metric in METRICS[:3]:
        change = result["familiar", metric.name]
        assert change.paired
        assert (change.before, change.after) == (metric.function(OLD), metric.function(NEW))
        assert change.difference.value == pytest.approx(expected[metric.name].value, abs=1e-12)
        width = expected[metric.name].high - expected[metric.name].low
        assert change.difference.low == pytest.approx(expected[metric.name].low, abs=0.2 * width)
        assert change.difference.high == pytest.approx(expected[metric.name].high, abs=0.2 * width)
    assert result["familiar", "nll"].clear


def test_other_samples_are_unpaired_and_their_interval_is_that_of_two_means():
    result = by_place(changes(method((OLD,)), method((OTHER,)), METRICS, resamples=2000))
    change = result["familiar", "label_error"]
    assert not change.paired
    p, q = (METRICS[1].function(each) for each in (OLD, OTHER))
    error = np.sqrt(p * (1 - p) / OLD.n + q * (1 - q) / OTHER.n)
    assert change.difference.value == pytest.approx(q - p)
    assert change.difference.high - change.difference.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_the_same_count_of_no_errors_among_other_samples_is_no_certainty():
    answers = np.tile([0.999, 0.001], (80, 1))
    old, new = (
        Predictions.from_probs(answers, [0] * 80, ids=[f"{name}{row}" for row in range(80)]) for name in "ab"
    )
    (apart,) = changes(method((old,)), method((new,)), METRICS[3:], resamples=20)
    assert (apart.paired, apart.difference.value) == (False, 0)
    assert (apart.difference.low, apart.difference.high) == pytest.approx((-upper(80), upper(80)))
    (same,) = changes(method((old,)), method((old,)), METRICS[3:], resamples=20)
    assert (same.paired, same.difference.low, same.difference.high) == (True, 0, 0)


def test_the_same_labels_under_other_names_are_other_samples():
    names = [f"a{row}" for row in range(OLD.n)]
    old, new = (draw_one_label(sharpness=s, ids=names) for s in (3.0, 1.0))
    assert all(change.paired for change in changes(method((old,)), method((new,)), METRICS, resamples=10))
    renamed = replace(new, ids=np.array([f"b{row}" for row in range(OLD.n)]))
    assert not any(c.paired for c in changes(method((old,)), method((renamed,)), METRICS, resamples=10))


def test_each_side_is_judged_by_itself():
    result = by_place(changes(method((OLD, OLD)), method((NEW, OTHER)), METRICS, resamples=10))
    assert result["familiar", "nll"].paired
    assert not result["unfamiliar", "nll"].paired
    only = changes(method((OLD, OLD)), method((NEW,)), METRICS, resamples=10)
    assert {change.side for change in only} == {"familiar"}


def test_means_are_over_the_runs_that_both_have():
    third = draw_one_label(sharpness=2.0)
    old, new = method((OLD,), (NEW,), (third,)), method((NEW,), (third,))
    nll = METRICS[0].function
    change = changes(old, new, METRICS[:1], resamples=10)[0]
    assert (change.before, change.after) == (
        pytest.approx((nll(OLD) + nll(NEW)) / 2),
        pytest.approx((nll(NEW) + nll(third)) / 2),
    )
    assert change.runs == 2
    assert change.difference.value == pytest.approx(change.after - change.before)


THIRD = draw_one_label(sharpness=2.0)
STRANGERS = [draw_one_label(250, seed=7, sharpness=sharpness) for sharpness in (1.0, 3.0, 0.5)]


def numbered(**outputs):
    """A method whose runs have these numbers: `r2=...` is run 2."""
    return MethodRuns(
        "m", "M", tuple(MethodRun.of_sides(int(run[1:]), each) for run, each in outputs.items())
    )


@pytest.mark.parametrize(("new", "paired"), [([NEW, THIRD, OLD], True), (STRANGERS, False)])
def test_runs_that_only_the_after_has_are_left_out(new, paired):
    old = numbered(r0=OLD, r2=THIRD)
    nll = METRICS[0].function
    change = changes(old, numbered(r0=new[0], r1=new[1], r2=new[2]), METRICS[:1], resamples=50)[0]
    assert change.paired is paired
    assert change.before == pytest.approx((nll(OLD) + nll(THIRD)) / 2)
    assert change.after == pytest.approx((nll(new[0]) + nll(new[2])) / 2)
    assert (change.runs, change.difference.pairs, change.difference.resampled) == (2, 2, 2)
    assert change.difference.value == pytest.approx(change.after - change.before)
    alone = changes(old, numbered(r0=new[0], r2=new[2]), METRICS[:1], resamples=50)[0]
    assert change.difference == alone.difference, "as if it had never been run"


@pytest.mark.parametrize("new", [[NEW, THIRD, OLD], STRANGERS])
def test_one_run_stands_against_every_run_of_the_other(new):
    nll = METRICS[0].function
    one, several = method((OLD,)), method(*((each,) for each in new))
    values = nll(OLD), np.mean([nll(each) for each in new])
    for before, after, expected in ((one, several, values), (several, one, values[::-1])):
        (change,) = changes(before, after, METRICS[:1], resamples=50)
        assert (change.before, change.after) == pytest.approx(expected)
        assert (change.runs, change.difference.pairs) == (3, 3)
        assert change.difference.value == pytest.approx(change.after - change.before)


def test_a_single_group_on_either_side_leaves_no_interval():
    grouped = replace(OTHER, groups=np.array(["same"] * OTHER.n))
    for pair in ((OLD, grouped), (grouped, OLD)):
        (change,) = changes(*(method((each,)) for each in pair), METRICS[:1], resamples=20)
        assert not change.paired
        assert np.isnan(change.difference.low)


def test_runs_of_no_common_number_have_no_changes():
    old, new = numbered(r0=OLD, r1=NEW), numbered(r2=OLD, r3=NEW)
    assert changes(old, new, METRICS, resamples=10) == ()


def test_runs_after_of_other_samples_than_each_other_are_refused():
    old, new = method((OLD,), (OLD,)), method((NEW,), (OTHER,))
    for pair in ((old, new), (new, old)):
        with pytest.raises(InputError, match="has other familiar rows or labels than run 0"):
            changes(*pair, METRICS[:1], resamples=10)


def test_nothing_is_clear_without_resamples_or_between_equals():
    for pair in ((OLD, NEW), (OLD, OTHER)):
        result = changes(*(method((each,)) for each in pair), METRICS, resamples=0)
        assert not any(change.clear for change in result)
        assert all(np.isnan(change.difference.low) for change in result)
        assert result[0].difference.value == pytest.approx(result[0].after - result[0].before)
    same = changes(method((OLD,)), method((OLD,)), METRICS, resamples=20)
    assert {(c.difference.value, c.clear) for c in same} == {(0.0, False)}


def test_a_method_without_runs_has_no_changes():
    assert changes(method(), method((OLD,)), METRICS, resamples=10) == ()
