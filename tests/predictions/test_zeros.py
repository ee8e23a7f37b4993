"""Probabilities of exactly 0 have one meaning by every route, and do not decide a calibration."""

import json
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import train_test_split
from typer.testing import CliRunner

import surefoot
from surefoot import (
    CALIBRATORS,
    Predictions,
    fit_calibration,
    read_predictions,
    scan_predictions,
    write_predictions,
)
from surefoot.calibrators import calibration_document, calibration_from
from surefoot.cli.app import app
from surefoot.metrics import ece, nll_unclipped
from surefoot.predictions.zeros import LEAST, LOG_ZERO
from surefoot.sklearn import TemperatureScaledClassifier

ONE_MODEL = [each.name for each in CALIBRATORS if each.one_model]


def draw(n=400, classes=4, seed=0):
    """Probabilities as a forest of 20 trees gives them, a fifth of them 0, some of true labels."""
    rng = np.random.default_rng(seed)
    votes = rng.multinomial(20, rng.dirichlet(np.full(classes, 0.3), n))
    labels = (rng.random(n)[:, None] > ((votes + 0.5) / (20 + 0.5 * classes)).cumsum(axis=1)).sum(axis=1)
    assert (votes[np.arange(n), labels] == 0).sum() > 5
    return votes / 20, labels


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_a_probability_of_0_is_the_same_number_in_every_type(dtype):
    predictions = Predictions.from_probs(np.array([[1, 0], [0.5, 0.5]], dtype), [1, 0])
    assert predictions.logits[0, 0, 1].item() == pytest.approx(LOG_ZERO, abs=1e-5)
    assert nll_unclipped(predictions) == pytest.approx((-LOG_ZERO + np.log(2)) / 2, abs=1e-5)


def test_probabilities_too_small_for_float32_are_as_0_in_float64():
    small = Predictions.from_probs([[1.0, 1e-60], [1.0, 0.0], [1.0, LEAST]], [0, 0, 0])
    assert np.array_equal(small.logits[0, 0], small.logits[0, 1])
    assert np.array_equal(small.logits[0, 0], small.logits[0, 2])


def test_binary_and_many_labels_have_the_same_0():
    binary = Predictions.from_probs(np.array([0.0, 1.0], np.float32), [1, 0])
    np.testing.assert_allclose(binary.logits[0, :, 1], [LOG_ZERO, -LOG_ZERO], rtol=1e-6)
    many = Predictions.from_probs(np.array([[0.0, 1.0]]), [[1, 0]])
    np.testing.assert_allclose(many.logits[0, 0], [LOG_ZERO, -LOG_ZERO], rtol=1e-6)
    assert binary.true_zeros() == many.true_zeros() == 2


@pytest.mark.parametrize("method", ONE_MODEL)
def test_every_calibrator_reads_0_as_half_the_smallest_positive_probability(method):
    probs, labels = draw()
    by_rule = np.log(np.maximum(probs, 0.025))
    given = fit_calibration(method, Predictions.from_probs(probs, labels))
    by_hand = fit_calibration(method, Predictions.from_logits(by_rule, labels))
    if method == "softening":  # declined, so nothing is changed
        assert given.temperature == by_hand.temperature == 1
        assert given.lowest_probability is None
        return
    assert given.lowest_probability == pytest.approx(0.025)
    new = draw(seed=1)
    expected = by_hand(Predictions.from_logits(np.log(np.maximum(new[0], 0.025)), new[1])).probs()
    found = given(Predictions.from_probs(*new)).probs()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert "half the smallest positive one" in " ".join(given.notes())


@pytest.mark.parametrize("method", ["isotonic", "histogram"])
@pytest.mark.parametrize("n", [400, 5000])  # fewer and more rows than are sorted
def test_equal_probabilities_stay_tied_in_every_type(method, n):
    probs, labels = draw(n)
    new = draw(300, seed=1)
    found = []
    for dtype in (np.float32, np.float64):
        fitted = fit_calibration(method, Predictions.from_probs(probs.astype(dtype), labels))
        found.append(fitted(Predictions.from_probs(new[0].astype(dtype), new[1])).probs())
    np.testing.assert_allclose(*found, atol=1e-4)


def test_rows_whose_sum_is_rounded_have_the_same_zeros():
    rounded = Predictions.from_probs([[0.333, 0.333, 0.333, 0], [0.9, 0.1005, 0, 0]] * 10, [3, 0] * 10)
    assert rounded.half_of_smallest() == pytest.approx(0.05, rel=0.01)
    assert rounded.true_zeros() == 10


