"""Cells hold what they say, whatever the order, and finer cells hold it too."""

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.metrics.cells import Grid
from surefoot.predictions.outcomes import ONE
from tests.streaming.made import histogram_of

DOUBTS = st.one_of(st.integers(0, ONE), st.integers(0, 2**20), st.integers(ONE // 2 - 50, ONE // 2 + 50))


@settings(deadline=None)
@given(st.lists(DOUBTS, min_size=1, max_size=30), st.integers(2, 13), st.integers(2, 50))
def test_a_doubt_is_in_its_cell_and_in_its_part(doubts, bits, parts):
    grid = Grid.of(1, bits)
    values = np.array(doubts, dtype=float)
    first = grid.index(values)
    zoomed = grid.zoomed(np.unique(first), parts)
    again = zoomed.zoomed(np.unique(zoomed.index(values)), parts)
    for each in (grid, zoomed, again):
        cell = each.index(values)
        assert (each.starts[cell] <= values).all()
        assert (values < each.starts[cell] + each.widths[cell]).all()
    assert (again.widths[again.index(values)] <= grid.widths[first]).all()


def test_cells_are_in_order_and_leave_no_gap():
    grid = Grid.of(1, 5)
    assert grid.starts[0] == 0
    assert np.array_equal(grid.starts[1:], grid.starts[:-1] + grid.widths[:-1])
    assert grid.starts[-1] + grid.widths[-1] == ONE + 1


def test_many_blocks_get_coarser_cells():
    assert len(Grid.of(1)) > len(Grid.of(20)) > len(Grid.of(1000))
    assert 1000 * len(Grid.of(1000)) < 2**22


def arrays(histogram):
    return (histogram.count, histogram.wrong, histogram.offset, histogram.mixed)


def test_merging_is_exact_in_any_order_and_equals_counting_at_once():
    rng = np.random.default_rng(0)
    confidence = np.append(rng.uniform(0.3, 1, 300), [0.7] * 60).round(12)
    correct = rng.random(360) < confidence
    parts = [histogram_of(confidence[i::3], correct[i::3]) for i in range(3)]
    whole = histogram_of(confidence, correct)
    for a, b, c in permutations(parts):
        for merged in (a.merged(b).merged(c), a.merged(b.merged(c))):
            for ours, theirs in zip(arrays(merged), arrays(whole), strict=True):
                assert np.array_equal(ours, theirs)


def test_cells_against_a_dictionary():
    rng = np.random.default_rng(1)
    confidence = rng.choice(rng.uniform(0.2, 1, 40).round(3), 500)
    correct = rng.random(500) < 0.5
    grid = Grid.of(1, 4)
    found = histogram_of(confidence, correct, grid)
    expected = {}
    for value, right in zip(confidence, correct, strict=True):
        doubt = ONE - round(value * ONE)
        cell = np.searchsorted(grid.starts, doubt, side="right") - 1
        expected.setdefault(int(cell), []).append((doubt, right))
    assert {int(cell) for cell in np.flatnonzero(found.count[0])} == set(expected)
    for cell, held in expected.items():
        assert found.count[0, cell] == len(held)
        assert found.wrong[0, cell] == sum(not right for _, right in held)
        assert found.offset[0, cell] == sum(doubt - int(grid.starts[cell]) for doubt, _ in held)
        assert found.mixed[0, cell] == (len({doubt for doubt, _ in held}) > 1)


def test_only_cells_with_many_decisions_are_divided():
    """A hundred thousandth of all decisions is not enough."""
    alone = np.array([0.7, 0.7 + 1e-6])  # in one cell
    few = histogram_of(alone, [True, True])
    cell = few.grid.index(ONE - np.rint(alone * ONE))
    assert cell[0] == cell[1]
    assert few.refined() is not None
    many = histogram_of(np.append(alone, np.full(250_000, 0.2)), np.ones(250_002, dtype=bool))
    assert many.refined() is None
