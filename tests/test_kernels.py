"""Compiled code against numpy in extended precision, and against what computes the same without it."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surefoot import Predictions, evaluate, fit_temperature, kernels
from surefoot.calibrators import search
from surefoot.evaluation.bootstrap import Draw, Draws, _products
from surefoot.metrics.calibration import SMOOTH_GRID, spread_on_grid
from surefoot.predictions.labels import LabelKind
from surefoot.predictions.logits import extremes_of
from surefoot.predictions.outcomes import Ranking
from surefoot.streaming.cells import Grid, Histogram

compiled = pytest.mark.skipif(not kernels.is_available(), reason="no C++ compiler compiled the kernels")
CLASSES = (2, 3, 10, 32, 33, 64, 100, 101, 128, 1000, 1003)


def draw(n, classes, *, size=3.0, dtype=np.float32, seed=0):
    """Logits, and labels of which half are the top class."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(n, classes)) * size).astype(dtype)
    labels = rng.integers(classes, size=n)
    labels[::2] = logits[::2].argmax(axis=1)
    return logits, labels


def exact_facts(logits, labels):
    """By the definitions, in extended precision."""
    wide, rows = logits.astype(np.longdouble), np.arange(len(labels))
    log_p = wide - wide.max(axis=1, keepdims=True)
    log_p = log_p - np.log(np.exp(log_p).sum(axis=1, keepdims=True))
    p = np.exp(log_p)
    one_hot = np.zeros_like(p)
    one_hot[rows, labels] = 1
    squared_error = np.square(p - one_hot).mean(axis=1)
    facts = (log_p[rows, labels], p.max(axis=1), squared_error, -(p * log_p).sum(axis=1))
    return np.stack(facts).astype(np.float64), wide.argmax(axis=1) == labels


@pytest.fixture
def without_kernels(monkeypatch):
    """A function that switches compiled code off until the end of the test."""
    return lambda: monkeypatch.setattr(kernels, "_FUNCTIONS", {})


@compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", CLASSES)
def test_facts_are_those_of_the_definition(classes, dtype):
    for size in (0.01, 3.0, 12.0):
        logits, labels = draw(203, classes, size=size, dtype=dtype)
        facts, correct, _ = kernels.softmax_facts(logits, labels, None)
        expected, right = exact_facts(logits, labels)
        tolerance = 2e-7 if dtype == np.float32 and classes > 100 else 1e-13
        np.testing.assert_allclose(facts[[0, 2, 3]], expected[[0, 2, 3]], tolerance, 1e-18)
        np.testing.assert_allclose(facts[1], expected[1], tolerance, 1e-12)  # rounded to 12 decimals
        np.testing.assert_array_equal(correct, right)
        np.testing.assert_array_equal(kernels.top_is_label(logits, labels, None), right)


@compiled
@pytest.mark.parametrize("rows", [1, 7, 8, 64, 203, 70_000])
def test_sums_are_those_of_the_facts(rows):
    logits, labels = draw(rows, 20, size=4.0)
    limits = (np.log(0.01), np.log(0.9), 0.95)
    facts, correct, sums = kernels.softmax_facts(logits, labels, None, limits)
    log_p, confidence, squared_error, entropy = facts
    sure = confidence > limits[2]
    counts = [(~correct).sum(), sure.sum(), (sure & ~correct).sum()]
    expected = [-log_p.sum(), -log_p.clip(*limits[:2]).sum(), squared_error.sum(), entropy.sum(), *counts]
    np.testing.assert_allclose(sums, expected, 1e-12)


@compiled
@pytest.mark.parametrize("classes", [2, 10, 33, 150])
def test_facts_of_chosen_rows_and_of_rows_with_gaps_are_those_of_their_rows(classes):
    logits, labels = draw(300, classes)
    facts, correct, _ = kernels.softmax_facts(logits, labels, None)
    rows = np.array([299, 7, 7, 64, 0])
    some, right, _ = kernels.softmax_facts(logits, labels[rows], rows)
    np.testing.assert_array_equal(some, facts[:, rows])
    np.testing.assert_array_equal(right, correct[rows])
    np.testing.assert_array_equal(kernels.top_is_label(logits, labels[rows], rows), right)
    every, *_ = kernels.softmax_facts(logits[::7], np.ascontiguousarray(labels[::7]), None)
    np.testing.assert_array_equal(every, facts[:, ::7])