@pytest.mark.parametrize(
    "labels", [[0, 1, 1, 1] * 50, [[1, 0], [0, 1], [0, 1], [0, 1]] * 50], ids=["one", "many"]
)
@pytest.mark.parametrize("method", ["temperature", "platt", "isotonic"])
def test_a_single_tree_is_calibrated_and_saved(labels, method):
    """All its probabilities are 0 and 1, so there is none in between."""
    probs = np.array([[1.0, 0], [0, 1], [0, 1], [1, 0]] * 50)
    fitted = fit_calibration(method, Predictions.from_probs(probs, labels))
    assert calibration_from(json.loads(json.dumps(calibration_document(fitted)))) == fitted
    expected = [[0.75, 0.25], [0.25, 0.75]] if method == "temperature" else [[0.5, 0.5], [0, 1]]
    after = fitted(Predictions.from_probs(probs, labels)).probs()
    np.testing.assert_allclose(after[:2], expected, atol=0.02)


def test_routes_agree(tmp_path):
    probs, labels = draw()
    table = pa.table({f"prob_{k}": probs[:, k] for k in range(4)} | {"label": labels})
    parquet.write_table(table, tmp_path / "val.parquet", row_group_size=50)
    np.savez(tmp_path / "val.npz", probs=probs.astype(np.float32), labels=labels)
    csv = "\n".join(
        ",".join(map(str, [*row, label])) for row, label in zip(probs.tolist(), labels, strict=True)
    )
    (tmp_path / "val.csv").write_text("prob_0,prob_1,prob_2,prob_3,label\n" + csv + "\n")
    expected = fit_calibration("temperature", Predictions.from_probs(probs, labels))
    score = surefoot.evaluate(Predictions.from_probs(probs, labels), calibration=expected, resamples=0)
    for name in ("val.parquet", "val.npz", "val.csv"):
        found = fit_calibration("temperature", read_predictions(tmp_path / name))
        assert found.temperature == pytest.approx(expected.temperature, rel=1e-6)
    for name in ("val.parquet", "val.csv"):
        streamed = fit_calibration("temperature", scan_predictions(tmp_path / name))
        assert streamed.temperature == pytest.approx(expected.temperature, rel=1e-6)
        assert streamed.lowest_probability == expected.lowest_probability
        assert streamed.evidence.nll_after == pytest.approx(expected.evidence.nll_after, rel=1e-9)
        scored = surefoot.evaluate(scan_predictions(tmp_path / name), calibration=expected, resamples=0)
        for metric in ("nll_unclipped", "brier", "ece"):
            same = (each.sides["familiar"].metrics[metric].value for each in (score, scored))
            np.testing.assert_allclose(*same, rtol=1e-6)
        zeros = (each.uncalibrated["familiar"].zeros for each in (score, scored))
        assert len(set(zeros)) == 1


def test_the_first_rows_of_a_stream_may_have_no_zeros(tmp_path):
    probs, labels = draw(3000)
    order = np.argsort((probs == 0).any(axis=1), kind="stable")
    table = pa.table({f"prob_{k}": probs[order, k] for k in range(4)} | {"label": labels[order]})
    parquet.write_table(table, tmp_path / "val.parquet", row_group_size=100)
    expected = fit_calibration("temperature", Predictions.from_probs(probs, labels))
    streamed = fit_calibration("temperature", scan_predictions(tmp_path / "val.parquet"))
    assert streamed.temperature == pytest.approx(expected.temperature, rel=1e-6)
    assert streamed.lowest_probability == expected.lowest_probability


@pytest.mark.filterwarnings("ignore:.* probabilities are exactly 0")
@pytest.mark.parametrize("table", ["breast_cancer", "digits", "iris", "wine", "diabetes"])
def test_a_forest_on_default_settings_ends_up_no_worse(table):
    """`benchmarks/results/forests.md` has these tables with five splits each."""
    x, y = getattr(datasets, f"load_{table}")(return_X_y=True)
    if table == "diabetes":
        y = np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.4, random_state=0, stratify=y)
    forest = RandomForestClassifier(random_state=0)
    model = TemperatureScaledClassifier(forest, cv=3).fit(x, y)
    before, after = (
        Predictions.from_probs(p, y_test)
        for p in (model.estimator_.predict_proba(x_test), model.predict_proba(x_test))
    )
    assert ece(after) < ece(before) + 0.02
    assert nll_unclipped(after) < nll_unclipped(before) + 0.02
    if table in ("breast_cancer", "digits"):  # of the many rows, where there is something to gain
        assert ece(after) < ece(before)


