"""What runs on a GPU, run on the CPU: the same metrics from facts as tensors, and the kernels in Triton's interpreter."""

import numpy as np
import pytest
import torch

from surefoot import LabelKind, Predictions
from surefoot.calibrators import search
from surefoot.metrics import METRICS
from surefoot.predictions import fused
from surefoot.predictions.logits import facts_on_device, fused_facts, outcomes_on_device
from surefoot.predictions.on_device import DeviceFacts, _sums_below
from surefoot.predictions.parts import SUMMED


def drawn(rows, classes, *, members=1, dtype=torch.float64, size=3.0):
    generator = torch.Generator().manual_seed(rows + classes)
    logits = size * torch.randn(members, rows, classes, dtype=dtype, generator=generator)
    noise = -torch.empty(rows, classes, dtype=dtype).exponential_(generator=generator).log()
    return logits, (logits[0] / 2 + noise).argmax(dim=1)


def with_ties():
    logits, labels = drawn(300, 4)
    return logits.round(), labels


def with_gaps():
    logits, labels = drawn(400, 5)
    return logits, labels.masked_fill(logits[0, :, 0] > 1, -100)


CASES = {
    "one row": lambda: drawn(1, 3),
    "fewer rows than bins": lambda: drawn(7, 3),
    "few classes": lambda: drawn(2000, 3),
    "more classes": lambda: drawn(200, 70),
    "float32": lambda: drawn(500, 10, dtype=torch.float32),
    "several members": lambda: drawn(300, 5, members=3),
    "ties": with_ties,
    "all rows equal": lambda: (torch.zeros(1, 50, 3), torch.arange(50) % 3),
    "unknown labels": with_gaps,
    "no labels": lambda: (torch.zeros(1, 50, 3), torch.full((50,), -100)),
    "large logits": lambda: drawn(300, 5, size=1e9),
}


@pytest.mark.parametrize("case", CASES)
def test_metrics_of_facts_on_a_device_are_those_on_the_host(case):
    logits, labels = CASES[case]()
    given = Predictions.from_logits(logits, labels)
    outcomes = outcomes_on_device(facts_on_device(given.logits, given.labels), given.labels)
    assert (outcomes.on_device is None) == (case == "no labels")
    for metric in METRICS:
        expected = metric.function(given)
        assert metric.function(outcomes) == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True), (
            metric.name
        )


def test_resamples_of_facts_on_a_device_are_those_on_the_host():
    logits, labels = with_gaps()
    given = Predictions.from_logits(logits, labels)
    outcomes = outcomes_on_device(facts_on_device(given.logits, given.labels), given.labels)
    counts = np.random.default_rng(0).integers(0, 3, given.n).astype(np.float64)
    for metric in METRICS:
        expected = metric.function(given.outcomes.reweighted(counts))
        found = metric.function(outcomes.reweighted(counts))
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), metric.name


numpy_warns = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # where the interpreter computes with infinity


@pytest.fixture
def interpreted():
    """The kernels, interpreted on the CPU (`tests/conftest.py`)."""
    pytest.importorskip("triton", reason="needs triton, which torch with CUDA brings")
    if torch.cuda.is_available():
        pytest.skip("with a GPU the kernels are compiled: benchmarks/gpu.py compares them")
    return fused


KERNEL_CASES = {
    "many rows": lambda: drawn(5000, 2),
    "few classes": lambda: drawn(100, 3),
    "more classes": lambda: drawn(9, 1000),
    "several warps": lambda: drawn(3, 2500),
    "ties": with_ties,
    "all rows equal": lambda: (torch.zeros(1, 50, 3), torch.arange(50) % 3),
    "large logits": lambda: drawn(30, 5, size=1e9),
    "sure": lambda: drawn(60, 5, size=30.0),
    "float32": lambda: drawn(50, 10, dtype=torch.float32),
    "float32, more classes": lambda: drawn(9, 1000, dtype=torch.float32),
    "float32, sure": lambda: drawn(60, 5, dtype=torch.float32, size=30.0),
}


def tolerance(logits):
    return {"rtol": 1e-9, "atol": 1e-13} if logits.dtype is torch.float64 else {"rtol": 5e-6, "atol": 1e-11}