@compiled
@pytest.mark.parametrize("classes", CLASSES)
def test_the_first_of_equal_logits_is_predicted_and_equal_rows_tie(classes):
    rng = np.random.default_rng(1)
    row = rng.integers(-2, 3, size=classes).astype(np.float32)
    row[rng.integers(classes, size=2)] = 2
    logits = np.stack([rng.permutation(row) for _ in range(200)])
    first = logits.argmax(axis=1)
    assert kernels.softmax_facts(logits, first, None)[1].all()
    last = classes - 1 - logits[:, ::-1].argmax(axis=1)
    facts, correct, _ = kernels.softmax_facts(logits, last, None)
    np.testing.assert_array_equal(correct, first == last)
    assert len(set(facts[1])) == 1


@compiled
@pytest.mark.parametrize("classes", [2, 10, 40, 200])
@pytest.mark.parametrize("largest", [800.0, 1e30, 1e100])
def test_extreme_logits_give_what_the_definition_gives(classes, largest):
    logits = np.zeros((4, classes))
    logits[1, 1], logits[2, 0], logits[3] = largest, -largest, largest
    labels = np.array([0, 1, 0, 1])
    (log_p, confidence, squared_error, entropy), correct, _ = kernels.softmax_facts(logits, labels, None)
    others = classes - 1
    np.testing.assert_allclose(log_p, [-np.log(classes), 0, -largest - np.log(others), -np.log(classes)])
    np.testing.assert_allclose(confidence, [1 / classes, 1, 1 / others, 1 / classes], atol=1e-12)
    np.testing.assert_allclose(squared_error[:3], [others / classes**2, 0, (1 + 1 / others) / classes])
    np.testing.assert_allclose(entropy, [np.log(classes), 0, np.log(others), np.log(classes)], atol=1e-15)
    np.testing.assert_array_equal(correct, [True, True, False, False])
    for scale in (1e-103, 1.0, 1e3):
        assert np.isfinite(kernels.softmax_slopes(logits, labels, scale, None)).all()


@compiled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("n", [1, 63, 129])
def test_slopes_are_those_of_torch(classes, dtype, n, without_kernels):
    logits, labels = draw(n, classes, dtype=dtype)
    weights = np.random.default_rng(2).random(n)
    rows = search.Rows(torch.from_numpy(logits)[None], torch.from_numpy(labels), LabelKind.ONE_LABEL)
    cases = [(scale, some) for scale in (1e-3, 0.4, 20.0) for some in (None, torch.from_numpy(weights))]
    slopes = torch.empty(2, len(cases), n, dtype=torch.float64)
    found = [search.read(rows, *case, into) for case, into in zip(cases, slopes[0], strict=True)]
    without_kernels()
    for ours, case, into, of_rows in zip(found, cases, slopes[1], slopes[0], strict=True):
        expected = search.read(rows, *case, into)
        torch.testing.assert_close(of_rows, into, rtol=1e-10, atol=1e-12)
        for name in ("slope", "second", "third", "squared_slopes", "largest_slope"):
            value = getattr(expected, name)
            assert getattr(ours, name) == pytest.approx(value, rel=1e-9, abs=1e-10), name


@compiled
@given(st.integers(1, 3000), st.integers(0, 10**6), st.sampled_from([np.float32, np.float64]))
def test_sums_of_squares_and_extremes_are_numpy_s(n, seed, dtype):
    values = np.random.default_rng(seed).normal(size=n).astype(dtype)
    assert kernels.sum_of_squares(values) == pytest.approx(float(np.square(values.astype(float)).sum()))
    assert kernels.extremes(values) == (values.min(), values.max())


@compiled
def test_the_sum_of_squares_shows_what_is_not_finite():
    for wrong in (np.nan, np.inf, -np.inf):
        for place in (0, 40, 99):
            values = np.ones(100, dtype=np.float32)
            values[place] = wrong
            assert not np.isfinite(kernels.sum_of_squares(values))


@compiled
@given(st.integers(1, 2500), st.integers(1, 9), st.integers(1, 8), st.integers(0, 10**6))
def test_products_are_numpy_s(units, resamples, sums, seed):
    rng = np.random.default_rng(seed)
    counts, values = rng.integers(6, size=(resamples, units), dtype=np.uint8), rng.normal(size=(sums, units))
    np.testing.assert_allclose(_products(counts, values), counts.astype(float) @ values.T, 1e-11, 1e-11)


@compiled
@given(st.integers(1, 1500), st.integers(1, 9), st.integers(0, 10**6))
def test_squares_are_numpy_s(n, count, seed):
    facts = np.random.default_rng(seed).normal(size=(count, n))
    np.testing.assert_allclose(kernels.squares(facts), facts @ facts.T, 1e-11, 1e-11)


