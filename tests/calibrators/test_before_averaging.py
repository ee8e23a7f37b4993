"""T inside an average, compared with numpy code that follows the definition."""

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from surefoot import InputError, LabelKind, Predictions, metrics
from surefoot.calibrators import calibration_document, calibration_from, fit_calibration
from surefoot.calibrators.before_averaging import fit_temperature_before_averaging, read
from surefoot.calibrators.temperature import fit_temperature

NAME = "temperature-before-averaging"


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def probabilities(logits, kind, temperature):
    """mean_s softmax(z_s / T), or mean_s sigmoid(z_s / T), from the definition."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    return (softmax(scaled) if kind == "one_label" else 1 / (1 + np.exp(-scaled))).mean(axis=0)


@np.errstate(divide="ignore", over="ignore")  # at a low T a probability may be 0, and the NLL infinite
def brute_nll(logits, labels, kind, temperature):
    p = probabilities(logits, kind, temperature)
    if kind == "one_label":
        known = labels >= 0
        return -np.log(p[known, labels[known]]).mean()
    each = np.where(labels == 1, p, 1 - p)[labels >= 0]
    return -np.log(each).mean()


def drawn(kind, *, members=7, n=400, classes=4, size=3.0, seed=0):
    """Overconfident members that disagree; some labels are unknown."""
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(n, classes))
    logits = size * (signal + rng.normal(size=(members, n, classes)))
    if kind == "one_label":
        labels = np.array([rng.choice(classes, p=p) for p in softmax(1.5 * signal)])
        labels[::50] = -100
    else:
        labels = (rng.random((n, classes)) < 1 / (1 + np.exp(-1.5 * signal))).astype(np.int64)
        labels[::7, 1] = -100
    return logits.astype(np.float32), labels


@pytest.mark.parametrize("kind", list(LabelKind))
@pytest.mark.parametrize("size", [0.3, 3.0, 30.0])
def test_the_temperature_minimises_the_nll_of_the_mean(kind, size):
    logits, labels = drawn(kind, size=size)
    fitted = fit_calibration(NAME, Predictions.from_logits(logits, labels, kind=kind))
    grid = np.geomspace(size / 100, size * 100, 400)
    best = grid[np.argmin([brute_nll(logits, labels, kind, t) for t in grid])]
    found = minimize_scalar(
        lambda x: brute_nll(logits, labels, kind, math.exp(x)),
        bounds=(math.log(best / 1.1), math.log(best * 1.1)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert fitted.temperature == pytest.approx(math.exp(found.x), rel=1e-5)
    assert fitted.evidence.nll_after == pytest.approx(found.fun, rel=1e-9)
    assert fitted.low < fitted.temperature < fitted.high
    assert not fitted.at_bound


@pytest.mark.parametrize("kind", list(LabelKind))
def test_applied_it_is_the_mean_of_the_members_at_that_temperature(kind):
    logits, labels = drawn(kind)
    given = Predictions.from_logits(logits, labels, kind=kind)
    fitted = fit_calibration(NAME, given)
    expected = probabilities(logits, kind, fitted.temperature)
    np.testing.assert_allclose(fitted(given).probs(), expected, atol=1e-6)


@pytest.mark.parametrize("kind", list(LabelKind))
def test_the_derivatives_are_those_of_finite_differences(kind):
    logits, labels = drawn(kind, n=60)
    known = (labels >= 0).reshape(60, -1).any(axis=1)
    given = Predictions.from_logits(logits[:, known], labels[known], kind=kind)
    count = int((labels >= 0).sum())
    step = 1e-4
    for scale in (0.2, 1.0, 2.5):
        below, at, above = (
            count * brute_nll(logits, labels, kind, 1 / (scale + d)) for d in (-step, 0.0, step)
        )
        found = read(given, scale)
        assert found.nll == pytest.approx(at, rel=1e-10)
        assert found.slope == pytest.approx((above - below) / 2 / step, rel=1e-5, abs=1e-5)
        assert found.second == pytest.approx((above - 2 * at + below) / step**2, rel=1e-3, abs=1e-3)


def test_the_interval_covers_the_temperature_of_the_population():
    rng = np.random.default_rng(1)
    logits, labels = drawn("one_label", n=20_000, members=3, seed=5)
    truth = fit_temperature_before_averaging(Predictions.from_logits(logits, labels)).temperature
    inside = 0
    for _ in range(60):
        rows = rng.choice(20_000, 400)
        fitted = fit_temperature_before_averaging(Predictions.from_logits(logits[:, rows], labels[rows]))
        inside += fitted.low <= truth <= fitted.high
    assert 52 <= inside <= 60


def test_it_can_change_the_predicted_class_and_t_after_averaging_cannot():
    """Of three samples, two favour class 1 a little and one favours class 0 very much.

    At T = 1 the mean is for class 1, as each sample has one vote; at a high T probabilities are linear in the
    logits, and the strong sample wins.
    """
    one = np.array([[0.0, 5.0], [0.0, 5.0], [60.0, 0.0]])[:, None, :]
    rows = np.repeat(one, 4, axis=1)
    before, after = (probabilities(rows, "one_label", t).argmax(1) for t in (1.0, 40.0))
    assert before.tolist() == [1] * 4
    assert after.tolist() == [0] * 4
    labels = np.array([0, 0, 0, 1])
    given = Predictions.from_logits(rows, labels)
    inside, outside = (fit_calibration(name, given) for name in (NAME, "temperature"))
    assert metrics.label_error(given) == 0.75
    assert metrics.label_error(inside(given)) == 0.25
    assert metrics.label_error(outside(given)) == 0.75
    assert metrics.nll_unclipped(inside(given)) < metrics.nll_unclipped(outside(given))


@pytest.mark.parametrize("kind", list(LabelKind))
def test_of_one_member_or_equal_ones_it_is_the_plain_temperature(kind):
    logits, labels = drawn(kind, members=1)
    plain = fit_temperature(Predictions.from_logits(logits, labels, kind=kind))
    for repeats in (1, 5):
        given = Predictions.from_logits(np.repeat(logits, repeats, axis=0), labels, kind=kind)
        fitted = fit_temperature_before_averaging(given)
        assert (fitted.temperature, fitted.low, fitted.high, fitted.n) == (
            plain.temperature, plain.low, plain.high, plain.n,
        )  # fmt: skip
        assert fitted.members == repeats
    # Not by taking a short cut: members that differ by rounding only.
    near = np.concatenate([logits, np.nextafter(logits, np.float32(np.inf))])
    fitted = fit_temperature_before_averaging(Predictions.from_logits(near, labels, kind=kind))
    assert fitted.temperature == pytest.approx(plain.temperature, rel=1e-5)
    assert fitted.high == pytest.approx(plain.high, rel=1e-3)


def test_of_several_minima_the_least_is_taken():
    """Row kinds with scales a factor of 1000 apart: the NLL has two valleys."""
    rng = np.random.default_rng(0)
    small, large = (rng.normal(size=(5, 300, 2)) * size for size in (0.01, 30.0))
    small[..., 0] += 0.02
    logits = np.concatenate([small, large], axis=1)
    labels = np.concatenate([np.zeros(300, int), rng.integers(0, 2, 300)])
    fitted = fit_temperature_before_averaging(Predictions.from_logits(logits, labels))
    grid = np.geomspace(1e-4, 1e4, 2000)
    losses = [brute_nll(logits, labels, "one_label", t) for t in grid]
    assert brute_nll(logits, labels, "one_label", fitted.temperature) <= min(losses) + 1e-7


def test_a_flat_network_keeps_t_at_one():
    logits = np.repeat(np.array([1.0, -2.0, 0.5])[:, None, None], 6, axis=1) * np.ones((3, 6, 3))
    fitted = fit_temperature_before_averaging(Predictions.from_logits(logits, [0, 1, 2, 0, 1, 2]))
    assert fitted.flat
    assert fitted.temperature == 1


def test_where_all_is_right_the_end_of_the_search_is_marked():
    logits = np.stack([np.eye(3) * size for size in (4.0, 5.0)])
    fitted = fit_temperature_before_averaging(Predictions.from_logits(logits, [0, 1, 2]))
    assert fitted.at_bound
    assert fitted.separable
    assert "every label is predicted correctly" in fitted.remarks()[0]


def test_the_average_is_refused():
    logits, labels = drawn("one_label")
    given = Predictions.from_logits(logits, labels)
    fitted = fit_calibration(NAME, given)
    with pytest.raises(InputError, match="fitted for 7 members, but the predictions have 1"):
        fitted(given.average())


def test_it_survives_its_document_and_its_module():
    logits, labels = drawn("one_label")
    fitted = fit_calibration(NAME, Predictions.from_logits(logits, labels))
    document = json.loads(json.dumps(calibration_document(fitted)))
    assert calibration_from(document) == fitted
    for members in (0, 2.5, True, "7"):
        with pytest.raises(ValueError, match="members is"):
            calibration_from({**document, "members": members})
    torch = pytest.importorskip("torch")
    from surefoot.deploy.modules import module_of

    given = torch.from_numpy(logits)
    torch.testing.assert_close(module_of(fitted)(given), given / fitted.temperature)
