import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from surefoot.lab.comparison.comparison import (
    Mark,
    MethodRuns,
    RunScore,
    best_of,
    marked,
    over_networks,
    summary,
    t_test,
)

samples = st.lists(st.floats(0, 1).map(lambda v: round(v, 3)), min_size=2, max_size=12)


def column(better="lower", oracles=(), variance_from=None, **values):
    """Marks of methods by name, from their runs' values."""
    cells = {name: summary([RunScore(i, v) for i, v in enumerate(runs)]) for name, runs in values.items()}
    variance_from = variance_from or {}
    about = {n: MethodRuns(n, n, oracle=n in oracles, variance_from=variance_from.get(n)) for n in cells}
    return marked(cells, about, better)


def marks(*args, **values):
    return {name: cell.mark for name, cell in column(*args, **values).items()}


@given(samples, samples)
def test_t_test_is_scipys(first, second):
    one, other = summary([RunScore(0, v) for v in first]), summary([RunScore(0, v) for v in second])
    if min(one.deviation, other.deviation) < 1e-9 or math.isclose(one.mean, other.mean, rel_tol=1e-9):
        return  # scipy has no answer, or only rounding to go by
    result = t_test(one.mean, (one.deviation, len(first)), other.mean, (other.deviation, len(second)))
    assert result == pytest.approx(stats.ttest_ind(first, second).pvalue, rel=1e-6, abs=1e-12)


def test_t_test_without_variance():
    assert t_test(0.3, (0.0, 5), 0.1 + 0.2, (0.0, 5)) == 1.0
    assert t_test(0.3, (0.0, 5), 0.4, (0.0, 5)) == 0.0


def test_summary_is_over_the_defined_runs():
    cell = summary([RunScore(0, 0.1, 1, 10), RunScore(1, math.nan, 0, 0), RunScore(2, 0.4, 8, 20)])
    assert cell.mean == pytest.approx(0.25)
    assert cell.deviation == pytest.approx(np.std([0.1, 0.4], ddof=1))
    assert (cell.defined, cell.count) == (2, (9, 30))
    nothing = summary([])
    assert math.isnan(nothing.mean)
    assert nothing.count is None


def test_bold_is_best_or_not_significantly_worse():
    rng = np.random.default_rng(0)
    values = {name: rng.normal(mean, 0.1, 10).tolist() for name, mean in (("a", 1), ("b", 1.04), ("c", 1.5))}
    result = column(**values)
    best = min(values, key=lambda name: np.mean(values[name]))
    assert result[best].mark is Mark.BEST
    for name in set(values) - {best}:
        p = stats.ttest_ind(values[name], values[best]).pvalue
        assert result[name].p == pytest.approx(p)
        assert result[name].mark is (Mark.WORSE if p < 0.05 else Mark.LEVEL)
    assert {cell.mark for cell in result.values()} == {Mark.BEST, Mark.LEVEL, Mark.WORSE}
    assert [result[name].bold for name in "abc"] == [True, True, False]


def test_a_method_run_once_borrows_the_spread_and_number_of_another():
    single = [0.50, 0.55, 0.52, 0.49]
    result = column(single=single, ensemble=[0.45], variance_from={"ensemble": "single"})
    deviation = np.std(single, ddof=1)
    p = stats.ttest_ind_from_stats(np.mean(single), deviation, 4, 0.45, deviation, 4).pvalue
    assert result["single"].p == pytest.approx(p)
    assert result["single"].mark is Mark.WORSE
    assert (result["ensemble"].mark, result["ensemble"].borrowed) == (Mark.BEST, "single")
    assert result["single"].borrowed is None
    own = column(single=single, ensemble=[0.45, 0.47], variance_from={"ensemble": "single"})
    assert own["single"].p == pytest.approx(stats.ttest_ind(single, [0.45, 0.47]).pvalue)
    assert own["ensemble"].borrowed is None


def test_one_run_each_claims_no_significance():
    assert marks(a=[0.1], b=[0.2], c=[0.1]) == {
        "a": Mark.BEST_UNTESTED,
        "b": Mark.UNTESTED,
        "c": Mark.BEST_UNTESTED,
    }
    assert not any(cell.bold for cell in column(a=[0.1], b=[0.2]).values())
    assert marks(a=[0.1], b=[0.2, 0.3]) == {"a": Mark.BEST_UNTESTED, "b": Mark.UNTESTED}
    assert marks(a=[0.1, 0.2], b=[0.3]) == {"a": Mark.BEST_UNTESTED, "b": Mark.UNTESTED}
    assert marks(a=[0.1, 0.2]) == {"a": Mark.BEST_UNTESTED}
    assert column(a=[0.1], b=[0.2], variance_from={"a": "b"})["a"].borrowed is None
    assert marks(a=[0.1], b=[0.2], variance_from={"a": "b"}) == {"a": Mark.BEST_UNTESTED, "b": Mark.UNTESTED}