@compiled
@given(st.integers(1, 3000), st.integers(1, 300), st.integers(1, 18), st.integers(0, 10**6))
def test_drawn_decisions_and_sums_of_their_blocks_are_numpy_s(n, blocks, resamples, seed):
    rng = np.random.default_rng(seed)
    counts, unit = rng.integers(6, size=(resamples, 50), dtype=np.uint8), rng.integers(50, size=n)
    residual, block_of = rng.normal(size=n), rng.integers(blocks, size=n, dtype=np.int32)
    drawn = kernels.drawn_decisions(counts, unit)
    np.testing.assert_array_equal(drawn, counts[:, unit])
    sums = kernels.block_sums(counts, unit, block_of, residual, blocks)
    is_before = block_of[:, None] < np.arange(blocks + 1)
    np.testing.assert_array_equal(sums[0], drawn.astype(float) @ is_before)
    np.testing.assert_allclose(sums[1], (drawn * residual) @ is_before, 1e-9, 1e-9)


@compiled
@given(st.integers(1, 2000), st.sampled_from([0, 1, 2, 5, 12]), st.integers(0, 10**6))
def test_confidences_are_ranked_as_by_numpy(n, decimals, seed):
    confidence = np.random.default_rng(seed).random(n).round(decimals)
    order, ends = kernels.rank_confidences(confidence)
    np.testing.assert_array_equal(order, np.argsort(-confidence, kind="stable"))
    ranked = confidence[order]
    np.testing.assert_array_equal(ends, np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)))


@compiled
@pytest.mark.parametrize("wrong", [1 / 3, 0.5 + 1e-13, -1e-12, 1 + 1e-12, np.nan, np.inf, -np.inf])
def test_other_scores_are_left_to_numpy_s_sort(wrong):
    score = np.array([0.25, wrong, 1.0, 0.25])
    assert kernels.rank_confidences(score) is None
    assert Ranking.of(score).order[-1] == np.argsort(-score)[-1]


@compiled
@pytest.mark.parametrize(
    "units", [1, 2, 3, 7, 8, 9, 500, 5_000_003]
)  # of the last, a thousandth is drawn again
def test_draws_are_those_of_numpy_and_leave_its_state(units):
    ours, theirs = np.random.default_rng(3), np.random.default_rng(3)
    for between in (1, 2):  # others draw so often, which may leave 32 bits
        for of_resample in Draw.of(units, None, resamples=3, rng=ours).counts:
            drawn = theirs.integers(units, size=units, dtype=np.uint32)
            np.testing.assert_array_equal(of_resample, np.bincount(drawn, minlength=units))
        numbers = [rng.integers(2**31, size=between, dtype=np.uint32).tolist() for rng in (ours, theirs)]
        assert numbers[0] == numbers[1]


@compiled
def test_draws_are_the_same_without_compiled_code_and_in_parts(without_kernels):
    def taken(*sizes):
        draws, found = Draws(np.arange(90), np.random.default_rng(0)), []
        for size in sizes:
            numbers, counts = draws.take(size)
            assert numbers == list(range(len(found), len(found) + size))
            found += counts.tolist()
            draws.give_back(counts)
        return found

    expected = taken(7)
    assert taken(1, 4, 2) == expected
    without_kernels()
    assert taken(7) == taken(3, 4) == expected


@compiled
def test_other_generators_are_left_to_numpy():
    ours, theirs = (np.random.Generator(np.random.MT19937(0)) for _ in range(2))
    counts = Draw.of(50, None, resamples=1, rng=ours).counts
    expected = np.bincount(theirs.integers(50, size=50, dtype=np.uint32), minlength=50)
    np.testing.assert_array_equal(counts[0], expected)