@pytest.fixture(scope="module")
def misleading():
    """A small forest on noisy labels of ten classes: any T makes its ECE worse."""
    x, y = datasets.make_classification(7000, 20, n_informative=10, n_classes=10, flip_y=0.3, random_state=2)
    forest = RandomForestClassifier(20, random_state=0).fit(x[:1500], y[:1500])
    return forest, x[1500:3000], y[1500:3000]


@pytest.mark.filterwarnings("ignore:.* probabilities are exactly 0")
def test_a_temperature_that_raises_the_ece_of_a_forest_is_declined_by_every_route(misleading, tmp_path):
    forest, x, y = misleading
    val = Predictions.from_probs(forest.predict_proba(x), y)
    write_predictions(val, tmp_path / "val.parquet")
    with pytest.warns(UserWarning, match="was not used, as it raises the ECE"):
        model = TemperatureScaledClassifier(FrozenEstimator(forest)).fit(x, y)
    routes = [
        fit_calibration("temperature", val),
        fit_calibration("temperature", scan_predictions(tmp_path / "val.parquet")),
        model.calibration_,
    ]
    if find_spec("torch"):
        routes.append(surefoot.calibrate(forest, (x, y)).report.calibration)
    for fitted in routes:
        assert (fitted.temperature, fitted.lowest_probability) == (1, None)
        assert fitted.declined == pytest.approx(1.138, abs=0.01)
        assert "the method 'isotonic' may suit them" in " ".join(fitted.notes())
        assert calibration_from(json.loads(json.dumps(calibration_document(fitted)))) == fitted
        np.testing.assert_allclose(fitted(val).probs(), val.probs(), atol=1e-6)
    forced = fit_calibration("temperature", val, force=True)
    assert ece(forced(val)) > ece(val) + 0.02


def test_a_saved_calibration_keeps_what_it_reads_0_as():
    probs, labels = draw()
    fitted = fit_calibration("vector", Predictions.from_probs(probs, labels))
    document = json.loads(json.dumps(calibration_document(fitted)))
    assert calibration_from(document) == fitted
    for wrong in (0, -1, 0.5, 2, "a"):
        with pytest.raises(ValueError, match=r"lowest_probability|could not convert"):
            calibration_from(document | {"lowest_probability": wrong})
    assert calibration_from({k: v for k, v in document.items() if k != "lowest_probability"})


def test_members_are_read_alike():
    members = np.stack([draw(seed=0)[0], draw(seed=2)[0]])
    given = Predictions.from_probs(members, draw()[1])
    for method in ("member-temperatures", "temperature-before-averaging", "temperature"):
        fitted = fit_calibration(method, given)
        assert fitted.lowest_probability == pytest.approx(0.025)
        raised = Predictions.from_logits(np.log(np.maximum(members, 0.025)), given.labels)
        np.testing.assert_allclose(
            fitted(given).probs(), fit_calibration(method, raised)(raised).probs(), atol=1e-9
        )


def test_many_labels_are_read_alike():
    rng = np.random.default_rng(0)
    p = rng.random((300, 3))
    labels = (rng.random(p.shape) < p).astype(int)
    rounded = np.round(10 * p) / 10  # 0 and 1 among them
    fitted = fit_calibration("temperature", Predictions.from_probs(rounded, labels))
    assert fitted.lowest_probability == pytest.approx(0.05)
    raised = np.clip(rounded, 0.05, 0.95)
    by_hand = fit_calibration("temperature", Predictions.from_probs(raised, labels))
    assert fitted.temperature == pytest.approx(by_hand.temperature, rel=1e-6)


def test_logits_without_zeros_are_not_touched():
    rng = np.random.default_rng(0)
    far = Predictions.from_logits(200 * rng.standard_normal((500, 3)), rng.integers(0, 3, 500))
    assert far.half_of_smallest() is None
    assert fit_calibration("temperature", far, force=True).lowest_probability is None


def test_evaluate_says_what_zeros_do_to_the_nll(tmp_path):
    probs, labels = draw()
    table = pa.table({f"prob_{k}": probs[:, k] for k in range(4)} | {"label": labels})
    parquet.write_table(table, tmp_path / "val.parquet")
    zeros = int((probs[np.arange(len(labels)), labels] == 0).sum())
    for stream in ("--stream", "--no-stream"):
        result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "val.parquet"), stream])
        text = " ".join(result.output.split())
        assert f"{zeros} familiar labels have a probability of exactly 0: each counts as 87.3" in text
    document = CliRunner().invoke(app, ["evaluate", str(tmp_path / "val.parquet"), "--format", "json"])
    assert json.loads(document.stdout)["familiar"]["zeros"] == zeros