@numpy_warns
@pytest.mark.parametrize("case", KERNEL_CASES)
def test_facts_of_the_kernel_are_those_of_the_host(case, interpreted):
    logits, labels = KERNEL_CASES[case]()
    facts, correct, keys, extremes = interpreted.softmax_facts(logits, labels)
    expected = facts_on_device(logits, labels)
    assert torch.equal(correct, expected.correct)
    assert torch.equal(keys, DeviceFacts.of(facts, correct).keys)
    assert torch.equal(extremes, torch.stack([logits[0].amin(dim=1), logits[0].amax(dim=1)]))
    torch.testing.assert_close(facts, expected.facts, **tolerance(logits))
    found, ranges = fused_facts(logits, labels)
    assert ranges == [logits.min(), min(labels.min(), 0), logits.max(), labels.max()]
    for part in SUMMED:
        expected_sum = float(part(found).sum())
        assert found.sums_of(part) == [pytest.approx(expected_sum, rel=1e-12, abs=1e-14)], part


@numpy_warns
def test_small_losses_of_float32_logits_are_exact(interpreted):
    logits = torch.tensor([[[12.0, 0.0, -1.0], [40.0, 0.0, 0.0]]])
    facts, _ = fused_facts(logits, torch.tensor([0, 0]))
    exact = -(logits[0, :, 1:].double() - logits[0, :, :1]).exp().sum(dim=1).log1p().numpy()
    np.testing.assert_allclose(facts.log_p_true.numpy(), exact, rtol=1e-6)


@numpy_warns
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("classes", [3, 1000])
@pytest.mark.parametrize("label", [0, 1])
def test_extremes_show_what_is_not_finite(wrong, classes, label, interpreted):
    logits, _ = drawn(5, classes, dtype=torch.float32)
    logits[0, 3, 1] = wrong
    labels = torch.full((5,), label)
    *_, extremes = interpreted.softmax_facts(logits, labels)
    assert torch.isfinite(extremes[:, :3]).all()
    _, (low, _, high, _) = fused_facts(logits, labels)
    assert not np.isfinite([low, high]).all()


@numpy_warns
def test_labels_out_of_range_are_not_read(interpreted):
    logits, _ = drawn(6, 4)
    facts, ranges = fused_facts(logits, torch.tensor([0, 1, 2, -100, 10**12, -(10**12)]))
    assert ranges[1::2] == [-(10**12), 10**12]
    expected = facts_on_device(logits[:, :3], torch.tensor([0, 1, 2]))
    torch.testing.assert_close(facts.facts[:, :3], expected.facts)


@numpy_warns
@pytest.mark.parametrize("case", KERNEL_CASES)
@pytest.mark.parametrize("scale", [0.01, 0.7, 3.0])
def test_slopes_of_the_kernel_are_those_of_the_host(case, scale, interpreted):
    logits, labels = KERNEL_CASES[case]()
    for stride in (1, 3):
        some, truth = logits[:, ::stride], labels[::stride].contiguous()
        first, second, third = interpreted.softmax_slopes(some, truth, scale)
        slopes = torch.empty(len(truth), dtype=torch.float64)
        expected = search.read(search.Rows(some, truth, LabelKind.ONE_LABEL), scale, row_slopes=slopes)
        close = tolerance(logits)
        size = float(logits.abs().max())
        np.testing.assert_allclose(first, slopes, close["rtol"], close["rtol"] * size)
        assert float(second.sum()) == pytest.approx(expected.second, rel=close["rtol"], abs=1e-12)
        assert float(third.sum()) == pytest.approx(expected.third, rel=1e-3, abs=close["rtol"] * size)


@numpy_warns
@pytest.mark.parametrize("case", sorted(set(CASES) - {"no labels"}))
def test_sums_of_the_kernel_below_places_are_those_of_the_host(case, interpreted):
    logits, labels = CASES[case]()
    keys, _ = facts_on_device(logits, labels).keys.sort()
    for number in (1, 3, 10):
        places = torch.linspace(0, len(keys) - 1, number).long()
        expected = _sums_below(keys, places)
        torch.testing.assert_close(
            interpreted.sums_below(keys, places), expected.double(), rtol=1e-12, atol=0
        )


@numpy_warns
def test_metrics_of_the_kernel_s_facts_are_those_of_the_host(interpreted):
    logits, labels = with_gaps()
    outcomes = outcomes_on_device(fused_facts(logits, labels)[0], labels)
    given = Predictions.from_logits(logits, labels)
    for metric in METRICS:
        assert metric.function(outcomes) == pytest.approx(metric.function(given), rel=1e-9), metric.name