@compiled
@given(st.integers(1, 400), st.integers(0, 10**6), st.integers(1, 30))
def test_histograms_are_the_same_without_compiled_code(n, seed, blocks):
    rng, grid = np.random.default_rng(seed), Grid.of(blocks)
    doubts = np.rint(10 ** rng.uniform(0, 12, size=n) - 1)
    doubts[::3] = doubts[0]
    doubts[1::7], wrong = rng.choice([0, 1, 4095, 4096, 2**35 - 1, 2**35, 10**12 - 1]), rng.random(n) < 0.3
    ours, theirs = Histogram.empty(grid, 2), Histogram.empty(grid, 2)
    for half in (slice(0, n // 2), slice(n // 2, n)):
        ours.add(1, doubts[half], wrong[half])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "_FUNCTIONS", {})
            theirs.add(1, doubts[half], wrong[half])
    for name in ("count", "wrong", "offset", "mixed"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
    single = ~ours.mixed
    np.testing.assert_array_equal(ours.doubt[single], theirs.doubt[single])


@compiled
def test_residuals_on_a_grid_are_the_same_without_compiled_code(without_kernels):
    rng = np.random.default_rng(3)
    confidence = np.append(rng.random(500), [0.0, 1.0, 1 / SMOOTH_GRID, 1 - 1 / SMOOTH_GRID])
    residual = rng.normal(size=len(confidence))
    ours = spread_on_grid(confidence, residual)
    without_kernels()
    np.testing.assert_allclose(ours, spread_on_grid(confidence, residual), 1e-12, 1e-12)


@compiled
@pytest.mark.parametrize("wrong", [-1, 99, 2**62, -(2**63)])
@pytest.mark.parametrize("classes", CLASSES)
def test_labels_out_of_range_give_nan_and_read_nothing_else(classes, wrong):
    logits, labels = draw(130, classes)
    labels[70] = wrong if wrong != 99 else classes
    facts, correct, _ = kernels.softmax_facts(logits, labels, None)
    assert np.flatnonzero(np.isnan(facts[0])).tolist() == [70]
    assert not correct[70]
    assert not kernels.top_is_label(logits, labels, None)[70]
    assert np.isnan(kernels.softmax_slopes(logits, labels, 1.0, None).slope)


@compiled
@pytest.mark.parametrize("classes", CLASSES)
def test_logits_that_are_not_finite_crash_nothing(classes):
    logits, labels = draw(130, classes)
    logits[70], logits[71, 0] = np.nan, np.inf
    facts, _, _ = kernels.softmax_facts(logits, labels, None)
    assert not np.isfinite(facts[0, 70:72]).any()


@compiled
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -1e-9, 2.0, 1e200])
def test_confidences_out_of_range_are_counted_inside_the_cells(wrong):
    confidence, correct = np.array([0.5, wrong, 0.25]), np.array([True, False, True])
    cell, sums = kernels.count_in_cells(confidence, correct, 100)
    assert ((cell >= 0) & (cell < 100)).all()
    assert sums[:, 0].sum() == 3
    assert len(kernels.spread_on_grid(confidence, confidence, 100)) == 100
    for doubts in (confidence * 1e12, -confidence):
        histogram = Histogram.empty(Grid.of(1), 1)
        histogram.add(0, doubts, ~correct)
        assert histogram.count.sum() == 3


@compiled
@pytest.mark.parametrize("classes", [2, 12, 60, 150])
def test_evaluation_and_fit_are_the_same_without_compiled_code(classes, without_kernels):
    logits, labels = draw(900, classes, dtype=np.float64)
    labels[::10] = -100

    def results():
        predictions = Predictions.from_logits(logits, labels, groups=np.arange(900) // 9)
        scores = evaluate(predictions, resamples=20).sides["familiar"].metrics
        ends = {name: (score.value, score.low, score.high) for name, score in scores.items()}
        fitted = fit_temperature(predictions)
        return ends, (fitted.temperature, fitted.low, fitted.high), extremes_of(predictions.logits)

    ours = results()
    without_kernels()
    theirs = results()
    assert ours[1:] == tuple(pytest.approx(each, rel=1e-9) for each in theirs[1:])
    for name, ends in theirs[0].items():
        assert ours[0][name] == pytest.approx(ends, rel=1e-9, abs=1e-9, nan_ok=True), name


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.skipif(bool(os.environ.get(kernels.OFF)), reason="switched off")
def test_there_is_compiled_code_where_there_is_a_compiler():
    assert kernels.is_available(), "kernels.cpp was changed after the installation: python hatch_build.py"


def test_the_environment_switches_compiled_code_off():
    code = "from surefoot import kernels; print(kernels.is_available())"
    environment = os.environ | {kernels.OFF: "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_an_outdated_library_is_not_loaded(tmp_path, monkeypatch):
    source = tmp_path / "kernels.cpp"
    source.write_text("// another source")
    (tmp_path / "kernels-0000000000000000.native").write_bytes(b"")
    monkeypatch.setattr(kernels, "SOURCE", source)
    assert kernels._functions() == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_with_the_precision_it_has(dtype):
    logits, labels = draw(40, 5)
    half = torch.from_numpy(logits).to(dtype)
    predictions = Predictions.from_logits(half, labels)
    expected = Predictions.from_logits(half.float(), labels)
    assert predictions.outcomes.log_p_true.tolist() == expected.outcomes.log_p_true.tolist()
    assert predictions.extremes == expected.extremes


@compiled
def test_logits_of_other_types_are_left_to_numpy():
    assert not kernels.reads(np.ones(3, dtype=np.float16))
    assert not kernels.reads(np.ones(3, dtype=np.longdouble))
    assert not kernels.fits(np.ones((3, 4), dtype=np.float32)[:, ::2])
    assert kernels.fits(np.ones((3, 4), dtype=np.float32)[::2])
