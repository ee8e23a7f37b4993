"""The maps of the toy panels lie where the truth lies."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from surefoot import InputError, Predictions
from surefoot.evaluation.comparison import MethodRun, MethodRuns
from surefoot.metrics import nll
from surefoot.report import study_panels as toys
from surefoot.tasks.task import Split
from surefoot.tasks.toy import GRID, TOYS, load_toy
from surefoot.tasks.toy import test_grid as grid_points

TESTS = (Split.TEST_FAMILIAR, Split.TEST_UNFAMILIAR)


def log_odds(points):
    return 4 * points[:, 0] - 3 * points[:, 1] ** 2


def sides(task, seed=0):
    """Predictions that depend on the place alone, their rows in any order."""
    result = []
    for split in TESTS:
        samples = task.splits[split]
        order = np.random.default_rng(seed).permutation(len(samples.ids))
        logits = log_odds(np.asarray(samples.inputs, dtype=float))
        result.append(Predictions.from_logits(logits, samples.labels, ids=samples.ids).take(order))
    return result


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.name)
def test_maps_are_the_truth_at_every_point(toy):
    task, points = load_toy(toy.name), grid_points()
    known, red = (test(points).reshape(GRID, GRID) for test in (toy.familiar, toy.red))
    assert (toys.familiar_map(task) == known).all()
    assert (toys.truth_map(task) == red).all()
    p_red = 1 / (1 + np.exp(-log_odds(points.astype(np.float32).astype(float)).reshape(GRID, GRID)))
    expected = -np.log(np.clip(np.where(red, p_red, 1 - p_red), 0.001, 0.999))
    result = toys.nll_map(task, *sides(task))
    np.testing.assert_allclose(result, expected, atol=1e-9)
    for region, predictions in zip((known, ~known), sides(task), strict=True):
        assert result[region].mean() == pytest.approx(nll(predictions))


def test_the_outline_follows_the_familiar_region():
    lines = toys.outline(load_toy("spiral"))
    assert len(lines) == 1
    x, y = lines[0]
    np.testing.assert_allclose(np.hypot(x, y), 0.6, atol=2 / GRID)


def test_predictions_that_do_not_cover_the_grid_are_refused():
    task = load_toy("wave")
    familiar, unfamiliar = sides(task)
    twice = familiar.take([0, *range(familiar.n - 1)])
    for wrong in (familiar.take(slice(1, None)), twice, unfamiliar, replace(familiar, ids=None)):
        with pytest.raises(InputError, match="ids of the test grid"):
            toys.nll_map(task, wrong, unfamiliar)
    unknown = replace(familiar, labels=familiar.labels * 0 - 100)
    with pytest.raises(InputError, match="labels are unknown"):
        toys.nll_map(task, unknown, unfamiliar)


def test_the_picture_says_both_averages_and_is_small_and_the_same_every_time():
    task = load_toy("rings")
    both = sides(task)
    names = ("<script>", "$x", "ensemble", "distilled", "G-distilled")
    methods = [MethodRuns(name, name, (MethodRun.of_sides(0, *both),)) for name in names]
    picture = toys.toy_picture("rings", methods)
    panels = picture.figure.axes
    assert len(panels) == 6 + 1
    assert [axes.get_title() for axes in panels[:6]] == ["truth", *names]
    assert panels[1].get_xlabel() == f"F {nll(both[0]):.3f}\nU {nll(both[1]):.3f}"
    np.testing.assert_array_equal(panels[1].images[0].get_array(), toys.nll_map(task, *both))
    drawn = np.concatenate([points.get_offsets() for points in panels[0].collections])
    train = task.splits[Split.TRAIN]
    expected = np.concatenate([np.asarray(train.inputs)[train.labels == label] for label in (0, 1)])
    np.testing.assert_allclose(drawn, expected)
    svg = picture.svg()
    ET.fromstring(svg)
    assert "<script" not in svg
    assert len(svg) < 150_000
    assert svg == toys.toy_picture("rings", methods).svg()
