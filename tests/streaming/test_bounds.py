"""What is proven of binned numbers is true, also of what is made to be hard for bins."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.metrics import METRICS, ece
from surefoot.metrics import cells as cells_module
from surefoot.metrics.accumulate import Version, farthest
from surefoot.metrics.calibration import ece_of, ece_range
from surefoot.metrics.cells import Grid
from surefoot.metrics.metric import Cells
from surefoot.metrics.selective import aurc_of
from surefoot.predictions.outcomes import Curve
from tests.conftest import draw_many_labels
from tests.streaming.made import accumulated, histogram_of, outcomes_of

ROUNDING = 1e-10
BOUNDED = [metric for metric in METRICS if metric.curve is not None and metric.name != "debiased_l2"]


def check(confidence, correct, histogram):
    """Every metric lies where the cells say; the largest distance that they allow."""
    exact, view = outcomes_of(confidence, correct), Version(histogram, np.empty(0))
    worst = 0.0
    for metric in BOUNDED:
        value, (low, high) = metric.from_cells(view)
        assert low - ROUNDING <= metric.function(exact) <= high + ROUNDING, metric.name
        assert abs(value - metric.function(exact)) <= farthest(value, (low, high)) + ROUNDING, metric.name
        worst = max(worst, farthest(value, (low, high)))
    return worst


CONFIDENCES = st.one_of(
    st.floats(0.5, 1),
    st.sampled_from([0.5, 0.7, 1.0, 1 - 1e-12, 0.99]),
    st.integers(0, 40).map(lambda step: 0.7 + step * 1e-12),
    st.integers(0, 40).map(lambda step: 1 - step * 1e-9),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(CONFIDENCES, st.booleans()), min_size=1, max_size=60), st.sampled_from([1, 3, 13]))
def test_the_range_holds_in_cells_of_any_width(decisions, bits):
    confidence, correct = np.array([c for c, _ in decisions]), np.array([r for _, r in decisions])
    check(confidence, correct, histogram_of(confidence, correct, Grid.of(1, bits)))


def hard_cases(n=30_000):
    rng = np.random.default_rng(0)
    return {
        "spread": rng.uniform(0.1, 1, n),
        "confident": rng.beta(5, 0.5, n),
        "all the same": np.full(n, 0.7),
        "three values": rng.choice([0.5, 0.7, 0.9], n),
        "ever nearer to 1": 1 - 10 ** rng.uniform(-12, -2, n),
        "a band below 1": 1 - 1e-3 - 1e-8 * rng.random(n),
        "next to a half": 0.5 + 1e-9 * rng.random(n),
        "two narrow bands": np.where(
            rng.random(n) < 0.5, 0.7 + 1e-10 * rng.random(n), 0.9 + 1e-7 * rng.random(n)
        ),
        "three rows": rng.uniform(0.5, 1, 3),
        "one row": np.array([1.0]),
    }


@pytest.mark.parametrize("name", hard_cases())
def test_a_few_readings_bring_every_bound_below_one_in_ten_thousand(name):
    confidence = hard_cases()[name].round(12)
    rng = np.random.default_rng(1)
    middle = np.median(confidence)
    for correct in (rng.random(len(confidence)) < confidence, confidence > middle, confidence < middle):
        grid, readings = Grid.of(1), 0
        while grid is not None and readings < 4:
            histogram, readings = histogram_of(confidence, correct, grid), readings + 1
            worst = check(confidence, correct, histogram)
            grid = histogram.refined() if worst > 1e-4 else None
        assert worst <= 1e-4


def test_the_ece_range_is_reached_by_some_order_of_one_cell():
    """Brute force: every way to lay 6 errors among 12 distinct confidences of one cell, cut into ten bins."""
    confidence = 0.7 - np.arange(12) * 1e-12
    values = []
    for errors in combinations(range(12), 6):
        correct = np.ones(12, dtype=bool)
        correct[list(errors)] = False
        values.append(ece(outcomes_of(confidence, correct)))
    histogram = histogram_of(confidence, correct, Grid.of(1, 4))
    assert np.count_nonzero(histogram.count) == 1
    low, high = ece_range(histogram.blocks()[0], ece_of)
    assert low <= min(values) + ROUNDING
    assert max(values) - ROUNDING <= high <= 1


def test_the_ece_range_is_tight_where_one_cut_falls_in_one_cell():
    """Twenty rows, two a bin; only the two about the fifth cut share a cell, and one of them is wrong."""
    confidence = np.append(np.linspace(0.99, 0.8, 9), [0.7, 0.7 - 1e-12])
    confidence = np.append(confidence, np.linspace(0.65, 0.5, 9))
    correct = np.arange(20) % 3 > 0
    values = []
    for first in (True, False):
        correct[[9, 10]] = first, not first
        values.append(ece(outcomes_of(confidence, correct)))
    histogram = histogram_of(confidence, correct)
    assert np.count_nonzero(histogram.mixed) == 1
    low, high = ece_range(histogram.blocks()[0], ece_of)
    assert high == pytest.approx(max(values), abs=1e-5)  # but for where in its cell a confidence is
    assert low <= min(values) + ROUNDING
    assert high - low > 0.01


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 3)), min_size=2, max_size=6))
def test_variation_over_a_box(intervals):
    """The largest sum is at a corner; the least is no more than over a fine grid of points."""
    from surefoot.metrics.calibration import _largest_variation, _least_variation

    low = np.array([start for start, _ in intervals])
    high = low + np.array([width for _, width in intervals])
    corners = [np.abs(np.diff(x)).sum() for x in product(*zip(low, high, strict=True))]
    assert _largest_variation(low, high) == pytest.approx(max(corners))
    rng = np.random.default_rng(0)
    inside = np.abs(np.diff(rng.uniform(low, high, (2000, len(low))), axis=1)).sum(axis=1)
    least = _least_variation(low, high)
    assert least <= inside.min() + ROUNDING
    pulled = _pulled(low, high)
    assert least == pytest.approx(np.abs(np.diff(pulled)).sum(), abs=1e-6)


def _pulled(low, high):
    """The least total variation by linear programming."""
    from scipy.optimize import linprog

    n = len(low)
    difference = np.diff(np.eye(n), axis=0)
    steps = -np.eye(n - 1)
    above = np.block([[difference, steps], [-difference, steps]])
    cost = np.append(np.zeros(n), np.ones(n - 1))
    bounds = [*zip(low, high, strict=True), *[(0, None)] * (n - 1)]
    return linprog(cost, A_ub=above, b_ub=np.zeros(2 * (n - 1)), bounds=bounds).x[:n]


def test_billions_of_ties_and_no_table_as_long():
    """One tie of a billion decisions, a fifth wrong: the closed form, exactly."""
    n = 10.0**9
    cells = Cells(*(np.array([x]) for x in (n, n / 5, 0.0, 0.1 * 1e12, 1.0)), mixed=np.array([False]))
    curve = cells.curve
    assert aurc_of(curve) == pytest.approx(0.2, rel=1e-9)
    assert ece_of(curve) == pytest.approx(0.1, rel=1e-9)
    assert ece_range(cells, ece_of) == pytest.approx((0.1, 0.1), rel=1e-9)


def test_aurc_is_the_mean_of_the_risks():
    mass = np.array([0.0, 3.0, 50_000.0, 100_000.0])
    curve = Curve(mass, np.array([0.0, 1.0, 4000.0, 20_000.0]), mass)
    errors = np.interp(np.arange(1, 100_001), mass, curve.errors)
    assert aurc_of(curve) == pytest.approx(np.mean(errors / np.arange(1, 100_001)), rel=1e-12)


@pytest.mark.parametrize("coarse", [False, True], ids=["fine", "coarse"])
def test_every_metric_of_many_labels_is_within_the_range_of_its_cells(coarse, monkeypatch):
    if coarse:
        monkeypatch.setattr(cells_module, "UNIT", 4.0)
    predictions = draw_many_labels(300, 3, sharpness=2)
    ranked = [m for m in METRICS if m.can_be_streamed and m.of_kind(predictions.kind).numerator is None]
    (version,) = accumulated(predictions, ranked).versions
    for metric in ranked:
        of_kind = metric.of_kind(predictions.kind)
        value, ends = of_kind.from_cells(version)
        if ends is None:
            continue
        assert ends[0] - 1e-12 <= value <= ends[1] + 1e-12, metric.name
        assert ends[0] - 1e-12 <= of_kind.function(predictions) <= ends[1] + 1e-12, metric.name
        assert ends[1] - ends[0] < 0.2, metric.name