def test_undefined_is_neither_best_nor_tested():
    assert marks(a=[math.nan] * 2, b=[0.2, 0.3], c=[0.21, 0.29]) == {
        "a": Mark.UNTESTED,
        "b": Mark.LEVEL if np.mean([0.21, 0.29]) < np.mean([0.2, 0.3]) else Mark.BEST,
        "c": Mark.LEVEL,
    }
    assert marks(a=[0.4, math.nan, 0.41], b=[0.2, 0.3, 0.25])["a"] is Mark.UNTESTED
    assert marks(a=[0.1, math.nan, 0.11], b=[0.2, 0.3, 0.25]) == {"a": Mark.BEST_UNTESTED, "b": Mark.UNTESTED}


def test_cheating_never_competes():
    values = {"a": [0.2, 0.3, 0.25], "b": [0.21, 0.3, 0.26], "oracle": [0.1, 0.11, 0.12]}
    assert marks(oracles=("oracle",), **values) == {"a": Mark.BEST, "b": Mark.LEVEL, "oracle": Mark.UNTESTED}
    assert marks(**values)["oracle"] is Mark.BEST


def test_higher_may_be_better_and_neither_has_no_best():
    values = {"a": [0.2, 0.21, 0.2], "b": [0.9, 0.91, 0.9]}
    assert marks("higher", **values) == {"a": Mark.WORSE, "b": Mark.BEST}
    for better in ("zero", "neither"):
        assert set(marks(better, **values).values()) == {Mark.UNTESTED}
    cells = column(**values)
    about = {name: MethodRuns(name, name) for name in cells}
    assert best_of(cells, about, "lower") == "a"
    assert best_of({"a": replace(cells["a"], mean=math.nan)}, about, "lower") is None


def half(interval):
    return (interval.high - interval.low) / 2


def networks(name, values):
    return {(name, place): value for place, value in enumerate(values)}


def test_of_the_same_networks_the_differences_count():
    one, other = (1.0, 1.4, 0.9, 1.3), (0.8, 1.3, 0.6, 1.2)
    expected = half(stats.ttest_rel(one, other).confidence_interval(0.95))
    error = over_networks(networks("a", one), networks("a", other))
    assert (error.margin, error.freedom) == pytest.approx((expected, 3))
    assert over_networks(networks("a", one), networks("a", one)).margin == 0.0


def test_of_other_networks_the_interval_is_welchs():
    one, other = (1.0, 1.4, 0.9, 1.3, 1.1), (0.8, 1.3)
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    error = over_networks(networks("a", one), networks("b", other))
    assert error.margin == pytest.approx(half(expected))


def test_of_networks_that_are_partly_the_same_the_variance_is_that_of_the_difference():
    """Ten of one method, of which six are among the eight of the other: its error, from many such draws."""
    rng = np.random.default_rng(0)
    squared, gaps = [], []
    for _ in range(4000):
        effects = rng.normal(size=12)
        ours, theirs = (effects + 0.5 * rng.normal(size=12) for _ in range(2))
        a, b = dict(enumerate(ours[:10])), {place: theirs[place] for place in range(4, 12)}
        squared.append(over_networks(a, b).value ** 2)
        gaps.append(np.mean(list(a.values())) - np.mean(list(b.values())))
    assert np.mean(squared) == pytest.approx(np.var(gaps), rel=0.06)


def test_of_one_network_only_the_other_s_variance_counts():
    one = (1.0, 1.4, 0.9, 1.3)
    expected = half(stats.ttest_1samp(one, 0).confidence_interval(0.95))
    for name in ("a", "b"):
        assert over_networks(networks("a", [7.0]), networks(name, one)).margin == pytest.approx(expected)
        infinite = networks(name, [*one, math.inf])
        assert over_networks(networks("a", [7.0]), infinite).margin == pytest.approx(expected)
    assert math.isnan(over_networks(networks("a", [7.0]), networks("b", [8.0])).margin)
