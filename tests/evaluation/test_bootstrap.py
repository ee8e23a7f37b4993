import numpy as np
import pytest

from surefoot.evaluation import bootstrap
from surefoot.evaluation.bootstrap import Draw, resampled
from surefoot.metrics import METRICS
from surefoot.predictions.outcomes import spread_out
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


@pytest.fixture
def nothing_is_joined(monkeypatch):
    for name in ("BLOCKS", "CELLS", "FEWEST_CELLS"):
        monkeypatch.setattr(bootstrap, name, 10_000)
    monkeypatch.setattr(bootstrap, "GRID", 2048)


def drawn(predictions, resamples=RESAMPLES, seed=0):
    rng = np.random.default_rng(seed)
    return Draw.of(predictions.n, predictions.groups, resamples=resamples, rng=rng)


@pytest.mark.usefixtures("nothing_is_joined")
@pytest.mark.parametrize("case", CASES)
def test_few_rows_give_what_one_resample_after_another_gives(case):
    predictions = CASES[case]
    draw = drawn(predictions)
    (counts,) = draw.counts()
    weighted = [predictions.outcomes.reweighted(each[draw.block_of]) for each in counts]
    expected = [[m.function(each) if m.resampled else np.nan for each in weighted] for m in METRICS]
    result = resampled(predictions.outcomes, METRICS, draw)
    names = [metric.name for metric in METRICS]
    for name, ours, theirs in zip(names, result, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9, err_msg=name)
    assert np.isnan(result[names.index("e99")]).all() == (case in ("ties", "never sure"))


@pytest.mark.usefixtures("nothing_is_joined")
@pytest.mark.parametrize("name", ["nll", "brier", "label_error", "ece", "e99", "entropy", "aurc"])
@pytest.mark.parametrize("case", ["one label", "groups", "many labels"])
def test_same_as_writing_the_drawn_rows_out(case, name):
    predictions, metric = CASES[case], METRICS.named(name)
    draw = drawn(predictions)
    (counts,) = draw.counts()
    for of_resample, value in zip(counts, resampled(predictions.outcomes, [metric], draw)[0], strict=True):
        rows = np.repeat(np.arange(predictions.n), of_resample[draw.block_of].astype(int))
        assert value == pytest.approx(metric.function(predictions.take(rows)), rel=1e-9)


def test_whole_groups_are_drawn_as_many_as_there_are():
    draw = drawn(CASES["groups"], resamples=600)
    counts = np.concatenate(list(draw.counts()))
    assert counts.shape == (600, 9)
    assert (counts.sum(axis=1) == 9).all()
    assert draw.block_of.tolist() == GROUPS.tolist()
    assert (np.concatenate(list(draw.counts())) == counts).all()  # the same in every loop


@pytest.mark.parametrize("of_groups", [False, True])
def test_blocks_hold_whole_units_at_random_and_nearly_as_many_each(of_groups):
    groups = np.arange(9_000) // 3 if of_groups else None
    draw = Draw.of(9_000, groups, resamples=1, rng=np.random.default_rng(0))
    sizes = np.bincount(draw.block_of)
    assert (len(sizes), sizes.min(), sizes.max()) == (bootstrap.BLOCKS, 9, 9)
    if of_groups:
        assert all(len(set(draw.block_of[groups == group])) == 1 for group in range(0, 3_000, 100))
    assert abs(np.corrcoef(np.arange(9_000), draw.block_of)[0, 1]) < 0.05


@pytest.mark.parametrize("case", ["rows", "groups", "many labels"])
def test_blocks_and_cells_spread_as_rows_do(case, request):
    """The standard deviation over resamples, joined and each row by itself; 2% is the chance of 1,500."""
    groups = np.arange(6_000) // 2 if case == "groups" else None
    predictions = draw_one_label(6_000, 4, sharpness=3, groups=groups)
    if case == "many labels":
        predictions = draw_many_labels(3_000, classes=3, sharpness=3)
    chosen = [m for m in METRICS if m.resampled and m.name not in ("coverage_at_1",)]
    joined = resampled(predictions.outcomes, chosen, drawn(predictions, 1_500)).std(axis=1)
    request.getfixturevalue("nothing_is_joined")
    apart = resampled(predictions.outcomes, chosen, drawn(predictions, 1_500, seed=1)).std(axis=1)
    for metric, ours, theirs in zip(chosen, joined, apart, strict=True):
        assert ours == pytest.approx(theirs, rel=0.12), metric.name


def test_two_versions_are_drawn_together():
    predictions = draw_one_label(5_000, 4, sharpness=3)
    softer = predictions.with_logits(predictions.logits / 1.01)
    draw, metrics = drawn(predictions, 300), [METRICS.named("nll"), METRICS.named("ece")]
    one, other = (resampled(p.outcomes, metrics, draw) for p in (predictions, softer))
    assert ((one - other).std(axis=1) < 0.05 * one.std(axis=1)).all()


def test_cells_do_not_divide_ties_and_are_smaller_at_the_top():
    ends = np.sort(np.random.default_rng(0).choice(100_000, 30_000, replace=False))
    chosen = spread_out(ends, 512)
    assert len(chosen) <= 512
    assert chosen[-1] == len(ends) - 1
    size = np.diff(ends[chosen], prepend=0)
    assert size[:20].max() < 100 < size[-20:].min()
    assert spread_out(ends[:400], 512).tolist() == list(range(400))
